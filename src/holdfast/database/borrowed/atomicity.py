"""Keeps half an operation of ours out of a caller's commit.

An operation may break off between two of its statements: a task is cancelled, a driver's time is over, a signal raises
in a thread, Ctrl-C. Who catches that and commits all the same would commit a job without its event. On PostgreSQL an
error of the server fails the caller's transaction, and whatever was done of an operation goes with it; so one that
breaks off otherwise after it has begun to write fails the transaction itself, as a statement that is cancelled does.
On SQLite not even an error fails it: a disk that is full, a trigger, an authorizer. There a savepoint of ours is around
what is written, and only that is undone.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from contextlib import nullcontext, suppress
from typing import Any

from holdfast.database.borrowed.adapters import R
from holdfast.database.dialect import Dialect
from holdfast.database.sqlite.tx import SqliteTx
from holdfast.database.tx import Execute, Row, Tx
from holdfast.errors import HoldfastError, WrongConnection

SPOIL = "SELECT CAST('Holdfast was interrupted in the middle of an operation' AS bigint)"
SPOIL_SECONDS = 5.0  # a server that cannot be reached commits nothing either

SAVE, UNDO, RELEASE = "SAVEPOINT holdfast_whole", "ROLLBACK TO holdfast_whole", "RELEASE holdfast_whole"

WRITE_NOTHING = ("SELECT", "PRAGMA", "SAVEPOINT", "RELEASE", "ROLLBACK TO")
"""How those of our statements begin that change no row."""

READ_ONLY = "25006"  # read_only_sql_transaction


async def run_whole(tx: Tx, work: Callable[[Tx], Coroutine[Any, Any, R]], *, is_async: bool) -> R:
    """Run *work* on PostgreSQL; if it breaks off when something was written, have the server fail the transaction."""
    noting = Noting(tx)
    try:
        return await work(noting)
    except GeneratorExit:  # nothing can be awaited any more
        raise
    except BaseException as error:
        state = _state(error)
        if state == READ_ONLY:
            raise _is_read_only() from error
        if noting.has_written and state is None and not isinstance(error, HoldfastError):
            with suppress(Exception):
                async with asyncio.timeout(SPOIL_SECONDS) if is_async else nullcontext():
                    await tx.execute(SPOIL)
        raise


async def run_undoable(tx: SavingTx, cursor: sqlite3.Cursor, work: Callable[[Tx], Coroutine[Any, Any, R]]) -> R:
    """Run *work* on SQLite, where *tx* uses *cursor*; if it raises when something was written, undo that."""
    try:
        result = await work(tx)
        if tx.has_written:
            cursor.execute(RELEASE)
        return result
    except BaseException:
        if tx.has_written:
            _undo(cursor)
        raise


def run_brief(cursor: sqlite3.Cursor, dialect: Dialect, work: Callable[[Execute], R]) -> R:
    """Run *work*, the brief form of an operation that writes, on SQLite; if it raises, undo what it has written."""
    try:
        cursor.execute(SAVE)
        result = work(lambda sql, values: cursor.execute(dialect.compile(sql).text, values))
        cursor.execute(RELEASE)
        return result
    except BaseException:
        _undo(cursor)
        raise


def _undo(cursor: sqlite3.Cursor) -> None:
    if cursor.connection.in_transaction:  # some errors roll all of it back
        with suppress(sqlite3.Error):  # the savepoint was not made yet, or is released
            cursor.execute(UNDO)
            cursor.execute(RELEASE)


def _state(error: BaseException) -> str | None:
    """Give the server's own code of *error*, by whichever driver; such an error leaves nothing half done."""
    if getattr(error, "severity", "unknown") is None:  # asyncpg has refused a value itself, in the server's words
        return None
    state: str | None = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return state


def _is_read_only() -> WrongConnection:
    return WrongConnection(
        "this connection has a read-only transaction or a read-only server; roll back, connect to the primary "
        "server, and begin a transaction that can write (without read_only, or with `SET TRANSACTION READ WRITE` as "
        "its first statement)"
    )


class Noting:
    """A transaction that notes whether a statement was sent that writes."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self.database = tx.database
        self.has_written = False

    async def execute(self, sql: str, /, **values: object) -> None:
        self.has_written = self.has_written or _writes(sql)
        await self._tx.execute(sql, **values)

    async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:
        self.has_written = self.has_written or _writes(sql)
        return await self._tx.fetch_all(sql, **values)


class SavingTx(SqliteTx):
    """A transaction of SQLite's that gets a savepoint of ours before the first statement that writes."""

    has_written = False

    def _run(self, sql: str, values: dict[str, object]) -> list[Row]:
        if not self.has_written and _writes(sql):
            self.has_written = True  # noted first: what strikes now finds a savepoint to undo, or none
            self._cursor.execute(SAVE)
        return super()._run(sql, values)


def _writes(sql: str) -> bool:
    return not sql.lstrip().startswith(WRITE_NOTHING)
