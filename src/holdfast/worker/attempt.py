"""One attempt of a job as a pipeline: resolve the task, decode the input, run the handler inside its middleware, judge.

It ends in a value, an `Outcome`, or in None where nothing is to be written: the job is no longer ours. Whatever user
code does, it ends its own attempt only. What cannot be ended is waited for: a thread, or a coroutine that will not
stop, keeps its job, its slot and its lane until it really comes back.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, TypeAlias
from uuid import UUID

from holdfast.crashpoints import reach
from holdfast.outcomes import Facts, Fail, Kind, Outcome, describe, judge
from holdfast.store.jobs import Claimed
from holdfast.tasks import Task
from holdfast.worker.context import Aborted, AbortReason, AbortSignal, BlockingContext, Context, RunningJob, Tell

AnyContext: TypeAlias = Context | BlockingContext
Next: TypeAlias = Callable[[], Awaitable[Any]]
Middleware: TypeAlias = Callable[[AnyContext, Next], Awaitable[Any]]

NO_LONGER_OURS = (AbortReason.TAKEN, AbortReason.COMPLETED, AbortReason.NOT_FOUND)


@dataclass(slots=True)
class Attempt:
    """An attempt under way."""

    job: Claimed
    task: Task[..., Any]
    worker: str
    middleware: Sequence[Middleware]
    threads: Executor
    chance: Random
    tell: Tell
    is_stubborn: bool = field(default=False, init=False)
    context: AnyContext = field(init=False)
    _handler: asyncio.Task[Any] | None = field(default=None, init=False)
    _failed: str | None = field(default=None, init=False)
    _loop: asyncio.AbstractEventLoop = field(init=False)

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        kind = Context if self.task.signature.is_async else BlockingContext
        facts = partial(_facts_of, self.job)
        self.context = kind(self.job.id, facts, AbortSignal(self._loop), self._fail, self.tell)

    async def run(self) -> Outcome | None:
        """Run the handler to its end and say what the attempt came to."""
        try:
            output = await self._within_time()
            outcome: Outcome | None = Outcome(Kind.COMPLETE, output=self.task.encode_output(output))
        except (asyncio.CancelledError, Aborted) as stop:
            reason = self.context.abort_reason
            outcome = self._judge(stop) if reason is None else self.aborted(reason, stop)
        except BaseException as error:  # noqa: BLE001 - whatever user code raises ends its own attempt only
            outcome = None if self.context.abort_reason in NO_LONGER_OURS else self._judge(error)
        return outcome if self._failed is None or outcome is None else self._judge(Fail(self._failed))

    def abort(self, reason: AbortReason) -> None:
        """Tell the handler to stop; the first reason counts. An async handler is cancelled at its next await."""
        if self.context.abort_reason is not None:
            return
        self.context.abort_reason = reason
        self.context.aborted.set()
        if self._handler is not None and self.task.signature.is_async:
            self._handler.cancel()

    def aborted(self, reason: AbortReason, stop: BaseException | None = None) -> Outcome | None:
        """Say what an attempt comes to that was stopped for *reason*, and left its handler by *stop*."""
        match reason:
            case AbortReason.CANCELLED:
                return Outcome(Kind.CANCEL, reason=reason)
            case AbortReason.PAUSED:
                return Outcome(Kind.PAUSE, reason=reason)
            case AbortReason.SHUTDOWN | AbortReason.ERROR if self.task.policy.on_interrupt == "pause":
                return Outcome(Kind.PAUSE, reason=reason)
            case AbortReason.SHUTDOWN | AbortReason.ERROR:
                return Outcome(Kind.GIVE_BACK, reason=reason)
            case AbortReason.FAILED:
                return self._judge(Fail(self._failed or ""))
            case AbortReason.TIMEOUT:
                late = TimeoutError(f"not done within {self.task.policy.timeout:g} s")
                return self._judge(late.with_traceback(stop.__traceback__ if stop else None))
            case _:
                return None

    def _judge(self, error: BaseException) -> Outcome:
        facts = Facts(self.job.token.attempt, self.job.used, self.worker)
        try:
            return judge(error, facts, self.task.policy.retry, self.chance)
        except Exception as mistake:  # noqa: BLE001 - what was raised to steer cannot be read, such as after=NaN
            return Outcome(Kind.FAIL, error=describe(mistake, facts), reason="what the handler raised cannot be read")

    async def _within_time(self) -> Any:
        self._handler = asyncio.current_task()
        self.context.raise_if_aborted()
        seconds = self.task.policy.timeout
        if seconds is None:
            return await self._call()
        timer = self._loop.call_later(seconds, self.abort, AbortReason.TIMEOUT)
        try:
            return await self._call()
        finally:
            timer.cancel()

    async def _call(self) -> Any:
        call: Next = self._run_handler
        for layer in reversed((*self.middleware, *self.task.middleware)):
            call = _wrapped(layer, self.context, call)
        return await call()

    async def _run_handler(self) -> Any:
        given = self.task.decode_input(self.job.input)
        arguments = {name: getattr(given, name) for name in self.task.signature.binding.names}
        function = self.task.function
        assert function is not None  # noqa: S101 - a worker claims only tasks whose code it has
        context = (self.context,) if self.task.signature.takes_context else ()
        reach("claim.before_handler")
        if self.task.signature.is_async:
            return await function(*context, **arguments)
        return await self._in_thread(lambda: function(*context, **arguments))

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        """Call in a thread, which cannot be ended: whoever cancels waits until it comes back by itself."""
        variables = contextvars.copy_context()
        future = self._loop.run_in_executor(self.threads, variables.run, _caught, call)
        while not future.done():
            try:
                await asyncio.shield(future)
            except asyncio.CancelledError:
                self.abort(AbortReason.SHUTDOWN)
        value, error = future.result()
        if error is not None:
            raise error
        return value

    def _fail(self, reason: str) -> None:
        self._failed = reason
        self._loop.call_soon_threadsafe(self.abort, AbortReason.FAILED)


def _caught(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Give what *call* returns or raises; a future refuses StopIteration and would never be done."""
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001 - it is raised where the attempt is judged
        return None, error


def _facts_of(job: Claimed) -> RunningJob:
    return RunningJob(
        id=UUID(job.id),
        chain_id=UUID(job.chain_id),
        chain_index=job.chain_index,
        task=job.task,
        queue=job.queue,
        lane=job.lane,
        attempt=job.token.attempt,
        used=job.used,
        crashes=job.crashes,
    )


def _wrapped(layer: Middleware, context: AnyContext, inner: Next) -> Next:
    async def call() -> Any:
        return await layer(context, inner)

    return call
