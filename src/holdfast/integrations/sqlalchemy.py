"""SQLAlchemy's sessions as the transactions of blocks: what is written by the ORM and the job's end are one commit.

A session is made for each block and closed with it. All is written for the blocking `Session`; an `AsyncSession` runs
it as SQLAlchemy has it, by `run_sync`. What happens to the transaction is learnt from SQLAlchemy's events: which
savepoints are open, which statement has failed, that only COMMIT is left to be sent.
"""

from __future__ import annotations

import asyncio
import os
import socket
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

from holdfast.errors import MissingLibrary

if find_spec("sqlalchemy") is None:
    raise MissingLibrary("holdfast.integrations.sqlalchemy", "sqlalchemy", "sqlalchemy>=2.0")

from sqlalchemy import Connection, Dialect, Engine, ExceptionContext, event, exc, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, SessionTransaction, scoped_session, sessionmaker
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from holdfast.database.borrowed.orm_transaction import TAKE_RIGHT, Check, UserTransaction, ended_by_user
from holdfast.database.borrowed.transaction_watch import TransactionWatch
from holdfast.database.records import Record, records
from holdfast.database.statements import in_text
from holdfast.database.tx import drive
from holdfast.errors import Misuse, TransactionBroken, Unavailable, WrongConnection

R = TypeVar("R")

Source: TypeAlias = Engine | sessionmaker[Any] | AsyncEngine | async_sessionmaker[Any]


class SQLAlchemy:
    """Provides SQLAlchemy's sessions as the transactions of blocks; one engine or sessionmaker for each colour.

    >>> from sqlalchemy import create_engine
    >>> SQLAlchemy(create_engine("sqlite:///orders.db"))
    <SQLAlchemy for plain handlers>
    """

    def __init__(self, *sources: Source) -> None:
        self._makers: dict[bool, Callable[[], Any]] = {}
        for each in sources:
            is_async, maker = _session_maker(each)
            if is_async in self._makers:
                raise Misuse(
                    f"SQLAlchemy() got two {'async' if is_async else 'blocking'} engines or sessionmakers; give at "
                    "most one blocking and one async: `SQLAlchemy(engine, async_engine)`"
                )
            self._makers[is_async] = maker
        if not self._makers:
            raise Misuse("SQLAlchemy() needs an engine or a sessionmaker; write `SQLAlchemy(engine)`")

    def serves(self, *, is_async: bool) -> bool:
        """Tell whether it has sessions for handlers of this colour."""
        return is_async in self._makers

    def transaction(self, *, is_async: bool) -> UserTransaction:
        """Make a transaction that has not begun yet."""
        kind = AsyncSessionTransaction if is_async else BlockingSessionTransaction
        return kind(self._makers[is_async]())

    def refusal(self, *, is_async: bool) -> str:
        """Say what to write instead, in a handler of a colour that it does not serve."""
        if is_async:
            return (
                "this engine is blocking, but the handler is async; give an engine of `create_async_engine(…)`, or "
                "an `async_sessionmaker`, or make the handler a plain `def`"
            )
        return (
            "this engine is async, but the handler is a plain function; give an engine of `create_engine(…)`, or a "
            "`sessionmaker`, or make the handler an `async def`"
        )

    def __repr__(self) -> str:
        colours = " and ".join("async" if each else "plain" for each in sorted(self._makers))
        return f"<SQLAlchemy for {colours} handlers>"


def _session_maker(source: object) -> tuple[bool, Callable[[], Any]]:
    """Give whether *source* is async, and how to make a session of it.

    What a handler has loaded stays readable after the block: in async code an attribute that has expired cannot be
    read again. Whoever gives a maker of his own has said what he wants.
    """
    match source:
        case AsyncEngine():
            return True, async_sessionmaker(source, expire_on_commit=False)
        case async_sessionmaker():
            return True, source
        case Engine():
            return False, sessionmaker(source, expire_on_commit=False)
        case sessionmaker():
            return False, source
        case scoped_session() | async_scoped_session():
            raise Misuse(
                "a block has its own session, so writes through this scoped session would not commit with the "
                "block; give `scope.session_factory` or the engine, and write through `tx.session` in a block"
            )
        case _:
            raise Misuse(
                f"SQLAlchemy() cannot make sessions from a {type(source).__qualname__}; give an engine or a "
                "sessionmaker"
            )


def address_of(engine: Engine | AsyncEngine) -> str:
    """Write the address of *engine*'s database as a Holdfast's, password included: a file's path, or postgresql://.

    SQLAlchemy tells what is in the engine's URL; it keeps `connect_args=` and `creator=` to itself.
    """
    url = engine.url
    match url.get_backend_name():
        case "postgresql":
            given = dict(engine.dialect.create_connect_args(url)[1])
            return f"postgresql://?{urlencode(_for_libpq(given), quote_via=quote)}"
        case "sqlite" if url.database and url.database != ":memory:" and not url.database.startswith("file:"):
            return url.database
        case "sqlite":
            raise Misuse(
                "the database of this engine is in memory, or a file: URL, but Holdfast needs a file that its "
                'worker can open too: write `create_engine("sqlite:///orders.db")`'
            )
        case name:
            raise Misuse(
                f"this engine is for {name}, but Holdfast needs PostgreSQL or SQLite; give the engine of such a "
                "database"
            )


def _for_libpq(given: dict[str, Any]) -> dict[str, str]:
    """Keep of what a driver is *given* what libpq knows by the same name, or by another."""
    from psycopg import pq

    names = {"database": "dbname", "ssl": "sslmode"}  # asyncpg's
    words = {each.keyword.decode() for each in pq.Conninfo.get_defaults()} - {"client_encoding"}
    renamed = {names.get(name, name): value for name, value in given.items()}
    return {
        name: ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for name, value in renamed.items()
        if name in words and value is not None
    }


class BlockingSessionTransaction:
    """A session's transaction as a `UserTransaction`; nothing suspends."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.is_commit_sent = False
        self._is_over = False
        self._check: Check | None = None
        self._is_at_commit = False
        self._root: SessionTransaction | None = None
        self._connection: Connection | None = None
        self._driver: Any = None

    async def begin(self, watch: TransactionWatch) -> None:
        """Have the session begin; its connection is reached, and begins, when it is lent."""
        self._transaction_watch = watch
        self._events = ConnectionEvents(watch)
        await self._call(self._begin)

    async def flush(self) -> None:
        """Send what is new, changed and deleted."""
        await self._do("flush")

    async def query(self, sql: str, values: Mapping[str, object]) -> list[Record]:
        """Run the user's *sql* by the session."""
        statement = in_text(sql, self._transaction_watch.database)
        given = statement.bind(values)

        def run(session: Session) -> list[Record]:
            result: Any = session.execute(text(statement.text), given)
            return records(result.keys(), map(tuple, result.all())) if result.returns_rows else []

        return await self._call(run)

    async def begin_savepoint(self) -> SessionTransaction:
        """Begin a nested transaction, in the database too: our statements pass the session by."""

        def begin(session: Session) -> SessionTransaction:
            nested = session.begin_nested()
            session.connection()
            return nested

        return await self._call(begin)

    async def release(self, savepoint: SessionTransaction) -> None:
        """Keep what was done in a nested transaction."""
        await self._call(lambda _: savepoint.commit())

    async def roll_back_to(self, savepoint: SessionTransaction) -> None:
        """Undo a nested transaction."""
        await self._call(lambda _: savepoint.rollback())

    def refuse_ended(self) -> None:
        """Raise if the session is no longer in the transaction that we have begun, or can do nothing more in it."""
        root = self._sync.get_transaction()
        is_committing = self._check is not None  # SQLAlchemy itself has seen then that it is in order
        if root is None or root is not self._root or not (root.is_active or is_committing):
            raise ended_by_user()
        if self._connection is not None and (self._connection.closed or self._connection.invalidated):
            raise Unavailable(
                "the connection of this block was lost, so everything in the block is rolled back; let the error "
                "leave the block, and try again"
            )

    def is_lost(self, error: BaseException) -> bool:
        """Tell whether SQLAlchemy has given the connection up."""
        return isinstance(error, OSError) or (isinstance(error, exc.DBAPIError) and error.connection_invalidated)

    async def commit(self, check: Check) -> None:
        """Commit, and close the session; *check* comes after the session's hooks, and those of its connection."""
        self._check = check
        if self._connection is not None:
            event.listen(self._connection, "commit", self._before_commit)  # now: the last of them
        await self._do("commit")
        if not self.is_commit_sent:
            raise TransactionBroken(
                "commit() of this session sent no COMMIT; call `super().commit()` in your session class"
            )
        self._forget()
        with suppress(Exception):  # it has happened; a connection that cannot go back to its pool is the pool's to mend
            await self._do("close")

    async def roll_back(self) -> None:
        """Close the session, which undoes everything; or throw its connection away.

        A COMMIT that SQLite has refused, or that we have kept back, leaves its transaction open, and SQLAlchemy would
        not roll it back. A task or a thread that was left behind in the session would have us wait for its statement.
        """
        self._forget()
        if self._events.is_busy:
            self.break_off()
        try:
            await self._call(self._throw_away if self._is_at_commit else Session.close)
        except Exception:  # noqa: BLE001 - somebody else is using it, or its connection is in no state to roll back
            self.break_off()
            with suppress(Exception):
                await self._call(Session.invalidate)

    def break_off(self) -> None:
        """Make the driver's connection useless."""
        if self._driver is not None and self._connection is not None:
            _cut(self._connection.dialect.driver, self._driver)

    @property
    def _sync(self) -> Session:
        session: Session = self.session
        return session

    async def _call(self, work: Callable[[Session], R]) -> R:
        return work(self._sync)

    async def _do(self, verb: str) -> None:
        """Call a method of the session, which the user's class may have made its own."""
        getattr(self.session, verb)()

    def _wait(self, connection: Connection, check: Check) -> None:
        """Run *check* inside an event of the connection's."""
        drive(check())

    def _begin(self, session: Session) -> None:
        _refuse_binds(session)
        event.listen(session, "after_begin", self._after_begin)
        self._root = session.begin()
        event.listen(session, "after_transaction_create", self._refuse_another)

    def _refuse_another(self, _: Session, transaction: SessionTransaction) -> None:
        """Keep the session from going on when the block's transaction has ended, be it by the block or inside it."""
        if transaction.parent is not None:
            return
        transaction.close()  # else the next call would find it open
        if self._is_over:
            raise Misuse("this session belongs to a block that has ended; open your own session for later statements")
        raise ended_by_user()

    def _after_begin(self, _: Session, transaction: SessionTransaction, connection: Connection) -> None:
        """Watch what happens on the connection that the session has just begun with."""
        if transaction.parent is not None:
            return
        driver = connection.dialect.get_driver_connection(connection.connection.dbapi_connection)  # type: ignore[arg-type]
        if OPEN.setdefault(id(driver), self) is not self:
            raise _shared("from the pool of this engine, or its creator=")
        self._connection, self._driver = connection, driver
        self._events.follow(connection)
        event.listen(connection, "commit", self._refuse_early_commit)
        # a listener of the user's may have begun it
        if self._transaction_watch.database == "sqlite" and self._driver.in_transaction:
            connection.exec_driver_sql(TAKE_RIGHT)

    def _refuse_early_commit(self, _: Connection) -> None:
        """Keep the user's code from committing half of the block."""
        self._is_at_commit = True
        if self._check is None:
            raise ended_by_user()

    def _before_commit(self, connection: Connection) -> None:
        """Look once more at what is going to be committed; when this returns, COMMIT is sent."""
        if self._check is not None:
            self._wait(connection, self._check)
        self.is_commit_sent = True

    def _throw_away(self, session: Session) -> None:
        """Have no more to do with the connection.

        One of SQLite's is rolled back first: closed with a cursor that a traceback holds it would keep its lock.
        """
        if self._transaction_watch.database == "sqlite" and self._connection is not None:
            with suppress(Exception):
                self._connection.dialect.do_rollback(self._connection.connection)
        session.invalidate()

    def _forget(self) -> None:
        """Note that it ends."""
        self._is_over = True
        if OPEN.get(id(self._driver)) is self:
            del OPEN[id(self._driver)]


class AsyncSessionTransaction(BlockingSessionTransaction):
    """The transaction of an `AsyncSession`."""

    @property
    def _sync(self) -> Session:
        session: AsyncSession = self.session
        return session.sync_session

    async def _call(self, work: Callable[[Session], R]) -> R:
        session: AsyncSession = self.session
        return await session.run_sync(work)

    async def _do(self, verb: str) -> None:
        await getattr(self.session, verb)()

    def _wait(self, connection: Connection, check: Check) -> None:
        adapted: Any = connection.connection.dbapi_connection
        adapted.run_async(lambda _: check())


OPEN: weakref.WeakValueDictionary[int, BlockingSessionTransaction] = weakref.WeakValueDictionary()
"""The transactions of blocks that are open, by the `id` of their driver's connection, which they hold."""


def _refuse_binds(session: Session) -> None:
    if session.in_transaction():  # nobody has told us what has happened in it
        raise WrongConnection(
            "the sessions of this sessionmaker are in a transaction already when they are made; let the block begin "
            "the transaction"
        )
    try:
        bind = session.get_bind()
    except exc.UnboundExecutionError as error:
        raise WrongConnection(
            "the sessions of this sessionmaker are bound to several databases, or to none, but a block commits one; "
            "give `sessionmaker(engine)`, with the engine of the database of hf"
        ) from error
    if isinstance(bind, Connection):
        raise WrongConnection(
            "the sessions of this sessionmaker use a connection of yours, and a commit on it may not be a real one; "
            "give `sessionmaker(engine)`, so that the block has its own transaction"
        )
    if isinstance(bind.pool, StaticPool | SingletonThreadPool):
        raise _shared(f"from a {type(bind.pool).__name__}")


def _shared(what: str) -> WrongConnection:
    return WrongConnection(
        f"several sessions may share one connection at a time ({what}), and one would commit half of another; create "
        "the engine with a pool that gives each session its own connection, e.g. `poolclass=NullPool`, or leave out "
        "`poolclass=`"
    )


class ConnectionEvents:
    """Tells a transaction watch what happens on the connection that a session has for this one transaction."""

    def __init__(self, watch: TransactionWatch) -> None:
        self.is_busy = False
        """Whether a statement of the session's is under way, in whichever task or thread."""
        self._transaction_watch = watch

    def follow(self, connection: Connection) -> None:
        """Listen from now on, for as long as SQLAlchemy has this connection."""
        event.listen(connection, "before_cursor_execute", self._before)
        event.listen(connection, "after_cursor_execute", self._after)
        EVENTS[connection] = self
        if connection.dialect not in LISTENED_DIALECTS:  # an engine's options make another engine, but no other dialect
            LISTENED_DIALECTS.add(connection.dialect)
            event.listen(connection.dialect, "handle_error", _failed)

    def failed(self, context: ExceptionContext, connection: Connection) -> None:
        """Note that a statement has failed, or was cancelled."""
        self.is_busy = False
        self._transaction_watch.failed(context.original_exception)
        if isinstance(context.original_exception, asyncio.CancelledError):
            self._transaction_watch.spoil("it was cancelled, and may or may not have run")
            if connection.dialect.driver == "aiosqlite":
                _keep_open(context, connection)

    def _before(self, *_: object) -> None:
        self._transaction_watch.refuse_late()
        self.is_busy = True

    def _after(self, connection: Connection, cursor: object, statement: str, *_: object) -> None:
        self.is_busy = False
        self._transaction_watch.ran(statement)


EVENTS: weakref.WeakKeyDictionary[Connection, ConnectionEvents] = weakref.WeakKeyDictionary()
LISTENED_DIALECTS: weakref.WeakSet[Dialect] = weakref.WeakSet()
"""The dialects whose errors we listen for; SQLAlchemy has that event for them only."""


def _failed(context: ExceptionContext) -> None:
    connection = context.connection
    if connection is not None and (events := EVENTS.get(connection)) is not None:
        events.failed(context, connection)


def _keep_open(context: ExceptionContext, connection: Connection) -> None:
    """Keep SQLAlchemy from closing a connection of SQLite's whose statement was cancelled, and end the statement.

    Closed with a cursor that a traceback holds it would keep its lock for as long as that does; its thread is well, and
    rolls back when the block does.
    """
    context.is_disconnect = False
    _cut("aiosqlite", connection.connection.driver_connection)


def _cut(driver: str, connection: Any) -> None:
    """End whatever *driver* waits for on its own *connection*."""
    with suppress(Exception):  # it may be closed just now
        match driver:
            case "pysqlite":
                connection.interrupt()
            case "aiosqlite":
                connection._conn.interrupt()  # its own interrupt() would wait in line behind the statement
            case "asyncpg":
                connection.terminate()
            case _:
                connection.cancel()  # on the server too, which would not see that we are gone
                with socket.socket(fileno=os.dup(connection.fileno())) as connected:
                    connected.shutdown(socket.SHUT_RDWR)
