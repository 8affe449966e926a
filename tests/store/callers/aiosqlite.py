"""aiosqlite's connections."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import aiosqlite

from tests.store.callers.interface import Caller, Can, Stack
from tests.store.callers.sqlite3 import HABITS


class AiosqliteCaller(Caller):
    """A connection of aiosqlite's."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self.connection = connection

    async def execute(self, statement: str) -> list[Any]:
        """Run a statement."""
        return list(await self.connection.execute_fetchall(statement))

    async def begin(self) -> None:
        """Begin as one who is going to write."""
        await self.execute("BEGIN IMMEDIATE")

    async def commit(self) -> None:
        """Commit."""
        await self.connection.commit()

    async def rollback(self) -> None:
        """Roll back."""
        await self.connection.rollback()

    async def close(self) -> None:
        """Close."""
        await self.connection.close()

    async def cursor(self) -> Any:
        """Make a cursor."""
        return await self.connection.cursor()

    async def trace(self, hear: Callable[[str], object]) -> None:
        """Hear of each statement."""
        await self.connection.set_trace_callback(hear)  # type: ignore[arg-type]  # what it gives is not looked at

    async def in_transaction(self) -> bool:
        """Ask Python's module."""
        return self.connection.in_transaction


async def connect(address: str, autocommit: bool = True, **options: Any) -> Caller:
    """Connect; Python's module begins no transaction of itself unless it is asked to."""
    return AiosqliteCaller(await aiosqlite.connect(address, **{"isolation_level": None, **options}))


CAN = frozenset(Can) - {Can.ENCODING, Can.THREAD}

STACKS = (Stack("aiosqlite", "sqlite", True, connect, sqlite3.OperationalError, HABITS, CAN),)
