"""The pieces that are of use alone, for who builds something else of them; the whole of it is `Holdfast`.

sse             messages of server-sent events as bytes: `sse.message(data, event=…, id=…)`
sign            the headers of a signed webhook: `sign(body, webhook_id=…, timestamp=…, secrets=[…])`
verify_webhook  what a receiver does with them: `verify_webhook(body, headers, secret)`
new_secret      a secret for both: `new_secret()`
WebhookBody     what such a body says, typed: `WebhookBody.model_validate_json(body).data.job.id`
webhook_schema  the same for other languages, as a JSON Schema: `webhook_schema()`
Retry           when to try again: `Retry(attempts=5).delay(attempt, error, chance)`
feed            one reader of a log for many followers: `feed(hf).follow(after)`
retention_pass  what has ended, marked and deleted: `await retention_pass(hf, stale_after=3600).run()`
"""

from __future__ import annotations

from holdfast.app import Holdfast
from holdfast.events.feed import Feed, Follower
from holdfast.outcomes import Retry
from holdfast.retention import Retained, Times
from holdfast.runtime import Runtime
from holdfast.webhooks.signing import new_secret, sign, verify_webhook
from holdfast.wire import sse_frames as sse
from holdfast.wire.webhook_body import WebhookBody, webhook_schema
from holdfast.worker.upkeep.hooks import AsyncHooks
from holdfast.worker.upkeep.retention import RetentionPass

__all__ = [
    "Feed",
    "Follower",
    "Retained",
    "RetentionPass",
    "Retry",
    "WebhookBody",
    "feed",
    "new_secret",
    "retention_pass",
    "sign",
    "sse",
    "verify_webhook",
    "webhook_schema",
]


def feed(hf: Holdfast) -> Feed:
    """Make a reader of the log of *hf*, with a thread of its own, for any number of followers; close it in the end.

    `hf.events()` follows the one that *hf* has. The events of this one hold jobs as they are stored: input and output
    are JSON texts, whatever the tasks' types are, so it serves who knows no task.
    """
    return Feed(hf.store, Runtime())


def retention_pass(
    hf: Holdfast, *, stale_after: float | None = None, delete_after: float | None = None
) -> RetentionPass:
    """Make a pass over what has ended in the database of *hf*, with times of its own, in seconds; None means never.

    `hf.retain()` is the same by the settings. Where a task names times, those hold; its hooks are called if its code is
    here. Each `run()` is one pass, and says what it has done; with `dry_run=True`, what it would do.
    """
    return RetentionPass(hf.store, hf.tasks, Times(stale_after, delete_after), AsyncHooks(Runtime()))
