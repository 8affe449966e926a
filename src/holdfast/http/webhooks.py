"""`/api/webhooks`, `/api/deliveries`: who is told of events, and what came of it.

An address may be a secret: who is no admin sees its scheme and host alone, and no answers of receivers.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from holdfast.access import Role
from holdfast.http.endpoint import Inquiry, NoBody, NoQuery, PageQuery, Taken
from holdfast.http.jobs import WhyBody
from holdfast.models import DEFAULT_TRIGGERS, Delivery, Page, Subscription, Trigger
from holdfast.wire.webhook_json import DeliveryObject, SubscriptionObject, delivery_object, subscription_object


class SubscribeBody(WhyBody):
    """Who is to be told of what; with a *name* the subscription of that name is changed."""

    url: str
    events: tuple[Trigger, ...] = DEFAULT_TRIGGERS
    tasks: tuple[str, ...] | None = None
    secrets: tuple[str, ...] = ()
    name: str | None = None


class RemoveWebhookQuery(Taken):
    """Why a subscription is removed."""

    why: str | None = None


class DeliveriesQuery(PageQuery):
    """Which deliveries: all, those about a *job*, or those of a *webhook*, by its id or name."""

    job: str | None = None
    webhook: str | None = None


class SubscriptionList(BaseModel):
    """All subscriptions, the oldest first."""

    items: list[SubscriptionObject]


class DeliveryPage(BaseModel):
    """A page of deliveries, newest first."""

    items: list[DeliveryObject]
    next_cursor: str | None


async def list_all(ask: Inquiry[NoQuery, NoBody]) -> dict[str, Any]:
    """List the subscriptions, the oldest first."""
    return {"items": [_subscription(ask, each) for each in await ask.hf.webhooks.list()]}


async def subscribe(ask: Inquiry[NoQuery, SubscribeBody]) -> dict[str, Any]:
    """Subscribe an address to events of jobs, from now on."""
    wanted = ask.body
    made = await ask.hf.webhooks.subscribe(
        wanted.url, events=wanted.events, tasks=wanted.tasks, secrets=wanted.secrets, name=wanted.name
    )
    return _subscription(ask, made)


async def read(ask: Inquiry[NoQuery, NoBody]) -> dict[str, Any]:
    """Read a subscription."""
    return _subscription(ask, await ask.hf.webhooks.get(ask.id))


async def remove(ask: Inquiry[RemoveWebhookQuery, NoBody]) -> None:
    """Forget a subscription; deliveries that exist are still tried."""
    await ask.hf.webhooks.remove(ask.id)


async def enable(ask: Inquiry[NoQuery, WhyBody]) -> dict[str, Any]:
    """Tell a subscription again, of what happens from now on."""
    return _subscription(ask, await ask.hf.webhooks.enable(ask.id))


async def disable(ask: Inquiry[NoQuery, WhyBody]) -> dict[str, Any]:
    """Tell a subscription of nothing until it is enabled."""
    return _subscription(ask, await ask.hf.webhooks.disable(ask.id))


async def list_own_deliveries(ask: Inquiry[PageQuery, NoBody]) -> dict[str, Any]:
    """List the deliveries of a subscription, newest first."""
    found = await ask.hf.webhooks.get(ask.id)
    return _deliveries(ask, await ask.hf.webhooks.deliveries(subscription=found.id, **ask.query.page))


async def list_deliveries(ask: Inquiry[DeliveriesQuery, NoBody]) -> dict[str, Any]:
    """List deliveries, newest first: all, those about a job, or those of a subscription."""
    wanted = ask.query
    return _deliveries(
        ask, await ask.hf.webhooks.deliveries(job=wanted.job, subscription=wanted.webhook, **wanted.page)
    )


async def redeliver(ask: Inquiry[NoQuery, WhyBody]) -> dict[str, Any]:
    """Deliver once more what a delivery that has ended was to deliver, under the same webhook-id."""
    return _delivery(ask, await ask.hf.webhooks.redeliver(ask.id))


def _is_masked(ask: Inquiry[Any, Any]) -> bool:
    return not ask.who.role.allows(Role.ADMIN)


def _subscription(ask: Inquiry[Any, Any], subscription: Subscription) -> dict[str, Any]:
    return subscription_object(subscription, masked=_is_masked(ask))


def _delivery(ask: Inquiry[Any, Any], delivery: Delivery) -> dict[str, Any]:
    return delivery_object(delivery, ask.shown.reader, masked=_is_masked(ask))


def _deliveries(ask: Inquiry[Any, Any], page: Page[Delivery]) -> dict[str, Any]:
    return {"items": [_delivery(ask, each) for each in page], "next_cursor": page.next_cursor}
