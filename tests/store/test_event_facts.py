"""What events say by themselves: whom a job waits for, when it is due, who lost it, why a lane stands still."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.models import Continuation
from holdfast.outcomes import FATAL, USED_UP, Kind, Outcome
from holdfast.store.jobs import reaping
from tests.store.engine import DONE, FAIL, RETRY, admit, claim_one, expire, facts_of, run, settle
from tests.support.factories import a_start, greet
from tests.support.ways import Way

BROKEN = '{"type":"OSError","message":"the disk is full"}'


async def due_at(way: Way, job_id: object) -> str:
    """Give when a job is due, as events write it."""
    at: datetime = (await way.face.get_job(job_id)).run_at
    return at.isoformat("T", "milliseconds").replace("+00:00", "Z")


async def test_a_start_says_when_its_job_is_due(way: Way) -> None:
    now = await way.face.start(greet(name="now"))
    later = await way.face.start(greet(name="later"), delay=3600)
    on_time = await way.face.start(greet(name="on time"), run_at=datetime.now(UTC) + timedelta(days=1))
    await way.face.start(greet(name="too late"), run_at=datetime.now(UTC) - timedelta(days=1))

    said = [await due_at(way, each.id) for each in (later, on_time)]
    assert await facts_of(way, "job:enqueued") == [None, {"run_at": said[0]}, {"run_at": said[1]}, None]
    assert (await way.face.get_job(now.id)).state == "pending"


@pytest.mark.source("JC-71")
async def test_a_start_names_the_chains_that_its_job_waits_for(way: Way) -> None:
    first, second = await way.face.start_many([greet(name="first"), greet(name="second")])

    await way.face.start(greet(name="waits"), blockers=[second, first, second])

    assert (await facts_of(way, "job:enqueued"))[2] == {"blockers": [str(second.id), str(first.id)]}


async def test_a_continuation_says_when_it_is_due_and_what_it_waits_for(way: Way) -> None:
    blocker = await way.face.start(greet(name="blocker"), paused=True)
    await way.face.start(greet(name="first"))
    job = await claim_one(way)
    start = a_start(delay_ms=60_000, blockers=(blocker.id,))

    await settle(way, (job.token, Outcome(Kind.COMPLETE, successor=Continuation(start))))

    said = {"run_at": await due_at(way, start.id), "blockers": [str(blocker.id)]}
    assert (await facts_of(way, "job:enqueued"))[-1] == said


async def test_a_blocked_job_names_the_chains_it_still_waits_for_and_the_one_that_let_it_go(way: Way) -> None:
    first, second, third = await way.face.start_many([greet(name=str(n)).options(paused=n > 0) for n in range(3)])
    await run(way)
    await way.face.start(greet(name="waits"), blockers=[first, second, third])
    await admit(way)

    for each in (second, third):
        await way.face.resume(each)
        await run(way)

    assert await facts_of(way, "job:blocked") == [{"blockers": [str(second.id), str(third.id)]}]
    assert await facts_of(way, "job:unblocked") == [{"blockers": [str(third.id)]}]


async def test_a_job_that_waits_for_thousands_names_a_hundred(way: Way) -> None:
    chains = await way.face.start_many([greet(name=str(n)).options(paused=True) for n in range(101)])
    await way.face.start(greet(name="waits"), blockers=chains)
    await admit(way)

    assert await facts_of(way, "job:blocked") == [{"blockers": [str(each.id) for each in chains[:100]]}]


@pytest.mark.parametrize("is_counted", [True, False])
async def test_a_job_that_failed_by_a_blocker_names_it(way: Way, is_counted: bool) -> None:
    good, bad = await way.face.start_many([greet(name="good"), greet(name="bad")])
    await way.face.pause(good)
    waiting = greet(name="waits").options(blockers=[good, bad])
    if is_counted:
        await way.face.start(waiting)
        await admit(way)
    await run(way, FAIL)
    if not is_counted:
        await way.face.start(waiting)
        await admit(way)

    assert (await facts_of(way, "job:failed"))[1] == {"reason": "blocker failed", "blockers": [str(bad.id)]}


@pytest.mark.source("PQ-38")
async def test_a_retry_says_when_it_comes(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))

    await run(way, RETRY)

    assert await facts_of(way, "job:retrying") == [
        {"error": {"type": "OSError"}, "run_at": await due_at(way, chain.id)}
    ]


async def test_a_rescheduled_job_says_when_it_runs(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))

    await run(way, Outcome(Kind.RESCHEDULE, delay_ms=60_000))
    by_itself = await due_at(way, chain.id)
    await way.face.reschedule(chain, after=3600, why="night")

    by_hand = {"reason": "night", "run_at": await due_at(way, chain.id)}
    assert await facts_of(way, "job:rescheduled") == [{"run_at": by_itself}, by_hand]


@pytest.mark.source("JC-71", "DF-18")
async def test_a_reaped_job_names_the_worker_that_was_gone(way: Way) -> None:
    await way.face.start(greet(name="Ada"))
    await expire(way, (await claim_one(way)).token, lease_ms=1)

    await way.call(reaping.reap, 3_600_000)

    (said,) = await facts_of(way, "job:reaped")
    assert (said["worker"], said["reason"]) == ("worker-1", "lost")


@pytest.mark.parametrize("reason", [USED_UP, FATAL])
async def test_a_lane_that_a_failed_job_halts_says_what_it_raised(way: Way, reason: str) -> None:
    chain = await way.face.start(greet(name="Ada"), lane="vm-7")

    await run(way, replace(FAIL, error=BROKEN, reason=reason))

    said = {"lane": "vm-7", "job": str(chain.id), "reason": "OSError: the disk is full"}
    assert await facts_of(way, "lane:halted") == [said]
    assert (await way.hf.lane("vm-7").info()).halted_because == "OSError: the disk is full"
    assert (await way.face.get_job(chain.id)).reason == reason


async def test_a_lane_that_was_halted_with_a_reason_says_that(way: Way) -> None:
    await way.face.start(greet(name="Ada"), lane="vm-7")
    await run(way, replace(FAIL, error=BROKEN, reason="no such host"))

    assert (await way.hf.lane("vm-7").info()).halted_because == "no such host"


async def test_a_job_that_runs_again_no_longer_shows_why_it_was_stopped_before(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await run(way, replace(RETRY, reason="from before", delay_ms=0))

    job = await claim_one(way)
    running = await way.face.get_job(chain.id)
    await settle(way, (job.token, DONE))

    assert (running.state, running.reason, running.error) == ("running", None, {"type": "OSError"})
