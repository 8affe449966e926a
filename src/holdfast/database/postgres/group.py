"""Group commit: callers that arrive while a commit is under way share the next one.

A commit costs the same for one row as for a thousand. So the lists of all who wait are joined, one operation
runs on the union, and its results are split by position. Each caller returns when its own commit is durable,
and hears its own outcome: if the union fails, each part runs again alone, so that only the guilty one fails.
A caller who finds nothing under way waits for nobody, and runs its own list itself.

No caller waits past its deadline, although it has no timer: a flight has the deadline of its earliest part,
which is never later than that of who still waits. If that passes, nothing of the flight has happened; the parts
that have time left fly again, in flights half as large: what a slow network cannot carry within one deadline
would never arrive.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import cached_property
from typing import Any, Generic, Protocol, TypeAlias

from holdfast.database.postgres.deadline import Deadline
from holdfast.database.tx import R, T, drive, size_of
from holdfast.errors import StoreError, Unavailable, UnknownOutcome
from holdfast.threads import SlicedEvent

MOST_ITEMS = 1000
MOST_BYTES = 4_000_000
MOST_FLIGHTS = 2  # one is planned while the other waits for its COMMIT

Run: TypeAlias = Callable[[Sequence[T], Deadline], Coroutine[Any, Any, Sequence[R]]]


class Here(Protocol):
    """Runs work in the task of its caller."""

    async def __call__(self, work: Coroutine[Any, Any, R], /) -> R: ...


class Part(Generic[T, R]):
    """What one caller gave, and what it will hear."""

    def __init__(self, items: Sequence[T], deadline: Deadline, wake: Callable[[], object]) -> None:
        self.items = items
        self.deadline = deadline
        self.results: Sequence[R] | None = None
        self.error: BaseException | None = None
        self.is_cancelled = False
        self.flight: Sequence[Part[T, R]] = ()
        self._wake = wake

    @cached_property
    def size(self) -> int:
        """About how many bytes are sent for it."""
        return size_of(self.items)

    @property
    def is_done(self) -> bool:
        """Tell whether its outcome is known."""
        return self.results is not None or self.error is not None

    def succeed(self, results: Sequence[R]) -> None:
        """Tell the caller its results."""
        self.results = results
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Tell the caller its error."""
        self.error = error
        self._wake()

    def lead(self, flight: Sequence[Part[T, R]]) -> None:
        """Tell the caller to lead *flight*, in which it is."""
        self.flight = flight
        self._wake()

    def outcome(self) -> Sequence[R]:
        """Return or raise what the caller was told."""
        if self.error is not None:
            raise self.error
        if self.results is None:
            raise RuntimeError("asked for its outcome before it has one")
        return self.results


class Queue(Generic[T, R]):
    """The parts that wait, in the order of their arrival, and how a flight of them ends."""

    def __init__(self, run: Run[T, R]) -> None:
        self.run = run
        self._waiting: deque[Part[T, R]] = deque()
        self._most_items, self._most_bytes = MOST_ITEMS, MOST_BYTES

    def __bool__(self) -> bool:
        """Tell whether anybody waits."""
        return bool(self._waiting)

    def add(self, part: Part[T, R]) -> None:
        """Let *part* wait for the next flight."""
        self._waiting.append(part)

    def put_back(self, parts: Sequence[Part[T, R]]) -> None:
        """Let *parts* wait again, before all others."""
        self._waiting.extendleft(reversed(parts))

    def take(self) -> list[Part[T, R]]:
        """Take parts for a flight: those that came first, at least one, and not too many items or bytes."""
        taken: list[Part[T, R]] = []
        items = size = 0
        while self._waiting:
            part = self._waiting[0]
            if not part.is_cancelled:
                items, size = items + len(part.items), size + part.size
                if taken and (items > self._most_items or size > self._most_bytes):
                    break
                taken.append(part)
            self._waiting.popleft()
        return taken

    async def fly(self, parts: Sequence[Part[T, R]]) -> None:
        """Run the union of *parts*; tell each of them how it went, or let it wait for another flight."""
        try:
            if len(parts) == 1:
                await self._fly_alone(parts[0])
            elif parts:
                await self._fly_together(parts)
        except BaseException:
            for part in parts:
                if not part.is_done:
                    part.fail(UnknownOutcome("the commit that this shared was interrupted; read what is there"))
            raise

    async def _fly_together(self, parts: Sequence[Part[T, R]]) -> None:
        union = [item for part in parts for item in part.items]
        try:
            results = await self.run(union, parts[0].deadline)
        except UnknownOutcome as error:
            self._shrink_if_late(parts)
            fail_all(parts, error)
        except Unavailable as error:
            self._shrink_if_late(parts)
            self._land_or_wait(parts, error)
        except Exception:  # noqa: BLE001 - whatever it is, it belongs to the one part that raises it again
            for part in parts:
                await self._fly_alone(part)
        else:
            self._grow()
            split(parts, results)

    async def _fly_alone(self, part: Part[T, R]) -> None:
        try:
            results = await self.run(part.items, part.deadline)
        except Exception as error:  # noqa: BLE001 - it is told to the caller
            part.fail(error)
        else:
            self._grow()
            part.succeed(results)

    def _shrink_if_late(self, parts: Sequence[Part[T, R]]) -> None:
        if parts[0].deadline.has_passed:
            self._most_items = max(1, sum(len(part.items) for part in parts) // 2)
            self._most_bytes = max(1, sum(part.size for part in parts) // 2)

    def _grow(self) -> None:
        self._most_items = min(MOST_ITEMS, 2 * self._most_items)
        self._most_bytes = min(MOST_BYTES, 2 * self._most_bytes)

    def _land_or_wait(self, parts: Sequence[Part[T, R]], error: Unavailable) -> None:
        patient = [part for part in parts if not part.deadline.has_passed]
        if len(patient) == len(parts):  # it was not for want of time, so time will not help
            patient = []
        self.put_back(patient)
        fail_all([part for part in parts if part not in patient], error)


def fail_all(parts: Sequence[Part[T, R]], error: StoreError) -> None:
    """Tell each of *parts* of *error*, each by an error of its own, for what is raised collects a traceback."""
    for part in parts:
        own = type(error)(*error.args)
        own.__cause__ = error
        part.fail(own)


def split(parts: Sequence[Part[T, R]], results: Sequence[R]) -> None:
    """Tell each of *parts* its share of *results*."""
    start = 0
    for part in parts:
        end = start + len(part.items)
        part.succeed(results[start:end])
        start = end


class AsyncGroup(Generic[T, R]):
    """Callers of one list operation on one event loop."""

    def __init__(self, run: Run[T, R], here: Here, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._queue = Queue(run)
        self._here = here
        self._spawn = spawn
        self._flights = 0

    async def call(self, items: Sequence[T], deadline: Deadline) -> Sequence[R]:
        """Run the operation on *items*; a caller that is cancelled disturbs nobody."""
        if self._flights:
            return await self._share(items, deadline)
        self._flights += 1
        try:
            return await self._here(self._queue.run(items, deadline))
        finally:
            if self._queue:
                self._spawn(self._fly())  # for those who have come meanwhile
            else:
                self._flights -= 1

    async def _share(self, items: Sequence[T], deadline: Deadline) -> Sequence[R]:
        woken = asyncio.Event()
        part: Part[T, R] = Part(items, deadline, woken.set)
        self._queue.add(part)
        if self._flights < MOST_FLIGHTS:
            self._flights += 1
            self._spawn(self._fly())
        try:
            await woken.wait()
        except asyncio.CancelledError:
            part.is_cancelled = True
            raise
        return part.outcome()

    async def _fly(self) -> None:
        try:
            while parts := self._queue.take():
                await self._queue.fly(parts)
        finally:
            self._flights -= 1


class BlockingGroup(Generic[T, R]):
    """Callers of one list operation in any threads: whoever finds a flight free leads it for all who wait.

    A leader is not kept by the others: when its flight has ended it hands the next one to the first who waits.
    """

    def __init__(self, run: Run[T, R]) -> None:
        self._queue = Queue(run)
        self._lock = threading.Lock()
        self._flights = 0

    def call(self, items: Sequence[T], deadline: Deadline) -> Sequence[R]:
        """Run the operation on *items*, by a flight of one's own or of somebody else's."""
        woken = SlicedEvent()
        part: Part[T, R] = Part(items, deadline, woken.set)
        try:
            with self._lock:
                self._queue.add(part)
                if self._flights < MOST_FLIGHTS:
                    self._flights += 1
                    part.lead(self._queue.take())
            while not part.is_done:
                woken.wait()
                woken.clear()
                if part.flight:
                    self._fly(part)
        except BaseException:  # a signal's handler may raise here, as at Ctrl-C
            self._leave(part)
            raise
        return part.outcome()

    def _fly(self, leader: Part[T, R]) -> None:
        try:
            drive(self._queue.fly(leader.flight))
        finally:
            leader.flight = ()
            self._hand_over()

    def _leave(self, part: Part[T, R]) -> None:
        """Take *part* out, whose caller is gone; the flight that it was to lead goes to the next who waits."""
        with self._lock:
            part.is_cancelled = True
            flight, part.flight = part.flight, ()
            self._queue.put_back([each for each in flight if each is not part])
        if flight:
            self._hand_over()

    def _hand_over(self) -> None:
        with self._lock:
            if parts := self._queue.take():
                parts[0].lead(parts)
            else:
                self._flights -= 1
