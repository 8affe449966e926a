"""A program that steers jobs and may die of it: `python -m tests.acceptance.steer cancel`.

Each verb needs a scene of its own, which the test sets beforehand; the program only steers. What it steers goes by
fixed ids, so that it can be run again after a crash.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast import Holdfast
from holdfast.store import admission
from holdfast.store.tx import Tx
from tests.acceptance.jobs_of_tests import hf, quick
from tests.acceptance.produce import job_id

FIRST, SECOND = job_id("first"), job_id("second")
LANE = "lane"


def a_job(hf: Holdfast, **options: Any) -> None:
    """Start the first job."""
    hf.sync.start(quick(), id=FIRST, unique="key", **options)


def in_lane(hf: Holdfast) -> None:
    """Stand two jobs in the lane, the first one as its head."""
    hf.sync.start_many([quick().options(id=each, lane=LANE) for each in (FIRST, SECOND)])
    hf.store.run_sync(admission.admit, "default")


def paused(hf: Holdfast) -> None:
    """Start the first job, paused."""
    a_job(hf, paused=True)


def cancelled(hf: Holdfast) -> None:
    """Have cancelled the first job, so that its key is free."""
    a_job(hf)
    hf.sync.cancel(FIRST)


def halted(hf: Holdfast) -> None:
    """Have the first job halt its lane."""
    in_lane(hf)
    hf.sync.pause(FIRST)


def paused_lane(hf: Holdfast) -> None:
    """Have paused a lane in which jobs stand."""
    in_lane(hf)
    hf.sync.lane(LANE).pause()


def paused_queue(hf: Holdfast) -> None:
    """Have paused the queue."""
    hf.sync.queue("default").pause()


def ended_long_ago(hf: Holdfast) -> None:
    """Have the first job have ended long ago."""
    cancelled(hf)
    hf.store.run_sync(run, AGE)


def stale_for_long(hf: Holdfast) -> None:
    """Have it have been stale for long, too."""
    ended_long_ago(hf)
    hf.store.run_sync(run, MARK)


async def run(tx: Tx, sql: str) -> None:
    """Run *sql*."""
    await tx.execute(sql)


@dataclass(frozen=True, slots=True)
class Verb:
    """What is done where; the *event* it appends, and the *value* that *sql* reads when it is done, and not before."""

    prepare: Callable[[Holdfast], None]
    steer: Callable[[Holdfast], object]
    event: str
    sql: str
    value: object


AGE = "UPDATE holdfast_job SET closed_at = 1"
MARK = "UPDATE holdfast_job SET stale_at = 1"
STALE = "SELECT count(*) FROM holdfast_job WHERE stale_at IS NOT NULL"
STATUS = f"SELECT status FROM holdfast_job WHERE id = '{FIRST}'"
GATE = f"SELECT gate FROM holdfast_job WHERE id = '{FIRST}'"
IS_DELAYED = f"SELECT run_at > $now + 60000 FROM holdfast_job WHERE id = '{FIRST}'"
IS_THERE = f"SELECT count(*) FROM holdfast_job WHERE id = '{FIRST}'"
HEAD = f"SELECT id FROM holdfast_job WHERE lane = '{LANE}' AND head = 1"
JOBS = "SELECT count(*) FROM holdfast_job"
KEYS = "SELECT count(*) FROM holdfast_unique"
PAUSED_QUEUES = "SELECT count(*) FROM holdfast_queue WHERE paused_at IS NOT NULL"

VERBS = {
    "cancel": Verb(in_lane, lambda hf: hf.sync.cancel(FIRST), "job:cancelled", HEAD, str(SECOND)),
    "pause": Verb(a_job, lambda hf: hf.sync.pause(FIRST), "job:paused", STATUS, "paused"),
    "resume": Verb(paused, lambda hf: hf.sync.resume(FIRST), "job:resumed", STATUS, "pending"),
    "retry": Verb(cancelled, lambda hf: hf.sync.retry(FIRST), "job:resumed", KEYS, 1),
    "reschedule": Verb(a_job, lambda hf: hf.sync.reschedule(FIRST, after=3600), "job:rescheduled", IS_DELAYED, True),
    "outside": Verb(in_lane, lambda hf: hf.sync.complete(quick, FIRST, 7), "job:completed", HEAD, str(SECOND)),
    "start_again": Verb(in_lane, lambda hf: hf.sync.start_again(FIRST), "job:enqueued", JOBS, 3),
    "delete": Verb(in_lane, lambda hf: hf.sync.delete(FIRST), "job:deleted", IS_THERE, 0),
    "mark": Verb(ended_long_ago, lambda hf: hf.sync.retain(), "job:stale", STALE, 1),
    "remove": Verb(stale_for_long, lambda hf: hf.sync.retain(), "job:deleted", IS_THERE, 0),
    "skip": Verb(halted, lambda hf: hf.sync.lane(LANE).skip(), "lane:resumed", HEAD, str(SECOND)),
    "pause_lane": Verb(in_lane, lambda hf: hf.sync.lane(LANE).pause(), "lane:paused", GATE, None),
    "resume_lane": Verb(paused_lane, lambda hf: hf.sync.lane(LANE).resume(), "lane:resumed", GATE, "ready"),
    "pause_queue": Verb(a_job, lambda hf: hf.sync.queue("default").pause(), "queue:paused", PAUSED_QUEUES, 1),
    "resume_queue": Verb(paused_queue, lambda hf: hf.sync.queue("default").resume(), "queue:resumed", PAUSED_QUEUES, 0),
}


if __name__ == "__main__":
    VERBS[sys.argv[1]].steer(hf)
