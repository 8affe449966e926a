"""A table that is not ours, operations on it, and both colours of a PostgreSQL store under `await`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from holdfast.database.postgres import PostgresStore
from holdfast.database.tx import ListOperation, Operation, P, R, T, Tx, repeatable

SCHEMA = "samples"
CREATE_TABLE = """
    DROP TABLE IF EXISTS sample;
    CREATE TABLE sample (id text PRIMARY KEY, amount bigint NOT NULL CHECK (amount >= 0));
    CREATE OR REPLACE FUNCTION fail_with(state text) RETURNS void LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'asked for' USING ERRCODE = state; END $$"""


async def add(tx: Tx, name: str) -> None:
    """Insert a row, in two round trips; a second run fails."""
    await tx.execute("INSERT INTO sample (id, amount) VALUES (:id, 0)", id=name)
    await tx.execute("UPDATE sample SET amount = amount + 1 WHERE id = :id", id=name)


@repeatable
async def add_once(tx: Tx, name: str) -> None:
    """Insert a row unless it is there."""
    await tx.execute("INSERT INTO sample (id, amount) VALUES (:id, 1) ON CONFLICT DO NOTHING", id=name)


@dataclass(frozen=True)
class Item:
    """Something to add in a group; negative amounts are refused by the table."""

    id: str
    amount: int = 1
    may_wait: bool = False


@repeatable
async def add_items(tx: Tx, items: Sequence[Item]) -> list[str]:
    """Insert a row for each of *items*, in one statement; return what each was called, in order."""
    rows = await tx.fetch_all(
        """INSERT INTO sample (id, amount) SELECT given.id, given.amount
           FROM $list(given: id text, amount bigint) ON CONFLICT (id) DO UPDATE SET amount = excluded.amount
           RETURNING id""",
        given=[(item.id, item.amount) for item in items],
    )
    found = {row[0] for row in rows}
    return [item.id for item in items if item.id in found]


async def count(tx: Tx) -> int:
    """Count the rows, in one statement."""
    ((number,),) = await tx.fetch_all("SELECT count(*) FROM sample")
    return int(number)


async def ask(tx: Tx, sql: str) -> Any:
    """Return the one value that *sql* gives."""
    ((value,),) = await tx.fetch_all(sql)
    return value


@dataclass(frozen=True)
class Caller:
    """A store in one colour; every method is awaited, and blocking calls run in a thread."""

    store: PostgresStore
    is_async: bool

    async def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a write operation."""
        if self.is_async:
            return await self.store.run(operation, *args, **kwargs)
        return await asyncio.to_thread(lambda: self.store.run_sync(operation, *args, **kwargs))

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a read operation."""
        if self.is_async:
            return await self.store.read(operation, *args, **kwargs)
        return await asyncio.to_thread(lambda: self.store.read_sync(operation, *args, **kwargs))

    async def gather(self, operation: ListOperation[T, R], items: Sequence[T]) -> Sequence[R]:
        """Run a list operation that shares its commit."""
        if self.is_async:
            return await self.store.gather(operation, items)
        return await asyncio.to_thread(self.store.gather_sync, operation, items)

    async def open(self) -> None:
        """Open the store."""
        await (self.store.open() if self.is_async else asyncio.to_thread(self.store.open_sync))

    async def close(self) -> None:
        """Close the store."""
        await (self.store.close() if self.is_async else asyncio.to_thread(self.store.close_sync))


@dataclass(frozen=True)
class Stranger:
    """A connection of somebody else, to arrange and to look with."""

    connection: psycopg.Connection[Any]

    def do(self, sql: str) -> None:
        """Run *sql*."""
        self.connection.execute(sql)

    def ask(self, sql: str) -> Any:
        """Return the one value that *sql* gives."""
        row = self.connection.execute(sql).fetchone()
        assert row is not None
        return row[0]

    def rows(self) -> dict[str, int]:
        """Read the sample table."""
        return dict(self.connection.execute("SELECT id, amount FROM sample").fetchall())


async def until(condition: Callable[[], object], what: str, timeout: float = 30) -> None:
    """Wait until *condition* holds; fail with *what* did not happen."""
    try:
        async with asyncio.timeout(timeout):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"did not happen in {timeout} s: {what}") from None
