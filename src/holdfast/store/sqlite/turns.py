"""Turns: operations that wait for the right to write, and how their callers hear what became of them.

Whoever takes a turn out of the queue decides its fate: the writer, and it will be run; or its own caller, who
has given up, and it never will. Both cannot be; a caller who finds his turn taken waits for the true outcome.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, Generic, TypeAlias, cast

from holdfast.store.tx import R, Tx
from holdfast.surroundings import Signal

Work: TypeAlias = Callable[[Tx], Coroutine[Any, Any, R]]


class Turn(Generic[R]):
    """One caller's operation. It may be run more than once, hence a function and not a coroutine.

    It must begin by *until*, an instant of the monotonic clock.
    """

    def __init__(self, work: Work[R], until: float) -> None:
        self.work = work
        self.until = until
        self.error: BaseException | None = None
        self._value: R | None = None

    def settle(self, run: Callable[[], R]) -> None:
        """Keep what *run* returns or raises as the outcome, in place of an earlier one."""
        try:
            self._value, self.error = run(), None
        except BaseException as error:  # noqa: BLE001  it is raised where it belongs, in the caller
            self.error = error

    def result(self) -> R:
        """Return or raise the outcome."""
        if self.error is not None:
            raise self.error
        return cast("R", self._value)


class ThreadTurn(Turn[R]):
    """The turn of a blocking caller, who waits for *told*."""

    def __init__(self, work: Work[R], until: float, told: Signal) -> None:
        super().__init__(work, until)
        self.told = told


class LoopTurn(Turn[R]):
    """The turn of a caller in an event loop."""

    def __init__(self, work: Work[R], until: float) -> None:
        super().__init__(work, until)
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[R] = self.loop.create_future()
        self.timer: asyncio.TimerHandle | None = None

    def hear(self) -> None:
        """Wake the caller, if it still waits."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(cast("R", self._value))

    def fail(self, error: BaseException) -> None:
        """Wake the caller with *error*, if it still waits."""
        if not self.future.done():
            self.future.set_exception(error)


class Turns:
    """The queue. It is as long as callers wait, and each of them has a deadline."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Turn[Any], None] = {}  # a queue that one can leave from the middle

    def __bool__(self) -> bool:
        """Tell whether anybody waits."""
        return bool(self._waiting)

    def put(self, turn: Turn[Any]) -> None:
        """Stand *turn* at the end."""
        with self._lock:
            self._waiting[turn] = None

    def withdraw(self, turn: Turn[Any]) -> bool:
        """Take *turn* out, so that it never runs; False if it was taken or withdrawn before."""
        with self._lock:
            if turn not in self._waiting:
                return False
            del self._waiting[turn]
            return True

    def take(self, most: int) -> list[Turn[Any]]:
        """Take out the first turns, to run them."""
        with self._lock:
            taken = list(islice(self._waiting, most))
            for turn in taken:
                del self._waiting[turn]
            return taken


def tell(turns: Iterable[Turn[Any]]) -> None:
    """Wake the callers of *turns*: one call for each event loop, however many wait in it."""
    loops: dict[asyncio.AbstractEventLoop, list[LoopTurn[Any]]] = {}
    for turn in turns:
        match turn:
            case LoopTurn():
                loops.setdefault(turn.loop, []).append(turn)
            case ThreadTurn():
                turn.told.set()
    for loop, its in loops.items():
        with suppress(RuntimeError):  # the loop is closed: nobody is left to hear it
            loop.call_soon_threadsafe(_hear, its)


def _hear(turns: list[LoopTurn[Any]]) -> None:
    for turn in turns:
        turn.hear()
