"""No chain waits for itself: a ring is refused when it is given, and fails when two have closed it at once (DF-6)."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest

from holdfast import BlockerCycle, Chain
from holdfast.database.tx import Row, Tx
from holdfast.models import Continuation
from holdfast.outcomes import Kind, Outcome
from holdfast.store.chains import blockers
from holdfast.store.jobs import settling
from holdfast.store.jobs.claiming import Claimed
from holdfast.store.jobs.settling import Settled, Settlement
from tests.store.engine import DONE, FAIL, admit, claim_all, drain, settle
from tests.support.factories import a_start, counted, events_of, greet
from tests.support.ways import Way


def waiting_for(*chains: UUID) -> Outcome:
    """Complete, and go on with a job that waits for *chains*."""
    return Outcome(Kind.COMPLETE, successor=Continuation(a_start(blockers=chains)))


def next_id(outcome: Outcome) -> UUID:
    assert outcome.successor is not None
    return outcome.successor.start.id


async def running(way: Way, count: int) -> tuple[list[Chain[str]], list[Claimed]]:
    """Start chains and claim their first jobs."""
    chains: list[Chain[str]] = await way.face.start_many([greet(name=str(n)) for n in range(count)])
    jobs = {UUID(job.id): job for job in await claim_all(way)}
    return chains, [jobs[chain.id] for chain in chains]


def refusals(settled: Settled) -> list[type[Exception]]:
    return [type(error) for error in settled.refused.values()]


@pytest.mark.source("DF-6")
async def test_a_job_cannot_go_on_by_waiting_for_its_own_chain(way: Way) -> None:
    (chain,), (job,) = await running(way, 1)

    settled = await settle(way, (job.token, waiting_for(chain.id)))

    assert (refusals(settled), settled.done) == ([BlockerCycle], [])
    assert (await way.face.get_job(chain.id)).status == "running"


async def test_a_later_step_names_its_chain_by_any_of_its_jobs(way: Way) -> None:
    (chain,), (job,) = await running(way, 1)
    step = Outcome(Kind.COMPLETE, successor=Continuation(a_start()))
    await settle(way, (job.token, step))
    (later,) = await claim_all(way, "later")

    settled = await settle(way, (later.token, waiting_for(next_id(step))))

    assert refusals(settled) == [BlockerCycle]
    assert chain.id == UUID(later.chain_id)


async def test_a_job_cannot_wait_for_a_chain_that_waits_for_its_own(way: Way) -> None:
    (a,), (job,) = await running(way, 1)
    await way.face.start(greet(name="b"), blockers=[a])
    b = next(chain for chain in await way.face.list_chains() if chain.id != a.id)

    settled = await settle(way, (job.token, waiting_for(b.id)))

    assert refusals(settled) == [BlockerCycle]
    (error,) = settled.refused.values()
    assert str(a.id) in str(error)


@pytest.mark.source("DF-6")
@pytest.mark.parametrize("are_counted", [True, False])
async def test_a_longer_ring_is_found(way: Way, are_counted: bool) -> None:
    chains, jobs = await running(way, 4)
    for n in range(3):  # each waits for the next one
        await settle(way, (jobs[n].token, waiting_for(chains[n + 1].id)))
    if are_counted:
        await admit(way)

    settled = await settle(way, (jobs[3].token, waiting_for(chains[0].id)))

    assert refusals(settled) == [BlockerCycle]


async def test_a_ring_through_a_paused_job_is_found(way: Way) -> None:
    (a,), (job,) = await running(way, 1)
    b = await way.face.start(greet(name="b"), blockers=[a], paused=True)

    settled = await settle(way, (job.token, waiting_for(b.id)))

    assert refusals(settled) == [BlockerCycle]


async def test_what_has_ended_closes_no_ring(way: Way) -> None:
    (a,), (job,) = await running(way, 1)
    b = await way.face.start(greet(name="b"), blockers=[a])
    await way.face.cancel(b)

    settled = await settle(way, (job.token, waiting_for(b.id)))

    assert settled.refused == {}


async def test_what_had_ended_and_is_retried_closes_no_ring_unseen(way: Way) -> None:
    (a,), (job,) = await running(way, 1)
    b = await way.face.start(greet(name="b"), blockers=[a])
    await admit(way)
    await way.face.cancel(b)
    step = Outcome(Kind.COMPLETE, successor=Continuation(a_start(blockers=(b.id,), on_blocker_failure="wait")))
    await settle(way, (job.token, step))
    await admit(way)

    await way.face.retry(b)
    await admit(way)

    ring = await way.face.get_job(b)
    assert (ring.status, ring.reason) == ("failed", blockers.CYCLE)
    assert (await way.face.get_job(next_id(step))).status == "blocked"
    await way.face.complete(greet, b, output="by hand")
    await drain(way)
    assert (await way.face.get_chain(a.id)).status == "completed"


async def test_two_ways_to_one_chain_are_no_ring(way: Way) -> None:
    (top, left, right, bottom), jobs = await running(way, 4)
    await settle(way, (jobs[1].token, waiting_for(top.id)), (jobs[2].token, waiting_for(top.id)))

    settled = await settle(way, (jobs[3].token, waiting_for(left.id, right.id)))

    assert settled.refused == {}
    await settle(way, (jobs[0].token, DONE))
    await drain(way)
    assert [(await way.face.get_chain(each.id)).status for each in (top, left, right, bottom)] == ["completed"] * 4


async def test_of_a_batch_only_those_are_refused_that_close_a_ring(way: Way) -> None:
    (a, b, c), jobs = await running(way, 3)
    await way.face.start(greet(name="d"), blockers=[a])
    d = next(chain for chain in await way.face.list_chains() if chain.id not in (a.id, b.id, c.id))

    settled = await settle(
        way, (jobs[0].token, waiting_for(d.id)), (jobs[1].token, waiting_for(d.id)), (jobs[2].token, DONE)
    )

    assert (list(settled.refused), settled.done) == ([jobs[0].token], [jobs[1].token, jobs[2].token])
    await settle(way, (jobs[0].token, FAIL))


async def test_two_that_close_a_ring_in_one_batch_are_refused(way: Way) -> None:
    (a, b), jobs = await running(way, 2)

    settled = await settle(way, (jobs[0].token, waiting_for(b.id)), (jobs[1].token, waiting_for(a.id)))

    assert refusals(settled) == [BlockerCycle, BlockerCycle]


async def test_two_that_have_closed_a_ring_unseen_fail_when_they_are_counted(way: Way) -> None:
    (a, b), jobs = await running(way, 2)
    steps = [waiting_for(b.id), waiting_for(a.id)]

    for job, step in zip(jobs, steps, strict=True):
        await way.call(_without_a_look, [Settlement(job.token, step)])
    await admit(way)

    for step in steps:
        ring = await way.face.get_job(next_id(step))
        assert (ring.status, ring.reason) == ("failed", blockers.CYCLE)
        assert await events_of(way, ring.id) == ["job:enqueued", "job:failed"]
    assert [(await way.face.get_chain(each.id)).is_open for each in (a, b)] == [False, False]


async def test_a_chain_that_nobody_waits_for_costs_one_look(way: Way) -> None:
    (a, b), jobs = await running(way, 2)
    await settle(way, (jobs[0].token, DONE))

    statements = await way.call(counted, settling.settle, [Settlement(jobs[1].token, waiting_for(a.id))])

    assert (statements.count(blockers.WAITED_FOR), statements.count(blockers.AHEAD)) == (1, 0)
    assert b.id != a.id


async def test_a_ring_that_was_closed_unseen_fails_whoever_is_counted_last(way: Way) -> None:
    (a, b), jobs = await running(way, 2)
    first, second = waiting_for(b.id), waiting_for(a.id)
    await settle(way, (jobs[0].token, first))
    await admit(way)

    await way.call(_without_a_look, [Settlement(jobs[1].token, second)])
    await admit(way)

    ring = await way.face.get_job(next_id(second))
    assert (ring.status, ring.reason) == ("failed", blockers.CYCLE)
    assert (await way.face.get_job(next_id(first))).status == "failed"  # by its blocker


async def _without_a_look(tx: Tx, settlements: Sequence[Settlement]) -> None:
    """Settle as one does who was given his continuation before the other's was to be seen."""
    await settling.settle(Blind(tx), settlements)


class Blind:
    """A transaction that does not see who waits."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self.database = tx.database

    async def execute(self, sql: str, /, **values: object) -> None:
        """Run *sql* and throw its rows away."""
        await self._tx.execute(sql, **values)

    async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:
        """Run *sql* and return its rows."""
        return [] if sql == blockers.WAITED_FOR else await self._tx.fetch_all(sql, **values)
