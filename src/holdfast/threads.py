"""Threads of the engine: one that calls a step function, pools of them, and waits that let the main thread see signals.

A blocking call waits in slices, in case another thread of the program takes a signal that is for the main thread.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar

from holdfast.errors import Unavailable
from holdfast.logging import reason_of, say
from holdfast.signals import blocked_signals, remember_mask, with_signals_blocked

P = ParamSpec("P")
R = TypeVar("R")

StartThread: TypeAlias = Callable[[Callable[[], None], str], threading.Thread]

AFTER_FAILURE_SECONDS = 1.0
SLICE_SECONDS = 1.0
NO_THREAD = (
    "no thread can be started; raise the limit of processes (`ulimit -u`), or run fewer programs and jobs at once"
)

logger = logging.getLogger(__name__)


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
    """A daemon thread around a step function: the `Stepper` of production."""

    def __init__(self, step: Callable[[], float | None], name: str) -> None:
        self._step = step
        self._asleep = threading.Lock()
        """Is locked until somebody wakes it: half of the time of an event, which is written in Python."""
        self._asleep.acquire()
        self._stopped = False
        self._name = name
        self._thread = start_engine_thread(self._loop, name)

    def wake(self) -> None:
        """Have the step called soon."""
        with suppress(RuntimeError):  # somebody was faster
            self._asleep.release()

    def stop(self) -> None:
        """Call the step no more, and wait for a call under way."""
        self._stopped = True
        self.wake()
        if threading.current_thread() is not self._thread:
            in_slices(self._has_ended, None)

    def _has_ended(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        seconds: float | None = None
        while True:
            self._asleep.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))
            if self._stopped:
                return
            try:
                seconds = self._step()
            except Exception as error:  # noqa: BLE001 - leases and results depend on such a thread: it may not end
                seconds = AFTER_FAILURE_SECONDS
                with suppress(Exception):  # it may be the application's logging that has failed
                    say(logger, "step_failed", trace=error, part=self._name, reason=reason_of(error))


class LoopThread:
    """An event loop in a thread of the engine, one in each process that asks for it; a fork leaves it behind."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._process = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of this process; it is made when it is first asked for."""
        loop = self._loop
        if loop is None or self._process != os.getpid():
            with self._lock:
                loop = self._loop
                if loop is None or self._process != os.getpid():
                    loop = self._begin()
        return loop

    def _begin(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        start_engine_thread(loop.run_forever, self._name)
        self._loop, self._process = loop, os.getpid()
        ENGINE_LOOPS.add(loop)
        return loop


ENGINE_LOOPS: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
"""The loops of `LoopThread`: no code of the user's runs there, so what they hold is let go of with our own threads."""


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
        self._state = _PoolState()
        self._is_shut = False
        # a pool that nobody refers to any more takes its threads along; at exit `_end_pools` does more
        weakref.finalize(self, self._state.dismiss).atexit = False

    def make_ready(self) -> None:
        """Have one thread, so that nothing that is asked for later can be refused."""
        self.submit(int).result()

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run *fn* in one of the threads; the future has its result."""
        future: Future[R] = Future()
        self.run(_FutureCall(partial(fn, *args, **kwargs), future))
        return future

    def start(self, function: Callable[[], R]) -> asyncio.Future[R]:
        """Run *function* in one of the threads, for the event loop that runs here: the future is one of its own.

        The loop's `run_in_executor` does the same by way of two futures that are chained, at half as much again.
        """
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self.run(_LoopCall(function, future))
        return future

    def run(self, work: Work) -> None:
        """Run *work* in one of the threads."""
        with self._state.lock:
            if self._is_shut or _is_exiting:
                raise RuntimeError("no call can be submitted after the shutdown of the pool or of Python")
            threads = self._state.threads
            if self._state.wanted >= len(threads) < self._most:
                try:
                    threads.append(self._start(self._state.serve, f"{self._name}_{len(threads)}"))
                except RuntimeError as error:
                    if not threads:
                        raise Unavailable(NO_THREAD) from error
            self._state.add(work)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; the threads end when they have run all that waits, unless it is cancelled."""
        with self._state.lock:
            self._is_shut = True
            if cancel_futures:
                self._state.cancel_waiting()
            self._state.dismiss()
        if wait:
            self._state.join()

    def leave_behind(self) -> None:
        """Take no more calls, and have nobody wait for the threads that still run, not even the exit of Python."""
        self.shutdown(wait=False, cancel_futures=True)
        _states.discard(self._state)


class _PoolState:
    """The threads of one pool and their work; it knows nothing of the pool, which can be forgotten while they wait."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.wanted = 0
        """How many calls wait or run; a thread counts as free before it hands on the result."""
        self.lock = threading.Lock()
        self._works: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        _states.add(self)

    def add(self, work: Work) -> None:
        """Have *work* done by the next thread that is free; under the lock."""
        self.wanted += 1
        self._works.put(work)

    def serve(self) -> None:
        """Do what comes, in one of the threads, until the pool is shut down."""
        while (work := self._works.get()) is not None:
            is_begun = work.begin()
            result, error = caught(work.function) if is_begun else (None, None)
            with self.lock:
                self.wanted -= 1  # first: who gets the result may submit the next call before this thread is back
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
        """Note that no thread will make the call."""


class _FutureCall:
    """A call whose *future* gets the outcome."""

    def __init__(self, function: Callable[[], R], future: Future[R]) -> None:
        self.function = function
        self._future: Future[Any] = future

    def begin(self) -> bool:
        return self._future.set_running_or_notify_cancel()

    def end(self, result: Any, error: BaseException | None) -> None:
        if error is None:
            self._future.set_result(result)
        else:
            self._future.set_exception(error)

    def cancel(self) -> None:
        self._future.cancel()


def caught(function: Callable[[], R]) -> tuple[R | None, BaseException | None]:
    """Call *function*; give what it returned, or what it raised.

    A traceback keeps the frames below it: if the future was in one of them, it and the error would keep each other.
    """
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 - it is raised where it belongs, in the caller
        return None, error


_states: weakref.WeakSet[_PoolState] = weakref.WeakSet()
_is_exiting = False


def _end_pools() -> None:
    """At exit, take no more calls, and wait for those that wait or run, as Python does for its own pools."""
    global _is_exiting
    _is_exiting = True
    states = list(_states)
    for state in states:
        state.dismiss()
    for state in states:
        state.join()


atexit.register(_end_pools)


class Threads:
    """Runs blocking calls beside an event loop, in a few threads that are made when first needed."""

    def __init__(self, most: int = 4) -> None:
        self._most = most
        self._pool: ThreadPool | None = None
        self._process = 0

    async def call(self, function: Callable[[], R]) -> R:
        """Run *function* in a thread and return its result."""
        if self._pool is None or self._process != os.getpid():  # the threads of a parent are not in its child
            self._process = os.getpid()
            self._pool = ThreadPool(self._most, "holdfast-call", start_engine_thread)
        return await self._pool.start(function)

    def close(self) -> None:
        """Let the threads go when they are done; the next call makes new ones."""
        pool, self._pool = self._pool, None
        if pool is not None and self._process == os.getpid():  # a parent's may have been locked at the fork
            pool.shutdown(wait=False)


class _LoopCall:
    """A call whose outcome a future of an event loop gets."""

    def __init__(self, function: Callable[[], R], future: asyncio.Future[R]) -> None:
        self.function = function
        self._future: asyncio.Future[Any] = future

    def begin(self) -> bool:
        return not self._future.cancelled()

    def end(self, result: Any, error: BaseException | None) -> None:
        future = self._future
        _call_in_loop(
            future, partial(future.set_result, result) if error is None else partial(future.set_exception, error)
        )

    def cancel(self) -> None:
        _call_in_loop(self._future, self._future.cancel)


def resolve(future: asyncio.Future[None]) -> None:
    """Let who awaits *future* go on; from any thread."""
    _call_in_loop(future, partial(future.set_result, None))


def _call_in_loop(future: asyncio.Future[R], call: Callable[[], object]) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits for it any more
        future.get_loop().call_soon_threadsafe(_unless_done, future, call)


def _unless_done(future: asyncio.Future[R], call: Callable[[], object]) -> None:
    if not future.done():
        call()
