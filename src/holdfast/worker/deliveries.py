"""The slots for webhooks, and how many are posted at once.

A delivery waits for a stranger's server, so it takes no slot from the handlers: there are slots of its own beside them,
a quarter as many.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar

from holdfast.models import DELIVER, INTERNAL_QUEUE
from holdfast.store import glances
from holdfast.store.jobs import Want
from holdfast.store.tx import Store
from holdfast.tasks import Task
from holdfast.worker.beside import Beside
from holdfast.worker.running import Slot

SHARE = 4
UNDELIVERED_SECONDS = 10.0

logger = logging.getLogger(__name__)


class Deliveries(Beside):
    """The slots for *task*, which posts webhooks, beside *concurrency* others; None for a worker that posts none."""

    shares_queues: ClassVar[bool] = False

    def __init__(self, task: Task[..., Any] | None, concurrency: int, monotonic: Callable[[], float]) -> None:
        wants = [] if task is None else [Want(INTERNAL_QUEUE, DELIVER, round(task.policy.lease * 1000))]
        most = 0 if task is None else max(1, concurrency // SHARE)
        super().__init__(Slot.DELIVERY, wants, lambda: most, monotonic)


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
