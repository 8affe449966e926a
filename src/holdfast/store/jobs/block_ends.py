"""What the block of an attempt writes just before its commit, and how to find out later whether that happened."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from holdfast.database.tx import Tx
from holdfast.errors import JobNotFound, LeaseLost
from holdfast.store import reads
from holdfast.store.jobs import claiming, settling
from holdfast.store.jobs.claiming import Claimed, ProgressReport
from holdfast.store.jobs.settling import Settlement


async def finish(tx: Tx, settlement: Settlement, reports: Sequence[ProgressReport]) -> None:
    """Write the last reports, and complete the job of a block."""
    if reports:  # they pass over a locked row, and an earlier report may just be on its way there
        await settling.hold_block(tx, settlement.token)
        await claiming.progress(tx, reports)
    await settling.finish_block(tx, settlement)


async def is_completed_by(tx: Tx, job: Claimed, worker: str) -> bool:
    """Tell whether this very attempt has completed *job*; a transaction that is about to do so is waited for."""
    try:
        await settling.hold_block(tx, job.token)
        return False
    except LeaseLost:
        pass
    try:
        found = await reads.get_job(tx, UUID(job.id))
    except JobNotFound:
        return False
    return (found.attempt, found.completed_by) == (job.token.attempt, worker)
