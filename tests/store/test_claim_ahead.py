"""Claimed before there is a slot: which rows are, what they say, and that to have only waited is nobody's fault."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.outcomes import COMPLETED_WITH_NOTHING, Kind, Outcome
from holdfast.store.jobs import claiming, reaping, settling
from holdfast.store.jobs.claiming import LOWEST, Claimed, Want
from holdfast.store.jobs.settling import Settlement
from tests.store.engine import expire
from tests.support.factories import add, change_job, greet, row_of
from tests.support.ways import Way

GREETINGS = [Want("default", "greet", 30_000, ahead_below=9)]
BOTH = [*GREETINGS, Want("sums", "add", 30_000, ahead_below=9)]


async def claim_ahead(way: Way, free: int, ahead: int, wants: Any = GREETINGS, nonce: str = "nonce") -> list[Claimed]:
    claimed: list[Claimed] = await way.call(claiming.claim, wants, free, "worker-1", nonce, LOWEST, ahead)
    return claimed


async def test_the_first_begin_and_the_others_wait(way: Way) -> None:
    chains = await way.face.start_many([greet(name=str(n)) for n in range(6)])

    claimed = await claim_ahead(way, free=2, ahead=3)

    assert [(job.id, job.is_begun) for job in claimed] == [
        (str(chain.id), number < 2) for number, chain in enumerate(chains[:5])
    ]
    rows = [await row_of(way, chain.id, "status", "attempt", "started_at IS NOT NULL") for chain in chains]
    assert [(status, attempt, bool(begun)) for status, attempt, begun in rows] == [
        *[("running", 1, True)] * 2, *[("running", 1, False)] * 3, ("pending", 0, False),
    ]  # fmt: skip


async def test_several_tasks_share_the_slots_in_their_order(way: Way) -> None:
    await way.face.start_many([greet(name="a"), add(a=1, b=2), greet(name="b"), add(a=3, b=4)])

    claimed = await claim_ahead(way, free=3, ahead=5, wants=BOTH)

    begun = [job.task for job in claimed if job.is_begun]
    assert len(claimed) == 4
    assert len(begun) == 3
    if way.database == "postgres":  # SQLite asks for each task by itself, and so the first of a task come first
        assert begun == [job.task for job in claimed[:3]]


@pytest.mark.parametrize(
    "columns",
    [{"used": 9}, {"attempts": 1}, {"interrupted": 1}, {"crashes": 1}],
    ids=["no attempt to spare", "none of its own to spare", "given back", "crashed"],
)
async def test_what_must_not_wait_is_claimed_into_a_slot_or_left(way: Way, columns: dict[str, Any]) -> None:
    chains = await way.face.start_many([greet(name=str(n)) for n in range(4)])
    for chain in chains[:2]:
        await change_job(way, chain.id, **columns)

    claimed = await claim_ahead(way, free=1, ahead=3)

    assert [(job.id, job.is_begun) for job in claimed] == [
        (str(chains[0].id), True), (str(chains[2].id), False), (str(chains[3].id), False),
    ]  # fmt: skip
    assert await row_of(way, chains[1].id, "status") == ("pending",)


async def test_a_task_that_does_not_allow_it_is_never_claimed_ahead(way: Way) -> None:
    await way.face.start_many([greet(name=str(n)) for n in range(4)])

    claimed = await claim_ahead(way, free=1, ahead=3, wants=[Want("default", "greet", 30_000)])

    assert [job.is_begun for job in claimed] == [True]


async def test_a_suspect_is_never_marked_as_begun_by_its_claim(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await change_job(way, chain.id, crashes=2)

    (job,) = await claim_ahead(way, free=1, ahead=3)

    assert job.is_suspect
    assert not job.is_begun


@pytest.mark.parametrize("free", [0, 1], ids=["for later", "into a slot"])
async def test_a_job_claimed_with_others_knows_its_last_attempt_and_shows_no_old_reason(way: Way, free: int) -> None:
    """C12."""
    chain = await way.face.start(greet(name="Ada"))
    await change_job(way, chain.id, used=1, attempt=1, started_at=7_000, reason="from before")

    (job,) = await claim_ahead(way, free, ahead=1)

    assert (job.is_begun, job.last_attempt_at) == (bool(free), 7_000)
    assert await row_of(way, chain.id, "reason") == (None,)


async def test_what_only_waited_when_its_worker_died_is_given_back_and_not_blamed(way: Way) -> None:
    chains = await way.face.start_many([greet(name=str(n)) for n in range(2)])
    claimed = await claim_ahead(way, free=1, ahead=1)
    await expire(way, *(job.token for job in claimed), lease_ms=1)

    await way.call(reaping.reap, 2**53)

    rows = [await row_of(way, chain.id, "status", "used", "crashes", "interrupted") for chain in chains]
    assert rows == [("pending", 1, 1, 0), ("pending", 0, 0, 1)]


async def test_once_it_is_marked_as_begun_it_is(way: Way) -> None:
    chains = await way.face.start_many([greet(name=str(n)) for n in range(3)])
    claimed = await claim_ahead(way, free=0, ahead=3)
    lost = claimed[1].token._replace(nonce="another")

    assert await way.call(claiming.mark_begun, [claimed[0].token, lost]) == {claimed[0].token}

    rows = [await row_of(way, chain.id, "started_at IS NOT NULL") for chain in chains]
    assert [bool(begun) for (begun,) in rows] == [True, False, False]


async def test_what_ends_before_it_began_does_not_say_that_it_did(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    (job,) = await claim_ahead(way, free=0, ahead=1)

    await way.call(settling.settle, [Settlement(job.token, Outcome(Kind.CANCEL), has_begun=False)])

    assert await row_of(way, chain.id, "status", "started_at") == ("cancelled", None)


@pytest.mark.parametrize("is_plain", [True, False])
async def test_an_end_says_when_it_began(way: Way, is_plain: bool) -> None:
    chain = await way.face.start(greet(name="Ada"))
    (job,) = await claim_ahead(way, free=0, ahead=1)

    await way.call(settling.settle, [Settlement(job.token, COMPLETED_WITH_NOTHING, is_plain=is_plain)])

    status, began, ended = await row_of(way, chain.id, "status", "started_at", "finished_at")
    assert status == "completed"
    assert began == ended


async def test_what_is_given_back_unbegun_has_not_begun(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    (job,) = await claim_ahead(way, free=0, ahead=1)

    await way.call(settling.settle, [Settlement(job.token, Outcome(Kind.GIVE_BACK, reason="shutdown"))])

    assert await row_of(way, chain.id, "status", "used", "started_at", "crashes") == ("pending", 0, None, 0)


async def test_what_a_lost_answer_claimed_ahead_is_read_back_as_it_was(way: Way) -> None:
    await way.face.start_many([greet(name=str(n)) for n in range(3)])
    claimed = await claim_ahead(way, free=1, ahead=2)

    assert sorted(await way.read(claiming.claimed_by, "worker-1", "nonce")) == sorted(claimed)
