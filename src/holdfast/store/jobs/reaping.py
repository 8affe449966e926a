"""Reaping: jobs whose worker is gone are taken back, by their task's policy, in one guarded step.

A reap is decided in the reaping transaction itself: the row is unlocked, and its lease is over by the database's
clock, or its worker is proved dead. An earlier look may put a reap off, never bring one about: after an outage every
lease looks expired, so only rows are taken whose own lease is shorter than the time since the store came back, or
since its server started; and a row that was found expired *and locked* is left alone for one lease more, for its worker
could not renew it. Who reaps says what time it expects the database to have: if that is far later, the call has waited
for long, or the clock has jumped, and every lease looks expired as after an outage.

*Blame.* A worker may have died of any job that had begun in its process: each of them has crashed. It has not died of
what had not begun, nor of a suspect in a child process, whose own death the worker would have reported; nor has it died
of any if its whole machine was started anew. Any other death counts, also by SIGKILL: the system may have sent it, for
lack of memory. Nobody can know
that a worker which renews no lease is dead: one that stood still, or was cut off, and finds its jobs taken takes the
crashes back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from holdfast.database.tx import Row, Tx
from holdfast.models import BUILT_IN
from holdfast.outcomes import LOST, Facts, Kind, Outcome, lost
from holdfast.store import task_rows
from holdfast.store.jobs.claiming import Token, token_of
from holdfast.store.jobs.settling import LOCK_RUNNING, Settlement, decide, lock_other_rows, write_ends
from holdfast.store.rows import LOCKED, LockedJob, to_locked
from holdfast.store.workers import IN_CHILD, Machine, ended_by_restart, names_on_rows
from holdfast.times import EPOCH
from holdfast.unreadable import object_of

MOST_REAPED = 50


class TakenBack(NamedTuple):
    """A job that was taken back, the number of the attempt that was lost, and what it came to."""

    seq: int
    id: str
    task: str
    chain_id: str
    attempt: int
    outcome: Outcome
    queue: str


@dataclass(frozen=True, slots=True)
class Reaped:
    """Which jobs were taken back, and the leases, in ms, of those that were expired but locked by somebody.

    *now_ms* is the database's time. *is_late*: nothing was even looked at, for it was not the time that was expected.
    *has_arrivals*: a queue may have some; False only if it was seen that none has.
    """

    now_ms: int
    taken: Sequence[TakenBack] = ()
    locked: dict[int, int] = field(default_factory=dict)
    more: bool = False
    is_late: bool = False
    has_arrivals: bool = True

    @property
    def count(self) -> int:
        """How many were taken back."""
        return len(self.taken)


LATE_MS = 5_000
MARGIN_SHARE = 6  # the margin is a sixth of the lease, and LATE_MS at most
NOW = {
    "postgres": """
    SELECT $now, $now - CAST(EXTRACT(EPOCH FROM pg_postmaster_start_time()) * 1000 AS bigint)""",
    "sqlite": """SELECT $now, NULL""",
}
# any lease, over or not: who only reads while others hold leases would not notice that nobody can renew them. A
# statement without parameters keeps the plan that it was prepared with: while the table was tiny, to read all of it
PEEK = {
    database: f"""{now}, (SELECT leased.seq FROM holdfast_job AS leased
        WHERE leased.lease_until IS NOT NULL ORDER BY leased.lease_until LIMIT 1),
        (SELECT arrived.queue FROM holdfast_job AS arrived
        WHERE arrived.gate = 'arrival' AND arrived.queue > :after ORDER BY arrived.queue LIMIT 1)"""
    for database, now in NOW.items()
}


async def peek(tx: Tx, expected_ms: int | None = None) -> Reaped | None:
    """Look whether any job is leased, in one statement: an idle process has no more to do; None says that one is."""
    ((now_ms, _, leased, queue),) = await tx.fetch_all(PEEK[tx.database], after="")
    is_late = expected_ms is not None and now_ms - expected_ms > LATE_MS
    return Reaped(now_ms, is_late=is_late, has_arrivals=queue is not None) if leased is None else None


FIND = """
    SELECT seq, lease_ms FROM holdfast_job
    WHERE lease_until < $now AND lease_ms <= :quiet_ms AND NOT (seq $any(spared: bigint))
    ORDER BY lease_until LIMIT :most"""
# coalesce: plainly written it goes by the index of all leases
EXPIRED = f"""
    SELECT {LOCKED}, worker FROM holdfast_job
    WHERE seq $any(seqs: bigint) AND coalesce(lease_until, $now) < $now
    ORDER BY seq $skip_locked"""


async def reap(
    tx: Tx,
    quiet_ms: int,
    spared: Sequence[int] = (),
    most: int = MOST_REAPED,
    expected_ms: int | None = None,
    machine: Machine | None = None,
) -> Reaped:
    """Take back jobs whose lease is over, but none of *spared* and none whose lease is longer than *quiet_ms*.

    Nothing happens if the database's time is far beyond *expected_ms*. If it is a little beyond, a lease whose margin
    is shorter than that is told as locked: whoever holds it has waited as long to renew it.
    """
    ((now_ms, uptime_ms),) = await tx.fetch_all(NOW[tx.database])
    late_ms = 0 if expected_ms is None else now_ms - expected_ms
    if late_ms > LATE_MS:
        return Reaped(now_ms, is_late=True)
    if uptime_ms is not None and uptime_ms >= 0:  # else its clock was put back: nothing would be reaped for as long
        quiet_ms = min(quiet_ms, uptime_ms)
    found: dict[int, int] = dict(await tx.fetch_all(FIND, quiet_ms=quiet_ms, spared=list(spared), most=most))
    if not found:
        return Reaped(now_ms)
    ripe = [seq for seq, lease_ms in found.items() if late_ms <= lease_ms / MARGIN_SHARE]
    rows = await tx.fetch_all(EXPIRED, seqs=ripe) if ripe else []
    taken = await _take_back(tx, rows, machine, _lease_ended)
    locked = found.keys() - {each.seq for each in taken}
    return Reaped(now_ms, taken, {seq: found[seq] for seq in sorted(locked)}, more=len(found) == most)


STILL_EXPIRED = """SELECT seq FROM holdfast_job WHERE seq $any(seqs: bigint) AND lease_until < $now"""
FREE = """SELECT seq FROM holdfast_job WHERE seq $any(seqs: bigint) ORDER BY seq $skip_locked"""


async def still_locked(tx: Tx, seqs: Sequence[int]) -> set[int]:
    """Tell which of the expired *seqs* somebody still has locked, so that their workers cannot renew them."""
    expired = {seq for (seq,) in await tx.fetch_all(STILL_EXPIRED, seqs=list(seqs))}
    return expired - {seq for (seq,) in await tx.fetch_all(FREE, seqs=sorted(expired))} if expired else set()


OF_DEAD = f"""
    SELECT {LOCKED}, worker FROM holdfast_job
    WHERE lease_until IS NOT NULL AND worker $any(workers: text)
    ORDER BY lease_until LIMIT :most $skip_locked"""


async def reap_dead(
    tx: Tx, workers: Sequence[str], most: int = MOST_REAPED, machine: Machine | None = None
) -> list[TakenBack]:
    """Take back jobs of *workers* that are proved dead, lease or not; answer which."""
    names = [name for each in workers for name in names_on_rows(each)]
    rows = await tx.fetch_all(OF_DEAD, workers=names, most=most)
    return await _take_back(tx, rows, machine, lambda _: "the worker was gone; its process has ended")


async def give_back_unwritten(tx: Tx, tokens: Sequence[Token]) -> int:
    """Give back jobs whose ends their worker, which is about to end, could not write; answer how many.

    They run again, and it costs no attempt. Those whose task says that a lost one does not run again are left to be
    lost: their handlers have done their work.
    """
    held = [to_locked(row) for row in await tx.fetch_all(LOCK_RUNNING, seqs=[each.seq for each in tokens])]
    jobs = await lock_other_rows(tx, [job for job in held if token_of(job) in tokens])
    policies = await task_rows.policies_of(tx, {job.task for job in jobs})
    outcome = Outcome(Kind.GIVE_BACK, reason="its end could not be written")
    given_back = [
        (job, decide(job, Settlement(token_of(job), outcome, policies[job.task].get("halts_lane", True))))
        for job in jobs
        if policies[job.task].get("on_lost", "retry") == "retry"
    ]
    await write_ends(tx, given_back)
    return len(given_back)


ACCUSED = """
    SELECT seq, error FROM holdfast_job
    WHERE seq $any(seqs: bigint) AND crashes > 0 AND coalesce(status, '') IN ('pending', 'running')
    ORDER BY seq $skip_locked"""
ABSOLVE = """
    UPDATE holdfast_job SET crashes = crashes - 1, error = given.error
    FROM $list(given: seq bigint, error text) WHERE holdfast_job.seq = given.seq"""


async def absolve(tx: Tx, tokens: Sequence[Token], worker: str) -> int:
    """Take back the crashes of jobs that *worker* has lost and that has not died; answer of how many.

    The error on the row tells that a crash was counted for that very attempt, and from then on that it was none.
    """
    attempts = {each.seq: each.attempt for each in tokens}
    found = [(seq, object_of(error)) for seq, error in await tx.fetch_all(ACCUSED, seqs=sorted(attempts))]
    ours = [
        (seq, json.dumps(error | {"type": "LeaseLost", "message": "the worker lives; its lease was over"}))
        for seq, error in found
        if (error.get("type"), error.get("attempt"), error.get("worker")) == (LOST, attempts[seq], worker)
    ]
    if ours:
        await tx.execute(ABSOLVE, given=ours)
    return len(ours)


def _lease_ended(job: LockedJob) -> str:
    ended_at = EPOCH + timedelta(milliseconds=job.lease_until or 0)
    return f"the worker was gone; its lease ended at {ended_at:%Y-%m-%d %H:%M:%S} UTC"


async def _take_back(
    tx: Tx, rows: Sequence[Row], machine: Machine | None, message: Callable[[LockedJob], str]
) -> list[TakenBack]:
    """Take back what we have locked, with the other rows where their end is written; answer which jobs."""
    if not rows:
        return []
    held = [(to_locked(row[:-1]), row[-1]) for row in rows]
    workers = {job.seq: worker for job, worker in held}
    jobs = await lock_other_rows(tx, [job for job, _ in held])
    policies = await task_rows.policies_of(tx, {job.task for job in jobs})
    restarted = await ended_by_restart(tx, sorted(set(workers.values())), machine) if machine else set()
    ending = []
    for job in jobs:
        policy = policies[job.task]
        attempts = policy.get("attempts") if job.attempts is None else job.attempts
        has_attempts = attempts is None or job.used < attempts
        worker = workers[job.seq]
        outcome = lost(
            job.crashes,
            policy.get("on_lost", "retry"),
            message(job),
            Facts(job.attempt, job.used, worker),
            has_attempts=has_attempts,
            is_blamed=not (worker.endswith(IN_CHILD) or worker in restarted),
        )
        if job.started_at is None:  # it only waited to run
            outcome = Outcome(Kind.GIVE_BACK, reason="lost before it began")
        elif job.task in BUILT_IN:  # ours: it is no worker's death, and loses nothing
            outcome = Outcome(Kind.GIVE_BACK, reason="lost")
        settlement = Settlement(token_of(job), outcome, policy.get("halts_lane", True))
        ending.append((job, decide(job, settlement)))
    await write_ends(tx, ending)
    return [
        TakenBack(job.seq, job.id, job.task, job.chain_id, job.attempt, each.outcome, job.queue) for job, each in ending
    ]
