"""Waiting for the right to write: deadlines, cancellation, closing, and more than one event loop."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NoReturn

import pytest

from holdfast.database.sqlite.store import SqliteStore
from holdfast.database.tx import Tx
from holdfast.errors import Busy, Unavailable, UnknownOutcome
from holdfast.runtime import Runtime
from holdfast.settings import Settings
from tests.acceptance.processes import until
from tests.store.notes import add, count, create, held, is_sound, new_store, numbers, waiting


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = new_store(tmp_path / "jobs.db")
    yield store
    await store.close()


@pytest.fixture
async def hasty(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """A store whose callers wait a fifth of a second."""
    store = new_store(tmp_path / "jobs.db", deadline_seconds=0.2)
    yield store
    await store.close()


def strangers_lock(path: Path) -> sqlite3.Connection:
    stranger = sqlite3.connect(path, isolation_level=None)
    stranger.execute("BEGIN IMMEDIATE")
    return stranger


async def test_a_strangers_transaction_makes_writers_busy_and_readers_read(hasty: SqliteStore, tmp_path: Path) -> None:
    """F-31."""
    stranger = strangers_lock(tmp_path / "jobs.db")

    with pytest.raises(Busy):
        hasty.run_sync(add, 1)
    with pytest.raises(Busy):
        await hasty.run(add, 2)
    assert await hasty.read(count) == hasty.read_sync(count) == 0

    stranger.close()
    assert await hasty.run(add, 3) == 3
    assert hasty.read_sync(numbers) == [3]


async def test_of_those_who_wait_for_a_stranger_only_the_late_give_up(tmp_path: Path) -> None:
    """F-31."""
    store = new_store(tmp_path / "jobs.db", deadline_seconds=30)
    stranger = strangers_lock(tmp_path / "jobs.db")
    patient = asyncio.create_task(store.run(add, 1))
    await asyncio.sleep(0)
    store._state.writer._seconds = 0.1

    with pytest.raises(Busy):
        await store.run(add, 2)
    assert not patient.done()

    stranger.close()
    assert await patient == 1
    assert store.read_sync(numbers) == [1]
    store.close_sync()


async def test_what_has_not_begun_by_its_deadline_is_busy_and_never_happens(hasty: SqliteStore) -> None:
    with held(hasty):
        with pytest.raises(Busy, match=f"process {os.getpid()} had it last"):
            await hasty.run(add, 1)
        with pytest.raises(Busy, match=f"process {os.getpid()} had it last"):
            hasty.run_sync(add, 2)
        assert waiting(hasty) == 0

    assert await hasty.run(add, 3) == 3
    assert hasty.read_sync(numbers) == [3]


@pytest.mark.parametrize("colour", ["async", "blocking"])
async def test_what_has_begun_by_its_deadline_is_waited_for(colour: str, hasty: SqliteStore) -> None:
    begun, go_on = threading.Event(), threading.Event()

    async def dawdle(tx: Tx) -> int:
        begun.set()
        go_on.wait(10)
        return await add(tx, 1)

    with held(hasty):
        call = hasty.run(dawdle) if colour == "async" else asyncio.to_thread(hasty.run_sync, dawdle)
        task = asyncio.create_task(call)
        while not waiting(hasty):
            await asyncio.sleep(0)
    assert await asyncio.to_thread(begun.wait, 10)
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    assert not task.done()
    go_on.set()

    assert await task == 1


@pytest.mark.parametrize("colour", ["async", "blocking"])
async def test_what_is_not_done_after_the_grace_has_an_unknown_outcome(
    colour: str, hasty: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.database.sqlite.writer.GRACE_SECONDS", 0.1)
    go_on = threading.Event()

    async def dawdle(tx: Tx) -> int:
        go_on.wait(10)
        return await add(tx, 1)

    with held(hasty):
        call = hasty.run(dawdle) if colour == "async" else asyncio.to_thread(hasty.run_sync, dawdle)
        task = asyncio.create_task(call)
        while not waiting(hasty):
            await asyncio.sleep(0)
    with pytest.raises(UnknownOutcome, match="it may still be committed"):
        await task

    go_on.set()
    until(lambda: hasty.read_sync(count) == 1, "it did happen")


async def test_a_read_ends_at_its_deadline(hasty: SqliteStore) -> None:
    async def count_for_ever(tx: Tx) -> None:
        await tx.fetch_all("WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n) SELECT max(n) FROM n")

    with pytest.raises(Unavailable, match="not done by its deadline"):
        hasty.read_sync(count_for_ever)
    with pytest.raises(Unavailable, match="not done by its deadline"):
        await hasty.read(count_for_ever)

    assert hasty.read_sync(count) == 0


async def test_a_read_sees_one_view_while_others_write(store: SqliteStore) -> None:
    looked, wrote = threading.Event(), threading.Event()

    async def look_twice(tx: Tx) -> tuple[int, int]:
        before = await count(tx)
        looked.set()
        wrote.wait(10)
        return before, await count(tx)

    wrote.set()
    await store.read(look_twice)  # from now on it is known to need more than one statement
    looked.clear()
    wrote.clear()
    reading = asyncio.create_task(store.read(look_twice))
    await asyncio.to_thread(looked.wait, 10)
    await store.run(add, 1)
    wrote.set()

    assert await reading == (0, 0)
    assert await store.read(count) == 1


async def test_an_operation_cancelled_in_the_queue_never_runs(store: SqliteStore) -> None:
    with held(store):
        task = asyncio.create_task(store.run(add, 1))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert waiting(store) == 0

    assert await store.run(add, 2) == 2
    assert store.read_sync(numbers) == [2]


async def test_a_thousand_tasks_cancelled_anywhere_leave_nothing_half_done(store: SqliteStore) -> None:
    """P-28."""
    chance = random.Random(20261115)

    async def add_pair(tx: Tx, number: int) -> int:
        await add(tx, 2 * number)
        return await add(tx, 2 * number + 1)

    tasks = [asyncio.create_task(store.run(add_pair, number)) for number in range(1000)]
    for task in chance.sample(tasks, 500):
        if chance.random() < 0.1:
            await asyncio.sleep(0)
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    await store.run(add, 5000)

    found = set(store.read_sync(numbers)) - {5000}
    done = {each for each in outcomes if isinstance(each, int)}
    assert found >= done
    assert {number ^ 1 for number in found} == found, "both rows of a pair, or none"
    assert waiting(store) == 0
    assert store.read_sync(is_sound)


async def test_closing_lets_the_queued_end(store: SqliteStore) -> None:
    with held(store):
        tasks = [asyncio.create_task(store.run(add, number)) for number in range(20)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(store.close())
        while waiting(store) < 21:
            await asyncio.sleep(0)

    await closing

    assert await asyncio.gather(*tasks) == list(range(20))


async def test_a_closed_store_leaves_no_thread_and_no_open_file_behind(store: SqliteStore, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    await store.run(add, 1)
    store.read_sync(count)
    assert "holdfast-writer" in {thread.name for thread in set(threading.enumerate()) - before}

    store.close_sync()
    store.close_sync()

    assert set(threading.enumerate()) <= before
    assert not (tmp_path / "jobs.db-wal").exists(), "the last connection has taken it along"
    assert not [link for link in open_files() if str(tmp_path) in link]


async def test_a_closed_store_opens_again_by_its_next_use(store: SqliteStore) -> None:
    await store.run(add, 1)
    await store.close()

    assert await store.run(add, 2) == 2
    await store.close()
    assert store.read_sync(numbers) == [1, 2]


async def test_closing_in_the_middle_of_many_writers_harms_none(store: SqliteStore) -> None:
    async def write(first: int) -> None:
        for number in range(first, first + 30):
            await store.run(add, number)

    async with asyncio.TaskGroup() as group:
        for first in range(0, 300, 30):
            group.create_task(write(first))
        for _ in range(20):
            await store.close()

    assert store.read_sync(numbers) == list(range(300))


def test_two_event_loops_one_after_another(tmp_path: Path) -> None:
    store = new_store(tmp_path / "jobs.db")

    assert asyncio.run(store.run(add, 1)) == 1
    assert asyncio.run(store.run(add, 2)) == 2
    assert asyncio.run(store.read(numbers)) == [1, 2]
    store.close_sync()


def test_a_loop_that_is_closed_does_not_keep_the_others_from_hearing(tmp_path: Path) -> None:
    store = new_store(tmp_path / "jobs.db")
    gone = asyncio.new_event_loop()
    with held(store):
        task = gone.create_task(store.run(add, 1))
        gone.run_until_complete(asyncio.sleep(0))
        other = threading.Thread(target=store.run_sync, args=(add, 2))
        other.start()
        until(lambda: waiting(store) == 2, "both wait")
        gone.close()

    other.join(10)

    assert not other.is_alive()
    assert store.read_sync(numbers) == [1, 2]
    task.get_coro().close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    store.close_sync()


@pytest.mark.source("DF-22")
async def test_64_tasks_and_64_threads_at_once_lose_nothing(store: SqliteStore) -> None:
    def write(first: int) -> None:
        for number in range(first, first + 5):
            store.run_sync(add, number)

    await asyncio.gather(
        *(asyncio.to_thread(write, 10_000 + 5 * thread) for thread in range(64)),
        *(store.run(add, number) for number in range(640)),
    )

    assert store.read_sync(count) == 64 * 5 + 640


async def test_opening_does_not_wait_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    sqlite3.connect(path).execute("CREATE TABLE customer (id)").connection.close()
    stranger = strangers_lock(path)
    store = SqliteStore(path, settings=Settings(deadline_seconds=0.2))

    with pytest.raises(Busy):
        await store.open()

    stranger.close()
    await store.open()
    await store.close()


def open_files() -> list[str]:
    """List what this process has open; Linux only, elsewhere nothing is found."""
    links = []
    for link in Path("/proc/self/fd").glob("*"):
        try:
            links.append(str(link.readlink()))
        except FileNotFoundError:
            continue
    return links


def test_a_write_for_which_no_thread_can_be_made_never_happens(tmp_path: Path) -> None:
    def no_thread(step: object, name: str) -> NoReturn:
        raise RuntimeError("can't start new thread")

    store = SqliteStore(tmp_path / "notes.db", runtime=Runtime(stepper=no_thread))
    store.run_sync(create)
    with held(store), pytest.raises(Unavailable, match="no thread can be started"):
        store.run_sync(add, 1)

    assert waiting(store) == 0
    store.run_sync(add, 2)
    assert store.read_sync(numbers) == [2]
    store.close_sync()
