"""One block from its opening to its end, fenced by the token: as coroutines over an open transaction, for both colours.

The theory stands in `blocks`; `block_faces` has what handlers see.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from holdfast import open_blocks
from holdfast.calls import Call, Unset
from holdfast.crashpoints import reach
from holdfast.errors import InvalidOutput, LeaseLost, Misuse, StoreError, Unavailable, UnknownOutcome
from holdfast.outcomes import Kind, Outcome
from holdfast.starting import take_continuation
from holdfast.store import block_ends, settling
from holdfast.store.jobs import Hold
from holdfast.store.settling import Settlement, pass_points
from holdfast.store.tx import Tx
from holdfast.transactions import Statements
from holdfast.worker.aborts import ABORTS, AbortReason
from holdfast.worker.blocks import BlockKind, Blocks, Continued

RESOLVE_SECONDS = 0.2


class Block:
    """One block of an attempt."""

    def __init__(self, blocks: Blocks, kind: BlockKind, using: object = None) -> None:
        self._blocks = blocks
        self._kind = kind
        self._using = using
        self._completes = kind is not BlockKind.PREPARE
        self._output: str | Unset = Unset.UNSET
        self._successor: Call[Any] | None = None

    async def enter(self) -> Statements:
        """Open the transaction, if the job is still ours."""
        blocks = self._blocks
        blocks.open(self._kind)
        try:
            await self._begin()
        except BaseException:
            blocks.rolled_back()
            raise
        self._mark = open_blocks.enter(f"ctx.{self._kind}()")
        chain_id = UUID(blocks.job.chain_id)
        self._statements = Statements(self._open_tx, blocks.desk.starting, blocks.refuse_aborted, chain_id)
        return self._statements

    async def leave(self, error: BaseException | None) -> None:
        """Commit, or roll all of it back and raise."""
        open_blocks.leave(self._mark)
        self._statements.close()
        is_over = False
        try:
            if error is None:
                await self._commit()
                is_over = True
        finally:
            if not is_over and not self._open_tx.is_committed:
                await self._open_tx.roll_back()
                self._blocks.rolled_back()

    def finish(self, output: object) -> None:
        """Take the output that the job completes with."""
        self._refuse_second("finish")
        self._output = self._blocks.task.encode_output(output)

    def continue_with(self, call: Call[Any]) -> Continued:
        """Take the call that the chain goes on with."""
        taken = take_continuation(call)
        self._refuse_second("continue_with")
        self._successor = taken
        return Continued(taken)

    def _refuse_second(self, verb: str) -> None:
        self._statements.refuse_closed()
        if self._successor is not None or self._output is not Unset.UNSET:
            raise Misuse(f"tx.{verb}(): the block has its end already; a job is finished, or continued, once")

    async def _begin(self) -> None:
        blocks = self._blocks
        if self._completes:
            blocks.refuse_fenced()
        lease = blocks.task.policy.lease
        self._open_tx = blocks.open_tx = await blocks.desk.begin(lease, self._look, self._using)

    async def _look(self, tx: Tx) -> None:
        """Open nothing for a job that is not ours any more."""
        hold = await settling.check(tx, self._blocks.job.token)
        if (reason := ABORTS.get(hold)) is not None and reason is not AbortReason.PAUSED:
            raise self._blocks.lost(reason)

    async def _commit(self) -> None:
        self._blocks.refuse_aborted()
        self._open_tx.refuse_unusable()
        if self._completes:
            reach("complete.after_user_code")
        outcome = await self._outcome() if self._completes else None
        await self._write(outcome)
        self._blocks.begin_commit()
        try:
            await self._open_tx.commit()
        except UnknownOutcome as error:
            await self._resolve(outcome, error)
            self._committed(outcome)
        finally:
            if self._open_tx.is_committed:  # also if whoever waited for it was cancelled meanwhile
                self._committed(outcome)
            self._blocks.end_commit()
        _pass_commit(outcome)

    async def _outcome(self) -> Outcome:
        if self._successor is not None:
            successor = await self._blocks.desk.starting.continuation_of(self._open_tx, self._successor)
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

    async def _write(self, outcome: Outcome | None) -> None:
        """Write what makes the block this attempt's: its completion, or a look at its row under lock."""
        blocks = self._blocks
        token = blocks.job.token
        try:
            if outcome is None:
                await self._open_tx.run(settling.hold_block, token)
                reach("prepare.before_commit")
                return
            blocks.refuse_fenced()
            is_plain = blocks.job.lane is None and blocks.job.chain_index == 0
            settlement = Settlement(token, outcome, blocks.task.policy.halts_lane, is_plain)
            await self._open_tx.run(block_ends.finish, settlement, blocks.desk.progress.unwritten(token))
        except LeaseLost as error:
            await self._refuse_own_doing(error)
            raise blocks.lost(AbortReason(error.reason)) from error

    async def _refuse_own_doing(self, error: LeaseLost) -> None:
        """Raise `Misuse` if it is this very block that has ended its job: when it is undone, the job is still ours."""
        blocks = self._blocks
        if AbortReason(error.reason) in (AbortReason.CANCELLED, AbortReason.ERROR):
            return
        await self._open_tx.roll_back()
        if await blocks.desk.runner.read(settling.check, blocks.job.token) is Hold.HELD:
            raise Misuse(
                "this block has itself completed or deleted its own job, by a verb with connection=tx; "
                "write `return tx.finish(output)` or `return tx.continue_with(call)`"
            ) from error

    async def _resolve(self, outcome: Outcome | None, error: UnknownOutcome) -> None:
        """Find out that a COMMIT whose answer was lost has happened, or raise; as long as the lease is surely ours."""
        blocks = self._blocks
        while outcome is not None and blocks.desk.leases.may_complete(blocks.job.token):
            try:
                has_happened = await blocks.desk.runner.run(block_ends.is_completed_by, blocks.job, blocks.desk.worker)
            except StoreError:
                await blocks.desk.pause(RESOLVE_SECONDS)
                continue
            if has_happened:
                return
            raise Unavailable("the connection was lost with COMMIT; nothing of the block has happened") from error
        raise error

    def _committed(self, outcome: Outcome | None) -> None:
        if outcome is None:
            self._blocks.prepared()
        else:
            self._blocks.completed(outcome)


def _pass_commit(outcome: Outcome | None) -> None:
    if outcome is None:
        reach("prepare.after_commit")
    else:
        pass_points([Kind.COMPLETE], "after_commit")
