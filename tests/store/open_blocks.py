"""How tests open blocks: in either colour, on a table that is the user's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from holdfast.database.tx import First, OpenTx, Store, Tx
from tests.support.ways import Way

LEASE = 30.0
FOR_EVER = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n) SELECT max(n) FROM n"


async def make_table(tx: Tx) -> None:
    """Make the user's table, empty."""
    await tx.execute("DROP TABLE IF EXISTS bill")
    await tx.execute("CREATE TABLE bill (id integer PRIMARY KEY, amount integer NOT NULL CHECK (amount > 0))")


async def bills(tx: Tx) -> list[int]:
    """Read the user's table."""
    return [id_ for (id_,) in await tx.fetch_all("SELECT id FROM bill ORDER BY id")]


async def add_bill(tx: Tx, number: int) -> int:
    """Write to the user's table, by a transaction of our own."""
    await tx.execute("INSERT INTO bill (id, amount) VALUES (:number, 1)", number=number)
    return number


async def insert(block: OpenTx, number: int, amount: int = 1) -> None:
    """Write to the user's table, by a statement of the user's."""
    sql = "INSERT INTO bill (id, amount) VALUES (:number, :amount)"
    await block.query(sql, {"number": number, "amount": amount})


async def begin(store: Store, *, is_async: bool, lease: float = LEASE) -> OpenTx:
    """Open a block."""
    return await store.begin(lease) if is_async else store.begin_sync(lease)


async def begin_with(way: Way, first: First | None, lease: float = LEASE) -> OpenTx:
    """Open a block, ours or a provider's, in which *first* is run before anybody has it."""
    opener = way.hf._opener
    return await (opener.begin(lease, first) if way.is_async else opener.begin_blocking(lease, first))


@asynccontextmanager
async def opened(way: Way, lease: float = LEASE) -> AsyncIterator[OpenTx]:
    """Open a block that is rolled back at the end, unless it has ended."""
    block = await begin_with(way, None, lease)
    try:
        yield block
    finally:
        await block.roll_back()


async def on_connection(block: OpenTx, sql: str) -> list[Any]:
    """Run *sql* on the driver's own connection, whatever its kind; fetch what it gives."""
    connection = block.connection
    if hasattr(connection, "fetchrow"):  # asyncpg's has no cursors like the others'
        return [tuple(row) for row in await connection.fetch(sql)]
    if hasattr(connection, "execute"):
        cursor: Any = connection.execute(sql)
    else:  # psycopg2's
        cursor = connection.cursor()
        cursor.execute(sql)
    if hasattr(cursor, "__await__"):
        cursor = await cursor
    if cursor.description is None:
        return []
    rows: Any = cursor.fetchall()
    return list(await rows if hasattr(rows, "__await__") else rows)
