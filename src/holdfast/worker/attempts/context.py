"""What a handler is given: its job, and what it may ask, say and open while it runs."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Literal, ParamSpec, TypeVar, cast, overload
from uuid import UUID

from holdfast import current_block
from holdfast.client.completion import AsyncBlock, BlockingBlock
from holdfast.client.starter import take_continuation
from holdfast.client.transactions import BlockingTransaction, Transaction
from holdfast.database.tx import drive
from holdfast.errors import ChainCancelled, ChainFailed, ChainNotFound, Misuse, WaitTimeout
from holdfast.models import RunningJob
from holdfast.states import Status
from holdfast.store.jobs.claiming import ProgressReport
from holdfast.store.rows import maybe_instant
from holdfast.tasks.calls import Call
from holdfast.tasks.phases import half_up, percent_of
from holdfast.tasks.signatures import AsyncHandlerContext, BlockingHandlerContext
from holdfast.tasks.task import Task
from holdfast.texts import clean_text
from holdfast.worker.attempts.aborts import Aborted, AbortReason, AbortSignal, abort_error
from holdfast.worker.attempts.blocks import (
    BlockingCompletingTransaction,
    BlockKind,
    CompletingTransaction,
    Continued,
    LocalRun,
    TokenFence,
)
from holdfast.worker.attempts.journal import BlockingJournal, Journal
from holdfast.worker.attempts.judging import running_job
from holdfast.worker.attempts.phases import Phases

P = ParamSpec("P")
R = TypeVar("R")

MESSAGE_LENGTH = 500

_MAKING = threading.Lock()


@dataclass(frozen=True, slots=True)
class Blocker:
    """A chain that a job has waited for, as it ended; *output* is None unless it completed."""

    id: UUID
    task: str
    """The task of its last job; empty if the chain has been deleted since."""
    status: Status | None
    """How it closed; None if it is open again."""
    output: Any


class _Base:
    """What both contexts have; most of it is made when a handler asks for it."""

    def __init__(self, attempt: LocalRun) -> None:
        self._attempt = attempt

    @cached_property
    def aborted(self) -> AbortSignal:
        """Set when the handler is to stop; `abort_reason` says why."""
        attempt = self._attempt
        with _MAKING:
            if attempt.signal is not None:
                return attempt.signal
            signal = attempt.signal = AbortSignal(attempt.services.loop)
        if attempt.abort_reason is not None:  # looked at after the signal can be seen: who sets the one sees the other
            signal.set()
        return signal

    @property
    def abort_reason(self) -> AbortReason | None:
        """Why the handler is to stop; None as long as it may go on."""
        return self._attempt.abort_reason

    @property
    def idempotency_key(self) -> str:
        """The same text in every attempt of this job, for services that take such a key."""
        return self._attempt.job.id

    @property
    def scheduled_at(self) -> datetime | None:
        """The time of the schedule that started this job, which may be earlier than now; None if none has."""
        return maybe_instant(self._attempt.job.scheduled_at)

    @property
    def tenant(self) -> str | None:
        """The name of the tenant whose job this is; None for a job of the control place, or where there are none."""
        return self._attempt.services.starting.tenant.name

    @cached_property
    def state(self) -> dict[str, Any]:
        """A place for what middleware and handler hand to each other in this attempt; it is not stored."""
        return {}

    @cached_property
    def job(self) -> RunningJob:
        """The job as it was claimed."""
        return running_job(self._attempt.job, self._attempt.task)

    @cached_property
    def blockers(self) -> tuple[Blocker, ...]:
        """The chains that the job has waited for, in the order in which they were given, with their outputs."""
        decoder = self._attempt.services.starting.decoder
        return tuple(
            Blocker(each.chain_id, each.task, each.closed_as, decoder.output(each.task, each.output))
            for each in self._attempt.job.blockers
        )

    def blocker(self, task: Task[..., R], index: int = 0) -> R:
        """Give the output of the *index*-th chain that the job has waited for, which *task* began.

        Raises `ChainFailed` or `ChainCancelled` if it ended so, under `on_blocker_failure="ignore"`.
        """
        ends = self._attempt.job.blockers
        if not 0 <= index < len(ends):
            raise Misuse(f"the job has {len(ends)} blockers, so there is no blocker {index}; the first one is 0")
        end = ends[index]
        if not end.task:
            raise ChainNotFound(end.chain_id)
        match end.closed_as:
            case Status.FAILED:
                raise ChainFailed(end.chain_id, end.chain_id)
            case Status.CANCELLED:
                raise ChainCancelled(end.chain_id, end.chain_id)
            case Status.COMPLETED if end.output is not None:
                return task.decode_output(end.output)
            case _:
                raise WaitTimeout([end.chain_id], 0)

    def continue_with(self, call: Call[R]) -> R:
        """Complete the job without an output, and go on with *call*: `return ctx.continue_with(ship(order_id=7))`.

        What it gives stands for the chain's output and is only to be returned. The next job has queue, priority, tags,
        webhook and lane of this one, unless its task or *call* says otherwise. In a block it is `tx.continue_with`.
        """
        attempt, taken = self._attempt, take_continuation(call)
        if attempt.block is not None and attempt.block.is_completing:
            raise Misuse("a block completes this job; write `return tx.continue_with(call)` inside the block")
        if attempt.continued is not None:
            raise Misuse("ctx.continue_with() was called twice; a job has one successor")
        attempt.continued = Continued(taken)
        return cast("R", attempt.continued)

    def raise_if_aborted(self) -> None:
        """Leave the handler, if it is to stop."""
        if (reason := self.abort_reason) is not None:
            raise Aborted(reason)

    def fail(self, reason: str) -> None:
        """Fail the job for good and stop its handler; from beside it too, such as a task that watches a budget."""
        self._attempt.failed = reason
        self._attempt.abort_soon(AbortReason.FAILED)

    @cached_property
    def _phases(self) -> Phases:
        """The phases of this attempt; those of a task that declares none refuse whatever they are asked for."""
        return Phases(self._attempt)

    def phase_result(self, name: str) -> Any:
        """Give what the phase *name* gave, which has finished, in this attempt or an earlier one.

        It is read by the type of the function that `ctx.phase` was given for it in this attempt, else as plain JSON.
        """
        return self._phases.result(name)

    def phase_results(self) -> dict[str, Any]:
        """Give what the phases that have finished gave, by name, in their order."""
        return self._phases.results()

    def _fence(self, kind: BlockKind, using: object) -> TokenFence:
        return TokenFence(self._attempt, kind, using)

    def _report(self, percent: float, message: str | None, total: float | None, flush: bool) -> Future[bool] | None:
        attempt, percent = self._attempt, percent_of(percent, total)
        text = None if message is None else clean_text(str(message), MESSAGE_LENGTH)
        if attempt.task.policy.phases:
            report = self._phases.report(percent, text)
        else:
            report = ProgressReport(attempt.job.token, half_up(percent), text)
        return attempt.services.progress.take(report, flush, self._is_over)

    def _is_over(self) -> bool:
        """Tell whether nothing more of the attempt is written: it has ended, or a block has completed its job."""
        attempt = self._attempt
        return attempt.has_ended or attempt.is_completed

    async def _flush(self, written: Future[bool]) -> None:
        """Wait until a report is written, or raise why nobody will write it."""
        current_block.refuse_flush()
        reason = self.abort_reason
        if reason is None and await self._attempt.services.wait(written):
            return
        reason = reason or self.abort_reason
        if reason is None:
            raise Misuse("the job has ended and takes no more progress; report progress before the handler returns")
        raise abort_error(reason, self._attempt.job.id)


@dataclass(frozen=True, slots=True)
class _Flush:
    """A report that is to be written at once; await it to know that it is."""

    context: _Base
    written: Future[bool]

    def __await__(self) -> Generator[Any, Any, None]:
        return self.context._flush(self.written).__await__()


class Context(_Base, AsyncHandlerContext):
    """The first parameter of an `async def` handler that wants one.

    Annotate it, and leave it out when you call the task: `async def charge(ctx: Context, order_id: int) -> str`.
    """

    @cached_property
    def journal(self) -> Journal:
        """The journal of the job: entries that it appends, in order, and that outlive its attempts."""
        return Journal(self._attempt.make_journal())

    @overload
    async def phase(
        self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def phase(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def phase(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run `function(*args)` as the phase *name*, which the task declares, and store what it returns.

        A phase that has finished is never run again: what was stored is given, in every later attempt. Phases run one
        after the other, in the order of `phases=`. A plain *function* runs in a thread. What it returns is stored as
        JSON, by its annotation, and given as it is read back. Raises `Misuse` out of order, `InvalidOutput` for what
        cannot be stored, and, if the handler is to stop, what `raise_if_aborted` does, before it begins.
        """
        return await self._phases.run(name, function, args, kwargs)

    @overload
    def progress(
        self,
        percent: float,
        message: str | None = None,
        *,
        total: float | None = None,
        flush: Literal[False] = False,
    ) -> None: ...
    @overload
    def progress(
        self, percent: float, message: str | None = None, *, total: float | None = None, flush: Literal[True]
    ) -> Awaitable[None]: ...
    def progress(
        self, percent: float, message: str | None = None, *, total: float | None = None, flush: bool = False
    ) -> Awaitable[None] | None:
        """Say how far the job is, from 0 to 100; with *total*, how much of that is done: `ctx.progress(3, total=7)`.

        In a phase it is of the phase, and the job's follows from it. It is stored and seen by everybody who watches; it
        returns at once and may be called as often as you like: the first call is written at once, later ones at most
        four times a second, and the last one with the end of the phase or the job. *flush* has this one written without
        waiting; `await ctx.progress(50, flush=True)` returns when it is durable. Raises `InvalidInput` for what is no
        number; one below 0 or above 100 is taken for these.
        """
        written = self._report(percent, message, total, flush)
        return None if written is None else _Flush(self, written)

    def prepare(self, *, using: object = None) -> AsyncBlock[Transaction]:
        """Open a transaction for what comes before the work; it commits when the block is left, and the job goes on.

        At most once, and before `complete`. It raises, and rolls back, if the job is no longer this attempt's. *using*
        has the transaction be one of your own library's, as `transactions=` does for all blocks: an engine or a
        sessionmaker of SQLAlchemy, a Django alias, a provider; `tx.session` is it.
        """
        return AsyncBlock(self._fence("prepare", using), lambda fence: Transaction(fence.statements))

    def complete(self, *, using: object = None) -> AsyncBlock[CompletingTransaction]:
        """Open the transaction in which your results are written and the job is completed: one commit, or nothing.

        End it by `return tx.finish(output)` or `return tx.continue_with(call)`. It raises, and all of it rolls back, if
        the job was lost, cancelled, completed or deleted meanwhile, or if one of your statements has failed. *using*
        as in `prepare`.
        """
        return AsyncBlock(self._fence("complete", using), CompletingTransaction)

    def atomic(self, *, using: object = None) -> AsyncBlock[CompletingTransaction]:
        """Open one transaction for all that the handler does: `prepare` and `complete` in one; *using* as there."""
        return AsyncBlock(self._fence("atomic", using), CompletingTransaction)


class BlockingContext(_Base, BlockingHandlerContext):
    """The first parameter of a plain `def` handler that wants one; public as `holdfast.sync.Context`."""

    @cached_property
    def journal(self) -> BlockingJournal:
        """The journal of the job: entries that it appends, in order, and that outlive its attempts."""
        return BlockingJournal(self._attempt.make_journal())

    def phase(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `function(*args)` as the phase *name*, which the task declares, and store what it returns.

        A phase that has finished is never run again: what was stored is given, in every later attempt. Phases run one
        after the other, in the order of `phases=`. What it returns is stored as JSON, by its annotation, and given as
        it is read back. Raises `Misuse` out of order, `InvalidOutput` for what cannot be stored, and, if the handler is
        to stop, what `raise_if_aborted` does, before it begins.
        """
        return cast("R", self._phases.run_blocking(name, function, args, kwargs))

    def progress(
        self, percent: float, message: str | None = None, *, total: float | None = None, flush: bool = False
    ) -> None:
        """Say how far the job is, from 0 to 100; with *total*, how much of that is done: `ctx.progress(3, total=7)`.

        In a phase it is of the phase, and the job's follows from it. It is stored and seen by everybody who watches; it
        returns at once and may be called as often as you like: the first call is written at once, later ones at most
        four times a second, and the last one with the end of the phase or the job. With *flush* it returns when it is
        durable. Raises `InvalidInput` for what is no number; one below 0 or above 100 is taken for these.
        """
        written = self._report(percent, message, total, flush)
        if written is not None:
            drive(self._flush(written))

    def prepare(self, *, using: object = None) -> BlockingBlock[BlockingTransaction]:
        """Open a transaction for what comes before the work; it commits when the block is left, and the job goes on.

        At most once, and before `complete`. It raises, and rolls back, if the job is no longer this attempt's. *using*
        has the transaction be one of your own library's, as `transactions=` does for all blocks: an engine or a
        sessionmaker of SQLAlchemy, a Django alias, a provider; `tx.session` is it.
        """
        return BlockingBlock(self._fence("prepare", using), lambda fence: BlockingTransaction(fence.statements))

    def complete(self, *, using: object = None) -> BlockingBlock[BlockingCompletingTransaction]:
        """Open the transaction in which your results are written and the job is completed: one commit, or nothing.

        End it by `return tx.finish(output)` or `return tx.continue_with(call)`. It raises, and all of it rolls back, if
        the job was lost, cancelled, completed or deleted meanwhile, or if one of your statements has failed. *using*
        as in `prepare`.
        """
        return BlockingBlock(self._fence("complete", using), BlockingCompletingTransaction)

    def atomic(self, *, using: object = None) -> BlockingBlock[BlockingCompletingTransaction]:
        """Open one transaction for all that the handler does: `prepare` and `complete` in one; *using* as there."""
        return BlockingBlock(self._fence("atomic", using), BlockingCompletingTransaction)
