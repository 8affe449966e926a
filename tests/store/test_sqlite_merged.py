"""List operations on SQLite that have gathered: one operation on all of their items, and each still fails alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.database.sqlite.store import SqliteStore
from holdfast.database.tx import Tx
from holdfast.states import Status
from holdfast.store import reads
from holdfast.store.chains import creation
from tests.store.notes import add, count, held, new_store, numbers, waiting
from tests.support.conditions import until
from tests.support.factories import a_start

CALLS: list[list[int]] = []


@dataclass(frozen=True)
class Note:
    """Something to add; one of them may be bad."""

    number: int
    may_wait: bool = False


async def add_notes(tx: Tx, notes: Sequence[Note]) -> list[str]:
    """Add *notes*, and say of each what it was called."""
    CALLS.append([note.number for note in notes])
    for note in notes:
        if note.number < 0:
            raise LookupError(note.number)
    await tx.execute(
        "INSERT INTO note (id, text) SELECT given.id, '' FROM $list(given: id bigint)",
        given=[(note.number,) for note in notes],
    )
    return [f"note {note.number}" for note in notes]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    CALLS.clear()
    store = new_store(tmp_path / "jobs.db")
    yield store
    await store.close()


@pytest.fixture(params=["async", "threads"])
def gather(request: pytest.FixtureRequest, store: SqliteStore) -> Callable[..., Any]:
    """Have callers gather lists, in their order, so that they meet in one group; give what each got, or its error."""

    async def from_tasks(operation: Any, lists: list[list[Any]]) -> list[Any]:
        with held(store):
            tasks: list[asyncio.Task[Any]] = []
            for each in lists:
                tasks.append(asyncio.create_task(store.gather(operation, each)))
                await until(lambda: waiting(store) == len(tasks), "it waits")
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    async def from_threads(operation: Any, lists: list[list[Any]]) -> list[Any]:
        with ThreadPoolExecutor(len(lists)) as pool:
            with held(store):
                futures = []
                for each in lists:
                    futures.append(pool.submit(store.gather_sync, operation, each))
                    await until(lambda: waiting(store) == len(futures), "it waits")
            return [future.exception() or future.result() for future in futures]

    return {"async": from_tasks, "threads": from_threads}[request.param]


async def test_lists_that_gather_are_one_list(store: SqliteStore, gather: Callable[..., Any]) -> None:
    results = await gather(add_notes, [[Note(1), Note(2)], [], [Note(3)], [Note(4)]])

    assert results == [["note 1", "note 2"], [], ["note 3"], ["note 4"]]
    assert CALLS == [[1, 2, 3, 4]]
    assert store.read_sync(numbers) == [1, 2, 3, 4]


async def test_if_the_whole_fails_each_is_run_by_itself(store: SqliteStore, gather: Callable[..., Any]) -> None:
    """I-64."""
    results = await gather(add_notes, [[Note(1)], [Note(-2)], [Note(3)]])

    assert (results[0], results[2]) == (["note 1"], ["note 3"])
    assert isinstance(results[1], LookupError)
    assert CALLS == [[1, -2, 3], [1], [-2], [3]]
    assert store.read_sync(numbers) == [1, 3]


async def test_items_that_others_may_name_too_stay_apart(store: SqliteStore, gather: Callable[..., Any]) -> None:
    results = await gather(add_notes, [[Note(1)], [Note(2, may_wait=True)], [Note(3)]])

    assert results == [["note 1"], ["note 2"], ["note 3"]]
    assert sorted(CALLS) == [[1, 3], [2]]


async def test_what_is_alone_is_run_as_it_is(store: SqliteStore) -> None:
    assert await store.gather(add_notes, [Note(1)]) == ["note 1"]
    assert store.gather_sync(add_notes, [Note(2)]) == ["note 2"]
    assert CALLS == [[1], [2]]


async def test_lists_and_other_operations_share_a_commit(store: SqliteStore) -> None:
    with held(store):
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(each)
            for number in range(20)
            for each in (store.gather(add_notes, [Note(number)]), store.run(add, 100 + number))
        ]
        await until(lambda: waiting(store) == 40, "all of them wait")
    results = await asyncio.gather(*tasks)

    assert results[::2] == [[f"note {number}"] for number in range(20)]
    assert results[1::2] == [100 + number for number in range(20)]
    assert len(CALLS) == 1
    assert store.read_sync(count) == 40


async def test_each_of_many_starts_gets_its_own_chain(store: SqliteStore, gather: Callable[..., Any]) -> None:
    starts = [a_start(paused=number % 3 == 0) for number in range(50)]

    results = await gather(creation.start, [[each] for each in starts])

    assert [started.status for (started,) in results] == [
        Status.PAUSED if each.paused else Status.PENDING for each in starts
    ]
    found = {each.id: each for each in await store.read(reads.chains_by_id, [each.id for each in starts])}
    assert [creation.chain_of(each, *result) for each, result in zip(starts, results, strict=True)] == [
        found[each.id] for each in starts
    ]
