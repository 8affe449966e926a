"""Blocks on SQLite: the right to write in a user's hands, for a limited time, and who looks after it."""

from __future__ import annotations

import asyncio
import math
import random
import signal
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.database.sqlite import block as sqlite_block
from holdfast.database.sqlite import statement_times
from holdfast.database.sqlite.statement_times import TIMES
from holdfast.database.sqlite.store import SqliteStore
from holdfast.database.tx import OpenTx, R, drive
from holdfast.errors import Busy, Misuse, TransactionBroken, TransactionTimeout
from holdfast.settings import Settings
from tests.acceptance.processes import until as until_blocking
from tests.store.notes import waiting
from tests.store.open_blocks import FOR_EVER, LEASE, add_bill, begin, bills, insert, make_table
from tests.store.test_sqlite_processes import Program
from tests.support.conditions import until

MakeStore = Callable[..., SqliteStore]


@pytest.fixture
async def make_store(tmp_path: Path) -> AsyncIterator[MakeStore]:
    made: list[SqliteStore] = []

    def make(**settings: Any) -> SqliteStore:
        made.append(SqliteStore(tmp_path / "jobs.db", settings=Settings(**settings)))
        return made[-1]

    make().run_sync(make_table)
    yield make
    for store in made:
        await store.close()


@pytest.fixture
def store(make_store: MakeStore) -> SqliteStore:
    return make_store()


@pytest.fixture(params=["async", "blocking"])
def is_async(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "async")


def is_free(store: SqliteStore) -> bool:
    """Tell whether nobody has the right to write, and nobody is inside."""
    here = store._state
    return not here.writer._thread_lock.locked() and here.writer._block is None and not here.gate.is_used


async def test_a_block_that_sits_too_long_is_rolled_back_and_told(make_store: MakeStore, is_async: bool) -> None:
    """F-53, I-67."""
    store = make_store(transaction_seconds=0.2)
    block = await begin(store, is_async=is_async)
    await insert(block, 1)
    connection = block.connection

    await until(lambda: is_free(store), "the right to write is free again")

    with pytest.raises(TransactionTimeout, match=r"open for 0\.2 s"):
        block.refuse_unusable()
    with pytest.raises(TransactionTimeout):
        await insert(block, 2)
    with pytest.raises(TransactionTimeout):
        connection.execute("SELECT 1")
    with pytest.raises(TransactionTimeout):
        await block.commit()
    await block.roll_back()
    assert store.read_sync(bills) == []


async def test_a_statement_under_way_is_interrupted(make_store: MakeStore, is_async: bool) -> None:
    """F-53, I-67."""
    store = make_store(transaction_seconds=0.2)
    block = await begin(store, is_async=is_async)
    await insert(block, 1)

    with pytest.raises(TransactionTimeout):
        await block.query(FOR_EVER, {})

    await until(lambda: is_free(store), "the right to write is free again")
    assert store.run_sync(add_bill, 2) == 2
    assert store.read_sync(bills) == [2]


async def test_a_statement_on_the_connection_itself_is_interrupted(make_store: MakeStore) -> None:
    store = make_store(transaction_seconds=0.2)
    block = await store.begin(LEASE)
    connection = block.connection

    with pytest.raises((sqlite3.OperationalError, TransactionTimeout)):
        await asyncio.to_thread(lambda: connection.execute(FOR_EVER).fetchall())
    await until(lambda: is_free(store), "the right to write is free again")

    with pytest.raises(TransactionTimeout):
        connection.execute("INSERT INTO bill (id, amount) VALUES (1, 1)")
    assert store.read_sync(bills) == []


async def test_a_blocked_loop_keeps_nobody_from_ending_its_block(make_store: MakeStore) -> None:
    """F-53, I-67."""
    store = make_store(transaction_seconds=0.2)
    block = await store.begin(LEASE)
    await insert(block, 1)

    assert store.run_sync(add_bill, 2) == 2  # blocks the loop until somebody has ended the block

    with pytest.raises(TransactionTimeout):
        await block.commit()
    assert store.read_sync(bills) == [2]


async def test_the_time_of_each_of_many_blocks_is_looked_after(make_store: MakeStore) -> None:
    """The shell is not woken for a block if it will look anyway; that must not make it miss the last one."""
    store = make_store(transaction_seconds=0.3)
    for number in range(50):
        block = store.begin_sync(LEASE)
        await insert(block, number)
        await block.commit()
    late = store.begin_sync(LEASE)

    await until(lambda: is_free(store), "the last one has ended too", timeout=5)

    with pytest.raises(TransactionTimeout):
        late.refuse_unusable()


async def test_a_block_is_no_longer_than_the_lease(store: SqliteStore, is_async: bool) -> None:
    block = await begin(store, is_async=is_async, lease=0.2)

    await until(lambda: is_free(store), "it has ended")

    with pytest.raises(TransactionTimeout, match=r"open for 0\.2 s"):
        await block.commit()


async def test_whoever_writes_while_a_block_is_open_writes_right_after_it(store: SqliteStore, is_async: bool) -> None:
    block = await begin(store, is_async=is_async)
    await insert(block, 0)
    tasks = [asyncio.create_task(store.run(add_bill, number)) for number in range(1, 50)]
    thread = threading.Thread(target=store.run_sync, args=(add_bill, 50))
    thread.start()
    await until(lambda: waiting(store) == 50, "all of them wait")

    await block.commit()

    assert await asyncio.gather(*tasks) == list(range(1, 50))
    await asyncio.to_thread(thread.join, 10)
    assert store.read_sync(bills) == list(range(51))


async def test_between_two_blocks_all_others_get_in(store: SqliteStore) -> None:
    first = await store.begin(LEASE)
    second_opens = asyncio.create_task(store.begin(LEASE))
    third_opens = asyncio.create_task(store.begin(LEASE))
    await until(lambda: waiting(store) == 2, "two blocks wait")
    write = asyncio.create_task(store.run(add_bill, 1))
    await until(lambda: waiting(store) == 3, "and one who writes")

    await first.commit()
    second = await second_opens
    assert await write == 1, "it came after the second block, and was not kept by it"
    assert not third_opens.done()
    later = asyncio.create_task(store.run(add_bill, 2))
    await until(lambda: waiting(store) == 2, "another one who writes waits")
    await second.commit()
    assert await later == 2
    await (await third_opens).commit()


async def test_who_came_before_a_block_writes_before_it(store: SqliteStore) -> None:
    holder = await store.begin(LEASE)
    write = asyncio.create_task(store.run(add_bill, 1))
    await until(lambda: waiting(store) == 1, "one who writes waits")
    opens = asyncio.create_task(store.begin(LEASE))
    await until(lambda: waiting(store) == 2, "and a block")

    await holder.roll_back()
    block = await opens

    assert write.done()
    await block.roll_back()


async def test_a_stream_of_writes_does_not_keep_a_block_waiting(store: SqliteStore) -> None:
    stop = threading.Event()

    def stream(first: int) -> None:
        number = first
        while not stop.is_set():
            store.run_sync(add_bill, number)
            number += 1

    threads = [threading.Thread(target=stream, args=(1000 * each,)) for each in range(1, 4)]
    for thread in threads:
        thread.start()
    try:
        for number in range(10):
            block = await asyncio.wait_for(store.begin(LEASE), 10)
            await insert(block, number)
            await block.commit()
    finally:
        stop.set()
        for thread in threads:
            await asyncio.to_thread(thread.join, 10)

    assert store.read_sync(bills)[:10] == list(range(10))


async def test_a_block_waits_longer_than_a_write_may(make_store: MakeStore, is_async: bool) -> None:
    store = make_store(deadline_seconds=0.1)
    holder = store.begin_sync(LEASE)
    waiter = asyncio.create_task(store.begin(LEASE) if is_async else asyncio.to_thread(store.begin_sync, LEASE))
    with pytest.raises(Busy):
        await store.run(add_bill, 1)

    assert not waiter.done()
    await holder.commit()
    block: OpenTx = await waiter
    await block.roll_back()


async def test_a_block_that_is_given_up_while_it_waits_never_is(store: SqliteStore) -> None:
    holder = await store.begin(LEASE)
    waiter = asyncio.create_task(store.begin(LEASE))
    await until(lambda: waiting(store) == 1, "it waits")

    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)

    assert waiting(store) == 0
    await holder.commit()
    assert is_free(store)


async def test_a_statement_that_was_cancelled_breaks_its_block(store: SqliteStore) -> None:
    block = await store.begin(LEASE)
    task = asyncio.create_task(block.query(FOR_EVER, {}))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    with pytest.raises(TransactionBroken, match="it was cancelled"):
        block.refuse_unusable()
    await asyncio.wait_for(block.roll_back(), 3)  # it interrupts what may still be under way

    assert is_free(store)


def at_once(work: Coroutine[Any, Any, R]) -> R:
    """Run *work*, which does not suspend: the event loop does it itself."""
    return drive(work)


def suspends(work: Coroutine[Any, Any, Any]) -> bool:
    """Tell whether *work* suspends, and give it up there: it hops to a thread."""
    try:
        work.send(None)
    except StopIteration:
        return False
    with pytest.raises(asyncio.CancelledError):
        work.throw(asyncio.CancelledError)
    return True


@pytest.fixture
def all_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every statement count as short, however long the machine lets it wait."""
    monkeypatch.setattr(statement_times, "SHORT_SECONDS", math.inf)


@pytest.mark.usefixtures("all_are_short")
async def test_the_event_loop_runs_statements_that_were_short_a_few_times(store: SqliteStore) -> None:
    block = await store.begin(LEASE)
    for number in range(TIMES):
        await insert(block, number)

    at_once(insert(block, 100))
    assert suspends(block.query("SELECT * FROM bill WHERE id = 100", {})), "it has not been seen before"
    await block.roll_back()


@pytest.mark.usefixtures("all_are_short")
async def test_a_loop_that_has_run_statements_for_a_while_lets_others_have_their_turn(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = await store.begin(LEASE)
    for number in range(TIMES):
        await insert(block, number)
    monkeypatch.setattr(sqlite_block, "TURN_SECONDS", 0.0)

    assert suspends(insert(block, 100))
    await block.roll_back()


async def test_a_block_that_writes_nothing_waits_for_no_thread_if_the_right_to_write_is_free(
    store: SqliteStore,
) -> None:
    await (await store.begin(LEASE)).commit()  # that has made the connection

    block = at_once(store.begin(LEASE, bills))
    assert not is_free(store)
    at_once(block.commit(bills))

    assert block.is_committed
    assert is_free(store)


async def test_who_waits_is_given_the_next_block_by_the_loop_that_ends_one(store: SqliteStore) -> None:
    first = await store.begin(LEASE)
    second_opens = asyncio.create_task(store.begin(LEASE))
    await until(lambda: waiting(store) == 1, "the second waits")

    at_once(first.commit())
    assert (waiting(store), is_free(store)) == (0, False)
    await insert(await second_opens, 1)
    await (await second_opens).commit()

    assert store.read_sync(bills) == [1]
    assert is_free(store)


async def test_a_block_that_waits_for_a_program_without_our_lock_does_not_stop_the_loop(store: SqliteStore) -> None:
    await (await store.begin(LEASE)).commit()
    with closing(sqlite3.connect(store.path, isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        opens = asyncio.create_task(store.begin(LEASE))
        await until(lambda: waiting(store) == 1, "it waits in the queue")
        stranger.execute("COMMIT")
        block = await opens
    await insert(block, 1)
    await block.commit()

    assert store.read_sync(bills) == [1]


async def test_a_caller_cancelled_at_commit_waits_for_the_outcome(store: SqliteStore) -> None:
    """I-66."""
    block = await store.begin(LEASE)
    await insert(block, 1)
    task = asyncio.create_task(block.commit())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task

    assert block.is_committed
    assert store.read_sync(bills) == [1]
    assert is_free(store)


@pytest.mark.parametrize("moment", ["before it hears of it", "before it goes on"])
async def test_a_block_whose_caller_is_cancelled_while_it_is_handed_over_is_ended_at_once(
    make_store: MakeStore, moment: str
) -> None:
    store = make_store(transaction_seconds=60)
    holder = store.begin_sync(LEASE)
    task = asyncio.create_task(store.begin(LEASE))
    await until(lambda: waiting(store) == 1, "it waits")

    drive(holder.commit())
    until_blocking(
        lambda: store._state.writer._block is not None, "the block is open, and the loop has not heard of it"
    )
    until_blocking(lambda: waiting(store) == 0, "it is taken")
    if moment == "before it hears of it":
        task.cancel()
    else:
        asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task

    await until(lambda: is_free(store), "the right to write is free")


async def test_a_thousand_blocks_cancelled_anywhere_leave_the_right_to_write_free(make_store: MakeStore) -> None:
    store = make_store(transaction_seconds=30)
    chance = random.Random(28)

    async def use(number: int) -> None:
        block = await store.begin(LEASE)
        try:
            await insert(block, 2 * number)
            await insert(block, 2 * number + 1)
            await block.commit()
        finally:
            await block.roll_back()

    async def use_and_cancel(number: int) -> None:
        task = asyncio.create_task(use(number))
        for _ in range(chance.randrange(40)):
            await asyncio.sleep(0)
        if chance.random() < 0.5:
            await asyncio.sleep(chance.random() * 0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    for first in range(0, 1000, 10):
        await asyncio.gather(*(use_and_cancel(number) for number in range(first, first + 10)))

    await until(lambda: is_free(store), "the right to write is free")
    found = set(store.read_sync(bills))
    assert {number ^ 1 for number in found} == found, "both rows of a block, or none"
    assert await store.run(add_bill, 5000) == 5000
    assert waiting(store) == 0


def test_a_block_whose_event_loop_is_gone_is_ended(tmp_path: Path, make_store: MakeStore) -> None:
    store = make_store(transaction_seconds=0.3)
    asyncio.run(store.begin(LEASE))

    assert store.run_sync(add_bill, 1) == 1


async def test_closing_waits_for_an_open_block(store: SqliteStore, is_async: bool) -> None:
    block = await begin(store, is_async=is_async)
    await insert(block, 1)
    closing = asyncio.create_task(store.close())
    await until(lambda: not store._state.is_open, "it is closing")

    await block.commit()
    await closing

    assert not store._state.is_connected
    assert store.read_sync(bills) == [1]


async def test_closing_in_a_block_ends_it_when_its_time_is_over(make_store: MakeStore) -> None:
    store = make_store(transaction_seconds=0.3)
    block = store.begin_sync(LEASE)

    store.close_sync()

    assert not store._state.is_connected
    with pytest.raises(TransactionTimeout):
        drive(block.commit())


async def test_a_closed_store_leaves_no_thread_behind(make_store: MakeStore) -> None:
    before = set(threading.enumerate())
    store = make_store()
    block = store.begin_sync(LEASE)
    drive(block.commit())
    assert "holdfast-writer" in {thread.name for thread in set(threading.enumerate()) - before}

    store.close_sync()

    assert set(threading.enumerate()) <= before


async def test_a_block_gives_hints_of_its_commit(store: SqliteStore, is_async: bool) -> None:
    heard: list[bool] = []
    watch = store.watch(lambda: heard.append(True))
    block = await begin(store, is_async=is_async)
    await insert(block, 1)
    before = len(heard)

    await block.commit()

    assert len(heard) > before
    watch.stop()


REFUSED: list[Callable[[sqlite3.Connection], object]] = [
    lambda connection: connection.commit(),
    lambda connection: connection.rollback(),
    lambda connection: connection.close(),
    lambda connection: connection.executescript("SELECT 1"),
    lambda connection: connection.cursor().executescript("SELECT 1"),
    lambda connection: connection.execute(" commit"),
    lambda connection: connection.cursor().execute("ROLLBACK"),
    lambda connection: connection.executemany("END", [()]),
    lambda connection: connection.cursor(type("Mine", (sqlite3.Cursor,), {})),
    lambda connection: connection.__enter__().__exit__(None, None, None),
    lambda connection: setattr(connection, "isolation_level", None),
    lambda connection: setattr(connection, "isolation_level", "DEFERRED"),
]


@pytest.mark.parametrize("end", REFUSED)
def test_the_connection_refuses_what_would_end_the_block(
    store: SqliteStore, end: Callable[[sqlite3.Connection], object]
) -> None:
    block = store.begin_sync(LEASE)
    drive(insert(block, 1))

    with pytest.raises(Misuse):
        end(block.connection)
    drive(block.commit())

    assert store.read_sync(bills) == [1]


def test_the_connection_does_what_a_connection_does(store: SqliteStore) -> None:
    block = store.begin_sync(LEASE)
    connection = block.connection

    connection.executemany("INSERT INTO bill (id, amount) VALUES (?, 1)", [(1,), (2,), (3,)])
    cursor = connection.cursor().execute("SELECT id FROM bill ORDER BY id")
    assert (cursor.fetchone(), cursor.fetchmany(), cursor.fetchall()) == ((1,), [(2,)], [(3,)])
    assert [id_ for (id_,) in connection.execute("SELECT id FROM bill ORDER BY id")] == [1, 2, 3]
    assert next(connection.execute("SELECT 7")) == (7,)
    drive(block.commit())

    with pytest.raises(Misuse, match="has ended"):
        connection.execute("SELECT 1")


def test_a_constraint_that_is_checked_at_commit_is_the_driver_s_own(store: SqliteStore) -> None:
    block = store.begin_sync(LEASE)
    drive(block.query("CREATE TABLE part (bill integer REFERENCES bill (id))", {}))
    drive(block.commit())
    store._state.writer._block_connection.guarded.do_as_owner("PRAGMA foreign_keys = 1")
    block = store.begin_sync(LEASE)
    drive(block.query("PRAGMA defer_foreign_keys = 1", {}))
    drive(block.query("INSERT INTO part (bill) VALUES (77)", {}))

    with pytest.raises(sqlite3.IntegrityError):
        drive(block.commit())

    assert not block.is_committed
    assert is_free(store)


HOLDER = """
    from tests.store.open_blocks import *
    from holdfast.database.tx import drive
    store = SqliteStore(path)
    block = store.begin_sync(30)
    drive(insert(block, 99))
    say("open")
    hear()
    drive(block.commit())
    store.close_sync()
    say("done")
"""


@pytest.fixture
def program(tmp_path: Path, store: SqliteStore) -> Any:
    programs: list[Program] = []

    def run(text: str) -> Program:
        programs.append(Program(text, tmp_path / "jobs.db"))
        return programs[-1]

    yield run
    for each in programs:
        each.process.kill()
        each.process.wait()
        for pipe in (each.process.stdin, each.process.stdout):
            assert pipe is not None
            pipe.close()


async def test_a_block_in_another_process_is_waited_for(program: Any, store: SqliteStore) -> None:
    holder = program(HOLDER)
    assert holder.hear() == "open"
    await store.open()
    write = asyncio.create_task(store.run(add_bill, 1))
    opens = asyncio.create_task(store.begin(LEASE))
    await until(lambda: waiting(store) == 2, "both wait")

    holder.say("go on")

    assert await write == 1
    block = await opens
    assert await block.run(bills) == [1, 99]
    await block.roll_back()
    assert holder.hear() == "done"


async def test_kill_9_of_a_process_in_its_block_frees_everything(program: Any, store: SqliteStore) -> None:
    """F-04, I-67."""
    holder = program(HOLDER)
    assert holder.hear() == "open"

    holder.process.send_signal(signal.SIGKILL)

    block = await asyncio.wait_for(store.begin(LEASE), 5)
    assert await block.run(bills) == []
    await block.roll_back()


def test_a_fork_waits_for_a_block_in_another_thread(program: Any, store: SqliteStore) -> None:
    """F-11."""
    forker = program("""
        from tests.store.open_blocks import *
        from holdfast.database.tx import drive
        warnings.simplefilter("ignore", DeprecationWarning)
        store = SqliteStore(path)
        opened, forking = threading.Event(), threading.Event()
        def use():
            block = store.begin_sync(30)
            drive(insert(block, 1))
            opened.set()
            forking.wait()
            drive(insert(block, 2))
            drive(block.commit())
        thread = threading.Thread(target=use)
        thread.start()
        opened.wait()
        os.register_at_fork(before=forking.set)     # run before ours, which waits
        child = os.fork()
        if child == 0:
            block = store.begin_sync(30)
            drive(insert(block, 3))
            drive(block.commit())
            os._exit(0)
        thread.join()
        say(os.waitpid(child, 0)[1])
        store.close_sync()
    """)

    assert forker.hear() == "0"
    until_blocking(lambda: store.read_sync(bills) == [1, 2, 3], "all three are there")


def test_in_a_child_a_block_of_its_parent_is_not_to_be_used(program: Any, store: SqliteStore) -> None:
    """F-11."""
    forker = program("""
        from tests.store.open_blocks import *
        from holdfast.database.tx import drive
        import holdfast.database.sqlite.store as module
        module.FORK_SECONDS = 0.1        # the block is open in the very thread that forks
        warnings.simplefilter("ignore", DeprecationWarning)
        store = SqliteStore(path)
        block = store.begin_sync(30)
        drive(insert(block, 1))
        child = os.fork()
        if child == 0:
            told = []
            for use in (insert(block, 2), block.commit()):
                try:
                    drive(use)
                except Misuse as error:
                    told.append("forked" in str(error))
            drive(block.roll_back())
            try:
                store.run_sync(add_bill, 3)
            except Misuse:
                told.append(True)
            os._exit(0 if told == [True] * 3 else 1)
        status = os.waitpid(child, 0)[1]
        drive(block.commit())
        store.close_sync()
        say(status)
    """)

    assert forker.hear() == "0"
    assert store.read_sync(bills) == [1]
