"""The slots for webhooks, and how many are posted at once.

A delivery waits for a stranger's server, so it takes no slot from the handlers: there are slots of its own beside them,
a quarter as many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from holdfast.models import DELIVER, INTERNAL_QUEUE
from holdfast.store.jobs.claiming import Want
from holdfast.tasks.task import Task
from holdfast.worker.attempts.active import Slot
from holdfast.worker.claiming.slot_group import Beside

SHARE = 4


class Deliveries(Beside):
    """The slots for *task*, which posts webhooks, beside *concurrency* others; None for a worker that posts none."""

    shares_queues: ClassVar[bool] = False

    def __init__(self, task: Task[..., Any] | None, concurrency: int, monotonic: Callable[[], float]) -> None:
        wants = [] if task is None else [Want(INTERNAL_QUEUE, DELIVER, round(task.policy.lease * 1000))]
        most = 0 if task is None else max(1, concurrency // SHARE)
        super().__init__(Slot.DELIVERY, wants, lambda: most, monotonic)
