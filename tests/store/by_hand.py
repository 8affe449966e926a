"""Completing jobs by hand in one operation, as a caller's transaction does it and as one of our own does."""

from __future__ import annotations

from uuid import UUID

from holdfast.database.tx import Tx
from holdfast.models import Asked, Continuation, Job
from holdfast.store import reads
from holdfast.store.jobs import completing

NOBODY = Asked()


async def complete(
    tx: Tx, job_id: UUID, output: str | None = "null", successor: Continuation | None = None, asked: Asked = NOBODY
) -> Job:
    """Complete the current job of a chain; what else follows is left to admission."""
    found = await completing.lock_current(tx, job_id)
    await completing.finish(tx, found, output, successor, asked)
    return await reads.get_job(tx, found.job.id)


async def complete_at_once(
    tx: Tx, job_id: UUID, output: str | None = "null", successor: Continuation | None = None, asked: Asked = NOBODY
) -> Job:
    """Complete with all that follows from it."""
    job = await complete(tx, job_id, output, successor, asked)
    await completing.follow(tx, [job.id] if successor is None else [job.id, successor.start.id])
    return job
