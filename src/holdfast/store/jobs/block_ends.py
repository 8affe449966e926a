"""The end of an attempt's block: whether it may still commit, what it writes just before, and whether that happened."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from holdfast.database.tx import Row, Tx, commit_with
from holdfast.errors import JobNotFound, LeaseLost
from holdfast.store import reads
from holdfast.store.chains import continuations
from holdfast.store.jobs import claiming, journaling, settling
from holdfast.store.jobs.claiming import (
    CLAIM_STATE,
    EXISTS,
    Claimed,
    ClaimState,
    ProgressReport,
    Token,
    claim_state_of,
)
from holdfast.store.jobs.journaling import Told
from holdfast.store.jobs.settling import Settlement
from holdfast.store.rows import LOCKED, LockedJob, to_locked
from holdfast.store.workers import names_on_rows

CHECK = f"SELECT {CLAIM_STATE}, id FROM holdfast_job WHERE seq = :seq AND {EXISTS}"
LOCK_OWN = f"{CHECK} $locked"


async def check(tx: Tx, token: Token) -> ClaimState:
    """Tell how a claim stands as a block opens, without a lock: neither renewal nor cancel waits for user code."""
    return _state(token, await tx.fetch_all(CHECK, seq=token.seq))


# a block that has written nothing has nothing to guard by a lock, which would make its COMMIT wait for the disk: the
# server took 200 µs instead of 45
HELD = f"""
    WITH held AS (
        SELECT {CLAIM_STATE} FROM holdfast_job WHERE seq = :seq AND {EXISTS} AND $has_written $locked)
    SELECT 1 / count(*)
    FROM (
        SELECT {CLAIM_STATE} FROM held
        UNION ALL SELECT {CLAIM_STATE} FROM holdfast_job WHERE seq = :seq AND {EXISTS} AND NOT $has_written) AS own
    WHERE attempt = :attempt AND nonce = :nonce AND status = 'running' AND cancel_requested_at IS NULL"""


async def lock_job(tx: Tx, token: Token, told: Told | None = None) -> None:
    """Lock the job of a block that is about to commit, and completes nothing; wait for it.

    *Told* is the last entry that the block has appended to the job's journal, if it has.

    Raises `LeaseLost` if the job is not the attempt's own any more, or is to be cancelled. An expired lease that nobody
    has reaped is still held.
    """
    if told is not None:
        await _tell(tx, token, told)
    elif not await commit_with(tx, HELD, seq=token.seq, attempt=token.attempt, nonce=token.nonce):
        await _lock(tx, token)


async def _tell(tx: Tx, token: Token, told: Told) -> None:
    """Lock the job and say in the log what the block has appended: only under the lock an event has its place there."""
    await _lock(tx, token)
    await journaling.tell(tx, token, told)


async def _lock(tx: Tx, token: Token) -> None:
    _refuse_lost(token, await tx.fetch_all(LOCK_OWN, seq=token.seq))


# in one order with whoever steers: the chain's first row comes before its later ones
LOCK_WITH_FIRST = f"""
    SELECT {LOCKED} FROM holdfast_job
    WHERE seq $in(SELECT own.seq FROM holdfast_job AS own WHERE own.seq = :seq
        UNION SELECT first.seq FROM holdfast_job AS own JOIN holdfast_job AS first ON first.id = own.chain_id
            WHERE own.seq = :seq)
    ORDER BY seq $locked"""


async def _lock_with_first(tx: Tx, token: Token) -> LockedJob:
    """Lock the job of a block as `lock_job` does, and with it its chain's first row, where its end is written."""
    rows = {row[0]: row for row in await tx.fetch_all(LOCK_WITH_FIRST, seq=token.seq)}
    _refuse_lost(token, await tx.fetch_all(CHECK, seq=token.seq))
    return to_locked(rows[token.seq])


def _state(token: Token, rows: Sequence[Row]) -> ClaimState:
    return claim_state_of(token, rows[0][:-1] if rows else None)


def _refuse_lost(token: Token, rows: Sequence[Row]) -> None:
    state = _state(token, rows)
    if state not in (ClaimState.HELD, ClaimState.PAUSE):
        raise LeaseLost(UUID(rows[0][-1]) if rows else NO_ID, LOST_BY[state])


NO_ID = UUID(int=0)
"""The id of a job that is not there any more; whoever has run it knows its own."""


LOST_BY = {
    ClaimState.CANCEL: "cancelled",
    ClaimState.TAKEN: "taken_by_another_worker",
    ClaimState.COMPLETED: "already_completed",
    ClaimState.GONE: "not_found",
}
"""Why a block may not commit, in the words of `ctx.abort_reason`."""


async def finish_block(tx: Tx, settlement: Settlement) -> None:
    """Write down what an attempt came to in the transaction of its block, which commits right after.

    A chain of one job that concerns nobody else is completed by one statement, which waits for its row; whatever that
    leaves goes the long way. On PostgreSQL it is one round trip instead of four, with COMMIT in it where nothing else
    has to be written, and half of the server's time.

    Raises `LeaseLost` as `lock_job` does, and what is wrong with the continuation: `ChainNotFound`, `BlockerCycle`.
    """
    if settling.is_simple(settlement) and (
        await settling.complete_and_commit(tx, settlement)
        or await settling.complete_by(tx, settling.COMPLETE_BLOCK, [settlement])
    ):
        return
    job = await _lock_with_first(tx, settlement.token)
    decided = [(job, settling.decide(job, settlement))]
    judged = await continuations.judge(tx, settling.steps_of(decided))
    if judged.mistakes:
        raise judged.mistakes[job.seq]
    await settling.write_ends(tx, decided, judged.chains)


async def finish(tx: Tx, settlement: Settlement, reports: Sequence[ProgressReport], told: Told | None = None) -> None:
    """Write the last reports, say what was appended to the journal, and complete the job of a block."""
    if told is not None:
        await _tell(tx, settlement.token, told)
    if reports:  # they pass over a locked row, and an earlier report may just be on its way there
        await _lock(tx, settlement.token)
        await claiming.progress(tx, reports)
    await finish_block(tx, settlement)


async def is_completed_by(tx: Tx, job: Claimed, worker: str) -> bool:
    """Tell whether this very attempt has completed *job*; a transaction that is about to do so is waited for."""
    try:
        await _lock(tx, job.token)
        return False
    except LeaseLost:
        pass
    try:
        found = await reads.get_job(tx, UUID(job.id))
    except JobNotFound:
        return False
    return found.attempt == job.token.attempt and found.completed_by in names_on_rows(worker)
