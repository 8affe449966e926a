"""One attempt of a job as a pipeline: resolve the task, decode the input, run the handler inside its middleware, judge.

It ends in a value, an `Outcome`, or in None where nothing is to be written: the job is no longer ours, or one of its
blocks has completed it. Whatever user code does, it ends its own attempt only. What cannot be ended is waited for: a
thread, or a coroutine that will not stop, keeps its job, its slot and its lane until it really comes back.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

from holdfast.client.completion import BlockState
from holdfast.database.tx import drive
from holdfast.errors import InvalidOutput, LeaseLost, Misuse
from holdfast.fault_points import reach
from holdfast.logging import RUNNING_JOB, RUNNING_TENANT, keep_logs, say
from holdfast.outcomes import Fail, Kind, Outcome, completed
from holdfast.store.jobs.claiming import Claimed
from holdfast.tasks.calls import Call
from holdfast.tasks.task import Task
from holdfast.worker.attempts.aborts import (
    FROM_LEASES,
    NO_LONGER_OURS,
    Aborted,
    AbortReason,
)
from holdfast.worker.attempts.active import STUBBORN_SECONDS
from holdfast.worker.attempts.blocks import Continued, LocalRun, TokenFence
from holdfast.worker.attempts.context import BlockingContext, Context
from holdfast.worker.attempts.judging import Judge
from holdfast.worker.attempts.services import AttemptServices

AGAIN_SECONDS = 5.0
"""Until a handler that was cancelled, and has not stopped, is cancelled again."""

logger = logging.getLogger(__name__)

_MAKING = threading.Lock()

GOES_ON = (Continued, Call)
STOPS = (asyncio.CancelledError, Aborted, LeaseLost)
# what users return and raise is known by its type alone: `isinstance` asks the object, which may lie, or raise

AnyContext: TypeAlias = Context | BlockingContext
Next: TypeAlias = Callable[[], Awaitable[Any]]
Middleware: TypeAlias = Callable[[AnyContext, Next], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class ThreadMiddleware:
    """Middleware around plain handlers, in the thread that each runs in; handlers that are async it lets pass."""

    around: Callable[[BlockingContext, Callable[[], Any]], Any]

    async def __call__(self, context: AnyContext, inner: Next) -> Any:
        return await inner()


def in_thread(function: Callable[[BlockingContext, Callable[[], Any]], Any]) -> ThreadMiddleware:
    """Make middleware of a plain function `(ctx, next)`, which runs in the thread of each plain handler, around it.

    It is for what belongs to a thread, such as a library's connections; public as `holdfast.sync.middleware`.
    """
    return ThreadMiddleware(function)


class Attempt(LocalRun):
    """An attempt of *job* under way, by the *services* of its worker in the colour of the handler.

    Thousands of these come and go in a second, so one has only what it was asked for: whatever is not in its
    constructor is made when it is needed.
    """

    _context: AnyContext | None = None
    _handler: asyncio.Task[Any] | None = None
    """The task that the handler runs in, if that can be cancelled."""
    _late_at: float | None = None
    _coroutine: types.CoroutineType[Any, Any, Any] | None = None
    _waits_for: Any = None
    """What the handler waits for since its first step."""
    _end: tuple[Any, bool] | None = None
    """What the handler has given in `begin` or `run_here`, and whether it has raised that; `run` judges it."""

    def __init__(
        self, job: Claimed, task: Task[..., Any], services: AttemptServices, middleware: Sequence[Middleware] = ()
    ) -> None:
        self.job = job
        self.task = task
        self.services = services
        self.middleware = middleware

    @property
    def context(self) -> AnyContext:
        if self._context is None:
            self._context = Context(self) if self.task.signature.is_async else BlockingContext(self)
        return self._context

    def _enter(self) -> contextvars.Token[Any]:
        """Let what is logged here tell of the job; who runs others in the same context has all from one tenant."""
        if (tenant := self.services.starting.tenant.name) is not None:
            RUNNING_TENANT.set(tenant)
        return RUNNING_JOB.set(self.job)

    def begin(self) -> Outcome | None:
        """Make the first step of an async handler that has neither middleware nor phases, in the task that calls this.

        Most handlers need no more, and then they need no task: give what the attempt came to. If it waits for something
        it gives None, and the task that has called this is the handler's own from there on: it has to `run` the rest.
        """
        if (seconds := self.task.policy.timeout) is not None:
            self._late_at = self.services.loop.time() + seconds
        try:
            call = self._bound_handler()
            reach("claim.before_handler")
            coroutine = call()
            if not isinstance(coroutine, types.CoroutineType):
                coroutine = _awaited(coroutine)
        except BaseException as error:  # noqa: BLE001 - also a StopIteration, which is no end of a handler here
            return self._end_at_once(error, is_error=True)
        outside = self._enter()
        try:
            self._waits_for = coroutine.send(None)
            self._coroutine = coroutine
            return None
        except StopIteration as end:
            value = end.value
        except BaseException as error:  # noqa: BLE001 - whatever user code raises ends its own attempt only
            return self._end_at_once(error, is_error=True)
        finally:
            if self._coroutine is None:  # else the task that has called this is the handler's own from here on
                RUNNING_JOB.reset(outside)
        return self._end_at_once(value)  # not in `except`: what it raises would carry the output in its context

    def run_here(self) -> Outcome | None:
        """Run a plain handler that has no middleware, phases or time-out in the thread that calls this.

        Give what the attempt came to; None where more has to be done to know that: then `run` does the rest.
        """
        self._enter()
        try:
            if self.abort_reason is not None:
                raise Aborted(self.abort_reason)
            call = self._bound_handler()
            reach("claim.before_handler")
            return self._end_at_once(call())
        except BaseException as error:  # noqa: BLE001 - whatever user code raises ends its own attempt only
            return self._end_at_once(error, is_error=True)

    def _end_at_once(self, value: Any, *, is_error: bool = False) -> Outcome | None:
        """Say what the attempt came to, if nothing has to be waited for to know that."""
        is_plain = self.block is None and self.continued is None and self.abort_reason is None
        is_plain = is_plain and (self.journal is None or not self.journal.owes)
        if not is_plain or issubclass(type(value), GOES_ON):
            self._end = value, is_error
            return None
        self.has_ended = True
        if self.failed is not None:
            return self.judge(Fail(self.failed))
        if is_error:
            return self.judge(value)
        try:
            return completed(self.task.encode_output(value))
        except BaseException as error:  # noqa: BLE001 - what the handler gave cannot be stored
            return self.judge(error)

    @types.coroutine
    def _resume(self, coroutine: types.CoroutineType[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Be the handler's *coroutine*, whose first step was made already."""
        waits_for = self._waits_for
        while True:
            try:
                sent = yield waits_for
            except BaseException as error:  # noqa: BLE001 - it is thrown into the handler, and comes back if it wants
                step = partial(coroutine.throw, error)
            else:
                step = partial(coroutine.send, sent)
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value

    async def run(self) -> Outcome | None:
        """Run the handler to its end, on from where it was left, and say what the attempt came to."""
        self._enter()
        if (level := self.task.policy.keep_logs) is not None:
            keep_logs(level, self.make_journal().keep)
        try:
            value, is_error = self._end or (await self._within_time(), False)
            outcome = self._raised(value) if is_error else await self._returned(value)
        except BaseException as error:  # noqa: BLE001 - whatever user code raises ends its own attempt only
            outcome = self._raised(error)
        self.has_ended = True
        if self.block is not None and (rolling_back := self.block.undo()) is not None:
            with suppress(Exception, asyncio.CancelledError):  # who cancels a handler now has nothing left to stop
                await self._in_colour(rolling_back)  # its connection, or right to write, is for others to have
        if self.journal is not None and self.journal.owes:
            with suppress(Exception, asyncio.CancelledError):
                await self._in_colour(self.journal.end)
        return outcome if self.failed is None or outcome is None else self.judge(Fail(self.failed))

    async def _in_colour(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do what its services do; for a plain handler that is in a thread."""
        if self.task.signature.is_async:
            await work()
        else:
            await self._in_thread(lambda: drive(work()))

    def abort(self, reason: AbortReason) -> None:
        """Tell the handler to stop; the first reason counts. An async handler is cancelled at its next await."""
        if self.has_ended or self.abort_reason is not None or self._defers(reason):
            return
        self.abort_reason = reason
        if self.signal is not None:
            self.signal.set()
        self.services.progress.give_up(self.job.token)
        self.services.loop.call_later(STUBBORN_SECONDS, self._note_stubborn)
        self._cancel()

    def _note_stubborn(self) -> None:
        if not self.has_ended:
            self.is_stubborn = True
            facts: dict[str, Any] = {"job": self.job.id, "task": self.job.task, "reason": self.abort_reason}
            say(logger, "handler_does_not_stop", **facts, seconds=STUBBORN_SECONDS)

    def _cancel(self) -> None:
        """Cancel the handler, and again every few seconds: it, or a library that it calls, may have swallowed it."""
        if self.has_ended or self._handler is None:
            return
        if self.abort_reason is None or not self._defers(self.abort_reason):
            self._handler.cancel()
        self.services.loop.call_later(AGAIN_SECONDS, self._cancel)

    def _defers(self, reason: AbortReason) -> bool:
        """Tell whether an abort is to wait, or comes from nothing but the end that a block has made itself.

        Once COMMIT is sent, an abort could only keep us from learning what became of it.
        """
        block = self.block
        if self.commits or (block is not None and block.state is BlockState.COMMITTING):
            self.deferred = self.deferred or reason
            return True
        return block is not None and block.is_completed and reason in FROM_LEASES

    def aborted(self, reason: AbortReason, stop: BaseException | None = None) -> Outcome | None:
        """Say what an attempt comes to that was stopped for *reason*, and left its handler by *stop*."""
        return self._judge.aborted(reason, self.failed, stop)

    def judge(self, error: BaseException) -> Outcome:
        self.error = error
        return self._judge.raised(error)

    @property
    def _judge(self) -> Judge:
        return Judge(self.job, self.task, self.services.worker, self.services.chance)

    async def _returned(self, output: object) -> Outcome | None:
        block = self.block
        if block is not None and block.is_completed:
            self._compare(output, block)
            return None
        if block is not None and block.owes_the_end:
            raise Misuse(
                "the handler returned, but its block did not complete the job: the handler never left the block, or "
                "caught the error that rolled it back; leave the block before you return, and do not catch its error"
            )
        if self.continued is not None or issubclass(type(output), GOES_ON):
            return await self._goes_on(output)
        return completed(self.task.encode_output(output))

    async def _goes_on(self, output: object) -> Outcome:
        if isinstance(output, Call):
            output.consume()
            raise Misuse(
                f"the handler returned the call {output.function}(…), which starts nothing; write "
                f"`return ctx.continue_with({output.function}(…))`"
            )
        if output is not self.continued or self.continued is None:
            raise Misuse(
                "the handler called ctx.continue_with(…) and did not return it; write `return ctx.continue_with(…)`"
            )
        successor = await self.services.starting.continuation_of(self.services.runner, self.continued.call)
        return Outcome(Kind.COMPLETE, successor=successor)

    def _raised(self, error: BaseException) -> Outcome | None:
        if self.is_completed:
            self._warn(error)
            return None
        reason = self.stop_reason()
        if reason is not None and issubclass(type(error), STOPS):
            return self.aborted(reason, error)
        return None if reason in NO_LONGER_OURS else self.judge(error)

    def _compare(self, output: object, block: TokenFence) -> None:
        """Warn of an output that goes nowhere, because a block has completed the job with another."""
        assert block.outcome is not None  # noqa: S101 - it has completed
        if output is None or isinstance(output, Continued):
            return
        try:
            is_same = self.task.encode_output(output) == block.outcome.output
        except InvalidOutput:
            is_same = False
        if not is_same:
            self._warn(Misuse("the handler returned another value than the one that its block completed the job with"))

    def _warn(self, error: BaseException) -> None:
        reason = self.abort_reason
        if issubclass(type(error), STOPS[:2]) and reason is not None:
            if reason is AbortReason.SHUTDOWN:
                return
            error = Fail(self.failed) if self.failed is not None else Aborted(reason)
        self.warning = self._judge.describe(error)

    async def _within_time(self) -> Any:
        if self.task.signature.is_async:
            self._handler = asyncio.current_task()
        if self.abort_reason is not None and self._coroutine is None:
            raise Aborted(self.abort_reason)
        loop, timer = self.services.loop, None
        if (seconds := self.task.policy.timeout) is not None:
            timer = loop.call_at(self._late_at or loop.time() + seconds, self.abort, AbortReason.TIMEOUT)
        try:
            if self._coroutine is not None:
                return await self._resume(self._coroutine)
            if self.task.policy.phases:
                phases = self.context._phases  # made here, before several threads of the handler can ask for it
                if self.job.current_phase is not None:
                    await self._in_colour(phases.load)
            call: Next = self._run_handler
            for layer in reversed(self._layers):
                call = partial(_pass_through, layer, self.context, call)
            return await call()
        finally:
            if timer is not None:
                timer.cancel()

    async def _run_handler(self) -> Any:
        call = self._bound_handler()
        reach("claim.before_handler")
        if self.task.signature.is_async:
            return await call()
        for layer in reversed(self._layers):
            if isinstance(layer, ThreadMiddleware):
                call = partial(layer.around, cast("BlockingContext", self.context), call)
        return await self._in_thread(call)

    def _bound_handler(self) -> Callable[[], Any]:
        """Give the handler with its arguments, as they were stored."""
        given = self.task.decode_input(self.job.input)
        arguments = {name: getattr(given, name) for name in self.task.signature.binding.names}
        function = self.task.function
        assert function is not None  # noqa: S101 - a worker claims only tasks whose code it has
        if self.task.signature.takes_context:
            return partial(function, self.context, **arguments)
        return partial(function, **arguments)

    @property
    def _layers(self) -> tuple[Middleware, ...]:
        return (*self.middleware, *self.task.middleware)

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        """Call in a thread, which cannot be ended: whoever cancels waits until it comes back by itself."""
        value, _ = await self.services.call_in_thread(call, lambda: self.abort(AbortReason.SHUTDOWN))
        return value


async def _awaited(handler: Awaitable[Any]) -> Any:
    """Wait for what a handler gives that is no coroutine, as one that is wrapped may."""
    return await handler


async def _pass_through(layer: Middleware, context: AnyContext, inner: Next) -> Any:
    return await layer(context, inner)
