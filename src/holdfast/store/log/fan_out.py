"""Webhooks in the store: which events want one, what a delivery is, and what the end of one leaves behind.

An event that somebody may want puts one row into the outbox, in its own transaction, so the row exists if and only if
the event does; `events` comes by here. `outbox` makes the deliveries of it afterwards. Who wants no webhook pays
nothing for it: a move says by itself whether one may be wanted (`MAY_WANT`), the rest asks once.

A delivery is a job like any other, of the engine's own task, on the internal queue, with its body fixed. A job's own
address takes the place of the subscriptions. What the engine does for itself makes no deliveries.

*Order.* The deliveries of one job to one receiver stand in a lane of their own, which they never halt; two receivers
have two, for one that does not answer shall not hold up the other. A lane keeps the order in which jobs join it, and
who is locked when admission comes round would be overtaken: so a delivery does not join before an earlier one has.

*The end.* Whoever ends a delivery has its target locked, or leaves the delivery for later: the target is marked, and an
event appended for it, in the same commit. If the target has been deleted meanwhile, there is nothing to be marked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from holdfast.database.tx import Row, Tx
from holdfast.models import DEFAULT_TRIGGERS, DELIVER, GONE, INTERNAL_QUEUE, EventName, Start
from holdfast.states import Status
from holdfast.store.rows import SILENT, NewEvent

LANE = "holdfast.webhook."
"""What the lanes of deliveries begin with; the id of the job, and that of the subscription, come after it."""


def _in_sql(words: Iterable[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)


# coarse: who wants other events that end alike is sorted out when the row is written
MAY_WANT = """(coalesce(holdfast_job.webhook, '') <> '' OR (holdfast_job.webhook IS NULL AND EXISTS (
        SELECT 1 FROM holdfast_subscription AS asking
        WHERE asking.disabled_at IS NULL AND asking.events LIKE '%:completed"%')))"""
"""Whether a job that completes may want a webhook; of subscriptions it is asked once for a whole statement."""

# `replace` finds a name with whatever is in it; LIKE takes an underscore for any letter
_WANT = f"""
    INSERT INTO holdfast_outbox (job, event, at, status, version, attempt, facts, error, id, chain_id, chain_index,
        task, queue, tags, webhook, created_at, subscribed)
    SELECT given.job, given.name, $now, given.status, given.version, given.attempt, given.facts, told.error, told.id,
        told.chain_id, told.chain_index, told.task, told.queue, told.tags, told.webhook, told.created_at,
        (SELECT max(coalesce(latest.active_since, latest.created_at)) FROM holdfast_subscription AS latest)
    FROM $list(given: job bigint, name text, status text, version bigint, attempt bigint, facts text)
        JOIN TOLD
    WHERE told.queue <> '{INTERNAL_QUEUE}'
        AND ((coalesce(told.webhook, '') <> '' AND given.name IN ({_in_sql(DEFAULT_TRIGGERS)}))
            OR (told.webhook IS NULL AND EXISTS (SELECT 1 FROM holdfast_subscription AS asking
                WHERE asking.disabled_at IS NULL AND asking.events LIKE '%"' || given.name || '"%'
                    AND (asking.tasks IS NULL OR replace(asking.tasks, '"' || told.task || '"', '') <> asking.tasks))))
    $in_order(given)"""
# joined plainly, PostgreSQL compares each event with every job if the table was analysed when it was empty: a million
# comparisons for a thousand events; what has an OFFSET is looked up for each
WANT = {
    "postgres": _WANT.replace(
        "TOLD", "LATERAL (SELECT * FROM holdfast_job WHERE holdfast_job.seq = given.job OFFSET 0) AS told ON true"
    ),
    "sqlite": _WANT.replace("TOLD", "holdfast_job AS told ON told.seq = given.job"),
}


async def want(tx: Tx, facts: Sequence[NewEvent]) -> None:
    """Put *facts*, all of them triggers, into the outbox as far as somebody may want a webhook of them: one statement.

    It only inserts, and locks nothing, for it may stand in a caller's transaction.
    """
    if facts:
        await tx.execute(WANT[tx.database], given=facts)


RECORD = """
    INSERT INTO holdfast_delivery (job, target, event, subscription, receiver)
    SELECT given.job, given.target, given.event, given.subscription, given.receiver
    FROM $list(given: job bigint, target bigint, event text, subscription text, receiver text)
    WHERE true"""


class DeliveryInput(NamedTuple):
    """What is posted, and where to: the input of a delivery.

    *at* is the time of the event, or of the call by which it is posted once more. *message* is the id under which it
    was posted first, if that was by another delivery.
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


class DeliveryRecord(NamedTuple):
    """What is written down of a delivery: its seq, that of the job that it is about, and where it goes."""

    job: int
    target: int
    event: str
    subscription: str | None
    url: str


async def record(tx: Tx, made: Sequence[DeliveryRecord]) -> None:
    """Write down of deliveries what they are about, and whom they are for."""
    from holdfast.webhooks.addresses import receiver_of  # only a program with webhooks needs it

    if made:
        await tx.execute(RECORD, given=[(*each[:-1], receiver_of(each.url)) for each in made])


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
