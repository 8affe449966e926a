"""asyncpg's connections: its own, those without a cache of statements, and those that a pool hands out."""

from __future__ import annotations

from typing import Any

import asyncpg

from tests.store.callers.interface import Caller, Can, Stack
from tests.support.databases import pooled


class AsyncpgCaller(Caller):
    """A connection of asyncpg's, with the transaction that its users would hold in a `with`."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._transaction: Any = None

    async def execute(self, statement: str) -> list[Any]:
        """Run a statement."""
        return list(await self.connection.fetch(statement))

    async def begin(self) -> None:
        """Begin by asyncpg's own object."""
        await self._begin(self.connection.transaction())

    async def begin_repeatable_read(self) -> None:
        """Begin by asyncpg's own object, which knows the level."""
        await self._begin(self.connection.transaction(isolation="repeatable_read"))

    async def _begin(self, transaction: Any) -> None:
        await transaction.start()
        self._transaction = transaction

    async def commit(self) -> None:
        """Commit."""
        await self._transaction.commit()

    async def rollback(self) -> None:
        """Roll back."""
        await self._transaction.rollback()

    async def close(self) -> None:
        """Close."""
        await self.connection.close()

    async def cursor(self) -> Any:
        """Make what asyncpg has for a cursor."""
        return self.connection.cursor("SELECT 1")


class PooledCaller(AsyncpgCaller):
    """A connection out of a pool of its own."""

    def __init__(self, pool: Any, connection: Any) -> None:
        super().__init__(connection)
        self._pool = pool

    async def close(self) -> None:
        """Give it back, and close what it came from."""
        await self._pool.release(self.connection)
        self._pool.terminate()


async def connect(address: str, **options: Any) -> Caller:
    """Connect."""
    return AsyncpgCaller(await asyncpg.connect(address, **_named(options)))


async def connect_without_cache(address: str, **options: Any) -> Caller:
    """Connect as one does behind a pooler of transactions: no statement keeps a name."""
    return AsyncpgCaller(await asyncpg.connect(address, **{**_named(options), "statement_cache_size": 0}))


async def connect_by_pool(address: str, **options: Any) -> Caller:
    """Take a connection out of a pool."""
    pool = await asyncpg.create_pool(address, min_size=0, max_size=1, **_named(options))
    return PooledCaller(pool, await pool.acquire())


def _named(options: dict[str, Any]) -> dict[str, Any]:
    """Write an encoding as asyncpg reads it; every connection of asyncpg's is one with autocommit."""
    kept = {name: value for name, value in options.items() if name not in ("autocommit", "encoding")}
    others = {**pooled.connect_options("asyncpg"), **kept}
    if "encoding" in options:
        others["server_settings"] = {"client_encoding": options["encoding"]}
    return others


async def own_codecs(caller: Caller) -> None:
    """Make nonsense of every type, both ways."""
    for name in ("text", "varchar", "int8", "int4", "bool", "json"):
        await caller.connection.set_type_codec(
            name, schema="pg_catalog", encoder=lambda value: "NONSENSE", decoder=lambda value: "NONSENSE"
        )


async def own_binary_codecs(caller: Caller) -> None:
    """Make nonsense of texts and numbers as they are on the wire."""
    for name in ("text", "int8"):
        await caller.connection.set_type_codec(
            name, schema="pg_catalog", encoder=lambda value: b"NONSENSE", decoder=lambda value: b"", format="binary"
        )


async def query_logger(caller: Caller) -> None:
    """Have every statement told to somebody."""
    caller.connection.add_query_logger(lambda record: None)


HABITS = (own_codecs, own_binary_codecs, query_logger)
MISSING = asyncpg.UndefinedTableError
CAN = frozenset({
    Can.REFUSE_WITHOUT_TRANSACTION, Can.AUTOCOMMIT, Can.BEGIN_BY_HAND, Can.ENCODING, Can.CLOSE, Can.CURSOR,
})  # fmt: skip

STACKS = (
    Stack("asyncpg", "postgres", True, connect, MISSING, HABITS, CAN),
    Stack("asyncpg-uncached", "postgres", True, connect_without_cache, MISSING, HABITS, CAN, is_twin=True),
    Stack("asyncpg-pool", "postgres", True, connect_by_pool, MISSING, HABITS, CAN),
)
