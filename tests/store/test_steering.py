"""Steering: what people do to jobs, on both faces, one or a list, all or nothing (I-05, I-08, I-31, I-35, I-76)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from holdfast import (
    CancelAnswer,
    Holdfast,
    InvalidId,
    InvalidInput,
    JobNotFound,
    PauseAnswer,
    StatusConflict,
    TransactionRequired,
    Unique,
    UniqueConflict,
)
from holdfast.database.tx import Tx
from holdfast.models import Asked
from holdfast.outcomes import Outcome
from holdfast.store.jobs import steering
from tests.store.engine import (
    CANCEL,
    DONE,
    FAIL,
    PAUSE,
    RETRY,
    admit,
    claim_all,
    claim_one,
    come_due,
    facts_of,
    run,
    settle,
)
from tests.support.conditions import until
from tests.support.factories import (
    TASKS,
    continue_chain,
    counted,
    events_of,
    greet,
    make_job,
    make_phase,
    now_ms,
    row_of,
    seq_of,
    whole_store,
)
from tests.support.ways import Way

# ---- cancel


@pytest.mark.source("TQ-27", "DF-33")
@pytest.mark.parametrize("status", ["blocked", "pending", "paused", "failed"])
async def test_what_does_not_run_is_cancelled_at_once(way: Way, status: str) -> None:
    job_id = await make_job(way, status)

    answer = await way.face.cancel(job_id, why="no more")

    job = await way.face.get_job(job_id)
    assert (answer, job.status, job.reason) == (CancelAnswer.CANCELLED, "cancelled", "no more")
    assert await row_of(way, job_id, "closed_as", "gate") == ("cancelled", None)
    assert job.finished_at is not None


async def test_what_runs_is_asked_to_stop(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)

    answer = await way.face.cancel(chain)

    shown = await way.face.get_job(chain.id)
    assert (answer, shown.status, shown.state) == (CancelAnswer.REQUESTED, "running", "cancelling")
    await settle(way, (job.token, DONE))
    assert (await way.face.get_job(chain.id)).status == "cancelled"


@pytest.mark.parametrize("outcome", [DONE, FAIL, RETRY, CANCEL])
async def test_why_a_running_job_was_cancelled_stands_on_it_when_it_is(way: Way, outcome: Outcome) -> None:
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)

    await way.face.cancel(chain, why="no more")
    asked = await way.face.get_job(chain.id)
    await settle(way, (job.token, outcome))

    ended = await way.face.get_job(chain.id)
    assert (asked.state, asked.reason) == ("cancelling", "no more")
    assert (ended.status, ended.reason) == ("cancelled", "no more")
    assert (await facts_of(way, "job:cancelled"))[0]["reason"] == "no more"


@pytest.mark.parametrize("outcome", [DONE, FAIL, RETRY, CANCEL])
async def test_a_cancel_without_a_reason_has_none_however_the_handler_ends(way: Way, outcome: Outcome) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await run(way, replace(RETRY, reason="from before", delay_ms=0))
    job = await claim_one(way)

    await way.face.cancel(chain)
    await settle(way, (job.token, outcome))

    assert (await way.face.get_job(chain.id)).reason is None


async def test_a_pause_that_comes_after_a_cancel_does_not_change_why(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)

    await way.face.cancel(chain, why="no more")
    await way.face.pause(chain, why="wait")
    await settle(way, (job.token, CANCEL))

    assert (await way.face.get_job(chain.id)).reason == "no more"


@pytest.mark.source("TQ-28", "DF-33")
@pytest.mark.parametrize("status", ["completed", "cancelled"])
async def test_what_has_ended_is_left_as_it_is(way: Way, status: str) -> None:
    job_id = await make_job(way, status)
    before = await whole_store(way)

    assert await way.face.cancel(job_id) is CancelAnswer.ALREADY_TERMINAL
    assert await whole_store(way) == before


async def test_who_asks_again_changes_nothing(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await claim_one(way)
    await way.face.cancel(chain)
    before = await whole_store(way)

    assert await way.face.cancel(chain) is CancelAnswer.REQUESTED
    assert await whole_store(way) == before


async def test_unfinished_phases_are_cancelled_with_the_job(way: Way) -> None:
    job_id = await make_job(way, "failed")
    await make_phase(way, job_id, "done")
    await way.call(_unfinished_phase, await seq_of(way, job_id))

    await way.face.cancel(job_id)

    assert await way.rows("SELECT status FROM holdfast_phase ORDER BY position") == [("completed",), ("cancelled",)]


async def _unfinished_phase(tx: Any, seq: int) -> None:
    sql = "INSERT INTO holdfast_phase (job, position, name, status) VALUES (:seq, 1, 'next', 'running')"
    await tx.execute(sql, seq=seq)


async def test_a_cancel_frees_the_key(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), unique="ada")

    await way.face.cancel(chain)

    assert (await way.face.start(greet(name="Ada"), unique="ada")).deduplicated is False


async def test_a_task_may_have_its_running_jobs_paused_instead(way: Way) -> None:
    await way.call(_policy, "greet", '{"cancel_running":"pause"}')
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)

    answer = await way.face.cancel(chain)
    await settle(way, (job.token, RETRY))

    assert (answer, (await way.face.get_job(chain.id)).status) == (CancelAnswer.REQUESTED, "paused")
    assert "job:pausing" in await events_of(way, chain.id)


async def _policy(tx: Any, name: str, policy: str) -> None:
    await tx.execute("UPDATE holdfast_task SET policy = :policy WHERE name = :name", name=name, policy=policy)


# ---- pause and resume


@pytest.mark.parametrize("status", ["pending", "blocked"])
async def test_what_waits_is_paused_at_once_and_goes_on_when_resumed(way: Way, status: str) -> None:
    job_id = await make_job(way, status)

    answer = await way.face.pause(job_id, why="look")
    paused = await way.face.get_job(job_id)
    resumed = await way.face.resume(job_id)

    assert (answer, paused.status, paused.reason) == (PauseAnswer.PAUSED, "paused", "look")
    assert (resumed.status, resumed.reason) == ("pending", None)


async def test_what_runs_is_asked_to_pause(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)

    answer = await way.face.pause(chain)
    state = (await way.face.get_job(chain.id)).state
    await settle(way, (job.token, PAUSE))

    assert (answer, state, (await way.face.get_job(chain.id)).status) == (PauseAnswer.REQUESTED, "pausing", "paused")


@pytest.mark.source("TQ-19")
@pytest.mark.parametrize("outcome", [RETRY, PAUSE])
async def test_why_a_running_job_was_paused_stands_on_it_when_it_is(way: Way, outcome: Outcome) -> None:
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)

    await way.face.pause(chain, why="lunch")
    await settle(way, (job.token, outcome))

    paused = await way.face.get_job(chain.id)
    assert (paused.status, paused.reason) == ("paused", "lunch")


async def test_a_paused_job_is_not_claimed(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await way.face.pause(chain)

    assert await claim_all(way) == []
    await way.face.resume(chain)
    assert (await claim_one(way)).id == str(chain.id)


async def test_a_resumed_job_waits_for_its_time(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), delay=60)
    await way.face.pause(chain)

    job = await way.face.resume(chain)

    assert job.state == "scheduled"
    assert await claim_all(way) == []


@pytest.mark.source("TQ-8")
async def test_resume_keeps_the_used_attempts_and_clears_request_and_error(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await run(way, RETRY)
    await come_due(way)
    job = await claim_one(way)
    await way.face.pause(chain)
    await settle(way, (job.token, PAUSE))

    resumed = await way.face.resume(chain)

    assert (resumed.used, resumed.attempt, resumed.error, resumed.reason) == (1, 2, None, None)
    assert await row_of(way, chain.id, "pause_requested_at", "cancel_requested_at") == (None, None)


# ---- retry


@pytest.mark.source("PQ-57")
@pytest.mark.parametrize("status", ["failed", "cancelled"])
async def test_retry_gives_a_new_budget_and_opens_the_chain_again(way: Way, status: str) -> None:
    job_id = await make_job(
        way, status, used=5, crashes=2, attempt=7, error='{"type":"OSError"}', reason="x", stale_at=1
    )

    job = await way.face.retry(job_id)

    assert (job.status, job.used, job.crashes, job.attempt) == ("pending", 0, 0, 7)
    assert (job.error, job.reason, job.finished_at, job.stale_at) == (None, None, None, None)
    assert (await way.face.get_chain(job_id)).is_open
    assert (await claim_one(way)).token.attempt == 8


async def test_retry_takes_the_key_anew(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), unique="ada")
    await run(way, FAIL)

    await way.face.retry(chain)

    assert (await way.face.start(greet(name="Ada"), unique="ada")).id == chain.id


async def test_retry_meets_a_twin_and_names_it(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), unique="ada")
    await run(way, FAIL)
    twin = await way.face.start(greet(name="Bob"), unique="ada")
    before = await whole_store(way)

    with pytest.raises(UniqueConflict, match=str(twin.id)) as caught:
        await way.face.retry(chain)

    assert (caught.value.twin, caught.value.key) == (twin.id, "ada")
    assert await whole_store(way) == before


async def test_retry_keeps_a_key_that_outlived_the_chains_end(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), unique=Unique("ada", scope="any"))
    await run(way, FAIL)

    await way.face.retry(chain)
    await run(way, DONE)

    assert await way.rows("SELECT key, scope FROM holdfast_unique") == [("ada", "any")]


async def test_retrying_two_chains_that_want_one_key_does_nothing(way: Way) -> None:
    first = await way.face.start(greet(name="Ada"), unique="ada")
    await run(way, FAIL)
    second = await way.face.start(greet(name="Ada"), unique="ada")
    await run(way, FAIL)
    before = await whole_store(way)

    with pytest.raises(UniqueConflict):
        await way.face.retry_many([first, second])

    assert await whole_store(way) == before


# ---- reschedule and trigger


async def test_reschedule_moves_a_job_to_a_time(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)

    job = await way.face.reschedule(chain, at=at)

    assert (job.run_at, job.state) == (at, "scheduled")
    assert await claim_all(way) == []


@pytest.mark.parametrize("after", [60, 60.0, timedelta(minutes=1)])
async def test_reschedule_moves_a_job_by_seconds(way: Way, after: Any) -> None:
    chain = await way.face.start(greet(name="Ada"))

    await way.face.reschedule(chain, after=after)

    (run_at,) = await row_of(way, chain.id, "run_at")
    assert 55_000 < run_at - now_ms() <= 61_000


async def test_a_time_that_is_past_means_now(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), delay=60)

    await way.face.reschedule(chain, at=datetime(2020, 1, 1, tzinfo=UTC))

    assert (await claim_one(way)).id == str(chain.id)


@pytest.mark.source("JC-61")
async def test_trigger_ends_a_delay_and_a_backoff(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), delay=60)

    await way.face.trigger(chain)
    await run(way, RETRY)
    await way.face.trigger(chain)

    assert (await claim_one(way)).token.attempt == 2
    assert (await events_of(way, chain.id)).count("job:rescheduled") == 2


@pytest.mark.parametrize("when", [{}, {"at": datetime(2030, 1, 1, tzinfo=UTC), "after": 3}])
async def test_reschedule_takes_one_time(way: Way, when: dict[str, Any]) -> None:
    chain = await way.face.start(greet(name="Ada"))

    with pytest.raises(InvalidInput, match="only one of them"):
        await way.face.reschedule(chain, **when)


async def test_reschedule_takes_an_aware_time(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))

    with pytest.raises(InvalidInput, match="timezone-aware datetime"):
        await way.face.reschedule(chain, at=datetime(2030, 1, 1))  # noqa: DTZ001 - that is the point


# ---- start_again


@pytest.mark.source("PQ-64")
async def test_start_again_starts_a_new_chain_like_the_old_one(way: Way) -> None:
    old = await way.face.start(greet(name="Ada"), lane="vm-7", priority=5, tags=["a"], attempts=3)
    await run(way, DONE)

    new = await way.face.start_again(old, by="ada", why="once more")

    job = await way.face.get_job(new.id)
    assert new.id != old.id
    assert (job.task, job.input.name, job.lane, job.priority, job.tags) == ("greet", "Ada", "vm-7", 5, ("a",))
    assert job.attempts == 3
    assert (await way.face.get_job(old.id)).status == "completed"
    assert (await facts_of(way, "job:enqueued"))[1] == {"again": str(old.id), "by": "ada", "reason": "once more"}


async def test_start_again_of_a_later_job_begins_with_the_chains_first(way: Way) -> None:
    old = await way.face.start(greet(name="Ada"))
    step = await continue_chain(way, old.id, "completed", input='{"name":"Bob"}')

    new = await way.face.start_again(step)

    assert (await way.face.get_job(new.id)).input.name == "Ada"


async def test_start_again_gives_the_chain_that_holds_the_key(way: Way) -> None:
    old = await way.face.start(greet(name="Ada"), unique="ada")
    held = await way.face.start_again(old)
    await run(way, DONE)

    free = await way.face.start_again(old)

    assert (held.id, held.deduplicated) == (old.id, True)
    assert (free.id != old.id, free.deduplicated) == (True, False)


@pytest.mark.parametrize("within", [None, 3600])
async def test_start_again_takes_over_a_key_that_outlived_the_chains_end(way: Way, within: float | None) -> None:
    old = await way.face.start(greet(name="Ada"), unique=Unique("ada", scope="any", within=within))
    await run(way, DONE)

    new = await way.face.start_again(old)
    met = await way.face.start(greet(name="Bob"), unique="ada")

    assert (new.id != old.id, new.deduplicated) == (True, False)
    assert (met.id, met.deduplicated) == (new.id, True)
    held = await way.rows("SELECT scope, until IS NULL FROM holdfast_unique WHERE until IS NULL OR until > $now")
    assert held == [("any", within is None)]


# ---- names, lists, refusals


VERBS = ["cancel", "pause", "resume", "retry", "trigger", "start_again"]
REFUSED = {
    "pause": ["paused", "completed", "failed", "cancelled"],
    "resume": ["blocked", "pending", "running", "completed", "failed", "cancelled"],
    "retry": ["blocked", "pending", "running", "paused", "completed"],
    "trigger": ["blocked", "running", "paused", "completed", "failed", "cancelled"],
}


@pytest.mark.source("PQ-57")
@pytest.mark.parametrize(("verb", "status"), [(verb, status) for verb, found in REFUSED.items() for status in found])
async def test_an_unlawful_verb_says_what_is_so_and_changes_nothing(way: Way, verb: str, status: str) -> None:
    job_id = await make_job(way, status)
    before = await whole_store(way)

    with pytest.raises(StatusConflict, match=f"job {job_id} is {status}; only .* jobs can") as caught:
        await getattr(way.face, verb)(job_id)

    assert (caught.value.job_id, caught.value.status) == (job_id, status)
    assert await whole_store(way) == before


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_refuses_an_id_that_is_not_there(way: Way, verb: str) -> None:
    with pytest.raises(JobNotFound):
        await getattr(way.face, verb)(uuid4())


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_refuses_what_is_no_id(way: Way, verb: str) -> None:
    with pytest.raises(InvalidId):
        await getattr(way.face, verb)("vm-7")


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_of_nothing_answers_with_nothing(way: Way, verb: str) -> None:
    assert await getattr(way.face, f"{verb}_many")([]) == []


async def test_a_job_a_chain_an_id_and_its_text_name_the_same(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    names = [chain, await way.face.get_job(chain.id), chain.id, str(chain.id)]

    for name in names:
        await way.face.pause(name)
        await way.face.resume(name)

    assert (await events_of(way, chain.id)).count("job:paused") == 4


async def test_a_page_of_failed_jobs_can_be_retried_as_it_is(way: Way) -> None:
    ids = [await make_job(way, "failed") for _ in range(3)]

    page = await way.face.list_jobs(status="failed", order="oldest")
    retried = await way.face.retry_many(page)

    assert [page[0].id, page[-1].id] == [ids[0], ids[2]]
    assert [each.id for each in page[1:]] == ids[1:]
    assert [(each.id, each.status) for each in retried] == [(each, "pending") for each in ids]


async def test_a_list_is_answered_in_its_order(way: Way) -> None:
    ids = [await make_job(way, status) for status in ("completed", "running", "pending", "cancelled", "failed")]

    answers = await way.face.cancel_many(ids)

    assert answers == ["already terminal", "requested", "cancelled", "already terminal", "cancelled"]


@pytest.mark.parametrize(
    ("verb", "options", "before", "after"),
    [
        ("resume_many", {}, "paused", "pending"),
        ("retry_many", {}, "failed", "pending"),
        ("trigger_many", {}, "pending", "pending"),
        ("reschedule_many", {"after": 60}, "pending", "scheduled"),
    ],
)
async def test_jobs_of_a_list_are_given_in_its_order(
    way: Way, verb: str, options: dict[str, Any], before: str, after: str
) -> None:
    ids = [await make_job(way, before) for _ in range(3)][::-1]

    jobs = await getattr(way.face, verb)(ids, by="ada", **options)

    assert [(job.id, job.state) for job in jobs] == [(each, after) for each in ids]


async def test_chains_of_a_list_are_started_again_in_its_order(way: Way) -> None:
    chains = [await way.face.start(greet(name=name)) for name in ("Ada", "Bob", "Eve")]

    again = await way.face.start_again_many((chains[2], str(chains[0].id)))

    assert [(await way.face.get_job(each)).input.name for each in again] == ["Eve", "Ada"]
    assert not {each.id for each in again} & {each.id for each in chains}


async def test_a_job_that_is_named_twice_is_steered_once(way: Way) -> None:
    job_id = await make_job(way, "pending")

    assert await way.face.cancel_many([job_id, str(job_id)]) == ["cancelled", "cancelled"]
    assert await events_of(way, job_id) == ["job:cancelled"]


@pytest.mark.source("JC-61")
@pytest.mark.parametrize(("verb", "good", "bad"), [("pause", "pending", "failed"), ("retry", "failed", "running")])
async def test_a_list_is_all_or_nothing(way: Way, verb: str, good: str, bad: str) -> None:
    ids = [await make_job(way, status) for status in (good, bad, good)]
    before = await whole_store(way)

    with pytest.raises(StatusConflict):
        await getattr(way.face, f"{verb}_many")(ids)

    assert await whole_store(way) == before


async def test_a_list_with_an_unknown_id_is_refused_whole(way: Way) -> None:
    job_id = await make_job(way, "pending")
    before = await whole_store(way)

    with pytest.raises(JobNotFound):
        await way.face.cancel_many([job_id, uuid4()])

    assert await whole_store(way) == before


async def test_the_id_of_a_job_that_has_continued_means_the_chains_current_job(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    middle = await continue_chain(way, chain.id)
    last = await continue_chain(way, chain.id)

    paused = await way.face.pause_many([chain.id, middle, last])
    job = await way.face.resume(middle)
    await way.face.cancel(chain)

    assert paused == [PauseAnswer.PAUSED] * 3
    assert job.id == last
    assert (await way.face.get_job(last)).status == "cancelled"
    assert (await way.face.get_job(middle)).status == "completed"
    assert (await way.face.get_chain(chain.id)).is_open is False


async def test_retrying_the_last_job_opens_a_continued_chain_again(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), unique="ada")
    last = await continue_chain(way, chain.id)
    await run(way, FAIL)

    await way.face.retry(chain)

    assert (await way.face.get_chain(chain.id)).is_open
    assert (await way.face.start(greet(name="Ada"), unique="ada")).id == chain.id
    assert (await claim_one(way)).id == str(last)


async def test_who_and_why_stand_in_the_history(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))

    await way.face.pause(chain, by="ada", why="quota")
    await way.face.resume(chain, by="bob")
    await way.face.reschedule(chain, after=60, why="night")
    await way.face.cancel(chain)

    assert await facts_of(way, "job:paused") == [{"by": "ada", "reason": "quota"}]
    assert await facts_of(way, "job:resumed") == [{"by": "bob"}]
    assert [each["reason"] for each in await facts_of(way, "job:rescheduled")] == ["night"]
    assert await facts_of(way, "job:cancelled") == [None]


async def test_words_that_no_database_keeps_are_made_visible(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))

    await way.face.pause(chain, by="a\0da", why="\ud800" + "x" * 499)

    job = await way.face.get_job(chain.id)
    assert job.reason is not None
    assert (job.reason[:7], len(job.reason)) == ("\\ud800x", 505)


@pytest.mark.parametrize("verb", ["cancel", "pause", "retry"])
async def test_a_verb_takes_the_same_statements_for_1_10_and_100(way: Way, verb: str) -> None:
    counts = {}
    for count in (1, 10, 100):
        ids = [await make_job(way, "failed" if verb == "retry" else "pending") for _ in range(count)]
        statements = await way.call(counted, getattr(steering, verb), ids, Asked())
        counts[count] = len(statements)

    assert len(set(counts.values())) == 1, counts


# ---- in a caller's transaction


@pytest.fixture
async def postgres(new_holdfast: Callable[..., Holdfast]) -> Way:
    """PostgreSQL, for async code."""
    way = Way(new_holdfast("postgres", tasks=[TASKS]), is_async=True)
    await way.hf.open()
    return way


async def test_a_callers_rollback_undoes_a_verb(new_holdfast: Callable[..., Holdfast]) -> None:
    face = new_holdfast("sqlite", tasks=[TASKS]).sync
    chain = face.start(greet(name="Ada"))

    connection = sqlite3.connect(face.store.path, isolation_level=None)  # type: ignore[attr-defined]
    connection.execute("BEGIN IMMEDIATE")
    face.cancel(chain, connection=connection)
    connection.rollback()
    connection.close()

    assert face.get_job(chain.id).status == "pending"


async def test_a_callers_open_transaction_leaves_lane_and_dependents_to_admission(postgres: Way) -> None:
    head, _ = await postgres.face.start_many([greet(name="x").options(lane="vm-7") for _ in range(2)])
    waiting = await postgres.face.start(greet(name="y"), blockers=[head])
    await admit(postgres)

    async with await psycopg.AsyncConnection.connect(postgres.hf.settings.database) as caller:
        await caller.execute("SELECT 1")
        answer = await postgres.hf.cancel(head, connection=caller)
        with psycopg.connect(postgres.hf.settings.database) as other:
            free = other.execute(
                "SELECT (SELECT count(*) FROM (SELECT 1 FROM contract.holdfast_job FOR UPDATE SKIP LOCKED) AS jobs), "
                "(SELECT count(*) FROM (SELECT 1 FROM contract.holdfast_lane FOR UPDATE SKIP LOCKED) AS lanes)"
            ).fetchall()
        untold = (await postgres.face.get_job(waiting.id)).status
        await caller.commit()
    ran = await claim_all(postgres)

    assert (answer, free, untold) == (CancelAnswer.CANCELLED, [(2, 1)], "blocked")
    assert len(ran) == 1
    assert (await postgres.face.get_job(waiting.id)).status == "failed"


async def test_a_verb_waits_for_the_row_that_it_names(postgres: Way) -> None:
    chain = await postgres.face.start(greet(name="x"))

    async with await psycopg.AsyncConnection.connect(postgres.hf.settings.database) as caller:
        await caller.execute("SELECT 1")
        await postgres.hf.pause(chain, connection=caller)
        second = asyncio.create_task(postgres.hf.cancel(chain))
        await until(lambda: is_waited_for(postgres, caller), "the cancel waits for the pause")
        await caller.commit()

    assert await asyncio.wait_for(second, 5) is CancelAnswer.CANCELLED
    assert await events_of(postgres, chain.id) == ["job:enqueued", "job:paused", "job:cancelled"]


async def is_waited_for(way: Way, connection: psycopg.AsyncConnection[Any]) -> bool:
    async with await psycopg.AsyncConnection.connect(way.hf.settings.database) as observer:
        cursor = await observer.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))",
            [connection.info.backend_pid],
        )
        ((waiting,),) = await cursor.fetchall()
        return bool(waiting)


async def test_a_retry_that_waits_for_a_twins_commit_meets_it(postgres: Way) -> None:
    chain = await postgres.face.start(greet(name="Ada"), unique="ada")
    await run(postgres, FAIL)

    async with await psycopg.AsyncConnection.connect(postgres.hf.settings.database) as caller:
        await caller.execute("SELECT 1")
        twin = await postgres.hf.start(greet(name="Bob"), unique="ada", connection=caller)
        retried = asyncio.create_task(postgres.hf.retry(chain))
        await until(lambda: is_waited_for(postgres, caller), "the retry waits for the twin's key")
        await caller.commit()

    with pytest.raises(UniqueConflict) as caught:
        await asyncio.wait_for(retried, 5)
    assert caught.value.twin == twin.id
    assert (await postgres.face.get_job(chain.id)).status == "failed"


async def test_a_retry_has_the_key_if_the_twin_rolls_back(postgres: Way) -> None:
    chain = await postgres.face.start(greet(name="Ada"), unique="ada")
    await run(postgres, FAIL)

    async with await psycopg.AsyncConnection.connect(postgres.hf.settings.database) as caller:
        await caller.execute("SELECT 1")
        await postgres.hf.start(greet(name="Bob"), unique="ada", connection=caller)
        retried = asyncio.create_task(postgres.hf.retry(chain))
        await until(lambda: is_waited_for(postgres, caller), "the retry waits for the twin's key")
        await caller.rollback()

    assert (await asyncio.wait_for(retried, 5)).status == "pending"
    assert await postgres.rows("SELECT chain_id FROM holdfast_unique") == [(str(chain.id),)]


async def test_ids_are_uuids(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))

    assert isinstance((await way.face.trigger(chain)).id, UUID)


async def test_a_head_that_is_cancelled_retried_and_paused_in_one_transaction_passes_its_lane_on(way: Way) -> None:
    first, second = [await way.face.start(greet(name=name), lane="vm-7") for name in ("Ada", "Bob")]
    await admit(way)

    await way.call(_cancel_retry_and_pause, [first.id])
    await admit(way)

    assert UUID((await claim_one(way)).id) == second.id
    assert (await way.face.get_job(first)).status == "paused"


async def _cancel_retry_and_pause(tx: Tx, ids: list[UUID]) -> None:
    """Do as a caller may in one transaction, where the lane is left to admission."""
    for verb in (steering.cancel, steering.retry, steering.pause):
        await verb(tx, ids, Asked())


async def _cancel_retry_and_reschedule(tx: Tx, ids: list[UUID]) -> None:
    for verb in (steering.cancel, steering.retry):
        await verb(tx, ids, Asked())
    await steering.reschedule(tx, ids, 0, 3_600_000, Asked())


async def _and_pause_and_resume(tx: Tx, ids: list[UUID]) -> None:
    await _cancel_retry_and_reschedule(tx, ids)
    for verb in (steering.pause, steering.resume):
        await verb(tx, ids, Asked())


@pytest.mark.parametrize("steered", [_cancel_retry_and_reschedule, _and_pause_and_resume])
async def test_a_head_that_is_cancelled_and_put_off_in_one_transaction_passes_its_lane_on(
    way: Way, steered: Any
) -> None:
    first, second = [await way.face.start(greet(name=name), lane="vm-7") for name in ("Ada", "Bob")]
    await admit(way)

    await way.call(steered, [first.id])
    await admit(way)

    assert UUID((await claim_one(way)).id) == second.id
    assert (await way.face.get_job(first)).state == "scheduled"
    await come_due(way)
    await admit(way)
    assert (await way.face.get_job(first)).state == "waiting"


async def test_a_head_that_waits_for_a_blocker_again_passes_its_lane_on(way: Way) -> None:
    blocker = await way.face.start(greet(name="blocker"))
    await run(way, FAIL)
    first = await way.face.start(greet(name="Ada"), lane="vm-7", blockers=[blocker], on_blocker_failure="ignore")
    await admit(way)
    second = await way.face.start(greet(name="Bob"), lane="vm-7")
    await admit(way)
    await way.face.retry(blocker)

    await way.call(_cancel_and_retry, [first.id])
    await admit(way)

    assert {UUID(job.id) for job in await claim_all(way)} == {second.id, blocker.id}
    assert (await way.face.get_job(first)).status == "blocked"


async def _cancel_and_retry(tx: Tx, ids: list[UUID]) -> None:
    for verb in (steering.cancel, steering.retry):
        await verb(tx, ids, Asked())


# ---- require_connection

STRICT_VERBS: dict[str, dict[str, Any]] = {
    "cancel": {}, "pause": {}, "resume": {}, "retry": {}, "trigger": {}, "start_again": {}, "delete": {},
    "reschedule": {"after": 60},
}  # fmt: skip


@pytest.mark.source("JC-93")
@pytest.mark.parametrize("verb", STRICT_VERBS)
async def test_every_verb_that_writes_needs_a_connection_where_that_is_required(
    way: Way, new_holdfast: Callable[..., Holdfast], verb: str
) -> None:
    strict = Way(new_holdfast(way.database, require_connection=True, tasks=[TASKS]), is_async=way.is_async)
    chain = await way.face.start(greet(name="Ada"), delay=60)
    before = await whole_store(way)

    with pytest.raises(TransactionRequired, match="require_connection=True"):
        await getattr(strict.face, verb)(chain, **STRICT_VERBS[verb])
    with pytest.raises(TransactionRequired, match="require_connection=True"):
        await getattr(strict.face, f"{verb}_many")([chain], **STRICT_VERBS[verb])

    assert await whole_store(way) == before
    await strict.close()


async def take_in_hand(way: Way, chain: Any) -> None:
    """Open the block of `completing`, and leave it again."""
    if way.is_async:
        async with way.hf.completing(greet, chain):
            pass
    else:
        with way.hf.sync.completing(greet, chain):
            pass


@pytest.mark.source("JC-93")
async def test_a_job_is_completed_on_a_connection_where_that_is_required(
    way: Way, new_holdfast: Callable[..., Holdfast]
) -> None:
    strict = Way(new_holdfast(way.database, require_connection=True, tasks=[TASKS]), is_async=way.is_async)
    chain = await way.face.start(greet(name="Ada"))

    with pytest.raises(TransactionRequired, match="require_connection=True"):
        await strict.face.complete(greet, chain, "Hello")
    with pytest.raises(TransactionRequired, match="require_connection=True"):
        await take_in_hand(strict, chain)

    assert (await way.face.get_job(chain)).status == "pending"
    await strict.close()
