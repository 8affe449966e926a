"""Lanes: one at a time, in order, seen to halt and go on (I-26, I-27, I-28, I-30, I-51, reading (e), TQ-7, 30, 31)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg
import pytest

from holdfast import Holdfast, LaneNotFound
from holdfast.database.dialect import LOCK_SPACE
from holdfast.models import Asked
from holdfast.outcomes import Outcome
from holdfast.store import lanes
from holdfast.store.jobs import steering
from tests.conftest import SCHEMA
from tests.store.engine import (
    DONE,
    FAIL,
    PAUSE,
    RETRY,
    admit,
    claim_all,
    claim_one,
    come_due,
    drain,
    facts_of,
    lane_rows,
    run,
    settle,
)
from tests.support.conditions import until
from tests.support.factories import add, events_of, greet, row_of
from tests.support.ways import Way


async def in_lane(way: Way, count: int, key: str = "vm-7", **options: Any) -> list[UUID]:
    """Start jobs in one lane."""
    chains = await way.face.start_many([greet(name=str(n)).options(lane=key, **options) for n in range(count)])
    return [chain.id for chain in chains]


async def claimed(way: Way) -> list[UUID]:
    """Claim all that may run."""
    return [UUID(job.id) for job in await claim_all(way)]


@pytest.mark.source("TQ-3")
async def test_of_a_lane_one_job_runs_at_a_time_and_in_the_order_of_starts(way: Way) -> None:
    ids = await in_lane(way, 4)

    ran = []
    for _ in range(4):
        (job,) = await claim_all(way)
        assert await claim_all(way, "nobody") == []
        ran.append(UUID(job.id))
        await settle(way, (job.token, DONE))

    assert ran == ids


@pytest.mark.source("TQ-3")
async def test_different_lanes_run_beside_each_other(way: Way) -> None:
    one, _ = await in_lane(way, 2, "one")
    other, _ = await in_lane(way, 2, "other")

    assert set(await claimed(way)) == {one, other}


async def test_a_place_in_the_lane_beats_priority(way: Way) -> None:
    first, _ = await in_lane(way, 2)
    await admit(way)
    await in_lane(way, 1, priority=100)

    assert await claimed(way) == [first]


async def test_a_job_that_is_not_due_has_no_place_and_holds_nobody_back(way: Way) -> None:
    await in_lane(way, 1, delay=60)
    (now,) = await in_lane(way, 1)

    assert await claimed(way) == [now]


async def test_a_job_joins_when_it_is_due_behind_those_that_came_before(way: Way) -> None:
    (later,) = await in_lane(way, 1, delay=60)
    first, second = await in_lane(way, 2)
    await admit(way)
    await come_due(way)
    await admit(way)

    ran = [await run(way) for _ in range(3)]

    assert ran == [first, second, later]


async def test_a_blocker_joins_its_lane_before_one_that_was_started_later(way: Way) -> None:
    (first,) = await in_lane(way, 1, delay=60)
    await way.face.start(greet(name="waiting"), blockers=[first])
    await admit(way)
    await come_due(way)
    await in_lane(way, 1)

    assert await claimed(way) == [first]


async def test_a_blocker_that_is_open_again_joins_its_lane_in_the_order_of_starts(way: Way) -> None:
    (first,) = await in_lane(way, 1)
    await way.face.start(greet(name="waiting"), blockers=[first])
    await admit(way)
    await way.face.cancel(first)
    await in_lane(way, 1)
    await way.call(steering.retry, [first], Asked())

    assert await claimed(way) == [first]


async def test_a_job_behind_a_blocker_of_its_own_lane_does_not_hold_it_back(way: Way) -> None:
    (blocker,) = await in_lane(way, 1)
    (waiting,) = await in_lane(way, 1, blockers=[blocker])

    assert [await run(way) for _ in range(2)] == [blocker, waiting]


async def test_a_backoff_holds_the_lane_and_the_job_keeps_its_place(way: Way) -> None:
    first, second = await in_lane(way, 2)
    await run(way, RETRY)

    held, shown = await claimed(way), (await way.face.get_job(second)).state
    await come_due(way)

    assert (held, shown) == ([], "waiting")
    assert [await run(way) for _ in range(2)] == [first, second]


@pytest.mark.source("TQ-7", "TQ-30", "TQ-31")
@pytest.mark.parametrize(("outcome", "why"), [(FAIL, "OSError"), (PAUSE, "look at it")], ids=["fail", "pause"])
async def test_a_failed_or_paused_job_halts_its_lane_and_says_so(way: Way, outcome: Outcome, why: str) -> None:
    first, _ = await in_lane(way, 2)
    await run(way, outcome)

    info = await way.call(lanes.lane_info, "vm-7")

    assert await claimed(way) == []
    assert (info.halted_by, info.halted_because, info.depth, info.is_moving) == (first, why, 2, False)
    assert await facts_of(way, "lane:halted") == [{"lane": "vm-7", "job": str(first), "reason": why}]


@pytest.mark.parametrize("outcome", [FAIL, PAUSE], ids=lambda outcome: str(outcome.kind))
async def test_a_task_that_does_not_halt_its_lane_sets_the_job_aside(way: Way, outcome: Outcome) -> None:
    first, second = await in_lane(way, 2)
    await run(way, outcome, halts_lane=False)

    assert await claimed(way) == [second]
    assert await row_of(way, first, "head", "place") == (0, None)
    assert await facts_of(way, "lane:halted") == []


@pytest.mark.source("TQ-25")
async def test_a_resumed_job_keeps_its_place(way: Way) -> None:
    first, second = await in_lane(way, 2)
    await run(way, PAUSE)

    await way.face.resume(first)

    assert [await run(way) for _ in range(2)] == [first, second]
    assert [fact["job"] for fact in await facts_of(way, "lane:resumed")] == [str(first)]


@pytest.mark.source("TQ-25")
async def test_a_retried_job_keeps_its_place(way: Way) -> None:
    first, second = await in_lane(way, 2)
    await run(way, FAIL)

    await way.face.retry(first)

    assert [await run(way) for _ in range(2)] == [first, second]


async def test_cancelling_the_failed_head_frees_the_lane_in_that_commit(way: Way) -> None:
    first, second = await in_lane(way, 2)
    await run(way, FAIL)

    await way.face.cancel(first, by="ada", why="not worth it")

    assert await row_of(way, second, "head", "gate") == (1, "ready")
    said = {"lane": "vm-7", "job": str(first), "by": "ada", "reason": "not worth it"}
    assert await facts_of(way, "lane:resumed") == [said]


async def test_deleting_the_failed_head_frees_the_lane(way: Way) -> None:
    first, second = await in_lane(way, 2)
    await run(way, FAIL)

    await way.face.delete(first)

    assert await claimed(way) == [second]
    assert [fact["job"] for fact in await facts_of(way, "lane:resumed")] == [str(first)]


@pytest.mark.source("TQ-30")
async def test_skip_sets_the_halting_job_aside_as_it_is(way: Way) -> None:
    first, second = await in_lane(way, 2)
    await run(way, FAIL)

    skipped = await way.call(lanes.skip, "vm-7", Asked("ada"))

    assert skipped == first
    assert await row_of(way, first, "status", "head", "place") == ("failed", 0, None)
    assert await claimed(way) == [second]


async def test_a_skipped_job_that_is_retried_joins_at_the_end(way: Way) -> None:
    first, second = await in_lane(way, 2)
    await run(way, FAIL)
    await way.call(lanes.skip, "vm-7", Asked())

    await way.face.retry(first)

    assert [await run(way) for _ in range(2)] == [second, first]


async def test_skip_leaves_a_lane_that_nobody_halts_alone(way: Way) -> None:
    first, _ = await in_lane(way, 2)
    await claim_one(way)

    assert await way.call(lanes.skip, "vm-7", Asked()) is None
    assert await row_of(way, first, "status", "head") == ("running", 1)


async def test_skip_of_a_lane_that_is_not_there_says_so(way: Way) -> None:
    with pytest.raises(LaneNotFound, match="no lane 'vm-7'"):
        await way.call(lanes.skip, "vm-7", Asked())


async def test_a_job_paused_in_its_place_halts_the_lane_when_its_turn_comes(way: Way) -> None:
    first, second, third = await in_lane(way, 3)
    await admit(way)
    await way.face.pause(second, why="wait for Bob")
    before = await facts_of(way, "lane:halted")

    await run(way, DONE)

    assert (before, await claimed(way)) == ([], [])
    assert await facts_of(way, "lane:halted") == [{"lane": "vm-7", "job": str(second), "reason": "wait for Bob"}]
    await way.face.resume(second)
    assert [await run(way) for _ in range(2)] == [second, third]
    assert first != second


async def test_a_job_paused_in_its_place_and_resumed_before_its_turn_keeps_it(way: Way) -> None:
    first, second, third = await in_lane(way, 3)
    await admit(way)
    await way.face.pause(second)

    await way.face.resume(second)

    assert [await run(way) for _ in range(3)] == [first, second, third]
    assert await facts_of(way, "lane:halted") == []


async def test_a_job_with_blockers_that_is_resumed_in_its_place_keeps_it(way: Way) -> None:
    blocker = await way.face.start(add(a=1, b=2))
    (ahead,) = await in_lane(way, 1)
    (second,) = await in_lane(way, 1, blockers=[blocker])
    await admit(way)
    running = {UUID(job.id): job.token for job in await claim_all(way)}
    await settle(way, (running[blocker.id], DONE))
    await admit(way)
    (third,) = await in_lane(way, 1)
    await admit(way)
    await way.face.pause(second)
    await way.face.resume(second)

    await settle(way, (running[ahead], DONE))

    assert [await run(way) for _ in range(2)] == [second, third]


async def test_a_job_paused_before_it_was_ever_runnable_halts_nothing(way: Way) -> None:
    (later,) = await in_lane(way, 1, delay=60)
    await way.face.pause(later)

    (now,) = await in_lane(way, 1)

    assert await claimed(way) == [now]


async def test_pausing_the_head_halts_the_lane(way: Way) -> None:
    first, _ = await in_lane(way, 2)
    await admit(way)

    await way.face.pause(first, why="stop")

    assert await claimed(way) == []
    assert await facts_of(way, "lane:halted") == [{"lane": "vm-7", "job": str(first), "reason": "stop"}]


# ---- pausing a whole lane


async def test_a_paused_lane_gives_nothing_until_it_is_resumed(way: Way) -> None:
    ids = await in_lane(way, 2)
    await admit(way)

    await way.call(lanes.pause_lane, "vm-7", Asked("ada", "maintenance"))
    held, info = await claimed(way), await way.call(lanes.lane_info, "vm-7")
    await way.call(lanes.resume_lane, "vm-7", Asked())

    assert held == []
    assert (info.paused_by, info.reason, info.depth, info.is_moving) == ("ada", "maintenance", 2, False)
    assert [await run(way) for _ in range(2)] == ids
    assert await facts_of(way, "lane:paused") == [{"by": "ada", "reason": "maintenance", "lane": "vm-7"}]


async def test_a_lane_that_is_paused_before_it_has_jobs_holds_them(way: Way) -> None:
    await way.call(lanes.pause_lane, "vm-7", Asked())
    (first,) = await in_lane(way, 1)

    held = await claimed(way)
    await way.call(lanes.resume_lane, "vm-7", Asked())

    assert (held, await claimed(way)) == ([], [first])


async def test_the_running_job_of_a_paused_lane_finishes_and_the_next_waits(way: Way) -> None:
    first, second = await in_lane(way, 2)
    job = await claim_one(way)
    await way.call(lanes.pause_lane, "vm-7", Asked())

    await settle(way, (job.token, DONE))

    assert (await row_of(way, first, "status"), await claimed(way)) == (("completed",), [])
    await way.call(lanes.resume_lane, "vm-7", Asked())
    assert await claimed(way) == [second]


async def test_a_backoff_that_ends_in_a_paused_lane_waits_for_its_resume(way: Way) -> None:
    (first,) = await in_lane(way, 1)
    await run(way, RETRY)
    await way.call(lanes.pause_lane, "vm-7", Asked())
    await come_due(way)

    held = await claimed(way)
    await way.call(lanes.resume_lane, "vm-7", Asked())

    assert (held, await claimed(way)) == ([], [first])


async def test_resuming_a_lane_that_is_not_paused_changes_nothing(way: Way) -> None:
    assert await way.call(lanes.resume_lane, "vm-7", Asked()) is False
    assert await facts_of(way, "lane:resumed") == []


# ---- rows of lanes


async def test_a_lane_goes_with_its_last_job(way: Way) -> None:
    await in_lane(way, 3)
    await in_lane(way, 1, "other")
    await admit(way)
    there = await lane_rows(way)

    await drain(way)

    assert (there, await lane_rows(way)) == (["other", "vm-7"], [])


async def test_a_lane_that_cannot_go_with_its_last_job_goes_soon_after(way_pg: Way, empty_url: str) -> None:
    """I-51: its lock stands for many lanes, so a stranger who makes or removes another one may have it."""
    way = way_pg
    await in_lane(way, 1)
    (job,) = await claim_all(way)
    with psycopg.connect(empty_url) as stranger:
        stranger.execute(
            "SELECT pg_advisory_xact_lock(%s | (hashtextextended(%s, 7) & 1023))", (LOCK_SPACE, f"{SCHEMA}.vm-7")
        )
        await settle(way, (job.token, DONE))
        assert len(await lane_rows(way)) == 1

    async def has_gone() -> bool:
        await admit(way)
        return await lane_rows(way) == []

    await until(has_gone, "admission removes the lane")


async def test_a_lane_goes_with_its_last_job_however_that_ends(way: Way) -> None:
    for end in (way.face.cancel, way.face.delete):
        (only,) = await in_lane(way, 1)
        await admit(way)
        await end(only)
        await admit(way)

    assert await lane_rows(way) == []


async def test_a_halted_lane_keeps_its_row(way: Way) -> None:
    await in_lane(way, 1)
    await run(way, FAIL)

    assert await lane_rows(way) == ["vm-7"]


async def test_a_paused_lane_keeps_its_row_until_it_is_resumed(way: Way) -> None:
    await in_lane(way, 1)
    job = await claim_one(way)
    await way.call(lanes.pause_lane, "vm-7", Asked())
    await settle(way, (job.token, DONE))
    paused = await lane_rows(way)

    await way.call(lanes.resume_lane, "vm-7", Asked())

    assert (paused, await lane_rows(way)) == (["vm-7"], [])


async def test_an_empty_lane_stands_at_nothing(way: Way) -> None:
    info = await way.call(lanes.lane_info, "nobody's")

    assert (info.depth, info.head, info.halted_by, info.paused_at, info.is_moving) == (0, None, None, None, True)


async def test_the_events_of_a_job_do_not_tell_of_its_lane(way: Way) -> None:
    (first,) = await in_lane(way, 1)
    await run(way, FAIL)

    assert await events_of(way, first) == ["job:enqueued", "job:started", "job:failed"]


async def test_a_handle_says_what_the_operations_say(new_holdfast: Any) -> None:
    hf: Holdfast = new_holdfast("sqlite")
    async with hf:
        await hf.lane("vm-7").pause(by="ada")
        info = hf.sync.lane("vm-7").info()
        await hf.queue("mails").pause(why="quota")

        assert (info.paused_by, await hf.lane("vm-7").resume(), await hf.lane("vm-7").resume()) == ("ada", True, False)
        assert (hf.sync.queue("mails").resume(), await hf.queue("mails").resume()) == (True, False)
