"""The connections of psycopg, of Python's own sqlite3, and of aiosqlite: a sqlite3 connection in a thread of its own.

On aiosqlite a whole operation of ours is one visit to that thread. So what other tasks do on the same connection comes
before it or after it, and never between its statements; and a caller who is cancelled has it done wholly, or not at
all.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from holdfast.database.borrowed.adapters import Driver, R
from holdfast.database.borrowed.atomicity import SavingTx, run_brief, run_undoable, run_whole
from holdfast.database.dialect import Dialect
from holdfast.database.migrations import IDENTITY
from holdfast.database.sqlite.tx import is_busy, raise_ours
from holdfast.database.tx import Execute, Tx, drive
from holdfast.errors import TransactionRequired, WrongConnection

IDLE, ACTIVE, FAILED, UNKNOWN = 0, 1, 3, 4  # libpq's words for the state of a transaction

TURN_SECONDS = 5.0
"""How long we wait for a statement of the caller's to end, which another thread or task may have under way."""


def is_closed() -> WrongConnection:
    """Say that a connection is closed."""
    return WrongConnection("this connection is closed; pass an open connection that is in a transaction")


def is_of_another_encoding() -> WrongConnection:
    """Say that a connection cannot carry every text: part of a start would be done by the time that shows."""
    return WrongConnection(
        'the encoding of this connection does not have every character; connect with client_encoding="utf8"'
    )


def knows_every_character(encoding: str | None) -> bool:
    """Tell whether *encoding* is UTF-8; a pooler repeats the word that the client chose for it, quotes included."""
    return (encoding or "").strip("'").replace("-", "").upper() in ("UTF8", "UNICODE")


def has_failed() -> TransactionRequired:
    """Say that a transaction will commit nothing."""
    return TransactionRequired(
        "the transaction on this connection has failed; roll it back, or roll back to a savepoint, and start the "
        "job again"
    )


def is_in_use() -> WrongConnection:
    """Say that a connection is in the middle of something that we would wait for in vain."""
    return WrongConnection(
        "a stream(), a COPY or another statement is running on this connection; end it first, or run it on another "
        "connection"
    )


def _refuse_psycopg(connection: Any) -> None:
    if connection.closed:
        raise is_closed()
    if not knows_every_character(connection.info.parameter_status("client_encoding")):
        raise is_of_another_encoding()
    status = connection.info.transaction_status
    if status == FAILED:
        raise has_failed()
    if status in (IDLE, UNKNOWN):
        raise TransactionRequired(
            "no transaction is open on this connection; write `with connection.transaction():` around your "
            "statements and this call (`async with` for an async connection)"
        )


def _refuse_sqlite(connection: Any) -> None:
    try:
        is_open = connection.in_transaction
        connection.total_changes  # noqa: B018 - raises on a closed connection, and asks the database nothing
    except Exception as error:
        raise is_closed() from error
    if not is_open:
        raise TransactionRequired(
            'no transaction is open on this connection; write `connection.execute("BEGIN IMMEDIATE")` before your '
            "statements and this call"
        )


async def _run_async_psycopg(connection: Any, dialect: Dialect, work: Callable[[Tx], Coroutine[Any, Any, R]]) -> R:
    from holdfast.database.postgres import AsyncPostgresTx, translated

    if _is_taken(connection):
        try:
            await asyncio.wait_for(connection.lock.acquire(), TURN_SECONDS)
        except TimeoutError:
            raise is_in_use() from None
        _let_go(connection)
    with translated():
        return await run_whole(AsyncPostgresTx(connection, dialect), work, is_async=True)


async def _run_psycopg(connection: Any, dialect: Dialect, work: Callable[[Tx], Coroutine[Any, Any, R]]) -> R:
    from holdfast.database.postgres import PostgresTx, translated

    if _is_taken(connection):
        if not connection.lock.acquire(timeout=TURN_SECONDS):
            raise is_in_use()
        _let_go(connection)
    with translated():
        return await run_whole(PostgresTx(connection, dialect), work, is_async=False)


def _is_taken(connection: Any) -> bool:
    """Tell whether a statement is under way, whose end has to be awaited; a pipeline takes ours at any time."""
    return bool(connection.info.transaction_status == ACTIVE and not connection.pgconn.pipeline_status)


def _let_go(connection: Any) -> None:
    """Give the connection's lock back; what is under way though nobody had the lock is a COPY."""
    is_taken = _is_taken(connection)
    connection.lock.release()
    if is_taken:
        raise is_in_use()


async def _run_sqlite(connection: Any, dialect: Dialect, work: Callable[[Tx], Coroutine[Any, Any, R]]) -> R:
    """Run *work* with texts as texts, whatever the caller makes of them."""
    cursor = _cursor(connection)
    text_factory, connection.text_factory = connection.text_factory, str
    try:
        return await run_undoable(SavingTx(connection, dialect, cursor), cursor, work)
    except sqlite3.Error as error:
        raise_ours(error)
    finally:
        connection.text_factory = text_factory


def _run_brief_sqlite(connection: Any, dialect: Dialect, work: Callable[[Execute], R]) -> R:
    """Run the brief form of an operation, which reads no texts."""
    cursor = _cursor(connection)
    try:
        return run_brief(cursor, dialect, work)
    except sqlite3.Error as error:
        raise_ours(error)


def _cursor(connection: Any) -> sqlite3.Cursor:
    try:
        cursor = sqlite3.Cursor(connection)  # `connection.cursor` may be a subclass's own, and take no class
    except sqlite3.ProgrammingError as error:
        raise WrongConnection(
            "this connection belongs to another thread; start the job in that thread, or connect with "
            "check_same_thread=False"
        ) from error
    cursor.row_factory = None
    return cursor


def _sqlite_leads_to(connection: Any, dialect: Dialect, identity: str) -> bool:
    """Ask at once; whatever is odd, a converter or a table that is not there, is left to who asks at length."""
    try:
        cursor = sqlite3.Cursor(connection)
        cursor.row_factory = None
        found = cursor.execute(dialect.compile(IDENTITY["sqlite"]).text).fetchall()
    except sqlite3.Error as error:
        if is_busy(error):
            raise_ours(error)
        return False
    return bool(found == [(identity, identity, 1, 2)])


def _refuse_aiosqlite(connection: Any) -> None:
    if not all(hasattr(connection, name) for name in ("_execute", "_connection", "_running")):
        raise WrongConnection(
            "Holdfast cannot use this version of aiosqlite, because aiosqlite has changed inside; install an older "
            "aiosqlite, or a newer Holdfast"
        )
    _refuse_sqlite(_inner(connection))


def _inner(connection: Any) -> Any:
    """Reach the connection in the thread."""
    if not connection._running:
        raise is_closed()
    if connection._connection is None:
        raise WrongConnection("this connection is not open yet; write `async with aiosqlite.connect(…) as connection:`")
    return connection._connection


async def _run_aiosqlite(connection: Any, dialect: Dialect, work: Callable[[Tx], Coroutine[Any, Any, R]]) -> R:
    result: R = await connection._execute(partial(_visit, _inner(connection), dialect, work))
    return result


def _visit(inner: Any, dialect: Dialect, work: Callable[[Tx], Coroutine[Any, Any, R]]) -> R:
    _refuse_sqlite(inner)  # another task may have ended the transaction meanwhile
    return drive(_run_sqlite(inner, dialect, work))


ASYNC_PSYCOPG = Driver("psycopg.AsyncConnection", "postgres", True, _refuse_psycopg, _run_async_psycopg)
PSYCOPG = Driver("psycopg.Connection", "postgres", False, _refuse_psycopg, _run_psycopg)
SQLITE = Driver("sqlite3.Connection", "sqlite", False, _refuse_sqlite, _run_sqlite, _sqlite_leads_to, _run_brief_sqlite)
AIOSQLITE = Driver("aiosqlite.core.Connection", "sqlite", True, _refuse_aiosqlite, _run_aiosqlite)
