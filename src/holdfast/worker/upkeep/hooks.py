"""Runs what a user has hung on retention, `on_stale` and `on_delete`: apart from each other, with a deadline.

Whatever a hook does, it postpones its own chain only. One that hangs is left to itself when its time is over: nobody
can end a thread, and a coroutine may refuse to. While it goes on, its chain is not tried again, and while several of a
task do, none of that task is: so what hangs costs a few threads, and not one more with each pass.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from holdfast.models import Job
from holdfast.retention import Hook, Stage
from holdfast.runtime import Runtime
from holdfast.signals import program_signals
from holdfast.threads import resolve

HOOK_SECONDS = 30.0
AT_ONCE = 8
MOST_HANGING = 4

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChainHooks:
    """The hooks of one chain, each with the job that it is called with; *seq* is the chain's first row."""

    seq: int
    stage: Stage
    calls: Sequence[tuple[Hook, Job]]

    @property
    def key(self) -> tuple[int, Stage]:
        """What is tried again under the same name."""
        return self.seq, self.stage


@dataclass(slots=True)
class _Call:
    """A call under way, or over."""

    is_over: bool = False
    error: BaseException | None = None
    task: object = None
    """What runs it, if it is a coroutine: an event loop forgets tasks that nobody holds."""


class Hooks(ABC):
    """Calls hooks; the worker and the async face have one kind, the blocking face another."""

    def __init__(self, runtime: Runtime, seconds: float | None = None) -> None:
        self._runtime = runtime
        self._seconds = HOOK_SECONDS if seconds is None else seconds
        self._hanging: dict[tuple[int, Stage], tuple[str, _Call]] = {}

    @abstractmethod
    async def run(self, chains: Sequence[ChainHooks]) -> set[int]:
        """Call the hooks of each chain, its jobs in their order; answer the chains whose hooks all came back well."""

    def _may_call(self, chain: ChainHooks, job: Job) -> bool:
        self._hanging = {key: each for key, each in self._hanging.items() if not each[1].is_over}
        of_task = Counter(task for task, _ in self._hanging.values())
        return chain.key not in self._hanging and of_task[job.task] < MOST_HANGING

    def _has_succeeded(self, chain: ChainHooks, job: Job, call: _Call) -> bool:
        facts = {"job": str(job.id), "task": job.task, "stage": chain.stage}
        if not call.is_over:
            self._hanging[chain.key] = (job.task, call)
            logger.warning("retention_hook_hangs", extra={**facts, "seconds": self._seconds})
        elif call.error is not None:
            logger.warning("retention_hook_failed", extra=facts, exc_info=call.error)
        return call.is_over and call.error is None

    def _call_in_thread(self, hook: Hook, job: Job, on_done: Callable[[], None]) -> _Call:
        """Have *hook* called in a thread of its own that nobody waits for at the end of the process."""
        call = _Call()

        def step() -> None:
            try:
                with program_signals():
                    _call_blocking(hook, job)
            except BaseException as error:  # noqa: BLE001 - user code ends its own call only
                call.error = error
            call.is_over = True
            stepper.stop()
            on_done()

        stepper = self._runtime.stepper(step, "holdfast-hook")
        stepper.wake()
        return call


class AsyncHooks(Hooks):
    """Calls async hooks in the running event loop, and plain ones in threads."""

    async def run(self, chains: Sequence[ChainHooks]) -> set[int]:
        """Call the hooks of each chain, its jobs in their order; answer the chains whose hooks all came back well."""
        slots = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            tasks = {each.seq: group.create_task(self._run(each, slots)) for each in chains}
        return {seq for seq, task in tasks.items() if task.result()}

    async def _run(self, chain: ChainHooks, slots: asyncio.Semaphore) -> bool:
        async with slots:
            for hook, job in chain.calls:
                if not self._may_call(chain, job):
                    return False
                call = await (self._await(hook, job) if is_async(hook) else self._call_and_wait(hook, job))
                if not self._has_succeeded(chain, job, call):
                    return False
        return True

    async def _await(self, hook: Hook, job: Job) -> _Call:
        call = _Call()

        async def step() -> None:
            try:
                await cast("Awaitable[object]", hook(job))
            except BaseException as error:  # noqa: BLE001 - user code ends its own call only
                call.error = error
            call.is_over = True

        # in no group: one that refuses to be cancelled must not be waited for
        call.task = task = asyncio.get_running_loop().create_task(step())
        await self._wait(task)
        return call

    async def _call_and_wait(self, hook: Hook, job: Job) -> _Call:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        call = self._call_in_thread(hook, job, partial(resolve, over))
        await self._wait(over)
        return call

    async def _wait(self, future: asyncio.Future[None]) -> None:
        try:
            await asyncio.wait([future], timeout=self._seconds)
        finally:
            future.cancel()  # what is over is left as it is


class BlockingHooks(Hooks):
    """Calls all hooks in threads, async ones each in an event loop of its own; nothing that is awaited suspends."""

    async def run(self, chains: Sequence[ChainHooks]) -> set[int]:
        """Call the hooks of each chain, its jobs in their order; answer the chains whose hooks all came back well."""
        succeeded = set()
        waiting = list(chains)
        while waiting:
            now, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
            succeeded |= self._run_some(now)
        return succeeded

    def _run_some(self, chains: Sequence[ChainHooks]) -> set[int]:
        """Call the first hooks of some chains at once, then the second ones, and so on."""
        succeeded = {each.seq for each in chains}
        for nr in range(max(len(each.calls) for each in chains)):
            left = [each for each in chains if each.seq in succeeded and nr < len(each.calls)]
            begun = [(each, self._begin(each, *each.calls[nr])) for each in left]
            until = self._runtime.monotonic() + self._seconds
            for chain, (signal, call) in begun:
                if call is not None:
                    signal.wait(max(0.0, until - self._runtime.monotonic()))
                if call is None or not self._has_succeeded(chain, chain.calls[nr][1], call):
                    succeeded.discard(chain.seq)
        return succeeded

    def _begin(self, chain: ChainHooks, hook: Hook, job: Job) -> tuple[Any, _Call | None]:
        signal = self._runtime.signal()
        return signal, self._call_in_thread(hook, job, signal.set) if self._may_call(chain, job) else None


def is_async(hook: Hook) -> bool:
    """Tell whether *hook* is an async function, or an object that is called as one."""
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(getattr(hook, "__call__", None))  # noqa: B004


def _call_blocking(hook: Hook, job: Job) -> None:
    """Call *hook*; one that gives a coroutine has it run in an event loop of its own."""
    given = hook(job)
    if inspect.iscoroutine(given):
        asyncio.run(given)
