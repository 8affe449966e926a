"""How subscriptions to webhooks and their deliveries are written for those outside.

An address may be a secret, and so may what a receiver answers: whoever is no admin sees the scheme and the host alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel

from holdfast.models import Delivery, Subscription
from holdfast.wire.objects import Instant, MaybeInstant, MaybeText, Text, Written, writer_of
from holdfast.wire.redaction import Redaction


def _list(words: Sequence[str]) -> list[str]:
    return list(words)


class SubscriptionObject(BaseModel):
    """A receiver of webhooks, subscribed to the events of all jobs or of some tasks."""

    id: Text
    name: str | None
    url: str
    events: Annotated[list[str], Written(_list)]
    tasks: Annotated[list[str] | None, Written(_list)]
    secrets: Annotated[list[str], Written(_list)]
    created_at: Instant
    disabled_at: MaybeInstant
    reason: str | None


class DeliveryObject(BaseModel):
    """A webhook that was or is to be posted: one event, for one receiver."""

    id: Text
    message_id: Text
    event: str
    job: Annotated[str, Written(str, of="target")]
    subscription: MaybeText
    url: str
    status: Text
    attempts: int
    reason: str | None
    error: Any
    answer: Any
    created_at: Instant
    next_at: MaybeInstant
    finished_at: MaybeInstant


def host_alone(url: str) -> str:
    """Give the scheme and the host of an address.

    >>> host_alone("https://ada:secret@hooks.example.com:8443/of/ada?key=7")
    'https://hooks.example.com:8443'
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


_write_subscription = writer_of(SubscriptionObject)


def subscription_object(subscription: Subscription, *, masked: bool = False) -> dict[str, Any]:
    """Write a subscription; *masked* for who may not see all of the address."""
    written = _write_subscription(subscription)
    return {**written, "url": host_alone(subscription.url)} if masked else written


_write_delivery = writer_of(DeliveryObject)


def delivery_object(delivery: Delivery, redaction: Redaction | None = None, *, masked: bool = False) -> dict[str, Any]:
    """Write a delivery; *masked* for who may see neither all of the address nor the receiver's answer."""
    written = _write_delivery(delivery)
    if masked:
        url, error = host_alone(delivery.url), written["error"]
        if isinstance(error, dict):
            error = {name: error[name] for name in ("type", "message") if name in error}
            if isinstance(error.get("message"), str):
                error["message"] = error["message"].replace(delivery.url, url or "")
        written |= {"url": url, "answer": None, "error": error if isinstance(error, dict) else None}
    if redaction is not None:
        written["reason"], written["error"] = redaction.reason(delivery.reason), redaction.error(written["error"])
    return written
