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
import atexit
import logging
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar

from holdfast.errors import Unavailable

P = ParamSpec("P")
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


class Stepper(Protocol):
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


StartThread: TypeAlias = Callable[[Callable[[], None], str], threading.Thread]


def start_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread that runs *target*, which may be user code, and does not keep the process alive."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


def start_engine_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread of the engine itself: it runs *target* and never takes a signal."""
    mask = blocked_signals()

    def run() -> None:
        remember_mask(mask)
        target()

    thread = threading.Thread(target=run, name=name, daemon=True)
    with_signals_blocked(thread.start)
    return thread


class StepThread:
    """A daemon thread around a step function: the shell of production."""

    def __init__(self, step: Callable[[], float | None], name: str) -> None:
        self._step = step
        self._woken = threading.Event()
        self._stopped = False
        self._name = name
        self._thread = start_engine_thread(self._loop, name)

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
                    logger.exception("step_failed", extra={"shell": self._name})


class ThreadPool(Executor):
    """Up to *most* threads that run what is submitted; one that is free comes before a new one.

    Python's own pool starts a new thread although another has just handed over its result and is about to be free; on
    3.12 a worker's threads grew with its jobs. Where no thread can be started, Python's pool raises, but runs the call
    all the same once a thread is free. Here the call waits for the threads that are there; if there is none, `submit`
    raises `Unavailable` and the call never runs.

    A fork leaves the threads behind: a child process needs a pool of its own.
    """

    def __init__(self, most: int, name: str, start: StartThread = start_thread) -> None:
        self._most = most
        self._name = name
        self._start = start
        self._crew = _Crew()
        self._is_shut = False
        # a pool that nobody refers to any more takes its threads along; at exit `_end_pools` does more
        weakref.finalize(self, self._crew.dismiss).atexit = False

    def make_ready(self) -> None:
        """Have one thread, so that nothing that is asked for later can be refused."""
        self.submit(int).result()

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run *fn* in one of the threads; the future has its result."""
        future: Future[R] = Future()
        self.run(_FutureCall(partial(fn, *args, **kwargs), future))
        return future

    def run(self, work: Work) -> None:
        """Run *work* in one of the threads."""
        with self._crew.lock:
            if self._is_shut or _is_exiting:
                raise RuntimeError("no call can be submitted after the shutdown of the pool or of Python")
            if self._crew.wanted >= len(self._crew.threads) < self._most:
                self._add_thread()
            self._crew.add(work)

    def _add_thread(self) -> None:
        name = f"{self._name}_{len(self._crew.threads)}"
        try:
            self._crew.threads.append(self._start(self._crew.serve, name))
        except RuntimeError as error:
            if not self._crew.threads:
                raise Unavailable(NO_THREAD) from error

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; the threads end when they have run all that waits, unless it is cancelled."""
        with self._crew.lock:
            self._is_shut = True
            if cancel_futures:
                self._crew.cancel_waiting()
            self._crew.dismiss()
        if wait:
            self._crew.join()


class _Crew:
    """The threads of one pool and their work; it knows nothing of the pool, which can be forgotten while they wait."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.wanted = 0
        """How many calls wait or run; a thread counts as free before it tells the result."""
        self.lock = threading.Lock()
        self._works: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        _crews.add(self)

    def add(self, work: Work) -> None:
        """Have *work* done by the next thread that is free; under the lock."""
        self.wanted += 1
        self._works.put(work)

    def serve(self) -> None:
        """Do what comes, in one of the threads, until the pool is shut down."""
        while (work := self._works.get()) is not None:
            is_begun = work.begin()
            result, error = _caught(work.function) if is_begun else (None, None)
            with self.lock:
                self.wanted -= 1  # first: whoever hears of it may submit the next call before this thread is back
            if is_begun:
                work.end(result, error)
            del work, result, error  # what they refer to must not live until the next call comes
        self._works.put(None)  # for the next thread

    def cancel_waiting(self) -> None:
        """Cancel the work that no thread has begun; under the lock."""
        with suppress(queue.Empty):
            while True:
                if (work := self._works.get_nowait()) is not None:
                    work.cancel()
                    self.wanted -= 1

    def dismiss(self) -> None:
        """Let the threads end when all is done; takes no lock, for the garbage collector may call it anywhere."""
        self._works.put(None)

    def join(self) -> None:
        """Wait until the threads have ended."""
        for thread in self.threads:
            thread.join()


class Work(Protocol):
    """A call that a thread of a pool makes."""

    function: Callable[[], Any]

    def begin(self) -> bool:
        """Tell whether somebody still wants the outcome; if not, nothing else is called."""

    def end(self, result: Any, error: BaseException | None) -> None:
        """Hand on what the function returned or raised, without waiting."""

    def cancel(self) -> None:
        """Take note that no thread will make the call."""


class _FutureCall:
    """A call whose *future* gets the outcome."""

    def __init__(self, function: Callable[[], R], future: Future[R]) -> None:
        self.function = function
        self._future: Future[Any] = future

    def begin(self) -> bool:
        """Tell whether the future has not been cancelled."""
        return self._future.set_running_or_notify_cancel()

    def end(self, result: Any, error: BaseException | None) -> None:
        """Hand the outcome to the future."""
        if error is None:
            self._future.set_result(result)
        else:
            self._future.set_exception(error)

    def cancel(self) -> None:
        """Cancel the future."""
        self._future.cancel()


def _caught(function: Callable[[], R]) -> tuple[R | None, BaseException | None]:
    """Call *function*; give what it returned, or what it raised.

    A traceback keeps the frames below it: if the future was in one of them, it and the error would keep each other.
    """
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 - it is raised where it belongs, in the caller
        return None, error


_crews: weakref.WeakSet[_Crew] = weakref.WeakSet()
_is_exiting = False


def _end_pools() -> None:
    """At exit, take no more calls, and wait for those that wait or run, as Python does for its own pools."""
    global _is_exiting
    _is_exiting = True
    crews = list(_crews)
    for crew in crews:
        crew.dismiss()
    for crew in crews:
        crew.join()


atexit.register(_end_pools)


class Threads:
    """Runs blocking calls beside an event loop, in a few threads that are made when first needed."""

    def __init__(self, most: int = 4) -> None:
        self._most = most
        self._pool: ThreadPool | None = None

    async def call(self, function: Callable[[], R]) -> R:
        """Run *function* in a thread and return its result."""
        if self._pool is None:
            self._pool = ThreadPool(self._most, "holdfast-call", start_engine_thread)
        told: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._pool.run(_LoopCall(function, told))
        return await told

    def close(self) -> None:
        """Let the threads go when they are done; the next call makes new ones."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)

    def drop(self) -> None:
        """Forget the threads without waiting for them (they are gone after a fork)."""
        self._pool = None


class _LoopCall:
    """A call whose outcome a future of an event loop gets.

    A loop's `run_in_executor` does the same by way of two futures that are chained, at half as much again.
    """

    def __init__(self, function: Callable[[], R], told: asyncio.Future[R]) -> None:
        self.function = function
        self._told: asyncio.Future[Any] = told

    def begin(self) -> bool:
        """Tell whether the future has not been cancelled."""
        return not self._told.cancelled()

    def end(self, result: Any, error: BaseException | None) -> None:
        """Hand the outcome to the future, in its loop."""
        told = self._told
        _tell(told, partial(told.set_result, result) if error is None else partial(told.set_exception, error))

    def cancel(self) -> None:
        """Cancel the future, in its loop."""
        _tell(self._told, self._told.cancel)


def tell(told: asyncio.Future[None]) -> None:
    """Let who awaits *told* go on; from any thread."""
    _tell(told, partial(told.set_result, None))


def _tell(told: asyncio.Future[R], hear: Callable[[], object]) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody is left to hear it
        told.get_loop().call_soon_threadsafe(_hear, told, hear)


def _hear(told: asyncio.Future[R], hear: Callable[[], object]) -> None:
    if not told.done():
        hear()


@dataclass(frozen=True, slots=True)
class Runtime:
    """The outside world, as the engine is given it."""

    wall_ms: Callable[[], int] = wall_ms
    monotonic: Callable[[], float] = time.monotonic
    chance: random.Random = field(default_factory=random.SystemRandom)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    sleep_blocking: Callable[[float], None] = time.sleep
    shell: Callable[[Callable[[], float | None], str], Stepper] = StepThread
    signal: Callable[[], Signal] = SlicedEvent
    threads: Threads = field(default_factory=Threads)
    spawn: Callable[[str, int], Process] = spawn
    file_mark: Callable[[str], object] = file_mark
    has_file_alarms: bool = sys.platform == "linux"
    """Whether the kernel may be asked to tell when a file is written."""
