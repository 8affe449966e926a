"""Settling: every end of an attempt, under its token, in batches (I-13, I-15, I-31, I-42, I-62, I-63, DF-7, DF-29)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, Unique
from holdfast.models import Asked
from holdfast.outcomes import Kind, Outcome
from holdfast.store.jobs import settling, steering
from holdfast.store.jobs.claiming import ClaimState, Token, claim_states
from holdfast.store.jobs.settling import Settlement
from tests.store.engine import (
    CANCEL,
    DONE,
    FAIL,
    GIVE_BACK,
    PAUSE,
    RETRY,
    admit,
    claim,
    claim_all,
    claim_one,
    drain,
    expire,
    facts_of,
    run,
    settle,
)
from tests.support.factories import (
    TASKS,
    change_job,
    continue_chain,
    counted,
    events_of,
    greet,
    now_ms,
    row_of,
    whole_store,
)
from tests.support.ways import Way


@pytest.mark.source("JC-7", "TQ-24")
async def test_a_completed_job_has_its_output_no_lease_and_a_closed_chain(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))

    await run(way, DONE)

    job = await way.face.get_job(chain.id)
    assert (job.status, job.output, job.worker, job.lease_until, job.completed_by) == (
        "completed", "Hello", None, None, "worker-1",
    )  # fmt: skip
    assert (await way.face.get_chain(chain.id)).is_open is False
    assert await events_of(way, chain.id) == ["job:enqueued", "job:started", "job:completed", "chain:completed"]


@pytest.mark.source("JC-92", "DF-36")
async def test_a_job_that_is_rescheduled_to_a_past_time_is_due_now(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    before = now_ms()

    await run(way, Outcome(Kind.RESCHEDULE, run_at_ms=1))

    run_at, wake_at = await row_of(way, chain.id, "run_at", "wake_at")
    assert before - 1 <= run_at == wake_at
    assert (await claim_one(way)).id == str(chain.id)


async def test_a_job_is_rescheduled_to_a_time_that_is_to_come(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    at = now_ms() + 3_600_000

    await run(way, Outcome(Kind.RESCHEDULE, run_at_ms=at))

    assert await row_of(way, chain.id, "run_at", "wake_at") == (at, at)


@pytest.mark.source("JC-7")
async def test_the_nonce_stays_on_the_settled_row(way: Way) -> None:
    """I-09."""
    chain = await way.face.start(greet(name="Ada"))

    await run(way, DONE)

    assert await row_of(way, chain.id, "attempt", "nonce") == (1, "nonce-1")


ENDS: list[tuple[Outcome, str, int, str]] = [
    (RETRY, "pending", 1, "job:retrying"),
    (Outcome(Kind.RESCHEDULE, delay_ms=1000), "pending", 0, "job:rescheduled"),
    (GIVE_BACK, "pending", 0, "job:rescheduled"),
    (FAIL, "failed", 1, "job:failed"),
    (PAUSE, "paused", 0, "job:paused"),
    (CANCEL, "cancelled", 1, "job:cancelled"),
    (DONE, "completed", 1, "job:completed"),
]


@pytest.mark.source("PQ-16", "TQ-22")
@pytest.mark.parametrize(("outcome", "status", "used", "event"), ENDS, ids=[str(end[0].kind) for end in ENDS])
async def test_an_attempt_ends_as_it_was_judged(way: Way, outcome: Outcome, status: str, used: int, event: str) -> None:
    chain = await way.face.start(greet(name="Ada"))

    await run(way, outcome)

    assert await row_of(way, chain.id, "status", "used", "attempt", "worker", "lease_until") == (
        status,
        used,
        1,
        None,
        None,
    )
    assert event in (await events_of(way, chain.id))[2:]


@pytest.mark.source("PQ-61")
async def test_a_given_back_job_says_how_often_it_was_interrupted(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))

    await run(way, GIVE_BACK)
    await run(way, GIVE_BACK)

    job = await way.face.get_job(chain.id)
    assert (job.interrupted, job.used, job.attempt) == (2, 0, 2)


@pytest.mark.source("JC-8")
async def test_the_backoff_counts_from_the_settling_by_the_databases_clock(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))

    await run(way, RETRY)

    run_at, wake_at, gate = await row_of(way, chain.id, "run_at", "wake_at", "gate")
    assert (run_at, gate) == (wake_at, "arrival")
    assert 55_000 < run_at - now_ms() <= 61_000
    assert await claim_all(way) == []


@pytest.mark.source("JC-8")
async def test_the_error_of_every_attempt_is_in_the_history(way: Way) -> None:
    await way.face.start(greet(name="Ada"))

    for message in ("one", "two"):
        await run(way, replace(RETRY, error=json.dumps({"type": "OSError", "message": message}), delay_ms=0))

    facts = await facts_of(way, "job:retrying")
    assert [each["error"]["message"] for each in facts] == ["one", "two"]


async def test_a_completion_leaves_no_error_behind(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await run(way, replace(RETRY, delay_ms=0))

    await run(way, DONE)

    assert (await way.face.get_job(chain.id)).error is None


# ---- fencing


@pytest.mark.source("JC-27")
@pytest.mark.parametrize("forged", ["attempt", "nonce", "seq"])
async def test_a_token_that_is_wrong_in_one_part_settles_nothing(way: Way, forged: str) -> None:
    await way.face.start(greet(name="Ada"))
    token = (await claim_one(way)).token
    wrong: dict[str, Any] = {"attempt": 7, "nonce": "other", "seq": token.seq + 1}
    before = await whole_store(way)

    settled = await settle(way, (token._replace(**{forged: wrong[forged]}), DONE))

    assert (settled.done, settled.busy, len(settled.lost)) == ([], [], 1)
    assert await whole_store(way) == before


@pytest.mark.source("JC-27", "DF-7", "DF-29")
async def test_a_zombie_cannot_settle_what_another_run_holds(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    zombie = await claim_one(way, "zombie")
    await settle(way, (zombie.token, replace(GIVE_BACK)))
    await claim_one(way, "heir")

    settled = await settle(way, (zombie.token, DONE))

    assert settled.lost == {zombie.token: ClaimState.TAKEN}
    assert await row_of(way, chain.id, "status", "nonce") == ("running", "heir")


@pytest.mark.source("JC-36")
async def test_an_expired_lease_that_nobody_reaped_still_settles(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)
    await expire(way, job.token)

    settled = await settle(way, (job.token, DONE))

    assert settled.done == [job.token]
    assert await row_of(way, chain.id, "status") == ("completed",)


@pytest.mark.source("JC-39")
async def test_settling_twice_is_told_as_lost_and_changes_nothing(way: Way) -> None:
    await way.face.start(greet(name="Ada"))
    job = await claim_one(way)
    await settle(way, (job.token, DONE))
    before = await whole_store(way)

    again = await settle(way, (job.token, DONE))

    assert again.lost == {job.token: ClaimState.COMPLETED}
    assert await whole_store(way) == before


async def test_a_list_loses_only_its_lost(way: Way) -> None:
    await way.face.start_many([greet(name=str(n)) for n in range(5)])
    jobs = await claim(way)
    gone = Token(10_000, 1, "nonce-1")
    stale = jobs[2].token._replace(nonce="other")
    ends = [(job.token, DONE) for job in jobs if job is not jobs[2]]

    settled = await settle(way, *ends[:2], (gone, DONE), (stale, DONE), *ends[2:])

    assert settled.done == [token for token, _ in ends]
    assert settled.lost == {gone: ClaimState.GONE, stale: ClaimState.TAKEN}
    assert await way.rows("SELECT status, count(*) FROM holdfast_job GROUP BY status ORDER BY status") == [
        ("completed", 4), ("running", 1),
    ]  # fmt: skip


# ---- requests


@pytest.mark.source("PQ-17")
@pytest.mark.parametrize("outcome", [DONE, RETRY, FAIL, PAUSE, GIVE_BACK], ids=lambda outcome: str(outcome.kind))
async def test_after_a_cancel_was_requested_the_run_can_only_become_cancelled(way: Way, outcome: Outcome) -> None:
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)
    await way.face.cancel(chain)

    await settle(way, (job.token, outcome))

    assert await row_of(way, chain.id, "status", "output", "closed_as") == ("cancelled", None, "cancelled")


@pytest.mark.parametrize(
    ("outcome", "status"), [(DONE, "completed"), (RETRY, "paused"), (FAIL, "failed"), (GIVE_BACK, "paused")]
)
async def test_a_requested_pause_comes_before_another_run_but_not_before_an_end(
    way: Way, outcome: Outcome, status: str
) -> None:
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)
    await way.face.pause(chain)

    await settle(way, (job.token, outcome))

    assert await row_of(way, chain.id, "status") == (status,)


async def test_a_request_outlives_a_retry_of_another_kind(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)
    await way.call(steering.cancel, [chain.id], Asked("ada"))

    assert (await row_of(way, chain.id, "cancel_requested_at"))[0] is not None
    assert (await way.read(claim_states, [job.token])) == {job.token: ClaimState.CANCEL}


# ---- keys and chains


async def test_a_key_is_freed_in_the_commit_that_closes_the_chain(way: Way) -> None:
    await way.face.start(greet(name="Ada"), unique="ada")

    await run(way, DONE)

    assert await way.rows("SELECT key FROM holdfast_unique") == []


async def test_a_key_of_scope_any_is_kept_until_the_chain_is_deleted(way: Way) -> None:
    first = await way.face.start(greet(name="Ada"), unique=Unique("ada", scope="any"))
    await run(way, DONE)

    again = await way.face.start(greet(name="Ada"), unique=Unique("ada", scope="any"))
    await way.face.delete(first)

    assert (again.id, again.deduplicated) == (first.id, True)
    assert (await way.face.start(greet(name="Ada"), unique="ada")).deduplicated is False


async def test_the_last_job_of_a_continued_chain_closes_it_and_frees_its_key(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), unique="ada")
    await continue_chain(way, chain.id)

    await run(way, DONE)

    assert (await way.face.get_chain(chain.id)).is_open is False
    assert await row_of(way, chain.id, "closed_as") == ("completed",)
    assert await way.rows("SELECT key FROM holdfast_unique") == []


async def test_a_retry_closes_nothing(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), unique="ada")

    await run(way, RETRY)

    assert await row_of(way, chain.id, "closed_as", "finished_at") == (None, None)
    assert await way.rows("SELECT key FROM holdfast_unique") == [("ada",)]


# ---- batches


@pytest.mark.source("JC-82")
async def test_settling_takes_the_same_statements_for_1_10_and_100_of_every_kind(way: Way) -> None:
    """Q-03."""
    counts = {count: len(await settle_a_mix(way, count)) for count in (1, 10, 100)}

    assert len(set(counts.values())) == 1, counts


async def settle_a_mix(way: Way, count: int) -> list[str]:
    """Settle *count* jobs of every kind: with lanes, keys, dependents, webhooks; completed, failed, paused, retried."""
    told = greet(name="x").options(webhook="https://example.com")
    lanes = [told.options(lane=f"{count}-{n}", unique=f"{count}-{n}") for n in range(count)]
    behind = [greet(name="x").options(lane=f"{count}-{n}") for n in range(count)]
    blockers = await way.face.start_many([*lanes, *[told for _ in range(4 * count)]])
    await admit(way)
    await way.face.start_many(behind)
    await way.face.start_many([greet(name="x").options(blockers=[blocker]) for blocker in blockers[:count]])
    await admit(way)
    jobs = await claim(way, 5 * count)
    kinds = (RETRY, FAIL, PAUSE, CANCEL)
    by_id = {job.id: job.token for job in jobs}
    assert len(jobs) == 5 * count
    ends = [(by_id[str(each.id)], DONE if n < count else kinds[n % 4]) for n, each in enumerate(blockers)]
    statements = await way.call(counted, settling.settle, [Settlement(token, outcome) for token, outcome in ends])
    await drain(way)
    return statements


async def test_settling_nothing_takes_no_statement(way: Way) -> None:
    assert await way.call(counted, settling.settle, []) == []


# ---- rows that somebody has locked


@pytest.fixture
async def postgres(new_holdfast: Callable[..., Holdfast]) -> Way:
    """PostgreSQL, for async code."""
    way = Way(new_holdfast("postgres", tasks=[TASKS]), is_async=True)
    await way.hf.open()
    return way


LOCK = "SELECT 1 FROM contract.holdfast_job WHERE id = %s FOR UPDATE"


async def test_a_locked_row_is_busy_and_the_others_are_settled(postgres: Way) -> None:
    await postgres.face.start_many([greet(name=str(n)) for n in range(50)])
    jobs = await claim(postgres, 50)

    with psycopg.connect(postgres.hf.settings.database) as stranger:
        stranger.execute(LOCK, [jobs[7].id])
        settled = await asyncio.wait_for(settle(postgres, *[(job.token, DONE) for job in jobs]), 5)
    later = await settle(postgres, *[(each.token, each.outcome) for each in settled.busy])

    assert len(settled.done) == 49
    assert [each.token for each in settled.busy] == [jobs[7].token]
    assert (settled.lost, later.done) == ({}, [jobs[7].token])


async def test_a_continued_chain_whose_first_row_is_locked_is_busy(postgres: Way) -> None:
    chain = await postgres.face.start(greet(name="x"))
    await continue_chain(postgres, chain.id)
    job = await claim_one(postgres)

    with psycopg.connect(postgres.hf.settings.database) as stranger:
        stranger.execute(LOCK, [str(chain.id)])
        settled = await asyncio.wait_for(settle(postgres, (job.token, DONE)), 5)

    assert [each.token for each in settled.busy] == [job.token]


async def test_a_busy_row_keeps_its_request(postgres: Way) -> None:
    chain = await postgres.face.start(greet(name="x"))
    job = await claim_one(postgres)
    await change_job(postgres, chain.id, cancel_requested_at=1)

    with psycopg.connect(postgres.hf.settings.database) as stranger:
        stranger.execute(LOCK, [str(chain.id)])
        settled = await asyncio.wait_for(settle(postgres, (job.token, DONE)), 5)

    assert [each.token for each in settled.busy] == [job.token]


async def test_a_job_that_is_gone_is_told_so(way: Way) -> None:
    assert await way.read(claim_states, [Token(1, 1, "n")]) == {Token(1, 1, "n"): ClaimState.GONE}
