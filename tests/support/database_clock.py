"""A clock of the database that a test sets: every statement reads `$now` from a table."""

from __future__ import annotations

from typing import Any

from holdfast import Holdfast
from holdfast.database.dialect import Dialect
from holdfast.database.tx import Tx


class DatabaseClock:
    """The time of one face's database, in milliseconds; other faces on the same one need `share` to have it."""

    def __init__(self, hf: Holdfast, at_ms: int) -> None:
        self._hf = hf
        hf.store.run_sync(_make, at_ms)
        self.share(hf)

    def share(self, hf: Holdfast) -> None:
        """Have another face go by this clock, too."""
        name = hf.store.dialect.fragments["schema_name"]
        fragments = {**hf.store.dialect.fragments, "now": f"(SELECT at FROM {name}.clock_of_test)"}
        Dialect.__init__(hf.store.dialect, fragments)

    @property
    def now(self) -> int:
        """What it shows."""
        return self._hf.store.read_sync(_read)

    def set(self, at_ms: int) -> None:
        """Set it."""
        self._hf.store.run_sync(_set, at_ms)

    def step(self, seconds: float) -> None:
        """Put it forward, or back."""
        self.set(self.now + round(seconds * 1000))


async def _make(tx: Tx, at_ms: int) -> None:
    await tx.execute("CREATE TABLE IF NOT EXISTS $schema_name.clock_of_test (at bigint NOT NULL)")
    await tx.execute("DELETE FROM $schema_name.clock_of_test")
    await tx.execute("INSERT INTO $schema_name.clock_of_test (at) VALUES (:at)", at=at_ms)


async def _set(tx: Tx, at_ms: int) -> None:
    await tx.execute("UPDATE $schema_name.clock_of_test SET at = :at", at=at_ms)


async def _read(tx: Tx) -> int:
    ((at,),) = await tx.fetch_all("SELECT at FROM $schema_name.clock_of_test")
    found: Any = at
    return int(found)
