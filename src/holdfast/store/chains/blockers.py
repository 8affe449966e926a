"""Blockers: which chains a job waits for, in the order in which they were given.

A start only writes the links down. Whether a blocker is still open is counted by admission, after the commit and
under the lock of the blocker's row: a count made here would be out of date before it was committed.

The state of a link makes every release happen once:
    NULL      nobody has looked yet
    armed     the blocker is open, or has failed and the job waits for it to be tried again; its close will tell
    released  the job waits for it no longer
    failed    it ended otherwise, and the job failed by that; if it is tried again, the job is blocked again
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from holdfast.database.tx import Tx
from holdfast.errors import BlockerCycle, ChainNotFound, HoldfastError
from holdfast.models import EventName, Start
from holdfast.states import Change, Gate, Status, guard, guard_by
from holdfast.store import unique
from holdfast.store.chains import chain_ends, dependents
from holdfast.store.log import events

CHAINS = """SELECT id, chain_id FROM holdfast_job WHERE id $any(ids: text)"""


async def resolve(tx: Tx, starts: Sequence[Start]) -> dict[UUID, UUID]:
    """Find the chain of every blocker of *starts*, each given by the id of any of its jobs."""
    wanted = {blocker for each in starts for blocker in each.blockers}
    if not wanted:
        return {}
    for each in starts:
        if each.id in each.blockers:
            raise BlockerCycle(each.id)
    rows = await tx.fetch_all(CHAINS, ids=[str(each) for each in wanted])
    found = {UUID(id_): UUID(chain_id) for id_, chain_id in rows}
    if missing := wanted - found.keys():
        raise ChainNotFound(min(missing))
    return found


class Waiting(NamedTuple):
    """A job of chain *own*, known by *seq*, that is to wait for *blockers*, each the id of any job of a chain."""

    seq: int
    own: str
    blockers: tuple[UUID, ...]


async def judge(tx: Tx, waiting: Sequence[Waiting]) -> tuple[dict[UUID, UUID], dict[int, HoldfastError]]:
    """Find the chains of what continuations are to wait for, as `resolve` does; tell by seq which of them may not."""
    if not waiting:
        return {}, {}
    rows = await tx.fetch_all(CHAINS, ids=sorted({str(each) for job in waiting for each in job.blockers}))
    found = {UUID(id_): UUID(chain_id) for id_, chain_id in rows}
    mistakes: dict[int, HoldfastError] = {
        each.seq: ChainNotFound(missing)
        for each in waiting
        if (missing := next((id_ for id_ in each.blockers if id_ not in found), None)) is not None
    }
    rest = [each for each in waiting if each.seq not in mistakes]
    turning = await cyclic(tx, [(each.own, str(found[id_])) for each in rest for id_ in each.blockers])
    return found, mistakes | {each.seq: BlockerCycle(UUID(each.own)) for each in rest if each.own in turning}


WAITED_FOR = """
    SELECT DISTINCT chain_id FROM holdfast_blocker
    WHERE chain_id $any(ids: text) AND coalesce(state, 'armed') = 'armed'"""
# a chain waits by its last job, for what that is not released from; scalar subqueries stay probes
AHEAD = """
    SELECT asked.id, link.chain_id
    FROM holdfast_job AS asked JOIN holdfast_blocker AS link ON link.job = coalesce(
        (SELECT later.seq FROM holdfast_job AS later
            WHERE later.chain_id = asked.id AND later.chain_index > 0
            ORDER BY later.chain_index DESC LIMIT 1),
        asked.seq)
    WHERE asked.id $any(ids: text) AND coalesce(link.state, 'armed') = 'armed'
        AND (SELECT waiting.status FROM holdfast_job AS waiting
            WHERE waiting.seq = link.job) IN ('blocked', 'paused')"""


async def cyclic(tx: Tx, edges: Sequence[tuple[str, str]]) -> set[str]:
    """Tell which chains would wait for themselves if the first of each of *edges* waited for the second.

    A chain that nobody waits for cannot, and most are such; for the others what they would wait for is followed, one
    statement for each step on the longest way.
    """
    ahead: dict[str, set[str]] = defaultdict(set)
    for own, chain_id in edges:
        ahead[own].add(chain_id)
    asked = set(ahead)
    rows = await tx.fetch_all(WAITED_FOR, ids=sorted(asked)) if asked else []
    waited_for = asked & {chain_id for (chain_id,) in (*rows, *((chain_id,) for _, chain_id in edges))}
    newest = {chain_id for own in waited_for for chain_id in ahead[own]}
    seen: set[str] = set()
    while newest := newest - seen:
        seen |= newest
        found = await tx.fetch_all(AHEAD, ids=sorted(newest))
        for waiting, chain_id in found:
            ahead[waiting].add(chain_id)
        newest = {chain_id for _, chain_id in found}
    return {own for own in waited_for if _reaches(own, ahead)}


def _reaches(own: str, ahead: Mapping[str, set[str]]) -> bool:
    """Tell whether a way leads from *own* back to it."""
    seen: set[str] = set()
    newest = {own}
    while newest := {chain_id for each in newest for chain_id in ahead.get(each, ())} - seen:
        seen |= newest
    return own in seen


LINK = """
    INSERT INTO holdfast_blocker (job, position, chain_id)
    SELECT given.job, given.position, given.chain_id
    FROM $list(given: job bigint, position bigint, chain_id text)
    WHERE true"""


async def link(tx: Tx, waiting: Iterable[tuple[int, Start]], chains: Mapping[UUID, UUID]) -> None:
    """Write down what each job, given by its seq, waits for."""
    given = [
        (seq, position, str(chains[blocker]))
        for seq, start in waiting
        for position, blocker in enumerate(start.blockers)
    ]
    if given:
        await tx.execute(LINK, given=given)


class Moved(NamedTuple):
    """What counting its blockers made of a blocked job."""

    seq: int
    open_blockers: int
    status: Status
    reason: str | None = None
    chains: Sequence[str] = ()
    """What its event names: those that it still waits for, that have let it go, or that it failed by."""


LINKS = """SELECT job, position, chain_id FROM holdfast_blocker WHERE job $any(jobs: bigint)"""
LOCK_CHAINS = """
    SELECT id, closed_as, watched FROM holdfast_job
    WHERE id $any(ids: text) ORDER BY seq $skip_locked"""
EXIST = """SELECT id FROM holdfast_job WHERE id $any(ids: text)"""
WATCH = """UPDATE holdfast_job SET watched = 1 WHERE id $any(ids: text)"""
MARK = """
    UPDATE holdfast_blocker SET state = given.state
    FROM $list(given: job bigint, position bigint, state text)
    WHERE holdfast_blocker.job = given.job AND holdfast_blocker.position = given.position"""


async def arm(tx: Tx, waiting: Mapping[int, str], waited_for: Mapping[int, str]) -> tuple[list[Moved], list[int]]:
    """Count the open blockers of blocked jobs, given with their policy; answer what moved, and what must wait.

    Each blocker's first row is locked while it is looked at, and its close needs the same lock: so a blocker is
    either seen closed here, or its close sees it watched and the link armed.

    Of jobs that are not new *waited_for* names the chain: those that continue one, or are open again. Only they can
    close a ring, since nobody waits for a chain that does not exist yet. What continues a chain was looked at when it
    was given; but two may have been given at once, of which neither was to be seen, and what had ended closed no ring
    until it was retried. Whoever comes here last sees the other, and fails.
    """
    links: dict[int, list[tuple[int, str]]] = {seq: [] for seq in waiting}
    for job, position, chain_id in await tx.fetch_all(LINKS, jobs=list(waiting)):
        links[job].append((position, chain_id))
    ids = sorted({chain_id for each in links.values() for _, chain_id in each})
    locked = {id_: (closed_as, watched) for id_, closed_as, watched in await tx.fetch_all(LOCK_CHAINS, ids=ids)}
    busy = await _busy(tx, [id_ for id_ in ids if id_ not in locked])
    later = [seq for seq, each in links.items() if any(chain_id in busy for _, chain_id in each)]
    edges = [(own, chain_id) for seq, own in waited_for.items() if seq not in later for _, chain_id in links[seq]]
    turning = await cyclic(tx, edges)
    moved, marks, watch = [], [], set()
    for seq, each in links.items():
        if seq in later:
            continue
        if waited_for.get(seq) in turning:
            marks += [(seq, position, "released") for position, _ in each]
            moved.append(Moved(seq, 0, Status.FAILED, CYCLE))
            continue
        ends = [(chain_id, locked[chain_id][0] if chain_id in locked else Status.CANCELLED) for _, chain_id in each]
        states = [link_state(end, waiting[seq]) for _, end in ends]
        marks += [(seq, position, state) for (position, _), state in zip(each, states, strict=True)]
        watch |= {chain_id for (_, chain_id), state in zip(each, states, strict=True) if state in ("armed", "failed")}
        moved.append(_count(seq, ends, waiting[seq]))
    if unwatched := sorted(id_ for id_ in watch & locked.keys() if not locked[id_][1]):
        await tx.execute(WATCH, ids=unwatched)
    if marks:
        await tx.execute(MARK, given=marks)
    return moved, later


CYCLE = "blocker cycle"
"""Why a job has failed whose chain would wait for itself."""


async def _busy(tx: Tx, ids: Sequence[str]) -> set[str]:
    """Tell rows that somebody has locked from rows that are gone; what is gone counts as cancelled."""
    return {id_ for (id_,) in await tx.fetch_all(EXIST, ids=ids)} if ids else set()


def link_state(end: str | None, policy: str) -> str:
    """Say what is written on a link when its blocker stands at *end*."""
    if end is None:
        return "armed"
    if end == Status.COMPLETED:
        return "released"
    return {"fail": "failed", "wait": "armed", "ignore": "released"}[policy]


def _count(seq: int, ends: Sequence[tuple[str, str | None]], policy: str) -> Moved:
    """Judge a blocked job by how its blockers, each with its end, stand."""
    unhappy = [(chain_id, end) for chain_id, end in ends if end not in (None, Status.COMPLETED)]
    if unhappy and policy == "fail":
        return _failed(seq, 0, unhappy)
    left = [
        chain_id for chain_id, end in ends if end != Status.COMPLETED and not (end is not None and policy == "ignore")
    ]
    named = left or [chain_id for chain_id, _ in ends]
    return Moved(seq, len(left), Status.BLOCKED if left else Status.PENDING, chains=named)


def _failed(seq: int, open_blockers: int, unhappy: Sequence[tuple[str, str | None]]) -> Moved:
    reason = f"blocker {unhappy[0][1]}"
    return Moved(seq, open_blockers, Status.FAILED, reason, [chain_id for chain_id, _ in unhappy])


MOST_DEPENDENTS = 500
DEPENDENTS = """
    SELECT link.job, link.position, link.chain_id, link.state
    FROM holdfast_blocker AS link JOIN holdfast_job ON holdfast_job.seq $is(link.job)
    WHERE link.chain_id $any(ids: text)
        AND CASE link.state WHEN 'armed' THEN
                holdfast_job.on_blocker_failure <> 'wait' OR link.chain_id $any(completed: text)
            WHEN 'failed' THEN link.chain_id $any(completed: text) ELSE false END
    ORDER BY link.chain_id, link.job LIMIT :most"""
LOCK_DEPENDENTS = """
    SELECT seq, status, open_blockers, on_blocker_failure, gate FROM holdfast_job
    WHERE seq $any(seqs: bigint) ORDER BY seq $skip_locked"""


async def release(tx: Tx, closed: Mapping[str, str]) -> tuple[list[Moved], set[str]]:
    """Tell the dependents of *closed* chains (id → how), a bounded number; answer what moved, and what is left over.

    The link's state, not a counter, makes a release happen once: it is changed under the dependent's lock. A dependent
    that is an arrival is not moved: its count is out of date, and admission counts it anew. Neither is one that failed
    by a chain which has completed after all, and that somebody had locked when it was opened again: it is counted, too.
    If the chain has ended otherwise, that one stays failed, and lets go of the key that was taken for it.
    """
    if not closed:
        return [], set()
    completed = [chain_id for chain_id, end in closed.items() if end == Status.COMPLETED]
    unhappy = sorted(closed.keys() - set(completed))
    skipped = set(unhappy) if await dependents.free_keys(tx, unhappy) else set()
    found = await tx.fetch_all(DEPENDENTS, ids=sorted(closed), completed=completed, most=MOST_DEPENDENTS)
    if not found:
        return [], skipped
    links = [(job, at, chain_id) for job, at, chain_id, state in found if state == "armed"]
    skipped |= await _block_failed_by(tx, [(job, at, chain) for job, at, chain, state in found if state == "failed"])
    if not links:
        return [], set(closed) if len(found) == MOST_DEPENDENTS else skipped
    rows = await tx.fetch_all(LOCK_DEPENDENTS, seqs=sorted({job for job, _, _ in links}))
    mine = {seq: (status, open_blockers, policy) for seq, status, open_blockers, policy, _ in rows}
    uncounted = {seq for seq, _, _, _, gate in rows if gate == Gate.ARRIVAL}
    ended: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for job, _, chain_id in links:
        if job in mine:
            ended[job].append((chain_id, closed[chain_id]))
    waiting = {seq: mine[seq][1:] for seq in ended if mine[seq][0] == Status.BLOCKED}
    states = {job: waiting[job][1] if job in waiting else "ignore" for job in mine}
    if marks := [(job, at, link_state(closed[chain_id], states[job])) for job, at, chain_id in links if job in mine]:
        await tx.execute(MARK, given=marks)
    counted = {seq: each for seq, each in waiting.items() if seq not in uncounted}
    moved = [_one_less(seq, opened, policy, ended[seq]) for seq, (opened, policy) in counted.items()]
    skipped |= {chain_id for job, _, chain_id in links if job not in mine}
    return moved, set(closed) if len(found) == MOST_DEPENDENTS else skipped


def _one_less(seq: int, open_blockers: int, policy: str, ends: Sequence[tuple[str, str]]) -> Moved:
    unhappy = [(chain_id, end) for chain_id, end in ends if end != Status.COMPLETED]
    if unhappy and policy == "fail":
        return _failed(seq, open_blockers, unhappy)
    left = open_blockers - len(ends)
    return Moved(seq, left, Status.BLOCKED if left else Status.PENDING, chains=[chain_id for chain_id, _ in ends])


# a job that still waits for some of its blockers stays blocked, under the guard of being unblocked
CHANGES: dict[str, Change] = {
    Status.BLOCKED: Change.UNBLOCK,
    Status.PENDING: Change.UNBLOCK,
    Status.FAILED: Change.FAIL_BLOCKED,
}
MOVE = f"""
    UPDATE holdfast_job
    SET open_blockers = given.open_blockers, status = given.status, reason = given.reason,
        gate = CASE given.status WHEN 'blocked' THEN NULL ELSE 'arrival' END,
        wake_at = CASE given.status WHEN 'pending' THEN run_at ELSE $now END,
        closed_as = CASE WHEN given.status = 'failed' AND chain_index = 0 THEN 'failed' END,
        closed_at = CASE WHEN given.status = 'failed' AND chain_index = 0 THEN $now END,
        finished_at = CASE given.status WHEN 'failed' THEN $now END, version = version + 1
    FROM $list(given: seq bigint, open_blockers bigint, status text, reason text)
    WHERE holdfast_job.seq = given.seq
        AND {guard_by("given.status", CHANGES)}
    RETURNING holdfast_job.seq, holdfast_job.id, holdfast_job.chain_id, holdfast_job.chain_index, holdfast_job.task,
        holdfast_job.unique_key, holdfast_job.status, holdfast_job.version, holdfast_job.attempt, holdfast_job.reason,
        holdfast_job.watched"""
NAMES: dict[str, EventName] = {"blocked": "job:blocked", "pending": "job:unblocked", "failed": "job:failed"}


async def move(tx: Tx, moved: Sequence[Moved], *, announce_blocked: bool) -> None:
    """Write down what became of blocked jobs; who fails by a blocker closes its chain and frees its key.

    What depends on a chain that closes here, and the lane of a job that may run now, is left to admission.
    """
    if not moved:
        return
    given = [(each.seq, each.open_blockers, each.status, each.reason) for each in moved]
    rows = await tx.fetch_all(MOVE, given=given)
    failed = [row for row in rows if row[6] == Status.FAILED]
    ends = [chain_ends.ChainEnd(row[0], row[2], row[3], row[4], row[5], row[10], Status.FAILED) for row in failed]
    await chain_ends.leave_dependents_to_admission(tx, await chain_ends.close(tx, ends))
    chains = {each.seq: each.chains for each in moved}
    facts = [
        events.NewEvent(row[0], NAMES[row[6]], row[6], row[7], row[8], _facts(row[9], chains[row[0]]))
        for row in rows
        if announce_blocked or row[6] != Status.BLOCKED
    ]
    await events.append(tx, facts)


def _facts(reason: str | None, chains: Sequence[str]) -> str | None:
    said = {"reason": reason, "blockers": events.named(chains)}
    known = {key: value for key, value in said.items() if value}
    return json.dumps(known) if known else None


FAILED_BY = """
    SELECT job, position, chain_id FROM holdfast_blocker
    WHERE chain_id $any(ids: text) AND state = 'failed'
    ORDER BY chain_id, job LIMIT :most"""
LOCK_FAILED = """
    SELECT seq, status, chain_id FROM holdfast_job
    WHERE seq $any(seqs: bigint) ORDER BY seq $skip_locked"""


async def block_again(tx: Tx, chain_ids: Sequence[str]) -> tuple[set[str], set[str]]:
    """Put the jobs that failed by these chains, which are open again, back to blocked, a bounded number.

    Answer which chains may have more of them, and of which chains somebody has locked some: these are put back when
    the chain completes, if not before.
    """
    links = await tx.fetch_all(FAILED_BY, ids=list(chain_ids), most=MOST_DEPENDENTS) if chain_ids else []
    locked = await _block_failed_by(tx, [(job, at, chain_id) for job, at, chain_id in links])
    is_full = len(links) == MOST_DEPENDENTS and locked != {chain_id for _, _, chain_id in links}
    return set(chain_ids) if is_full else set(), locked


async def _block_failed_by(tx: Tx, links: Sequence[tuple[int, int, str]]) -> set[str]:
    """Put the jobs of failed *links* (job, position, chain) back to blocked; answer the chains of those left out.

    A job whose unique key another chain holds by now stays failed and says so; its key, if it has one, was taken by
    whoever opened the chain again, who may wait for it: we may not. A key that was taken for a chain just as that was
    cancelled is let go.
    """
    if not links:
        return set()
    rows = await tx.fetch_all(LOCK_FAILED, seqs=sorted({job for job, _, _ in links}))
    firsts = {each.id: each for each in await _firsts(tx, sorted({chain_id for _, _, chain_id in rows}))}
    mine = {seq: (status, firsts[chain_id]) for seq, status, chain_id in rows if chain_id in firsts}
    failed = {seq: first for seq, (status, first) in mine.items() if status == Status.FAILED}
    stay = [(seq, first.obstacle) for seq, first in failed.items() if first.obstacle is not None]
    again = failed.keys() - {seq for seq, _ in stay}
    marks = [(job, at, None if job in again else "released") for job, at, _ in links if job in mine]
    if marks:
        await tx.execute(MARK, given=marks)
    await _free_keys(tx, [first for seq, (_, first) in mine.items() if seq not in failed and first.is_closed])
    await block_failed(tx, sorted(again))
    if stay:
        await tx.execute(EXPLAIN, given=stay)
    return {chain_id for job, _, chain_id in links if job not in mine}


class First(NamedTuple):
    """The first row of a chain, locked, with the chain that holds its unique key."""

    id: str
    task: str
    unique_key: str | None
    is_closed: bool
    holder: UUID | None

    @property
    def obstacle(self) -> str | None:
        """Say what keeps the chain from opening again."""
        if self.unique_key is None or str(self.holder) == self.id:
            return None
        if self.holder is None:
            return "its unique key is to be taken anew: retry() it"
        return f"chain {self.holder} holds its unique key"


async def _firsts(tx: Tx, chain_ids: Sequence[str]) -> list[First]:
    """Lock the first rows of chains, as far as nobody has."""
    rows = await tx.fetch_all(dependents.LOCK_FIRSTS, ids=chain_ids) if chain_ids else []
    holders = await unique.holders(tx, [(task, key) for _, task, key, _ in rows if key is not None])
    return [First(id_, task, key, end is not None, holders.get((task, key))) for id_, task, key, end in rows]


async def _free_keys(tx: Tx, closed: Sequence[First]) -> None:
    """Free the keys that chains hold although they are closed, and of those who failed by them."""
    held = [(each.task, each.unique_key, UUID(each.id)) for each in closed if each.unique_key is not None]
    await unique.free(tx, held, scopes=("open",))
    await dependents.free_keys(tx, [each.id for each in closed])


BLOCK_AGAIN = f"""
    UPDATE holdfast_job
    SET status = 'blocked', gate = 'arrival', wake_at = $now, reason = NULL, error = NULL, finished_at = NULL,
        stale_at = NULL, closed_as = NULL, closed_at = NULL, version = version + 1
    WHERE seq $any(seqs: bigint) AND {guard(Change.BLOCK_AGAIN)}
    RETURNING seq, chain_id, chain_index, version, attempt"""
EXPLAIN = """
    UPDATE holdfast_job
    SET reason = holdfast_job.reason || ', which is tried again; but ' || given.obstacle, version = version + 1
    FROM $list(given: seq bigint, obstacle text)
    WHERE holdfast_job.seq = given.seq"""


async def block_failed(tx: Tx, seqs: Sequence[int]) -> None:
    """Move failed jobs, which we have locked, back to blocked, to be counted anew by admission."""
    if not seqs:
        return
    rows = await tx.fetch_all(BLOCK_AGAIN, seqs=list(seqs))
    await chain_ends.reopen(tx, [chain_id for _, chain_id, chain_index, _, _ in rows if chain_index > 0])
    said = json.dumps({"reason": "its blocker is tried again"})
    await events.append(
        tx, [events.NewEvent(row[0], "job:resumed", Status.BLOCKED, row[3], row[4], said) for row in rows]
    )
