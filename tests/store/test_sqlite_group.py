"""Group commit on SQLite: operations share a transaction, and each still hears its own true outcome."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.database.sqlite.store import SqliteStore
from holdfast.database.tx import Tx
from holdfast.errors import StoreError, Unavailable
from holdfast.fault_points import arm
from tests.acceptance.processes import until
from tests.store.notes import add, add_then_fail, count, held, is_sound, new_store, numbers, waiting

Work = Callable[[Tx], Coroutine[Any, Any, Any]]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = new_store(tmp_path / "jobs.db")
    yield store
    await store.close()


@pytest.fixture
def armed() -> Iterator[Callable[[str], None]]:
    """Arm a crash point in this process, until the end of the test."""
    yield arm
    arm(None)


@pytest.fixture(params=["async", "threads"])
def together(request: pytest.FixtureRequest, store: SqliteStore) -> Callable[[list[Work]], Any]:
    """Run operations so that they meet in one group; give what each caller got, or its error."""

    async def from_tasks(works: list[Work]) -> list[Any]:
        with held(store):
            tasks = [asyncio.create_task(store.run(work)) for work in works]
            await asyncio.sleep(0)
            assert waiting(store) == len(works)
        return await asyncio.gather(*tasks, return_exceptions=True)

    async def from_threads(works: list[Work]) -> list[Any]:
        with ThreadPoolExecutor(len(works)) as pool:
            with held(store):
                futures = [pool.submit(store.run_sync, work) for work in works]
                until(lambda: waiting(store) == len(works), "all of them wait")
            return [future.exception() or future.result() for future in futures]

    return {"async": from_tasks, "threads": from_threads}[request.param]


def adding(number: int, text: str = "") -> Work:
    async def added(tx: Tx) -> int:
        return await add(tx, number, text)

    return added


async def test_what_gathers_shares_one_transaction(store: SqliteStore, together: Callable[..., Any]) -> None:
    seen: list[Tx] = []

    async def look(tx: Tx) -> None:
        seen.append(tx)

    await together([look] * 64)

    assert (len(seen), len({id(tx) for tx in seen})) == (64, 1)


async def test_of_64_operations_the_bad_one_fails_alone(store: SqliteStore, together: Callable[..., Any]) -> None:
    """Q-04, I-64."""
    works = [adding(number) for number in range(64)]
    works[20] = lambda tx: add_then_fail(tx, 20)

    results = await together(works)

    assert isinstance(results.pop(20), LookupError)
    assert results == [number for number in range(64) if number != 20] == store.read_sync(numbers)


async def test_a_refused_row_fails_alone(store: SqliteStore, together: Callable[..., Any]) -> None:
    """I-64."""
    works = [adding(number) for number in (1, 2, 2, 3)]

    results = await together(works)

    assert [isinstance(each, StoreError) for each in results].count(True) == 1
    assert store.read_sync(numbers) == [1, 2, 3]


async def test_an_operation_that_awaits_something_else_fails_alone(
    store: SqliteStore, together: Callable[..., Any]
) -> None:
    async def wander(tx: Tx) -> None:
        await add(tx, 1)
        await asyncio.sleep(0)

    results = await together([adding(0), wander, adding(2)])

    assert isinstance(results[1], RuntimeError)
    assert store.read_sync(numbers) == [0, 2]


async def test_when_the_disk_is_full_each_of_64_callers_hears_its_own_outcome(
    store: SqliteStore, together: Callable[..., Any]
) -> None:
    """Q-04, F-33, I-64."""
    ran = Counter[int]()
    fat = {20, 21, 50}

    def adding_counted(number: int) -> Work:
        ran_text = "x" * 4_000_000 if number in fat else "x"

        async def work(tx: Tx) -> int:
            ran[number] += 1
            return await add(tx, number, ran_text)

        return work

    await limit_pages(store)
    results = await together([adding_counted(number) for number in range(64)])

    assert [isinstance(each, Unavailable) for each in results] == [number in fat for number in range(64)]
    assert store.read_sync(numbers) == [number for number in range(64) if number not in fat]
    assert ran[0] == 2, "the full disk took the whole group, so each ran again alone"
    assert store.read_sync(is_sound)
    assert store.run_sync(add, 100, "x" * 4_000_000) == 100, "a new connection, without our limit"


@pytest.mark.parametrize("where", ["before_commit", "after_commit"])
async def test_an_error_at_the_commit_of_a_group_does_nothing_twice(
    store: SqliteStore, together: Callable[..., Any], where: str, armed: Callable[[str], None]
) -> None:
    """I-64: behind the commit there is nothing left to be undone, or to be run again."""
    armed(f"test_sqlite_group.added.{where}:1:raise")

    results = await together([adding(number) for number in range(3)])

    assert results == [0, 1, 2] == store.read_sync(numbers)


async def test_a_failing_commit_fails_only_the_one_whose_fault_it_is(
    store: SqliteStore, together: Callable[..., Any]
) -> None:
    """I-64."""

    async def add_reply(tx: Tx, to: int) -> int:
        await tx.execute("INSERT INTO reply (note) VALUES (:to)", to=to)
        return to

    async def create_replies(tx: Tx) -> None:
        await tx.execute("CREATE TABLE reply (note INTEGER REFERENCES note DEFERRABLE INITIALLY DEFERRED)")

    store.run_sync(create_replies)
    store._state.connection._connected().execute("PRAGMA foreign_keys = ON")
    works = [adding(number) for number in range(64)]
    works[30] = lambda tx: add_reply(tx, 30_000)
    works[40] = lambda tx: add_reply(tx, 10)

    results = await together(works)

    assert isinstance(results[30], StoreError)
    assert "FOREIGN KEY constraint failed" in str(results[30])
    assert [number for number, each in enumerate(results) if isinstance(each, Exception)] == [30]
    assert store.read_sync(count) == 62


async def test_a_single_operation_that_fails_leaves_nothing(store: SqliteStore) -> None:
    with pytest.raises(LookupError):
        await store.run(add_then_fail, 1)
    with pytest.raises(LookupError):
        store.run_sync(add_then_fail, 2)

    assert store.read_sync(numbers) == []


async def test_a_single_operation_that_fills_the_disk_fails_and_the_next_succeeds(store: SqliteStore) -> None:
    await limit_pages(store)

    with pytest.raises(Unavailable, match="make room"):
        store.run_sync(add, 1, "x" * 4_000_000)

    assert store.run_sync(add, 2) == 2
    assert store.read_sync(numbers) == [2]


async def test_a_group_is_bounded(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.database.sqlite.writer.MOST_TOGETHER", 10)
    seen: list[Tx] = []

    async def look(tx: Tx) -> None:
        seen.append(tx)

    with held(store):
        tasks = [asyncio.create_task(store.run(look)) for _ in range(25)]
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)

    assert len({id(tx) for tx in seen}) == 3


@pytest.mark.parametrize("size", [0, 500], ids=["items", "bytes"])
async def test_a_group_is_bounded_by_the_items_and_bytes_of_its_lists(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr("holdfast.database.sqlite.writer.MOST_TOGETHER", 1000 if size else 10)
    monkeypatch.setattr("holdfast.database.sqlite.write_queue.MOST_BYTES", 5000)
    seen: list[int] = []

    async def look(tx: Tx, items: Sequence[Load]) -> list[int]:
        seen.append(len(items))
        return [item.size for item in items]

    with held(store):
        tasks = [asyncio.create_task(store.gather(look, [Load(size)] * 5)) for _ in range(6)]
        await asyncio.sleep(0)
    assert await asyncio.gather(*tasks) == [[size] * 5] * 6

    assert seen == [10, 10, 10]


@dataclass(frozen=True)
class Load:
    """An item that holds *size* bytes."""

    size: int


async def test_a_blocking_caller_who_finds_the_right_free_writes_in_his_own_thread(store: SqliteStore) -> None:
    threads: list[threading.Thread] = []

    async def look(tx: Tx) -> None:
        threads.append(threading.current_thread())

    store.run_sync(look)
    await store.run(look)

    assert threads[0] is threading.current_thread()
    assert threads[1].name == "holdfast-writer"


async def test_gathering_is_running(store: SqliteStore) -> None:
    async def double(tx: Tx, items: Any) -> list[int]:
        return [2 * each for each in items]

    assert await store.gather(double, [1, 2]) == [2, 4]
    assert store.gather_sync(double, [3]) == [6]


async def limit_pages(store: SqliteStore) -> None:
    """Let the file grow by some 200 pages and no more: SQLITE_FULL, without being root."""
    connection = store._state.connection._connected()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 200}")
