"""A job in the hand of whoever completes it without a worker: look at it, then finish it, or go on, in several steps.

It is the current job of its chain, locked until the transaction ends, the caller's or one of our own. Looking changes
nothing. Whoever commits first has completed the job: a worker that runs it is fenced, and its handler told at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Self, TypeVar, overload
from uuid import UUID

from holdfast import current_block
from holdfast.client.chain_handle import BlockingChain, Chain, Handles
from holdfast.client.completion import BlockState, Fence
from holdfast.client.starter import Starter, take_continuation
from holdfast.client.transactions import BlockingTransaction, Transaction
from holdfast.database.borrowed import Borrowed
from holdfast.database.tx import Last, OpenTx, Runner, drive
from holdfast.errors import Misuse, UnknownTask
from holdfast.models import Asked, Continuation, Job
from holdfast.questions import PEOPLE
from holdfast.states import Status
from holdfast.store import reads
from holdfast.store.jobs import completing
from holdfast.store.jobs.completing import Current
from holdfast.tasks.calls import Call
from holdfast.tasks.task import Task, require_task

R = TypeVar("R")

STANDSTILL_SECONDS = 30.0
"""How long a process may stand still in a block of ours before the database takes its locks away."""


class RowLockFence(Fence):
    """Keeps the current job of a chain for one block by a lock on its row, which the end of the transaction releases.

    *begin* opens a transaction, ours or the one that *using* means; *borrow* gives the caller's instead, if there is
    one.
    """

    async_only = "hf is async; write `async with hf.completing(…)`, or `with hf.sync.completing(…)`"
    blocking_only = "hf.sync is blocking; write `with hf.sync.completing(…)`, or `async with hf.completing(…)`"

    def __init__(
        self,
        task: Task[..., Any],
        job_id: UUID,
        *,
        starter: Starter,
        asked: Asked,
        begin: Callable[[float, None, object], Awaitable[OpenTx]],
        borrow: Callable[[], Awaitable[Runner]] | None,
        using: object,
    ) -> None:
        super().__init__("hf.completing()", starter)
        self._task = task
        self._job_id = job_id
        self._asked = asked
        self._begin = begin
        self._borrow = borrow
        self._using = using
        self._held = ExitStack()
        self._touched: list[UUID] = []
        self.runner: Runner
        """The transaction, ours or the caller's."""
        self.locked: tuple[Task[..., Any] | None, Current, Job, Sequence[Any]]
        """The job that was locked last, with its task, if that is known here, and its blockers."""

    def admit(self) -> None:
        """Raise if the block was entered before, or what it was given does not fit together."""
        if self.state is not BlockState.NEW:
            raise Misuse("this block was entered already; write hf.completing(…) again")
        require_task(self._task, "hf.completing")
        if self._borrow is not None and self._using is not None:
            raise Misuse("give connection= (your open transaction) or using= (Holdfast opens one), not both")

    async def open(self) -> OpenTx | None:
        """Lock the job in a transaction that we open, or in the caller's; one that a library opens lasts as the block.

        The look is no part of the opening, as that of a token is: it may wait for the lock.
        """
        open_tx = None
        if self._borrow is not None:
            borrowed = await self._borrow()
            self.runner = self._held.enter_context(borrowed.held()) if isinstance(borrowed, Borrowed) else borrowed
        else:
            current_block.refuse_write("hf.completing")
            if self._using is None:
                self.starter.require_connection()
            self.runner = open_tx = await self._begin(STANDSTILL_SECONDS, None, self._using)
        try:
            await self.look(self._task, self._job_id, self._task.names)
        except BaseException as error:
            self.let_go(error)
            if open_tx is not None:
                await open_tx.roll_back()
            raise
        return open_tx

    async def look(self, task: Task[..., Any] | None, job_id: UUID, names: Sequence[str]) -> None:
        """Lock the current job of a chain, which has one of *names*."""
        current = await self.runner.run(completing.lock_of_task, job_id, names)
        blockers = await self.runner.read(reads.get_blockers, current.job.id)
        decoder = self.starter.decoder
        self.locked = task, current, decoder.job(current.job), [decoder.chain(each) for each in blockers]

    async def finish(self, current: Current, output: str | None, successor: Continuation | None) -> None:
        """Complete a job that is locked, with its *output*, a JSON text, or with the job that continues its chain."""
        await self.runner.run(completing.finish, current, output, successor, self._asked)
        self._touched += [current.job.id] if successor is None else [current.job.id, successor.start.id]

    async def end(self, open_tx: OpenTx) -> Last | None:
        """Do what the completions have left to admission: whoever has the lock needs no other guard."""
        return partial(completing.follow, job_ids=self._touched) if self._touched else None

    def let_go(self, error: BaseException | None) -> None:
        """Leave a caller's transaction to the caller; end one that a library has opened for the block."""
        self._held.__exit__(None if error is None else type(error), error, None)


class _Shared:
    """What the faces have without a colour: the job as it was when it was locked."""

    def __init__(self, fence: RowLockFence) -> None:
        self._fence = fence
        self._task, self._current, self._job, self._blockers = fence.locked
        self._is_done = False

    async def _finish(self, output: object) -> None:
        self._refuse_done()
        if self._task is None:  # its output could not be checked
            raise UnknownTask(self._job.task)
        await self._complete(self._task.encode_output(output), None)

    async def _go_on(self, call: Call[Any]) -> Self:
        taken = take_continuation(call)
        self._refuse_done()
        starter = self._fence.starter
        successor = await starter.continuation_of(self._fence.runner, taken)
        if self._asks_a_person:  # what follows the answer runs where its own task says, not among the questions
            successor = replace(successor, inherits=successor.inherits - {"queue"})
        await self._complete(None, successor)
        task = starter.tasks.get(taken.task) if taken.task in starter.tasks else None
        await self._fence.look(task, successor.start.id, [taken.task])
        return type(self)(self._fence)

    @property
    def _asks_a_person(self) -> bool:
        is_known_to = self._task is not None and self._task.policy.asks is not None
        return is_known_to or self._job.queue == PEOPLE

    async def _complete(self, output: str | None, successor: Continuation | None) -> None:
        await self._fence.finish(self._current, output, successor)
        self._is_done = True

    def _refuse_done(self) -> None:
        if not self._fence.mark.is_open:
            raise Misuse("the block of hf.completing() is closed; use the job inside it only")
        if self._is_done:
            raise Misuse("this job is finished, or continued, already; go on with the job that continue_with() gave")

    @property
    def job(self) -> Job:
        """All that was read of it."""
        return self._job

    @property
    def id(self) -> UUID:
        """Its id; that of the chain is `chain_id`."""
        return self._job.id

    @property
    def chain_id(self) -> UUID:
        """The id of its chain."""
        return self._job.chain_id

    @property
    def status(self) -> Status:
        """Its status when it was locked."""
        return self._job.status

    @property
    def attempt(self) -> int:
        """How often it has been begun."""
        return self._job.attempt

    @property
    def input(self) -> Any:
        """Its arguments, by name: `job.input.order_id`."""
        return self._job.input


class Completing(_Shared, Generic[R]):
    """The job inside `async with hf.completing(…) as job`: read it, then finish or continue it."""

    @property
    def blockers(self) -> list[Chain[Any]]:
        """The chains that it waits or has waited for, in order."""
        return list(map(Handles(Chain), self._blockers))

    @property
    def tx(self) -> Transaction:
        """The transaction, for statements of your own; without connection= only."""
        return Transaction(self._fence.statements)

    @overload
    async def finish(self: Completing[None], output: None = None) -> None: ...
    @overload
    async def finish(self, output: R) -> None: ...
    async def finish(self, output: Any = None) -> None:
        """Complete the job, and its chain, with *output*, when the transaction commits.

        Raises `StatusConflict` if it is completed or cancelled already, and `InvalidOutput`.
        """
        await self._finish(output)

    async def continue_with(self, call: Call[R]) -> Completing[R]:
        """Complete the job, go on with *call*, and give the next job, which may be finished or continued in turn.

        If it is left alone, it stays for a worker.
        """
        return await self._go_on(call)


class BlockingCompleting(_Shared, Generic[R]):
    """A job in the hand of `with hf.sync.completing(…) as job`; public as `holdfast.sync.Completing`."""

    @property
    def blockers(self) -> list[BlockingChain[Any]]:
        """The chains that it waits or has waited for, in order."""
        return list(map(Handles(BlockingChain), self._blockers))

    @property
    def tx(self) -> BlockingTransaction:
        """The transaction, for statements of your own; without connection= only."""
        return BlockingTransaction(self._fence.statements)

    @overload
    def finish(self: BlockingCompleting[None], output: None = None) -> None: ...
    @overload
    def finish(self, output: R) -> None: ...
    def finish(self, output: Any = None) -> None:
        """Complete the job, and its chain, with *output*, when the transaction commits.

        Raises `StatusConflict` if it is completed or cancelled already, and `InvalidOutput`.
        """
        drive(self._finish(output))

    def continue_with(self, call: Call[R]) -> BlockingCompleting[R]:
        """Complete the job, go on with *call*, and give the next job, which may be finished or continued in turn.

        If it is left alone, it stays for a worker.
        """
        return drive(self._go_on(call))
