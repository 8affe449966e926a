"""What a handler is given: its job, and what it may ask and say while it runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, TypeAlias
from uuid import UUID

from holdfast.codec import clean_text

MESSAGE_LENGTH = 500

Tell: TypeAlias = Callable[[int, str | None, bool], None]
"""Takes in how far a handler is (percent, message) and whether that is to be written at once; from any thread."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """What a handler may know of its job: the facts of this attempt."""

    id: UUID
    chain_id: UUID
    chain_index: int
    task: str
    queue: str
    lane: str | None
    attempt: int
    """The number of this run; it only grows."""
    used: int
    """How many attempts of its budget are used, this one included."""
    crashes: int


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


class _Base:
    """What both contexts have."""

    def __init__(
        self,
        idempotency_key: str,
        facts: Callable[[], RunningJob],
        aborted: AbortSignal,
        fail: Callable[[str], None],
        tell: Tell,
    ) -> None:
        self._facts = facts
        self._fail = fail
        self._tell = tell
        self.aborted = aborted
        """Set when the handler is to stop; `abort_reason` says why."""
        self.abort_reason: AbortReason | None = None
        self.idempotency_key = idempotency_key
        """The same text in every attempt of this job, for services that take such a key."""
        self.state: dict[str, Any] = {}
        """A place for what middleware and handler hand to each other in this attempt; it is not stored."""

    @cached_property
    def job(self) -> RunningJob:
        """The job as it was claimed."""
        return self._facts()

    def raise_if_aborted(self) -> None:
        """Leave the handler, if it is to stop."""
        if self.abort_reason is not None:
            raise Aborted(self.abort_reason)

    def fail(self, reason: str) -> None:
        """Fail the job for good and stop its handler; from beside it too, such as a task that watches a budget."""
        self._fail(reason)

    def progress(self, percent: float, message: str | None = None, *, flush: bool = False) -> None:
        """Say how far the job is, from 0 to 100; it is stored and seen by everybody who watches.

        It returns at once and may be called as often as you like: the first call is written at once, later ones at
        most four times a second, and the last one with the job's end. *flush* has this one written without waiting.
        """
        text = None if message is None else clean_text(str(message), MESSAGE_LENGTH)
        self._tell(round(min(max(percent, 0), 100)), text, flush)


class Context(_Base):
    """The first parameter of an `async def` handler that wants one.

    Annotate it, and leave it out when you call the task: `async def charge(ctx: Context, order_id: int) -> str`.
    """

    __holdfast_context__: ClassVar[str] = "async"


class BlockingContext(_Base):
    """The first parameter of a plain `def` handler that wants one; public as `holdfast.sync.Context`."""

    __holdfast_context__: ClassVar[str] = "blocking"
