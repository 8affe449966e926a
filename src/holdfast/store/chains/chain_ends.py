"""The end of a chain, written on its first row, with its unique key freed in the same commit; and its reopening."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from holdfast.database.tx import Tx
from holdfast.states import Status
from holdfast.store import unique
from holdfast.store.rows import LockedJob, leave_to_admission


class ChainEnd(NamedTuple):
    """A last job that ended *closed_as*; on a first job the row itself says so already and knows the key."""

    seq: int
    chain_id: str
    chain_index: int
    task: str
    unique_key: str | None
    watched: int
    closed_as: Status


def end_of(job: LockedJob, closed_as: Status) -> ChainEnd:
    """Say that the chain of *job*, its current one, closes."""
    return ChainEnd(job.seq, job.chain_id, job.chain_index, job.task, job.unique_key, job.watched, closed_as)


class Watched(NamedTuple):
    """A chain that closed, by its first row, and that other jobs may be waiting for."""

    first: int
    chain_id: str
    closed_as: Status
    is_continued: bool


CLOSE = """
    UPDATE holdfast_job SET closed_as = given.closed_as, closed_at = $now
    FROM $list(given: id text, closed_as text)
    WHERE holdfast_job.id = given.id
    RETURNING holdfast_job.seq, holdfast_job.id, holdfast_job.task, holdfast_job.unique_key, holdfast_job.watched,
        holdfast_job.closed_as"""


async def close(tx: Tx, ends: Sequence[ChainEnd]) -> list[Watched]:
    """Close the chains of *ends* and free their keys; answer those whose dependents must be told."""
    held = [(each.task, each.unique_key, each.chain_id) for each in ends if each.unique_key is not None]
    closed = [Watched(each.seq, each.chain_id, each.closed_as, False) for each in ends if each.watched]
    if later := [(each.chain_id, each.closed_as) for each in ends if each.chain_index > 0]:
        rows = await tx.fetch_all(CLOSE, given=later)
        held += [(task, key, id_) for _, id_, task, key, _, _ in rows if key is not None]
        closed += [Watched(seq, id_, Status(closed_as), True) for seq, id_, _, _, watched, closed_as in rows if watched]
    await unique.free(tx, [(task, key, UUID(chain_id)) for task, key, chain_id in held], scopes=("open",))
    return closed


async def leave_dependents_to_admission(tx: Tx, closed: Sequence[Watched]) -> None:
    """Have admission tell the dependents of continued chains; a chain of one job is an arrival by itself."""
    await leave_to_admission(tx, [each.first for each in closed if each.is_continued])


# its dependents that failed by it are put back to blocked, which is left to admission
REOPEN = """
    UPDATE holdfast_job
    SET closed_as = NULL, closed_at = NULL, gate = CASE watched WHEN 1 THEN 'arrival' ELSE gate END, wake_at = $now
    WHERE id $any(ids: text)"""


async def reopen(tx: Tx, chain_ids: Sequence[str]) -> None:
    """Open chains again whose last job, which is not their first, may run again."""
    if chain_ids:
        await tx.execute(REOPEN, ids=chain_ids)
        await unmark(tx, chain_ids)


# two probes instead of OR: each has its index. Whoever puts a chain back for its blocker waits for nobody: a row in its
# middle that somebody has locked keeps its mark, by which nothing is decided but for the first one
UNMARK = """
    UPDATE holdfast_job SET stale_at = NULL, version = version + 1
    WHERE seq $in(SELECT marked.seq FROM holdfast_job AS marked
        WHERE marked.seq $in(SELECT first.seq FROM holdfast_job AS first WHERE first.id $any(ids: text)
                UNION ALL SELECT later.seq FROM holdfast_job AS later WHERE later.chain_id $any(ids: text)
                    AND later.chain_index > 0)
            AND coalesce(marked.stale_at, 0) > 0
        ORDER BY marked.seq $skip_locked)"""


async def unmark(tx: Tx, chain_ids: Sequence[str]) -> None:
    """Take retention's mark off all jobs of chains that go on, or have ended anew: their time counts from now."""
    if chain_ids:
        await tx.execute(UNMARK, ids=chain_ids)
