"""The engine in a single thread, so that the n-th write of a program is the same one each time.

strace counts the calls of each thread by itself; and what is done in one thread is done in one order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from holdfast.runtime import Runtime
from holdfast.threads import Threads

R = TypeVar("R")


class LoopShell:
    """Calls a step function in the event loop itself."""

    def __init__(self, step: Callable[[], float | None], name: str) -> None:
        self._step = step
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.Handle | None = None

    def wake(self) -> None:
        """Have the step called soon."""
        self.stop()
        self._next = self._loop.call_soon(self._call)

    def stop(self) -> None:
        """Call the step no more."""
        if self._next is not None:
            self._next.cancel()

    def _call(self) -> None:
        seconds = self._step()
        if seconds is not None:
            self._next = self._loop.call_later(seconds, self.wake)


class NoThreads(Threads):
    """Runs blocking calls at once, where they are called."""

    async def call(self, function: Callable[[], R]) -> R:
        """Run *function* and return its result."""
        return function()


def one_thread() -> Runtime:
    """Make a runtime in which nothing starts a thread."""
    return Runtime(stepper=LoopShell, threads=NoThreads(), has_file_alarms=False)
