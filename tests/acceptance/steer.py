"""The verbs by which people steer jobs, each with the scene that it needs, and how one sees that it is done.

What is steered goes by fixed ids, so that it can be steered again after a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from holdfast import Holdfast
from holdfast.database.tx import Tx
from holdfast.models import INTERNAL_QUEUE
from holdfast.store import admission
from tests.acceptance.jobs_of_tests import kept, quick
from tests.acceptance.produce import job_id
from tests.support.outbox import empty_outbox

FIRST, SECOND = job_id("first"), job_id("second")
LANE = "lane"
HOOK = "https://example.com/hook"


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
    """Have the first job have ended long ago, and its task have hooks for what comes then."""
    hf.sync.start(kept(), id=FIRST)
    hf.sync.cancel(FIRST)
    hf.store.run_sync(run, AGE)


def stale_for_long(hf: Holdfast) -> None:
    """Have it have been stale for long, too."""
    ended_long_ago(hf)
    hf.store.run_sync(run, MARK)


def with_an_old_log(hf: Holdfast) -> None:
    """Have the log tell of no job, long ago."""
    paused_queue(hf)
    hf.store.run_sync(run, AGE_LOG)


def nothing(hf: Holdfast) -> None:
    """Leave the scene as it is."""


def subscribed(hf: Holdfast) -> None:
    """Have a subscription."""
    hf.sync.webhooks.subscribe(HOOK, events=["job:completed"])


def disabled(hf: Holdfast) -> None:
    """Have one that is disabled."""
    subscribed(hf)
    hf.sync.webhooks.disable(only_subscription(hf))


def only_subscription(hf: Holdfast) -> UUID:
    """Name the one that there is."""
    return hf.sync.webhooks.list()[0].id


def delivered(hf: Holdfast) -> None:
    """Have a delivery that nobody tries any more."""
    hf.sync.queue(INTERNAL_QUEUE).pause()
    a_job(hf, webhook=HOOK)
    hf.sync.cancel(FIRST)
    empty_outbox(hf)
    hf.sync.cancel(only_delivery(hf))


def only_delivery(hf: Holdfast) -> UUID:
    """Name the first one that there is."""
    return hf.sync.webhooks.deliveries(job=FIRST).items[0].id


async def run(tx: Tx, sql: str) -> None:
    """Run *sql*."""
    await tx.execute(sql)


@dataclass(frozen=True, slots=True)
class Verb:
    """What is done where; the *event* it appends, and the *value* that *sql* reads when it is done, and not before."""

    prepare: Callable[[Holdfast], None]
    steer: Callable[[Holdfast], object]
    event: str | None
    sql: str
    value: object


AGE = "UPDATE holdfast_job SET closed_at = 1"
AGE_LOG = "UPDATE holdfast_event SET at = 1"
MARK = "UPDATE holdfast_job SET stale_at = 1"
STALE = "SELECT count(*) FROM holdfast_job WHERE stale_at IS NOT NULL"
STATUS = f"SELECT status FROM holdfast_job WHERE id = '{FIRST}'"
GATE = f"SELECT gate FROM holdfast_job WHERE id = '{FIRST}'"
IS_DELAYED = f"SELECT run_at > $now + 60000 FROM holdfast_job WHERE id = '{FIRST}'"
IS_THERE = f"SELECT count(*) FROM holdfast_job WHERE id = '{FIRST}'"
HEAD = f"SELECT id FROM holdfast_job WHERE lane = '{LANE}' AND head = 1"
JOBS = "SELECT count(*) FROM holdfast_job"
EDITED = """
    SELECT count(*) FROM holdfast_journal JOIN holdfast_job ON seq = job
    WHERE kind = 'holdfast.input' AND input LIKE '%7%' AND status = 'pending'"""
KEYS = "SELECT count(*) FROM holdfast_unique"
PAUSED_QUEUES = "SELECT count(*) FROM holdfast_queue WHERE paused_at IS NOT NULL"
SUBSCRIPTIONS = "SELECT count(*) FROM holdfast_subscription"
ENABLED = "SELECT count(*) FROM holdfast_subscription WHERE disabled_at IS NULL"
DELIVERIES = "SELECT count(*) FROM holdfast_delivery"
LEFT_OF_THE_LOG = """
    SELECT CASE value WHEN '0' THEN -1 ELSE (SELECT count(*) FROM holdfast_event) END
    FROM holdfast_meta WHERE key = 'log_trimmed'"""

VERBS = {
    "cancel": Verb(in_lane, lambda hf: hf.sync.cancel(FIRST), "job:cancelled", HEAD, str(SECOND)),
    "pause": Verb(a_job, lambda hf: hf.sync.pause(FIRST), "job:paused", STATUS, "paused"),
    "resume": Verb(paused, lambda hf: hf.sync.resume(FIRST), "job:resumed", STATUS, "pending"),
    "retry": Verb(cancelled, lambda hf: hf.sync.retry(FIRST), "job:resumed", KEYS, 1),
    "edit": Verb(cancelled, lambda hf: hf.sync.retry(FIRST, arguments={"n": 7}), "job:resumed", EDITED, 1),
    "edit_paused": Verb(paused, lambda hf: hf.sync.resume(FIRST, arguments={"n": 7}), "job:resumed", EDITED, 1),
    "reschedule": Verb(a_job, lambda hf: hf.sync.reschedule(FIRST, after=3600), "job:rescheduled", IS_DELAYED, True),
    "outside": Verb(in_lane, lambda hf: hf.sync.complete(quick, FIRST, 7), "job:completed", HEAD, str(SECOND)),
    "start_again": Verb(in_lane, lambda hf: hf.sync.start_again(FIRST), "job:enqueued", JOBS, 3),
    "delete": Verb(in_lane, lambda hf: hf.sync.delete(FIRST), "job:deleted", IS_THERE, 0),
    "mark": Verb(ended_long_ago, lambda hf: hf.sync.retain(), "job:stale", STALE, 1),
    "retain": Verb(stale_for_long, lambda hf: hf.sync.retain(), "job:deleted", IS_THERE, 0),
    "skip": Verb(halted, lambda hf: hf.sync.lane(LANE).skip(), "lane:resumed", HEAD, str(SECOND)),
    "pause_lane": Verb(in_lane, lambda hf: hf.sync.lane(LANE).pause(), "lane:paused", GATE, None),
    "resume_lane": Verb(paused_lane, lambda hf: hf.sync.lane(LANE).resume(), "lane:resumed", GATE, "ready"),
    "pause_queue": Verb(a_job, lambda hf: hf.sync.queue("default").pause(), "queue:paused", PAUSED_QUEUES, 1),
    "resume_queue": Verb(paused_queue, lambda hf: hf.sync.queue("default").resume(), "queue:resumed", PAUSED_QUEUES, 0),
    "subscribe": Verb(nothing, subscribed, None, SUBSCRIPTIONS, 1),
    "unsubscribe": Verb(subscribed, lambda hf: hf.sync.webhooks.remove(only_subscription(hf)), None, SUBSCRIPTIONS, 0),
    "enable": Verb(disabled, lambda hf: hf.sync.webhooks.enable(only_subscription(hf)), None, ENABLED, 1),
    "disable": Verb(subscribed, lambda hf: hf.sync.webhooks.disable(only_subscription(hf)), None, ENABLED, 0),
    "redeliver": Verb(
        delivered, lambda hf: hf.sync.webhooks.redeliver(only_delivery(hf)), "job:enqueued", DELIVERIES, 2
    ),
    "trim": Verb(with_an_old_log, lambda hf: hf.sync.retain(), None, LEFT_OF_THE_LOG, 0),
}
