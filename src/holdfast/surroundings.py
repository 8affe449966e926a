"""What the engine takes from outside: clocks, chance, sleep, threads; handed in, so that a simulation can replace them.

No module reads `time`, `random` or starts a thread on its own (a test walks the sources). Only the database's clock
decides about jobs; these clocks measure waiting and stamp ids.

Signals belong to the main thread: Python runs handlers only there. When the kernel hands a signal to another thread,
Python merely notes it, and a main thread that sleeps does not wake up. So the engine's threads start with all signals
blocked, and blocking calls wait in slices, in case another thread of the program takes a signal. A blocked signal would
stay blocked in every process that such a thread starts: so user code runs with the signals of the program
(`program_signals`), and threads that do nothing but run handlers block nothing at all.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from holdfast.errors import Unavailable

R = TypeVar("R")

AFTER_FAILURE_SECONDS = 1.0
SLICE_SECONDS = 1.0
NO_THREAD = "no thread can be started; raise the limit of processes (`ulimit -u`), or run fewer things at once"

FAULTS = {"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP"}
BLOCKED = frozenset(each for each in signal.valid_signals() if getattr(each, "name", None) not in FAULTS)
"""What the engine's threads block: all but faults, which `faulthandler` reports in the thread that caused them."""

_background = threading.local()
"""In the engine's threads, `mask`: the signals that the thread which started them had blocked."""

HAS_MASKS = hasattr(signal, "pthread_sigmask")  # Windows has none, and delivers signals to the main thread only

logger = logging.getLogger(__name__)


def _change_mask(how: int, signals: Iterable[int]) -> set[int]:
    """Change which signals this thread blocks; return those that it blocked before."""
    return set(signal.pthread_sigmask(how, signals))


def blocked_signals() -> set[int]:
    """Return the signals that this thread blocks."""
    return _change_mask(signal.SIG_BLOCK, ()) if HAS_MASKS else set()


def with_signals_blocked(call: Callable[[], R]) -> R:
    """Call *call*, which starts a thread: the thread inherits the mask, so it never takes a signal, not even at first.

    This is no context manager: a signal's handler that raised on the way in would leave this thread deaf.
    """
    if not HAS_MASKS:
        return call()
    before = blocked_signals()
    try:
        _change_mask(signal.SIG_BLOCK, BLOCKED)
        return call()
    finally:
        try:
            _change_mask(signal.SIG_SETMASK, before)
        except BaseException:  # a handler raised, maybe before the mask was restored
            _change_mask(signal.SIG_SETMASK, before)
            raise


def remember_mask(mask: set[int]) -> None:
    """Note, in a thread of the engine, the *mask* that user code has in it."""
    _background.mask = mask


@contextmanager
def program_signals() -> Iterator[None]:
    """Let in the signals of the program, so that what is started here inherits no blocked ones."""
    mask: set[int] | None = getattr(_background, "mask", None)
    if mask is None or not HAS_MASKS:
        yield
        return
    before = _change_mask(signal.SIG_SETMASK, mask)
    try:
        yield
    finally:
        _change_mask(signal.SIG_SETMASK, before)


def _after_fork_in_child() -> None:
    """Let in the signals of the program: the thread that forked is the main thread now."""
    mask: set[int] | None = getattr(_background, "mask", None)
    if mask is not None and HAS_MASKS:
        del _background.mask
        _change_mask(signal.SIG_SETMASK, mask)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def in_slices(wait: Callable[[float], bool], seconds: float | None) -> bool:
    """Call *wait* with a timeout of a second at most until it says True; say False after *seconds* (None: never).

    Between two slices Python runs the handlers of signals that another thread has taken.
    """
    until = float("inf") if seconds is None else time.monotonic() + seconds
    while (left := until - time.monotonic()) > SLICE_SECONDS:
        if wait(SLICE_SECONDS):
            return True
    return wait(max(left, 0.0))


class SlicedEvent(threading.Event):
    """An event whose waits end at Ctrl-C, whichever thread the kernel hands the signal to."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or *timeout* seconds have passed; tell which."""
        return in_slices(super().wait, timeout)


class Shell(Protocol):
    """Calls a step function whenever it is woken or its own time has come, one call at a time.

    The step answers in how many seconds it wants to be called again at the latest; None means when it is woken.
    """

    def wake(self) -> None:
        """Have the step called soon; wakes that arrive before it are one."""

    def stop(self) -> None:
        """Call the step no more; a call under way is finished first."""


class Signal(Protocol):
    """Something that one thread waits for and another sets, once."""

    def set(self) -> None:
        """Let whoever waits go on."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or *timeout* seconds have passed; tell which."""


class Process(Protocol):
    """A child process."""

    @property
    def pid(self) -> int:
        """Its number."""

    def poll(self) -> int | None:
        """Give its exit code, or minus the signal that ended it; None while it lives."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raise `subprocess.TimeoutExpired` after *timeout* seconds."""

    def kill(self) -> None:
        """End it, whatever it does."""


def spawn(module: str, descriptor: int) -> Process:
    """Start a new interpreter that calls `main` of *module*; of our files it has *descriptor*, stdout and stderr alone.

    It finds the module where we do, but what Python itself brings first, whatever lies in the directory it begins in.
    """
    program = f"import sys; sys.path += {sys.path!r}; from {module} import main; main(sys.argv)"
    command = [sys.executable, "-P", "-c", program, str(descriptor)]
    with program_signals():
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[descriptor])


def wall_ms() -> int:
    """Read this machine's clock, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def file_mark(path: str) -> object:
    """Give what changes when the file at *path* is written, as far as its clock ticks; None if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - fifty times a second
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class ThreadShell:
    """A daemon thread around a step function: the shell of production."""

    def __init__(self, step: Callable[[], float | None], name: str) -> None:
        self._step = step
        self._woken = threading.Event()
        self._stopped = False
        self._mask = blocked_signals()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        with_signals_blocked(self._thread.start)

    def wake(self) -> None:
        """Have the step called soon."""
        self._woken.set()

    def stop(self) -> None:
        """Call the step no more, and wait for a call under way."""
        self._stopped = True
        self._woken.set()
        if threading.current_thread() is not self._thread:
            in_slices(self._has_ended, None)

    def _has_ended(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        remember_mask(self._mask)
        seconds: float | None = None
        while True:
            self._woken.wait(seconds)
            self._woken.clear()
            if self._stopped:
                return
            try:
                seconds = self._step()
            except Exception:  # leases are kept and results waited for by such a thread: it may not end unheard
                seconds = AFTER_FAILURE_SECONDS
                with suppress(Exception):  # it may be the application's logging that has failed
                    logger.exception("step_failed", extra={"shell": self._thread.name})


class Pool(ThreadPoolExecutor):
    """Threads that are made when they are needed; where no more can be made, calls wait for those that are there.

    Python's own pool raises then, and runs the call all the same as soon as a thread is free: after its caller has
    heard that it failed. Without any thread, `Unavailable` is raised and nothing will be run.
    """

    def make_ready(self) -> None:
        """Have one thread, so that nothing that is asked for later can be refused."""
        self.submit(int).result()

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError as error:
            if not self._threads:
                self._work_queue.get_nowait()  # it is the only one there, for whoever came before was refused as well
                raise Unavailable(NO_THREAD) from error


class EnginePool(Pool):
    """A pool for calls of the engine itself: its threads block signals."""

    def __init__(self, most: int, name: str) -> None:
        super().__init__(most, name, remember_mask, (blocked_signals(),))

    def _adjust_thread_count(self) -> None:
        # the first two lines spare us the masks, at 0.1 ms, when no thread will be made; Python asks the same again
        if not self._idle_semaphore.acquire(timeout=0) and len(self._threads) < self._max_workers:
            with_signals_blocked(super()._adjust_thread_count)


class Threads:
    """Runs blocking calls beside an event loop, in a few threads that are made when first needed."""

    def __init__(self, most: int = 4) -> None:
        self._most = most
        self._executor: EnginePool | None = None

    async def call(self, function: Callable[[], R]) -> R:
        """Run *function* in a thread and return its result."""
        if self._executor is None:
            self._executor = EnginePool(self._most, "holdfast-call")
        told: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._executor.submit(_call, function, told)
        return await told

    def close(self) -> None:
        """Let the threads go when they are done; the next call makes new ones."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False)

    def drop(self) -> None:
        """Forget the threads without waiting for them (they are gone after a fork)."""
        self._executor = None


def _call(function: Callable[[], R], told: asyncio.Future[R]) -> None:
    """Call *function*, if its outcome is still wanted, and have *told* hear it.

    A loop's `run_in_executor` does the same by way of two futures that are chained, at half as much again.
    """
    if told.cancelled():
        return
    try:
        hear = partial(told.set_result, function())
    except BaseException as error:  # noqa: BLE001 - it is raised where it belongs, in the caller
        hear = partial(told.set_exception, error)
    _tell(told, hear)


def tell(told: asyncio.Future[None]) -> None:
    """Let who awaits *told* go on; from any thread."""
    _tell(told, partial(told.set_result, None))


def _tell(told: asyncio.Future[R], hear: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody is left to hear it
        told.get_loop().call_soon_threadsafe(_hear, told, hear)


def _hear(told: asyncio.Future[R], hear: Callable[[], None]) -> None:
    if not told.done():
        hear()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The outside world, as the engine is given it."""

    wall_ms: Callable[[], int] = wall_ms
    monotonic: Callable[[], float] = time.monotonic
    chance: random.Random = field(default_factory=random.SystemRandom)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    sleep_blocking: Callable[[float], None] = time.sleep
    shell: Callable[[Callable[[], float | None], str], Shell] = ThreadShell
    signal: Callable[[], Signal] = SlicedEvent
    threads: Threads = field(default_factory=Threads)
    spawn: Callable[[str, int], Process] = spawn
    file_mark: Callable[[str], object] = file_mark
    has_file_alarms: bool = sys.platform == "linux"
    """Whether the kernel may be asked to tell when a file is written."""
