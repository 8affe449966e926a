"""Deleting whole chains, with everything of theirs, in one transaction.

A delete may run in a caller's transaction, so it locks only the rows of the chains that it names. A job that holds its
lane, or has just left it and may still have to pass it on, cannot simply vanish: nobody would promote the next. It
stays as a *tombstone* (cancelled, an arrival, emptied, under an id that nobody can ask for) until admission has
promoted its lane.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from uuid import UUID

from holdfast.database.tx import Tx
from holdfast.errors import Busy, StillReferenced
from holdfast.models import INTERNAL_QUEUE, Asked
from holdfast.states import OPEN, Change, Status, guard
from holdfast.store import lanes, unique
from holdfast.store.chains import dependents
from holdfast.store.log import events
from holdfast.store.rows import LOCKED, LockedJob, to_locked

NOBODY = Asked()
TOMBSTONE = "deleted"
"""What `closed_as` holds on a tombstone; reads pass over it."""


def key_of(job: LockedJob) -> tuple[str, str, UUID] | None:
    """Give the unique key that its chain may hold, as `unique.free` takes it."""
    return None if job.unique_key is None else (job.task, job.unique_key, UUID(job.chain_id))


LOCK = f"""
    SELECT {LOCKED} FROM holdfast_job
    WHERE seq $any(seqs: bigint) AND {guard(Change.DELETE)}
        AND coalesce(closed_as, '') <> '{TOMBSTONE}'  -- who has waited for another delete finds what that has left
    ORDER BY seq $locked"""


async def delete(tx: Tx, ids: Sequence[UUID], cascade: bool = False, asked: Asked = NOBODY) -> list[UUID]:
    """Delete the chains of *ids*, with *cascade* also all they wait for; answer those that were there.

    Unknown ids are passed over. Raises `StillReferenced`, having changed nothing, while a job of another chain needs
    one of them (`NEEDS_BLOCKER`).
    """
    locked = await _lock(tx, ids, cascade)
    if locked:
        await remove(tx, locked, asked)
    return [UUID(each.id) for each in locked if each.chain_index == 0]


async def would_delete(tx: Tx, ids: Sequence[UUID], cascade: bool = False) -> list[UUID]:
    """Say which chains `delete` would delete now, or raise what it would; nothing is locked or changed."""
    chains = await _chains(tx, ids, cascade)
    await _refuse_referenced(tx, chains)
    return list(map(UUID, chains))


TRIES = 5


async def _lock(tx: Tx, ids: Sequence[UUID], cascade: bool) -> list[LockedJob]:
    """Find and lock all jobs of the chains; if one goes on between the look and the lock, look again."""
    locked: list[LockedJob] = []
    asked: set[int] = set()
    for _ in range(TRIES):
        chains = await _chains(tx, ids, cascade)
        await _refuse_referenced(tx, chains)
        fresh = sorted(set(await _jobs(tx, chains)) - asked)
        if not fresh:
            return sorted(locked)
        locked += [to_locked(row) for row in await tx.fetch_all(LOCK, seqs=fresh)]
        asked |= set(fresh)
    raise Busy("the chains that were named go on too fast; try again")


CHAINS = """SELECT DISTINCT chain_id FROM holdfast_job WHERE id $any(ids: text)"""
# two probes instead of OR: each has its index
JOBS = """
    SELECT seq FROM holdfast_job WHERE id $any(chains: text)
    UNION ALL
    SELECT seq FROM holdfast_job WHERE chain_id $any(chains: text) AND chain_index > 0"""
WAITED_FOR = """SELECT DISTINCT chain_id FROM holdfast_blocker WHERE job $any(jobs: bigint)"""


async def _chains(tx: Tx, ids: Sequence[UUID], cascade: bool) -> list[str]:
    """Find the chains of *ids*; with *cascade*, what any of their steps waits for, and so on, each once."""
    newest = [chain_id for (chain_id,) in await tx.fetch_all(CHAINS, ids=[str(each) for each in ids])]
    found = dict.fromkeys(newest)
    while cascade and newest:
        waited_for = await tx.fetch_all(WAITED_FOR, jobs=await _jobs(tx, newest))
        newest = [chain_id for (chain_id,) in waited_for if chain_id not in found]
        found |= dict.fromkeys(newest)
    return list(found)


async def _jobs(tx: Tx, chains: Sequence[str]) -> list[int]:
    return [seq for (seq,) in await tx.fetch_all(JOBS, chains=chains)]


EDGES = """SELECT DISTINCT job, chain_id FROM holdfast_blocker WHERE job $any(jobs: bigint)"""
CHAIN_OF = """SELECT seq, chain_id FROM holdfast_job WHERE seq $any(seqs: bigint)"""


async def closures(tx: Tx, chains: Sequence[str], cascade: bool) -> dict[str, set[str]]:
    """Say which chains go with each of *chains*: itself and, with *cascade*, all that it waits for, and so on."""
    waits_for: dict[str, set[str]] = {}
    newest = list(chains) if cascade else []
    while newest:
        jobs: dict[int, str] = dict(await tx.fetch_all(CHAIN_OF, seqs=await _jobs(tx, newest)))
        waits_for |= {chain_id: set() for chain_id in newest}
        for job, chain_id in await tx.fetch_all(EDGES, jobs=sorted(jobs)) if jobs else ():
            waits_for[jobs[job]].add(chain_id)
        newest = sorted(set().union(*waits_for.values()) - waits_for.keys())
    return {chain_id: _closure(chain_id, waits_for) for chain_id in chains}


def _closure(chain_id: str, waits_for: Mapping[str, set[str]]) -> set[str]:
    seen, newest = {chain_id}, {chain_id}
    while newest:
        newest = set().union(*(waits_for.get(each, set()) for each in newest)) - seen
        seen |= newest
    return seen


LOCK_FREE = """
    SELECT seq, chain_id, task, unique_key FROM holdfast_job WHERE seq $any(seqs: bigint)
    ORDER BY seq $skip_locked"""


async def held_elsewhere(tx: Tx, chains: Sequence[str]) -> set[str]:
    """Lock all jobs of *chains* and their unique keys; name those chains of which somebody else has one locked."""
    seqs = await _jobs(tx, chains) if chains else []
    locked = {row[0]: row[1:] for row in await tx.fetch_all(LOCK_FREE, seqs=seqs)} if seqs else {}
    missed = [seq for seq in seqs if seq not in locked]
    busy = {chain_id for _, chain_id in await tx.fetch_all(CHAIN_OF, seqs=missed)} if missed else set()
    keys = [(task, key, UUID(chain_id)) for chain_id, task, key in locked.values() if key is not None]
    return busy | await unique.held_elsewhere(tx, keys)


WAITS = "coalesce(waiting.status, '') IN ({})".format(", ".join(f"'{status}'" for status in OPEN))
"""Says of a job that it waits, or runs and may read what its blockers gave."""
NEEDS_BLOCKER = f"({WAITS} OR (waiting.stale_at IS NULL AND coalesce(waiting.status, '') <> 'completed'))"
"""Says of a job that it needs the chains it waited for: it is open, or may be retried, which a stale one no longer is.

Without them its retry would fail: a blocker that is not there counts as cancelled.
"""
# coalesce: plainly written it goes by the index of what is open, or has failed
REFERENCES = f"""
    SELECT holdfast_blocker.chain_id, waiting.id, waiting.chain_id
    FROM holdfast_blocker JOIN holdfast_job AS waiting ON waiting.seq $is(holdfast_blocker.job)
    WHERE holdfast_blocker.chain_id $any(chains: text) AND {NEEDS_BLOCKER}
    ORDER BY holdfast_blocker.job"""  # by the other side of the join it would go through all jobs in their order


async def _refuse_referenced(tx: Tx, chains: Sequence[str]) -> None:
    rows = await tx.fetch_all(REFERENCES, chains=chains)
    own = set(chains)
    outside = [(UUID(chain_id), UUID(job)) for chain_id, job, chain_of_job in rows if chain_of_job not in own]
    if outside:
        raise StillReferenced(outside)


# an arrival of a lane may be one that was cancelled a moment ago, perhaps in this very transaction
DELETE = """
    DELETE FROM holdfast_job
    WHERE seq $any(seqs: bigint) AND head = 0 AND (lane IS NULL OR coalesce(gate, '') <> 'arrival')"""
BURY = f"""
    UPDATE holdfast_job
    SET status = 'cancelled', gate = 'arrival', wake_at = $now, head = 0, place = NULL,
        id = '~' || CAST(seq AS text), chain_id = '~' || CAST(seq AS text),  -- an id may be deleted more than once
        input = '{{}}', output = NULL, error = NULL, unique_key = NULL, worker = NULL, lease_until = NULL,
        closed_as = '{TOMBSTONE}', closed_at = $now, finished_at = $now, version = version + 1
    WHERE seq $any(seqs: bigint) AND {guard(Change.DELETE)}"""
FORGET_PHASES = """DELETE FROM holdfast_phase WHERE job $any(seqs: bigint)"""
FORGET_JOURNAL = """DELETE FROM holdfast_journal WHERE job $any(seqs: bigint)"""
FORGET_BLOCKERS = """DELETE FROM holdfast_blocker WHERE job $any(seqs: bigint)"""
# its history goes with it, and `job:deleted` stands for that
FORGET_EVENTS = """DELETE FROM holdfast_event WHERE job $any(seqs: bigint)"""
# two probes instead of OR: each has its index. Who delivers something about a job that is gone goes on with it
FORGET_DELIVERIES = """DELETE FROM holdfast_delivery WHERE target $any(seqs: bigint)"""
FORGET_DELIVERED = """DELETE FROM holdfast_delivery WHERE job $any(seqs: bigint)"""
FORGET = (FORGET_PHASES, FORGET_JOURNAL, FORGET_BLOCKERS, FORGET_EVENTS, FORGET_DELIVERIES, FORGET_DELIVERED)


async def remove(tx: Tx, locked: Sequence[LockedJob], asked: Asked = NOBODY) -> None:
    """Delete all jobs of whole chains, which we have locked, with everything of theirs."""
    seqs = [each.seq for each in locked]
    await unique.free(tx, [key for each in locked if (key := key_of(each)) is not None])
    # if one was retried a moment ago, keys were taken for those who failed by it, whom nobody puts back now
    await dependents.free_keys(tx, sorted({each.chain_id for each in locked}))
    for statement in FORGET:
        await tx.execute(statement, seqs=seqs)
    await tx.execute(DELETE, seqs=seqs)
    await tx.execute(BURY, seqs=seqs)
    # what keeps no history, or is the engine's own, goes in silence
    logged = [each for each in locked if each.history and each.queue != INTERNAL_QUEUE]
    freed = [lanes.resumed(each.halts, each.id, asked.said()) for each in locked if each.halts is not None]
    is_running = any(each.status == Status.RUNNING for each in locked)
    await events.append(
        tx, [_deleted(each, asked) for each in logged] + freed, hint=events.TO_ALL if is_running else None
    )


def _deleted(job: LockedJob, asked: Asked) -> events.NewEvent:
    """Say that a job is gone, and what the filters of readers must know of it: its row can no longer be asked."""
    facts: dict[str, object] = {"id": job.id, "seq": job.seq, "chain_id": job.chain_id, "task": job.task}
    facts |= {name: value for name, value in (("lane", job.lane), ("parent", job.parent)) if value is not None}
    return events.NewEvent(events.NO_JOB, "job:deleted", facts=json.dumps(facts | asked.said()))
