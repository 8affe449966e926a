"""Blockers given at a start: the links are written down, and nothing is counted or locked yet."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from holdfast import ChainNotFound, InvalidId, State, Status
from tests.support.factories import continue_chain, events_of, greet, make_job, row_of, seq_of, whole_store
from tests.support.ways import Way


async def links_of(way: Way, job_id: UUID) -> list[tuple[int, str, str | None]]:
    return await way.rows(
        "SELECT position, chain_id, state FROM holdfast_blocker WHERE job = :job ORDER BY position",
        job=await seq_of(way, job_id),
    )


@pytest.mark.source("JC-5")
async def test_a_job_with_blockers_begins_blocked(way: Way) -> None:
    first = await way.face.start(greet(name="first"))

    chain = await way.face.start(greet(name="second"), blockers=[first])

    job = await way.face.get_job(chain)
    assert (job.status, job.state) == (Status.BLOCKED, State.BLOCKED)
    assert await events_of(way, chain.id) == ["job:enqueued"]


async def test_a_blocked_job_arrives_at_once_so_that_admission_counts_its_blockers(way: Way) -> None:
    first = await way.face.start(greet(name="first"))

    chain = await way.face.start(greet(name="second"), blockers=[first], delay=3600)

    gate, wake_at, created_at, run_at, sort_key = await row_of(
        way, chain.id, "gate", "wake_at", "created_at", "run_at", "sort_key"
    )
    assert (gate, wake_at, sort_key) == ("arrival", created_at, None)
    assert run_at == created_at + 3_600_000


async def test_links_are_kept_in_the_order_in_which_blockers_were_given(way: Way) -> None:
    a, b, c = await way.face.start_many([greet(name=name) for name in "abc"])

    chain = await way.face.start(greet(name="last"), blockers=[c, a, b])

    assert await links_of(way, chain.id) == [(0, str(c.id), None), (1, str(a.id), None), (2, str(b.id), None)]


async def test_nothing_is_counted_at_the_start(way: Way) -> None:
    done = await make_job(way, "completed")

    chain = await way.face.start(greet(name="second"), blockers=[done])

    assert await row_of(way, chain.id, "status", "open_blockers") == ("blocked", 0)


async def test_one_chain_may_be_named_twice_as_a_blocker(way: Way) -> None:
    first = await way.face.start(greet(name="first"))

    chain = await way.face.start(greet(name="second"), blockers=[first, first.id])

    assert [chain_id for _, chain_id, _ in await links_of(way, chain.id)] == [str(first.id)] * 2


async def test_a_blocker_named_by_a_later_step_means_its_chain(way: Way) -> None:
    first = await make_job(way)
    later = await continue_chain(way, first)

    chain = await way.face.start(greet(name="second"), blockers=[later])

    assert await links_of(way, chain.id) == [(0, str(first), None)]


async def test_a_blocker_may_be_a_chain_a_job_an_id_or_its_text(way: Way) -> None:
    first = await way.face.start(greet(name="first"))
    job = await way.face.get_job(first)

    chain = await way.face.start(greet(name="second"), blockers=[first, job, first.id, str(first.id)])

    assert [chain_id for _, chain_id, _ in await links_of(way, chain.id)] == [str(first.id)] * 4


async def test_paused_wins_over_blocked_and_keeps_the_links(way: Way) -> None:
    first = await way.face.start(greet(name="first"))

    chain = await way.face.start(greet(name="second"), blockers=[first], paused=True)

    assert (chain.status, await row_of(way, chain.id, "gate")) == (Status.PAUSED, (None,))
    assert await links_of(way, chain.id) == [(0, str(first.id), None)]


@pytest.mark.parametrize("policy", ["fail", "wait", "ignore"])
async def test_what_a_failed_blocker_means_is_kept(way: Way, policy: str) -> None:
    first = await way.face.start(greet(name="first"))

    chain = await way.face.start(greet(name="second"), blockers=[first], on_blocker_failure=policy)

    assert (await way.face.get_job(chain)).on_blocker_failure == policy


async def test_an_unknown_blocker_is_named_and_nothing_is_started(way: Way) -> None:
    known = await way.face.start(greet(name="first"))
    missing = uuid4()
    before = await whole_store(way)

    with pytest.raises(ChainNotFound) as refused:
        await way.face.start(greet(name="second"), blockers=[known, missing])

    assert refused.value.chain_id == missing
    assert await whole_store(way) == before


async def test_a_blocker_that_is_no_id_is_refused(way: Way) -> None:
    call = greet(name="second")

    with pytest.raises(InvalidId):
        await way.face.start(call, blockers=["seven"])


async def test_a_start_that_meets_its_twin_adds_no_links(way: Way) -> None:
    first = await way.face.start(greet(name="first"))
    holder = await way.face.start(greet(name="second"), unique="ada")

    chain = await way.face.start(greet(name="third"), unique="ada", blockers=[first])

    assert chain.id == holder.id
    assert await links_of(way, holder.id) == []
