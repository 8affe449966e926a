"""Why a handler is to stop, how it is told, and how each way of waiting hears it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from enum import StrEnum
from typing import Any
from uuid import UUID

from holdfast.errors import LeaseLost
from holdfast.store.jobs.claiming import ClaimState


class AbortReason(StrEnum):
    """Why a handler is to stop."""

    CANCELLED = "cancelled"
    PAUSED = "paused"
    SHUTDOWN = "shutdown"
    TIMEOUT = "timeout"
    TAKEN = "taken_by_another_worker"
    COMPLETED = "already_completed"
    NOT_FOUND = "not_found"
    FAILED = "failed"
    ERROR = "error"


class Aborted(Exception):
    """What `ctx.raise_if_aborted()` raises; let it pass."""

    def __init__(self, reason: AbortReason) -> None:
        super().__init__(f"the handler is to stop: {reason}")
        self.reason = reason


_MAKING = threading.Lock()


class AbortSignal:
    """Says that a handler is to stop: `is_set()`, `await` it in the loop, `wait()` for it in a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_set = False
        self._event: threading.Event | None = None  # made when a thread waits: 5 µs, and most handlers never do
        self._waiting: list[asyncio.Future[None]] = []

    def is_set(self) -> bool:
        """Tell whether the handler is to stop."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the handler is to stop, or *timeout* seconds have passed; tell which."""
        with _MAKING:
            event = self._event = self._event or threading.Event()
        if self._is_set:  # looked at after the event can be seen: whoever sets the one sees the other
            event.set()
        return event.wait(timeout)

    def __await__(self) -> Generator[Any, None, None]:
        if not self._is_set:
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(future)
            yield from future.__await__()

    def set(self) -> None:
        """Raise the signal; in the loop only."""
        self._is_set = True
        if self._event is not None:
            self._event.set()
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


ABORTS = {
    ClaimState.CANCEL: AbortReason.CANCELLED,
    ClaimState.PAUSE: AbortReason.PAUSED,
    ClaimState.TAKEN: AbortReason.TAKEN,
    ClaimState.COMPLETED: AbortReason.COMPLETED,
    ClaimState.GONE: AbortReason.NOT_FOUND,
}
"""What is asked of a handler by how its claim stands."""

NO_LONGER_OURS = (AbortReason.TAKEN, AbortReason.COMPLETED, AbortReason.NOT_FOUND)
FROM_LEASES = (*ABORTS.values(), AbortReason.ERROR)


def abort_error(reason: AbortReason, job_id: str) -> Exception:
    """Make what a block raises that may not go on: `LeaseLost` if the job is, or may be, no longer this attempt's."""
    if reason in NO_LONGER_OURS or reason is AbortReason.ERROR:
        return LeaseLost(UUID(job_id), reason)
    return Aborted(reason)
