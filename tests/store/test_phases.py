"""Phases in the store: begun, completed, ended under the token, each in one commit (I-13, I-24, I-35, I-40, I-62)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest

from holdfast import Context, Holdfast, Retry, Tasks
from holdfast.database.tx import Tx
from holdfast.models import PhaseStatus
from holdfast.outcomes import Kind, Outcome
from holdfast.store import phase_rows, phases, reads
from holdfast.store.jobs import block_ends, claiming, reaping, settling
from holdfast.store.jobs.claiming import Claimed, ClaimState, ProgressReport, Token
from holdfast.store.jobs.settling import Settlement
from holdfast.store.phase_rows import PhaseRow
from holdfast.store.phases import Beginning, Completion
from tests.store.engine import (
    CANCEL,
    DONE,
    FAIL,
    GIVE_BACK,
    PAUSE,
    RETRY,
    claim_all,
    claim_one,
    come_due,
    expire,
    settle,
)
from tests.support.factories import (
    TASKS,
    change_job,
    counted,
    events_of,
    greet,
    make_phase,
    row_of,
    seq_of,
    whole_store,
)
from tests.support.ways import Way

NAMES = ("download", "encode", "upload")
ROWS = tuple(PhaseRow(position, name) for position, name in enumerate(NAMES))


def beginning(token: Token, position: int = 0, *, makes: bool = True) -> Beginning:
    """Say that a phase begins, the first one of an attempt if it *makes* the others."""
    active = PhaseRow(position, NAMES[position], PhaseStatus.RUNNING, 0)
    rows = tuple(active if row.position == position else row for row in ROWS) if makes else (active,)
    return Beginning(token, NAMES[position], 33 * position, rows)


def completion(token: Token, position: int = 0, result: str = '"done"') -> Completion:
    return Completion(token, NAMES[position], position, 33 * (position + 1), result)


async def begun(way: Way, *, done: int = 0) -> Claimed:
    """Start a job and run it until *done* of its phases have completed and the next one is under way."""
    await way.face.start(greet(name="Ada"))
    job = await claim_one(way)
    for position in range(done + 1):
        await way.call(phases.begin, [beginning(job.token, position, makes=position == 0)])
        if position < done:
            await way.call(phases.complete, [completion(job.token, position)])
    return job


async def statuses(way: Way, job: Claimed) -> list[str]:
    return [str(each.status) for each in (await way.face.get_job(job.id)).phases]


@pytest.mark.source("PQ-10")
async def test_the_first_phase_that_begins_makes_all_of_them(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    token = (await claim_one(way)).token

    holds = await way.call(phases.begin, [beginning(token)])

    job = await way.face.get_job(chain)
    assert holds == {token: ClaimState.HELD}
    assert (job.current_phase, job.progress, job.message) == ("download", 0, None)
    assert [(each.name, each.status) for each in job.phases] == [
        ("download", "running"), ("encode", "pending"), ("upload", "pending"),
    ]  # fmt: skip
    assert job.phases[0].started_at is not None
    assert job.phases[1].started_at is None
    assert await events_of(way, chain.id) == ["job:enqueued", "job:started", "job:progress"]


@pytest.mark.source("PQ-36")
async def test_a_phase_completes_with_its_result_its_event_and_the_crashes_set_back(way: Way) -> None:
    job = await begun(way)
    await change_job(way, UUID(job.id), crashes=2)

    holds = await way.call(phases.complete, [completion(job.token, result='{"path":"/tmp/a"}')])

    found = await way.face.get_job(job.id)
    first = found.phases[0]
    assert holds == {job.token: ClaimState.HELD}
    assert (first.status, first.progress, first.result, first.error) == ("completed", 100, {"path": "/tmp/a"}, None)
    assert first.finished_at is not None
    assert (found.status, found.progress, found.crashes, found.current_phase) == ("running", 33, 0, "download")
    (facts,) = await facts_of(way, job, "job:phase:completed")
    assert facts == {"phase": "download", "progress": 33}


async def test_a_job_that_comes_on_is_no_poison_however_often_its_worker_dies(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))

    for position in range(len(NAMES)):
        for crash in range(2):
            job = await claim_one(way, f"nonce-{position}-{crash}")
            await way.call(claiming.begin, job.token)
            await way.call(phases.begin, [beginning(job.token, position, makes=position == 0)])
            await reap(way, job)
            await come_due(way)
        job = await claim_one(way, f"nonce-{position}")
        await way.call(phases.begin, [beginning(job.token, position, makes=False)])
        await way.call(phases.complete, [completion(job.token, position)])
        await settle(way, (job.token, GIVE_BACK))
        await come_due(way)

    assert (await way.face.get_job(chain)).status == "pending"
    assert await statuses(way, job) == ["completed"] * 3
    assert (await events_of(way, chain.id)).count("job:reaped") == 6


async def test_what_is_stored_is_the_very_text(way: Way) -> None:
    job = await begun(way)
    text = '{"b":1.50,"a":"caf\\u00e9 \\" \\\\ é","n":12345678901234567890}'

    await way.call(phases.complete, [completion(job.token, result=text)])
    await way.call(phases.begin, [beginning(job.token, 1, makes=False)])
    await settle(way, (job.token, FAIL))
    await way.face.retry(job.id)
    again = await claim_one(way, "nonce-2")

    rows = await way.read(phase_rows.read, again.token.seq)
    assert rows[0].result == text


async def test_the_last_report_of_a_phase_is_written_before_its_end(way: Way) -> None:
    job = await begun(way)
    report = ProgressReport(job.token, 27, "nearly", "download", 0, 80)

    await way.call(phases.complete, [completion(job.token)], [report])

    found = await way.face.get_job(job.id)
    assert (found.progress, found.message, found.phases[0].message) == (33, "nearly", "nearly")
    assert (await events_of(way, UUID(job.id)))[-2:] == ["job:progress", "job:phase:completed"]
    assert (await facts_of(way, job, "job:progress"))[-1] == {
        "progress": 27, "message": "nearly", "phase": "download", "phase_progress": 80,
    }  # fmt: skip


async def test_a_completion_whose_answer_was_lost_may_be_written_again(way: Way) -> None:
    job = await begun(way)
    await way.call(phases.complete, [completion(job.token)])

    holds = await way.call(phases.complete, [completion(job.token, result='"another"')])

    assert holds == {job.token: ClaimState.HELD}
    assert (await way.face.get_job(job.id)).phases[0].result == "done"
    assert (await events_of(way, UUID(job.id))).count("job:phase:completed") == 1


async def reap(way: Way, job: Claimed) -> None:
    await expire(way, job.token, lease_ms=1)
    assert (await way.call(reaping.reap, 2**53)).count == 1


async def reap_and_claim(way: Way, job: Claimed) -> None:
    await reap(way, job)
    await come_due(way)
    await claim_one(way, "nonce-2")


LOST: dict[str, Callable[[Way, Claimed], Any]] = {
    "taken": reap_and_claim,
    "completed": lambda way, job: way.face.complete(greet, job.id, "by hand"),
    "gone": lambda way, job: way.face.delete(job.id),
}


@pytest.mark.parametrize("how", LOST)
@pytest.mark.parametrize("step", ["begin", "complete"])
async def test_a_lost_token_begins_and_completes_nothing(way: Way, how: str, step: str) -> None:
    job = await begun(way)
    await LOST[how](way, job)
    before = await whole_store(way)

    if step == "begin":
        holds = await way.call(phases.begin, [beginning(job.token, 1)])
    else:
        holds = await way.call(phases.complete, [completion(job.token)])

    assert holds == {job.token: how}
    assert await whole_store(way) == before


async def test_a_job_that_is_to_stop_begins_no_phase_but_keeps_what_it_has_done(way: Way) -> None:
    job = await begun(way)
    await way.face.cancel(job.id)

    ended = await way.call(phases.complete, [completion(job.token)])
    begins = await way.call(phases.begin, [beginning(job.token, 1, makes=False)])

    assert (ended, begins) == ({job.token: ClaimState.HELD}, {job.token: ClaimState.CANCEL})
    assert await statuses(way, job) == ["completed", "pending", "pending"]


async def test_a_job_that_is_to_be_paused_begins_no_phase(way: Way) -> None:
    job = await begun(way)
    await way.face.pause(job.id)

    assert await way.call(phases.begin, [beginning(job.token, 1)]) == {job.token: ClaimState.PAUSE}


ENDS: list[tuple[Outcome, list[str]]] = [
    (DONE, ["completed", "cancelled", "cancelled"]),
    (RETRY, ["completed", "failed", "pending"]),
    (FAIL, ["completed", "failed", "pending"]),
    (CANCEL, ["completed", "cancelled", "cancelled"]),
    (PAUSE, ["completed", "running", "pending"]),
    (GIVE_BACK, ["completed", "running", "pending"]),
    (Outcome(Kind.RESCHEDULE, delay_ms=1000), ["completed", "running", "pending"]),
    (Outcome(Kind.LOST), ["completed", "running", "pending"]),
]


@pytest.mark.parametrize(("outcome", "expected"), ENDS, ids=[outcome.kind for outcome, _ in ENDS])
async def test_the_end_of_a_run_moves_its_phases_in_its_commit(way: Way, outcome: Outcome, expected: list[str]) -> None:
    job = await begun(way, done=1)

    await settle(way, (job.token, outcome))

    found = (await way.face.get_job(job.id)).phases
    assert [str(each.status) for each in found] == expected
    assert (found[0].result, found[1].result) == ("done", None)
    assert found[1].error == ({"type": "OSError"} if expected[1] == "failed" else None)
    assert (found[1].finished_at is None) is (expected[1] == "running")


@pytest.mark.parametrize("in_block", [False, True])
async def test_a_chain_of_one_job_that_completes_moves_its_phases_too(way: Way, in_block: bool) -> None:
    job = await begun(way, done=1)
    settlement = Settlement(job.token, DONE, is_plain=True)

    await way.call(block_ends.finish_block, settlement) if in_block else await way.call(settling.settle, [settlement])

    assert await statuses(way, job) == ["completed", "cancelled", "cancelled"]


@pytest.mark.source("PQ-3")
async def test_a_reaped_job_keeps_its_phase_as_it_was_and_what_it_said(way: Way) -> None:
    job = await begun(way, done=1)
    await way.call(claiming.progress, [ProgressReport(job.token, 50, "half", "encode", 1, 50)])

    await reap(way, job)

    found = await way.face.get_job(job.id)
    assert (found.status, found.current_phase, found.progress, found.message) == ("pending", "encode", 50, "half")
    assert [(str(each.status), each.progress) for each in found.phases] == [
        ("completed", 100), ("running", 50), ("pending", 0),
    ]  # fmt: skip


@pytest.mark.source("PQ-13", "DF-44")
@pytest.mark.parametrize("outcome", [RETRY, FAIL, PAUSE, GIVE_BACK], ids=lambda outcome: outcome.kind)
async def test_cancelling_a_job_that_does_not_run_cancels_each_unfinished_phase(way: Way, outcome: Outcome) -> None:
    job = await begun(way, done=1)
    await settle(way, (job.token, outcome))

    await way.face.cancel(job.id)

    assert await statuses(way, job) == ["completed", "cancelled", "cancelled"]


async def test_completing_without_a_worker_cancels_what_will_never_run(way: Way) -> None:
    job = await begun(way, done=1)

    await way.face.complete(greet, job.id, "by hand")

    assert await statuses(way, job) == ["completed", "cancelled", "cancelled"]


async def test_a_new_attempt_begins_what_has_failed_anew(way: Way) -> None:
    job = await begun(way, done=1)
    await settle(way, (job.token, FAIL))
    await way.face.retry(job.id)
    again = await claim_one(way, "nonce-2")
    assert again.current_phase == "encode"

    active = PhaseRow(1, "encode", PhaseStatus.RUNNING, 0)
    await way.call(phases.begin, [Beginning(again.token, "encode", 33, (active, PhaseRow(2, "upload")))])

    encode = (await way.face.get_job(job.id)).phases[1]
    assert (encode.status, encode.error, encode.finished_at) == ("running", None, None)
    assert await statuses(way, job) == ["completed", "running", "pending"]


async def test_phases_behind_the_last_one_are_forgotten(way: Way) -> None:
    job = await begun(way)
    rows = (PhaseRow(0, "fetch", PhaseStatus.RUNNING, 0),)

    await way.call(phases.begin, [Beginning(job.token, "fetch", 0, rows, total=1)])

    assert [each.name for each in (await way.face.get_job(job.id)).phases] == ["fetch"]


@pytest.mark.source("PQ-6")
async def test_a_job_without_phases_has_one_once_it_says_how_far_it_is(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)
    assert (await way.face.get_job(chain)).phases == ()

    await way.call(claiming.progress, [ProgressReport(job.token, 40, "half-way")])

    found = await way.face.get_job(chain)
    (run,) = found.phases
    assert (found.current_phase, found.progress) == ("run", 40)
    assert (run.name, run.status, run.progress, run.message) == ("run", "running", 40, "half-way")
    assert (await facts_of(way, job, "job:progress")) == [{"progress": 40, "message": "half-way"}]


@pytest.mark.parametrize(
    ("outcome", "status"), [(DONE, "completed"), (FAIL, "failed"), (CANCEL, "cancelled"), (PAUSE, "running")],
    ids=lambda each: getattr(each, "kind", each),
)  # fmt: skip
async def test_the_phase_run_ends_as_its_job_does(way: Way, outcome: Outcome, status: str) -> None:
    await way.face.start(greet(name="Ada"))
    job = await claim_one(way)
    await way.call(claiming.progress, [ProgressReport(job.token, 40, None)])

    await settle(way, (job.token, outcome))

    assert await statuses(way, job) == [status]


async def test_the_phase_run_of_a_job_that_is_tried_again_ends_well(way: Way) -> None:
    await way.face.start(greet(name="Ada"))
    job = await claim_one(way)
    await way.call(claiming.progress, [ProgressReport(job.token, 40, None)])
    await settle(way, (job.token, FAIL))
    await way.face.retry(job.id)

    again = await claim_one(way, "nonce-2")
    await settle(way, (again.token, DONE))

    (run,) = (await way.face.get_job(job.id)).phases
    assert (run.status, run.error) == ("completed", None)


async def test_progress_under_a_lost_token_touches_no_phase(way: Way) -> None:
    job = await begun(way)
    await reap_and_claim(way, job)
    before = await whole_store(way)

    assert await way.call(claiming.progress, [ProgressReport(job.token, 27, None, "download", 0, 80)]) == set()
    assert await whole_store(way) == before


async def test_a_late_report_does_not_open_a_phase_that_has_completed(way: Way) -> None:
    job = await begun(way, done=1)

    await way.call(claiming.progress, [ProgressReport(job.token, 10, "late", "download", 0, 30)])

    first = (await way.face.get_job(job.id)).phases[0]
    assert (first.status, first.progress, first.message) == ("completed", 100, None)


async def test_lists_have_the_phases_without_their_results(way: Way) -> None:
    job = await begun(way, done=1)
    await way.face.start(greet(name="Bob"))

    bob, ada = await way.face.list_jobs()

    assert (ada.id, bob.phases) == (UUID(job.id), ())
    assert [(each.name, str(each.status), each.result) for each in ada.phases] == [
        ("download", "completed", None), ("encode", "running", None), ("upload", "pending", None),
    ]  # fmt: skip


async def test_jobs_and_their_phases_are_read_by_one_statement(way: Way) -> None:
    job = await begun(way, done=1)

    assert len(await way.read(counted, reads.get_job, UUID(job.id))) == 1
    assert len(await way.read(counted, reads.jobs_by_id, [UUID(job.id)])) == 1


async def test_deleted_jobs_leave_no_phases(way: Way) -> None:
    job = await begun(way, done=1)

    await way.face.delete(job.id)

    assert await way.rows("SELECT name FROM holdfast_phase") == []


@pytest.mark.parametrize("step", ["begin", "complete"])
async def test_beginning_and_completing_take_as_many_statements_for_one_as_for_fifty(way: Way, step: str) -> None:
    counts = []
    for number in (1, 50):
        await way.face.start_many([greet(name="Ada") for _ in range(number)])
        tokens = [job.token for job in await claim_all(way, f"nonce-{number}")]
        begins = [beginning(token) for token in tokens]
        if step == "begin":
            counts.append(await way.call(counted, phases.begin, begins))
        else:
            await way.call(phases.begin, begins)
            counts.append(await way.call(counted, phases.complete, [completion(token) for token in tokens]))

    assert [len(each) for each in counts] == [len(counts[0])] * 2
    assert len(counts[0]) <= 5


async def test_of_a_list_only_the_lost_are_left_out(way: Way) -> None:
    await way.face.start_many([greet(name="Ada"), greet(name="Bob")])
    first, second = await claim_all(way)
    await way.face.complete(greet, first.id, "by hand")

    holds = await way.call(phases.begin, [beginning(first.token), beginning(second.token)])

    assert holds == {first.token: ClaimState.COMPLETED, second.token: ClaimState.HELD}
    assert await row_of(way, UUID(second.id), "current_phase") == ("download",)


async def test_nothing_is_nothing(way: Way) -> None:
    assert await way.call(phases.begin, []) == {}
    assert await way.call(phases.complete, []) == {}


@pytest.mark.parametrize("step", ["begin", "complete"])
async def test_a_row_that_somebody_has_locked_is_passed_over_at_once(
    new_holdfast: Callable[..., Holdfast], empty_url: str, step: str
) -> None:
    hf = new_holdfast("postgres", tasks=[TASKS])
    way = Way(hf, is_async=True)
    job = await begun(way)
    report = ProgressReport(job.token, 27, "nearly", "download", 0, 80)
    sql = "SELECT 1 FROM contract.holdfast_job WHERE id = %s FOR UPDATE"

    with psycopg.connect(empty_url) as stranger:
        stranger.execute(sql, [job.id])
        async with asyncio.timeout(4):
            if step == "begin":
                holds = await way.call(phases.begin, [beginning(job.token, 1)], [report])
            else:
                holds = await way.call(phases.complete, [completion(job.token)], [report])

    assert holds == {job.token: ClaimState.LOCKED}
    assert await statuses(way, job) == ["running", "pending", "pending"]
    assert await way.call(phases.complete, [completion(job.token)], [report]) == {job.token: ClaimState.HELD}


async def test_settling_jobs_without_phases_takes_no_statement_for_them(way: Way) -> None:
    await way.face.start_many([greet(name="Ada"), greet(name="Bob")])
    first, second = await claim_all(way)

    plain = await way.call(counted, settling.settle, [Settlement(first.token, DONE, is_plain=True)])
    long_way = await way.call(counted, settling.settle, [Settlement(second.token, FAIL)])

    assert not [sql for sql in plain + long_way if "holdfast_phase" in sql]


@pytest.mark.source("PQ-21")
async def test_a_retry_runs_only_what_is_unfinished(way: Way) -> None:
    ran: list[str] = []

    @way.hf.task(name="film", phases=("download", "encode"), retry=Retry(attempts=2, first=0.01, jitter=0))
    async def film(ctx: Context) -> None:
        async def work(name: str) -> None:
            ran.append(name)
            if ran == ["download", "encode"]:
                raise OSError("again")

        await ctx.phase("download", work, "download")
        await ctx.phase("encode", work, "encode")

    async with way.hf.worker():
        chain = await way.hf.start(film())
        await chain.result(timeout=20)

    assert ran == ["download", "encode", "encode"]


async def facts_of(way: Way, job: Claimed, name: str) -> list[dict[str, Any]]:
    """Give what the events of a job and a name say, in their order."""
    sql = "SELECT facts FROM holdfast_event WHERE job = :job AND name = :name ORDER BY seq"
    return [json.loads(facts) for (facts,) in await way.rows(sql, job=await seq_of(way, UUID(job.id)), name=name)]


PHASED = Tasks()


@PHASED.task(name="film", phases=("download", "encode"))
async def film(title: str) -> str:
    """Make a film in two phases."""
    return title


@pytest.mark.source("PQ-10", "PQ-70")
async def test_declared_phases_are_there_before_the_first_one_begins(
    way: Way, new_holdfast: Callable[..., Holdfast]
) -> None:
    """Who only reads needs no code of the task for it, and nothing is written for it."""
    owner = new_holdfast(way.database, tasks=[PHASED]).sync
    owner.open()
    chain, cancelled = (owner.start(film(title=title)) for title in ("Metropolis", "M"))
    owner.cancel(cancelled)
    plain = await way.face.start(greet(name="Ada"))

    jobs = {job.id: job for job in await way.face.list_jobs()}
    shown = {job_id: [(each.name, each.status, each.progress) for each in job.phases] for job_id, job in jobs.items()}

    assert shown[chain.id] == [("download", "pending", 0), ("encode", "pending", 0)]
    assert shown[cancelled.id] == [("download", "cancelled", 0), ("encode", "cancelled", 0)]
    assert shown[plain.id] == []
    assert (await way.face.get_job(chain.id)).phases == jobs[chain.id].phases
    assert await way.rows("SELECT count(*) FROM holdfast_phase") == [(0,)]
    owner.close()


async def test_a_phase_that_older_code_has_begun_is_running(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await make_phase(way, chain.id, "download")
    await change_job(way, chain.id, current_phase="download")
    await way.call(_say_active)

    assert [each.status for each in (await way.face.get_job(chain.id)).phases] == ["running"]


async def _say_active(tx: Tx) -> None:
    await tx.execute("UPDATE holdfast_phase SET status = 'active'")
