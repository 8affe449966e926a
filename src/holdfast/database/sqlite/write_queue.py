"""Requests: operations that wait for the right to write, and how their callers hear what became of them.

Whoever takes a request out of the queue decides its fate: the writer, and it will be run; or its own caller, who
has given up, and it never will. Both cannot be; a caller who finds his request taken waits for the true outcome.

Who comes first is served first, with everybody else whose operation can share its commit. A block shares with nobody
and may take seconds, so between two blocks all the others get in: whatever waits, waits for one block at most.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, cast

from holdfast.database.tx import First, ListOperation, R, T, Tx, bound, size_of
from holdfast.runtime import Signal

Work: TypeAlias = Callable[[Tx], Coroutine[Any, Any, R]]

MOST_BYTES = 16_000_000
"""How much the items of those who share a commit may hold; one of them alone may hold more."""


@dataclass(frozen=True, slots=True, eq=False)
class ListWork(Generic[T, R]):
    """A list operation on *items*: those of several callers can be run as one, on all of their items."""

    operation: ListOperation[T, R]
    items: Sequence[T]

    def __call__(self, tx: Tx) -> Coroutine[Any, Any, Sequence[R]]:
        """Run it alone."""
        return bound(self.operation, self.items)(tx)

    @property
    def is_sociable(self) -> bool:
        """Tell whether its items name nothing that those of others may name too."""
        return not any(getattr(item, "may_wait", False) for item in self.items)


class WriteRequest(Generic[R]):
    """One caller's operation. It may be run more than once, hence a function and not a coroutine.

    It must begin by *until*, an instant of the monotonic clock.
    """

    def __init__(self, work: Work[R], until: float) -> None:
        self.work = work
        self.until = until
        self.error: BaseException | None = None
        self.discard: Callable[[], None] = lambda: None
        """Is called if the caller is gone and does not hear the outcome."""
        self.seconds = 0.0
        """How long a block may last, if it is one that is wanted."""
        self.first: First | None = None
        """What is run in that block before anybody has it."""
        self.value: R | None = None

    def settle(self, run: Callable[[], R]) -> None:
        """Keep what *run* returns or raises as the outcome, in place of an earlier one."""
        try:
            self.value, self.error = run(), None
        except BaseException as error:  # noqa: BLE001  it is raised where it belongs, in the caller
            self.error = error

    def succeed(self, value: R) -> None:
        """Keep *value* as the outcome."""
        self.value, self.error = value, None

    def result(self) -> R:
        """Return or raise the outcome."""
        if self.error is not None:
            raise self.error
        return cast("R", self.value)


class ThreadWriteRequest(WriteRequest[R]):
    """The request of a blocking caller, who waits for *done*."""

    def __init__(self, work: Work[R], until: float, done: Signal) -> None:
        super().__init__(work, until)
        self.done = done


class LoopWriteRequest(WriteRequest[R]):
    """The request of a caller in an event loop."""

    def __init__(self, work: Work[R], until: float) -> None:
        super().__init__(work, until)
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[R] = self.loop.create_future()
        self.timer: asyncio.TimerHandle | None = None

    @property
    def is_delivered(self) -> bool:
        """Tell whether the caller was given a result."""
        return self.future.done() and not self.future.cancelled() and self.future.exception() is None

    def fail(self, error: BaseException) -> None:
        """Wake the caller with *error*, if it still waits."""
        if not self.future.done():
            self.future.set_exception(error)


async def no_work(tx: Tx) -> Any:
    """Be the work of a request for a block: whoever has the right to write opens it, and nothing is run."""


class WriteQueue:
    """The queue. It is as long as callers wait; those who want no block have a deadline each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[WriteRequest[Any], None] = {}  # a queue that one can leave from the middle
        self.was_block = False
        """Whether a block had the right to write last."""

    def __bool__(self) -> bool:
        """Tell whether anybody waits."""
        return bool(self._waiting)

    def put(self, request: WriteRequest[Any]) -> None:
        """Stand *request* at the end."""
        with self._lock:
            self._waiting[request] = None

    def withdraw(self, request: WriteRequest[Any]) -> bool:
        """Take *request* out, so that it never runs; False if it was taken or withdrawn before."""
        with self._lock:
            if request not in self._waiting:
                return False
            del self._waiting[request]
            return True

    def __contains__(self, request: WriteRequest[Any]) -> bool:
        """Tell whether *request* still waits."""
        return request in self._waiting

    def next_block(self) -> WriteRequest[Any] | None:
        """Give the request that opens a block, if that is who is next; it stays in the queue."""
        with self._lock:
            first = next(iter(self._waiting), None)
            if first is None or first.work is not no_work:
                return None
            if self.was_block and any(request.work is not no_work for request in self._waiting):
                return None
            return first

    def take(self, most: int) -> list[WriteRequest[Any]]:
        """Take out the first requests that can share a commit, to run them: at least one, at most *most* items."""
        with self._lock:
            self.was_block = False
            taken = _first_that_fit((request for request in self._waiting if request.work is not no_work), most)
            for request in taken:
                del self._waiting[request]
            return taken


def _first_that_fit(requests: Iterable[WriteRequest[Any]], most: int) -> list[WriteRequest[Any]]:
    taken: list[WriteRequest[Any]] = []
    items = size = 0
    for request in requests:
        given = request.work.items if isinstance(request.work, ListWork) else (None,)
        items, size = items + len(given), size + size_of(given)
        if taken and (items > most or size > MOST_BYTES):
            break
        taken.append(request)
    return taken


def resolve(requests: Iterable[WriteRequest[Any]]) -> None:
    """Wake the callers of *requests*: one call for each event loop, however many wait in it."""
    loops: dict[asyncio.AbstractEventLoop, list[LoopWriteRequest[Any]]] = {}
    for request in requests:
        match request:
            case LoopWriteRequest():
                loops.setdefault(request.loop, []).append(request)
            case ThreadWriteRequest():
                request.done.set()
    for loop, its in loops.items():
        try:
            loop.call_soon_threadsafe(resolve_in_loop, its)
        except RuntimeError:  # the loop is closed: nobody is left to hear it
            for request in its:
                request.discard()


def resolve_in_loop(requests: list[LoopWriteRequest[Any]]) -> None:
    """Wake the callers of *requests*, all of which wait in this loop."""
    for request in requests:
        if request.future.done():  # the caller waits no more; nobody else is to have what it would have been given
            request.discard()
        elif request.error is not None:
            request.future.set_exception(request.error)
        else:
            request.future.set_result(request.value)
