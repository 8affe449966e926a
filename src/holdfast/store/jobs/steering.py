"""Steering: what people do to jobs. Each verb takes a list, all or nothing, and may run in a caller's transaction.

A verb waits for the rows that it names, and for the first rows of their chains, and touches no others: the lane of a
job that it ends, and those who wait for it, are left to admission, on the row itself. On our own connection admission
takes that up in the same transaction (`at_once`). The id of a job that has continued means its chain's current job.

Who asked, and why, stands in the facts of the event that the verb appends. Why stands on the row, too; on that of a
running job until it ends, and then as the reason of its end if it ends by that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar
from uuid import UUID

from holdfast import journals
from holdfast.database.tx import Operation, Tx
from holdfast.errors import Busy, JobNotFound, StateConflict, StatusConflict, UniqueConflict
from holdfast.journals import NewEntry
from holdfast.models import DELIVER, Asked, CancelAnswer, EventName, Job, PauseAnswer, Unique
from holdfast.states import MOVES, Change, Status, guard
from holdfast.store import admission, journal, lanes, phase_rows, reads, task_rows, unique
from holdfast.store.chains import chain_ends, dependents
from holdfast.store.chains.deletes import TOMBSTONE
from holdfast.store.log import events, fan_out
from holdfast.store.rows import LOCKED, LockedJob, instant, to_locked
from holdfast.times import instant_text

P = ParamSpec("P")
R = TypeVar("R")

TRIES = 5


async def at_once(
    tx: Tx,
    verb: Operation[Concatenate[Sequence[UUID], P], R],
    ids: Sequence[UUID],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> R:
    """Run *verb* and, in the same transaction, what it leaves to admission: for our own connections."""
    answer = await verb(tx, ids, *args, **kwargs)
    await admission.admit_named(tx, [str(each.id) for each in await current_jobs(tx, ids)])
    return answer


class CurrentJob(NamedTuple):
    """Which rows a name leads to: the chain's current job, and its first one."""

    id: UUID
    seq: int
    first: int


CURRENT = """
    SELECT asked.id, last.id, last.seq,
        (SELECT first.seq FROM holdfast_job AS first WHERE first.id = asked.chain_id)
    FROM holdfast_job AS asked JOIN holdfast_job AS last ON last.seq $is(coalesce(
        (SELECT later.seq FROM holdfast_job AS later
            WHERE later.chain_id = asked.chain_id AND later.chain_index > 0
            ORDER BY later.chain_index DESC LIMIT 1),
        asked.seq))
    WHERE asked.id $any(ids: text)"""


async def find_current(tx: Tx, ids: Sequence[UUID]) -> dict[UUID, CurrentJob]:
    """Find the current jobs of those of *ids* that are there."""
    rows = await tx.fetch_all(CURRENT, ids=[str(each) for each in ids])
    return {UUID(asked): CurrentJob(UUID(id_), seq, first) for asked, id_, seq, first in rows}


async def current_jobs(tx: Tx, ids: Sequence[UUID]) -> list[CurrentJob]:
    """Find the current jobs of *ids*, in their order; raise `JobNotFound` for one that is not there."""
    found = await find_current(tx, ids)
    missing = next((each for each in ids if each not in found), None)
    if missing is not None:
        raise JobNotFound(missing)
    return [found[each] for each in ids]


_LOCK = f"""
    SELECT {LOCKED} FROM holdfast_job
    WHERE seq $any(seqs: bigint) AND coalesce(closed_as, '') <> '{TOMBSTONE}'  -- deleted while we waited for it
    ORDER BY seq"""
LOCK, LOCK_FREE = f"{_LOCK} $locked", f"{_LOCK} $skip_locked"


async def lock(tx: Tx, ids: Sequence[UUID]) -> list[LockedJob]:
    """Find and lock the current jobs of *ids*, in their order, each once; or raise `JobNotFound`.

    A chain may continue between the look and the lock; then its next job is looked for and locked, too.
    """
    locked: dict[int, LockedJob] = {}
    for _ in range(TRIES):
        found = await current_jobs(tx, ids)
        wanted = {seq for each in found for seq in (each.seq, each.first)} - locked.keys()
        if not wanted:
            return list({each.seq: locked[each.seq] for each in found}.values())
        locked |= {job.seq: job for job in map(to_locked, await tx.fetch_all(LOCK, seqs=sorted(wanted)))}
    raise Busy("the chains that were named go on too fast; try again")


async def lock_again(tx: Tx, job: LockedJob) -> LockedJob:
    """Read a job that this transaction has locked as it has left it; raise `JobNotFound` if it has deleted it."""
    rows = await tx.fetch_all(LOCK, seqs=[job.seq])
    if not rows:
        raise JobNotFound(job.uuid)
    return to_locked(rows[0])


async def require_state(tx: Tx, job_id: UUID, state: str) -> None:
    """Lock the current job of *job_id*; raise `StateConflict` unless its `state_tag` is *state*."""
    (locked,) = await lock(tx, [job_id])
    (job,) = await reads.jobs_by_id(tx, [locked.uuid])
    if job.state_tag != state:
        raise StateConflict(state, job)


def in_state(verb: Operation[P, R], job_id: UUID, state: str) -> Operation[P, R]:
    """Make *verb*, which is about the job *job_id*, require its state first, and keep the lock until it is done.

    What it makes has *verb* as its attribute.
    """

    async def checked(tx: Tx, /, *args: P.args, **kwargs: P.kwargs) -> R:
        await require_state(tx, job_id, state)
        return await verb(tx, *args, **kwargs)

    checked.__dict__["verb"] = verb
    return checked


async def _in_order(tx: Tx, ids: Sequence[UUID], answers: dict[int, R]) -> list[R]:
    return [answers[each.seq] for each in await current_jobs(tx, ids)]


def _refuse(jobs: Sequence[LockedJob], change: Change, advice: str = "") -> None:
    allowed = MOVES[change].sources
    for job in jobs:
        if job.status not in allowed:
            raise StatusConflict(job.uuid, job.status, change, allowed, advice)


# what has neither a lane nor dependents has nothing left to do
CANCEL = f"""
    UPDATE holdfast_job
    SET status = 'cancelled', gate = CASE WHEN lane IS NOT NULL OR watched = 1 THEN 'arrival' END, wake_at = $now,
        head = 0, place = NULL, reason = :reason, finished_at = $now, stale_at = NULL, version = version + 1,
        closed_as = CASE WHEN chain_index = 0 THEN 'cancelled' END,
        closed_at = CASE WHEN chain_index = 0 THEN $now END
    WHERE seq $any(seqs: bigint) AND {guard(Change.CANCEL)}
    RETURNING seq, version"""
# whoever asks again changes nothing: what was asked first stands; but a cancel and its reason go before a pause
REQUEST_CANCEL = f"""
    UPDATE holdfast_job SET cancel_requested_at = $now, reason = :reason, version = version + 1
    WHERE seq $any(seqs: bigint) AND cancel_requested_at IS NULL AND {guard(Change.REQUEST)}
    RETURNING seq, version"""
REQUEST_PAUSE = f"""
    UPDATE holdfast_job
    SET pause_requested_at = $now, reason = CASE WHEN cancel_requested_at IS NULL THEN :reason ELSE reason END,
        version = version + 1
    WHERE seq $any(seqs: bigint) AND pause_requested_at IS NULL AND {guard(Change.REQUEST)}
    RETURNING seq, version"""


async def cancel(tx: Tx, ids: Sequence[UUID], asked: Asked) -> list[CancelAnswer]:
    """Cancel jobs: at once what does not run, by request what runs; what has ended is left as it is."""
    jobs = await lock(tx, ids)
    running = [job for job in jobs if job.status is Status.RUNNING]
    await lock_targets(tx, jobs)
    await _cancel_now(tx, [job for job in jobs if job.status in MOVES[Change.CANCEL].sources], asked)
    pausing = await _paused_instead(tx, running)
    await _request(tx, [job for job in running if job.task not in pausing], REQUEST_CANCEL, "job:cancelling", asked)
    await _request(tx, [job for job in running if job.task in pausing], REQUEST_PAUSE, "job:pausing", asked)
    return await _in_order(tx, ids, {job.seq: _cancel_answer(job.status) for job in jobs})


def _cancel_answer(status: Status) -> CancelAnswer:
    if status is Status.RUNNING:
        return CancelAnswer.REQUESTED
    return CancelAnswer.CANCELLED if status in MOVES[Change.CANCEL].sources else CancelAnswer.ALREADY_TERMINAL


async def _cancel_now(tx: Tx, jobs: Sequence[LockedJob], asked: Asked) -> None:
    if not jobs:
        return
    seqs = [job.seq for job in jobs]
    versions: dict[int, int] = dict(await tx.fetch_all(CANCEL, seqs=seqs, reason=asked.why))
    await phase_rows.cancel(tx, seqs)
    closed = await chain_ends.close(tx, [chain_ends.end_of(job, Status.CANCELLED) for job in jobs])
    await chain_ends.unmark(tx, [job.chain_id for job in jobs if job.stale_at is not None])
    await chain_ends.leave_dependents_to_admission(tx, closed)
    await _announce(tx, jobs, versions, "job:cancelled", Status.CANCELLED, asked.facts())
    await events.append(tx, _resumed_lanes(jobs, asked) + await end_deliveries(tx, jobs, Status.CANCELLED, asked))


async def lock_targets(tx: Tx, jobs: Sequence[LockedJob]) -> None:
    """Lock the jobs that deliveries among *jobs* are about; raise `Busy` before anything is written if one is locked.

    Here it is not waited for: whoever has it may be waiting for one of *jobs*.
    """
    if await fan_out.lock_targets(tx, [job.seq for job in jobs if job.task == DELIVER]):
        raise Busy("somebody holds the job that this webhook is about; try again")


async def end_deliveries(tx: Tx, jobs: Sequence[LockedJob], status: Status, asked: Asked) -> list[events.NewEvent]:
    """Write down that the deliveries among *jobs* have ended by somebody's hand; give what is to be appended."""
    ends = [fan_out.DeliveryEnd(job.seq, job.id, job.lane, status, asked.why) for job in jobs if job.task == DELIVER]
    return await fan_out.mark_targets(tx, ends)


def _resumed_lanes(jobs: Iterable[LockedJob], asked: Asked) -> list[events.NewEvent]:
    """Say which lanes are no longer halted."""
    return [lanes.resumed(job.halts, job.id, asked.said()) for job in jobs if job.halts]


async def _paused_instead(tx: Tx, running: Sequence[LockedJob]) -> set[str]:
    """Name the tasks whose running jobs are paused when they are to be cancelled."""
    policies = await task_rows.policies_of(tx, {job.task for job in running})
    return {name for name, policy in policies.items() if policy.get("cancel_running") == "pause"}


async def _request(tx: Tx, jobs: Sequence[LockedJob], sql: str, name: EventName, asked: Asked) -> None:
    if jobs:
        rows = await tx.fetch_all(sql, seqs=[job.seq for job in jobs], reason=asked.why)
        await _announce(tx, jobs, dict(rows), name, Status.RUNNING, asked.facts())


async def _announce(
    tx: Tx, jobs: Sequence[LockedJob], versions: dict[int, int], name: EventName, status: Status, facts: str | None
) -> None:
    done = [job for job in jobs if job.seq in versions]
    await events.append(tx, [events.NewEvent(j.seq, name, status, versions[j.seq], j.attempt, facts) for j in done])


# in its place behind the head it stays in the lane's index, so that the lane halts when its turn comes; an arrival that
# has no place may have been the head until it was cancelled and retried, and its lane is still to be passed on; one
# that is waited for may have been retried, and who failed by it is still to be put back
PAUSE = f"""
    UPDATE holdfast_job
    SET status = 'paused', reason = :reason, version = version + 1,
        gate = CASE WHEN gate = 'lane' OR (gate = 'arrival' AND (watched = 1 OR (lane IS NOT NULL AND place IS NULL)))
            THEN gate END
    WHERE seq $any(seqs: bigint) AND {guard(Change.PAUSE)}
    RETURNING seq, version"""


async def pause(tx: Tx, ids: Sequence[UUID], asked: Asked) -> list[PauseAnswer]:
    """Pause jobs until they are resumed: at once what does not run, by request what runs."""
    jobs = await lock(tx, ids)
    running = [job for job in jobs if job.status is Status.RUNNING]
    waiting = [job for job in jobs if job.status is not Status.RUNNING]
    _refuse(waiting, Change.PAUSE)
    if waiting:
        versions: dict[int, int] = dict(await tx.fetch_all(PAUSE, seqs=[job.seq for job in waiting], reason=asked.why))
        await _announce(tx, waiting, versions, "job:paused", Status.PAUSED, asked.facts())
        halting = [(job.lane, job.id) for job in waiting if job.lane is not None and job.head]
        await events.append(tx, [lanes.halted(lane, id_, asked.why) for lane, id_ in halting])
    await _request(tx, running, REQUEST_PAUSE, "job:pausing", asked)
    answers = dict.fromkeys((job.seq for job in waiting), PauseAnswer.PAUSED)
    answers |= dict.fromkeys((job.seq for job in running), PauseAnswer.REQUESTED)
    return await _in_order(tx, ids, answers)


# what has blockers is counted anew: which of them have closed meanwhile nobody has written down; but what has a place
# in its lane was released before it got it, and keeps it
WAITS_FOR_NOBODY = """(place IS NOT NULL OR (SELECT 1 FROM holdfast_blocker
            WHERE holdfast_blocker.job = holdfast_job.seq ORDER BY holdfast_blocker.position LIMIT 1) IS NULL)"""
AGAIN = f"""
    status = CASE WHEN {WAITS_FOR_NOBODY} THEN 'pending' ELSE 'blocked' END,
        gate = CASE gate WHEN 'lane' THEN 'lane' ELSE 'arrival' END,
        cancel_requested_at = NULL, pause_requested_at = NULL, reason = NULL, error = NULL, finished_at = NULL,
        stale_at = NULL, closed_as = NULL, closed_at = NULL, version = version + 1"""
# who was the head of its lane until it was cancelled may not have passed it on yet, and whom others failed by may not
# have put them back: admission is to look at it now
IS_WANTED_NOW = "gate = 'arrival' AND (watched = 1 OR (lane IS NOT NULL AND place IS NULL AND version > 1))"
RESUME = f"""
    UPDATE holdfast_job SET {AGAIN},
        wake_at = CASE WHEN run_at > $now AND {WAITS_FOR_NOBODY} AND NOT coalesce({IS_WANTED_NOW}, false)
            THEN run_at ELSE $now END
    WHERE seq $any(seqs: bigint) AND {guard(Change.RESUME)}
    RETURNING seq, version, status"""
RETRY = f"""
    UPDATE holdfast_job SET {AGAIN},
        used = 0, crashes = 0, run_at = $now, wake_at = $now
    WHERE seq $any(seqs: bigint) AND {guard(Change.RETRY)}
    RETURNING seq, version, status"""


async def resume(tx: Tx, ids: Sequence[UUID], asked: Asked, edit: InputEdit | None = None) -> list[Job]:
    """Let paused jobs go on, in their place and with the attempts they have used; *edit* changes the input of one."""
    jobs = await lock(tx, ids)
    _refuse(jobs, Change.RESUME, "hf.retry(job) runs failed and cancelled jobs again")
    former = await _former_input(tx, jobs, edit, asked)
    await _open_again(tx, jobs, RESUME, asked, edit)
    await _change_input(tx, jobs, edit, former)
    return await _read(tx, ids)


async def retry(tx: Tx, ids: Sequence[UUID], asked: Asked, edit: InputEdit | None = None) -> list[Job]:
    """Run failed or cancelled jobs again, with a new budget of attempts; their unique keys must be free.

    *Edit* changes the input of one.
    """
    jobs = await lock(tx, ids)
    _refuse(jobs, Change.RETRY, "hf.start_again(job) starts a new chain with the same input")
    former = await _former_input(tx, jobs, edit, asked)
    await take_keys(tx, sorted({job.chain_id for job in jobs}))
    await _open_again(tx, jobs, RETRY, asked, edit)
    await _change_input(tx, jobs, edit, former)
    return await _read(tx, ids)


class InputEdit(Protocol):
    """What becomes of the input of one job: *before* and *after* are JSON texts, *changed* where they differ."""

    @property
    def before(self) -> str: ...
    @property
    def after(self) -> str: ...
    @property
    def changed(self) -> list[str]: ...


class InputChanged(Exception):
    """Somebody has changed the input since it was read."""


class StoredInput(NamedTuple):
    """The input of a job as it is stored; *schema* is what the owner of its task has written down, if anybody has."""

    task: str
    input: str
    schema: str | None


INPUT = """
    SELECT task, input, (SELECT known.input_schema FROM holdfast_task AS known WHERE known.name = holdfast_job.task)
    FROM holdfast_job WHERE seq = :seq"""


async def find_input(tx: Tx, job_id: UUID) -> StoredInput:
    """Read the input of the current job of a chain, or raise `JobNotFound`."""
    (current,) = await current_jobs(tx, [job_id])
    return StoredInput(*(await tx.fetch_all(INPUT, seq=current.seq))[0])


async def _former_input(tx: Tx, jobs: Sequence[LockedJob], edit: InputEdit | None, asked: Asked) -> NewEntry | None:
    """Make the entry of the journal that keeps the input of a job that is edited; or raise, having written nothing."""
    if edit is None or not edit.changed:
        return None
    (job,) = jobs
    ((_, input_, _),) = await tx.fetch_all(INPUT, seq=job.seq)
    if input_ != edit.before:
        raise InputChanged
    body = json.dumps({"by": asked.by, "why": asked.why, "input": None})
    body = f"{body.removesuffix('null}')}{input_}}}"  # the very text that was stored
    return NewEntry((await journal.last(tx, job.seq)).mark.after_entry(body), journals.INPUT, body)


CHANGE_INPUT = """UPDATE holdfast_job SET input = :input WHERE seq = :seq"""


async def _change_input(tx: Tx, jobs: Sequence[LockedJob], edit: InputEdit | None, former: NewEntry | None) -> None:
    if edit is not None and former is not None:
        (job,) = jobs
        await tx.execute(CHANGE_INPUT, input=edit.after, seq=job.seq)
        await journal.write(tx, job.seq, NO_ATTEMPT, [former])


NO_ATTEMPT = 0
"""Stands for the attempt in an entry of the journal that a person has written."""


async def _open_again(tx: Tx, jobs: Sequence[LockedJob], sql: str, asked: Asked, edit: InputEdit | None = None) -> None:
    rows = await tx.fetch_all(sql, seqs=[job.seq for job in jobs])
    await chain_ends.reopen(tx, [job.chain_id for job in jobs if job.chain_index > 0])
    attempts = {job.seq: job.attempt for job in jobs}
    facts = asked.facts(changed=edit.changed or None if edit is not None else None)
    again = [
        events.NewEvent(seq, "job:resumed", status, version, attempts[seq], facts) for seq, version, status in rows
    ]
    await events.append(tx, again + _resumed_lanes(jobs, asked))


KEYS = """SELECT id, task, unique_key FROM holdfast_job WHERE id $any(ids: text) AND unique_key IS NOT NULL"""


async def take_keys(tx: Tx, chain_ids: Sequence[str], *, reopens: bool = True) -> None:
    """Take the keys of chains that are to open again, and of those that failed by them and will be blocked again.

    A chain that had failed and is completed does not open again (*reopens*), but those that failed by it do.

    For the latter this is the only time: who has a key of theirs keeps it. Admission may not wait for a key that a
    caller's open transaction is just taking; a verb may.
    """
    rows = await tx.fetch_all(KEYS, ids=chain_ids) if reopens else []
    own = {(task, key): UUID(id_) for id_, task, key in reversed(rows)}
    failed = await dependents.failed_by(tx, chain_ids)
    before = await unique.holders(tx, [*own, *dependents.keys_of(failed)])
    asked = own | dependents.keys_put_back(chain_ids, failed, own | before)
    if not asked:
        return
    holders = await unique.take(tx, [unique.WantedKey(task, Unique(key), id_) for (task, key), id_ in asked.items()])
    lost = next(((UUID(id_), key, by) for id_, task, key in rows if str(by := holders[task, key]) != id_), None)
    # somebody may have been faster: who failed by one that stays failed does, too; a caller may go on after an error
    kept = {} if lost else own | dependents.keys_put_back(chain_ids, failed, before | holders)
    taken = [key for key, id_ in asked.items() if holders[key] == id_ != before.get(key)]
    await unique.free(tx, [(*key, asked[key]) for key in taken if key not in kept])
    if lost:
        raise UniqueConflict(*lost)


RESCHEDULE = f"""
    UPDATE holdfast_job
    SET run_at = CASE WHEN :run_at > $now THEN CAST(:run_at AS bigint) ELSE $now + :delay END,
        wake_at = CASE WHEN {IS_WANTED_NOW} THEN $now WHEN :run_at > $now THEN CAST(:run_at AS bigint)
            ELSE $now + :delay END,
        gate = CASE gate WHEN 'lane' THEN 'lane' ELSE 'arrival' END, version = version + 1
    WHERE seq $any(seqs: bigint) AND {guard(Change.RESCHEDULE)}
    RETURNING seq, version, run_at"""


async def reschedule(tx: Tx, ids: Sequence[UUID], run_at_ms: int, delay_ms: int, asked: Asked) -> list[Job]:
    """Have pending jobs run at *run_at_ms*, or, where that is past, in *delay_ms* from now."""
    jobs = await lock(tx, ids)
    _refuse(jobs, Change.RESCHEDULE)
    seqs = [job.seq for job in jobs]
    rows = await tx.fetch_all(RESCHEDULE, seqs=seqs, run_at=run_at_ms, delay=delay_ms)
    due_at = rows[0][2]  # one statement, one time
    facts = asked.facts(run_at=instant_text(instant(due_at)))
    await _announce(tx, jobs, {seq: version for seq, version, _ in rows}, "job:rescheduled", Status.PENDING, facts)
    return await _read(tx, ids)


async def _read(tx: Tx, ids: Sequence[UUID]) -> list[Job]:
    found = await current_jobs(tx, ids)
    jobs = {job.id: job for job in await reads.jobs_by_id(tx, [each.id for each in found])}
    return [jobs[each.id] for each in found]
