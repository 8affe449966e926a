"""When a worker looks for webhooks to deliver, and how many it posts at once.

A delivery waits for a stranger's server, so it takes no slot from the handlers: there are slots of its own beside them,
a quarter as many. To claim from a second queue is a transaction more, which must cost nothing to speak of where nobody
has webhooks: a busy worker reads twice a second whether there are any, for an idle one the look that it takes anyway
tells. Only where some were found it claims, and then as soon as there is room.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from holdfast.models import DELIVER, INTERNAL_QUEUE
from holdfast.store import glances
from holdfast.store.jobs import Claims, Want
from holdfast.store.tx import Store
from holdfast.tasks import Task

SHARE = 4
LOOK_SECONDS = 0.5
UNDELIVERED_SECONDS = 10.0

logger = logging.getLogger(__name__)


class Deliveries:
    """The slots for *task*, which posts webhooks, beside *concurrency* others; None for a worker that posts none."""

    def __init__(self, task: Task[..., Any] | None, concurrency: int, monotonic: Callable[[], float]) -> None:
        self.wants = [] if task is None else [Want(INTERNAL_QUEUE, DELIVER, round(task.policy.lease * 1000))]
        self._most = 0 if task is None else max(1, concurrency // SHARE)
        self._monotonic = monotonic
        self._look_at = 0.0
        self._next_at: float | None = None
        self._is_active = False
        self.is_wanted = False
        """Whether there is reason to believe that something is there."""
        self.reserved = 0

    def room(self, running: int) -> int:
        """Say how many may be claimed, beside *running* ones; none before it is time to look."""
        is_due = self.is_wanted or self._monotonic() >= self._look_at
        return max(0, self._most - running - self.reserved) if is_due else 0

    def look_soon(self) -> None:
        """Claim as soon as there is room: something may be there."""
        self.is_wanted = True

    def has_settled(self) -> None:
        """Take note that ends were written down: each may have made room in the lane of a delivery."""
        if self._is_active:
            self.look_soon()

    def begin(self, most: int) -> None:
        """Take note of a look, or a claim, for up to *most* that is under way."""
        self.reserved += most
        self.is_wanted = False
        self._look_at = self._monotonic() + LOOK_SECONDS

    def end(self, most: int) -> None:
        """Take note that it is over, whatever it came to."""
        self.reserved -= most

    def note_look(self, found: glances.Work) -> None:
        """Learn from a look, before any claim."""
        self._is_active = False
        self._plan(found.next_ms)

    def note(self, claims: Claims) -> None:
        """Learn from what a claim has found."""
        self._is_active = bool(claims.jobs)
        self.is_wanted |= claims.more
        self._plan(claims.next_ms)

    def _plan(self, next_ms: int | None) -> None:
        self._next_at = None if next_ms is None else self._monotonic() + next_ms / 1000

    def sooner(self, next_ms: int | None) -> int | None:
        """Give what comes first: *next_ms*, in which something else is due, or the next delivery that is."""
        if self._next_at is None:
            return next_ms
        own_ms = round((self._next_at - self._monotonic()) * 1000)
        if own_ms <= 0:
            self._next_at = None
            self.look_soon()
            return next_ms
        return own_ms if next_ms is None else min(next_ms, own_ms)


class Undelivered:
    """Says once that webhooks wait and cannot be posted here, because the extra is not installed."""

    def __init__(self, store: Store, seconds: float = UNDELIVERED_SECONDS) -> None:
        self._store = store
        self._milliseconds = round(seconds * 1000)
        self._is_told = False

    async def look(self) -> None:
        """Look whether some have waited for a while, so that nobody else delivers them."""
        if self._is_told or not await self._store.read(glances.waits, INTERNAL_QUEUE, DELIVER, self._milliseconds):
            return
        self._is_told = True
        advice = "pip install 'holdfast[webhooks]', or run a worker that has it; webhooks=False says that one has"
        logger.warning("webhooks_not_delivered", extra={"reason": "the extra is not installed", "advice": advice})
