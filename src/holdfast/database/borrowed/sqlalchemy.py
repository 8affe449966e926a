"""SQLAlchemy's sessions and connections, behind which a driver's connection does the work.

SQLAlchemy is in a transaction before the driver is: asyncpg and psycopg begin with the first statement that goes
through it, sqlite3 only with the first INSERT, UPDATE or DELETE. Ours pass SQLAlchemy by, so they would come before the
transaction, and commit alone. So the driver is asked, and where it is in none, a statement through SQLAlchemy makes it
begin: SQLAlchemy then knows, and ends it, as if it were the user's own.

All is written for the blocking objects; the async ones run it as SQLAlchemy has it, by `run_sync`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.database.borrowed.adapters import DriverConnection, Library
from holdfast.errors import Busy, TransactionRequired, Unavailable, WrongConnection

IDLE = 0  # libpq's word for "in no transaction"

IS_IDLE: dict[str, Callable[[Any], bool]] = {
    "pysqlite": lambda driver: not driver.in_transaction,
    "aiosqlite": lambda driver: not driver.in_transaction,
    "psycopg": lambda driver: bool(driver.info.transaction_status == IDLE),
    "psycopg2": lambda driver: bool(driver.info.transaction_status == IDLE),
    "asyncpg": lambda driver: not driver.is_in_transaction(),
}
"""Tells whether a driver is in no transaction, by SQLAlchemy's name for the driver; nothing is sent."""

# IMMEDIATE: a transaction that begins as a reader's cannot always become a writer's
BEGIN = {"sqlite": "BEGIN IMMEDIATE", "postgresql": "SELECT 1"}


def _session_lends(session: Any, is_async: bool) -> DriverConnection:
    """Lend what *session* has open, inside the savepoint that it is in."""
    from sqlalchemy import Connection

    _refuse_session(session)
    with _explained():
        bind = session.get_bind()
        _refuse_colour(bind, is_async)
        # the outermost first: to sqlite3 a SAVEPOINT before any BEGIN is the transaction, and its RELEASE a COMMIT
        is_joined = isinstance(bind, Connection) and bind.in_transaction()
        _begin(bind if is_joined else session.get_transaction().connection(None))
        # in begin_nested() this makes the SAVEPOINT, if no statement of the user's has
        return _connection_lends(session.connection(bind_arguments={"bind": bind}), is_async)


def _connection_lends(connection: Any, is_async: bool) -> DriverConnection:
    """Lend what *connection* has open."""
    _refuse_connection(connection)
    _refuse_colour(connection, is_async)
    with _explained():
        _begin(connection)
        return DriverConnection(_driver_of(connection))


async def _lend_session(session: Any) -> DriverConnection:
    return _session_lends(session, is_async=False)


async def _lend_async_session(session: Any) -> DriverConnection:
    lent: DriverConnection = await session.run_sync(_session_lends, is_async=True)
    return lent


async def _lend_scoped(scope: Any) -> DriverConnection:
    return await _lend_session(_of_scope(scope))


async def _lend_async_scoped(scope: Any) -> DriverConnection:
    return await _lend_async_session(_of_scope(scope))


async def _lend_connection(connection: Any) -> DriverConnection:
    return _connection_lends(connection, is_async=False)


async def _lend_async_connection(connection: Any) -> DriverConnection:
    if connection.sync_connection is None:
        raise WrongConnection(
            "this AsyncConnection is not connected yet; write `async with engine.begin() as connection:` around "
            "your statements and this call"
        )
    lent: DriverConnection = await connection.run_sync(_connection_lends, is_async=True)
    return lent


def _of_scope(scope: Any) -> Any:
    if not scope.registry.has():  # to ask for the session would make one
        raise _no_transaction("session")
    return scope.registry()


def _refuse_session(session: Any) -> None:
    if not session.in_transaction():  # asked first: nearly everything else would begin one
        raise _no_transaction("session")
    if not session.is_active:
        raise _failed("session")
    if session.twophase:
        raise _two_phases()


def _refuse_connection(connection: Any) -> None:
    from sqlalchemy import TwoPhaseTransaction

    if connection.closed:
        raise _closed()
    transaction, savepoint = connection.get_transaction(), connection.get_nested_transaction()
    if transaction is None:
        raise _no_transaction("connection")
    if connection.invalidated:
        raise TransactionRequired(
            "this connection was lost, so its transaction is rolled back; call `rollback()`, begin a new "
            "transaction, and start the job again"
        )
    if not transaction.is_active or not (savepoint is None or savepoint.is_active):
        raise _failed("connection")
    if isinstance(transaction, TwoPhaseTransaction):
        raise _two_phases()


def _refuse_colour(bind: Any, is_async: bool) -> None:
    if bind.dialect.is_async and not is_async:
        raise WrongConnection(
            "this is the blocking side of an async driver, which `run_sync` passes; write `await hf.start(…, "
            "connection=session)` outside `run_sync`, with the AsyncSession or AsyncConnection"
        )


def _begin(connection: Any) -> None:
    """Have SQLAlchemy begin the transaction that it says is open, if the driver has not begun it yet."""
    from sqlalchemy import exc

    is_idle = IS_IDLE.get(connection.dialect.driver)
    if is_idle is None or not is_idle(driver := _driver_of(connection)):
        return  # a driver that nobody knows is refused as such
    if connection.dialect.name == "sqlite" and _commits_by_itself(driver):
        raise _autocommit()
    try:
        connection.exec_driver_sql(BEGIN[connection.dialect.name]).close()
    except exc.DBAPIError:
        if connection.dialect.name != "sqlite" or is_idle(driver):  # else another task has begun it meanwhile
            raise
    if is_idle(driver):
        raise _autocommit()


def _commits_by_itself(driver: Any) -> bool:
    raw = getattr(driver, "_conn", driver)  # aiosqlite's own does not tell all
    return raw.isolation_level is None or (hasattr(type(raw), "autocommit") and _autocommit_of(driver, raw) is True)


def _autocommit_of(driver: Any, raw: Any) -> object:
    """Read what Python has from 3.12 on, and may tell only the thread that connected."""
    from sqlalchemy.util import await_only

    return raw.autocommit if raw is driver else await_only(driver._execute(getattr, raw, "autocommit"))


def _driver_of(connection: Any) -> Any:
    # by the dialect: a connection that was detached from its pool has no driver_connection
    return connection.dialect.get_driver_connection(connection.connection.dbapi_connection)


@contextmanager
def _explained() -> Iterator[None]:
    """Raise our errors in place of SQLAlchemy's."""
    from sqlalchemy import exc

    try:
        yield
    except exc.UnboundExecutionError as error:
        raise WrongConnection(
            "this session is bound to several databases, or to none; pass the connection to the database of hf: "
            '`connection=session.connection(bind_arguments={"mapper": Order})`, or `{"bind": engine}`'
        ) from error
    except exc.PendingRollbackError as error:
        raise _failed("session") from error
    except exc.ResourceClosedError as error:
        raise _closed() from error
    except exc.InvalidRequestError as error:
        raise _in_use(error) from error
    except exc.TimeoutError as error:
        raise Busy(
            "the connection pool of the engine gave no connection in time; make the pool larger, or try again"
        ) from error
    except exc.DBAPIError as error:
        _raise_ours(error)
    except sqlite3.ProgrammingError as error:  # of the driver, asked by us and not by SQLAlchemy
        raise _elsewhere(error) from error
    except OSError as error:  # asyncpg's, when it cannot connect
        raise _unreachable(error) from error


def _raise_ours(error: Any) -> None:
    from sqlalchemy import exc

    from holdfast.database.sqlite.tx import raise_ours

    if isinstance(error.orig, sqlite3.ProgrammingError):
        raise _elsewhere(error.orig) from error
    if isinstance(error.orig, sqlite3.Error):
        raise_ours(error.orig)
    if error.connection_invalidated or isinstance(error, exc.OperationalError):
        raise _unreachable(error.orig) from error
    if isinstance(error, exc.InterfaceError):  # asyncpg's, of another operation that is in progress
        raise _in_use(error.orig) from error
    raise error


def _elsewhere(error: sqlite3.ProgrammingError) -> WrongConnection:
    return WrongConnection(
        f"this connection is closed, or belongs to another thread ({error}); start the job in the thread that opened it"
    )


def _unreachable(error: BaseException) -> Unavailable:
    text = str(error).strip().partition("\n")[0]
    return Unavailable(f"the database cannot be reached ({text}); try again when it is back")


def _in_use(error: BaseException) -> WrongConnection:
    return WrongConnection(
        f"SQLAlchemy cannot use this session or connection now ({error}); end the running statement, and use it "
        "in one task or thread at a time"
    )


def _no_transaction(what: str) -> TransactionRequired:
    return TransactionRequired(
        f"no transaction is open on this {what}; write `with {what}.begin():` around your statements and this call "
        "(`async with` for an async one)"
    )


def _failed(what: str) -> TransactionRequired:
    return TransactionRequired(
        f"the transaction on this {what} has failed, is being committed, or is used by another task; call "
        f"`{what}.rollback()`, or leave the `begin_nested()` block in which it failed, and start the job again"
    )


def _autocommit() -> TransactionRequired:
    return TransactionRequired(
        "no transaction is open in the database, although SQLAlchemy reports one: this engine or connection commits "
        'each statement by itself; remove `isolation_level="AUTOCOMMIT"`, and write `with session.begin():` around '
        "your statements and this call"
    )


def _two_phases() -> WrongConnection:
    return WrongConnection(
        "this transaction uses two-phase commit, and PostgreSQL cannot prepare a transaction that notifies workers; "
        "write `with session.begin():` on a session without `twophase=True`"
    )


def _closed() -> WrongConnection:
    return WrongConnection("this connection is closed; pass an open connection that is in a transaction")


SESSION = Library("sqlalchemy.orm.session.Session", False, _lend_session)
SCOPED_SESSION = Library("sqlalchemy.orm.scoping.scoped_session", False, _lend_scoped)
CONNECTION = Library("sqlalchemy.engine.base.Connection", False, _lend_connection)
ASYNC_SESSION = Library("sqlalchemy.ext.asyncio.session.AsyncSession", True, _lend_async_session)
ASYNC_SCOPED_SESSION = Library("sqlalchemy.ext.asyncio.scoping.async_scoped_session", True, _lend_async_scoped)
ASYNC_CONNECTION = Library("sqlalchemy.ext.asyncio.engine.AsyncConnection", True, _lend_async_connection)
