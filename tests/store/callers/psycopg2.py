"""psycopg2's connections."""

from __future__ import annotations

from typing import Any

import psycopg2
from psycopg2 import extensions, extras

from tests.store.callers.interface import Caller, Can, Stack


class Psycopg2Caller(Caller):
    """A connection of psycopg2's."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def execute(self, statement: str) -> list[Any]:
        """Run a statement."""
        with self.connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    async def begin(self) -> None:
        """Have psycopg2 begin, by the first statement."""
        await self.execute("SELECT 1")

    async def begin_repeatable_read(self) -> None:
        """Have psycopg2 begin, by the statement that must be the first."""
        await self.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")

    async def commit(self) -> None:
        """Commit."""
        self.connection.commit()

    async def rollback(self) -> None:
        """Roll back."""
        self.connection.rollback()

    async def close(self) -> None:
        """Close."""
        self.connection.close()


async def connect(address: str, autocommit: bool = False, encoding: str | None = None, **options: Any) -> Caller:
    """Connect."""
    connection = psycopg2.connect(address, **({"client_encoding": encoding} if encoding else {}), **options)
    connection.autocommit = autocommit
    return Psycopg2Caller(connection)


async def real_dict_rows(caller: Caller) -> None:
    """Read rows as dictionaries."""
    caller.connection.cursor_factory = extras.RealDictCursor


async def own_typecasters(caller: Caller) -> None:
    """Make nonsense of every type on this connection."""
    nonsense = extensions.new_type((16, 20, 21, 23, 25, 1043), "NONSENSE", lambda value, cursor: "NONSENSE")
    extensions.register_type(nonsense, caller.connection)


HABITS = (real_dict_rows, own_typecasters)
MISSING = psycopg2.errors.UndefinedTable
CAN = frozenset({
    Can.REFUSE_WITHOUT_TRANSACTION, Can.AUTOCOMMIT, Can.BEGIN_BY_HAND, Can.ENCODING, Can.CLOSE, Can.CURSOR,
})  # fmt: skip

STACKS = (Stack("psycopg2", "postgres", False, connect, MISSING, HABITS, CAN),)
