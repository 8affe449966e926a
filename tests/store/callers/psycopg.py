"""psycopg's own connections, async and blocking."""

from __future__ import annotations

import inspect
from typing import Any

import psycopg
from psycopg.adapt import Loader
from psycopg.rows import dict_row

from tests.store.callers.interface import Caller, Can, Stack
from tests.support.databases import pooled


class PsycopgCaller(Caller):
    """A connection of psycopg's in either colour."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def execute(self, statement: str) -> list[Any]:
        """Run a statement."""
        cursor = await _finished(self.connection.execute(statement))
        return await _finished(cursor.fetchall()) if cursor.description else []

    async def begin(self) -> None:
        """Have psycopg begin, by the first statement."""
        await self.execute("SELECT 1")

    async def begin_repeatable_read(self) -> None:
        """Have psycopg begin, by the statement that must be the first."""
        await self.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")

    async def commit(self) -> None:
        """Commit."""
        await _finished(self.connection.commit())

    async def rollback(self) -> None:
        """Roll back."""
        await _finished(self.connection.rollback())

    async def close(self) -> None:
        """Close."""
        await _finished(self.connection.close())


async def _finished(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def connect_async(address: str, **options: Any) -> Caller:
    """Connect an async one."""
    return PsycopgCaller(await psycopg.AsyncConnection.connect(address, **_named(options)))


async def connect_blocking(address: str, **options: Any) -> Caller:
    """Connect a blocking one."""
    return PsycopgCaller(psycopg.connect(address, **_named(options)))


def _named(options: dict[str, Any]) -> dict[str, Any]:
    named = {"client_encoding" if name == "encoding" else name: value for name, value in options.items()}
    return {**pooled.connect_options("psycopg"), **named}


class Shouting(Loader):
    """A loader of the caller's that makes nonsense of what it reads."""

    def load(self, data: Any) -> str:
        """Make nonsense."""
        return "NONSENSE"


async def dict_rows(caller: Caller) -> None:
    """Read rows as dictionaries."""
    caller.connection.row_factory = dict_row


async def own_loaders(caller: Caller) -> None:
    """Read every type in an own way."""
    for name in ("text", "varchar", "int8", "int4", "bool"):
        caller.connection.adapters.register_loader(name, Shouting)


async def own_cursors(caller: Caller) -> None:
    """Write parameters as $1."""
    is_async = isinstance(caller.connection, psycopg.AsyncConnection)
    caller.connection.cursor_factory = psycopg.AsyncRawCursor if is_async else psycopg.RawCursor


async def prepared_at_once(caller: Caller) -> None:
    """Prepare every statement."""
    caller.connection.prepare_threshold = 0


async def never_prepared(caller: Caller) -> None:
    """Prepare no statement."""
    caller.connection.prepare_threshold = None


HABITS = (dict_rows, own_loaders, own_cursors, prepared_at_once, never_prepared)
MISSING = psycopg.errors.UndefinedTable

CAN = frozenset({
    Can.REFUSE_WITHOUT_TRANSACTION, Can.AUTOCOMMIT, Can.BEGIN_BY_HAND, Can.ENCODING, Can.CLOSE, Can.CURSOR,
})  # fmt: skip

STACKS = (
    Stack("psycopg-async", "postgres", True, connect_async, MISSING, HABITS, CAN),
    Stack("psycopg-blocking", "postgres", False, connect_blocking, MISSING, HABITS, CAN),
)
