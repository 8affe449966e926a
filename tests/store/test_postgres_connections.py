"""The connections of a PostgreSQL store: what is set on them, that none is lost, what a fork leaves of them."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.adapt import Buffer, Dumper, Loader
from psycopg.rows import dict_row

from holdfast.database.dialect import PostgresDialect
from holdfast.database.postgres import AsyncPostgresTx, PostgresStore, PostgresTx, pool
from holdfast.database.postgres.address import Address
from holdfast.database.postgres.tx import OwnPostgresTx
from holdfast.database.tx import Tx, drive
from holdfast.errors import Unavailable
from holdfast.runtime import Runtime, Stepper
from holdfast.settings import Settings
from holdfast.threads import StepThread
from tests.store.conftest import MakeStore
from tests.store.samples import SCHEMA, Caller, Item, Stranger, add, add_items, add_once, ask, count, until
from tests.support.faults.fault_proxy import TERMINATE, FaultProxy

MakeCaller = Callable[..., Caller]

# other databases of the server belong to other processes of the run
OURS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast' AND datname = current_database()"
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("statement_timeout", "5s"),
        ("lock_timeout", "4500ms"),
        ("idle_in_transaction_session_timeout", "10s"),
        ("plan_cache_mode", "force_custom_plan"),
        ("transaction_isolation", "read committed"),
        ("application_name", "holdfast"),
    ],
)
@pytest.mark.parametrize("pooler", [False, True], ids=["direct", "pooler"])
async def test_our_settings_hold_in_every_transaction(
    make_caller: MakeCaller, samples_url: str, name: str, value: str, pooler: bool
) -> None:
    url = f"{samples_url}?options=-c%20default_transaction_isolation%3Dserializable"
    caller = make_caller(url, transaction_pooler=pooler)

    assert await caller.run(ask, f"SHOW {name}") == value


async def test_connections_that_nobody_uses_are_closed_by_time(
    make_caller: MakeCaller, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A10."""
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.05)
    caller = make_caller()
    for _ in range(2):  # one that was opened after others were closed, too
        block = await caller.store.begin(30) if caller.is_async else caller.store.begin_sync(30)
        assert await caller.read(ask, "SELECT 7") == 7
        assert stranger.ask(OURS) > 0
        await block.roll_back()

        await until(lambda: stranger.ask(OURS) == 0, "all are closed, without another call")


@pytest.mark.parametrize("pooler", [False, True], ids=["direct", "pooler"])
async def test_lists_have_their_nulls_where_the_database_has_array_nulls_off(
    make_caller: MakeCaller, samples_url: str, direct_url: str, pooler: bool
) -> None:
    """A7."""
    with psycopg.connect(direct_url, autocommit=True) as connection:
        name = psycopg.sql.Identifier(connection.info.dbname)
        connection.execute(psycopg.sql.SQL("ALTER DATABASE {} SET array_nulls = off").format(name))
        try:
            caller = make_caller(samples_url, transaction_pooler=pooler)
            block = await caller.store.begin(30)

            assert await caller.run(ask, "SELECT (CAST('{NULL}' AS text[]))[1] IS NULL")
            assert await ask(block.tx, "SELECT (CAST('{NULL}' AS text[]))[1] IS NULL")
            await block.roll_back()
        finally:
            connection.execute(psycopg.sql.SQL("ALTER DATABASE {} RESET array_nulls").format(name))


async def test_what_the_address_says_is_kept(make_caller: MakeCaller, samples_url: str) -> None:
    caller = make_caller(f"{samples_url}?application_name=mine&options=-c%20statement_timeout%3D4321")

    assert await caller.run(ask, "SHOW application_name") == "mine"
    assert await caller.run(ask, "SHOW statement_timeout") == "4321ms"


async def test_the_settings_of_a_migration_end_with_it(samples_url: str) -> None:
    address = Address.of(Settings(database=samples_url))

    with psycopg.connect(**address.parameters, autocommit=True) as connection:
        tx = OwnPostgresTx(connection, PostgresDialect())
        drive(tx.begin(address.migration.begin))
        assert drive(ask(tx, "SHOW statement_timeout")) == "10min"
        drive(tx.commit())
        assert drive(ask(tx, "SHOW statement_timeout")) == "5s"


async def test_behind_a_pooler_nothing_stays_on_a_connection(
    make_caller: MakeCaller, proxy: FaultProxy, samples_url: str
) -> None:
    caller = make_caller(proxy.url, transaction_pooler=True)
    for number in range(10):
        await caller.run(add, str(number))
        await caller.read(count)

    assert b"_pg3_" not in proxy.sent  # psycopg's names for prepared statements
    assert b"options\0" not in proxy.sent

    address = Address.of(Settings(database=samples_url, transaction_pooler=True))
    with psycopg.connect(samples_url, autocommit=True) as connection:
        tx = OwnPostgresTx(connection, PostgresDialect())
        drive(tx.begin(address.write.begin))
        assert drive(ask(tx, "SHOW statement_timeout")) == "5s"
        drive(tx.commit())
        assert drive(ask(tx, "SHOW statement_timeout")) == "0"


async def test_behind_a_pooler_the_settings_cost_no_round_trip(make_caller: MakeCaller, proxy: FaultProxy) -> None:
    caller = make_caller(proxy.url, transaction_pooler=True, pool_size=1)
    await caller.open()

    proxy.round_trips = 0
    await caller.run(add, "a")

    assert proxy.round_trips == 4


class Shout(Loader):
    """Spoils every text and number that it loads."""

    def load(self, data: Buffer) -> str:
        return f"{bytes(data)!r}!"


class Mumble(Dumper):
    """Spoils every value that it sends."""

    oid = psycopg.adapters.types["text"].oid

    def dump(self, obj: object) -> bytes:
        return b"..."


def spoil(adapters: psycopg.adapt.AdaptersMap) -> None:
    for name in ("text", "varchar", "int8", "int4", "bool"):
        adapters.register_loader(name, Shout)
    for kind in (str, int, bool):
        adapters.register_dumper(kind, Mumble)


async def look(tx: Tx) -> Any:
    return await tx.fetch_all(
        """SELECT given.a, given.b, CAST(:text AS text), CAST(:number AS bigint), 1, 1 = 1, NULL, '%'
           FROM $list(given: a text, b bigint) ORDER BY given.nr""",
        given=[("ä", 1), (None, None)],
        text="x'\\",
        number=2**40,
    )


SEEN = [("ä", 1, "x'\\", 2**40, 1, True, None, "%"), (None, None, "x'\\", 2**40, 1, True, None, "%")]


async def test_a_caller_s_factories_and_adapters_change_no_result(samples_url: str) -> None:
    async with await psycopg.AsyncConnection.connect(samples_url, row_factory=dict_row) as connection:
        connection.cursor_factory = psycopg.AsyncRawCursor
        spoil(connection.adapters)
        assert await look(AsyncPostgresTx(connection, PostgresDialect())) == SEEN

    with psycopg.connect(samples_url, row_factory=dict_row) as blocking:
        blocking.cursor_factory = psycopg.RawCursor
        spoil(blocking.adapters)
        assert drive(look(PostgresTx(blocking, PostgresDialect()))) == SEEN


def test_adapters_of_the_whole_program_change_no_result(samples_url: str) -> None:
    """In a process of its own, for psycopg offers no way to undo what it does to the program."""
    script = f"""
        import asyncio, psycopg
        from tests.store.test_postgres_connections import SEEN, PostgresStore, Settings, look, spoil
        spoil(psycopg.adapters)
        store = PostgresStore(Settings(database={samples_url!r}, schema_name={SCHEMA!r}))
        assert store.read_sync(look) == SEEN
        assert asyncio.run(store.read(look)) == SEEN
        store.close_sync()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, check=True)


async def test_a_storm_of_cancellations_loses_no_connection(make_store: MakeStore, stranger: Stranger) -> None:
    """P-28, I-51."""
    store = make_store(pool_size=4)
    await store.open()
    chance = random.Random(4)

    async def call(number: int) -> None:
        kinds: list[Coroutine[Any, Any, object]] = [
            store.run(add, f"run {number}"),
            store.read(count),
            store.gather(add_items, [Item(f"gather {number}")]),
        ]
        chosen = kinds.pop(number % 3)
        for other in kinds:
            other.close()
        await chosen

    async def call_and_cancel(number: int) -> None:
        task = asyncio.create_task(call(number))
        await asyncio.sleep(chance.random() * 0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    for _ in range(15):
        await asyncio.gather(*(call_and_cancel(chance.randrange(10**9)) for _ in range(100)))

    await assert_complete(store, stranger, 4)


async def assert_complete(store: PostgresStore, stranger: Stranger, size: int) -> None:
    """Have all *size* connections in use at one time, and no more than these open."""
    stranger.do("SELECT pg_advisory_lock(7)")
    together = [asyncio.create_task(store.run(wait_for_stranger)) for _ in range(size + 1)]
    waiting = """
        SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
        WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()"""
    try:
        await until(lambda: stranger.ask(waiting) == size, f"{size} connections wait at one time")
    finally:
        stranger.do("SELECT pg_advisory_unlock(7)")
    await asyncio.gather(*together)
    await until(lambda: stranger.ask(OURS) == size, f"{size} connections are open")


async def wait_for_stranger(tx: Tx) -> None:
    await tx.execute("SELECT pg_advisory_xact_lock_shared(7)")


async def test_a_cancelled_caller_is_free_at_once_and_nothing_happened(
    make_store: MakeStore, proxy: FaultProxy, stranger: Stranger
) -> None:
    store = make_store(proxy.url)
    await store.open()
    reached = asyncio.Event()

    async def dawdle(tx: Tx) -> None:
        await add(tx, "a")
        reached.set()
        await tx.execute("SELECT pg_sleep(1)")

    task = asyncio.create_task(store.run(dawdle))
    await reached.wait()
    proxy.fall_silent()
    started = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert time.monotonic() - started < 3  # and not by the deadline of 5 s
    proxy.speak()
    assert stranger.rows() == {}


@pytest.mark.parametrize("how", ["run", "gather"])
async def test_a_cancelled_caller_does_not_wait_for_a_commit_that_nobody_answers(
    make_store: MakeStore, proxy: FaultProxy, how: str
) -> None:
    store = make_store(proxy.url, deadline_seconds=60)
    await store.open()
    reached = asyncio.Event()

    async def fall_silent_before_the_commit(tx: Tx, items: Sequence[Item]) -> list[str]:
        added = await add_items(tx, items)
        proxy.fall_silent()
        reached.set()
        return added

    call = store.run if how == "run" else store.gather
    task = asyncio.create_task(call(fall_silent_before_the_commit, [Item("a")]))  # type: ignore[operator]
    await reached.wait()
    task.cancel()

    async with asyncio.timeout(30):  # and not by the deadline of 60 s
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_commit_under_way_is_waited_for_by_its_cancelled_caller(
    make_store: MakeStore, proxy: FaultProxy, stranger: Stranger
) -> None:
    store = make_store(proxy.url)
    await store.open()
    proxy.latency = 0.05
    proxy.sent.clear()

    task = asyncio.create_task(store.run(add, "a"))
    await until(lambda: b"COMMIT\0" in proxy.sent, "COMMIT is on its way")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert stranger.rows() == {"a": 1}


def test_a_silent_first_host_leaves_time_for_the_second(samples_url: str) -> None:
    """Blocking, where we connect by ourselves; the async driver does the same."""
    with FaultProxy(samples_url) as silent, FaultProxy(samples_url) as speaking:
        silent.fall_silent()
        ports = [urlsplit(each.url).port for each in (silent, speaking)]
        parts = urlsplit(samples_url)
        both = f"{parts.username}:{parts.password}@127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}"
        url = parts._replace(netloc=both).geturl()
        store = PostgresStore(Settings(database=url, schema_name=SCHEMA, deadline_seconds=3))

        assert store.read_sync(ask, "SELECT 1") == 1
        store.close_sync()


async def test_a_failed_connect_leaves_no_descriptor_behind(make_caller: MakeCaller, samples_url: str) -> None:
    """P-04."""
    caller = make_caller(f"{samples_url}_nowhere")
    await asyncio.gather(caller.open(), return_exceptions=True)
    before = descriptors()

    for _ in range(20):
        await asyncio.gather(caller.open(), return_exceptions=True)

    assert descriptors() <= before


def descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def test_a_fork_leaves_the_parent_its_connections(samples_url: str, stranger: Stranger) -> None:
    """F-11."""
    with FaultProxy(samples_url) as proxy:
        store = PostgresStore(Settings(database=proxy.url, schema_name=SCHEMA, pool_size=1))
        backend = store.run_sync(ask, "SELECT pg_backend_pid()")

        child = fork()
        if child == 0:
            os._exit(use_in_child(store, backend))
        _, status = os.waitpid(child, 0)

        assert os.waitstatus_to_exitcode(status) == 0
        assert store.run_sync(ask, "SELECT pg_backend_pid()") == backend
        assert TERMINATE not in proxy.sent
        assert stranger.rows() == {"child": 1}
        store.close_sync()


def fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there are threads: that is the point
        return os.fork()


def use_in_child(store: PostgresStore, backend: int) -> int:
    """Use the store in a child process; return what it exits with."""
    try:
        assert store.run_sync(ask, "SELECT pg_backend_pid()") != backend
        store.run_sync(add_once, "child")
        return 0
    except BaseException:  # noqa: BLE001 - nothing may get past os._exit
        return 1


async def test_a_closed_store_opens_again_when_it_is_used(make_caller: MakeCaller, proxy: FaultProxy) -> None:
    caller = make_caller(proxy.url)
    await caller.run(add, "a")
    await caller.close()
    await caller.close()
    await until(lambda: proxy.connections == 0, "every connection is closed")

    await caller.run(add, "b")

    assert await caller.read(count) == 2


def test_each_event_loop_has_connections_of_its_own(samples_url: str, stranger: Stranger) -> None:
    store = PostgresStore(Settings(database=samples_url, schema_name=SCHEMA))

    for name in "abc":
        asyncio.run(store.run(add, name))
    store.close_sync()

    assert stranger.rows().keys() == {"a", "b", "c"}
    asyncio.run(until(lambda: stranger.ask(OURS) == 0, "every connection is closed"))


def test_many_threads_share_the_pool(samples_url: str, stranger: Stranger) -> None:
    store = PostgresStore(Settings(database=samples_url, schema_name=SCHEMA, pool_size=3))

    threads = [threading.Thread(target=store.run_sync, args=(add, str(number))) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(stranger.rows()) == 40
    assert stranger.ask(OURS) <= 3
    store.close_sync()


async def test_sleep_and_chance_come_from_the_runtime(make_store: MakeStore) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def collide(tx: Tx) -> None:
        await tx.execute("SELECT fail_with('40001')")

    store = make_store(runtime=Runtime(chance=random.Random(1), sleep=sleep))
    with pytest.raises(Exception, match="collided"):
        await store.run(collide)

    assert len(slept) == 4
    assert 0 < slept[0] < slept[1] < slept[2] < slept[3]


def test_if_no_thread_can_be_made_nothing_is_lost_by_it(make_store: MakeStore, stranger: Stranger) -> None:
    makes = iter([False, True])

    def shell(step: Callable[[], None], name: str) -> Stepper:
        if not next(makes):
            raise RuntimeError("can't start new thread")
        return StepThread(step, name)

    store = make_store(runtime=Runtime(stepper=shell), pool_size=1, deadline_seconds=0.5)
    with pytest.raises(RuntimeError, match="new thread"):
        store.run_sync(add, "first")

    store.run_sync(add, "second")  # its connection came back
    with pytest.raises(Unavailable):  # and so did its deadline
        store.run_sync(ask, "SELECT pg_sleep(5)")
    store.close_sync()
