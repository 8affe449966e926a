"""Webhooks as people ask for them: who is subscribed, which deliveries there were, and posting one again.

A subscription is a receiver that gets events of all jobs, or of those of some tasks. Secrets are known by name only:
the text of one is never stored. A subscription that is disabled, by somebody or because its receiver is gone, gets
nothing that happens from then on; deliveries that exist are still tried.
"""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from holdfast.database.tx import Row, Tx, repeatable
from holdfast.errors import DeliveryNotFound, InvalidInput, JobNotFound, StatusConflict, SubscriptionNotFound
from holdfast.models import Delivery, Page, Subscription
from holdfast.states import TERMINAL, Status
from holdfast.store import reads, rows
from holdfast.store.log import events, fan_out
from holdfast.store.log.fan_out import DeliveryInput
from holdfast.store.reads import Paging
from holdfast.store.rows import instant, maybe_instant, maybe_json

MOST_SUBSCRIPTIONS = 100
"""How many there may be: each is looked at whenever a job ends, in the transaction that ends it."""

SUBSCRIPTION = "id, url, events, tasks, secrets, created_at, disabled_at, reason"
SUBSCRIBE = """
    INSERT INTO holdfast_subscription (id, url, events, tasks, secrets, created_at)
    SELECT given.id, given.url, given.events, given.tasks, given.secrets, $now
    FROM $list(given: id text, url text, events text, tasks text, secrets text)
    WHERE (SELECT count(*) FROM holdfast_subscription) < :most
    ON CONFLICT (id) DO NOTHING"""


@repeatable
async def subscribe(
    tx: Tx,
    subscription_id: UUID,
    url: str,
    events: tuple[str, ...],
    tasks: tuple[str, ...] | None,
    secrets: tuple[str, ...],
) -> Subscription:
    """Make a subscription; raise `InvalidInput` if there are as many as there may be."""
    wanted = json.dumps(tasks) if tasks is not None else None
    row = (str(subscription_id), url, json.dumps(events), wanted, json.dumps(secrets) if secrets else None)
    await tx.execute(SUBSCRIBE, given=[row], most=MOST_SUBSCRIPTIONS)
    if not (found := await tx.fetch_all(ONE_SUBSCRIPTION, id=str(subscription_id))):
        raise InvalidInput(
            f"there are {MOST_SUBSCRIPTIONS} subscriptions, and no more may be; remove one, or give jobs a webhook="
        )
    return _read_subscription(found[0])


SUBSCRIPTIONS = f"""SELECT {SUBSCRIPTION} FROM holdfast_subscription ORDER BY created_at, id"""
ONE_SUBSCRIPTION = f"""SELECT {SUBSCRIPTION} FROM holdfast_subscription WHERE id = :id"""


async def list_subscriptions(tx: Tx) -> list[Subscription]:
    """Read all, the oldest first."""
    return [_read_subscription(row) for row in await tx.fetch_all(SUBSCRIPTIONS)]


async def get_subscription(tx: Tx, subscription_id: UUID) -> Subscription:
    """Read one, or raise `SubscriptionNotFound`."""
    return _the_one(subscription_id, await tx.fetch_all(ONE_SUBSCRIPTION, id=str(subscription_id)))


REMOVE = """DELETE FROM holdfast_subscription WHERE id = :id RETURNING id"""


async def unsubscribe(tx: Tx, subscription_id: UUID) -> None:
    """Forget one, or raise `SubscriptionNotFound`; its deliveries stay."""
    if not await tx.fetch_all(REMOVE, id=str(subscription_id)):
        raise SubscriptionNotFound(subscription_id)


ENABLE = f"""
    UPDATE holdfast_subscription SET disabled_at = NULL, reason = NULL
    WHERE id = :id
    RETURNING {SUBSCRIPTION}"""
DISABLE = f"""
    UPDATE holdfast_subscription SET disabled_at = coalesce(disabled_at, $now), reason = :reason
    WHERE id = :id
    RETURNING {SUBSCRIPTION}"""


async def enable(tx: Tx, subscription_id: UUID) -> Subscription:
    """Have one told again of what happens from now on, or raise `SubscriptionNotFound`."""
    rows = await tx.fetch_all(ENABLE, id=str(subscription_id))
    return _the_one(subscription_id, rows)


async def disable(tx: Tx, subscription_id: UUID, why: str | None) -> Subscription:
    """Have one told of nothing until it is enabled, or raise `SubscriptionNotFound`."""
    rows = await tx.fetch_all(DISABLE, id=str(subscription_id), reason=why)
    return _the_one(subscription_id, rows)


def _the_one(subscription_id: UUID, rows: list[Row]) -> Subscription:
    if not rows:
        raise SubscriptionNotFound(subscription_id)
    return _read_subscription(rows[0])


def _read_subscription(row: Row) -> Subscription:
    id_, url, events, tasks, secrets, created_at, disabled_at, reason = row
    return Subscription(
        id=UUID(id_),
        url=url,
        events=tuple(json.loads(events)),
        tasks=None if tasks is None else tuple(json.loads(tasks)),
        secrets=tuple(json.loads(secrets)) if secrets else (),
        created_at=instant(created_at),
        disabled_at=maybe_instant(disabled_at),
        reason=reason,
    )


DELIVERY = """
    SELECT about.job, about.target, about.event, about.subscription, delivery.id, delivery.status, delivery.attempt,
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
    read = {row[0]: _read_delivery(row) for row in await tx.fetch_all(DELIVERIES, jobs=list(page))} if page else {}
    return Page(tuple(read[seq] for seq in page if seq in read), page.next_cursor)


ONE_DELIVERY = f"""{DELIVERY} WHERE delivery.id = :id"""


async def get_delivery(tx: Tx, delivery_id: UUID) -> Delivery:
    """Read one, or raise `DeliveryNotFound`."""
    return _read_delivery(await _one(tx, delivery_id))


@repeatable
async def redeliver(tx: Tx, delivery_id: UUID, new_id: UUID, said: dict[str, str]) -> Delivery:
    """Deliver once more what a delivery that has ended was to deliver, as *new_id*; raise `DeliveryNotFound`.

    The body is the same, and so is the id that the receiver sees: what it has taken before, it can tell. Raises
    `StatusConflict` for a delivery that is still tried.
    """
    row = await _one(tx, delivery_id)
    _, target, event, subscription, id_, status, *_ = row
    if status not in TERMINAL:
        raise StatusConflict(delivery_id, status, "be delivered again", TERMINAL, "trigger() has it tried now")
    given: dict[str, Any] = json.loads(row[11])
    parcel = DeliveryInput(**(given | {"message": given.get("message") or id_}))
    inserted = await rows.insert(tx, [parcel.start(new_id)])
    if inserted:
        (made,) = inserted
        await fan_out.record(tx, [(made.seq, target, event, subscription)])
        facts = json.dumps({"again": id_, **said})
        await events.append(tx, [events.NewEvent(made.seq, "job:enqueued", made.status, 1, 0, facts)])
    return await get_delivery(tx, new_id)


async def _one(tx: Tx, delivery_id: UUID) -> Row:
    found = await tx.fetch_all(ONE_DELIVERY, id=str(delivery_id))
    if not found:
        raise DeliveryNotFound(delivery_id)
    return found[0]


def _read_delivery(row: Row) -> Delivery:
    (_, _, event, subscription, id_, status, attempt, reason, error, output, run_at, input_, created_at,
     finished_at) = row  # fmt: skip
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
