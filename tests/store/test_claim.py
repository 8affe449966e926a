"""Claiming: what may run, in its order, with attempt, token and lease in one statement (I-09, I-10, I-73, DF-19)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.models import Asked
from holdfast.store import admission, lanes
from holdfast.store.jobs import claiming
from holdfast.store.jobs.claiming import Want
from tests.store.engine import RETRY, WANTS, claim, claim_all, claim_one, come_due, expire, settle
from tests.support.factories import TASKS, add, counted, events_of, greet, make_job, row_of, seq_of
from tests.support.ways import Way


@pytest.mark.source("PQ-12", "JC-6", "TQ-8")
async def test_a_claim_sets_attempt_token_worker_and_lease_at_once(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))

    (job,) = await claim(way, nonce="abc")

    assert (job.token.attempt, job.token.nonce, job.used, job.task) == (1, "abc", 1, "greet")
    assert job.input == '{"name":"Ada"}'
    row = await row_of(way, chain.id, "status", "gate", "attempt", "nonce", "worker", "lease_until - started_at")
    assert row == ("running", None, 1, "abc", "worker-1", 30_000)


@pytest.mark.source("PQ-35")
async def test_a_claim_appends_job_started_with_the_worker(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))

    await claim(way)

    seq = await seq_of(way, chain.id)
    rows = await way.rows(
        "SELECT name, status, attempt, facts FROM holdfast_event WHERE job = :seq ORDER BY seq", seq=seq
    )
    assert rows[1:] == [("job:started", "running", 1, '{"worker": "worker-1"}')]


async def test_a_job_is_claimed_once(way: Way) -> None:
    await way.face.start(greet(name="Ada"))

    first, second = await claim(way, nonce="one"), await claim(way, nonce="two")

    assert (len(first), second) == (1, [])


@pytest.mark.source("PQ-62", "DF-19")
async def test_a_batch_is_claimed_in_the_order_in_which_it_was_started(way: Way) -> None:
    chains = await way.face.start_many([greet(name=str(n)) for n in range(50)])

    claimed = [job.id for _ in range(5) for job in await claim(way, most=10)]

    assert claimed == [str(chain.id) for chain in chains]


@pytest.mark.source("JC-105")
async def test_the_larger_priority_goes_first(way: Way) -> None:
    low, middle, high = await way.face.start_many(
        [greet(name="x").options(priority=priority) for priority in (-5, 0, 7)]
    )

    assert [job.id for job in await claim(way)] == [str(chain.id) for chain in (high, middle, low)]


@pytest.mark.source("PQ-62", "JC-105")
async def test_an_old_job_of_low_priority_goes_before_a_new_one_of_high(way: Way) -> None:
    old = await way.face.start(greet(name="old"), priority=-100)
    await way.call(_age, 201 * 60_000)
    await way.face.start(greet(name="new"), priority=100)

    assert (await claim(way, most=1))[0].id == str(old.id)


async def _age(tx: object, milliseconds: int) -> None:
    await tx.execute("UPDATE holdfast_job SET sort_key = sort_key - :ms", ms=milliseconds)  # type: ignore[attr-defined]


@pytest.mark.source("JC-32")
async def test_several_tasks_and_queues_are_merged_by_their_order(way: Way) -> None:
    chains = await way.face.start_many(
        [greet(name="x") if n % 3 else add(a=n, b=n).options(priority=0) for n in range(12)]
    )

    claimed = [job.id for _ in range(4) for job in await claim(way, most=3)]

    assert claimed == [str(chain.id) for chain in chains]


@pytest.mark.source("JC-6")
async def test_a_task_that_the_worker_does_not_know_is_left_to_others(way: Way) -> None:
    """F-48."""
    other = await way.face.start(add(a=1, b=2), queue="default")

    claimed = await claim(way, wants=[Want("default", "greet", 1000)])

    assert claimed == []
    assert await row_of(way, other.id, "status", "gate") == ("pending", "ready")


async def test_what_is_not_due_is_not_claimed_until_it_is(way: Way) -> None:
    await way.face.start(greet(name="later"), delay=60)

    early = await claim_all(way)
    await come_due(way)

    assert early == []
    assert len(await claim_all(way)) == 1


async def test_a_claim_says_when_the_next_arrival_is_due(way: Way) -> None:
    await way.face.start(greet(name="later"), delay=60)

    claims = await way.call(claiming.admit_and_claim, WANTS, 10, "worker-1", "n")

    assert claims.next_ms is not None
    assert 50_000 < claims.next_ms <= 60_000


async def test_a_claim_that_is_full_says_that_there_may_be_more(way: Way) -> None:
    await way.face.start_many([greet(name="x") for _ in range(3)])

    full = await way.call(claiming.admit_and_claim, WANTS, 3, "worker-1", "n")
    empty = await way.call(claiming.admit_and_claim, WANTS, 3, "worker-1", "n")

    assert (full.more, empty.more, empty.next_ms) == (True, False, None)


def floor_at(job: claiming.Claimed) -> claiming.Place:
    """Give the place behind which a claim looks that comes after *job*."""
    return job.sort_key, job.token.seq


async def test_a_claim_that_finds_enough_behind_its_floor_admits_nobody(way: Way) -> None:
    first, second = await way.face.start_many([greet(name="x") for _ in range(2)])
    late = await way.face.start(greet(name="late"), delay=60)
    (job,) = await claim(way, most=1)
    await come_due(way)

    claims = await way.call(claiming.admit_and_claim, WANTS, 1, "worker-1", "n", floor_at(job))

    assert (job.id, [each.id for each in claims.jobs], claims.more) == (str(first.id), [str(second.id)], True)
    assert await row_of(way, late.id, "gate") == ("arrival",)


async def test_a_claim_behind_its_floor_goes_on_with_an_admission_that_has_left_some(way: Way) -> None:
    _, second = await way.face.start_many([greet(name="x") for _ in range(2)])
    late = await way.face.start(greet(name="late"), delay=60)
    (job,) = await claim(way, most=1)
    await come_due(way)

    claims = await way.call(claiming.admit_and_claim, WANTS, 1, "worker-1", "n", floor_at(job), is_crowded=True)

    assert ([each.id for each in claims.jobs], claims.more, claims.is_crowded) == ([str(second.id)], True, False)
    assert await row_of(way, late.id, "gate") == ("ready",)


async def test_a_claim_says_that_an_admission_has_left_some(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MOST_ARRIVALS", 1)
    await way.face.start(greet(name="late"), delay=60)
    await come_due(way)

    assert (await way.call(claiming.admit_and_claim, WANTS, 5, "worker-1", "n")).is_crowded


async def test_a_claim_that_does_not_admits_and_looks_below_it_at_once(way: Way) -> None:
    _, second = await way.face.start_many([greet(name="x") for _ in range(2)])
    late = await way.face.start(greet(name="late"), delay=60)
    (job,) = await claim(way, most=1)
    await come_due(way)
    urgent = await way.face.start(greet(name="urgent"), priority=100)

    claims = await way.call(claiming.admit_and_claim, WANTS, 10, "worker-1", "n", floor_at(job))

    assert [each.id for each in claims.jobs] == [str(each.id) for each in (second, urgent, late)]
    assert {each.token.nonce for each in claims.jobs} == {"n"}
    assert not claims.more


@pytest.mark.parametrize("status", ["blocked", "running", "paused", "completed", "failed", "cancelled"])
async def test_only_pending_jobs_are_claimed(way: Way, status: str) -> None:
    await make_job(way, status)

    assert await claim_all(way) == []


async def test_a_paused_queue_gives_nothing_and_another_goes_on(way: Way) -> None:
    await way.face.start(greet(name="held"))
    other = await way.face.start(add(a=1, b=2))
    await way.call(lanes.pause_queue, "default", None, Asked("ada", "maintenance"))

    held = await claim_all(way)
    await way.call(lanes.resume_queue, "default", Asked())

    assert [job.id for job in held] == [str(other.id)]
    assert len(await claim_all(way)) == 1


async def test_a_queue_that_is_paused_until_a_time_goes_on_then(way: Way) -> None:
    chain = await way.face.start(greet(name="held"))
    now = datetime.now(UTC)
    await way.call(lanes.pause_queue, "default", round((now + timedelta(hours=1)).timestamp() * 1000), Asked())
    held, shown = await claim(way), (await way.face.get_job(chain.id)).state

    await way.call(lanes.pause_queue, "default", round((now - timedelta(hours=1)).timestamp() * 1000), Asked())

    assert (held, shown) == ([], "waiting")
    assert (await way.face.get_job(chain.id)).state == "pending"
    assert len(await claim(way)) == 1


async def test_the_number_of_the_attempt_only_grows_and_the_nonce_differs(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    first = await claim_one(way, "one")
    await settle(way, (first.token, RETRY))
    await come_due(way)

    second = await claim_one(way, "two")

    assert (first.token.attempt, second.token.attempt) == (1, 2)
    assert await row_of(way, chain.id, "attempt", "used", "nonce") == (2, 2, "two")


async def test_an_expired_lease_is_not_claimed_away(way: Way) -> None:
    await way.face.start(greet(name="Ada"))
    job = await claim_one(way)
    await expire(way, job.token)

    assert await claim_all(way) == []


async def test_what_a_lost_answer_claimed_is_read_back_by_its_nonce(way: Way) -> None:
    await way.face.start_many([greet(name="x") for _ in range(3)])
    claimed = await claim(way, most=2, nonce="lost")
    await claim(way, nonce="other")

    found = await way.read(claiming.claimed_by, "worker-1", "lost")

    assert sorted(job.token.seq for job in found) == sorted(job.token.seq for job in claimed)


@pytest.mark.source("PQ-12", "DF-42")
async def test_admission_and_claim_take_the_same_statements_for_1_10_and_100(way: Way) -> None:
    """I-62."""
    counts = {}
    for count in (1, 10, 100):
        calls = [
            (greet(name="x"), add(a=1, b=2), greet(name="y").options(lane=f"lane-{count}-{n}")) for n in range(count)
        ]
        await way.face.start_many([call for each in calls for call in each])
        statements = await way.call(counted, claiming.admit_and_claim, WANTS, 1000, "worker-1", "n")
        counts[count] = len(statements)

    assert len(set(counts.values())) == 1, counts


@pytest.mark.source("JC-32")
async def test_a_row_that_a_stranger_has_locked_is_passed_over(postgres: Way) -> None:
    """I-63."""
    first, second = await postgres.face.start_many([greet(name="x"), greet(name="y")])

    with psycopg.connect(postgres.hf.settings.database) as stranger:
        stranger.execute("SELECT 1 FROM contract.holdfast_job WHERE id = %s FOR UPDATE", [str(first.id)])
        while_locked = await asyncio.wait_for(claim(postgres), 5)

    assert [job.id for job in while_locked] == [str(second.id)]
    assert [job.id for job in await claim(postgres)] == [str(first.id)]


async def test_the_events_of_a_claimed_job_are_in_order(way: Way) -> None:
    chain = await way.face.start(greet(name="x"), delay=1)
    await come_due(way)

    await claim_one(way)

    assert await events_of(way, chain.id) == ["job:enqueued", "job:started"]


@pytest.fixture
async def postgres(new_holdfast: Callable[..., Holdfast]) -> Way:
    """PostgreSQL, for async code."""
    way = Way(new_holdfast("postgres", tasks=[TASKS]), is_async=True)
    await way.hf.open()
    return way
