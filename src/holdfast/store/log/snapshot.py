"""The jobs as they stand, with the place in the log of that very moment: where a stream of events begins."""

from __future__ import annotations

from holdfast.database.tx import Tx
from holdfast.models import INTERNAL_QUEUE, EventFilter, Job, JobEvent, JobQuery
from holdfast.store import lists, reads
from holdfast.store.log import reading
from holdfast.store.reads import Paging
from holdfast.store.rows import to_job
from holdfast.unreadable import readable
from holdfast.wire.cursors import Cursor


async def read(tx: Tx, wanted: EventFilter, most: int) -> tuple[list[Job], Cursor]:
    """Read the newest jobs that *wanted* is about, up to *most*, newest first, and where the log stands.

    It is right only over one consistent view, as `Runner.read` gives it.
    """
    cursor = await reading.now(tx)
    if wanted.jobs or wanted.chains or wanted.parents:
        found = readable(await tx.fetch_all(reads.JOBS, ids=await _named(tx, wanted, most)), to_job)
    else:
        asked = JobQuery(tasks=tuple(wanted.tasks), lanes=tuple(wanted.lanes))
        found = await _newest(tx, asked, most)
    jobs = [job for job in found if _is_wanted(job, wanted)]
    return sorted(jobs, key=lambda job: job.seq, reverse=True), cursor


async def _newest(tx: Tx, asked: JobQuery, most: int) -> list[Job]:
    """Read on over short pages: those who watch a task or a lane are shown its newest jobs, however old they are."""
    page = await lists.list_jobs(tx, asked, Paging(limit=most))
    found = list(page)
    while len(found) < most and page.next_cursor is not None:
        page = await lists.list_jobs(tx, asked, Paging(limit=most - len(found), cursor=page.next_cursor))
        found += page
    return found


# a chain's first job has its id, and the others have an index; a deleted job may be there for a while, hidden; a parent
# may have any number of children, so of each only the newest are looked at
NAMED = """
    SELECT id FROM (
        SELECT seq, id, closed_as FROM holdfast_job WHERE id $any(jobs: text)
        UNION
        SELECT seq, id, closed_as FROM holdfast_job WHERE id $any(chains: text) AND chain_index = 0
        UNION
        SELECT seq, id, closed_as FROM holdfast_job WHERE chain_id $any(chains: text) AND chain_index > 0
        UNION
        SELECT child.seq, child.id, child.closed_as
        FROM $list(given: parent text) JOIN holdfast_job AS child ON child.seq $in(
            SELECT newest.seq FROM holdfast_job AS newest
            WHERE newest.parent = given.parent ORDER BY newest.seq DESC LIMIT :most)) AS found
    WHERE coalesce(found.closed_as, '') <> 'deleted'
    ORDER BY found.seq DESC LIMIT :most"""


async def _named(tx: Tx, wanted: EventFilter, most: int) -> list[str]:
    named = {name: [str(each) for each in getattr(wanted, name)] for name in ("jobs", "chains")}
    parents = [(str(each),) for each in wanted.parents]
    return [job_id for (job_id,) in await tx.fetch_all(NAMED, **named, given=parents, most=most)]


def _is_wanted(job: Job, wanted: EventFilter) -> bool:
    """Tell whether events of *job*, of one name or another, would be wanted."""
    any_event = JobEvent(name="job:enqueued", at=job.created_at, job=job)
    return job.queue != INTERNAL_QUEUE and wanted._replace(names=frozenset()).fits(any_event)
