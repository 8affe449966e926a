"""The peer's side of the pipe: runs in the peer's environment, so it imports nothing but the standard library."""

from __future__ import annotations

import asyncio
import ctypes
import queue
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping

PAUSE = 0.02
"""Seconds between two starts of which the latency is measured: the worker falls asleep in between."""
LOOK = 0.01
"""Seconds between two looks at what is not recorded yet."""


def serve(version: str, works: Mapping[str, Callable[[int], object]], rows: Callable[[], int]) -> None:
    """Say *version*; then, for each line such as `single 100`, do that work and say how many seconds it took.

    A work that answers with a text has its text said instead.
    """
    print(version, flush=True)
    for line in sys.stdin:
        name, count = line.split()
        if name == "rows":
            print(rows(), flush=True)
            continue
        started = time.perf_counter()
        answer = works[name](int(count))
        print(answer if isinstance(answer, str) else time.perf_counter() - started, flush=True)


LIBC = ctypes.CDLL(None)


def end_with_parent() -> None:
    """Ask Linux to end this process when the one that started it is gone; called in a child before its program runs."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        LIBC.prctl(set_parent_death_signal, signal.SIGKILL)


class Tally:
    """Counts the handlers of a round, in whatever thread they run.

    The seconds begin with the first of them, so that what a peer needs to get going is not held against it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left = 0
        self._began: float | None = None
        self._is_reached = threading.Event()

    def expect(self, count: int) -> None:
        """Wait for *count* handlers from now on."""
        self._left, self._began = count, None
        self._is_reached.clear()

    def count(self) -> None:
        """Count one; called by the handler."""
        with self._lock:
            if self._began is None:
                self._began = time.perf_counter()
            self._left -= 1
            if self._left == 0:
                self._is_reached.set()

    def wait(self) -> None:
        """Wait until all were called."""
        self._is_reached.wait()

    async def wait_async(self) -> None:
        """Wait in a thread until all were called."""
        await asyncio.to_thread(self.wait)

    def seconds(self) -> str:
        """Say how long ago the first was called."""
        return str(time.perf_counter() - (self._began or 0.0))


def until(is_so: Callable[[], bool]) -> None:
    """Look until *is_so*."""
    while not is_so():
        time.sleep(LOOK)


async def until_async(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Look until *is_so*, beside a worker of the same event loop."""
    while not await is_so():  # noqa: ASYNC110 - there is nobody who would tell
        await asyncio.sleep(LOOK)


Begun = queue.SimpleQueue[float]
"""When handlers were called, by `time.perf_counter`."""


def latency(count: int, start: Callable[[], object], begun: Begun) -> str:
    """Start one at a time while a worker of the same process idles; give the milliseconds until its handler ran."""
    milliseconds = []
    for _ in range(count):
        time.sleep(PAUSE)
        sent = time.perf_counter()
        start()
        milliseconds.append((begun.get() - sent) * 1000)
    return " ".join(f"{each:.3f}" for each in milliseconds)


async def latency_async(count: int, start: Callable[[], Awaitable[object]], begun: asyncio.Queue[float]) -> str:
    """Do the same in the worker's event loop."""
    milliseconds = []
    for _ in range(count):
        await asyncio.sleep(PAUSE)
        sent = time.perf_counter()
        await start()
        milliseconds.append((await begun.get() - sent) * 1000)
    return " ".join(f"{each:.3f}" for each in milliseconds)
