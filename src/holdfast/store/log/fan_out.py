"""Webhooks in the store: which events want one, the deliveries made for them, and what the end of one leaves behind.

A delivery is a job like any other, of the engine's own task, on the internal queue, with its body fixed. It is inserted
in the transaction in which its event happens, so it exists if and only if the event does; `events` comes by here. Who
wants no webhook pays nothing for it: a move says by itself whether one may be wanted (`MAY_WANT`), the rest asks once.

A job's own address takes the place of the subscriptions. What the engine does for itself makes no deliveries.

*Order.* The deliveries of one job to one receiver stand in a lane of their own, which they never halt; two receivers
have two, for one that does not answer shall not hold up the other. A lane keeps the order in which jobs join it, and
who is locked when admission comes round would be overtaken: so a delivery does not join before an earlier one has.

*The end.* Whoever ends a delivery has its target locked, or leaves the delivery for later: the target is marked, and an
event appended for it, in the same commit. If the target has been deleted meanwhile, there is nothing to be marked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from holdfast.database.tx import Row, Tx
from holdfast.ids import id_that_follows
from holdfast.models import DEFAULT_TRIGGERS, DELIVER, GONE, INTERNAL_QUEUE, EventName, Job, Start
from holdfast.states import Status
from holdfast.store import rows
from holdfast.store.rows import COLUMNS, FACTS, SILENT, Inserted, NewEvent, instant, to_job
from holdfast.wire.job_json import instant_text
from holdfast.wire.webhook_body import body

LANE = "holdfast.webhook."
"""What the lanes of deliveries begin with; the id of the job, and that of the subscription, come after it."""

# coarse: who wants other events that end alike is sorted out by whoever makes the deliveries
MAY_WANT = """(coalesce(holdfast_job.webhook, '') <> '' OR (holdfast_job.webhook IS NULL AND EXISTS (
        SELECT 1 FROM holdfast_subscription AS asking
        WHERE asking.disabled_at IS NULL AND asking.events LIKE '%:completed"%')))"""
"""Whether a job that completes may want a webhook; of subscriptions it is asked once for a whole statement."""

WANTED = f"""
    SELECT given.nr_of_fact, $now, holdfast_job.task, holdfast_job.webhook, asking.id, asking.url, asking.events,
        asking.tasks, asking.secrets
    FROM $list(given: nr_of_fact bigint, job bigint, name text)
        JOIN holdfast_job ON holdfast_job.seq = given.job
        LEFT JOIN holdfast_subscription AS asking ON holdfast_job.webhook IS NULL AND asking.disabled_at IS NULL
            AND asking.events LIKE '%"' || given.name || '"%'
    WHERE holdfast_job.queue <> '{INTERNAL_QUEUE}'
        AND (coalesce(holdfast_job.webhook, '') <> '' OR asking.id IS NOT NULL)
    ORDER BY given.nr_of_fact, asking.created_at, asking.id"""
JOBS = f"""SELECT {COLUMNS}, {FACTS} FROM holdfast_job WHERE seq $any(seqs: bigint)"""
RECORD = """
    INSERT INTO holdfast_delivery (job, target, event, subscription)
    SELECT given.job, given.target, given.event, given.subscription
    FROM $list(given: job bigint, target bigint, event text, subscription text)
    WHERE true"""


@dataclass(frozen=True, slots=True)
class DeliveryInput:
    """What is posted, and where to: the input of a delivery.

    *message* is the id under which it was posted first, if that was by another delivery.
    """

    url: str
    body: str
    event: str
    target: str
    subscription: str | None
    secrets: Sequence[str]
    at: int
    message: str | None = None

    def start(self, delivery_id: UUID) -> Start:
        """Make the job that posts it."""
        given = {name: getattr(self, name) for name in ("url", "event", "target", "subscription", "at", "body")}
        given |= {"secrets": list(self.secrets)} | ({} if self.message is None else {"message": self.message})
        receiver = "" if self.subscription is None else f".{self.subscription}"
        return Start(
            id=delivery_id,
            task=DELIVER,
            input=json.dumps(given, ensure_ascii=False, separators=(",", ":")),
            queue=INTERNAL_QUEUE,
            lane=f"{LANE}{self.target}{receiver}",
            webhook=SILENT,
        )


class WebhookTarget(NamedTuple):
    """A receiver that is to be told of a fact."""

    fact: NewEvent
    at_ms: int
    url: str
    subscription: str | None
    secrets: Sequence[str]


async def fan_out(tx: Tx, facts: Sequence[NewEvent]) -> list[Inserted]:
    """Insert a delivery for everybody who is to be told of *facts*, all of them triggers; give the new jobs."""
    asked = [(nr, fact.job, fact.name) for nr, fact in enumerate(facts)]
    found = await tx.fetch_all(WANTED, given=asked) if asked else []
    receivers = [receiver for row in found if (receiver := _receiver(facts[row[0]], row)) is not None]
    if not receivers:
        return []
    seqs = sorted({receiver.fact.job for receiver in receivers})
    targets = {job.seq: job for job in map(to_job, await tx.fetch_all(JOBS, seqs=seqs))}
    starts = {
        each.id: (each, receiver) for receiver in receivers for each in [_start(receiver, targets[receiver.fact.job])]
    }
    inserted = await rows.insert(tx, [start for start, _ in starts.values()])
    made = [(each.seq, starts[each.id][1]) for each in inserted]
    await record(tx, [(seq, receiver.fact.job, receiver.fact.name, receiver.subscription) for seq, receiver in made])
    return inserted


async def record(tx: Tx, given: Sequence[tuple[int, int, str, str | None]]) -> None:
    """Write down of deliveries which job they are about, by its seq, and its event and subscription."""
    if given:
        await tx.execute(RECORD, given=given)


def _receiver(fact: NewEvent, row: Row) -> WebhookTarget | None:
    """Read a row of WANTED; None if it is not wanted after all."""
    _, now, task, own, subscription, url, events, tasks, secrets = row
    if own is not None:
        return WebhookTarget(fact, now, own, None, ()) if fact.name in DEFAULT_TRIGGERS else None
    if fact.name not in json.loads(events) or (tasks is not None and task not in json.loads(tasks)):
        return None
    return WebhookTarget(fact, now, url, subscription, json.loads(secrets) if secrets else ())


def _start(receiver: WebhookTarget, job: Job) -> Start:
    fact = receiver.fact
    at = instant_text(instant(receiver.at_ms)) or ""
    posted = body(fact.name, at, job, status=fact.status, attempt=fact.attempt, version=fact.version, facts=fact.facts)
    delivery = DeliveryInput(
        receiver.url, posted, fact.name, str(job.id), receiver.subscription, receiver.secrets, receiver.at_ms
    )
    new_id = id_that_follows(
        receiver.at_ms, fact.job, str(job.id), fact.version, fact.name, fact.facts, receiver.subscription
    )
    return delivery.start(new_id)


TARGETS = """SELECT job, target, event, subscription FROM holdfast_delivery WHERE job $any(jobs: bigint)"""
LOCK_TARGETS = """SELECT seq FROM holdfast_job WHERE seq $any(seqs: bigint) ORDER BY seq $skip_locked"""
EXIST = """SELECT seq FROM holdfast_job WHERE seq $any(seqs: bigint)"""


async def lock_targets(tx: Tx, deliveries: Iterable[int]) -> set[int]:
    """Lock the jobs that *deliveries* are about; answer those deliveries whose job somebody else has locked."""
    asked = sorted(deliveries)
    if not asked:
        return set()
    about = {job: target for job, target, *_ in await tx.fetch_all(TARGETS, jobs=asked)}
    targets = sorted(set(about.values()))
    mine = {seq for (seq,) in await tx.fetch_all(LOCK_TARGETS, seqs=targets)} if targets else set()
    missed = [seq for seq in targets if seq not in mine]
    locked = {seq for (seq,) in await tx.fetch_all(EXIST, seqs=missed)} if missed else set()
    return {job for job, target in about.items() if target in locked}


class DeliveryEnd(NamedTuple):
    """A delivery that has ended, and how."""

    seq: int
    id: str
    lane: str | None
    status: Status
    reason: str | None = None

    @property
    def subscription_that_is_gone(self) -> str | None:
        """The subscription whose receiver has said that it is gone for good."""
        if self.lane is None or self.status is not Status.FAILED or self.reason != GONE:
            return None
        return self.lane.removeprefix(LANE).partition(".")[2] or None


# a tombstone is nobody's job any more
MARK = """
    UPDATE holdfast_job SET webhook_sent = given.sent, version = version + 1
    FROM $list(given: seq bigint, sent bigint)
    WHERE holdfast_job.seq = given.seq AND coalesce(holdfast_job.closed_as, '') <> 'deleted'
    RETURNING holdfast_job.seq, holdfast_job.status, holdfast_job.version, holdfast_job.attempt"""
DISABLE = """
    UPDATE holdfast_subscription SET disabled_at = $now, reason = :reason
    WHERE id $in(SELECT held.id FROM holdfast_subscription AS held
        WHERE held.id $any(ids: text) AND held.disabled_at IS NULL ORDER BY held.id $skip_locked)"""
ANSWERED_GONE = "its receiver has answered 410 Gone"


async def mark_targets(tx: Tx, ends: Sequence[DeliveryEnd]) -> list[NewEvent]:
    """Mark the jobs that ended deliveries were about, as far as they still exist; give what is to be appended for them.

    A subscription whose receiver is gone for good is disabled.
    """
    if not ends:
        return []
    if gone := sorted({id_ for each in ends if (id_ := each.subscription_that_is_gone) is not None}):
        await tx.execute(DISABLE, ids=gone, reason=ANSWERED_GONE)
    about = {row[0]: row[1:] for row in await tx.fetch_all(TARGETS, jobs=[each.seq for each in ends])}
    known = [each for each in ends if each.seq in about]
    # of several deliveries of one job the last one counts
    sent = {about[each.seq][0]: int(each.status is Status.COMPLETED) for each in known}
    marked = await tx.fetch_all(MARK, given=sorted(sent.items())) if sent else []
    targets: Mapping[int, Row] = {row[0]: row for row in marked}
    return [
        _webhook_event(each, targets[about[each.seq][0]], about[each.seq])
        for each in known
        if about[each.seq][0] in targets
    ]


def _webhook_event(end: DeliveryEnd, target: Row, about: Row) -> NewEvent:
    seq, status, version, attempt = target
    _, event, subscription = about
    said = {"delivery": end.id, "event": event, "subscription": subscription, "reason": end.reason}
    facts = json.dumps({key: value for key, value in said.items() if value is not None})
    name: EventName = "job:webhook:delivered" if end.status is Status.COMPLETED else "job:webhook:failed"
    return NewEvent(seq, name, Status(status), version, attempt, facts)


# what is due and has no place yet; one that waits for its next attempt has its place. Scalar subqueries stay probes
OVERTAKING = """
    SELECT mine.job FROM holdfast_delivery AS mine
    WHERE mine.job $any(jobs: bigint) AND (SELECT earlier.job FROM holdfast_delivery AS earlier
        WHERE earlier.target = mine.target AND earlier.job < mine.job AND NOT (earlier.job $any(jobs: bigint))
            AND coalesce(earlier.subscription, '') = coalesce(mine.subscription, '')
            AND (SELECT waiting.seq FROM holdfast_job AS waiting
                WHERE waiting.seq = earlier.job AND coalesce(waiting.status, '') = 'pending'
                    AND coalesce(waiting.gate, '') = 'arrival' AND waiting.place IS NULL
                    AND waiting.run_at <= $now) IS NOT NULL
        LIMIT 1) IS NOT NULL"""


async def overtaking(tx: Tx, joining: Iterable[tuple[int, str]]) -> set[int]:
    """Tell which of *joining* (seq, lane) are deliveries that would overtake one which somebody has locked."""
    jobs = [seq for seq, lane in joining if lane.startswith(LANE)]
    return {seq for (seq,) in await tx.fetch_all(OVERTAKING, jobs=jobs)} if jobs else set()
