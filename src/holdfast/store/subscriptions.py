"""Subscriptions: receivers of webhooks that are told of events of all jobs, or of those of some tasks.

Secrets are known by name only: the text of one is never stored. A subscription that is disabled, by somebody or because
its receiver is gone, is told of nothing that happens from then on; deliveries that exist are still tried.
"""

from __future__ import annotations

import json
from uuid import UUID

from holdfast.database.tx import Row, Tx, repeatable
from holdfast.errors import InvalidInput, SubscriptionNotFound
from holdfast.models import Subscription
from holdfast.store.rows import instant, maybe_instant

MOST_SUBSCRIPTIONS = 100
"""How many there may be: each is looked at whenever a job ends, in the transaction that ends it."""

COLUMNS = "id, url, events, tasks, secrets, created_at, disabled_at, reason"
INSERT = """
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
    await tx.execute(INSERT, given=[row], most=MOST_SUBSCRIPTIONS)
    if not (found := await tx.fetch_all(GET, id=str(subscription_id))):
        raise InvalidInput(
            f"there are {MOST_SUBSCRIPTIONS} subscriptions, and no more may be; remove one, or give jobs a webhook="
        )
    return _read(found[0])


LIST = f"""SELECT {COLUMNS} FROM holdfast_subscription ORDER BY created_at, id"""
GET = f"""SELECT {COLUMNS} FROM holdfast_subscription WHERE id = :id"""


async def list_all(tx: Tx) -> list[Subscription]:
    """Read all, the oldest first."""
    return [_read(row) for row in await tx.fetch_all(LIST)]


async def get(tx: Tx, subscription_id: UUID) -> Subscription:
    """Read one, or raise `SubscriptionNotFound`."""
    return _the_one(subscription_id, await tx.fetch_all(GET, id=str(subscription_id)))


REMOVE = """DELETE FROM holdfast_subscription WHERE id = :id RETURNING id"""


async def unsubscribe(tx: Tx, subscription_id: UUID) -> None:
    """Forget one, or raise `SubscriptionNotFound`; its deliveries stay."""
    if not await tx.fetch_all(REMOVE, id=str(subscription_id)):
        raise SubscriptionNotFound(subscription_id)


ENABLE = f"""
    UPDATE holdfast_subscription SET disabled_at = NULL, reason = NULL
    WHERE id = :id
    RETURNING {COLUMNS}"""
DISABLE = f"""
    UPDATE holdfast_subscription SET disabled_at = coalesce(disabled_at, $now), reason = :reason
    WHERE id = :id
    RETURNING {COLUMNS}"""


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
    return _read(rows[0])


def _read(row: Row) -> Subscription:
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
