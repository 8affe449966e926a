"""The rows of phases: how they are written while their job is held, and how they are read beside it.

Nobody writes here without having the job's row in the same transaction, under its token or by a verb that names it. A
row that is completed is never written again, but for its place, if the code's list of phases has changed. Jobs without
phases, which `current_phase` tells, cost nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from holdfast.database.tx import Tx
from holdfast.models import RUN_PHASE, PhaseStatus
from holdfast.unreadable import object_of

STATUSES = {each.value: each for each in PhaseStatus} | {"active": PhaseStatus.RUNNING}
"""What is stored, and what it means; code before step 4 wrote `active`."""


class PhaseRow(NamedTuple):
    """A phase of a job as it is stored; *result* and *error* are JSON texts, the instants milliseconds."""

    position: int
    name: str
    status: PhaseStatus = PhaseStatus.PENDING
    progress: int | None = None
    message: str | None = None
    result: str | None = None
    error: str | None = None
    started_at: int | None = None
    finished_at: int | None = None


READ = """
    SELECT position, name, status, progress, message, result, error, started_at, finished_at
    FROM holdfast_phase WHERE job = :job ORDER BY position"""


async def read(tx: Tx, job: int) -> list[PhaseRow]:
    """Read the phases of a job, in their order."""
    rows = await tx.fetch_all(READ, job=job)
    return [PhaseRow(position, name, STATUSES[status], *rest) for position, name, status, *rest in rows]


# one text for a first begin, which makes them all, for a later one, and for who has changed the list meanwhile
WRITE = """
    INSERT INTO holdfast_phase (job, position, name, status, progress, message, result, error, started_at, finished_at)
    SELECT given.job, given.position, given.name, given.status, given.progress, given.message, given.result,
        given.error, CASE given.status WHEN 'running' THEN $now ELSE given.started_at END, given.finished_at
    FROM $list(given: job bigint, position bigint, name text, status text, progress bigint, message text, result text,
        error text, started_at bigint, finished_at bigint)
    WHERE true
    ON CONFLICT (job, position) DO UPDATE
    SET name = excluded.name, status = excluded.status, progress = excluded.progress, message = excluded.message,
        result = excluded.result, error = excluded.error, started_at = excluded.started_at,
        finished_at = excluded.finished_at"""
DELETE_FROM = """
    DELETE FROM holdfast_phase
    WHERE job $any(jobs: bigint) AND position >= (SELECT given.total FROM $list(given: job bigint, total bigint)
        WHERE given.job = holdfast_phase.job)"""


async def write(tx: Tx, rows: Sequence[tuple[int, PhaseRow]]) -> None:
    """Write phases as they are given, each with its job; one that is running begins now."""
    if rows:
        await tx.execute(WRITE, given=[(job, *row) for job, row in rows])


async def delete_from(tx: Tx, totals: Sequence[tuple[int, int]]) -> None:
    """Forget the phases of jobs from a place on."""
    if totals:
        await tx.execute(DELETE_FROM, jobs=[job for job, _ in totals], given=list(totals))


class PhaseReport(NamedTuple):
    """How far a phase of a job is."""

    job: int
    position: int
    name: str
    progress: int
    message: str | None


# the phase of a task that declares none is made here; one that has ended in an earlier attempt begins anew
PROGRESS = """
    INSERT INTO holdfast_phase (job, position, name, status, progress, message, started_at)
    SELECT given.job, given.position, given.name, 'running', given.progress, given.message, $now
    FROM $list(given: job bigint, position bigint, name text, progress bigint, message text)
    WHERE true
    ON CONFLICT (job, position) DO UPDATE
    SET status = 'running', progress = excluded.progress, message = excluded.message, error = NULL, finished_at = NULL,
        started_at = CASE holdfast_phase.status WHEN 'running' THEN holdfast_phase.started_at
            ELSE excluded.started_at END
    WHERE holdfast_phase.name = excluded.name AND holdfast_phase.status <> 'completed'"""


async def write_progress(tx: Tx, said: Sequence[PhaseReport]) -> None:
    """Write down how far phases are, and make those that are not there yet."""
    if said:
        await tx.execute(PROGRESS, given=list(said))


COMPLETE = """
    UPDATE holdfast_phase
    SET status = 'completed', progress = 100, result = given.result, error = NULL, finished_at = $now
    FROM $list(given: job bigint, position bigint, result text)
    WHERE holdfast_phase.job = given.job AND holdfast_phase.position = given.position
        AND holdfast_phase.status = 'running'
    RETURNING holdfast_phase.job"""


async def complete(tx: Tx, results: Sequence[tuple[int, int, str]]) -> set[int]:
    """Complete running phases, by job, place and result; answer for which jobs that was done."""
    return {job for (job,) in await tx.fetch_all(COMPLETE, given=list(results))} if results else set()


class JobEnd(NamedTuple):
    """How a run of a job with phases has ended: in `failed`, by its *error*, `cancelled` or `completed`."""

    job: int
    how: PhaseStatus
    error: str | None = None


# what was under way fails with its job; who is cancelled, or completed before its last phase, will run none of the rest
END = f"""
    UPDATE holdfast_phase
    SET status = CASE WHEN given.how = 'completed' AND name <> '{RUN_PHASE}' THEN 'cancelled' ELSE given.how END,
        error = CASE given.how WHEN 'failed' THEN given.error WHEN 'completed' THEN NULL ELSE holdfast_phase.error END,
        finished_at = $now
    FROM $list(given: job bigint, how text, error text)
    WHERE holdfast_phase.job = given.job
        AND holdfast_phase.job $any(jobs: bigint)  -- without statistics it would read all phases there are
        AND CASE given.how WHEN 'failed' THEN holdfast_phase.status = 'running'
            ELSE holdfast_phase.status <> 'completed' END"""


async def end(tx: Tx, ends: Sequence[JobEnd]) -> None:
    """Move the phases with their jobs, whose runs have ended."""
    if ends:
        await tx.execute(END, given=list(ends), jobs=[each.job for each in ends])


CANCEL = """
    UPDATE holdfast_phase SET status = 'cancelled', finished_at = $now
    WHERE job $any(jobs: bigint) AND status <> 'completed'"""


async def cancel(tx: Tx, jobs: Sequence[int]) -> None:
    """Cancel every phase of jobs that has not completed."""
    await tx.execute(CANCEL, jobs=list(jobs))


# a task without phases is asked for in vain, but its policy, of some hundred bytes, does not come along with each job
BESIDE, BESIDE_WITH_RESULTS = (
    f"""CASE WHEN holdfast_job.current_phase IS NOT NULL THEN (
        SELECT CAST($json_rows($json_array(step.position, step.name, step.status, step.progress, step.message, {result},
            step.error, step.started_at, step.finished_at)) AS text)
        FROM holdfast_phase AS step WHERE step.job = holdfast_job.seq)
        ELSE (SELECT known.policy FROM holdfast_task AS known
            WHERE known.name = holdfast_job.task AND known.policy LIKE '{{%"phases"%') END"""
    for result in ("NULL", "step.result")
)
"""The phases of a job as one value of its row, so that both are of one moment; results, which may be large, or not.

Before the first one has begun there are no rows: then it is the policy of its task, which declares them.
"""


def from_text(text: str | None, *, has_ended: bool) -> Sequence[PhaseRow]:
    """Read what BESIDE gives; phases that are only declared are pending, or cancelled if their job *has_ended*."""
    if text is None:
        return ()
    if text.startswith("{"):
        declared = _declared(text)
        return [each._replace(status=PhaseStatus.CANCELLED) for each in declared] if has_ended else declared
    found = json.loads(text)
    return sorted(PhaseRow(position, name, STATUSES[status], *rest) for position, name, status, *rest in found)


@lru_cache(maxsize=256)  # the jobs of a task have one policy
def _declared(policy: str) -> tuple[PhaseRow, ...]:
    """Read the phases that a policy declares."""
    names = object_of(policy).get("phases")
    return tuple(
        PhaseRow(position, str(name)) for position, name in enumerate(names if isinstance(names, list) else ())
    )
