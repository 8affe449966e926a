"""Retention in the store: chains are marked stale and deleted in bounded batches, set-based, and nobody is waited for.

A batch is found first, by task and outcome, along its index. Then, in one transaction: its rows are locked, passing
over what somebody holds; what is locked is asked once more whether it is due, and whether anybody still needs it; and
the rest is marked or deleted. Whoever makes a chain matter again needs one of the locks that are held by then (a retry,
a delivery of its events, who counts it as a blocker), so what was asked stays true until the commit.

A chain still matters while one of its jobs is open or left something to admission, holds its lane, is a blocker of an
open job, or has a webhook that is not delivered, or not even made of its event. It is not deleted either while a job
that may be retried waited for it: to run again that would need its blockers. Once that is stale itself, it no longer
keeps others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from holdfast.database.tx import Row, Tx
from holdfast.errors import Unreadable
from holdfast.models import Job
from holdfast.retention import Stage
from holdfast.states import TERMINAL, Change, Status, guard
from holdfast.store import unique
from holdfast.store.chains import deletes
from holdfast.store.chains.deletes import NEEDS_BLOCKER, WAITS
from holdfast.store.log import events
from holdfast.store.rows import COLUMNS, FACTS_WITH_RESULTS, LOCKED, LockedJob, to_job, to_locked
from holdfast.unreadable import readable

SINCE = {"stale": "closed_at", "delete": "stale_at"}
"""The column from which the time of a stage counts."""
STANDS = {
    "stale": "{job}.closed_at IS NOT NULL AND {job}.stale_at IS NULL",
    "delete": "{job}.closed_at IS NOT NULL AND {job}.stale_at IS NOT NULL",
}
"""How the first row of a chain stands that a stage is for; as the index of that stage has it."""


@dataclass(frozen=True, slots=True)
class RetentionGroup:
    """The chains of one task that ended one way, and are to be looked at by one stage."""

    task: str
    outcome: Status
    oldest_ms: int
    """Since when the oldest of them has been there; by the database's clock, like *now_ms*."""
    now_ms: int


# a loose scan: the next task behind the last one, so that it costs a probe for each task and not for each row
GROUPS = {
    stage: f"""
    WITH RECURSIVE named(task) AS (
        SELECT CAST('' AS text)
        UNION ALL
        SELECT (SELECT job.task FROM holdfast_job AS job WHERE {stands.format(job="job")} AND job.task > named.task
            ORDER BY job.task LIMIT 1)
        FROM named WHERE named.task IS NOT NULL)
    SELECT named.task, ends.outcome,
        (SELECT job.{SINCE[stage]} FROM holdfast_job AS job
            WHERE job.task = named.task AND job.closed_as = ends.outcome AND {stands.format(job="job")}
            ORDER BY job.{SINCE[stage]} LIMIT 1),
        $now
    FROM named, $list(ends: outcome text)
    WHERE named.task > ''"""
    for stage, stands in STANDS.items()
}


async def groups(tx: Tx, stage: Stage) -> list[RetentionGroup]:
    """Tell which tasks and outcomes have chains for *stage*, due or not: one statement, a probe or four for each."""
    rows = await tx.fetch_all(GROUPS[stage], ends=[(str(each),) for each in TERMINAL])
    return readable([row for row in rows if row[2] is not None], _to_group)


def _to_group(row: Row) -> RetentionGroup:
    """Read a row of GROUPS; SQLite keeps what other SQL has put into a column, of whatever type."""
    task, outcome, oldest, now = row
    if not isinstance(task, str) or not isinstance(oldest, int):
        raise Unreadable("holdfast_job", f"of task {task!r}", "its task is no text, or its time no whole number")
    return RetentionGroup(task, Status(outcome), oldest, now)


@dataclass(frozen=True, slots=True)
class DueChain:
    """A chain that is due, by its first row."""

    seq: int
    id: UUID
    since_ms: int
    jobs: int


@dataclass(frozen=True, slots=True)
class WalkPosition:
    """How far a walk along one group has come; *passed* were found at just that time, and left where they are."""

    since_ms: int = 0
    passed: frozenset[int] = frozenset()

    def behind(self, batch: Sequence[DueChain], gone: Iterable[int]) -> WalkPosition:
        """Go on behind *batch*, of which *gone* are no longer in this group."""
        last = batch[-1].since_ms
        stayed = {each.seq for each in batch if each.since_ms == last} - set(gone)
        return WalkPosition(last, frozenset(stayed | (self.passed if last == self.since_ms else set())))


BEGINNING = WalkPosition()
# by the key behind the last one, as far as a batch goes, and asked for the rest then: so no figures of the planner's,
# however old, make it read and sort the whole line
FIND = {
    stage: f"""
    SELECT found.seq, found.id, found.since, coalesce((SELECT later.chain_index FROM holdfast_job AS later
        WHERE later.chain_id = found.id AND later.chain_index > 0 ORDER BY later.chain_index DESC LIMIT 1), 0) + 1
    FROM (SELECT seq, id, task, closed_as, {since} AS since FROM holdfast_job
        WHERE {STANDS[stage].format(job="holdfast_job")}
            AND (task, closed_as, {since}) >= (:task, :outcome, :since)
            AND NOT (seq $any(passed: bigint))
        ORDER BY task, closed_as, {since} LIMIT :most) AS found
    WHERE found.task = :task AND found.closed_as = :outcome AND found.since <= $now - :age"""
    for stage, since in SINCE.items()
}
MOST_CHAINS = 100
MOST_JOBS = 1_000


async def find(
    tx: Tx, stage: Stage, group: RetentionGroup, age_ms: int, position: WalkPosition
) -> tuple[list[DueChain], bool]:
    """Give the next chains of *group* that have been there for *age_ms*, and tell whether more may follow.

    They have MOST_JOBS jobs in all, unless the first one alone has more.
    """
    rows = await tx.fetch_all(
        FIND[stage],
        task=group.task,
        outcome=str(group.outcome),
        age=age_ms,
        since=position.since_ms,
        passed=sorted(position.passed),
        most=MOST_CHAINS,
    )
    batch: list[DueChain] = []
    jobs = 0
    for seq, id_, since_ms, length in sorted(rows, key=lambda row: row[2]):
        jobs += length
        if batch and jobs > MOST_JOBS:
            return batch, True
        batch.append(DueChain(seq, UUID(id_), since_ms, length))
    return batch, len(rows) == MOST_CHAINS


NEEDS = {"stale": WAITS, "delete": NEEDS_BLOCKER}
"""Which jobs keep the chains that they waited for from going through a stage."""
# scalar subqueries stay index probes; without figures a join reads all jobs
BLOCKING = {
    stage: f"""
    SELECT DISTINCT link.chain_id FROM holdfast_blocker AS link
    WHERE link.chain_id $any(chains: text) AND (SELECT 1 FROM holdfast_job AS waiting
        WHERE waiting.seq = link.job AND waiting.chain_id <> link.chain_id AND {needs}) IS NOT NULL"""
    for stage, needs in NEEDS.items()
}
# one statement: a row of the outbox becomes deliveries in one commit, and of two looks each could miss the other's
UNDELIVERED = f"""
    SELECT parcel.target FROM holdfast_delivery AS parcel
    WHERE parcel.target $any(seqs: bigint) AND (SELECT 1 FROM holdfast_job AS waiting
        WHERE waiting.seq = parcel.job AND {WAITS}) IS NOT NULL
    UNION
    SELECT unmade.job FROM holdfast_outbox AS unmade WHERE unmade.job $any(seqs: bigint)"""


async def _needed(tx: Tx, stage: Stage, chains: dict[str, list[int]]) -> set[str]:
    """Tell which of *chains*, each with its jobs, somebody still needs."""
    if not chains:
        return set()
    blocking = {chain_id for (chain_id,) in await tx.fetch_all(BLOCKING[stage], chains=sorted(chains))}
    seqs = sorted(seq for each in chains.values() for seq in each)
    undelivered = {target for (target,) in await tx.fetch_all(UNDELIVERED, seqs=seqs)}
    return blocking | {chain_id for chain_id, each in chains.items() if undelivered & set(each)}


# coalesce: plainly written it invites the planner to the indexes of heads and of what is ready
AT_REST = "coalesce(head, 0) = 0 AND coalesce(gate, '') = '' AND coalesce(status, '') IN ({})".format(
    ", ".join(f"'{status}'" for status in TERMINAL)
)
"""Says of a job that it has ended, does not hold its lane, and has left nothing to admission."""
FIRSTS = f"""SELECT seq, id FROM holdfast_job WHERE seq $any(seqs: bigint) AND {AT_REST}"""
LATER = f"""
    SELECT seq, chain_id, CASE WHEN {AT_REST} THEN 1 ELSE 0 END FROM holdfast_job
    WHERE chain_id $any(chains: text) AND chain_index > 0"""


async def at_rest(tx: Tx, stage: Stage, batch: Sequence[DueChain]) -> set[int]:
    """Look, without a lock, which of *batch* nobody needs any more; whoever acts on it asks again."""
    firsts = await tx.fetch_all(FIRSTS, seqs=[each.seq for each in batch])
    chains = {id_: [seq] for seq, id_ in firsts}
    restless = set()
    for seq, chain_id, is_at_rest in await tx.fetch_all(LATER, chains=sorted(chains)) if chains else ():
        chains[chain_id].append(seq)
        if not is_at_rest:
            restless.add(chain_id)
    needed = restless | await _needed(tx, stage, chains)
    return {seq for seq, id_ in firsts if id_ not in needed}


JOBS = f"""
    SELECT {COLUMNS}, {FACTS_WITH_RESULTS} FROM holdfast_job
    WHERE holdfast_job.seq $any(seqs: bigint) ORDER BY holdfast_job.chain_index"""


async def jobs_of(tx: Tx, batch: Sequence[DueChain]) -> dict[int, list[Job]]:
    """Read the jobs of chains, by the chain's first row, from its first job on.

    A chain of which a job cannot be read is left out: its hooks would be given half of it.
    """
    firsts = {each.id: each.seq for each in batch}
    later = await tx.fetch_all(LATER, chains=sorted(map(str, firsts)))
    rows = await tx.fetch_all(JOBS, seqs=sorted({*firsts.values(), *(row[0] for row in later)}))
    found: dict[int, list[Job]] = {seq: [] for seq in firsts.values()}
    for job in readable(rows, to_job):
        found[firsts[job.chain_id]].append(job)
    lengths = Counter(chain_id for _, chain_id, _ in later)
    return {each.seq: found[each.seq] for each in batch if len(found[each.seq]) == 1 + lengths[str(each.id)]}


MARKED = {"stale": "holdfast_job.stale_at IS NULL", "delete": "coalesce(holdfast_job.stale_at, 0) > 0"}
LOCK_FIRSTS = {
    stage: f"""
    SELECT {LOCKED} FROM holdfast_job
    WHERE seq $any(seqs: bigint) AND {AT_REST} AND {MARKED[stage]}
        AND coalesce(closed_as, '') = :outcome AND coalesce({since}, $now + 1) <= $now - :age
    ORDER BY seq $skip_locked"""
    for stage, since in SINCE.items()
}
LOCK_LATER = f"""
    SELECT {LOCKED} FROM holdfast_job
    WHERE seq $any(seqs: bigint) AND {AT_REST}
    ORDER BY seq $skip_locked"""


async def _lock(tx: Tx, stage: Stage, group: RetentionGroup, age_ms: int, seqs: Sequence[int]) -> list[LockedJob]:
    """Lock the whole chains whose first rows are *seqs*; leave out what is not due, still needed, or held by others."""
    rows = await tx.fetch_all(LOCK_FIRSTS[stage], seqs=sorted(seqs), outcome=str(group.outcome), age=age_ms)
    firsts = [to_locked(row) for row in rows]
    if not firsts:
        return []
    chains = {each.id: [each] for each in firsts}
    later = await tx.fetch_all(LATER, chains=sorted(chains))
    for row in await tx.fetch_all(LOCK_LATER, seqs=sorted(seq for seq, _, _ in later)) if later else ():
        each = to_locked(row)
        chains[each.chain_id].append(each)
    lengths = Counter(chain_id for _, chain_id, _ in later)
    whole = {id_: jobs for id_, jobs in chains.items() if len(jobs) == lengths[id_] + 1}
    needed = await _needed(tx, stage, {id_: [job.seq for job in jobs] for id_, jobs in whole.items()})
    return sorted(job for id_, jobs in whole.items() if id_ not in needed for job in jobs)


MARK = f"""
    UPDATE holdfast_job SET stale_at = $now, version = version + 1
    WHERE seq $any(seqs: bigint) AND {guard(Change.MARK_STALE)}
    RETURNING seq, status, version, attempt"""


async def mark(tx: Tx, group: RetentionGroup, age_ms: int, seqs: Sequence[int]) -> list[int]:
    """Mark those of the chains *seqs*, by their first rows, that are due and needed by nobody; answer which."""
    locked = await _lock(tx, "stale", group, age_ms, seqs)
    if not locked:
        return []
    rows = await tx.fetch_all(MARK, seqs=[each.seq for each in locked])
    stale = [events.NewEvent(row[0], "job:stale", *row[1:]) for row in sorted(rows)]
    await events.append(tx, stale)
    return [each.seq for each in locked if each.chain_index == 0]


async def delete(tx: Tx, group: RetentionGroup, age_ms: int, seqs: Sequence[int]) -> list[int]:
    """Delete those of the chains *seqs*, by their first rows, that have been stale for long enough; answer which."""
    locked = await _lock(tx, "delete", group, age_ms, seqs)
    held = await unique.held_elsewhere(tx, [key for each in locked if (key := deletes.key_of(each)) is not None])
    free = [each for each in locked if each.chain_id not in held]
    if free:
        await deletes.remove(tx, free)
    return [each.seq for each in free if each.chain_index == 0]
