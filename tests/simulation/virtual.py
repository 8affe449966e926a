"""Virtual time: event loops whose clock advances when nobody has anything to do, and threads that take turns.

Every simulated process has an event loop of its own, so that it can be frozen or dropped as a whole, at any await.
Its threads are real ones, but a thread runs only while the machine waits for it (*fibres*): whatever it would wait for
(a lock, an answer, some time) hands the turn back. So one thing happens at a time, in an order that the seed decides.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from itertools import count
from random import Random
from typing import Any, TypeVar

R = TypeVar("R")


MOST_AWAITS = 20


class Killed(BaseException):
    """Raised in the threads of a process that was killed, to be rid of them."""


class Machine:
    """The one clock, and whose turn it is."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.now = 0.0
        self.loops: list[VirtualLoop] = []
        self.errors: list[str] = []
        self.turns = 0
        self.is_hasty = False
        """Whether a thread's work is being done without a thread, and no time may pass."""
        self.running: VirtualLoop | None = None
        """Whose turn it is."""
        self.fibre: Fibre | None = None
        self.idle: list[Fibre] = []

    def run(self, until: float) -> None:
        """Give turns, and let time pass when nobody wants one, until the instant *until*."""
        while not self.errors:
            ready = [loop for loop in self.loops if loop.is_ready(self.now)]
            if ready:
                self.turns += 1
                (ready[0] if len(ready) == 1 else self.chance.choice(ready)).turn(self.now)
                continue
            later = min((loop.next_at() for loop in self.loops), default=until)
            if later > until:
                self.now = until
                return
            self.now = max(self.now, later)

    def close(self) -> None:
        """End the threads."""
        for fibre in self.idle:
            fibre.end()
        self.idle.clear()


class VirtualLoop(asyncio.AbstractEventLoop):
    """The event loop of one simulated process."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.frozen_until = 0.0
        self.is_dead = False
        self.waiting: dict[Fibre, None] = {}
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count()
        self._tasks: list[asyncio.Task[Any]] = []
        machine.loops.append(self)

    def is_ready(self, now: float) -> bool:
        """Tell whether something is to be done now."""
        if now < self.frozen_until:
            return False
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return bool(self._ready) or bool(self._timers and self._timers[0][0] <= now)

    def next_at(self) -> float:
        """Tell when something is to be done."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        own = self.machine.now if self._ready else self._timers[0][0] if self._timers else float("inf")
        return max(own, self.frozen_until)

    def turn(self, now: float) -> None:
        """Do the next thing."""
        while self._timers and self._timers[0][0] <= now:
            self._ready.append(heapq.heappop(self._timers)[2])
        handle = self._ready.popleft()
        if not handle.cancelled():
            self.machine.running = self
            asyncio.events._set_running_loop(self)
            try:
                handle._run()
            finally:
                asyncio.events._set_running_loop(None)

    def freeze(self, seconds: float) -> None:
        """Stop the whole process for a while: SIGSTOP, then SIGCONT."""
        self.frozen_until = self.machine.now + seconds

    def kill(self) -> None:
        """Never run anything of it again."""
        self.is_dead = True
        self.machine.loops.remove(self)
        for fibre in list(self.waiting):
            fibre.doom()

    def bury(self) -> None:
        """Close what was left waiting for ever, so that it does not protest when it is collected."""
        asyncio.events._set_running_loop(self)
        for task in self._tasks:
            for _ in range(MOST_AWAITS):  # whatever it still awaits while it is closed
                try:
                    task.get_coro().close()
                    break
                except BaseException:  # noqa: BLE001 - nobody is left to hear it
                    continue
        asyncio.events._set_running_loop(None)

    def thread(
        self,
        function: Callable[[], R],
        delay: float,
        done: Callable[[asyncio.Future[R]], None],
        never_waits: Callable[[], bool] = lambda: False,
    ) -> None:
        """Run *function* in a thread that begins *delay* from now; hand what came of it to *done*, in the loop.

        If it surely never waits, it is run at once and without a thread, which is cheaper.
        """
        self.call_later(delay, self._begin, function, done, never_waits)

    def _begin(
        self, function: Callable[[], R], done: Callable[[asyncio.Future[R]], None], never_waits: Callable[[], bool]
    ) -> None:
        outcome: asyncio.Future[R] = self.create_future()
        outcome.add_done_callback(done)

        def run() -> None:
            try:
                outcome.set_result(function())
            except Killed:
                outcome.cancel()
            except BaseException as error:  # noqa: BLE001 - raised where it is awaited
                outcome.set_exception(error)

        if never_waits():
            self.machine.is_hasty = True
            run()
            self.machine.is_hasty = False
        else:
            fibre = self.machine.idle.pop() if self.machine.idle else Fibre(self.machine)
            fibre.loop = self
            fibre.begin(run)

    def time(self) -> float:
        """Read the clock."""
        return self.machine.now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        """Call it at the next turn."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:  # type: ignore[override]
        """Call it in *delay* seconds."""
        return self.call_at(self.machine.now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:  # type: ignore[override]
        """Call it at the instant *when*."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave it where it is; it is passed over."""

    def create_future(self) -> asyncio.Future[Any]:
        """Make a future."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, R], **options: Any) -> asyncio.Task[R]:  # type: ignore[override]
        """Make a task."""
        task = asyncio.Task(coro, loop=self, **options)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # it may be killed
        self._tasks.append(task)
        return task

    def get_debug(self) -> bool:
        """Say no."""
        return False

    def is_running(self) -> bool:
        """Say yes."""
        return True

    def is_closed(self) -> bool:
        """Say no."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """End the run: an error that nobody awaits is a mistake of the engine, or of the simulation."""
        error = context.get("exception")
        if not self.is_dead and not isinstance(error, Killed):
            trace = "".join(traceback.format_exception(error)[-4:]) if error else ""
            self.machine.errors.append(f"nobody heard of an error: {context.get('message')}: {error!r}\n{trace}")


class Fibre:
    """A thread that runs only while the machine waits for it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._go = threading.Lock()
        self._back = threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._function: Callable[[], None] | None = None
        self._is_doomed = False
        self.loop: VirtualLoop
        self._thread = threading.Thread(target=self._main, name="fibre", daemon=True)
        self._thread.start()

    def begin(self, function: Callable[[], None]) -> None:
        """Run *function* until it first waits."""
        self._function = function
        self._is_doomed = False
        self.resume()

    def end(self) -> None:
        """End the thread, which has nothing to do."""
        self._function = None
        self._go.release()
        self._thread.join()

    def resume(self) -> None:
        """Go on until it waits again, or is done."""
        before, self._machine.fibre = self._machine.fibre, self
        self._go.release()
        self._back.acquire()
        self._machine.fibre = before

    def doom(self) -> None:
        """Have it end at once, wherever it waits."""
        self._is_doomed = True
        self.resume()

    def wait(self) -> None:
        """Hand the turn back until somebody resumes it; called in the thread itself."""
        if self._is_doomed:
            raise Killed
        self.loop.waiting[self] = None
        self._back.release()
        self._go.acquire()
        del self.loop.waiting[self]
        if self._is_doomed:
            raise Killed

    def _main(self) -> None:
        while True:
            self._go.acquire()
            if self._function is None:
                return
            self._function()
            self._function = None
            self._machine.idle.append(self)
            self._back.release()


class VirtualThreads:
    """Blocking calls beside a virtual loop."""

    def __init__(self, loop: VirtualLoop, latency: Callable[[], float], never_waits: Callable[[], bool]) -> None:
        self._loop = loop
        self._latency = latency
        self._never_waits = never_waits

    async def call(self, function: Callable[[], R]) -> R:
        """Run *function* in a thread and return its result."""
        answer: asyncio.Future[R] = self._loop.create_future()
        self._loop.thread(function, self._latency(), lambda outcome: hand_on(outcome, answer), self._never_waits)
        return await answer

    def close(self) -> None:
        """Do nothing: the threads are the machine's."""

    def drop(self) -> None:
        """Do nothing: nobody forks here."""


def hand_on(outcome: asyncio.Future[R], answer: asyncio.Future[R]) -> None:
    """Make what came of one future the answer of another."""
    if outcome.cancelled():
        return
    error = outcome.exception()
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(outcome.result())


class VirtualShell:
    """Calls a step function in a thread whenever it is woken or its time has come."""

    def __init__(
        self,
        loop: VirtualLoop,
        latency: Callable[[], float],
        step: Callable[[], float | None],
        never_waits: Callable[[], bool] = lambda: False,
    ) -> None:
        self._loop = loop
        self._latency = latency
        self._never_waits = never_waits
        self._step = step
        self._is_woken = self._is_running = self._is_stopped = False
        self._timer: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """Have the step called soon."""
        self._is_woken = True
        if not self._is_running:
            self._go()

    def stop(self) -> None:
        """Call the step no more."""
        self._is_stopped = True

    def _go(self) -> None:
        if self._is_stopped or self._is_running:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._is_running = True
        self._loop.thread(self._call, self._latency(), self._called, self._never_waits)

    def _call(self) -> float | None:
        self._is_woken = False
        return None if self._is_stopped else self._step()

    def _called(self, outcome: asyncio.Future[float | None]) -> None:
        self._is_running = False
        seconds = outcome.result()
        if self._is_woken:
            self._go()
        elif seconds is not None:
            self._timer = self._loop.call_later(seconds, self._go)


class VirtualEvent:
    """A `threading.Event` for fibres."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._is_set = False
        self._waiting: list[Fibre] = []

    def set(self) -> None:
        """Wake who waits."""
        self._is_set = True
        for fibre in self._waiting:
            fibre.loop.call_soon(self._resume, fibre)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or *timeout* seconds have passed; tell which."""
        if not self._is_set:
            fibre = self._machine.fibre
            assert fibre is not None, "a loop must not wait for a thread"
            self._waiting.append(fibre)
            timer = fibre.loop.call_later(max(timeout, 0.0), self._resume, fibre) if timeout is not None else None
            fibre.wait()
            if timer is not None:
                timer.cancel()
        return self._is_set

    def _resume(self, fibre: Fibre) -> None:
        if fibre in self._waiting:
            self._waiting.remove(fibre)
            fibre.resume()
