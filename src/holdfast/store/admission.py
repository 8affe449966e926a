"""Admission: the engine's short step that makes arrived jobs claimable; the only place that coordinates.

`gate` says where an unfinished row stands, and each value has one partial index:
    ready    may be claimed now
    lane     has a place, waits for its lane's head
    arrival  there is something to do for this row at `wake_at`
    NULL     nothing to do: running, blocked and counted, finished, halting its lane
An arrival is a job that became due, wants to join a lane, has blockers to be counted, or has ended and left something
undone: its lane to promote, its dependents to tell. One bounded, indexed step per queue takes them, inside the claim's
transaction. Nobody waits for a lock: every row is taken SKIP LOCKED, and what was skipped is looked at again soon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.database.tx import Tx
from holdfast.states import TERMINAL, Status
from holdfast.store import lanes
from holdfast.store.chains import blockers
from holdfast.store.chains.deletes import TOMBSTONE
from holdfast.store.log import fan_out
from holdfast.store.rows import AGAIN_MS, PRIORITY_MS, leave_to_admission

MOST_ARRIVALS = 200


class Arrival(NamedTuple):
    """A row that admission has locked."""

    seq: int
    id: str
    chain_id: str
    status: str
    lane: str | None
    place: int | None
    closed_as: str | None
    on_blocker_failure: str
    watched: int
    version: int
    is_due: bool

    @property
    def is_opened_again(self) -> bool:
        """Tell whether it is the first row of an open chain that others may have failed by."""
        return bool(self.watched) and self.closed_as is None

    @property
    def may_have_left_its_lane(self) -> bool:
        """Tell whether it may have been the head of its lane, where nobody stands in its place yet.

        A job that ended may be open again before its lane was passed on: one that joins the lane anew passes it on by
        that, but not one that is to wait for its time or for blockers. Nothing has ever happened to a job that is new.
        """
        if self.lane is None or self.place is not None:
            return False
        return self.status in ENDED or (self.version > 1 and (self.status == Status.BLOCKED or not self.is_due))


COLUMNS = "seq, id, chain_id, status, lane, place, closed_as, on_blocker_failure, watched, version, run_at <= $now"
ARRIVALS = f"""
    SELECT {COLUMNS} FROM holdfast_job
    WHERE queue = :queue AND gate = 'arrival' AND wake_at <= $now
    ORDER BY wake_at, seq LIMIT :most $skip_locked"""


async def admit(tx: Tx, queue: str, most: int = MOST_ARRIVALS) -> int:
    """Take up to *most* arrivals of *queue*; answer how many there were."""
    rows = await tx.fetch_all(ARRIVALS, queue=queue, most=most)
    if rows:
        await _take_up(tx, [Arrival(*row) for row in rows])
    return len(rows)


# two probes instead of OR: each has its index
NAMED = f"""
    SELECT {COLUMNS} FROM holdfast_job
    WHERE seq $in(SELECT asked.seq FROM holdfast_job AS asked WHERE asked.id $any(ids: text)
        UNION SELECT first.seq FROM holdfast_job AS asked JOIN holdfast_job AS first ON first.id $is(asked.chain_id)
            WHERE asked.id $any(ids: text))
        AND coalesce(gate, '') = 'arrival' AND wake_at <= $now
    ORDER BY seq $skip_locked"""


async def admit_named(tx: Tx, ids: Sequence[str]) -> None:
    """Take up, now, what was left to admission on the rows of jobs *ids* and on the first rows of their chains."""
    rows = await tx.fetch_all(NAMED, ids=list(ids))
    if rows:
        await _take_up(tx, [Arrival(*row) for row in rows])


async def _take_up(tx: Tx, arrived: Sequence[Arrival]) -> None:
    """Take up arrivals: those that ended first, for chains that are open again may put some of them back to blocked.

    All others come last and together, so that they join their lanes in one order.
    """
    ended = [each for each in arrived if each.status in ENDED and not each.is_opened_again]
    later = await _admit(tx, ended) | await _block_again(tx, [each for each in arrived if each.is_opened_again])
    done = later | {each.seq for each in ended}
    later |= await _admit(tx, [each for each in arrived if each.seq not in done])
    await leave_to_admission(tx, sorted(later), AGAIN_MS)


READY = f"""
    UPDATE holdfast_job SET gate = 'ready', sort_key = $now - {PRIORITY_MS} * priority
    WHERE seq $any(seqs: bigint)"""
WAIT = """UPDATE holdfast_job SET wake_at = run_at WHERE seq $any(seqs: bigint)"""


async def _admit(tx: Tx, arrived: Sequence[Arrival]) -> set[int]:
    """Let arrivals go where they belong; answer which must be looked at again."""
    due = [each for each in arrived if each.status == Status.PENDING and each.is_due]
    if ready := [each.seq for each in due if each.lane is None]:
        await tx.execute(READY, seqs=ready)
    leaving = [each for each in arrived if each.may_have_left_its_lane]
    later = await _move_lanes(tx, [each for each in due if each.lane is not None], leaving)
    waiting = [each.seq for each in arrived if each.status == Status.PENDING and not each.is_due]
    if waiting := [seq for seq in waiting if seq not in later]:
        await tx.execute(WAIT, seqs=waiting)
    blocked = [each for each in arrived if each.status == Status.BLOCKED]
    later |= await _count_blockers(tx, [each for each in blocked if each.seq not in later])
    ended = [each for each in arrived if each.status in ENDED]
    later |= await _release(tx, ended)
    await _finish(tx, [each for each in ended if each.seq not in later])
    return later


ENDED = (*TERMINAL, Status.PAUSED)
"""Who may have left its lane and not yet passed it on; a job that was set aside may be paused, too."""


async def _block_again(tx: Tx, opened: Sequence[Arrival]) -> set[int]:
    """Block the jobs that failed by chains which are open again; answer which chains must be looked at again.

    A job that somebody has locked holds nobody up: the chain's own job goes on, unless it is another row than this one.
    """
    if not opened:
        return set()
    more, locked = await blockers.block_again(tx, [each.id for each in opened])
    return {each.seq for each in opened if each.id in more or (each.id in locked and each.status in ENDED)}


async def _count_blockers(tx: Tx, blocked: Sequence[Arrival]) -> set[int]:
    if not blocked:
        return set()
    waited_for = {each.seq: each.chain_id for each in blocked if each.chain_id != each.id or each.version > 1}
    moved, later = await blockers.arm(tx, {each.seq: each.on_blocker_failure for each in blocked}, waited_for)
    await blockers.move(tx, moved, announce_blocked=True)
    return set(later)


# a head that comes back from its backoff; its order key is the one it joined with. coalesce: plainly written it goes by
# the index of all heads
BACK = """
    UPDATE holdfast_job SET gate = CASE WHEN lane $any(running: text) THEN 'ready' END
    WHERE seq $any(seqs: bigint) AND coalesce(head, 0) = 1"""


async def _move_lanes(tx: Tx, pending: Sequence[Arrival], leaving: Sequence[Arrival]) -> set[int]:
    """Let jobs join, heads come back and the lanes that were left go on; answer who must wait for a locked lane."""
    if not pending and not leaving:
        return set()
    mine = await lanes.lock_or_create(tx, [each.lane for each in (*pending, *leaving) if each.lane is not None])
    later = {each.seq for each in (*pending, *leaving) if each.lane not in mine}
    here = [(each, each.lane) for each in pending if each.lane is not None and each.lane in mine]
    too_early = await fan_out.overtaking(tx, [(each.seq, lane) for each, lane in here if each.place is None])
    later |= too_early
    here = [(each, lane) for each, lane in here if each.seq not in too_early]
    headless = await lanes.join(tx, [(each.seq, lane) for each, lane in here if each.place is None], mine)
    await _bring_back(tx, [(each.seq, lane) for each, lane in here if each.place is not None], mine)
    freed = {each.lane for each in leaving if each.lane is not None and each.lane in mine}
    stuck = await lanes.promote(tx, headless | freed, mine)
    return later | {each.seq for each in leaving if each.lane in stuck}


async def _bring_back(tx: Tx, heads: Sequence[tuple[int, str]], mine: Mapping[str, lanes.Lane]) -> None:
    if heads:
        running = sorted({lane for _, lane in heads if not mine[lane].is_paused})
        await tx.execute(BACK, seqs=[seq for seq, _ in heads], running=running)


async def _release(tx: Tx, ended: Sequence[Arrival]) -> set[int]:
    """Tell the dependents of chains that closed; answer whose dependents are not all told."""
    closed = {each.id: each.closed_as for each in ended if each.closed_as is not None and each.closed_as != TOMBSTONE}
    moved, left = await blockers.release(tx, closed)
    await blockers.move(tx, moved, announce_blocked=False)
    return {each.seq for each in ended if each.id in left}


# a job that goes on again, or a chain that has closed or opened, by this very step, since the row was read, has again
# something to be done for it
DONE = f"""
    UPDATE holdfast_job SET gate = NULL
    FROM $list(given: seq bigint, status text, closed_as text)
    WHERE holdfast_job.seq = given.seq AND coalesce(holdfast_job.status, '') = given.status
        AND coalesce(holdfast_job.closed_as, '') = coalesce(given.closed_as, '')
        AND coalesce(holdfast_job.closed_as, '') <> '{TOMBSTONE}'"""
REMOVE = f"""DELETE FROM holdfast_job WHERE seq $any(seqs: bigint) AND closed_as = '{TOMBSTONE}'"""


async def _finish(tx: Tx, ended: Sequence[Arrival]) -> None:
    if ended:
        await tx.execute(DONE, given=[(each.seq, each.status, each.closed_as) for each in ended])
        await tx.execute(REMOVE, seqs=[each.seq for each in ended])


# a loose scan: the next queue behind the last one, so that it costs a probe for each queue and not for each row
NEXT_QUEUE = """
    SELECT queue FROM holdfast_job WHERE gate = 'arrival' AND queue > :after
    ORDER BY queue LIMIT 1"""
MOST_QUEUES = 100


async def unserved(tx: Tx, served: Sequence[str]) -> list[str]:
    """Name queues with arrivals that are not among *served*."""
    found: list[str] = []
    last = ""
    for _ in range(MOST_QUEUES):
        rows = await tx.fetch_all(NEXT_QUEUE, after=last)
        if not rows:
            break
        last = rows[0][0]
        if last not in served:
            found.append(last)
    return found
