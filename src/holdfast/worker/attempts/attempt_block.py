"""The fence of a handler's blocks, its token, and what the handler sees of them; the theory stands in `blocks`."""

from __future__ import annotations

from typing import Any, TypeVar, cast, overload
from uuid import UUID

from holdfast.client.completion import BlockState, Fence
from holdfast.client.starter import take_continuation
from holdfast.client.transactions import BlockingTransaction, BlockTransaction, Transaction
from holdfast.database.tx import OpenTx, Tx
from holdfast.errors import InvalidOutput, LeaseLost, Misuse, StoreError, Unavailable, UnknownOutcome
from holdfast.outcomes import Kind, Outcome
from holdfast.store.jobs import block_ends
from holdfast.store.jobs.claiming import ClaimState
from holdfast.store.jobs.settling import Settlement
from holdfast.tasks.calls import Call, Unset
from holdfast.worker.attempts.aborts import ABORTS, AbortReason
from holdfast.worker.attempts.blocks import BlockKind, Blocks, Continued

R = TypeVar("R")

RESOLVE_SECONDS = 0.2


class TokenFence(Fence):
    """Keeps the job for one block of an attempt by its token, which decides in the statement before COMMIT."""

    async_only = "this handler is async; write `async with ctx.…() as tx:`"
    blocking_only = "this handler is a plain function; write `with ctx.…() as tx:`"

    def __init__(self, blocks: Blocks, kind: BlockKind, using: object) -> None:
        super().__init__(f"ctx.{kind}()", blocks.desk.starting, UUID(blocks.job.chain_id))
        self._blocks = blocks
        self._kind = kind
        self._using = using
        self._completes = kind is not BlockKind.PREPARE
        self._output: str | Unset = Unset.UNSET
        self._successor: Call[Any] | None = None
        self._outcome: Outcome | None = None

    def finish(self, output: object) -> None:
        """Take the output that the job completes with."""
        self._refuse_second("finish")
        self._output = self._blocks.task.encode_output(output)
        self._blocks.has_end = True

    def continue_with(self, call: Call[Any]) -> Continued:
        """Take the call that the chain goes on with."""
        taken = take_continuation(call)
        self._refuse_second("continue_with")
        self._successor = taken
        self._blocks.has_end = True
        return Continued(taken)

    def _refuse_second(self, verb: str) -> None:
        self.statements.refuse_closed()
        if self._successor is not None or self._output is not Unset.UNSET:
            raise Misuse(f"tx.{verb}(): the block has its end already; a job is finished, or continued, once")

    def admit(self) -> None:
        """Raise if it is not this block's turn, or the handler is to stop."""
        self._blocks.open(self._kind, self)

    async def open(self) -> OpenTx:
        """Open the transaction, if the job is still ours."""
        blocks = self._blocks
        if self._completes:
            blocks.refuse_fenced()
        return await blocks.desk.begin(blocks.task.policy.lease, self._look, self._using)

    async def _look(self, tx: Tx) -> None:
        """Open nothing for a job that is not ours any more."""
        hold = await block_ends.check(tx, self._blocks.job.token)
        if (reason := ABORTS.get(hold)) is not None and reason is not AbortReason.PAUSED:
            raise self._blocks.lost(reason)

    def refuse(self) -> None:
        """Raise if the handler is to stop."""
        self._blocks.refuse_aborted()

    async def write(self, open_tx: OpenTx) -> None:
        """Write what makes the block this attempt's: its completion, or a look at its row under lock."""
        blocks = self._blocks
        token = blocks.job.token
        if self._completes:
            self._outcome = await self._make_outcome(open_tx)
        try:
            if self._outcome is None:
                await open_tx.run(block_ends.lock_job, token)
                return
            blocks.refuse_fenced()
            is_plain = blocks.job.lane is None and blocks.job.chain_index == 0
            settlement = Settlement(token, self._outcome, blocks.task.policy.halts_lane, is_plain)
            await open_tx.run(block_ends.finish, settlement, blocks.desk.progress.unwritten(token))
        except LeaseLost as error:
            await self._refuse_own_doing(open_tx, error)
            raise blocks.lost(AbortReason(error.reason)) from error

    async def _make_outcome(self, open_tx: OpenTx) -> Outcome:
        if self._successor is not None:
            successor = await self.starter.continuation_of(open_tx, self._successor)
            return Outcome(Kind.COMPLETE, successor=successor)
        if not isinstance(self._output, Unset):
            return Outcome(Kind.COMPLETE, output=self._output)
        try:
            return Outcome(Kind.COMPLETE, output=self._blocks.task.encode_output(None))
        except InvalidOutput as error:
            raise InvalidOutput(
                "the block was left without an end, and None is no output of this task; "
                "write `return tx.finish(output)` or `return tx.continue_with(call)` inside it"
            ) from error

    async def _refuse_own_doing(self, open_tx: OpenTx, error: LeaseLost) -> None:
        """Raise `Misuse` if it is this very block that has ended its job: when it is undone, the job is still ours."""
        blocks = self._blocks
        if AbortReason(error.reason) in (AbortReason.CANCELLED, AbortReason.ERROR):
            return
        await open_tx.roll_back()
        if await blocks.desk.runner.read(block_ends.check, blocks.job.token) is ClaimState.HELD:
            raise Misuse(
                "this block has itself completed or deleted its own job, by a verb with connection=tx; "
                "write `return tx.finish(output)` or `return tx.continue_with(call)`"
            ) from error

    async def resolve(self, error: UnknownOutcome) -> None:
        """Find out that a COMMIT whose answer was lost has happened, or raise; as long as the lease is surely ours."""
        blocks = self._blocks
        while self._outcome is not None and blocks.desk.leases.may_complete(blocks.job.token):
            try:
                has_happened = await blocks.desk.runner.run(block_ends.is_completed_by, blocks.job, blocks.desk.worker)
            except StoreError:
                await blocks.desk.pause(RESOLVE_SECONDS)
                continue
            if has_happened:
                return
            raise Unavailable("the connection was lost with COMMIT; nothing of the block has happened") from error
        raise error

    def answered(self) -> None:
        """Note that nothing is to be settled any more, and have an abort take place that came meanwhile."""
        is_committed = self.state is BlockState.COMMITTED
        if is_committed and self._outcome is not None:
            self._blocks.completed(self._outcome)
        self._blocks.end_commit()


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
