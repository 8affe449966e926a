"""Admission: arrivals become claimable, once, in bounded steps, past whatever is locked (I-61, I-63, DF-27, DF-28).

On PostgreSQL the interleavings are forced with real connections; SQLite has one writer at a time, and no half-way.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from uuid import UUID

import pytest

from holdfast.database.tx import Tx
from holdfast.store import admission
from holdfast.store.jobs import claiming, settling
from holdfast.store.jobs.settling import Settlement
from tests.store.engine import (
    DONE,
    FAIL,
    PAUSE,
    WANTS,
    admit,
    claim,
    claim_all,
    claim_one,
    come_due,
    drain,
    lane_rows,
    run,
    settle,
)
from tests.store.half import Half
from tests.support.conditions import until
from tests.support.factories import add, events_of, greet, row_of
from tests.support.ways import Way


async def test_what_has_nothing_to_wait_for_is_ready_without_admission(way: Way) -> None:
    chain = await way.face.start(greet(name="x"))

    assert await row_of(way, chain.id, "gate") == ("ready",)
    assert await way.call(admission.admit, "default") == 0


async def test_what_is_due_becomes_ready_once(way: Way) -> None:
    chain = await way.face.start(greet(name="x"), delay=60)
    await come_due(way)

    assert await admit(way) == 1
    assert await row_of(way, chain.id, "gate") == ("ready",)
    assert await admit(way) == 0


async def test_the_order_key_is_fixed_when_a_job_becomes_ready(way: Way) -> None:
    early = await way.face.start(greet(name="late"), delay=60)
    late = await way.face.start(greet(name="now"))
    await way.call(_age, late.id)
    await come_due(way)

    assert [job.id for job in await claim_all(way)] == [str(late.id), str(early.id)]


async def _age(tx: Tx, job_id: UUID) -> None:
    await tx.execute("UPDATE holdfast_job SET sort_key = sort_key - 1000 WHERE id = :id", id=str(job_id))


async def test_a_step_is_bounded(way: Way) -> None:
    await way.face.start_many([greet(name="x").options(delay=60) for _ in range(5)])
    await come_due(way)

    taken = [await way.call(admission.admit, "default", 2) for _ in range(4)]

    assert taken == [2, 2, 1, 0]


async def test_admission_takes_only_its_own_queue(way: Way) -> None:
    other = await way.face.start(add(a=1, b=2), delay=60)
    await come_due(way)

    await admit(way, "default")

    assert await row_of(way, other.id, "gate") == ("arrival",)


async def test_queues_that_nobody_serves_are_named(way: Way) -> None:
    await way.face.start_many(
        [
            greet(name="x").options(delay=60),
            add(a=1, b=2).options(delay=60),
            greet(name="y").options(queue="z", delay=60),
        ]
    )

    assert await way.read(admission.unserved, ["default"]) == ["sums", "z"]


async def test_arrivals_of_one_moment_join_their_lane_in_the_order_of_starts(way: Way) -> None:
    chains = await way.face.start_many([greet(name=str(n)).options(lane="vm-7", delay=60 - n) for n in range(5)])
    await come_due(way)
    await admit(way)

    assert [await run(way) for _ in range(5)] == [chain.id for chain in chains]


async def test_a_stranger_in_another_queue_may_share_the_lane(way: Way) -> None:
    first = await way.face.start(greet(name="x"), lane="vm-7")
    second = await way.face.start(add(a=1, b=2), lane="vm-7")

    assert [job.id for job in await claim_all(way)] == [str(first.id)]
    await way.call(settling.settle, [])
    await settle(way, (claiming.Token(1, 1, "nonce-1"), DONE))
    assert (await claim_one(way)).id == str(second.id)


# ---- locked rows, and two at once


async def claim_in(half: Half, nonce: str, most: int = 10) -> list[UUID]:
    claims = await half.run(claiming.admit_and_claim, WANTS, most, f"worker-{nonce}", nonce)
    return [UUID(job.id) for job in claims.jobs]


async def settlements(way: Way, *chains: Any, outcome: Any = DONE) -> list[Settlement]:
    """Claim all that may run; give the settlements of *chains*."""
    tokens = {UUID(job.id): job.token for job in await claim_all(way)}
    return [Settlement(tokens[chain.id], outcome) for chain in chains]


async def settle_down(way: Way) -> None:
    """Admit until nothing is left to be looked at again."""

    async def is_still() -> bool:
        await admit(way)
        return not await way.rows("SELECT 1 FROM holdfast_job WHERE gate = 'arrival' LIMIT 1")

    await until(is_still, "admission has done all there is to do")


async def test_a_locked_arrival_is_passed_over(way_pg: Way, begin: Any) -> None:
    first, second = await way_pg.face.start_many([greet(name="x").options(lane=lane) for lane in "ab"])
    stranger = await begin()
    await stranger.lock("holdfast_job", "id", str(first.id))

    assert [UUID(job.id) for job in await claim_all(way_pg)] == [second.id]
    await stranger.commit()
    assert [UUID(job.id) for job in await claim_all(way_pg)] == [first.id]


@pytest.mark.source("DF-28")
async def test_one_locked_lane_does_not_hide_the_others(way_pg: Way, begin: Any) -> None:
    chains = await way_pg.face.start_many([greet(name="x").options(lane=lane) for lane in "abc"])
    await admit(way_pg)
    await way_pg.face.start_many([greet(name="y").options(lane=lane) for lane in "abc"])
    stranger = await begin()
    await stranger.lock("holdfast_lane", "key", "b")

    ran = await settlements(way_pg, *chains)
    settled = await way_pg.call(settling.settle, ran)
    following = await claim(way_pg)
    await stranger.commit()
    await settle_down(way_pg)

    assert len(settled.done) == 3
    assert {job.lane for job in following} == {"a", "c"}
    assert [job.lane for job in await claim(way_pg)] == ["b"]


async def test_a_next_job_that_is_locked_is_not_overtaken(way_pg: Way, begin: Any) -> None:
    first, second, third = await way_pg.face.start_many([greet(name="x").options(lane="a") for _ in range(3)])
    ran = await settlements(way_pg, first)
    stranger = await begin()
    await stranger.lock("holdfast_job", "id", str(second.id))

    await way_pg.call(settling.settle, ran)
    while_locked = await claim(way_pg)
    await stranger.commit()
    await settle_down(way_pg)

    assert while_locked == []
    assert [await run(way_pg) for _ in range(2)] == [second.id, third.id]


async def test_a_job_that_was_set_aside_while_its_lane_was_locked_passes_it_on_later(way_pg: Way, begin: Any) -> None:
    first, second = await way_pg.face.start_many([greet(name="x").options(lane="a") for _ in range(2)])
    (ran,) = await settlements(way_pg, first, outcome=PAUSE)
    stranger = await begin()
    await stranger.lock("holdfast_lane", "key", "a")

    await way_pg.call(settling.settle, [ran._replace(halts_lane=False)])
    while_locked = await claim(way_pg)
    await stranger.commit()
    await settle_down(way_pg)

    assert while_locked == []
    assert await row_of(way_pg, first.id, "status", "gate") == ("paused", None)
    assert await run(way_pg) == second.id


async def test_a_skip_whose_next_job_is_locked_lets_it_run_later(way_pg: Way, begin: Any) -> None:
    first, second = await way_pg.face.start_many([greet(name="x").options(lane="a") for _ in range(2)])
    await run(way_pg, PAUSE)
    stranger = await begin()
    await stranger.lock("holdfast_job", "id", str(second.id))

    skipped = await asyncio.wait_for(way_pg.hf.lane("a").skip(), 5)
    await stranger.commit()
    await settle_down(way_pg)

    assert skipped == first.id
    assert await run(way_pg) == second.id


@pytest.mark.source("TQ-9", "DF-27")
async def test_two_claimers_half_way_never_give_one_lane_twice(way_pg: Way, begin: Any) -> None:
    await way_pg.face.start_many([greet(name="x").options(lane="a") for _ in range(4)])
    one, other = await begin(), await begin()

    first = await claim_in(one, "one")
    second = await claim_in(other, "other")
    await one.commit()
    third = await claim_in(other, "other")
    await other.commit()

    assert (len(first), second, third) == (1, [], [])


async def test_two_who_make_one_lane_at_once_wait_for_nobody(way_pg: Way, begin: Any) -> None:
    await way_pg.face.start(greet(name="x"), lane="a")
    one, other = await begin(), await begin()

    first = await claim_in(one, "one")
    await way_pg.face.start(greet(name="y"), lane="a")
    second = await claim_in(other, "other")
    await one.commit()
    await other.commit()
    await settle_down(way_pg)

    assert (len(first), second) == (1, [])
    assert await lane_rows(way_pg) == ["a"]


async def test_who_joins_a_lane_that_is_just_going_is_not_stranded(way_pg: Way, begin: Any) -> None:
    first = await way_pg.face.start(greet(name="x"), lane="a")
    ran = await settlements(way_pg, first)
    finishing, joining = await begin(), await begin()

    await finishing.run(settling.settle, ran)
    second = await way_pg.face.start(greet(name="y"), lane="a")
    during = await claim_in(joining, "joining")
    await joining.commit()
    await finishing.commit()
    await settle_down(way_pg)

    assert during == []
    assert await run(way_pg) == second.id
    assert await lane_rows(way_pg) == []


async def test_crossed_lanes_coming_and_going_do_not_deadlock(way_pg: Way, begin: Any) -> None:
    a, b = await way_pg.face.start_many([greet(name="x").options(lane=lane) for lane in "ab"])
    ran_a, ran_b = await settlements(way_pg, a, b)
    one, other = await begin(), await begin()

    await one.run(settling.settle, [ran_a])
    await other.run(settling.settle, [ran_b])
    await way_pg.face.start_many([greet(name="y").options(lane=lane) for lane in "ab"])
    await claim_in(one, "one")
    await claim_in(other, "other")
    await one.commit()
    await other.commit()
    await settle_down(way_pg)
    await drain(way_pg)

    assert await way_pg.rows("SELECT id FROM holdfast_job WHERE status = 'pending'") == []


@pytest.mark.source("DF-2")
async def test_two_blockers_closing_in_overlapping_transactions_release_the_job_once(way_pg: Way, begin: Any) -> None:
    a, b = await way_pg.face.start_many([greet(name="a"), greet(name="b")])
    report = await way_pg.face.start(greet(name="merge"), blockers=[a, b])
    await admit(way_pg)
    ran_a, ran_b = await settlements(way_pg, a, b)
    one, other = await begin(), await begin()

    await one.run(settling.settle, [ran_a])
    await other.run(settling.settle, [ran_b])
    await one.commit()
    await other.commit()
    await settle_down(way_pg)

    assert (await events_of(way_pg, report.id)).count("job:unblocked") == 1
    assert await run(way_pg) == report.id


@pytest.mark.source("JC-52")
@pytest.mark.parametrize("first_to_commit", ["admission", "close"])
async def test_a_dependent_that_is_counted_while_its_blocker_closes_is_not_stranded(
    way_pg: Way, begin: Any, first_to_commit: str
) -> None:
    a = await way_pg.face.start(greet(name="a"))
    (ran,) = await settlements(way_pg, a)
    report = await way_pg.face.start(greet(name="merge"), blockers=[a])
    counting, closing = await begin(), await begin()
    steps = [(counting, admission.admit, "default"), (closing, settling.settle, [ran])]
    if first_to_commit == "close":
        steps.reverse()

    results = [await half.run(operation, argument) for half, operation, argument in steps]
    for half, *_ in steps:
        await half.commit()
    busy = [each for result in results if isinstance(result, settling.Settled) for each in result.busy]
    await way_pg.call(settling.settle, busy)
    await settle_down(way_pg)

    assert await run(way_pg) == report.id
    assert (await events_of(way_pg, report.id)).count("job:unblocked") == 1


@pytest.mark.source("JC-52")
async def test_a_start_that_commits_after_its_blocker_closed_is_not_stranded(way_pg: Way, begin: Any) -> None:
    a = await way_pg.face.start(greet(name="a"))
    caller = await begin()
    await caller.connection.execute("SELECT 1")
    report = await way_pg.hf.start(greet(name="merge"), blockers=[a], connection=caller.connection)

    await asyncio.wait_for(run(way_pg), 5)
    await admit(way_pg)
    await caller.commit()

    assert await run(way_pg) == report.id


async def test_a_start_in_a_lane_that_commits_late_is_admitted_then(way_pg: Way, begin: Any) -> None:
    first = await way_pg.face.start(greet(name="a"), lane="a")
    caller = await begin()
    await caller.connection.execute("SELECT 1")
    late = await way_pg.hf.start(greet(name="late"), lane="a", connection=caller.connection)
    after = await way_pg.face.start(greet(name="after"), lane="a")

    ran = [await asyncio.wait_for(run(way_pg), 5) for _ in range(2)]
    await caller.commit()

    assert ran == [first.id, after.id]
    assert await run(way_pg) == late.id


async def test_a_dependent_that_somebody_has_locked_is_told_later(way_pg: Way, begin: Any) -> None:
    a, b = await way_pg.face.start_many([greet(name="a"), greet(name="b")])
    waiting = [await way_pg.face.start(greet(name="w"), blockers=[each]) for each in (a, b)]
    await admit(way_pg)
    ran = await settlements(way_pg, a, b)
    stranger = await begin()
    await stranger.lock("holdfast_job", "id", str(waiting[0].id))

    settled = await asyncio.wait_for(way_pg.call(settling.settle, ran), 5)
    told = [UUID(job.id) for job in await claim_all(way_pg)]
    await stranger.commit()
    await settle_down(way_pg)

    assert (len(settled.done), told) == (2, [waiting[1].id])
    assert [UUID(job.id) for job in await claim(way_pg)] == [waiting[0].id]


async def test_a_dependent_to_be_blocked_again_that_somebody_has_locked_is_put_back_when_the_blocker_completes(
    way_pg: Way, begin: Any
) -> None:
    a = await way_pg.face.start(greet(name="a"))
    waiting = [await way_pg.face.start(greet(name="w"), blockers=[a]) for _ in range(2)]
    await admit(way_pg)
    await run(way_pg, FAIL)
    stranger = await begin()
    await stranger.lock("holdfast_job", "id", str(waiting[0].id))

    await asyncio.wait_for(way_pg.face.retry(a), 5)
    during = [await row_of(way_pg, each.id, "status") for each in waiting]
    await stranger.commit()
    await settle_down(way_pg)

    assert during == [("failed",), ("blocked",)]
    assert await run(way_pg) == a.id
    await settle_down(way_pg)
    assert [await row_of(way_pg, each.id, "status") for each in waiting] == [("pending",), ("pending",)]


@pytest.mark.source("DF-27")
async def test_eight_racing_claimers_on_four_lanes_never_overlap(way_pg: Way) -> None:
    await way_pg.face.start_many([greet(name=str(n)).options(lane=f"lane-{n % 4}") for n in range(80)])
    running: set[str] = set()
    ran: list[str] = []

    async def claimer(number: int) -> None:
        while len(ran) < 80:
            for job in await claim(way_pg, 2, f"claimer-{number}"):
                assert job.lane is not None
                assert job.lane not in running, f"two at once in {job.lane}"
                running.add(job.lane)
                await asyncio.sleep(0)
                running.discard(job.lane)  # before the commit that lets the next one run
                ran.append(job.id)
                settled = await settle(way_pg, (job.token, DONE))
                assert settled.lost == {}
                while settled.busy:
                    settled = await way_pg.call(settling.settle, settled.busy)

    async with asyncio.timeout(60):
        await asyncio.gather(*(claimer(number) for number in range(8)))

    assert Counter(Counter(ran).values()) == {1: 80}
    assert await lane_rows(way_pg) == []
