"""One attempt of a job as a pipeline: resolve the task, decode the input, run the handler inside its middleware, judge.

It ends in a value, an `Outcome`, or in None where nothing is to be written: the job is no longer ours, or one of its
blocks has completed it. Whatever user code does, it ends its own attempt only. What cannot be ended is waited for: a
thread, or a coroutine that will not stop, keeps its job, its slot and its lane until it really comes back.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, TypeAlias, TypeVar, cast
from uuid import UUID

from holdfast import current_block
from holdfast.client.starter import take_continuation
from holdfast.database.tx import drive
from holdfast.errors import (
    ChainCancelled,
    ChainFailed,
    ChainNotFound,
    InvalidOutput,
    LeaseLost,
    Misuse,
    WaitTimeout,
)
from holdfast.fault_points import reach
from holdfast.models import BlockerEnd
from holdfast.outcomes import Fail, Kind, Outcome
from holdfast.states import Status
from holdfast.store.jobs.claiming import Claimed, ProgressReport
from holdfast.tasks.calls import Call
from holdfast.tasks.phases import half_up
from holdfast.tasks.task import Task
from holdfast.worker.attempts.aborts import NO_LONGER_OURS, Aborted, AbortReason, AbortSignal, abort_error
from holdfast.worker.attempts.blocks import Blocks, Continued, Desk
from holdfast.worker.attempts.context import Blocker, BlockingContext, Context, RunningJob
from holdfast.worker.attempts.judging import Judge
from holdfast.worker.attempts.phases import Phases, Returned

R = TypeVar("R")

Tell: TypeAlias = Callable[[ProgressReport, bool], Future[bool] | None]
"""Takes in how far a handler is, and whether that is to be written at once; from any thread."""
AnyContext: TypeAlias = Context | BlockingContext
Next: TypeAlias = Callable[[], Awaitable[Any]]
Middleware: TypeAlias = Callable[[AnyContext, Next], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class ThreadMiddleware:
    """Middleware around plain handlers, in the thread that each runs in; handlers that are async it lets pass."""

    around: Callable[[BlockingContext, Callable[[], Any]], Any]

    async def __call__(self, context: AnyContext, inner: Next) -> Any:
        """Do nothing in the event loop."""
        return await inner()


def in_thread(function: Callable[[BlockingContext, Callable[[], Any]], Any]) -> ThreadMiddleware:
    """Make middleware of a plain function `(ctx, next)`, which runs in the thread of each plain handler, around it.

    It is for what belongs to a thread, such as a library's connections; public as `holdfast.sync.middleware`.
    """
    return ThreadMiddleware(function)


@dataclass(slots=True)
class Attempt:
    """An attempt under way; *desk* is its worker's, in the colour of the handler."""

    job: Claimed
    task: Task[..., Any]
    desk: Desk
    middleware: Sequence[Middleware]
    threads: Executor
    chance: Random
    tell: Tell
    is_stubborn: bool = field(default=False, init=False)
    context: AnyContext = field(init=False)
    warning: str | None = field(default=None, init=False)
    """What was raised after a block had completed the job, as JSON text for the history."""
    _handler: asyncio.Task[Any] | None = field(default=None, init=False)
    _failed: str | None = field(default=None, init=False)
    _blocks: Blocks | None = field(default=None, init=False)
    _phases: Phases | None = field(default=None, init=False)
    _continued: Continued | None = field(default=None, init=False)
    _has_ended: bool = field(default=False, init=False)
    _loop: asyncio.AbstractEventLoop = field(init=False)

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        kind = Context if self.task.signature.is_async else BlockingContext
        self.context = kind(self, self.job.id, AbortSignal(self._loop))
        if self.task.policy.phases:
            self._phases = Phases(self.job, self.task, self.desk, self)

    async def run(self) -> Outcome | None:
        """Run the handler to its end and say what the attempt came to."""
        try:
            outcome = await self._returned(await self._within_time())
        except BaseException as error:  # noqa: BLE001 - whatever user code raises ends its own attempt only
            outcome = self._raised(error)
        self._has_ended = True
        await self._let_go()
        return outcome if self._failed is None or outcome is None else self.judge(Fail(self._failed))

    async def _let_go(self) -> None:
        """Roll back a block that its handler never left: its connection, or right to write, is for others to have."""
        blocks = self._blocks
        if blocks is None:
            return
        blocks.end()
        if (rolling_back := blocks.let_go()) is None:
            return
        if self.task.signature.is_async:
            await rolling_back
        else:
            await self._in_thread(lambda: drive(rolling_back))

    def abort(self, reason: AbortReason) -> None:
        """Tell the handler to stop; the first reason counts. An async handler is cancelled at its next await."""
        if self.context.abort_reason is not None or (self._blocks is not None and self._blocks.defers(reason)):
            return
        if self._phases is not None and self._phases.defers(reason):
            return
        self.context.abort_reason = reason
        self.context.aborted.set()
        self.desk.progress.give_up(self.job.token)
        if self._handler is not None and self.task.signature.is_async:
            self._handler.cancel()

    def aborted(self, reason: AbortReason, stop: BaseException | None = None) -> Outcome | None:
        """Say what an attempt comes to that was stopped for *reason*, and left its handler by *stop*."""
        return self._judge.aborted(reason, self._failed, stop)

    def judge(self, error: BaseException) -> Outcome:
        """Say what the attempt comes to that ends in *error*."""
        return self._judge.raised(error)

    def leave_behind(self) -> None:
        """Do nothing: a handler that does not stop in this process cannot be ended."""

    @property
    def abort_reason(self) -> AbortReason | None:
        """Why the handler was told to stop, if it was."""
        return self.context.abort_reason

    @property
    def _judge(self) -> Judge:
        return Judge(self.job, self.task, self.desk.worker, self.chance)

    async def _returned(self, output: object) -> Outcome | None:
        blocks = self._blocks
        if blocks is not None and blocks.is_completed:
            self._compare(output, blocks)
            return None
        if blocks is not None and blocks.owes_the_end:
            raise Misuse(
                "the handler has returned, but its block has not completed the job: it was never left, as in a "
                "generator, or it was rolled back and its error swallowed; leave the block, and let its error pass"
            )
        if self._continued is not None or isinstance(output, Continued | Call):
            return await self._goes_on(output)
        return Outcome(Kind.COMPLETE, output=self.task.encode_output(output))

    async def _goes_on(self, output: object) -> Outcome:
        if isinstance(output, Call):
            output.consume()
            raise Misuse(f"the handler has returned a call of {output.task}; write `return ctx.continue_with(call)`")
        if output is not self._continued or self._continued is None:
            raise Misuse("ctx.continue_with() was called; return just what it gave, or do not call it")
        successor = await self.desk.starting.continuation_of(self.desk.runner, self._continued.call)
        return Outcome(Kind.COMPLETE, successor=successor)

    def _raised(self, error: BaseException) -> Outcome | None:
        blocks, reason = self._blocks, self.context.abort_reason
        if blocks is not None and blocks.is_completed:
            self._warn(error)
            return None
        reason = reason or self._found
        if reason is not None and isinstance(error, asyncio.CancelledError | Aborted | LeaseLost):
            return self.aborted(reason, error)
        return None if reason in NO_LONGER_OURS else self.judge(error)

    def _compare(self, output: object, blocks: Blocks) -> None:
        """Warn of an output that goes nowhere, because a block has completed the job with another."""
        assert blocks.outcome is not None  # noqa: S101 - it has completed
        if output is None or isinstance(output, Continued):
            return
        try:
            is_same = self.task.encode_output(output) == blocks.outcome.output
        except InvalidOutput:
            is_same = False
        if not is_same:
            self._warn(Misuse("what the handler returned is not what its block has completed the job with"))

    def _warn(self, error: BaseException) -> None:
        reason = self.context.abort_reason
        if isinstance(error, asyncio.CancelledError | Aborted) and reason is not None:
            if reason is AbortReason.SHUTDOWN:
                return
            error = Fail(self._failed) if self._failed is not None else Aborted(reason)
        self.warning = self._judge.describe(error)

    async def _within_time(self) -> Any:
        self._handler = asyncio.current_task()
        self.context.raise_if_aborted()
        seconds = self.task.policy.timeout
        timer = None if seconds is None else self._loop.call_later(seconds, self.abort, AbortReason.TIMEOUT)
        try:
            if self._phases is not None and self.job.current_phase is not None:
                await self._load(self._phases)
            return await self._call()
        finally:
            if timer is not None:
                timer.cancel()

    async def _load(self, phases: Phases) -> None:
        """Read what earlier attempts have finished, before the handler begins."""
        if self.task.signature.is_async:
            await phases.load()
        else:
            await self._in_thread(lambda: drive(phases.load()))

    async def _call(self) -> Any:
        call: Next = self._run_handler
        for layer in reversed(self._layers):
            call = _wrapped(layer, self.context, call)
        return await call()

    async def _run_handler(self) -> Any:
        given = self.task.decode_input(self.job.input)
        arguments = {name: getattr(given, name) for name in self.task.signature.binding.names}
        function = self.task.function
        assert function is not None  # noqa: S101 - a worker claims only tasks whose code it has
        context = (self.context,) if self.task.signature.takes_context else ()
        call = partial(function, *context, **arguments)
        reach("claim.before_handler")
        if self.task.signature.is_async:
            return await call()
        for layer in reversed(self._layers):
            if isinstance(layer, ThreadMiddleware):
                call = partial(layer.around, cast("BlockingContext", self.context), call)
        return await self._in_thread(call)

    @property
    def _layers(self) -> tuple[Middleware, ...]:
        return (*self.middleware, *self.task.middleware)

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        """Call in a thread, which cannot be ended: whoever cancels waits until it comes back by itself."""
        return (await self._threaded(call, lambda: self.abort(AbortReason.SHUTDOWN))).value

    async def _threaded(self, call: Callable[[], Any], cancelled: Callable[[], None]) -> Returned:
        variables = contextvars.copy_context()
        future = self._loop.run_in_executor(self.threads, variables.run, _caught, call)
        is_cancelled = False
        while not future.done():
            try:
                await asyncio.shield(future)
            except asyncio.CancelledError:
                is_cancelled = True
                cancelled()
        value, error = future.result()
        if error is not None:
            raise error
        return Returned(value, is_cancelled)

    # what its context asks for

    def facts(self) -> RunningJob:
        """Tell the facts of this attempt."""
        job = self.job
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

    def blockers(self) -> tuple[Blocker, ...]:
        """Tell how the chains ended that the job has waited for."""
        decoder = self.desk.starting.decoder
        return tuple(
            Blocker(each.chain_id, each.task, each.closed_as, decoder.output(each.task, each.output))
            for each in self.job.blockers
        )

    def blocker_output(self, task: Task[..., R], index: int) -> R:
        """Read the output of one of them."""
        ends = self.job.blockers
        if not 0 <= index < len(ends):
            raise Misuse(f"the job has waited for {len(ends)} chains, so there is no blocker {index}; the first is 0")
        return task.decode_output(_output_of(ends[index]))

    def blocks(self) -> Blocks:
        """Give the blocks of this attempt."""
        if self._blocks is None:
            self._blocks = Blocks(
                self.job,
                self.task,
                self.desk,
                lambda: self.context.abort_reason,
                self.abort_soon,
                lambda: None if self._phases is None else self._phases.active,
            )
            if self._has_ended:
                self._blocks.end()
        return self._blocks

    def continue_with(self, call: Call[Any]) -> Continued:
        """Go on with *call* when the handler has returned what this gives."""
        taken = take_continuation(call)
        if self._blocks is not None and self._blocks.is_completing:
            raise Misuse("the job is completed by a block; write `return tx.continue_with(call)` inside it")
        if self._continued is not None:
            raise Misuse("ctx.continue_with() was called already; a job has one successor")
        self._continued = Continued(taken)
        return self._continued

    def fail(self, reason: str) -> None:
        """Fail the job for good, from any thread."""
        self._failed = reason
        self.abort_soon(AbortReason.FAILED)

    def phases(self) -> Phases:
        """Give the phases of this attempt; those of a task that declares none refuse whatever they are asked for."""
        return self._phases or Phases(self.job, self.task, self.desk, self)

    def report(self, percent: float, message: str | None, at_once: bool) -> Future[bool] | None:
        """Take in how far the handler is, from any thread; *at_once* gives what `flushed` takes."""
        if self._phases is not None:
            return self.tell(self._phases.report(percent, message), at_once)
        return self.tell(ProgressReport(self.job.token, half_up(percent), message), at_once)

    async def flushed(self, written: Future[bool]) -> None:
        """Wait until a report is written, or raise why nobody will write it."""
        current_block.refuse_flush()
        reason = self.context.abort_reason
        if reason is None and await self.desk.wait(written):
            return
        reason = reason or self.context.abort_reason
        if reason is None:
            raise Misuse("the job has ended, so that nobody writes its progress any more; report it before")
        raise abort_error(reason, self.job.id)

    # what its phases ask for

    def refuse_phase(self) -> None:
        """Raise if no phase may begin now: the handler is to stop, has ended, or has completed its job."""
        if self._has_ended:
            raise Misuse("ctx.phase() cannot begin now: the handler has ended; let it await whatever it has begun")
        current_block.refuse_alone("ctx.phase")
        if self._blocks is not None and self._blocks.is_completing:
            raise Misuse("ctx.phase() cannot begin now: the job is completed by a block; phases come before it")
        if (reason := self.stop_reason()) is not None:
            raise abort_error(reason, self.job.id)

    def stop_reason(self) -> AbortReason | None:
        """Tell why the handler is to stop, if it is."""
        return self.context.abort_reason or self._found

    def abort_soon(self, reason: AbortReason) -> None:
        """Have the handler stop; from any thread."""
        self._loop.call_soon_threadsafe(self.abort, reason)

    async def call_in_thread(self, call: Callable[[], Any]) -> Returned:
        """Run a plain function of an async handler; whatever happens, wait until it comes back."""
        return await self._threaded(call, lambda: None)

    @property
    def _found(self) -> AbortReason | None:
        """What a block or a phase has found of the claim, before anybody told the attempt."""
        by_block = None if self._blocks is None else self._blocks.found
        return by_block or (None if self._phases is None else self._phases.found)


def _output_of(end: BlockerEnd) -> str:
    """Give the text of a blocker's output, or raise why there is none."""
    if not end.task:
        raise ChainNotFound(end.chain_id)
    match end.closed_as:
        case Status.FAILED:
            raise ChainFailed(end.chain_id, end.chain_id)
        case Status.CANCELLED:
            raise ChainCancelled(end.chain_id, end.chain_id)
        case Status.COMPLETED if end.output is not None:
            return end.output
        case _:
            raise WaitTimeout([end.chain_id], 0)


def _caught(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Give what *call* returns or raises; a future refuses StopIteration and would never be done."""
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001 - it is raised where the attempt is judged
        return None, error


def _wrapped(layer: Middleware, context: AnyContext, inner: Next) -> Next:
    async def call() -> Any:
        return await layer(context, inner)

    return call
