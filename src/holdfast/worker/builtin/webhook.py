"""The built-in task that posts a webhook: one job for each event and receiver, tried until it is answered.

2xx is delivered. 5xx, 429, and whatever keeps an answer from coming is tried again, later and later, over hours; a
receiver that says `Retry-After` is heard. Anything else is final: a redirect, another 4xx, and 410, by which a receiver
says that it is gone for good. Every try has the same id, which is the job's (or that of the job which posted it first),
and a timestamp of its own, by the database's clock. What came of each try stands in the job's history: status, seconds,
the beginning of the answer.

A receiver gets so many posts at once and no more (`webhooks.receivers`). A delivery for which it has no turn is put
off, which is no try; if the receiver stays silent for longer than all tries together may take, the delivery fails.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from importlib.util import find_spec
from random import Random
from typing import Any

from holdfast.database.tx import Store
from holdfast.fault_points import reach
from holdfast.logging import say
from holdfast.models import DELIVER, GONE
from holdfast.outcomes import Described, Fail, Reschedule, Retry
from holdfast.runtime import Runtime
from holdfast.settings import Settings
from holdfast.store import reads
from holdfast.tasks.calls import Options
from holdfast.tasks.task import Policy, Task
from holdfast.webhooks import signing
from holdfast.webhooks.addresses import AddressRules, receiver_of
from holdfast.webhooks.answers import Answer, NotPosted, Posts
from holdfast.webhooks.receivers import NoTurn, Receivers
from holdfast.worker.attempts.context import Context
from holdfast.worker.builtin.builtin_task import make_builtin

FACTOR, LONGEST_SECONDS, JITTER = 3.0, 14_400.0, 0.1
MOST_RETRY_AFTER = 86_400.0
LEASE_SECONDS, TIMEOUT_SECONDS = 30.0, 60.0
SPARED_SECONDS = 3_600.0
"""How much longer than all its tries together may take a delivery waits for a receiver that is silent."""
HEADERS = {
    "Content-Type": "application/json",
    "User-Agent": f"holdfast/{version('holdfast')}",
    "Accept-Encoding": "identity",
}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Delivered:
    """What a delivery that succeeded came to."""

    status: int
    seconds: float
    answer: str


class NotDelivered(Described):
    """A try that is to be followed by another; *retry_after* is what the receiver asked for, in seconds."""

    def __init__(self, message: str, facts: Mapping[str, str | float | None], retry_after: float | None = None) -> None:
        super().__init__(message, facts)
        self.retry_after = retry_after


class Refused(Fail, Described):
    """An answer after which there is no other try."""

    def __init__(self, reason: str, message: str, facts: Mapping[str, str | float | None]) -> None:
        Described.__init__(self, message, facts)
        self.reason = reason


def has_extra() -> bool:
    """Tell whether the extra `webhooks` is installed, which posts them."""
    return find_spec("httpcore2") is not None


@dataclass(frozen=True, slots=True)
class DeliveryTask:
    """The task that posts, and what it knows of the receivers that it posts to."""

    task: Task[..., Any]
    receivers: Receivers


def make_delivery(store: Store, settings: Settings, runtime: Runtime, poster: Posts | None = None) -> DeliveryTask:
    """Make the task as a worker with these settings runs it; *poster* is that of the extra unless it is given."""
    give_up_seconds = _longest_seconds(settings) + SPARED_SECONDS
    receivers = Receivers(runtime.monotonic, runtime.chance, give_up_seconds, _tell)
    sender = _Sender(store, settings, runtime, receivers, poster)

    async def deliver(
        ctx: Context,
        url: str,
        body: str,
        event: str,
        target: str,
        subscription: str | None,
        secrets: list[str],
        at: int,
        message: str | None = None,
    ) -> Delivered:
        try:
            return await sender.deliver(message or str(ctx.job.id), url, body.encode(), secrets)
        except NotPosted as error:
            raise NotDelivered(str(error), {"problem": error.problem, "seconds": round(error.seconds, 3)}) from None
        except NoTurn as error:
            age_ms = await store.read(reads.now_ms) - at if error.is_silent else 0
            raise put_off(error, age_ms, receivers.give_up_ms) from None

    retry = _retry(settings, runtime.chance)
    policy = Policy(lease=LEASE_SECONDS, timeout=TIMEOUT_SECONDS, retry=retry, halts_lane=False)
    return DeliveryTask(make_builtin(DELIVER, deliver, policy, Options()), receivers)


def _tell(receiver: str, seconds: float | None) -> None:
    """Log that a receiver has fallen silent, or answers again after so many *seconds*."""
    if seconds is None:
        say(logger, "webhook_receiver_silent", receiver=receiver)
    else:
        say(logger, "webhook_receiver_answers", receiver=receiver, seconds=round(seconds, 1))


def put_off(error: NoTurn, age_ms: int, give_up_ms: int) -> Reschedule | Refused:
    """Say what becomes of a delivery for which there was no turn: it comes back, unless it is older than that."""
    if not error.is_silent or age_ms < give_up_ms:
        return Reschedule(after=error.seconds)
    what = f"the receiver has not answered, and this has waited for {age_ms // 3_600_000} hours"
    return Refused(what, what, {"problem": "silent"})


@dataclass(slots=True)
class _Sender:
    """Signs and posts, by one worker's settings."""

    store: Store
    settings: Settings
    runtime: Runtime
    receivers: Receivers
    poster: Posts | None

    async def deliver(self, webhook_id: str, url: str, body: bytes, names: Sequence[str]) -> Delivered:
        """Post once; give what it came to, or raise `NoTurn`, `NotPosted`, `NotDelivered` or `Refused`."""
        if self.poster is None:  # what it imports takes a while, which the event loop has better uses for
            self.poster = await self.runtime.threads.call(self._make_poster)
        async with self.receivers.turn(receiver_of(url)):
            now_ms = await self.store.read(reads.now_ms)
            answer = await self.poster.post(url, self._headers(webhook_id, now_ms, body, names), body)
        reach("deliver.after_post")
        return judged(answer, datetime.fromtimestamp(now_ms / 1000, UTC))

    def _headers(self, webhook_id: str, now_ms: int, body: bytes, names: Sequence[str]) -> dict[str, str]:
        signed = signing.sign(
            body,
            webhook_id=webhook_id,
            timestamp=now_ms // 1000,
            secrets=self._secrets(names),
            compatible=self.settings.webhook_compatible_signature,
        )
        return {**HEADERS, **signed}

    def _make_poster(self) -> Posts:
        from holdfast.webhooks.posting import Poster

        return Poster(AddressRules.of(self.settings), self.runtime.monotonic)

    def _secrets(self, names: Sequence[str]) -> list[str]:
        """Give the secrets of these names, or of the usual one; what is to be signed is never sent without."""
        known, usual = self.settings.webhook_secrets, self.settings.webhook_secret
        wanted = names or ([usual] if usual in known else [])
        if missing := [each for each in wanted if each not in known]:
            what = f"this worker has no secret called {missing[0]!r}; set webhook_secrets"
            raise NotDelivered(what, {"problem": "secret"})
        return [each.get_secret_value() for name in wanted for each in known[name]]


def judged(answer: Answer, now: datetime) -> Delivered:
    """Say what *answer*, which came about *now*, means; raise `NotDelivered` or `Refused` unless it is a 2xx."""
    status, seconds, text = answer.status, round(answer.seconds, 3), answer.text
    if 200 <= status < 300:
        return Delivered(status=status, seconds=seconds, answer=text)
    facts: dict[str, str | float | None] = {"status": status, "seconds": seconds, "answer": text}
    what = f"the receiver answered {status}"
    if status == 429 or status >= 500:
        raise NotDelivered(what, facts, retry_after(answer.headers, now))
    raise Refused(GONE if status == 410 else what, what, facts)


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Read how long a receiver wants to be left alone, in seconds, a day at most; None if it does not say.

    >>> retry_after({"retry-after": "120"}, datetime.now(UTC))
    120.0
    """
    said = headers.get("retry-after", "").strip()
    if said.isascii() and said.isdigit():
        return min(float(said[:12]), MOST_RETRY_AFTER)
    try:
        at, here = parsedate_to_datetime(said), parsedate_to_datetime(headers["date"]) if "date" in headers else now
        return min(max((_aware(at) - _aware(here)).total_seconds(), 0.0), MOST_RETRY_AFTER)
    except (ValueError, OverflowError, TypeError, IndexError):
        return None


def _aware(instant: datetime) -> datetime:
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)


def _longest_seconds(settings: Settings) -> float:
    """Say how long all tries of a delivery together take, if its receiver asks for no more time."""
    pauses = range(settings.webhook_attempts - 1)
    return sum(min(settings.webhook_retry_seconds * FACTOR ** min(nr, 64), LONGEST_SECONDS) for nr in pauses)


def _retry(settings: Settings, chance: Random) -> Retry:
    growing = Retry(
        first=settings.webhook_retry_seconds, factor=FACTOR, maximum=LONGEST_SECONDS, jitter=JITTER, attempts=None
    )

    def delay(attempt: int, error: BaseException) -> float:
        asked = error.retry_after if isinstance(error, NotDelivered) else None
        return max(growing.delay(attempt, error, chance), 0.0 if asked is None else math.ceil(asked))

    return Retry(attempts=settings.webhook_attempts, backoff=delay)
