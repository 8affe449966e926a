"""What is SQLAlchemy's own about starting inside its transactions; the rest is the contract of `test_borrowed.py`."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import create_engine, event, exc, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from holdfast import Busy, Status, TransactionRequired, Unavailable, WrongConnection
from tests.store.callers import Stack
from tests.store.callers.sqlalchemy import BRIEFLY, finished, make_async_engine, make_engine, url_of
from tests.support.factories import greet, whole_store
from tests.support.ways import Way

DRIVERS = {
    ("sqlite", False): "sqlite+pysqlite",
    ("sqlite", True): "sqlite+aiosqlite",
    ("postgres", False): "postgresql+psycopg",
    ("postgres", True): "postgresql+asyncpg",
}

blocking = pytest.mark.parametrize("way", ["sqlite-blocking", "postgres-blocking"], indirect=True)
on_async = pytest.mark.parametrize("way", ["sqlite-async", "postgres-async"], indirect=True)
on_sqlite = pytest.mark.parametrize("way", ["sqlite-blocking", "sqlite-async"], indirect=True)
on_postgres = pytest.mark.parametrize("way", ["postgres-blocking", "postgres-async"], indirect=True)


class Base(DeclarativeBase):
    """What the caller keeps."""


class Order(Base):
    """A row of the caller's."""

    __tablename__ = "orders_of_sqlalchemy"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)


@pytest.fixture
async def new_engine(way: Way) -> AsyncIterator[Callable[..., Any]]:
    """Make engines in the colour of the way, which are disposed of however the test ends."""
    made: list[Any] = []

    def new_engine(**options: Any) -> Any:
        make = make_async_engine if way.is_async else make_engine
        made.append(make(DRIVERS[way.database, way.is_async], way.hf.settings.database, **options))
        return made[-1]

    yield new_engine
    for each in made:
        await finished(each.dispose())


@pytest.fixture
async def engine(new_engine: Callable[..., Any]) -> AsyncIterator[Any]:
    """An engine with the caller's table."""
    engine = new_engine()
    await with_connection(engine, Base.metadata.create_all)
    yield engine
    await with_connection(engine, Base.metadata.drop_all)


@pytest.fixture
async def session(way: Way, engine: Any) -> AsyncIterator[Any]:
    """A session with no transaction open."""
    session = new_session(way, engine)
    yield session
    await finished(session.close())


@pytest.fixture
async def connection(engine: Any) -> AsyncIterator[Any]:
    """A connection with no transaction open."""
    connection = await finished(engine.connect())
    yield connection
    await finished(connection.close())


def new_session(way: Way, bind: Any, **options: Any) -> Any:
    """Make a session in the colour of the way."""
    return AsyncSession(bind, **options) if way.is_async else Session(bind, **options)


async def with_connection(engine: Any, work: Callable[[Any], object]) -> None:
    """Run *work* in a transaction of its own."""
    if hasattr(engine, "sync_engine"):
        async with engine.begin() as connection:
            await connection.run_sync(work)
    else:
        with engine.begin() as connection:
            work(connection)


async def start(way: Way, connection: Any, name: str = "Ada") -> Any:
    """Start a job in the caller's transaction."""
    return await way.face.start(greet(name=name), connection=connection)


async def started(way: Way) -> int:
    """Count the jobs that everybody sees."""
    return len(await way.face.list_jobs())


async def orders(way: Way, engine: Any) -> list[str]:
    """Read the names of the orders that everybody sees."""
    session = new_session(way, engine)
    names = (await finished(session.execute(select(Order.name).order_by(Order.name)))).scalars().all()
    await finished(session.close())
    return list(names)


async def is_usable(session: Any) -> bool:
    """Tell whether the user's next statement works."""
    return bool((await finished(session.execute(text("SELECT 7")))).scalar() == 7)


def checked_out(engine: Any) -> int:
    """Count the connections that are out of the engine's pool."""
    return int(engine.pool.checkedout())


# ---- one commit with the unit of work


async def test_the_callers_objects_and_the_job_are_one_commit(way: Way, engine: Any, session: Any) -> None:
    session.add(Order(name="tea"))
    await finished(session.flush())
    chain = await start(way, session)
    before = await started(way)

    await finished(session.commit())

    assert before == 0
    assert (await way.face.get_job(chain)).status is Status.PENDING
    assert await orders(way, engine) == ["tea"]


async def test_a_rollback_undoes_the_callers_objects_and_the_job(way: Way, engine: Any, session: Any) -> None:
    session.add(Order(name="tea"))
    await finished(session.flush())
    await start(way, session)

    await finished(session.rollback())

    assert not any((await whole_store(way)).values())
    assert await orders(way, engine) == []


async def test_an_error_of_the_callers_at_commit_undoes_the_job(way: Way, engine: Any, session: Any) -> None:
    session.add_all([Order(name="tea"), Order(name="tea")])
    await start(way, session)

    with pytest.raises(exc.IntegrityError):
        await finished(session.commit())
    await finished(session.rollback())

    assert not any((await whole_store(way)).values())


async def test_what_the_caller_has_not_flushed_stays_so_until_its_commit(way: Way, engine: Any, session: Any) -> None:
    order = Order(name="tea")
    session.add(order)

    await start(way, session)

    assert list(session.new) == [order]
    await finished(session.commit())
    assert (await started(way), await orders(way, engine)) == (1, ["tea"])


@on_sqlite
async def test_a_session_that_has_only_read_is_in_a_transaction_from_our_start_on(way: Way, session: Any) -> None:
    await finished(session.execute(select(Order)))

    await start(way, session)
    before = await started(way)
    await finished(session.rollback())

    assert (before, await started(way)) == (0, 0)


@blocking
async def test_a_job_may_be_started_while_the_session_flushes(way: Way, engine: Any, session: Any) -> None:
    def start_for_each(session: Session, _: Any) -> None:
        for order in session.new:
            assert isinstance(order, Order)
            way.hf.sync.start(greet(name=order.name), connection=session)

    event.listen(session, "after_flush", start_for_each)
    session.add_all([Order(name="tea"), Order(name="milk")])

    session.commit()

    assert (await started(way), await orders(way, engine)) == (2, ["milk", "tea"])


# ---- savepoints


async def test_a_start_vanishes_with_the_nested_block_and_the_rest_stays(way: Way, session: Any) -> None:
    await finished(session.begin())
    nested = await finished(session.begin_nested())

    await start(way, session, "gone")
    await finished(nested.rollback())
    kept = await start(way, session, "kept")
    await finished(session.commit())

    assert [job.id for job in await way.face.list_jobs()] == [kept.id]


async def test_a_start_in_a_nested_block_belongs_to_the_whole_transaction(way: Way, session: Any) -> None:
    await finished(session.begin())
    nested = await finished(session.begin_nested())

    await start(way, session)
    await finished(nested.commit())
    before = await started(way)
    await finished(session.rollback())

    assert (before, await started(way)) == (0, 0)


async def test_a_start_in_a_nested_block_commits_with_the_whole(way: Way, session: Any) -> None:
    await finished(session.begin())
    nested = await finished(session.begin_nested())

    await start(way, session)
    await finished(nested.commit())
    await finished(session.commit())

    assert await started(way) == 1


async def test_a_session_that_joins_a_transaction_by_savepoints_leaves_nothing_when_that_rolls_back(
    way: Way, connection: Any
) -> None:
    outer = await finished(connection.begin())
    joined = new_session(way, connection, join_transaction_mode="create_savepoint")
    await finished(joined.begin())

    await start(way, joined)
    await finished(joined.commit())
    before = await started(way)
    await finished(joined.close())
    await finished(outer.rollback())

    assert (before, await started(way)) == (0, 0)


async def test_a_session_that_joins_a_transaction_commits_with_it(way: Way, connection: Any) -> None:
    outer = await finished(connection.begin())
    joined = new_session(way, connection)
    await finished(joined.begin())

    await start(way, joined)
    await finished(joined.commit())
    before = await started(way)
    await finished(outer.commit())

    assert (before, await started(way)) == (0, 1)
    await finished(joined.close())


# ---- other objects of SQLAlchemy's


@blocking
async def test_a_scoped_session_lends_what_its_session_has_open(way: Way, engine: Any) -> None:
    scope = scoped_session(sessionmaker(engine))
    scope.begin()

    await start(way, scope)
    scope.commit()
    scope.remove()

    assert await started(way) == 1


@on_async
async def test_an_async_scoped_session_lends_what_its_session_has_open(way: Way, engine: Any) -> None:
    scope = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
    await scope.begin()

    await start(way, scope)
    await scope.commit()
    await scope.remove()

    assert await started(way) == 1


@blocking
async def test_a_scope_without_a_session_gets_none_by_our_asking(way: Way, engine: Any) -> None:
    scope = scoped_session(sessionmaker(engine))

    with pytest.raises(TransactionRequired, match=r"write `with session\.begin\(\):`"):
        await start(way, scope)

    assert not scope.registry.has()


@blocking
async def test_a_connection_that_was_detached_from_its_pool_will_do(way: Way, connection: Any) -> None:
    connection.detach()
    connection.begin()

    await start(way, connection)
    connection.commit()

    assert await started(way) == 1


@pytest.mark.parametrize(
    ("way", "stack"),
    [(f"{each.database}-{'async' if each.is_async else 'blocking'}", each) for each in BRIEFLY],
    indirect=["way"],
    ids=str,
)
async def test_connections_over_the_other_drivers_lend_what_they_have_open(way: Way, stack: Stack) -> None:
    caller = await stack.connect(way.hf.settings.database)
    await caller.begin()
    await start(way, caller.connection, "gone")
    await caller.rollback()
    await caller.begin()

    kept = await start(way, caller.connection, "kept")
    before = await started(way)
    await caller.commit()

    assert before == 0
    assert [job.id for job in await way.face.list_jobs()] == [kept.id]
    await caller.close()


# ---- refusals


async def test_our_asking_begins_nothing(way: Way, engine: Any, session: Any) -> None:
    with pytest.raises(TransactionRequired, match=r"write `with session\.begin\(\):`"):
        await start(way, session)

    assert (session.in_transaction(), checked_out(engine)) == (False, 0)
    assert await is_usable(session)


async def test_our_asking_begins_nothing_on_a_connection(way: Way, connection: Any) -> None:
    with pytest.raises(TransactionRequired, match=r"write `with connection\.begin\(\):`"):
        await start(way, connection)

    assert not connection.in_transaction()


async def test_a_session_in_autocommit_is_refused_although_it_has_begun(
    way: Way, new_engine: Callable[..., Any]
) -> None:
    session = new_session(way, new_engine(autocommit=True))
    await finished(session.begin())

    with pytest.raises(TransactionRequired, match=r'remove `isolation_level="AUTOCOMMIT"`'):
        await start(way, session)

    assert await is_usable(session)
    await finished(session.close())
    assert await started(way) == 0


async def test_a_connection_with_autocommit_as_an_option_is_refused(way: Way, connection: Any) -> None:
    await finished(connection.execution_options(isolation_level="AUTOCOMMIT"))
    await finished(connection.begin())

    with pytest.raises(TransactionRequired, match="commits each statement by itself"):
        await start(way, connection)

    assert await is_usable(connection)


@on_sqlite
async def test_a_driver_that_begins_nothing_of_itself_is_refused(way: Way, new_engine: Callable[..., Any]) -> None:
    session = new_session(way, new_engine(isolation_level=None))
    await finished(session.begin())

    with pytest.raises(TransactionRequired, match="commits each statement by itself"):
        await start(way, session)

    assert await is_usable(session)
    await finished(session.close())


@on_sqlite
async def test_a_driver_that_begins_nothing_of_itself_will_do_if_the_caller_sends_begin(
    way: Way, new_engine: Callable[..., Any]
) -> None:
    engine = new_engine(isolation_level=None)
    event.listen(
        engine.sync_engine if way.is_async else engine,
        "begin",
        lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"),
    )
    session = new_session(way, engine)
    await finished(session.begin())
    nested = await finished(session.begin_nested())

    await start(way, session)
    await finished(nested.commit())
    before = await started(way)
    await finished(session.commit())

    assert (before, await started(way)) == (0, 1)
    await finished(session.close())


async def test_a_session_whose_flush_has_failed_is_refused_until_it_is_rolled_back(way: Way, session: Any) -> None:
    session.add_all([Order(name="tea"), Order(name="tea")])
    with pytest.raises(exc.IntegrityError):
        await finished(session.flush())

    with pytest.raises(TransactionRequired, match=r"has failed, .*; call `session\.rollback\(\)`"):
        await start(way, session)

    await finished(session.rollback())
    await finished(session.begin())
    await start(way, session)
    await finished(session.commit())
    assert await started(way) == 1


@pytest.mark.parametrize("way", ["sqlite-blocking"], indirect=True)
async def test_a_connection_whose_commit_has_failed_is_refused_until_it_is_rolled_back(
    way: Way, connection: Any
) -> None:
    connection.exec_driver_sql("PRAGMA foreign_keys = ON")
    connection.exec_driver_sql("CREATE TABLE line (id INTEGER PRIMARY KEY)")
    connection.exec_driver_sql("CREATE TABLE part (line INTEGER REFERENCES line (id) DEFERRABLE INITIALLY DEFERRED)")
    connection.exec_driver_sql("INSERT INTO part VALUES (7)")
    with pytest.raises(exc.IntegrityError):
        connection.commit()

    with pytest.raises(TransactionRequired, match=r"has failed, .*; call `connection\.rollback\(\)`"):
        await start(way, connection)

    connection.rollback()
    assert await is_usable(connection)


@pytest.mark.parametrize("way", ["sqlite-blocking"], indirect=True)
async def test_a_connection_whose_savepoint_has_failed_is_refused_until_it_is_rolled_back(
    way: Way, connection: Any
) -> None:
    connection.begin()
    connection.exec_driver_sql("BEGIN IMMEDIATE")
    nested = connection.begin_nested()
    connection.exec_driver_sql("RELEASE sa_savepoint_1")
    with pytest.raises(exc.OperationalError):
        nested.commit()

    with pytest.raises(TransactionRequired, match=r"leave the `begin_nested\(\)` block in which it failed"):
        await start(way, connection)

    connection.rollback()
    assert await is_usable(connection)


@blocking
async def test_a_session_that_is_being_committed_is_refused(way: Way, session: Any) -> None:
    refusals: list[str] = []

    def start_late(session: Session) -> None:
        with pytest.raises(TransactionRequired) as refused:
            way.hf.sync.start(greet(name="Ada"), connection=session)
        refusals.append(str(refused.value))

    event.listen(session, "after_commit", start_late)
    await is_usable(session)

    session.commit()

    assert "is being committed" in refusals[0]
    assert await is_usable(session)


@pytest.mark.parametrize("way", ["sqlite-blocking"], indirect=True)
async def test_a_session_whose_connection_belongs_to_another_thread_is_refused(
    way: Way, new_engine: Callable[..., Any]
) -> None:
    session = new_session(way, new_engine(check_same_thread=True))
    await is_usable(session)

    with pytest.raises(WrongConnection, match="belongs to another thread"):
        await asyncio.to_thread(way.hf.sync.start, greet(name="Ada"), connection=session)

    assert await is_usable(session)
    session.close()


@pytest.mark.parametrize("way", ["sqlite-async"], indirect=True)
async def test_an_async_session_may_have_a_connection_that_only_its_thread_may_use(
    way: Way, new_engine: Callable[..., Any]
) -> None:
    session = new_session(way, new_engine(check_same_thread=True))
    await is_usable(session)

    await start(way, session)
    await session.commit()

    assert await started(way) == 1
    await session.close()


@pytest.mark.parametrize("way", ["sqlite-blocking"], indirect=True)
async def test_a_session_whose_driver_was_closed_under_it_is_refused(way: Way, session: Any) -> None:
    session.begin()
    session.connection().connection.driver_connection.close()

    with pytest.raises(WrongConnection, match="this connection is closed"):
        way.hf.sync.start(greet(name="Ada"), connection=session)

    session.invalidate()


async def test_a_session_of_several_databases_is_asked_for_the_one(way: Way, engine: Any, session: Any) -> None:
    several = AsyncSession(binds={Order: engine}) if way.is_async else Session(binds={Order: engine})
    await finished(several.begin())

    with pytest.raises(WrongConnection, match=r"session\.connection\(bind_arguments="):
        await start(way, several)
    await start(way, await finished(several.connection(bind_arguments={"mapper": Order})))
    await finished(several.commit())

    assert await started(way) == 1
    await finished(several.close())


async def test_a_connection_that_was_lost_in_its_transaction_is_refused(way: Way, connection: Any) -> None:
    await finished(connection.begin())
    await finished(connection.invalidate())

    with pytest.raises(TransactionRequired, match="was lost, so its transaction is rolled back"):
        await start(way, connection)

    await finished(connection.rollback())
    assert await is_usable(connection)


async def test_a_session_that_has_lost_its_connection_is_refused_until_it_is_rolled_back(
    way: Way, session: Any
) -> None:
    await finished(session.begin())
    await finished((await finished(session.connection())).invalidate())

    with pytest.raises(TransactionRequired, match=r"call `session\.rollback\(\)`"):
        await start(way, session)

    await finished(session.rollback())
    assert await is_usable(session)


async def test_a_session_on_a_closed_connection_is_refused(way: Way, connection: Any) -> None:
    session = new_session(way, connection)
    await finished(session.begin())
    await finished(connection.close())

    with pytest.raises(WrongConnection, match="this connection is closed; pass an open connection"):
        await start(way, session)

    await finished(session.close())


@pytest.mark.parametrize("way", ["postgres-async"], indirect=True)
async def test_two_tasks_that_use_one_session_at_a_time_are_told_so(way: Way, session: Any) -> None:
    await session.begin()

    both = await asyncio.gather(start(way, session), start(way, session), return_exceptions=True)
    await session.rollback()

    assert {type(each) for each in both if isinstance(each, BaseException)} == {WrongConnection}
    assert await is_usable(session)
    assert await started(way) == 0


@on_async
async def test_while_one_task_connects_another_is_told_so(way: Way, new_engine: Callable[..., Any]) -> None:
    session = new_session(way, new_engine())
    await session.begin()

    both = await asyncio.gather(start(way, session), start(way, session), return_exceptions=True)
    await session.commit()

    (refused,) = [each for each in both if isinstance(each, BaseException)]
    assert isinstance(refused, TransactionRequired)
    assert "used by another task" in str(refused)
    assert await started(way) == 1
    await session.close()


@blocking
async def test_a_session_on_a_connection_whose_block_is_over_is_told_what_sqlalchemy_says(
    way: Way, connection: Any
) -> None:
    with connection.begin():
        connection.rollback()
        session = new_session(way, connection)
        session.begin()

        with pytest.raises(WrongConnection, match="closed transaction inside context manager"):
            await start(way, session)

        session.close()


@pytest.mark.parametrize("way", ["sqlite-async"], indirect=True)
async def test_of_two_tasks_with_one_session_the_first_begins_for_both(way: Way, session: Any) -> None:
    await session.begin()

    await asyncio.gather(start(way, session), start(way, session))
    before = await started(way)
    await session.commit()

    assert (before, await started(way)) == (0, 2)


@on_postgres
async def test_a_transaction_in_two_phases_is_refused(way: Way, engine: Any) -> None:
    session = new_session(way, engine, twophase=True)
    await finished(session.begin())

    with pytest.raises(WrongConnection, match="uses two-phase commit"):
        await start(way, session)

    assert checked_out(engine) == 0
    await finished(session.close())


@pytest.mark.parametrize("way", ["postgres-blocking"], indirect=True)
async def test_a_connection_that_commits_in_two_phases_is_refused(way: Way, connection: Any) -> None:
    transaction = connection.begin_twophase()

    with pytest.raises(WrongConnection, match="uses two-phase commit"):
        await start(way, connection)

    transaction.rollback()
    assert await is_usable(connection)


@on_async
async def test_the_blocking_side_of_an_async_session_is_refused(way: Way, session: Any) -> None:
    await session.begin()

    def start_inside(inner: Session) -> None:
        way.hf.sync.start(greet(name="Ada"), connection=inner)

    with pytest.raises(WrongConnection, match=r"which `run_sync` passes; write `await hf\.start"):
        await session.run_sync(start_inside)

    assert await is_usable(session)


@on_async
async def test_an_async_connection_that_is_not_connected_is_refused(way: Way, engine: Any) -> None:
    connection: AsyncConnection = engine.connect()

    with pytest.raises(WrongConnection, match=r"async with engine\.begin\(\) as connection:"):
        await start(way, connection)


@pytest.mark.parametrize("way", ["postgres-blocking"], indirect=True)
async def test_a_session_that_does_not_know_every_character_is_refused(
    way: Way, new_engine: Callable[..., Any]
) -> None:
    session = new_session(way, new_engine(client_encoding="latin1"))
    session.begin()

    with pytest.raises(WrongConnection, match='client_encoding="utf8"'):
        await start(way, session)

    assert await is_usable(session)
    session.close()


# ---- trouble


@on_sqlite
async def test_a_file_that_another_keeps_locked_is_busy_and_the_session_goes_on(
    way: Way, new_engine: Callable[..., Any]
) -> None:
    session = new_session(way, new_engine(timeout=0))
    await finished(session.begin())
    other = sqlite3.connect(way.hf.settings.database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(Busy, match="keeps the database locked"):
        await start(way, session)

    other.close()
    await start(way, session)
    await finished(session.commit())
    assert await started(way) == 1
    await finished(session.close())


async def test_a_pool_with_no_connection_to_give_is_busy(way: Way, engine: Any, connection: Any) -> None:
    engine.pool._timeout = 0.01
    session = new_session(way, engine)
    await finished(session.begin())

    with pytest.raises(Busy, match="pool of the engine gave no connection"):
        await start(way, session)

    await finished(connection.close())
    assert await is_usable(session)
    await finished(session.close())


@on_postgres
async def test_a_session_that_cannot_connect_is_told_so(way: Way) -> None:
    make = make_async_engine if way.is_async else make_engine
    engine: Any = make(DRIVERS["postgres", way.is_async], "postgresql://nobody@127.0.0.1:1/nothing")
    session = new_session(way, engine)
    await finished(session.begin())

    with pytest.raises(Unavailable, match="cannot be reached"):
        await start(way, session)

    await finished(session.rollback())
    await finished(session.close())


def end_backends(way: Way) -> None:
    """End the caller's connections on the server."""
    with psycopg.connect(way.hf.settings.database, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'the caller'"
        )


@on_postgres
@pytest.mark.parametrize("first", ["SELECT 1", None], ids=["after its first statement", "before any statement"])
async def test_a_session_whose_server_has_gone_is_told_so_and_recovers(
    way: Way, new_engine: Callable[..., Any], first: str | None
) -> None:
    named = {"application_name": "the caller"}
    options = {"server_settings": named} if way.is_async else named  # asyncpg's word for it
    session = new_session(way, new_engine(**options))
    await is_usable(session)
    await finished(session.commit())
    await finished(session.begin())
    if first:
        await finished(session.execute(text(first)))
    end_backends(way)

    with pytest.raises(Unavailable, match="cannot be reached"):
        await start(way, session)

    with suppress(exc.DBAPIError):  # SQLAlchemy hears of it now
        await finished(session.rollback())
    await finished(session.rollback())
    await finished(session.begin())
    await start(way, session)
    await finished(session.commit())
    assert await started(way) == 1
    await finished(session.close())


# ---- SQLAlchemy's own affairs are as they were


async def test_the_pool_hears_nothing_of_a_start(way: Way, engine: Any, session: Any) -> None:
    heard: list[str] = []
    await finished(session.begin())
    await finished(session.connection())
    for name in ("invalidate", "soft_invalidate", "reset", "checkin", "checkout", "close", "detach"):
        event.listen(engine.pool, name, lambda *_, name=name: heard.append(name))

    await start(way, session)
    during = list(heard)
    await finished(session.commit())

    assert (during, heard) == ([], ["reset", "checkin"])
    assert checked_out(engine) == 0


async def test_a_start_leaves_the_callers_objects_as_they_are(way: Way, session: Any) -> None:
    order = Order(name="tea")
    session.add(order)
    await finished(session.flush())

    await start(way, session)

    assert (order in session, session.is_modified(order), order.name) == (True, False, "tea")


async def test_an_expected_outcome_leaves_the_session_active(way: Way, session: Any) -> None:
    known = uuid4()
    await finished(session.begin())
    await way.face.start(greet(name="Ada"), id=known, connection=session)

    twin = await way.face.start(greet(name="Ada"), id=known, connection=session)

    assert (twin.deduplicated, session.is_active) == (True, True)
    await finished(session.commit())
    assert await started(way) == 1


# ---- a block in which the caller lets go of its connection


@blocking
async def test_a_completion_is_refused_when_the_connection_of_its_block_went_to_another_session(way: Way) -> None:
    chain = way.hf.sync.start(greet(name="Ada"))
    engine = create_engine(url_of(DRIVERS[way.database, way.is_async], way.hf.settings.database))
    begin = text("BEGIN" if way.database == "sqlite" else "SELECT 1")

    with Session(engine) as first, Session(engine) as other:
        first.execute(begin)
        with way.hf.sync.completing(greet, chain, connection=first) as job:
            first.commit()  # so that its pool gives it to the next who asks
            other.execute(begin)
            first.execute(begin)
            with pytest.raises(TransactionRequired, match="stays open around it"):
                job.finish("done")
        first.rollback()
        other.commit()
    engine.dispose()

    assert way.hf.sync.get_job(chain).status is Status.PENDING
