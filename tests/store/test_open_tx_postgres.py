"""Blocks on PostgreSQL: a pool of their own, the server's time-outs, lost connections, and who may end what."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import warnings
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from holdfast.database.postgres import PostgresStore
from holdfast.database.tx import Last, OpenTx, Tx, commit_with, drive
from holdfast.errors import Misuse, TransactionBroken, TransactionTimeout, Unavailable, UnknownOutcome
from holdfast.runtime import Runtime, Stepper
from holdfast.settings import Settings
from holdfast.threads import StepThread
from tests.store.conftest import MakeStore
from tests.store.open_blocks import LEASE, begin, on_connection
from tests.store.samples import SCHEMA, Stranger, add, count
from tests.support.conditions import until
from tests.support.faults.fault_proxy import FaultProxy

SLEEPING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE query LIKE '%pg_sleep%' AND state = 'active' AND pid <> pg_backend_pid() AND datname = current_database()"""


@pytest.fixture(params=["async", "blocking"])
def is_async(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "async")


async def insert(block: OpenTx, name: str) -> None:
    await block.query("INSERT INTO sample (id, amount) VALUES (:name, 1)", {"name": name})


async def ask(block: OpenTx, sql: str) -> Any:
    ((value,),) = await block.query(sql, {})
    return value


def pool_of(store: PostgresStore, *, is_async: bool) -> Any:
    side = store._async_side() if is_async else store._blocking_side()
    return side.blocks


def is_complete(store: PostgresStore, *, is_async: bool) -> bool:
    """Tell whether every place of the blocks' pool is free, and every open connection idle."""
    pool = pool_of(store, is_async=is_async)
    return bool(pool._connector._places._value == pool._size and len(pool._idle) == len(pool._all))


@pytest.mark.parametrize("pooler", [False, True], ids=["direct", "pooler"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("statement_timeout", "0"),
        ("lock_timeout", "0"),
        ("idle_in_transaction_session_timeout", "7s"),
        ("plan_cache_mode", "auto"),
        ("transaction_isolation", "read committed"),
        ("application_name", "holdfast"),
    ],
)
async def test_the_settings_of_a_block(
    make_store: MakeStore, is_async: bool, name: str, value: str, pooler: bool, samples_url: str
) -> None:
    url = f"{samples_url}?options=-c%20default_transaction_isolation%3Dserializable"
    store = make_store(url, transaction_pooler=pooler)
    block = await begin(store, is_async=is_async, lease=7)

    assert await ask(block, f"SHOW {name}") == value
    await block.roll_back()


async def test_a_block_begins_and_ends_in_a_round_trip_each(make_store: MakeStore, proxy: FaultProxy) -> None:
    for pooler in (False, True):
        store = make_store(proxy.url, transaction_pooler=pooler)
        drive(store.begin_sync(LEASE).commit())

        proxy.round_trips = 0
        block = store.begin_sync(LEASE)
        await insert(block, f"{pooler}")
        await block.commit()

        assert proxy.round_trips == 3


async def test_what_is_looked_at_first_goes_with_begin(make_store: MakeStore, proxy: FaultProxy) -> None:
    for pooler in (False, True):
        store = make_store(proxy.url, transaction_pooler=pooler)
        drive(store.begin_sync(LEASE).commit())

        proxy.round_trips = 0
        block = store.begin_sync(LEASE, count)
        await block.commit()

        assert proxy.round_trips == 2


async def test_an_opening_that_is_refused_keeps_its_connection(make_store: MakeStore, is_async: bool) -> None:
    store = make_store(pool_size=1)
    pids: list[int] = []

    async def refuse(tx: Tx) -> None:
        pids.extend(pid for (pid,) in await tx.fetch_all("SELECT pg_backend_pid()"))
        raise Misuse("not now")

    for _ in range(2):
        with pytest.raises(Misuse, match="not now"):
            await (store.begin(LEASE, refuse) if is_async else asyncio.to_thread(store.begin_sync, LEASE, refuse))

    assert len(pids) == 2
    assert pids[0] == pids[1]
    assert is_complete(store, is_async=is_async)


async def test_behind_a_pooler_nothing_stays_on_a_connection(make_store: MakeStore, proxy: FaultProxy) -> None:
    store = make_store(proxy.url, transaction_pooler=True)
    for number in range(10):
        block = store.begin_sync(LEASE)
        await insert(block, str(number))
        await block.commit()

    assert b"_pg3_" not in proxy.sent
    assert b"options\0" not in proxy.sent


async def test_handlers_in_blocks_keep_nobody_else_waiting(make_store: MakeStore, is_async: bool) -> None:
    """F-24."""
    store = make_store(pool_size=1)
    block = await begin(store, is_async=is_async)
    await insert(block, "a")

    assert await store.read(count) == store.read_sync(count) == 0
    await store.run(add, "b")
    store.run_sync(add, "c")

    await block.commit()
    assert await store.read(count) == 3


async def test_a_block_waits_for_a_connection_as_long_as_others_sit(make_store: MakeStore, is_async: bool) -> None:
    store = make_store(pool_size=1, deadline_seconds=1)
    first = await begin(store, is_async=is_async)
    waiter: asyncio.Task[OpenTx] = asyncio.create_task(
        store.begin(LEASE) if is_async else asyncio.to_thread(store.begin_sync, LEASE)
    )
    with pytest.raises(Unavailable):  # more than a deadline passes
        await store.run(_sleep)

    assert not waiter.done()
    await first.commit()
    await (await waiter).commit()
    assert is_complete(store, is_async=is_async)


async def _sleep(tx: Tx) -> None:
    await tx.execute("SELECT pg_sleep(60)")


async def test_a_block_that_stands_still_for_its_lease_is_ended(make_store: MakeStore, is_async: bool) -> None:
    """F-04."""
    store = make_store()
    sitting = [await begin(store, is_async=is_async, lease=1) for _ in range(2)]
    for number, block in enumerate(sitting):
        await insert(block, str(number))
    await until(lambda: _is_cut(sitting), "the server has ended them")

    with pytest.raises(TransactionTimeout, match="as long as its lease"):
        await sitting[0].query("SELECT 1", {})
    with pytest.raises(TransactionTimeout, match="as long as its lease"):
        await sitting[1].commit()
    for block in sitting:
        await block.roll_back()

    assert store.read_sync(count) == 0
    assert is_complete(store, is_async=is_async)


def _is_cut(blocks: list[Any]) -> bool:
    """Tell whether the server has said something that nobody has read."""
    import select

    sockets = [block._lent.pgconn.socket for block in blocks]
    return len(select.select(sockets, [], [], 0)[0]) == len(sockets)


async def test_a_statement_that_hangs_is_broken_off_with_its_block(make_store: MakeStore, stranger: Stranger) -> None:
    """As a worker does it with a handler in a thread: it waits for nothing."""
    store = make_store()
    block = store.begin_sync(LEASE)
    drive(insert(block, "a"))
    told: list[BaseException] = []

    def hang() -> None:
        try:
            drive(block.query("SELECT pg_sleep(60)", {}))
        except BaseException as error:  # noqa: BLE001
            told.append(error)
        drive(block.roll_back())

    thread = threading.Thread(target=hang)
    thread.start()
    await until(lambda: stranger.ask(SLEEPING) == 1, "it hangs")

    drive(block.roll_back())
    await asyncio.to_thread(thread.join, 5)

    assert [type(each) for each in told] == [TransactionBroken]
    assert is_complete(store, is_async=False)
    await until(lambda: stranger.ask(SLEEPING) == 0, "the server does not go on with it either")
    assert stranger.rows() == {}


async def test_a_statement_on_the_connection_itself_is_broken_off_too(
    make_store: MakeStore, stranger: Stranger
) -> None:
    store = make_store()
    block = store.begin_sync(LEASE)
    connection = block.connection
    told: list[BaseException] = []

    def hang() -> None:
        try:
            connection.execute("SELECT pg_sleep(60)")
        except psycopg.Error as error:
            told.append(error)
        drive(block.roll_back())

    thread = threading.Thread(target=hang)
    thread.start()
    await until(lambda: stranger.ask(SLEEPING) == 1, "it hangs")

    drive(block.roll_back())
    await asyncio.to_thread(thread.join, 5)

    assert len(told) == 1
    assert is_complete(store, is_async=False)


async def test_a_cancelled_statement_ends_at_once_and_breaks_its_block(
    make_store: MakeStore, proxy: FaultProxy
) -> None:
    store = make_store(proxy.url)
    block = await store.begin(LEASE)
    proxy.fall_silent()
    task = asyncio.create_task(block.query("SELECT 1", {}))
    await asyncio.sleep(0)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 1)

    with pytest.raises(TransactionBroken, match="was interrupted"):
        block.refuse_unusable()
    with pytest.raises(TransactionBroken, match="was interrupted"):
        await block.commit()
    assert is_complete(store, is_async=True)
    proxy.speak()


PAY = """
    WITH paid AS (UPDATE sample SET amount = amount + 1 WHERE id = :id AND amount = :amount RETURNING id)
    SELECT 1 / count(*) FROM paid"""


def pay(amount: int) -> Last:
    """Pay with the commit if *amount* is what there was; otherwise write something else before it."""

    async def last(tx: Tx) -> None:
        if not await commit_with(tx, PAY, id="a", amount=amount):
            await tx.execute("INSERT INTO sample (id, amount) VALUES ('it''s \\ else', 7)")

    return last


@pytest.mark.parametrize("pooler", [False, True], ids=["direct", "pooler"])
async def test_the_last_statement_and_commit_are_one_round_trip(
    make_store: MakeStore, proxy: FaultProxy, stranger: Stranger, is_async: bool, pooler: bool
) -> None:
    store = make_store(proxy.url, transaction_pooler=pooler)
    for amount in (1, 2, 3):
        block = await begin(store, is_async=is_async)
        if amount == 1:
            await insert(block, "a")
        proxy.round_trips = 0
        await block.commit(pay(amount))

        assert (proxy.round_trips, block.is_committed) == (1, True)
    assert stranger.rows() == {"a": 4}
    assert is_complete(store, is_async=is_async)


@pytest.mark.parametrize("pooler", [False, True], ids=["direct", "pooler"])
async def test_a_last_statement_that_refuses_leaves_the_block_as_it_was(
    make_store: MakeStore, proxy: FaultProxy, stranger: Stranger, is_async: bool, pooler: bool
) -> None:
    store = make_store(proxy.url, transaction_pooler=pooler)
    block = await begin(store, is_async=is_async)
    await insert(block, "a")

    await block.commit(pay(amount=5))

    assert stranger.rows() == {"a": 1, "it's \\ else": 7}
    assert is_complete(store, is_async=is_async)


async def test_behind_a_connection_that_was_handed_out_commit_comes_alone(
    make_store: MakeStore, stranger: Stranger, is_async: bool
) -> None:
    store = make_store()
    block = await begin(store, is_async=is_async)
    await insert(block, "a")
    await on_connection(block, "SELECT 1")

    await block.commit(pay(amount=1))

    assert stranger.rows() == {"a": 1, "it's \\ else": 7}


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_if_the_answer_to_the_last_statement_and_commit_is_lost_the_outcome_is_unknown(
    make_store: MakeStore, proxy: FaultProxy, stranger: Stranger, is_async: bool, cut: Any
) -> None:
    """F-16."""
    store = make_store(proxy.url)
    block = await begin(store, is_async=is_async)
    await insert(block, "a")
    proxy.cut_at_commit = cut

    with pytest.raises(UnknownOutcome):
        await block.commit(pay(amount=1))

    assert stranger.rows() == ({} if cut == "before" else {"a": 2})
    assert not block.is_committed
    await block.roll_back()
    assert is_complete(store, is_async=is_async)


async def test_a_caller_cancelled_at_the_last_statement_and_commit_waits_for_the_outcome(
    make_store: MakeStore, proxy: FaultProxy, stranger: Stranger
) -> None:
    store = make_store(proxy.url)
    block = await store.begin(LEASE)
    await insert(block, "a")
    proxy.latency = 0.05
    proxy.sent.clear()
    task = asyncio.create_task(block.commit(pay(amount=1)))
    await until(lambda: b"COMMIT\0" in proxy.sent, "COMMIT is on its way")
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task

    assert block.is_committed
    assert stranger.rows() == {"a": 2}
    assert is_complete(store, is_async=True)


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_if_the_answer_to_commit_is_lost_the_outcome_is_unknown(
    make_store: MakeStore, proxy: FaultProxy, stranger: Stranger, is_async: bool, cut: Any
) -> None:
    """F-16."""
    store = make_store(proxy.url)
    block = await begin(store, is_async=is_async)
    await insert(block, "a")
    proxy.cut_at_commit = cut

    with pytest.raises(UnknownOutcome):
        await block.commit()

    assert stranger.rows() == ({} if cut == "before" else {"a": 1})
    await block.roll_back()
    assert is_complete(store, is_async=is_async)


async def test_a_commit_without_an_answer_ends_by_its_deadline(
    make_store: MakeStore, proxy: FaultProxy, is_async: bool
) -> None:
    """F-13."""
    store = make_store(proxy.url, deadline_seconds=1)
    block = await begin(store, is_async=is_async)
    await insert(block, "a")
    proxy.fall_silent()

    with pytest.raises(UnknownOutcome):
        await block.commit()
    proxy.speak()

    assert is_complete(store, is_async=is_async)


async def test_a_caller_cancelled_at_commit_waits_for_the_outcome(
    make_store: MakeStore, proxy: FaultProxy, stranger: Stranger
) -> None:
    store = make_store(proxy.url)
    block = await store.begin(LEASE)
    await insert(block, "a")
    proxy.latency = 0.05
    proxy.sent.clear()
    task = asyncio.create_task(block.commit())
    await until(lambda: b"COMMIT\0" in proxy.sent, "COMMIT is on its way")
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task

    assert block.is_committed
    assert stranger.rows() == {"a": 1}
    assert is_complete(store, is_async=True)


async def test_a_lost_connection_is_an_error_of_ours(make_store: MakeStore, proxy: FaultProxy, is_async: bool) -> None:
    """F-15."""
    store = make_store(proxy.url)
    lost = [await begin(store, is_async=is_async) for _ in range(3)]
    for number, block in enumerate(lost):
        await insert(block, str(number))
    proxy.cut()
    await until(lambda: proxy.connections == 0, "they are cut")

    with pytest.raises(Unavailable):
        await lost[0].query("SELECT 1", {})
    with pytest.raises(Unavailable):
        await lost[1].run(count)
    with pytest.raises(Unavailable):
        await lost[0].commit()
    for block in lost:
        await block.roll_back()

    assert is_complete(store, is_async=is_async)
    fresh = await begin(store, is_async=is_async)  # on a fresh connection, though one that was kept is stale
    await fresh.commit()


async def test_a_stale_connection_is_not_lent(make_store: MakeStore, proxy: FaultProxy, is_async: bool) -> None:
    """F-15."""
    store = make_store(proxy.url)
    await (await begin(store, is_async=is_async)).commit()
    proxy.cut()
    await until(lambda: proxy.connections == 0, "it is cut")

    block = await begin(store, is_async=is_async)
    await insert(block, "a")
    await block.commit()


async def test_an_operation_of_ours_ends_by_its_deadline_and_a_statement_of_the_user_s_does_not(
    make_store: MakeStore, stranger: Stranger, is_async: bool
) -> None:
    store = make_store(deadline_seconds=1)
    block = await begin(store, is_async=is_async)
    assert await ask(block, "SELECT 'slow' FROM pg_sleep(1.2)") == "slow"

    with pytest.raises(Unavailable, match="did not answer within"):
        await block.run(_sleep)

    await block.roll_back()
    assert is_complete(store, is_async=is_async)
    await until(lambda: stranger.ask(SLEEPING) == 0, "the server does not go on with it")


async def test_a_constraint_that_is_checked_at_commit_is_the_driver_s_own(
    make_store: MakeStore, stranger: Stranger, is_async: bool
) -> None:
    stranger.do("ALTER TABLE sample ADD CONSTRAINT once UNIQUE (amount) DEFERRABLE INITIALLY DEFERRED")
    store = make_store()
    block = await begin(store, is_async=is_async)
    await insert(block, "a")
    await insert(block, "b")

    with pytest.raises(psycopg.errors.UniqueViolation):
        await block.commit()

    assert stranger.rows() == {}
    assert is_complete(store, is_async=is_async)


async def test_a_connection_that_was_handed_out_is_not_used_again(make_store: MakeStore, is_async: bool) -> None:
    """Its user may still have it when another block has, and end that block's transaction."""
    store = make_store(pool_size=1)
    backends: list[int] = []
    for is_handed_out in (False, True, False):
        block = await begin(store, is_async=is_async)
        backends.append(await ask(block, "SELECT pg_backend_pid()"))
        if is_handed_out:
            assert block.connection is not None
        await block.commit()

    assert backends[0] == backends[1] != backends[2]


async def test_a_user_s_connection_that_was_closed_is_found_out(make_store: MakeStore, is_async: bool) -> None:
    store = make_store()
    block = await begin(store, is_async=is_async)
    closing = block.connection.close()
    if is_async:
        await closing

    with pytest.raises(Unavailable):
        await block.commit()

    assert is_complete(store, is_async=is_async)


async def test_a_statement_that_nobody_awaits_keeps_the_block_from_committing(make_store: MakeStore) -> None:
    store = make_store()
    block = await store.begin(LEASE)
    task = asyncio.create_task(block.query("SELECT pg_sleep(60)", {}))
    await asyncio.sleep(0)

    with pytest.raises(TransactionBroken, match="still running"):
        await block.commit()

    with pytest.raises(TransactionBroken, match="was interrupted"):
        await task
    assert is_complete(store, is_async=True)


async def test_a_thousand_blocks_cancelled_anywhere_lose_no_connection(
    make_store: MakeStore, stranger: Stranger
) -> None:
    """P-28, I-51."""
    store = make_store(pool_size=4)
    await store.open()
    chance = random.Random(28)

    async def use(number: int) -> None:
        block = await store.begin(LEASE)
        try:
            await insert(block, f"{number} a")
            await insert(block, f"{number} b")
            await block.commit()
        finally:
            await block.roll_back()

    async def use_and_cancel(number: int) -> None:
        task = asyncio.create_task(use(number))
        for _ in range(chance.randrange(40)):
            await asyncio.sleep(0)
        if chance.random() < 0.5:
            await asyncio.sleep(chance.random() * 0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    for first in range(0, 1000, 50):
        await asyncio.gather(*(use_and_cancel(number) for number in range(first, first + 50)))

    await until(lambda: is_complete(store, is_async=True), "the pool is complete")
    found = stranger.rows().keys()
    assert {name[:-1] + ("b" if name[-1] == "a" else "a") for name in found} == found, "both rows of a block, or none"


async def test_closing_lets_an_open_block_end(
    new_threads: Callable[[], set[str]], make_store: MakeStore, proxy: FaultProxy, is_async: bool
) -> None:
    store = make_store(proxy.url)
    block = await begin(store, is_async=is_async)
    await insert(block, "a")

    await store.close()
    await block.commit()

    await until(lambda: proxy.connections == 0, "its connection is closed too")
    await until(lambda: "holdfast-deadlines" not in new_threads(), "no thread is left for its deadlines")
    assert await store.read(count) == 1


async def test_a_statement_that_was_broken_off_right_before_the_store_closed_does_not_run_on(
    make_store: MakeStore, stranger: Stranger
) -> None:
    """The thread that asks the server to end it may not have begun."""

    class Asleep:
        def wake(self) -> None:
            pass

        def stop(self) -> None:
            pass

    def shell(step: Callable[[], float | None], name: str) -> Stepper:
        return Asleep() if name == "holdfast-cancels" else StepThread(step, name)

    store = make_store(runtime=Runtime(stepper=shell))
    block = await store.begin(LEASE)
    task = asyncio.create_task(block.query("SELECT pg_sleep(60)", {}))
    await until(lambda: stranger.ask(SLEEPING) == 1, "it runs")
    task.cancel()
    await asyncio.wait((task,))

    await store.close()

    await until(lambda: stranger.ask(SLEEPING) == 0, "the server does not go on with it")


def fork(child: Callable[[], bool]) -> int:
    """Run *child* in a forked process; give its exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there are threads: that is the point
        pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if child() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_block_is_of_no_use_in_a_child_and_goes_on_in_its_parent(samples_url: str, stranger: Stranger) -> None:
    """F-11."""
    store = PostgresStore(Settings(database=samples_url, schema_name=SCHEMA))
    block = store.begin_sync(LEASE)
    drive(insert(block, "parent"))

    def child() -> bool:
        for use in (insert(block, "no"), block.commit()):
            with pytest.raises(Misuse, match="forked"):
                drive(use)
        drive(block.roll_back())
        own = store.begin_sync(LEASE)
        drive(insert(own, "child"))
        drive(own.commit())
        return True

    assert fork(child) == 0
    drive(block.commit())

    assert stranger.rows().keys() == {"parent", "child"}
    store.close_sync()


async def test_a_block_on_the_connection_itself_may_have_savepoints_of_psycopg(make_store: MakeStore) -> None:
    store = make_store()
    block = await store.begin(LEASE)

    async def insert_twice() -> None:
        async with block.connection.transaction():
            await insert(block, "a")
            await on_connection(block, "INSERT INTO sample VALUES ('a', 1)")

    with pytest.raises(psycopg.errors.UniqueViolation):
        await insert_twice()
    await insert(block, "b")
    await block.commit()

    assert await store.read(count) == 1
