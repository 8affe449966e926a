"""Lists as the target queue has them: by its own words for statuses, with an offset, and with how many there are.

One look finds the newest jobs that fit, by their ids alone; their number is the total, and the page is read by id. So
a total goes no further than the look does: to 10,000 jobs, among as many as any list looks at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from holdfast.database.tx import Tx
from holdfast.models import Job, JobQuery
from holdfast.states import Status
from holdfast.store import lists, reads
from holdfast.store.search import Conditions

TargetStatus: TypeAlias = Literal["PENDING", "QUEUED", "RUNNING", "PAUSED", "ERROR", "SUCCESS", "CANCELED"]

MOST = 10_000

CONDITIONS: dict[TargetStatus, str] = {
    "PENDING": "(holdfast_job.status = 'paused' AND holdfast_job.attempt = 0)",
    "QUEUED": "holdfast_job.status IN ('pending', 'blocked')",
    "RUNNING": "holdfast_job.status = 'running'",
    "PAUSED": "(holdfast_job.status = 'paused' AND holdfast_job.attempt > 0)",
    "ERROR": "holdfast_job.status = 'failed'",
    "SUCCESS": "holdfast_job.status = 'completed'",
    "CANCELED": "holdfast_job.status = 'cancelled'",
}
WORDS: dict[Status, TargetStatus] = {
    Status.PENDING: "QUEUED",
    Status.BLOCKED: "QUEUED",
    Status.RUNNING: "RUNNING",
    Status.FAILED: "ERROR",
    Status.COMPLETED: "SUCCESS",
    Status.CANCELLED: "CANCELED",
}


class TargetPage(NamedTuple):
    """A page of jobs, newest first, and how many fit in all, counted to 10,000."""

    total: int
    jobs: tuple[Job, ...]


def status_of(job: Job) -> TargetStatus:
    """Give the target queue's word for the status of *job*: one that was paused before it ever ran is `PENDING`."""
    if job.status is Status.PAUSED:
        return "PAUSED" if job.attempt else "PENDING"
    return WORDS[job.status]


async def list_page(tx: Tx, wanted: JobQuery, statuses: Sequence[TargetStatus], limit: int, offset: int) -> TargetPage:
    """List the jobs that fit *wanted*, have a lane and one of *statuses*, if any are given."""
    more: Conditions = [("holdfast_job.lane IS NOT NULL", {})]
    if statuses:
        more.append((f"({' OR '.join(CONDITIONS[each] for each in statuses)})", {}))
    ids = await lists.newest_ids(tx, wanted, more, MOST)
    asked = ids[offset : offset + limit]
    found = {job.id: job for job in await reads.jobs_by_id(tx, asked)} if asked else {}
    return TargetPage(len(ids), tuple(found[each] for each in asked if each in found))
