"""Stores of several schemas on one store's connections: they share these and nothing else."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from holdfast.database.postgres import PostgresStore
from holdfast.database.postgres.beginning import MOST_PREPARED
from holdfast.database.postgres.connections import MOST_PREPARED_FOR_ALL, PREPARED_FOR_EACH
from holdfast.database.tx import OpenTx, Tx, repeatable
from holdfast.errors import NotMigrated, StoreError, Unavailable
from holdfast.settings import Settings
from tests.store.conftest import MakeStore
from tests.store.samples import SCHEMA, Caller, Stranger, ask, until
from tests.store.test_postgres_connections import OURS, fork
from tests.support.faults.fault_proxy import TERMINATE, FaultProxy

OTHER, THIRD = "samples_t_other", "samples_t_third"
NAMES = (SCHEMA, OTHER, THIRD)
CONNECTIONS_OF_POOL = 8  # with a share of 2


@repeatable
async def note(tx: Tx, words: Sequence[str]) -> list[str]:
    """Write *words* down in a table of ours, whose schema the dialect names."""
    rows = await tx.fetch_all(
        """INSERT INTO holdfast_token (id, hash, role, name, created_at)
           SELECT given.word, given.word, '', '', 0 FROM $list(given: word text)
           ON CONFLICT (id) DO UPDATE SET name = '' RETURNING id""",
        given=[(word,) for word in words],
    )
    return [str(row[0]) for row in rows]


async def notes(tx: Tx) -> set[str]:
    """Read what was written down."""
    return {str(row[0]) for row in await tx.fetch_all("SELECT id FROM holdfast_token")}


@pytest.fixture(scope="module")
def schemas(samples_url: str) -> str:
    """Schemas with our tables beside that of the samples; made over one store."""
    store = PostgresStore(Settings.from_environment(database=samples_url, schema_name=SCHEMA))
    for name in NAMES[1:]:
        store.for_schema(name).migrate_sync()
    store.close_sync()
    return samples_url


@pytest.fixture
def make_stores(schemas: str, make_store: MakeStore, stranger: Stranger) -> Callable[..., list[PostgresStore]]:
    """Make a store and two guests on its connections."""
    for name in NAMES:
        stranger.do(f"DELETE FROM {name}.holdfast_token")

    def make(url: str = schemas, **settings: object) -> list[PostgresStore]:
        store = make_store(url, **settings)
        return [store, *(store.for_schema(name) for name in NAMES[1:])]

    return make


@pytest.fixture(params=["async", "blocking"])
def make_callers(
    request: pytest.FixtureRequest, make_stores: Callable[..., list[PostgresStore]]
) -> Callable[..., list[Caller]]:
    """Make the same in each of the colours."""
    is_async = request.param == "async"
    return lambda *args, **settings: [Caller(each, is_async) for each in make_stores(*args, **settings)]


async def test_each_writes_into_its_own_schema_over_the_same_connections(
    make_callers: Callable[..., list[Caller]], stranger: Stranger
) -> None:
    callers = make_callers(pool_size=CONNECTIONS_OF_POOL)

    async def use(number: int) -> None:
        caller, schema = callers[number % 3], NAMES[number % 3]
        await caller.run(note, [f"run of {schema} {number}"])
        await caller.gather(note, [f"gather of {schema} {number}"])
        assert all(schema in each for each in await caller.read(notes))

    await asyncio.gather(*map(use, range(90)))

    for schema in NAMES:
        found = stranger.connection.execute(f"SELECT id FROM {schema}.holdfast_token").fetchall()
        assert len(found) == 60
        assert all(f" of {schema} " in name for (name,) in found)
    assert 1 <= stranger.ask(OURS) <= CONNECTIONS_OF_POOL


async def test_blocks_of_several_schemas_share_the_connections_for_blocks(
    make_callers: Callable[..., list[Caller]], stranger: Stranger
) -> None:
    callers = make_callers(pool_size=CONNECTIONS_OF_POOL)
    blocks = []
    for caller, schema in zip(callers, NAMES, strict=True):
        store = caller.store

        async def first(tx: Tx, schema: str = schema) -> None:
            await note(tx, [f"first of {schema}"])

        blocks.append(await store.begin(30, first) if caller.is_async else store.begin_sync(30, first))
    for block, schema in zip(blocks, NAMES, strict=True):
        await block.run(note, [f"second of {schema}"])
        await block.commit()

    again = [await (caller.store.begin(30) if caller.is_async else at_once(caller.store)) for caller in callers * 2]
    assert stranger.ask(OURS) <= 6 + CONNECTIONS_OF_POOL
    for block in again:
        await block.roll_back()
    for caller, schema in zip(callers, NAMES, strict=True):
        assert await caller.read(notes) == {f"first of {schema}", f"second of {schema}"}


async def at_once(store: PostgresStore) -> OpenTx:
    return store.begin_sync(30)


async def test_a_locked_schema_keeps_no_other_waiting(
    make_callers: Callable[..., list[Caller]], schemas: str, stranger: Stranger
) -> None:
    """As many as like may wait for a locked table; they have their share of the connections and no more."""
    first, locked, other = make_callers(pool_size=CONNECTIONS_OF_POOL, deadline_seconds=60)
    waits = f"""SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast' AND wait_event_type = 'Lock'
        AND datname = current_database() AND query LIKE '%{OTHER}%'"""
    await locked.run(note, ["before"])
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(40))  # or blocking callers wait for its threads
    with psycopg.connect(schemas) as holder:
        holder.execute(f"LOCK TABLE {OTHER}.holdfast_token IN ACCESS EXCLUSIVE MODE")
        waiting = [asyncio.create_task(locked.run(note, [str(number)])) for number in range(20)]
        await until(lambda: stranger.ask(waits) == 2, "its share waits")

        for caller in (first, other):
            await caller.run(note, ["beside it"])
            assert await caller.read(notes) == {"beside it"}
            await asyncio.gather(*(caller.run(note, [str(number)]) for number in range(10)))

        assert stranger.ask(waits) == 2
        assert not any(task.done() for task in waiting)
        holder.rollback()
    await asyncio.gather(*waiting)
    assert len(await locked.read(notes)) == 21


async def test_who_waits_too_long_for_his_share_is_told_so(make_callers: Callable[..., list[Caller]]) -> None:
    _, guest, other = make_callers(pool_size=CONNECTIONS_OF_POOL, deadline_seconds=0.3)
    await guest.open()
    store = guest.store
    pool = store._async_side().pool if guest.is_async else store._blocking_side().pool
    taken = [await pool.take(store._deadline()) for _ in range(2)]

    with pytest.raises(Unavailable, match="the 2 connections that one schema may have"):
        await guest.run(note, ["too late"])

    assert await other.read(notes) == set()
    for each in taken:
        pool.give_back(each, is_clean=True)
    assert await guest.run(note, ["in time"]) == ["in time"]


async def test_closing_a_guest_closes_nothing_that_others_use(
    make_callers: Callable[..., list[Caller]], stranger: Stranger
) -> None:
    first, guest, other = make_callers(pool_size=CONNECTIONS_OF_POOL)
    for caller in (first, guest, other):
        await caller.run(note, ["before"])
    backend = await other.run(ask, "SELECT pg_backend_pid()")

    await guest.close()

    assert await other.run(ask, "SELECT pg_backend_pid()") == backend
    assert await guest.read(notes) == {"before"}


async def test_closing_the_first_closes_all_and_the_next_use_opens_again(
    make_callers: Callable[..., list[Caller]], stranger: Stranger
) -> None:
    callers = make_callers(pool_size=CONNECTIONS_OF_POOL)
    for _ in range(3):
        for caller in callers:
            await caller.run(note, ["again"])
        await callers[0].close()
        await until(lambda: stranger.ask(OURS) == 0, "every connection is closed")
    for caller in callers[1:]:
        assert len(caller.store._sides) == 1


def test_a_fork_leaves_the_parent_the_connections_of_all(schemas: str, stranger: Stranger) -> None:
    """F-11."""
    with FaultProxy(schemas) as proxy:
        first = PostgresStore(Settings(database=proxy.url, schema_name=SCHEMA, pool_size=2))
        guest = first.for_schema(OTHER)
        backends = {store.run_sync(ask, "SELECT pg_backend_pid()") for store in (first, guest)}
        assert len(backends) == 1

        child = fork()
        if child == 0:
            os._exit(use_in_child([first, guest], backends))
        _, status = os.waitpid(child, 0)

        assert os.waitstatus_to_exitcode(status) == 0
        assert {store.run_sync(ask, "SELECT pg_backend_pid()") for store in (first, guest)} == backends
        assert TERMINATE not in proxy.sent
        assert guest.read_sync(notes) >= {"child"}
        first.close_sync()


def use_in_child(stores: list[PostgresStore], backends: set[int]) -> int:
    """Use the stores in a child process; return what it exits with."""
    try:
        found = {store.run_sync(ask, "SELECT pg_backend_pid()") for store in stores}
        assert len(found) == 1
        assert not found & backends
        for store in stores:
            store.run_sync(note, ["child"])
        return 0
    except BaseException:  # noqa: BLE001 - nothing may get past os._exit
        return 1


def test_loops_and_threads_have_their_own_connections_and_share_them_among_schemas(
    make_stores: Callable[..., list[PostgresStore]], stranger: Stranger
) -> None:
    stores = make_stores(pool_size=2)

    async def use() -> None:
        await asyncio.gather(*(store.run(note, ["loop"]) for store in stores))
        assert stranger.ask(OURS) <= 4
        await stores[0].close()

    for _ in range(2):
        asyncio.run(use())
    threads = [threading.Thread(target=store.run_sync, args=(note, ["thread"])) for store in stores * 5]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert stranger.ask(OURS) <= 2
    assert all(store.read_sync(notes) == {"loop", "thread"} for store in stores)


async def test_a_schema_without_tables_is_refused_and_the_others_are_not(
    make_callers: Callable[..., list[Caller]],
) -> None:
    first, guest, _ = make_callers()
    missing = Caller(first.store.for_schema("samples_t_missing"), first.is_async)

    with pytest.raises(NotMigrated):
        await missing.read(notes)

    assert await guest.read(notes) == set()


async def test_a_failure_in_one_leaves_the_connection_to_the_others_as_it_was(
    make_callers: Callable[..., list[Caller]],
) -> None:
    callers = make_callers(pool_size=1)

    async def fail(tx: Tx) -> None:
        await note(tx, ["rolled back"])
        raise StoreError("on purpose")

    for caller in callers:
        with pytest.raises(StoreError, match="on purpose"):
            await caller.run(fail)
        with pytest.raises(psycopg.errors.UndefinedTable):
            await caller.run(ask, "SELECT 1 FROM nowhere")
    for caller in callers:
        assert await caller.read(notes) == set()


async def test_connections_keep_more_statements_prepared_for_more_schemas(
    make_callers: Callable[..., list[Caller]], stranger: Stranger
) -> None:
    first, guest, other = make_callers(pool_size=1)
    for _ in range(6):
        for caller in (first, guest, other):
            await caller.run(note, ["a"])
    names = "SELECT statement FROM pg_prepared_statements WHERE statement LIKE '%holdfast_token%'"

    async def prepared(tx: Tx) -> list[str]:
        return [str(row[0]) for row in await tx.fetch_all(names)]

    found = await guest.read(prepared)
    assert {schema for schema in NAMES if any(f'"{schema}"' in each for each in found)} == set(NAMES)
    assert guest.store._connections.most_prepared() == MOST_PREPARED + 2 * PREPARED_FOR_EACH
    for number in range(100):
        first.store.for_schema(f"samples_t_{number}")
    assert guest.store._connections.most_prepared() == MOST_PREPARED_FOR_ALL
