"""Functions that are called when something happens: in every process that has opened, from then on.

Each listener follows the log by itself, a plain function in a thread of its own, an async one in a task of the loop
that opened, or, where there is none, in a thread with a loop of its own. So a slow one delays nobody, and its own error
is logged and ends nothing. A listener misses what happens while its process is down: who may not, uses `hf.events`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar, overload

from holdfast.database.tx import Blocking, Runner, drive
from holdfast.errors import CursorExpired, HoldfastError, InvalidInput, shown
from holdfast.events.feed import Feed, Follower
from holdfast.events.filters import check_names
from holdfast.events.follower import TROUBLE_SECONDS
from holdfast.logging import reason_of, say
from holdfast.models import Event, EventFilter, EventName, JobEvent, JobEventName
from holdfast.runtime import Runtime, Stepper
from holdfast.signals import program_signals
from holdfast.store.rows import Decode
from holdfast.threads import SlicedEvent

GRACE_SECONDS = 5.0  # for calls that are under way when hf closes, all together
CANCEL_SECONDS = 1.0  # for one that is cancelled then

JobListener = TypeVar("JobListener", bound=Callable[[JobEvent], object])
EventListener = TypeVar("EventListener", bound=Callable[[Event], object])

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Listener:
    """A function, and the events that it is called for."""

    function: Callable[[Any], object]
    wanted: EventFilter

    @property
    def name(self) -> str:
        """What it is called in logs."""
        function = self.function
        return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"

    @property
    def is_async(self) -> bool:
        """Tell whether it is awaited."""
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(
            getattr(self.function, "__call__", None)  # noqa: B004 - an object that is called like a function
        )


class Listeners:
    """The listeners of one `Holdfast`; they run while it is open."""

    def __init__(self, feed: Feed, runtime: Runtime, decode: Decode) -> None:
        self._feed = feed
        self._runtime = runtime
        self._decode = decode
        self._change = threading.Lock()
        self._listeners: list[Listener] = []
        self._calling: dict[Listener, Calling] = {}
        self._process: int | None = None  # in which it is open
        self._loop: asyncio.AbstractEventLoop | None = None

    @overload
    def on(self, name: JobEventName, /, *more: JobEventName) -> Callable[[JobListener], JobListener]: ...
    @overload
    def on(self, name: EventName, /, *more: EventName) -> Callable[[EventListener], EventListener]: ...
    def on(self, name: EventName, /, *more: EventName) -> Callable[[Any], Any]:
        """Have a function called for every event of these names, from when hf is open: `@hf.on("job:completed")`.

        It may be plain or async, and gets the event. It is called in every process that has opened hf, one event after
        the other; its errors are logged. `hf.off(function)` ends it. Raises `InvalidInput` for a name of no event.
        """
        return partial(self._add, EventFilter(names=frozenset(check_names((name, *more)))))

    def off(self, function: Callable[..., object]) -> None:
        """Call *function* no more, for whatever events it was given to `hf.on`; a call under way is finished."""
        with self._change:
            gone = [each for each in self._listeners if each.function == function]
            self._listeners = [each for each in self._listeners if each not in gone]
            calling = [self._calling.pop(each) for each in gone if each in self._calling]
        if not gone:
            raise InvalidInput(
                f"{shown(function)} is not a listener; pass the function that you gave to hf.on", "function"
            )
        for each in calling:
            each.end()

    async def open(self, runner: Runner, loop: asyncio.AbstractEventLoop | None) -> None:
        """Begin to call those that are not called yet; what happens from now on is theirs."""
        fresh = self._begin(loop)
        try:
            for calling in fresh.values():
                await calling.join(runner)
        except BaseException:
            self._drop(fresh)  # all of them: whoever opens again begins those that are not called
            raise
        for calling in fresh.values():
            calling.begin()

    def close(self) -> None:
        """Call nobody any more; wait a while for calls under way."""
        until = self._runtime.monotonic() + GRACE_SECONDS
        self._wait_for(self._close(), until)

    async def aclose(self) -> None:
        """Call nobody any more; wait a while for calls under way, then cancel those in this loop."""
        here = asyncio.current_task()
        until = self._runtime.monotonic() + GRACE_SECONDS
        calling = [each for each in self._close() if not each.is_in(here)]  # a listener may close hf itself
        await asyncio.gather(*(each.finish() for each in calling if isinstance(each, CallingInLoop)))
        if calling:
            await self._runtime.threads.call(partial(self._wait_for, calling, until))

    def _begin(self, loop: asyncio.AbstractEventLoop | None) -> dict[Listener, Calling]:
        """Note that it is open here; give those that are to begin."""
        with self._change:
            if self._process != os.getpid():  # the parent's threads are not here
                self._process, self._calling = os.getpid(), {}
            self._loop = loop or self._loop
            idle = [each for each in self._listeners if each not in self._calling or not self._calling[each].is_alive]
            fresh = {each: self._make(each) for each in idle}
            self._calling |= fresh
        return fresh

    def _drop(self, fresh: Mapping[Listener, Calling]) -> None:
        """Forget those that were to begin."""
        with self._change:
            for listener, calling in fresh.items():
                if self._calling.get(listener) is calling:
                    del self._calling[listener]
        for calling in fresh.values():
            calling.end()

    def _close(self) -> list[Calling]:
        with self._change:
            calling, self._calling = list(self._calling.values()), {}
            is_here, self._process, self._loop = self._process == os.getpid(), None, None
        if not is_here:
            return []
        for each in calling:
            each.end()
        return calling

    def _wait_for(self, calling: Sequence[Calling], until: float) -> None:
        """Wait for the last calls, all of them together until *until*."""
        for each in calling:
            if not each.wait(max(0.0, until - self._runtime.monotonic())):
                say(logger, "listener_still_runs", listener=each.name)

    def _add(self, wanted: EventFilter, function: Any) -> Any:
        if not callable(function):
            raise InvalidInput(f"{shown(function)} is not a function; put @hf.on(…) above a function", "function")
        listener = Listener(function, wanted)
        with self._change:
            self._listeners = [*self._listeners, listener]
            is_open = self._process == os.getpid()
            if is_open:
                calling = self._calling[listener] = self._make(listener)
                calling.begin()
        return function

    def _make(self, listener: Listener) -> Calling:
        follow = partial(self._feed.follow, None, listener.wanted, self._decode)
        if listener.is_async and self._loop is not None and self._loop.is_running():
            return CallingInLoop(listener, follow, self._runtime, self._loop)
        return CallingInThread(listener, follow, self._runtime)


class Calling(Protocol):
    """Calls one listener, from `begin` to `end`."""

    @property
    def name(self) -> str:
        """What the listener is called."""

    @property
    def is_alive(self) -> bool:
        """Tell whether it still calls, or could."""

    async def join(self, runner: Runner) -> None:
        """Take its place in the log, so that what happens from now on is not missed."""

    def begin(self) -> None:
        """Call the listener for what happens."""

    def end(self) -> None:
        """Begin no more calls."""

    def is_in(self, task: asyncio.Task[Any] | None) -> bool:
        """Tell whether *task* is the one that calls."""

    def wait(self, seconds: float) -> bool:
        """Wait until the last call has ended; tell whether it has."""


class _Calling:
    """What both kinds have: a follower that is made anew when the log cannot be read on, and a call that may fail."""

    def __init__(self, listener: Listener, follow: Callable[[], Follower]) -> None:
        self._listener = listener
        self._follow = follow
        self._follower = follow()
        self._has_ended = False
        self._has_stopped = SlicedEvent()

    @property
    def name(self) -> str:
        """What the listener is called."""
        return self._listener.name

    async def join(self, runner: Runner) -> None:
        """Take its place in the log."""
        await self._follower.join(runner)

    def end(self) -> None:
        """Begin no more calls."""
        self._has_ended = True
        self._follower.close()

    def is_in(self, task: asyncio.Task[Any] | None) -> bool:
        """Tell whether *task* is the one that calls."""
        return False

    def _begin_anew(self, error: HoldfastError) -> None:
        """Go on from now, if the log cannot be read on from where it was."""
        say(logger, "listener_missed_events", listener=self.name, reason=reason_of(error))
        self._follower.close()
        self._follower = self._follow()
        if self._has_ended:
            self._follower.close()

    def _log(self, error: BaseException, event: Event) -> None:
        """Log the *error* that the listener has raised."""
        facts: dict[str, Any] = {"listener": self.name, "heard": event.name, "error": reason_of(error)}
        say(logger, "listener_failed", trace=error, **facts)


class CallingInThread(_Calling):
    """Calls a listener in a thread of its own; an async one in a loop that only this thread has."""

    def __init__(self, listener: Listener, follow: Callable[[], Follower], runtime: Runtime) -> None:
        super().__init__(listener, follow)
        self._runtime = runtime
        self._blocking = Blocking(self._follower.store)
        self._shell: Stepper | None = None
        self._thread: int | None = None
        self._runner: asyncio.Runner | None = None

    @property
    def is_alive(self) -> bool:
        """Tell whether it still calls."""
        return not self._has_stopped.is_set()

    def begin(self) -> None:
        """Make the thread."""
        self._shell = self._runtime.stepper(self._step, "holdfast-listener")
        self._listen()
        self._shell.wake()

    def wait(self, seconds: float) -> bool:
        """Wait until the last call has ended; a listener that closes hf does not wait for itself."""
        return self._thread == threading.get_ident() or self._shell is None or self._has_stopped.wait(seconds)

    def _listen(self) -> None:
        if self._shell is not None:
            self._follower.listen(self._shell.wake)

    def _step(self) -> float | None:
        self._thread = threading.get_ident()
        try:
            with program_signals():  # for all at once: to change them takes longer than most calls
                return self._call_for_all()
        finally:
            if self._has_ended:
                self._stop()

    def _call_for_all(self) -> float | None:
        while not self._has_ended:
            try:
                event = drive(self._follower.take(self._blocking))
            except HoldfastError as error:
                if isinstance(error, CursorExpired) or self._follower.error is not None:
                    self._begin_anew(error)
                    self._listen()
                return TROUBLE_SECONDS
            if event is None:
                return None
            self._call(event)
        return None

    def _call(self, event: Event) -> None:
        try:
            answer = self._listener.function(event)
            if inspect.iscoroutine(answer):
                self._runner = self._runner or asyncio.Runner()
                self._runner.run(answer)
        except BaseException as error:  # noqa: BLE001 - the listener's own, and none of ours
            self._log(error, event)

    def _stop(self) -> None:
        if self._runner is not None:
            self._runner.close()
        self._has_stopped.set()
        if self._shell is not None:
            self._shell.stop()


class CallingInLoop(_Calling):
    """Calls an async listener in a task of the loop that opened hf."""

    def __init__(
        self,
        listener: Listener,
        follow: Callable[[], Follower],
        runtime: Runtime,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(listener, follow)
        self._runtime = runtime
        self._loop = loop
        self._task: asyncio.Task[None] | None = None

    @property
    def is_alive(self) -> bool:
        """Tell whether its loop still runs."""
        return not (self._has_stopped.is_set() or self._loop.is_closed())

    def begin(self) -> None:
        """Make the task; from any thread."""
        self._loop.call_soon_threadsafe(self._make_task)

    def wait(self, seconds: float) -> bool:
        """Wait in another thread than the loop's until the last call has ended."""
        return self._loop.is_closed() or _is_running_here(self._loop) or self._has_stopped.wait(seconds)

    def is_in(self, task: asyncio.Task[Any] | None) -> bool:
        """Tell whether *task* is the one that calls."""
        return task is not None and task is self._task

    async def finish(self) -> None:
        """Wait a while for the last call, then cancel it, if this is its loop."""
        task = self._task
        if task is None or self._loop is not asyncio.get_running_loop():
            return
        _, unfinished = await asyncio.wait({task}, timeout=GRACE_SECONDS)
        if unfinished:
            say(logger, "listener_cancelled", listener=self.name)
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_SECONDS)  # it may refuse

    def _make_task(self) -> None:
        self._task = self._loop.create_task(self._call_for_all(), name=f"holdfast-listener {self.name}")

    async def _call_for_all(self) -> None:
        try:
            while not self._has_ended:
                try:
                    async for event in self._follower:
                        await self._call(event)
                except HoldfastError as error:
                    self._begin_anew(error)
                    await self._runtime.sleep(TROUBLE_SECONDS)
                except Exception as error:  # noqa: BLE001 - as in a thread: nobody would hear of a task that ends by it
                    say(logger, "step_failed", trace=error, part=f"listener {self.name}", reason=reason_of(error))
                    await self._runtime.sleep(TROUBLE_SECONDS)
        finally:
            self._has_stopped.set()

    async def _call(self, event: Event) -> None:
        try:
            answer = self._listener.function(event)
            if inspect.isawaitable(answer):
                await answer
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            self._log(error, event)
        except (KeyboardInterrupt, GeneratorExit):  # whoever ends the loop, or this task for good
            raise
        except BaseException as error:  # noqa: BLE001 - the listener's own, and none of ours
            self._log(error, event)


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
