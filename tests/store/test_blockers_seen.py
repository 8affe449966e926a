"""Seeing blockers: by the job that waited for them, by whoever asks what a job waits for, and who waits for a chain."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast import ChainNotFound, JobNotFound, Status
from holdfast.models import BlockerEnd, Continuation
from holdfast.outcomes import Kind, Outcome
from holdfast.store import reads
from holdfast.store.chains import blockers
from holdfast.store.jobs import claiming
from holdfast.store.reads import Paging
from tests.store.engine import DONE, FAIL, WANTS, admit, claim_all, claim_one, come_due, run, settle
from tests.support.factories import a_start, change_job, counted, greet
from tests.support.ways import Way


def says(text: str) -> Outcome:
    return Outcome(Kind.COMPLETE, output=f'"{text}"')


# ---- the job that waited


async def test_a_job_is_claimed_with_the_ends_of_what_it_waited_for_in_their_order(way: Way) -> None:
    a, b = await way.face.start_many([greet(name="a"), greet(name="b")])
    await way.face.start(greet(name="merge"), blockers=[b, a, b])
    ran = {UUID(job.id): job.token for job in await claim_all(way)}
    await settle(way, (ran[a.id], says("from a")), (ran[b.id], says("from b")))

    job = await claim_one(way)

    assert job.blockers == (
        BlockerEnd(b.id, "greet", Status.COMPLETED, '"from b"'),
        BlockerEnd(a.id, "greet", Status.COMPLETED, '"from a"'),
        BlockerEnd(b.id, "greet", Status.COMPLETED, '"from b"'),
    )


async def test_the_end_of_a_continued_blocker_is_that_of_its_last_job(way: Way) -> None:
    blocker = await way.face.start(greet(name="a"))
    await way.face.start(greet(name="merge"), blockers=[blocker])
    add = Continuation(a_start(task="add", queue="sums", input='{"a":1,"b":2}'))
    await run(way, Outcome(Kind.COMPLETE, successor=add))
    await run(way, Outcome(Kind.COMPLETE, output="3"))

    job = await claim_one(way)

    assert job.blockers == (BlockerEnd(blocker.id, "add", Status.COMPLETED, "3"),)


async def test_a_blocker_that_failed_and_is_ignored_is_seen_as_failed(way: Way) -> None:
    blocker = await way.face.start(greet(name="a"))
    await way.face.start(greet(name="merge"), blockers=[blocker], on_blocker_failure="ignore")
    await run(way, FAIL)

    job = await claim_one(way)

    assert [(each.closed_as, each.output) for each in job.blockers] == [("failed", None)]


async def test_a_blocker_that_was_deleted_is_seen_as_cancelled(way: Way) -> None:
    blocker = await way.face.start(greet(name="a"))
    waiting = await way.face.start(greet(name="merge"), blockers=[blocker], paused=True, on_blocker_failure="ignore")
    await way.face.cancel(waiting)
    await change_job(way, waiting.id, stale_at=1)  # until then nobody may delete what it would need
    await way.face.delete(blocker)
    await way.face.retry(waiting)

    job = await claim_one(way)

    assert job.blockers == (BlockerEnd(blocker.id, "", Status.CANCELLED, None),)


async def test_a_continuation_sees_its_own_blockers_and_not_those_of_its_predecessor(way: Way) -> None:
    a, b = await way.face.start_many([greet(name="a"), greet(name="b")])
    await way.face.start(greet(name="merge"), blockers=[a])
    ran = {UUID(job.id): job.token for job in await claim_all(way)}
    await settle(way, (ran[a.id], says("from a")), (ran[b.id], says("from b")))
    first = await claim_one(way)
    await settle(way, (first.token, Outcome(Kind.COMPLETE, successor=Continuation(a_start(blockers=(b.id,))))))

    second = await claim_one(way, "second")

    assert [[each.chain_id for each in job.blockers] for job in (first, second)] == [[a.id], [b.id]]


async def test_a_claim_whose_answer_was_lost_is_read_back_with_the_blockers(way: Way) -> None:
    blocker = await way.face.start(greet(name="a"))
    await way.face.start(greet(name="merge"), blockers=[blocker])
    await run(way, says("from a"))
    job = await claim_one(way, "lost")

    (found,) = await way.read(claiming.claimed_by, "worker-1", "lost")

    assert (found, [each.output for each in found.blockers]) == (job, ['"from a"'])


async def test_whoever_waited_for_nobody_pays_nothing_for_it(way: Way) -> None:
    await way.face.start_many([greet(name=str(n)) for n in range(3)])

    statements = await way.call(counted, claiming.claim, WANTS, 3, "worker-1", "nonce-1")

    assert blockers.LINKS not in statements


async def test_the_ends_of_all_are_read_by_two_statements(way: Way) -> None:
    blocker = await way.face.start(greet(name="a"))
    await way.face.start_many([greet(name=str(n)).options(blockers=[blocker]) for n in range(20)])
    await run(way, DONE)
    await admit(way)

    statements = await way.call(counted, claiming.claim, WANTS, 50, "worker-1", "nonce-2")

    assert (statements.count(blockers.LINKS), statements.count(reads.CHAINS_BY_ID)) == (1, 1)


# ---- what a job waits for


async def test_the_blockers_of_a_job_are_chains_in_their_order(way: Way) -> None:
    a, b = await way.face.start_many([greet(name="a"), greet(name="b").options(delay=3600)])
    report = await way.face.start(greet(name="merge"), blockers=[b, a])
    await run(way, says("from a"))

    found = await way.read(reads.get_blockers, report.id)

    assert [(each.id, each.is_open, each.output) for each in found] == [(b.id, True, None), (a.id, False, '"from a"')]


async def test_a_job_without_blockers_has_none_and_a_missing_job_is_not_found(way: Way) -> None:
    chain = await way.face.start(greet(name="a"))

    assert await way.read(reads.get_blockers, chain.id) == []
    with pytest.raises(JobNotFound):
        await way.read(reads.get_blockers, uuid4())


async def test_the_blockers_of_a_later_step_are_its_own(way: Way) -> None:
    a = await way.face.start(greet(name="a"), paused=True)
    chain = await way.face.start(greet(name="x"))
    step = Continuation(a_start(blockers=(a.id,)))
    await run(way, Outcome(Kind.COMPLETE, successor=step))

    assert await way.read(reads.get_blockers, chain.id) == []
    assert [each.id for each in await way.read(reads.get_blockers, step.start.id)] == [a.id]


# ---- who waits for a chain


async def waiters(way: Way, chain_id: UUID, **paging: Any) -> list[list[UUID]]:
    """Page through those who wait for a chain."""
    pages, cursor = [], None
    while True:
        page = await way.read(reads.list_blocked_by, chain_id, Paging(cursor=cursor, **paging))
        pages.append([job.id for job in page])
        if (cursor := page.next_cursor) is None:
            return pages


@pytest.mark.parametrize("order", ["newest", "oldest"])
async def test_those_who_wait_for_a_chain_are_listed_by_pages(way: Way, order: Any) -> None:
    a, other = await way.face.start_many([greet(name="a"), greet(name="other")])
    waiting = [(await way.face.start(greet(name="w"), blockers=[a, other, a])).id for _ in range(5)]
    await way.face.start(greet(name="w"), blockers=[other])

    pages = await waiters(way, a.id, limit=2, order=order)

    in_order = waiting if order == "oldest" else waiting[::-1]
    assert pages == [in_order[:2], in_order[2:4], in_order[4:]]


async def test_who_has_waited_is_still_listed_with_the_state_it_is_in(way: Way) -> None:
    a = await way.face.start(greet(name="a"))
    await way.face.start(greet(name="w"), blockers=[a], delay=3600)
    await run(way, DONE)
    await come_due(way)

    (job,) = await way.read(reads.list_blocked_by, a.id, Paging())

    assert (job.status, job.state) == ("pending", "pending")


async def test_a_chain_may_be_named_by_any_of_its_jobs_and_must_be_there(way: Way) -> None:
    a = await way.face.start(greet(name="a"))
    waiting = await way.face.start(greet(name="w"), blockers=[a])
    step = Continuation(a_start())
    await run(way, Outcome(Kind.COMPLETE, successor=step))

    assert await waiters(way, step.start.id) == [[waiting.id]]
    assert await waiters(way, waiting.id) == [[]]
    with pytest.raises(ChainNotFound):
        await waiters(way, uuid4())
