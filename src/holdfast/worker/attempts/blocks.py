"""Blocks: transactions, ours or a provider's, that a handler opens around its own statements, fenced by its token.

`prepare` reads and writes before the work and commits by itself. `complete` writes the results, the output or the
successor, and the completion in one commit; `atomic` is both in one. Each is opened at most once, in this order. The
token is looked at without a lock when a block opens, and decides in the guarded UPDATE just before COMMIT, so that
while user code runs neither a renewal nor a cancel waits for the job's row.

Whatever goes wrong the block raises, and all of it rolls back: an error of the user's, a lost lease, a cancel, a
statement that failed and was swallowed. After its commit the attempt has nothing left to settle. Only the answer to
COMMIT can be lost: then the row is locked, which waits for whatever became of it, and read.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar, cast, overload
from uuid import UUID

from holdfast.client.completion import BlockState, Fence
from holdfast.client.starter import take_continuation
from holdfast.client.transactions import BlockingTransaction, BlockTransaction, Transaction
from holdfast.database.tx import Last, OpenTx, Tx
from holdfast.errors import InvalidOutput, LeaseLost, Misuse, StoreError, Unavailable, UnknownOutcome
from holdfast.outcomes import Kind, Outcome
from holdfast.store.jobs import block_ends
from holdfast.store.jobs.claiming import ClaimState
from holdfast.store.jobs.settling import Settlement
from holdfast.tasks.calls import Call
from holdfast.tasks.task import Task
from holdfast.worker.attempts.aborts import ABORTS, AbortReason, AbortSignal, abort_error
from holdfast.worker.attempts.active import Run
from holdfast.worker.attempts.journal import AttemptJournal
from holdfast.worker.attempts.services import AttemptServices

R = TypeVar("R")


BlockKind: TypeAlias = Literal["prepare", "complete", "atomic"]

REFUSALS = {
    (True, False): "prepare() is still open: leave that block first",
    (True, True): "prepare() was used, and can be used only once; the next block must be complete()",
    (False, False): "the block that completes the job is still open, and nothing can be opened inside it",
    (False, True): "the job is completed; use no block after complete()",
}
"""Why no other block can be opened behind the last one, by whether that was `prepare()` and has committed."""

RESOLVE_SECONDS = 0.2

_MAKING = threading.Lock()


@dataclass(frozen=True, slots=True)
class Continued:
    """What `continue_with` gives at run time: the handler returns it, and the chain goes on with its call."""

    call: Call[Any]


class LocalRun(Run):
    """An attempt in this process, as its context, its blocks and its phases see it."""

    task: Task[..., Any]
    services: AttemptServices
    has_ended = False
    signal: AbortSignal | None = None
    """Is set when the handler is to stop; made when somebody asks for it."""
    found: AbortReason | None = None
    """What a block or a phase has found of the claim, before anybody told the attempt."""
    deferred: AbortReason | None = None
    """Why the handler is to stop once the answer to a COMMIT is here."""
    block: TokenFence | None = None
    """The block that was opened last."""
    active_phase: str | None = None
    commits = 0
    """How many commits of phases and entries of its journal are just under way, and an abort is to wait for them."""
    journal: AttemptJournal | None = None
    """Made when somebody asks for it."""
    continued: Continued | None = None
    failed: str | None = None
    """What the handler has failed the job with, for good."""

    def make_journal(self) -> AttemptJournal:
        """Give the journal of this attempt; most never ask for it."""
        with _MAKING:  # several threads of the handler may ask at once
            self.journal = self.journal or AttemptJournal(self)
        return self.journal

    def find_journal(self) -> AttemptJournal | None:
        """Give the journal, if anybody has asked for it; whoever first asks from now on sees the block that asks."""
        with _MAKING:
            return self.journal

    @property
    def has_open_block(self) -> bool:
        """Tell whether a block is open, or is about to be."""
        return self.block is not None and self.block.state in (BlockState.OPEN, BlockState.COMMITTING)

    @property
    def is_completed(self) -> bool:
        return self.block is not None and self.block.is_completed

    def stop_reason(self) -> AbortReason | None:
        return self.abort_reason or self.found

    def lost(self, reason: AbortReason) -> Exception:
        """Remember why the attempt is over, and make the error that says so."""
        self.found = self.found or reason
        return abort_error(reason, self.job.id)

    def abort_soon(self, reason: AbortReason) -> None:
        """Have the handler stop; from any thread."""
        self.services.loop.call_soon_threadsafe(self.abort, reason)

    async def committing(self, writing: Coroutine[Any, Any, R], on_cancel: Callable[[], None]) -> R:
        """Wait for the answer to a commit, also if an async handler is cancelled meanwhile; the answer would be lost.

        *On_cancel* is called then. An abort waits for the answer, too, but not a second one.
        """
        if not self.task.signature.is_async:
            return await writing
        self.commits += 1
        answer = asyncio.create_task(writing)
        try:
            while not answer.done():
                try:
                    await asyncio.wait([answer])
                except asyncio.CancelledError:
                    on_cancel()
                    if self.deferred is not None:  # the worker has waited long enough
                        answer.cancel()
            return answer.result()
        finally:
            self.commits -= 1
            self.end_commit()

    def end_commit(self) -> None:
        """Have an abort take place that came while COMMIT was under way; from any thread."""
        deferred, self.deferred = self.deferred, None
        if deferred is not None:
            self.abort_soon(deferred)


class TokenFence(Fence):
    """Keeps the job for one block of an attempt by its token, which decides in the statement before COMMIT."""

    async_only = "this handler is async; write `async with ctx.…() as tx:`"
    blocking_only = "this handler is a plain function; write `with ctx.…() as tx:`"

    def __init__(self, attempt: LocalRun, kind: BlockKind, using: object) -> None:
        super().__init__(f"ctx.{kind}()", attempt.services.starting, UUID(attempt.job.chain_id))
        self._attempt = attempt
        self._services = attempt.services
        self._token = attempt.job.token
        self._kind = kind
        self._using = using
        self._completes = kind != "prepare"
        self._end: str | Call[Any] | None = None
        """What the job is to end with, once that is said: an output, or the call that the chain goes on with."""
        self.outcome: Outcome | None = None
        """What the job is completed with, from just before COMMIT on."""

    @property
    def is_completed(self) -> bool:
        return self._completes and self.state is BlockState.COMMITTED

    @property
    def is_completing(self) -> bool:
        """Tell whether the job is in its hand, to be completed, or has been."""
        return self._completes and self.state is not BlockState.ROLLED_BACK

    @property
    def owes_the_end(self) -> bool:
        """Tell whether it was to complete the job and has not: it was rolled back, or was never left."""
        return (self.is_completing or self._end is not None) and not self.is_completed

    def finish(self, output: object) -> None:
        self._refuse_second("finish")
        self._end = self._attempt.task.encode_output(output)

    def continue_with(self, call: Call[Any]) -> Continued:
        taken = take_continuation(call)
        self._refuse_second("continue_with")
        self._end = taken
        return Continued(taken)

    def _refuse_second(self, verb: str) -> None:
        self.statements.refuse_closed()
        if self._end is not None:
            raise Misuse(f"tx.{verb}() was called after the block had ended the job; finish or continue a job once")

    def admit(self) -> None:
        """Raise if it is not this block's turn, or the handler is to stop."""
        if (refusal := self._refusal()) is not None:
            raise Misuse(f"{self._kind}() cannot be opened now: {refusal}")
        self.refuse()
        self._attempt.block = self

    def _refusal(self) -> str | None:
        attempt, last = self._attempt, self._attempt.block
        if attempt.has_ended:
            return "the handler has ended; let it await whatever it has begun"
        if last is not None:
            is_prepare, is_committed = not last._completes, last.state is BlockState.COMMITTED
            if last.state is BlockState.ROLLED_BACK:
                return "a block of this attempt was rolled back: let its error pass, and the next attempt begins anew"
            if not (is_prepare and is_committed and self._kind == "complete"):
                return REFUSALS[is_prepare, is_committed]
        if self._completes and attempt.active_phase is not None:
            return f"phase {attempt.active_phase!r} is under way; complete the job after it"
        return None

    async def open(self) -> OpenTx:
        if self._completes:
            self._refuse_fenced()
        if (journal := self._attempt.find_journal()) is not None:
            await journal.begin_block()
        try:
            return await self._services.begin(self._attempt.task.policy.lease, self._look, self._using)
        except BaseException:
            if journal is not None:
                journal.end_block(is_committed=False)
            raise

    async def _look(self, tx: Tx) -> None:
        """Open nothing for a job that is not ours any more."""
        hold = await block_ends.check(tx, self._token)
        if (reason := ABORTS.get(hold)) is not None and reason is not AbortReason.PAUSED:
            raise self._attempt.lost(reason)

    def _refuse_fenced(self) -> None:
        """Raise if our lease may be over, by our own clock: nothing may be completed then."""
        if not self._services.leases.may_complete(self._token):
            raise self._attempt.lost(AbortReason.ERROR)

    def refuse(self) -> None:
        """Raise if the handler is to stop; a pause lets it come to its end, if it does."""
        reason = self._attempt.stop_reason()
        if reason is not None and reason is not AbortReason.PAUSED:
            raise abort_error(reason, self._attempt.job.id)

    async def end(self, open_tx: OpenTx) -> Last:
        """Give what makes the block this attempt's: its completion, or a look at its row under lock."""
        told = None if (journal := self._attempt.journal) is None else journal.told_in_block
        if not self._completes:
            return partial(block_ends.lock_job, token=self._token, told=told)
        outcome = await self._make_outcome(open_tx)
        self._refuse_fenced()
        self.outcome = outcome
        job = self._attempt.job
        is_plain = job.lane is None and job.chain_index == 0
        settlement = Settlement(self._token, outcome, self._attempt.task.policy.halts_lane, is_plain)
        reports = self._services.progress.unwritten(self._token)
        return partial(block_ends.finish, settlement=settlement, reports=reports, told=told)

    async def _make_outcome(self, open_tx: OpenTx) -> Outcome:
        if isinstance(self._end, Call):
            return Outcome(Kind.COMPLETE, successor=await self.starter.continuation_of(open_tx, self._end))
        if self._end is not None:
            return Outcome(Kind.COMPLETE, output=self._end)
        try:
            return Outcome(Kind.COMPLETE, output=self._attempt.task.encode_output(None))
        except InvalidOutput as error:
            raise InvalidOutput(
                "the block was left without an end, and None is no output of this task; "
                "write `return tx.finish(output)` or `return tx.continue_with(call)` inside it"
            ) from error

    async def explain(self, error: LeaseLost | Unavailable) -> None:
        """Say why the attempt is over; `Misuse` if this very block has ended its job, which is ours again by now."""
        if isinstance(error, Unavailable):
            # who stood still for longer than its lease has also overrun the time that the database had to answer
            if not self._services.leases.may_complete(self._token):
                raise self._attempt.lost(AbortReason.ERROR) from error
            return
        reason = AbortReason(error.reason)
        if (
            reason not in (AbortReason.CANCELLED, AbortReason.ERROR)
            and await self._services.runner.read(block_ends.check, self._token) is ClaimState.HELD
        ):
            raise Misuse(
                "this block completed or deleted its own job, with a call that has connection=tx; "
                "write `return tx.finish(output)` or `return tx.continue_with(call)`"
            ) from error
        raise self._attempt.lost(reason) from error

    async def resolve(self, error: UnknownOutcome) -> None:
        """Find out that a COMMIT whose answer was lost has happened, or raise; as long as the lease is surely ours."""
        services = self._services
        while self.outcome is not None and services.leases.may_complete(self._token):
            try:
                has_happened = await services.runner.run(block_ends.is_completed_by, self._attempt.job, services.worker)
            except StoreError:
                await services.pause(RESOLVE_SECONDS)
                continue
            if has_happened:
                return
            raise Unavailable(
                "the connection was lost during COMMIT, and nothing of the block was saved; try again"
            ) from error
        raise error

    def answered(self) -> None:
        """Note that nothing is to be settled any more, and have an abort take place that came meanwhile."""
        if self.state is BlockState.COMMITTED and self._attempt.journal is not None:
            self._attempt.journal.end_block(is_committed=True)
        if self.is_completed:
            self._services.leases.drop(self._token)
            self._services.progress.forget([self._token])
        self._attempt.end_commit()

    async def roll_back(self, open_tx: OpenTx) -> None:
        """Undo all of the block, entries of the journal included."""
        await super().roll_back(open_tx)
        if self._attempt.journal is not None:
            self._attempt.journal.end_block(is_committed=False)

    async def append(self, open_tx: OpenTx, kind: object, body: object) -> None:
        """Append an entry to the job's journal that commits with the block."""
        await self._attempt.make_journal().append_in_block(open_tx, kind, body)

    def undo(self) -> Callable[[], Coroutine[Any, Any, None]] | None:
        """Give what rolls it back, if it has been opened and never left."""
        if self.open_tx is None or self.state in (BlockState.COMMITTED, BlockState.ROLLED_BACK):
            return None
        return partial(self.roll_back, self.open_tx)


class _Ending(BlockTransaction):
    """What ends the job of a block, in either colour: said inside it, done by its commit."""

    def __init__(self, fence: TokenFence) -> None:
        super().__init__(fence.statements)
        self._fence = fence

    @overload
    def finish(self, output: None = None) -> None: ...
    @overload
    def finish(self, output: R) -> R: ...
    def finish(self, output: object = None) -> object:
        """Complete the job with *output* when the block commits, and give it back: `return tx.finish(output)`."""
        self._fence.finish(output)
        return output

    def continue_with(self, call: Call[R]) -> R:
        """Complete the job when the block commits, and go on with *call*: `return tx.continue_with(ship(order_id=7))`.

        What it gives stands for the chain's output and is only to be returned. The next job has queue, priority, tags,
        webhook and lane of this one, unless its task or *call* says otherwise.
        """
        return cast("R", self._fence.continue_with(call))


class CompletingTransaction(_Ending, Transaction):
    """The transaction of `async with ctx.complete()` and `ctx.atomic()`: your statements, and the end of the job."""


class BlockingCompletingTransaction(_Ending, BlockingTransaction):
    """The transaction of `with ctx.complete()` and `ctx.atomic()`; public as `holdfast.sync.CompletingTransaction`."""
