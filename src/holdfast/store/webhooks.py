"""Webhooks as people ask for them: who is subscribed, which deliveries there were, and posting one again.

A subscription is a receiver that gets events of all jobs, or of those of some tasks. One that has a name is there once:
to subscribe under that name again changes it, or nothing if it is the same. So the webhook of the settings is one,
under a name of ours. Secrets are known by name only: the text of one is never stored. A subscription that is disabled,
by somebody or because its receiver is gone, gets nothing that happens from then on; deliveries that exist are still
tried. One that is enabled again, by hand or by another address, gets nothing that happened before: events may wait in
the outbox meanwhile, and were not meant for it. One that is changed while it is enabled gets what waits, as it is now.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from uuid import UUID

from holdfast.database.tx import Row, Tx, repeatable
from holdfast.errors import DeliveryNotFound, InvalidInput, JobNotFound, StatusConflict, SubscriptionNotFound
from holdfast.models import RESERVED, Delivery, Page, Subscription
from holdfast.states import TERMINAL, Status
from holdfast.store import reads, rows
from holdfast.store.log import events, fan_out
from holdfast.store.log.fan_out import DeliveryInput, DeliveryRecord
from holdfast.store.reads import Paging
from holdfast.store.rows import instant, maybe_instant, maybe_json
from holdfast.unreadable import readable, reading

MOST_SUBSCRIPTIONS = 100
"""How many there may be: each is looked at for every event in the outbox, and may get a delivery of it."""

OF_SETTINGS = f"{RESERVED}settings"
"""The name of the subscription that the setting `webhook` makes."""

SUBSCRIPTION = "id, url, events, tasks, secrets, created_at, disabled_at, reason, name"
# above all that there are, whatever the clock says: an event keeps the highest there was when it happened
SINCE = """(SELECT max(since.at) FROM (
        SELECT $now AS at
        UNION ALL SELECT 1 + coalesce(active_since, created_at) FROM holdfast_subscription) AS since)"""
# that of the settings is one more: somebody's hundredth must not keep a program from starting
SUBSCRIBE = f"""
    INSERT INTO holdfast_subscription (id, name, url, events, tasks, secrets, created_at, active_since)
    SELECT given.id, given.name, given.url, given.events, given.tasks, given.secrets, $now, {SINCE}
    FROM $list(given: id text, name text, url text, events text, tasks text, secrets text)
    WHERE coalesce(given.name, '') = :settings
        OR (SELECT count(*) FROM holdfast_subscription WHERE coalesce(name, '') <> :settings) < :most
    ON CONFLICT DO NOTHING"""
# who disabled it, or the receiver that was gone, meant the address; another address begins anew
CHANGE = f"""
    UPDATE holdfast_subscription
    SET url = given.url, events = given.events, tasks = given.tasks, secrets = given.secrets,
        disabled_at = CASE WHEN holdfast_subscription.url = given.url THEN disabled_at END,
        reason = CASE WHEN holdfast_subscription.url = given.url THEN reason END,
        active_since = CASE WHEN disabled_at IS NULL OR holdfast_subscription.url = given.url
            THEN active_since ELSE {SINCE} END
    FROM $list(given: id text, name text, url text, events text, tasks text, secrets text)
    WHERE holdfast_subscription.name = given.name
        AND (holdfast_subscription.url <> given.url OR holdfast_subscription.events <> given.events
            OR coalesce(holdfast_subscription.tasks, '') <> coalesce(given.tasks, '')
            OR coalesce(holdfast_subscription.secrets, '') <> coalesce(given.secrets, ''))"""


class NewSubscription(NamedTuple):
    """A subscription as it is asked for; *tasks* None means all, *name* None that it is another one each time."""

    id: UUID
    url: str
    events: tuple[str, ...]
    tasks: tuple[str, ...] | None = None
    secrets: tuple[str, ...] = ()
    name: str | None = None

    @property
    def key(self) -> str:
        """By what it is found again."""
        return self.name or str(self.id)

    def is_like(self, found: Subscription) -> bool:
        """Tell whether *found* is what is asked for."""
        return self[1:-1] == (found.url, found.events, found.tasks, found.secrets)


@repeatable
async def subscribe(tx: Tx, wanted: NewSubscription) -> Subscription:
    """Make a subscription, or change that of its name; raise `InvalidInput` if there are as many as there may be."""
    tasks = json.dumps(wanted.tasks) if wanted.tasks is not None else None
    secrets = json.dumps(wanted.secrets) if wanted.secrets else None
    given = [(str(wanted.id), wanted.name, wanted.url, json.dumps(wanted.events), tasks, secrets)]
    await tx.execute(SUBSCRIBE, given=given, most=MOST_SUBSCRIPTIONS, settings=OF_SETTINGS)
    if wanted.name is not None:
        await tx.execute(CHANGE, given=given)
    if not (found := await tx.fetch_all(ONE_SUBSCRIPTION, key=wanted.key)):
        raise InvalidInput(
            f"there are {MOST_SUBSCRIPTIONS} subscriptions already, which is the limit; remove one, or start jobs with "
            "webhook="
        )
    return _read_subscription(found[0])


# a name never looks like an id
SUBSCRIPTIONS = f"""SELECT {SUBSCRIPTION} FROM holdfast_subscription ORDER BY created_at, id"""
ONE_SUBSCRIPTION = f"""SELECT {SUBSCRIPTION} FROM holdfast_subscription WHERE id = :key OR name = :key"""


async def find_subscription(tx: Tx, key: str) -> Subscription | None:
    """Read the one of this id or name, if it is there."""
    found = await tx.fetch_all(ONE_SUBSCRIPTION, key=key)
    return _read_subscription(found[0]) if found else None


async def list_subscriptions(tx: Tx) -> list[Subscription]:
    """Read all, the oldest first."""
    return readable(await tx.fetch_all(SUBSCRIPTIONS), _read_subscription)


async def get_subscription(tx: Tx, key: str) -> Subscription:
    """Read the one of this id or name, or raise `SubscriptionNotFound`."""
    return _the_one(key, await tx.fetch_all(ONE_SUBSCRIPTION, key=key))


REMOVE = """DELETE FROM holdfast_subscription WHERE id = :key OR name = :key RETURNING id"""


async def unsubscribe(tx: Tx, key: str) -> bool:
    """Forget the one of this id or name; tell whether it was there. Its deliveries stay."""
    return bool(await tx.fetch_all(REMOVE, key=key))


ENABLE = f"""
    UPDATE holdfast_subscription SET disabled_at = NULL, reason = NULL,
        active_since = CASE WHEN disabled_at IS NULL THEN active_since ELSE {SINCE} END
    WHERE id = :key OR name = :key
    RETURNING {SUBSCRIPTION}"""
DISABLE = f"""
    UPDATE holdfast_subscription SET disabled_at = coalesce(disabled_at, $now), reason = :reason
    WHERE id = :key OR name = :key
    RETURNING {SUBSCRIPTION}"""


async def enable(tx: Tx, key: str) -> Subscription:
    """Have one told again of what happens from now on, or raise `SubscriptionNotFound`."""
    return _the_one(key, await tx.fetch_all(ENABLE, key=key))


async def disable(tx: Tx, key: str, why: str | None) -> Subscription:
    """Have one told of nothing until it is enabled, or raise `SubscriptionNotFound`."""
    return _the_one(key, await tx.fetch_all(DISABLE, key=key, reason=why))


def _the_one(key: str, rows: list[Row]) -> Subscription:
    if not rows:
        raise SubscriptionNotFound(key)
    return _read_subscription(rows[0])


def _read_subscription(row: Row) -> Subscription:
    id_, url, events, tasks, secrets, created_at, disabled_at, reason, name = row
    with reading("holdfast_subscription", id_):
        return Subscription(
            id=UUID(id_),
            url=url,
            events=tuple(json.loads(events)),
            tasks=None if tasks is None else tuple(json.loads(tasks)),
            secrets=tuple(json.loads(secrets)) if secrets else (),
            created_at=instant(created_at),
            disabled_at=maybe_instant(disabled_at),
            reason=reason,
            name=name,
        )


DELIVERY = """
    SELECT about.job, about.target, about.event, about.subscription, delivery.id, delivery.status, delivery.used,
        delivery.reason, delivery.error, delivery.output, delivery.run_at, delivery.input, delivery.created_at,
        delivery.finished_at
    FROM holdfast_delivery AS about JOIN holdfast_job AS delivery ON delivery.seq = about.job"""
DELIVERIES = f"""{DELIVERY} WHERE about.job $any(jobs: bigint)"""
DELIVERY_SEQS = """SELECT about.job FROM holdfast_delivery AS about"""
# plainly written it goes through all deliveries in their order, until it has found enough
ABOUT_JOB = """about.job $in(SELECT mine.job FROM holdfast_delivery AS mine WHERE mine.target = :target)"""
JOB_SEQ = """SELECT seq FROM holdfast_job WHERE id = :id"""


async def list_deliveries(tx: Tx, job: UUID | None, subscription: UUID | None, paging: Paging) -> Page[Delivery]:
    """List deliveries; those about *job*, or to *subscription*, or all. Raises `JobNotFound`."""
    conditions: reads.Conditions = [("true", {})]
    sql = f"{DELIVERY_SEQS} WHERE true"
    if job is not None:
        found = await tx.fetch_all(JOB_SEQ, id=str(job))
        if not found:
            raise JobNotFound(job)
        sql = f"{DELIVERY_SEQS} WHERE {ABOUT_JOB}"
        conditions.append(("true", {"target": found[0][0]}))
    if subscription is not None:
        conditions.append(("about.subscription = :subscription", {"subscription": str(subscription)}))
    page = await reads.page(tx, sql, "about.job", conditions, paging, lambda row: int(row[0]), seq_at=0)
    rows = await tx.fetch_all(DELIVERIES, jobs=list(page)) if page else []
    read = dict(readable(rows, lambda row: (row[0], _read_delivery(row))))
    return Page(tuple(read[seq] for seq in page if seq in read), page.next_cursor)


ONE_DELIVERY = f"""{DELIVERY} WHERE delivery.id = :id"""


async def get_delivery(tx: Tx, delivery_id: UUID) -> Delivery:
    """Read one, or raise `DeliveryNotFound`."""
    return _read_delivery(await _one(tx, delivery_id))


@repeatable
async def redeliver(tx: Tx, delivery_id: UUID, new_id: UUID, said: dict[str, str]) -> Delivery:
    """Deliver once more what a delivery that has ended was to deliver, as *new_id*; raise `DeliveryNotFound`.

    The body is the same, and so is the id that the receiver sees: what it has taken before, it can tell. How long it
    may wait for a receiver counts from now. Raises `StatusConflict` for a delivery that is still tried.
    """
    row = await _one(tx, delivery_id)
    _, target, event, subscription, id_, status, *_ = row
    if status not in TERMINAL:
        raise StatusConflict(
            delivery_id, status, "be delivered again", TERMINAL, f"hf.trigger({str(delivery_id)!r}) tries it now"
        )
    given: dict[str, Any] = json.loads(row[11])
    parcel = DeliveryInput(**(given | {"message": given.get("message") or id_, "at": await reads.now_ms(tx)}))
    inserted = await rows.insert(tx, [parcel.start(new_id)])
    if inserted:
        (made,) = inserted
        await fan_out.record(tx, [DeliveryRecord(made.seq, target, event, subscription, parcel.url)])
        facts = json.dumps({"again": id_, **said})
        await events.append(tx, [events.NewEvent(made.seq, "job:enqueued", made.status, 1, 0, facts)])
    return await get_delivery(tx, new_id)


async def _one(tx: Tx, delivery_id: UUID) -> Row:
    found = await tx.fetch_all(ONE_DELIVERY, id=str(delivery_id))
    if not found:
        raise DeliveryNotFound(delivery_id)
    return found[0]


def _read_delivery(row: Row) -> Delivery:
    (seq, _, event, subscription, id_, status, attempt, reason, error, output, run_at, input_, created_at,
     finished_at) = row  # fmt: skip
    with reading("holdfast_job", seq):
        given: dict[str, Any] = json.loads(input_)
        return Delivery(
            id=UUID(id_),
            message_id=UUID(given.get("message") or id_),
            event=event,
            target=UUID(given["target"]),
            subscription=None if subscription is None else UUID(subscription),
            url=given["url"],
            status=Status(status),
            attempts=attempt,
            reason=reason,
            error=maybe_json(error),
            answer=maybe_json(output),
            created_at=instant(created_at),
            next_at=None if status in TERMINAL else instant(run_at),
            finished_at=maybe_instant(finished_at),
        )
