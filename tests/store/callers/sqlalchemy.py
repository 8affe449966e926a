"""SQLAlchemy's sessions and connections, over every driver of theirs that we know."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, exc, make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.store.callers import psycopg, sqlite3
from tests.store.callers.interface import Caller, Can, Connect, Habit, Stack
from tests.support.databases import pooled


class SqlalchemyCaller(Caller):
    """A session or a connection of SQLAlchemy's, in either colour, on an engine of its own."""

    def __init__(self, connection: Any, engine: Engine | AsyncEngine) -> None:
        self.connection = connection
        self.engine = engine
        self._savepoints: list[Any] = []

    async def execute(self, statement: str) -> list[Any]:
        """Run a statement."""
        result = await finished((await self._core()).exec_driver_sql(statement))
        return list(result.fetchall()) if result.returns_rows else []

    async def begin(self) -> None:
        """Begin as SQLAlchemy understands it: the driver has not, so far."""
        if not self.connection.in_transaction():
            await finished(self.connection.begin())

    async def begin_repeatable_read(self) -> None:
        """Begin with the level as an option of the connection."""
        level = {"isolation_level": "REPEATABLE READ"}
        if isinstance(self.connection, Session | AsyncSession):
            await finished(self.connection.connection(execution_options=level))
        else:
            await finished(self.connection.execution_options(**level))
            await self.begin()

    async def savepoint(self) -> None:
        """Mark a place, of which the database hears with the next statement."""
        self._savepoints.append(await finished(self.connection.begin_nested()))

    async def rollback_to_savepoint(self) -> None:
        """Roll back to it."""
        await finished(self._savepoints.pop().rollback())

    async def commit(self) -> None:
        """Commit."""
        await finished(self.connection.commit())

    async def rollback(self) -> None:
        """Roll back."""
        await finished(self.connection.rollback())

    async def close(self) -> None:
        """Close it, and its engine."""
        with suppress(exc.DBAPIError):  # it rolls back first, and what it leads to may be gone
            await finished(self.connection.close())
        await finished(self.engine.dispose())

    async def cursor(self) -> Any:
        """Give a result, which is SQLAlchemy's cursor."""
        return await finished((await self._core()).exec_driver_sql("SELECT 1"))

    async def in_transaction(self) -> bool:
        """Ask the driver."""
        return bool((await self.driver()).in_transaction)

    async def trace(self, hear: Callable[[str], object]) -> None:
        """Hear of each statement after the transaction has begun."""
        await self.execute("BEGIN IMMEDIATE")
        await finished((await self.driver()).set_trace_callback(hear))

    async def driver(self) -> Any:
        """Give the driver's connection."""
        core = await self._core()
        proxied = await core.get_raw_connection() if isinstance(core, AsyncConnection) else core.connection
        return proxied.driver_connection

    async def _core(self) -> Any:
        is_core = isinstance(self.connection, Connection | AsyncConnection)
        return self.connection if is_core else await finished(self.connection.connection())


async def finished(value: Any) -> Any:
    """Await *value* if it is to be awaited."""
    return await value if inspect.isawaitable(value) else value


def make_engine(driver: str, address: str, **options: Any) -> Engine:
    """Make a blocking engine with one connection."""
    return create_engine(url_of(driver, address), **engine_options(driver, options))


def make_async_engine(driver: str, address: str, **options: Any) -> AsyncEngine:
    """Make an async engine with one connection."""
    return create_async_engine(url_of(driver, address), **engine_options(driver, options))


def url_of(driver: str, address: str) -> Any:
    """Make SQLAlchemy's address of ours."""
    if driver.startswith("sqlite"):
        return f"{driver}:///{address}"
    return make_url(address).set(drivername=driver)


def engine_options(driver: str, options: dict[str, Any]) -> dict[str, Any]:
    """Say in SQLAlchemy's words what the contract asks of a connection."""
    level = {"isolation_level": "AUTOCOMMIT"} if options.pop("autocommit", False) else {}
    given = {**pooled.engine_options(driver.partition("+")[2]), **options}
    return {"connect_args": given, "pool_size": 1, "max_overflow": 0, **level}


def session_on(driver: str) -> Connect:
    """Make what opens a `Session`."""

    async def connect(address: str, **options: Any) -> Caller:
        engine = make_engine(driver, address, **options)
        return SqlalchemyCaller(Session(engine), engine)

    return connect


def async_session_on(driver: str) -> Connect:
    """Make what opens an `AsyncSession`."""

    async def connect(address: str, **options: Any) -> Caller:
        engine = make_async_engine(driver, address, **options)
        return SqlalchemyCaller(AsyncSession(engine), engine)

    return connect


def connection_on(driver: str) -> Connect:
    """Make what opens a `Connection`."""

    async def connect(address: str, **options: Any) -> Caller:
        engine = make_engine(driver, address, **options)
        return SqlalchemyCaller(engine.connect(), engine)

    return connect


def async_connection_on(driver: str) -> Connect:
    """Make what opens an `AsyncConnection`."""

    async def connect(address: str, **options: Any) -> Caller:
        engine = make_async_engine(driver, address, **options)
        return SqlalchemyCaller(await engine.connect(), engine)

    return connect


def below(habit: Habit) -> Habit:
    """Make of a habit with a driver's connection one with the driver's connection below SQLAlchemy."""

    @wraps(habit)
    async def apply(caller: Any) -> None:
        await habit(SimpleNamespace(connection=await caller.driver()))  # type: ignore[arg-type]

    return apply


async def texts_as_bytes(caller: Any) -> None:
    """Read texts as bytes."""
    (await caller.driver()).text_factory = bytes


HABITS: dict[str, tuple[Habit, ...]] = {
    "psycopg": tuple(below(each) for each in (psycopg.own_loaders, psycopg.prepared_at_once, psycopg.never_prepared)),
    "pysqlite": (below(sqlite3.texts_as_bytes),),
    "aiosqlite": (texts_as_bytes,),
}


# no ENCODING: with SQL_ASCII SQLAlchemy itself cannot connect by psycopg
CAN = frozenset({Can.REFUSE_WITHOUT_TRANSACTION, Can.AUTOCOMMIT, Can.BEGIN_BY_HAND, Can.CURSOR})
CAN_ON_SQLITE = CAN | {Can.ISOLATION_LEVEL, Can.DETECT_TYPES}
CLOSES = frozenset({Can.CLOSE})  # a session that was closed may be used again


def postgres(kind: str, driver: str, is_async: bool, connect: Connect, can: frozenset[Can]) -> Stack:
    """List a kind of object over a driver of PostgreSQL."""
    name, habits = f"sqlalchemy-{kind}-{driver}", HABITS.get(driver, ())
    is_twin = (kind, driver) not in (("session", "psycopg"), ("async-session", "asyncpg"))
    return Stack(name, "postgres", is_async, connect, exc.ProgrammingError, habits, can, is_twin)


def sqlite(kind: str, driver: str, is_async: bool, connect: Connect, can: frozenset[Can]) -> Stack:
    """List a kind of object over a driver of SQLite."""
    name, habits = f"sqlalchemy-{kind}-{driver}", HABITS[driver]
    return Stack(name, "sqlite", is_async, connect, exc.OperationalError, habits, can, is_twin="connection" in kind)


STACKS = (
    postgres("session", "psycopg", False, session_on("postgresql+psycopg"), CAN),
    postgres("session", "psycopg2", False, session_on("postgresql+psycopg2"), CAN),
    sqlite("session", "pysqlite", False, session_on("sqlite+pysqlite"), CAN_ON_SQLITE),
    postgres("async-session", "psycopg", True, async_session_on("postgresql+psycopg"), CAN),
    postgres("async-session", "asyncpg", True, async_session_on("postgresql+asyncpg"), CAN),
    sqlite("async-session", "aiosqlite", True, async_session_on("sqlite+aiosqlite"), CAN_ON_SQLITE),
    postgres("connection", "psycopg", False, connection_on("postgresql+psycopg"), CAN | CLOSES),
    sqlite("connection", "pysqlite", False, connection_on("sqlite+pysqlite"), CAN_ON_SQLITE | CLOSES),
    postgres("async-connection", "asyncpg", True, async_connection_on("postgresql+asyncpg"), CAN | CLOSES),
    sqlite("async-connection", "aiosqlite", True, async_connection_on("sqlite+aiosqlite"), CAN_ON_SQLITE | CLOSES),
)
# a session lends by way of its connection, so these two go through all of it but in the session's place
BRIEFLY = (
    postgres("connection", "psycopg2", False, connection_on("postgresql+psycopg2"), CAN | CLOSES),
    postgres("async-connection", "psycopg", True, async_connection_on("postgresql+psycopg"), CAN | CLOSES),
)
