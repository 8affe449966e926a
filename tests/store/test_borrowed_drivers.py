"""What is peculiar to asyncpg, aiosqlite and psycopg2 when their connections are borrowed."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import psycopg2
import pytest
from psycopg2 import extensions, extras

from holdfast import Busy, Holdfast, TransactionRequired, Unavailable, WrongConnection
from holdfast.database.borrowed import drivers
from holdfast.database.borrowed.asyncpg import number
from tests.store.callers import STACKS, Caller, Stack
from tests.support.conditions import until
from tests.support.factories import TASKS, events_of, greet, whole_store
from tests.support.ways import Way


@pytest.fixture
async def postgres(new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Way]:
    """PostgreSQL with the async face."""
    way = Way(new_holdfast("postgres", tasks=[TASKS]), is_async=True)
    await way.face.open()
    yield way
    await way.close()


@pytest.fixture
async def sqlite(new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Way]:
    """SQLite with the async face."""
    way = Way(new_holdfast("sqlite", tasks=[TASKS]), is_async=True)
    await way.face.open()
    yield way
    await way.close()


@asynccontextmanager
async def connected(way: Way, **options: Any) -> AsyncIterator[Any]:
    """Connect by asyncpg."""
    connection = await asyncpg.connect(way.hf.settings.database, **options)
    try:
        yield connection
    finally:
        await connection.close()


# ---- the errors of every driver


DRIVERS = [each for each in STACKS if each.name in ("asyncpg", "psycopg-async", "psycopg-blocking", "psycopg2")]


@pytest.fixture(params=DRIVERS, ids=str)
async def caller(request: pytest.FixtureRequest, postgres: Way) -> AsyncIterator[tuple[Way, Caller]]:
    """An open transaction of each PostgreSQL driver, and the face of its colour."""
    stack: Stack = request.param
    caller = await stack.connect(postgres.hf.settings.database)
    await caller.begin()
    yield Way(postgres.hf, is_async=stack.is_async), caller
    await caller.close()


async def test_a_lock_that_is_not_had_in_time_is_busy(caller: tuple[Way, Caller]) -> None:
    way, theirs = caller
    await theirs.execute("SET LOCAL lock_timeout = '50ms'")
    with psycopg.connect(way.hf.settings.database) as stranger:
        stranger.execute("SELECT 1")
        way.hf.sync.start(greet(name="Bob"), unique="same", connection=stranger)

        with pytest.raises(Busy, match="another transaction holds a lock that this needs"):
            await way.face.start(greet(name="Ada"), unique="same", connection=theirs.connection)
        stranger.rollback()

    await theirs.rollback()


async def test_a_statement_that_takes_too_long_is_unavailable(caller: tuple[Way, Caller]) -> None:
    way, theirs = caller
    await theirs.execute("SET LOCAL statement_timeout = '50ms'")
    with psycopg.connect(way.hf.settings.database) as stranger:
        stranger.execute("SELECT 1")
        way.hf.sync.start(greet(name="Bob"), unique="same", connection=stranger)

        with pytest.raises(Unavailable, match="ran out of time"):
            await way.face.start(greet(name="Ada"), unique="same", connection=theirs.connection)
        stranger.rollback()

    await theirs.rollback()


async def test_a_connection_that_the_server_has_ended_is_unavailable_or_closed(caller: tuple[Way, Caller]) -> None:
    way, theirs = caller
    ((pid,),) = await theirs.execute("SELECT pg_backend_pid()")
    with psycopg.connect(way.hf.settings.database, autocommit=True) as stranger:
        stranger.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])

    with pytest.raises((Unavailable, WrongConnection), match=r"cannot be reached|is closed"):
        await way.face.start(greet(name="Ada"), connection=theirs.connection)


async def test_a_transaction_that_is_read_only_is_told_so(caller: tuple[Way, Caller]) -> None:
    way, theirs = caller
    await theirs.execute("SET TRANSACTION READ ONLY")

    with pytest.raises(WrongConnection, match="SET TRANSACTION READ WRITE"):
        await way.face.start(greet(name="Ada"), connection=theirs.connection)

    await theirs.rollback()


async def test_a_connection_that_reads_no_nulls_is_refused_with_the_line_to_write(caller: tuple[Way, Caller]) -> None:
    """A7."""
    way, theirs = caller
    await theirs.execute("SET LOCAL array_nulls = off")

    with pytest.raises(WrongConnection, match="array_nulls=on"):
        await way.face.start(greet(name="Ada"), connection=theirs.connection)

    await theirs.rollback()


# ---- the caller is in the middle of something


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for nobody's turn for long."""
    monkeypatch.setattr(drivers, "TURN_SECONDS", 0.1)


def refuse_start(way: Way, connection: Any) -> None:
    with pytest.raises(WrongConnection, match="end it first"):
        way.hf.sync.start(greet(name="Ada"), connection=connection)


@pytest.mark.usefixtures("hurried")
async def test_a_connection_of_psycopg_in_the_middle_of_a_stream_or_a_copy_is_refused(postgres: Way) -> None:
    with psycopg.connect(postgres.hf.settings.database) as connection:
        for _ in connection.cursor().stream("SELECT generate_series(1, 3)"):
            refuse_start(postgres, connection)
        with connection.cursor().copy("COPY (SELECT 1) TO STDOUT") as copy:
            refuse_start(postgres, connection)
            assert list(copy.rows()) == [("1",)]
        chain = postgres.hf.sync.start(greet(name="Ada"), connection=connection)

    assert [job.id for job in await postgres.face.list_jobs()] == [chain.id]


@pytest.mark.usefixtures("hurried")
async def test_an_async_connection_of_psycopg_in_the_middle_of_a_stream_is_refused(postgres: Way) -> None:
    async with await psycopg.AsyncConnection.connect(postgres.hf.settings.database) as connection:
        async for _ in connection.cursor().stream("SELECT generate_series(1, 3)"):
            with pytest.raises(WrongConnection, match="end it first"):
                await postgres.hf.start(greet(name="Ada"), connection=connection)
        chain = await postgres.hf.start(greet(name="Ada"), connection=connection)

    assert [job.id for job in await postgres.face.list_jobs()] == [chain.id]


@pytest.mark.usefixtures("hurried")
async def test_a_connection_of_psycopg2_in_the_middle_of_a_copy_is_refused(postgres: Way) -> None:
    class Reader:
        def write(self, text: str) -> None:
            refuse_start(postgres, connection)

    with closing(psycopg2.connect(postgres.hf.settings.database)) as connection, connection:
        connection.cursor().copy_expert("COPY (SELECT 1) TO STDOUT", Reader())
        chain = postgres.hf.sync.start(greet(name="Ada"), connection=connection)

    assert [job.id for job in await postgres.face.list_jobs()] == [chain.id]


@pytest.mark.parametrize("caller", [each for each in DRIVERS if each.name != "asyncpg"], indirect=True, ids=str)
async def test_a_start_takes_its_turn_after_a_statement_of_another_task_or_thread(caller: tuple[Way, Caller]) -> None:
    way, theirs = caller

    def is_under_way() -> bool:
        return bool(theirs.connection.info.transaction_status == drivers.ACTIVE)

    async def apart(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return await (work() if way.is_async else asyncio.to_thread(lambda: asyncio.run(work())))

    with psycopg.connect(way.hf.settings.database) as stranger:
        stranger.execute("SELECT pg_advisory_xact_lock(7)")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(apart(lambda: theirs.execute("SELECT 1 FROM pg_advisory_xact_lock(7)")))
            await until(is_under_way, "a statement is under way")
            start = partial(way.face.start, greet(name="Ada"), connection=theirs.connection)
            starting = tasks.create_task(apart(start))
            stranger.commit()
    await theirs.commit()

    assert [job.id for job in await way.face.list_jobs()] == [starting.result().id]


async def test_a_pipeline_of_psycopg_takes_a_start(postgres: Way) -> None:
    with psycopg.connect(postgres.hf.settings.database) as connection:
        connection.execute("SELECT 1")
        with connection.pipeline():
            connection.execute("SELECT 2")
            chain = postgres.hf.sync.start(greet(name="Ada"), connection=connection)
            connection.execute("SELECT 3")

    assert [job.id for job in await postgres.face.list_jobs()] == [chain.id]


# ---- sqlite3


class OwnCursors(sqlite3.Connection):
    """A connection that makes cursors in its own way."""

    def cursor(self) -> sqlite3.Cursor:  # type: ignore[override]
        """Make a cursor."""
        return super().cursor()


async def test_a_subclass_of_sqlite3s_connection_may_make_cursors_in_its_own_way(sqlite: Way) -> None:
    address = sqlite.hf.settings.database
    with closing(sqlite3.connect(address, factory=OwnCursors, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        chain = sqlite.hf.sync.start(greet(name="Ada"), connection=connection)
        connection.execute("COMMIT")

    assert [job.id for job in await sqlite.face.list_jobs()] == [chain.id]


# ---- asyncpg


def test_a_text_for_psycopg_is_numbered_for_asyncpg() -> None:
    text = (
        "SELECT '100%%' WHERE a = %(a)s AND b = ANY(CAST(%(b)s AS bigint[])) AND c = %(c)s AND CAST(%(a)s AS text) = ''"
    )

    numbered = number(text, ("c",))

    assert numbered.text == (
        "SELECT '100%' WHERE a = $1 AND b = ANY(CAST(CAST($2 AS text) AS bigint[])) AND c = CAST($3 AS bigint) "
        "AND CAST(CAST($4 AS text) AS text) = ''"
    )
    assert numbered.arguments({"a": None, "b": "{1}", "c": 7}) == (None, "{1}", 7, None)


class Backwards(asyncpg.Record):  # type: ignore[misc]  # asyncpg comes without types
    """A record of the caller's that gives its values the wrong way round."""

    def __iter__(self) -> Iterator[Any]:
        return iter(list(super().__iter__())[::-1])


async def test_asyncpgs_class_of_records_changes_no_result(postgres: Way) -> None:
    async with connected(postgres, record_class=Backwards) as connection, connection.transaction():
        chain = await postgres.hf.start(greet(name="Ada"), unique="ada", connection=connection)
        twin = await postgres.hf.start(greet(name="Ada"), unique="ada", connection=connection)

        assert (twin.id, twin.deduplicated) == (chain.id, True)
        assert (await postgres.hf.get_job(chain, connection=connection)).input.name == "Ada"


async def test_starts_of_several_tasks_on_one_connection_of_asyncpg_take_turns(postgres: Way) -> None:
    async with connected(postgres) as connection:
        async with connection.transaction():
            calls = [greet(name=str(each)) for each in range(5)]
            await asyncio.gather(*(postgres.hf.start(call, connection=connection) for call in calls))

        assert {job.input.name for job in await postgres.hf.list_jobs()} == set("01234")


async def test_a_statement_under_way_on_a_connection_of_asyncpg_is_told_so(postgres: Way) -> None:
    async with connected(postgres) as connection, connection.transaction():
        with psycopg.connect(postgres.hf.settings.database) as stranger:
            stranger.execute("SELECT pg_advisory_xact_lock(7)")
            statement = asyncio.ensure_future(connection.fetchval("SELECT pg_advisory_xact_lock(7) IS NULL"))
            await until(lambda: waits_for_a_lock(stranger), "the statement is under way")

            with pytest.raises(WrongConnection, match="another statement is running"):
                await postgres.hf.start(greet(name="Ada"), connection=connection)
            stranger.rollback()

        assert await statement is False
        assert await connection.fetchval("SELECT 7") == 7


def waits_for_a_lock(connection: psycopg.Connection[Any]) -> bool:
    """Tell whether anybody in the database of *connection* waits for a lock."""
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    connection.execute("SELECT pg_stat_clear_snapshot()")
    return bool(connection.execute(waiting).fetchall())


async def test_a_command_timeout_of_asyncpgs_is_unavailable(postgres: Way) -> None:
    # two seconds: asyncpg closes a connection whose statement was not cancelled within its command_timeout, too
    async with connected(postgres, command_timeout=2) as connection:
        transaction = connection.transaction()
        await transaction.start()
        with psycopg.connect(postgres.hf.settings.database) as stranger:
            stranger.execute("SELECT 1")
            postgres.hf.sync.start(greet(name="Bob"), unique="same", connection=stranger)

            with pytest.raises(Unavailable, match="command_timeout"):
                await postgres.hf.start(greet(name="Ada"), unique="same", connection=connection)
            stranger.rollback()

        await transaction.rollback()
        assert await connection.fetchval("SELECT 7") == 7


class Unknown(asyncpg.Connection):  # type: ignore[misc]  # asyncpg comes without types
    """A connection of a version to come."""

    async def _execute(self, query: str, args: Any, limit: int, timeout: float | None) -> Any: ...


async def test_an_asyncpg_that_is_made_otherwise_is_refused(postgres: Way) -> None:
    async with connected(postgres, connection_class=Unknown) as connection:
        with pytest.raises(WrongConnection, match="this version of asyncpg"):
            await postgres.hf.start(greet(name="Ada"), connection=connection)


async def test_a_connection_of_a_pool_is_asked_once_which_database_it_leads_to(postgres: Way) -> None:
    async with asyncpg.create_pool(postgres.hf.settings.database, min_size=1, max_size=1) as pool:
        asked = []
        for _ in range(2):
            async with pool.acquire() as connection, connection.transaction():
                with connection.query_logger(lambda record: asked.append(record.query)):
                    await postgres.hf.start(greet(name="Ada"), connection=connection)

    assert len([query for query in asked if "'identity'" in query]) == 1


async def test_a_connection_that_went_back_to_its_pool_is_refused(postgres: Way) -> None:
    async with asyncpg.create_pool(postgres.hf.settings.database, min_size=1, max_size=1) as pool:
        async with pool.acquire() as connection:
            pass

        with pytest.raises(WrongConnection, match="its pool took it back"):
            await postgres.hf.start(greet(name="Ada"), connection=connection)


# ---- aiosqlite


async def test_a_connection_of_aiosqlite_that_was_never_opened_is_refused(sqlite: Way) -> None:
    connection = aiosqlite.connect(sqlite.hf.settings.database)

    with pytest.raises(WrongConnection, match=r"not open yet; write `async with aiosqlite\.connect"):
        await sqlite.hf.start(greet(name="Ada"), connection=connection)


class Strange(aiosqlite.Connection):
    """A connection of a version to come."""

    @property
    def _execute(self) -> Any:
        raise AttributeError("_execute")


async def test_an_aiosqlite_that_is_made_otherwise_is_refused(sqlite: Way) -> None:
    with pytest.raises(WrongConnection, match="this version of aiosqlite"):
        await sqlite.hf.start(greet(name="Ada"), connection=Strange(lambda: sqlite3.connect(":memory:"), 64))


async def test_what_other_tasks_do_on_a_connection_of_aiosqlite_comes_before_a_start_or_after_it(sqlite: Way) -> None:
    said: list[str] = []
    async with aiosqlite.connect(sqlite.hf.settings.database, isolation_level=None) as connection:
        await connection.execute("BEGIN IMMEDIATE")
        await sqlite.hf.start(greet(name="first"), connection=connection)
        await connection.set_trace_callback(said.append)
        others = [connection.execute_fetchall("SELECT 'another'") for _ in range(20)]
        starts = [sqlite.hf.start(greet(name="Ada"), unique="x", connection=connection) for _ in range(3)]
        mixed = [*others[:7], starts[0], *others[7:14], starts[1], starts[2], *others[14:]]

        await asyncio.gather(*mixed)
        await connection.commit()

    runs = "".join("." if "another" in each else "H" for each in said).strip(".").split(".")
    assert len([run for run in runs if run]) <= 3
    assert sum("another" in each for each in said) == 20


@asynccontextmanager
async def held_up(connection: aiosqlite.Connection) -> AsyncIterator[Callable[[int], bool]]:
    """Keep the connection's thread from its work inside the block; tell whether so much work is waiting for it."""
    begun, gate = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        gate.wait(10)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(connection._execute(wait))  # type: ignore[no-untyped-call]
        await until(begun.is_set, "the thread is held up")
        try:
            yield lambda number: connection._tx.qsize() == number
        finally:
            gate.set()


async def test_a_start_on_aiosqlite_that_is_cancelled_is_done_wholly(sqlite: Way) -> None:
    async with aiosqlite.connect(sqlite.hf.settings.database, isolation_level=None) as connection:
        await connection.execute("BEGIN IMMEDIATE")
        await sqlite.hf.start(greet(name="first"), connection=connection)
        async with held_up(connection) as is_waiting:
            starting = asyncio.ensure_future(sqlite.hf.start(greet(name="second"), connection=connection))
            await until(lambda: is_waiting(1), "the start waits for the thread")

            starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await connection.commit()

    jobs = await sqlite.hf.list_jobs(order="oldest")
    assert [job.input.name for job in jobs] == ["first", "second"]
    assert [await events_of(sqlite, job.id) for job in jobs] == [["job:enqueued"], ["job:enqueued"]]


async def test_a_transaction_that_another_task_has_ended_meanwhile_is_none(sqlite: Way) -> None:
    async with aiosqlite.connect(sqlite.hf.settings.database, isolation_level=None) as connection:
        await connection.execute("BEGIN IMMEDIATE")
        await sqlite.hf.start(greet(name="first"), connection=connection)
        async with held_up(connection) as is_waiting:
            ending = asyncio.ensure_future(connection.rollback())
            starting = asyncio.ensure_future(sqlite.hf.start(greet(name="second"), connection=connection))
            await until(lambda: is_waiting(2), "both wait for the thread")

        with pytest.raises(TransactionRequired, match="no transaction is open"):
            await starting
        await ending

    assert not any((await whole_store(sqlite)).values())


# ---- psycopg2


@pytest.fixture
def shop(postgres: Way) -> Iterator[Any]:
    """A connection of psycopg2's with a transaction open."""
    with closing(psycopg2.connect(postgres.hf.settings.database)) as connection:
        connection.cursor().execute("SELECT 1")
        yield connection


FACTORIES = [extras.DictConnection, extras.RealDictConnection, extras.NamedTupleConnection, extensions.connection]


@pytest.mark.parametrize("factory", FACTORIES, ids=lambda factory: factory.__name__)
async def test_every_class_of_psycopg2s_connections_is_known(postgres: Way, factory: Any) -> None:
    with closing(psycopg2.connect(postgres.hf.settings.database, connection_factory=factory)) as connection:
        with connection:
            connection.cursor().execute("SELECT 1")
            chain = postgres.hf.sync.start(greet(name="Ada"), unique="ada", connection=connection)
            twin = postgres.hf.sync.start(greet(name="Ada"), unique="ada", connection=connection)

        assert (twin.id, twin.deduplicated) == (chain.id, True)
        assert (await postgres.hf.get_job(chain)).input.name == "Ada"


async def test_an_async_connection_of_psycopg2s_is_refused(postgres: Way) -> None:
    with closing(psycopg2.connect(postgres.hf.settings.database, async_=1)) as connection:
        extras.wait_select(connection)

        with pytest.raises(WrongConnection, match="async_=1"):
            postgres.hf.sync.start(greet(name="Ada"), connection=connection)


@pytest.mark.parametrize("kind", [str, int])
async def test_the_programs_adapters_of_psycopg2_change_nothing(
    postgres: Way, shop: Any, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(extensions.adapters, (kind, extensions.ISQLQuote), lambda value: extensions.AsIs("'NONSENSE'"))

    chain = postgres.hf.sync.start(greet(name="Ada"), connection=shop)
    postgres.hf.sync.complete(greet, chain, "Hello", connection=shop)
    shop.commit()

    assert (await postgres.hf.get_chain(chain)).output == "Hello"


async def test_the_programs_typecasters_of_psycopg2_change_nothing(
    postgres: Way, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    nonsense = extensions.new_type((16, 20, 21, 23, 25, 1043), "NONSENSE", lambda value, cursor: "NONSENSE")
    for oid in nonsense.values:
        monkeypatch.setitem(extensions.string_types, oid, nonsense)

    chain = postgres.hf.sync.start(greet(name="Ada"), unique="ada", connection=shop)
    twin = postgres.hf.sync.start(greet(name="Ada"), unique="ada", connection=shop)

    assert (twin.id, twin.deduplicated) == (chain.id, True)
    assert postgres.hf.sync.get_job(chain, connection=shop).input.name == "Ada"
