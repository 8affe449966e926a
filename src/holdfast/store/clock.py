"""The database's clock, by which everything is decided and stamped."""

from __future__ import annotations

from holdfast.database.tx import Tx

NOW = """SELECT $now"""


async def now_ms(tx: Tx) -> int:
    """Read the database's time, in milliseconds since 1970."""
    ((now,),) = await tx.fetch_all(NOW)
    return int(now)
