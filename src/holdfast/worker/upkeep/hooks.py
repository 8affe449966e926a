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

from holdfast.logging import reason_of, say
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


@dataclass(slots=True)
class _Call:
    """A call under way, or over."""

    is_over: bool = False
    error: BaseException | None = None
    task: object = None
    """What runs it, if it is a coroutine: an event loop forgets tasks that nobody holds."""


class Hooks(ABC):
    """Calls hooks; the worker and the async face have one kind, the blocking face another."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._hanging: dict[tuple[int, Stage], tuple[str, _Call]] = {}

    @abstractmethod
    async def run(self, chains: Sequence[ChainHooks]) -> set[int]:
        """Call the hooks of each chain, its jobs in their order; answer the chains whose hooks all came back well."""

    def _may_call(self, chain: ChainHooks, job: Job) -> bool:
        self._hanging = {key: each for key, each in self._hanging.items() if not each[1].is_over}
        of_task = Counter(task for task, _ in self._hanging.values())
        return (chain.seq, chain.stage) not in self._hanging and of_task[job.task] < MOST_HANGING

    def _has_succeeded(self, chain: ChainHooks, job: Job, call: _Call) -> bool:
        facts: dict[str, Any] = {"job": str(job.id), "task": job.task, "stage": chain.stage}
        if not call.is_over:
            self._hanging[chain.seq, chain.stage] = (job.task, call)
            say(logger, "retention_hook_hangs", **facts, seconds=HOOK_SECONDS)
        elif call.error is not None:
            say(logger, "retention_hook_failed", trace=call.error, **facts, error=reason_of(call.error))
        return call.is_over and call.error is None

    def _call_in_thread(self, hook: Hook, job: Job, on_done: Callable[[], None]) -> _Call:
        """Have *hook* called in a thread of its own that nobody waits for at the end of the process."""
        call = _Call()

        def step() -> None:
            try:
                with program_signals():
                    given = hook(job)
                    if inspect.iscoroutine(given):  # it has an event loop of its own
                        asyncio.run(given)
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
        slots = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            tasks = {each.seq: group.create_task(self._run(each, slots)) for each in chains}
        return {seq for seq, task in tasks.items() if task.result()}

    async def _run(self, chain: ChainHooks, slots: asyncio.Semaphore) -> bool:
        async with slots:
            for hook, job in chain.calls:
                if not self._may_call(chain, job) or not self._has_succeeded(chain, job, await self._call(hook, job)):
                    return False
        return True

    async def _call(self, hook: Hook, job: Job) -> _Call:
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None]
        if is_async(hook):
            call = _Call()
            # in no group: one that refuses to be cancelled must not be waited for
            call.task = over = loop.create_task(_await(hook, job, call))
        else:
            over = loop.create_future()
            call = self._call_in_thread(hook, job, partial(resolve, over))
        try:
            await asyncio.wait([over], timeout=HOOK_SECONDS)
        finally:
            over.cancel()  # what is over is left as it is
        return call


async def _await(hook: Hook, job: Job, call: _Call) -> None:
    try:
        await cast("Awaitable[object]", hook(job))
    except BaseException as error:  # noqa: BLE001 - user code ends its own call only
        call.error = error
    call.is_over = True


class BlockingHooks(Hooks):
    """Calls all hooks in threads, async ones each in an event loop of its own; nothing that is awaited suspends."""

    async def run(self, chains: Sequence[ChainHooks]) -> set[int]:
        succeeded = set()
        for first in range(0, len(chains), AT_ONCE):
            succeeded |= self._run_some(chains[first : first + AT_ONCE])
        return succeeded

    def _run_some(self, chains: Sequence[ChainHooks]) -> set[int]:
        """Call the first hooks of some chains at once, then the second ones, and so on."""
        succeeded = {each.seq for each in chains}
        for nr in range(max(len(each.calls) for each in chains)):
            left = [each for each in chains if each.seq in succeeded and nr < len(each.calls)]
            succeeded -= {each.seq for each in left}
            begun = []
            for chain in left:
                hook, job = chain.calls[nr]
                if self._may_call(chain, job):
                    signal = self._runtime.signal()
                    begun.append((chain, job, signal, self._call_in_thread(hook, job, signal.set)))
            until = self._runtime.monotonic() + HOOK_SECONDS
            for chain, job, signal, call in begun:
                signal.wait(max(0.0, until - self._runtime.monotonic()))
                if self._has_succeeded(chain, job, call):
                    succeeded.add(chain.seq)
        return succeeded


def is_async(hook: Hook) -> bool:
    """Tell whether *hook* is an async function, or an object that is called as one."""
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(getattr(hook, "__call__", None))  # noqa: B004
