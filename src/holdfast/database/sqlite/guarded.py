"""The connection of a block, as the user's code is given it: it lets nobody in at the wrong time.

Two threads may want to use it: the user's, and the one that ends a block whose time is over. SQLite would let them take
turns, but a Python function that it calls (a progress handler) needs the interpreter's lock, which the other one may
have while it waits for SQLite's: both would wait for ever. So every call goes through the block's own lock.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

from holdfast.database.statements import ends_transaction, not_theirs_to_end
from holdfast.errors import Misuse

Guard = Callable[[], AbstractContextManager[object]]


class GuardedConnection(sqlite3.Connection):
    """A sqlite3 connection whose statements run under *guard*, and whose transaction nobody ends but its owner."""

    guard: Guard = nullcontext

    def cursor(self, factory: Any = None) -> Any:
        """Make a cursor that heeds the guard."""
        if factory not in (None, sqlite3.Cursor):
            raise Misuse("a block's connection makes cursors of its own kind; leave factory= out")
        with self.guard():
            return super().cursor(GuardedCursor)

    def execute(self, sql: str, parameters: Any = (), /) -> GuardedCursor:
        """Run *sql* by a cursor of its own."""
        cursor: GuardedCursor = self.cursor()
        return cursor.execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> GuardedCursor:
        """Run *sql* for each of *parameters*, by a cursor of its own."""
        cursor: GuardedCursor = self.cursor()
        return cursor.executemany(sql, parameters)

    def executescript(self, sql: str, /) -> NoReturn:
        """Refuse: it would commit first."""
        raise not_theirs_to_end()

    def commit(self) -> NoReturn:
        """Refuse: that is the block's."""
        raise not_theirs_to_end()

    def rollback(self) -> NoReturn:
        """Refuse: that is the block's."""
        raise not_theirs_to_end()

    def close(self) -> NoReturn:
        """Refuse: that is the block's."""
        raise not_theirs_to_end()

    def __exit__(self, *_: object) -> NoReturn:
        """Refuse: it would commit."""
        raise not_theirs_to_end()

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse what would commit by itself: a change of the driver's own mode of transactions."""
        if name in ("isolation_level", "autocommit"):
            raise not_theirs_to_end()
        super().__setattr__(name, value)

    def plain_cursor(self) -> sqlite3.Cursor:
        """Make a cursor without a guard; for the owner, who has the block's lock."""
        return super().cursor(sqlite3.Cursor)

    def do_as_owner(self, sql: str) -> None:
        """Run *sql*, which may begin or end the transaction."""
        self.plain_cursor().execute(sql)

    def close_as_owner(self) -> None:
        """Close the connection."""
        super().close()


class GuardedCursor(sqlite3.Cursor):
    """A cursor whose every step runs under the guard of its connection."""

    connection: GuardedConnection

    def execute(self, sql: str, parameters: Any = (), /) -> GuardedCursor:
        """Run *sql*."""
        with self._guard(sql):
            return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> GuardedCursor:
        """Run *sql* for each of *parameters*."""
        with self._guard(sql):
            return super().executemany(sql, parameters)

    def executescript(self, sql: str, /) -> NoReturn:
        """Refuse: it would commit first."""
        raise not_theirs_to_end()

    def fetchone(self) -> Any:
        """Give the next row."""
        with self.connection.guard():
            return super().fetchone()

    def fetchmany(self, size: int | None = None) -> list[Any]:
        """Give the next rows."""
        with self.connection.guard():
            return super().fetchmany(self.arraysize if size is None else size)

    def fetchall(self) -> list[Any]:
        """Give all rows that are left."""
        with self.connection.guard():
            return super().fetchall()

    def __next__(self) -> Any:
        """Give the next row."""
        with self.connection.guard():
            return super().__next__()

    def _guard(self, sql: str) -> AbstractContextManager[object]:
        if ends_transaction(sql):
            raise not_theirs_to_end()
        return self.connection.guard()
