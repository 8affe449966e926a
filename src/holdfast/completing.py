"""A job in the hand of whoever completes it without a worker: look at it, then finish it, or go on, in several steps.

It is the current job of its chain, locked until the transaction ends, the caller's or one of our own. Looking changes
nothing. Whoever commits first has completed the job: a worker that runs it is fenced, and its handler told at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar, overload
from uuid import UUID

from holdfast.calls import Call
from holdfast.errors import Misuse, UnknownTask
from holdfast.models import Asked, Continuation, Job
from holdfast.results import BlockingChain, Chain
from holdfast.starting import Starting, take_continuation
from holdfast.states import Status
from holdfast.store import completing, reads
from holdfast.store.completing import Current
from holdfast.store.tx import OpenTx, Runner, drive
from holdfast.tasks import Task
from holdfast.transactions import BlockingTransaction, Statements, Transaction

R = TypeVar("R")
T = TypeVar("T")

STANDSTILL_SECONDS = 30.0
"""How long a process may stand still in a block of ours before the database takes its locks away."""


class Desk:
    """What the steps of one completion share: the transaction, who asks, and what was touched."""

    def __init__(self, at: Runner, starting: Starting, asked: Asked, open_tx: OpenTx | None) -> None:
        self.at = at
        self.starting = starting
        self.asked = asked
        self.touched: list[UUID] = []
        self.statements = None if open_tx is None else Statements(open_tx, starting, lambda: None)
        self._is_closed = False

    def refuse_closed(self) -> None:
        """Raise `Misuse` after the block."""
        if self._is_closed:
            raise Misuse("the block of hf.completing() is closed; use the job inside it only")

    def close(self) -> None:
        """Refuse what comes after the block."""
        self._is_closed = True
        if self.statements is not None:
            self.statements.close()

    async def look(self, task: Task[..., Any] | None, job_id: UUID, names: Sequence[str]) -> Step:
        """Take the current job of a chain in the hand; *task* is None if it is not known here."""
        current = await self.at.run(completing.look, job_id, names)
        blockers = await self.at.read(reads.get_blockers, current.named.id)
        return Step(self, task, current, [self.starting.typed.chain(each) for each in blockers])


class Step:
    """One job in the hand, as coroutines for both colours."""

    def __init__(self, desk: Desk, task: Task[..., Any] | None, current: Current, blockers: Sequence[Any]) -> None:
        self.desk = desk
        self._task = task
        self._current = current
        self.job = desk.starting.typed.job(current.job)
        self.blockers = blockers
        self._is_done = False

    async def finish(self, output: object) -> None:
        """Complete the job, and its chain, with *output*."""
        self._refuse_done()
        if self._task is None:  # its output could not be checked
            raise UnknownTask(self.job.task)
        await self._finish(self._task.encode_output(output), None)

    async def go_on(self, call: Call[Any]) -> Step:
        """Complete the job and take the next one, of *call*, in the hand."""
        taken = take_continuation(call)
        self._refuse_done()
        successor = await self.desk.starting.continuation_of(self.desk.at, taken)
        await self._finish(None, successor)
        tasks = self.desk.starting.tasks
        task = tasks.get(taken.task) if taken.task in tasks else None
        return await self.desk.look(task, successor.start.id, [taken.task])

    async def _finish(self, output: str | None, successor: Continuation | None) -> None:
        await self.desk.at.run(completing.finish, self._current, output, successor, self.desk.asked)
        self._is_done = True
        self.desk.touched += [self.job.id] if successor is None else [self.job.id, successor.start.id]

    def _refuse_done(self) -> None:
        self.desk.refuse_closed()
        if self._is_done:
            raise Misuse("this job is finished, or continued, already; go on with the job that continue_with() gave")


class _Shared:
    """What the faces have without a colour: the job as it was when it was locked."""

    def __init__(self, step: Step) -> None:
        self._step = step

    @property
    def job(self) -> Job:
        """All that was read of it."""
        return self._step.job

    @property
    def id(self) -> UUID:
        """Its id; that of the chain is `chain_id`."""
        return self._step.job.id

    @property
    def chain_id(self) -> UUID:
        """The id of its chain."""
        return self._step.job.chain_id

    @property
    def status(self) -> Status:
        """Its status when it was locked."""
        return self._step.job.status

    @property
    def attempt(self) -> int:
        """How often it has been begun."""
        return self._step.job.attempt

    @property
    def input(self) -> Any:
        """Its arguments, by name: `job.input.order_id`."""
        return self._step.job.input

    def _statements(self) -> Statements:
        if self._step.desk.statements is None:
            raise Misuse("with connection= the transaction is your own; run your statements on that")
        return self._step.desk.statements


class Completing(_Shared, Generic[R]):
    """A job in the hand of `async with hf.completing(…) as job`."""

    @property
    def blockers(self) -> list[Chain[Any]]:
        """The chains that it waits or has waited for, in order."""
        return [Chain.copy_of(each) for each in self._step.blockers]

    @property
    def tx(self) -> Transaction:
        """The transaction, for statements of your own; without connection= only."""
        return Transaction(self._statements())

    @overload
    async def finish(self: Completing[None], output: None = None) -> None: ...
    @overload
    async def finish(self, output: R) -> None: ...
    async def finish(self, output: Any = None) -> None:
        """Complete the job, and its chain, with *output*, when the transaction commits.

        Raises `StatusConflict` if it is completed or cancelled already, and `InvalidOutput`.
        """
        await self._step.finish(output)

    async def continue_with(self, call: Call[R]) -> Completing[R]:
        """Complete the job, go on with *call*, and give the next job, which may be finished or continued in turn.

        If it is left alone, it stays for a worker.
        """
        return Completing(await self._step.go_on(call))


class BlockingCompleting(_Shared, Generic[R]):
    """A job in the hand of `with hf.sync.completing(…) as job`; public as `holdfast.sync.Completing`."""

    @property
    def blockers(self) -> list[BlockingChain[Any]]:
        """The chains that it waits or has waited for, in order."""
        return [BlockingChain.copy_of(each) for each in self._step.blockers]

    @property
    def tx(self) -> BlockingTransaction:
        """The transaction, for statements of your own; without connection= only."""
        return BlockingTransaction(self._statements())

    @overload
    def finish(self: BlockingCompleting[None], output: None = None) -> None: ...
    @overload
    def finish(self, output: R) -> None: ...
    def finish(self, output: Any = None) -> None:
        """Complete the job, and its chain, with *output*, when the transaction commits.

        Raises `StatusConflict` if it is completed or cancelled already, and `InvalidOutput`.
        """
        drive(self._step.finish(output))

    def continue_with(self, call: Call[R]) -> BlockingCompleting[R]:
        """Complete the job, go on with *call*, and give the next job, which may be finished or continued in turn.

        If it is left alone, it stays for a worker.
        """
        return BlockingCompleting(drive(self._step.go_on(call)))
