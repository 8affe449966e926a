"""The jobs as they stand, with the place in the log of that very moment: where a stream of events begins."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from holdfast.database.tx import Tx
from holdfast.models import INTERNAL_QUEUE, EventFilter, Job, JobEvent, JobFilter
from holdfast.store import reads
from holdfast.store.log import reading
from holdfast.store.reads import Paging
from holdfast.wire.cursors import Cursor


async def read(tx: Tx, wanted: EventFilter, most: int) -> tuple[list[Job], Cursor]:
    """Read the newest jobs that *wanted* is about, up to *most*, newest first, and where the log stands.

    It is right only over one consistent view, as `Runner.read` gives it.
    """
    cursor = await reading.now(tx)
    if wanted.jobs or wanted.chains:
        found = await reads.jobs_by_id(tx, await _named(tx, wanted, most))
    else:
        asked = JobFilter(tasks=tuple(wanted.tasks), lanes=tuple(wanted.lanes))
        found = list(await reads.list_jobs(tx, asked, Paging(limit=most)))
    jobs = [job for job in found if _is_wanted(job, wanted)]
    return sorted(jobs, key=lambda job: job.seq, reverse=True), cursor


# a chain's first job has its id, and the others have an index; a deleted job may be there for a while, hidden
NAMED = """
    SELECT id FROM (
        SELECT seq, id, closed_as FROM holdfast_job WHERE id $any(jobs: text)
        UNION
        SELECT seq, id, closed_as FROM holdfast_job WHERE id $any(chains: text) AND chain_index = 0
        UNION
        SELECT seq, id, closed_as FROM holdfast_job WHERE chain_id $any(chains: text) AND chain_index > 0) AS found
    WHERE coalesce(found.closed_as, '') <> 'deleted'
    ORDER BY found.seq DESC LIMIT :most"""


async def _named(tx: Tx, wanted: EventFilter, most: int) -> list[UUID]:
    named = {"jobs": [str(each) for each in wanted.jobs], "chains": [str(each) for each in wanted.chains]}
    return [UUID(job_id) for (job_id,) in await tx.fetch_all(NAMED, **named, most=most)]


def _is_wanted(job: Job, wanted: EventFilter) -> bool:
    """Tell whether events of *job*, of one name or another, would be wanted."""
    any_event = JobEvent(name="job:enqueued", at=job.created_at, job=job)
    return job.queue != INTERNAL_QUEUE and replace(wanted, names=frozenset()).fits(any_event)
