"""The log: one row for each move, in the commit that makes it, and none for what did not happen."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from holdfast import StillReferenced, WrongTask
from holdfast.database.tx import Tx
from holdfast.store.log import events
from holdfast.store.log.events import NewEvent
from tests.support.factories import add, block, counted, greet, make_job, now_ms
from tests.support.ways import Way


async def log(way: Way, columns: str = "name") -> list[tuple[Any, ...]]:
    return await way.rows(f"SELECT {columns} FROM holdfast_event ORDER BY seq")


async def test_an_empty_store_has_an_empty_log(way: Way) -> None:
    assert await log(way) == []


async def test_the_events_of_a_deleted_job_go_with_it_and_one_stands_for_them(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await way.face.start(greet(name="Bob"))

    await way.face.delete(chain)

    assert await log(way) == [("job:enqueued",), ("job:deleted",)]
    assert await log(way, "job") != [(0,), (0,)]


async def test_an_event_has_the_databases_time(way: Way) -> None:
    before = now_ms()

    await way.face.start(greet(name="Ada"))

    ((at,),) = await log(way, "at")
    assert before - 1 <= at <= now_ms() + 1


async def test_an_event_of_a_start_carries_no_input(way: Way) -> None:
    await way.face.start(greet(name="secret"))

    assert "secret" not in repr(await log(way, "*"))


async def test_a_start_that_is_refused_leaves_no_event(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))

    with pytest.raises(WrongTask):
        await way.face.start(add(a=1, b=2), id=chain.id)

    assert await log(way) == [("job:enqueued",)]


async def test_a_start_that_meets_its_twin_leaves_no_event(way: Way) -> None:
    chosen = uuid4()

    await way.face.start_many([greet(name="Ada").options(id=chosen), greet(name="Bob").options(unique="bob")])
    await way.face.start_many([greet(name="Ada").options(id=chosen), greet(name="Bob").options(unique="bob")])

    assert await log(way) == [("job:enqueued",)] * 2


async def test_a_delete_that_is_refused_leaves_no_event(way: Way) -> None:
    blocker, waiting = await make_job(way), await make_job(way, "blocked")
    await block(way, waiting, blocker)

    with pytest.raises(StillReferenced):
        await way.face.delete(blocker)

    assert await log(way) == []


@pytest.mark.source("DF-13")
async def test_an_operation_that_fails_after_its_event_leaves_none(way: Way) -> None:
    async def fail_late(tx: Tx) -> None:
        await events.append(tx, [NewEvent(1, "job:enqueued")])
        raise RuntimeError("too late")

    with pytest.raises(RuntimeError, match="too late"):
        await way.call(fail_late)

    assert await log(way) == []


async def test_events_are_numbered_in_the_order_in_which_they_were_appended(way: Way) -> None:
    facts = [NewEvent(job, "job:enqueued") for job in (3, 1, 2, 1)]

    await way.call(events.append, facts)

    assert await log(way, "job") == [(3,), (1,), (2,), (1,)]


@pytest.mark.parametrize(("size", "statements"), [(0, 0), (1, 1), (100, 1)])
async def test_any_number_of_events_takes_one_statement(way: Way, size: int, statements: int) -> None:
    taken = await way.call(counted, events.append, [NewEvent(job + 1, "job:enqueued") for job in range(size)])

    assert len(taken) == statements
    assert len(await log(way)) == size


async def test_a_number_is_never_given_again_after_its_event_is_gone(way: Way) -> None:
    async def forget(tx: Tx) -> None:
        await tx.execute("DELETE FROM holdfast_event")

    await way.call(events.append, [NewEvent(1, "job:enqueued")])
    ((first,),) = await log(way, "seq")
    await way.call(forget)
    await way.call(events.append, [NewEvent(1, "job:enqueued")])

    ((second,),) = await log(way, "seq")
    assert second > first
