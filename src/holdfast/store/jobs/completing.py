"""Completing jobs without a worker: a person, a webhook or another program says what came of them.

Like the verbs of steering it may run in a caller's transaction: it waits for the rows that it names, the chain's
current job and its first one, and touches no others. The lane of the job, and those who wait for its chain, are left
to admission, on the rows themselves; on our own connection `follow` takes that up in the same transaction. Whoever
commits first has completed the job: the run of a worker is fenced, and its handler is told so at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from holdfast.database.tx import Tx
from holdfast.errors import StatusConflict, WrongTask
from holdfast.models import Asked, Continuation, Job
from holdfast.states import MOVES, Change, Status, guard
from holdfast.store import admission, lanes, phase_rows, reads
from holdfast.store.chains import chain_ends, continuations
from holdfast.store.jobs import steering
from holdfast.store.log import events
from holdfast.store.rows import LockedJob


class Current(NamedTuple):
    """The current job of a chain, locked until the transaction ends; *job* as it was read then."""

    named: LockedJob
    job: Job


async def lock_current(tx: Tx, job_id: UUID) -> Current:
    """Find and lock the current job of the chain that *job_id* belongs to, or raise `JobNotFound`; change nothing."""
    (named,) = await steering.lock(tx, [job_id])
    (job,) = await reads.jobs_by_id(tx, [named.uuid])
    return Current(named, job)


async def lock_of_task(tx: Tx, job_id: UUID, names: Sequence[str]) -> Current:
    """Find and lock the current job of a chain; raise `WrongTask` unless its task has one of *names*."""
    found = await lock_current(tx, job_id)
    if found.named.task not in names:
        raise WrongTask(found.job.id, asked=names[0], found=found.named.task)
    return found


async def complete(tx: Tx, job_id: UUID, names: Sequence[str], output: str, asked: Asked) -> Job:
    """Complete the current job of a chain in a caller's transaction."""
    found = await lock_of_task(tx, job_id, names)
    await finish(tx, found, output, None, asked)
    return await reads.get_job(tx, found.job.id)


async def complete_at_once(tx: Tx, job_id: UUID, names: Sequence[str], output: str, asked: Asked) -> Job:
    """Complete as `complete` does, with all that follows from it: for our own connections."""
    job = await complete(tx, job_id, names, output, asked)
    await follow(tx, [job.id])
    return await reads.get_job(tx, job.id)


# what has neither a lane nor dependents has nothing left to do; nobody has completed it, so that no name is written
COMPLETE = f"""
    UPDATE holdfast_job
    SET status = 'completed', gate = CASE WHEN lane IS NOT NULL OR watched = 1 THEN 'arrival' END, wake_at = $now,
        head = 0, place = NULL, output = :output, reason = NULL, error = NULL, worker = NULL, lease_until = NULL,
        cancel_requested_at = NULL, pause_requested_at = NULL, completed_by = NULL, stale_at = NULL,
        closed_as = CASE WHEN chain_index = 0 THEN CAST(:closed_as AS text) END,
        closed_at = CASE WHEN chain_index = 0 AND CAST(:closed_as AS text) IS NOT NULL THEN $now END,
        finished_at = $now, version = version + 1
    WHERE seq = :seq AND {guard(Change.COMPLETE_OUTSIDE)}
    RETURNING version"""


async def finish(tx: Tx, given: Current, output: str | None, successor: Continuation | None, asked: Asked) -> None:
    """Complete a job that we have locked, with its *output*, a JSON text, or with the job that continues its chain.

    Raises `StatusConflict` if it has completed or been cancelled, also by this very transaction since it was locked, or
    `JobNotFound` if that has deleted it; what is wrong with the continuation (`ChainNotFound`, `BlockerCycle`); and
    `UniqueConflict` if a failed chain that is to go on cannot have its key back.
    """
    job = await steering.lock_again(tx, given.named)
    _refuse(job)
    await steering.lock_targets(tx, [job])
    steps = [] if successor is None else [continuations.step_of(job, successor)]
    judged = await continuations.judge(tx, steps)
    if judged.mistakes:
        raise judged.mistakes[job.seq]
    if job.status is Status.FAILED:
        await steering.take_keys(tx, [job.chain_id], reopens=successor is not None)
    closed_as = None if steps else Status.COMPLETED
    rows = await tx.fetch_all(COMPLETE, seq=job.seq, output=None if steps else output, closed_as=closed_as)
    await phase_rows.cancel(tx, [job.seq])
    enqueued = await continuations.insert(tx, steps, judged.chains, {})
    await _close(tx, job, is_continued=bool(steps))
    await chain_ends.unmark(tx, [job.chain_id] if job.stale_at is not None else [])
    ((version,),) = rows
    delivered = await steering.end_deliveries(tx, [job], Status.COMPLETED, asked)
    completed = [*_events(job, version, successor, asked), *enqueued, *delivered]
    await events.append(tx, completed, hint=events.TO_ALL if job.status is Status.RUNNING else None)


def _refuse(job: LockedJob) -> None:
    allowed = MOVES[Change.COMPLETE_OUTSIDE].sources
    if job.status not in allowed:
        advice = "retry() it first" if job.status is Status.CANCELLED else "its output stands"
        raise StatusConflict(job.uuid, job.status, "be completed", allowed, advice)


async def _close(tx: Tx, job: LockedJob, *, is_continued: bool) -> None:
    """Close the chain, and have admission tell who waits for it; or open it again if it had failed."""
    if not is_continued:
        await chain_ends.leave_dependents_to_admission(
            tx, await chain_ends.close(tx, [chain_ends.end_of(job, Status.COMPLETED)])
        )
    elif job.status is Status.FAILED and job.chain_index > 0:
        await chain_ends.reopen(tx, [job.chain_id])


def _events(job: LockedJob, version: int, successor: Continuation | None, asked: Asked) -> list[events.NewEvent]:
    completed = Status.COMPLETED
    said = asked.facts(**continuations.continued(successor))
    facts = [events.NewEvent(job.seq, "job:completed", completed, version, job.attempt, said)]
    if successor is None:
        facts.append(events.NewEvent(job.seq, "chain:completed", completed, version, job.attempt))
    if job.halts:
        facts.append(lanes.resumed(job.halts, job.id, asked.said()))
    return facts


async def follow(tx: Tx, job_ids: list[UUID]) -> None:
    """Do now what completing these jobs, and inserting what continues them, has left to admission."""
    await admission.admit_named(tx, [str(each) for each in job_ids])
