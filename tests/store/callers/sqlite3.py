"""The connections of Python's own sqlite3."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from tests.store.callers.interface import Caller, Can, Stack


class SqliteCaller(Caller):
    """A connection of sqlite3's."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    async def execute(self, statement: str) -> list[Any]:
        """Run a statement."""
        return list(self.connection.execute(statement).fetchall())

    async def begin(self) -> None:
        """Begin as one who is going to write."""
        await self.execute("BEGIN IMMEDIATE")

    async def commit(self) -> None:
        """Commit."""
        self.connection.commit()

    async def rollback(self) -> None:
        """Roll back."""
        self.connection.rollback()

    async def close(self) -> None:
        """Close."""
        self.connection.close()

    async def trace(self, hear: Callable[[str], object]) -> None:
        """Hear of each statement."""
        self.connection.set_trace_callback(hear)

    async def in_transaction(self) -> bool:
        """Ask Python's module."""
        return bool(self.connection.in_transaction)


async def connect(address: str, autocommit: bool = True, **options: Any) -> Caller:
    """Connect; Python's module begins no transaction of itself unless it is asked to."""
    return SqliteCaller(sqlite3.connect(address, **{"isolation_level": None, **options}))


async def rows(caller: Caller) -> None:
    """Read rows as sqlite3's own."""
    caller.connection.row_factory = sqlite3.Row


async def dictionaries(caller: Caller) -> None:
    """Read rows as dictionaries."""
    caller.connection.row_factory = lambda cursor, row: {"row": row}


async def texts_as_bytes(caller: Caller) -> None:
    """Read texts as bytes."""
    caller.connection.text_factory = bytes


HABITS = (rows, dictionaries, texts_as_bytes)
CAN = frozenset(Can) - {Can.ENCODING}

STACKS = (Stack("sqlite3", "sqlite", False, connect, sqlite3.OperationalError, HABITS, CAN),)
