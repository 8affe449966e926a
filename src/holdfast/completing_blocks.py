"""The block around a job in the hand: opens the transaction, or borrows the caller's, and ends what it has opened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from holdfast import open_blocks
from holdfast.completing import STANDSTILL_SECONDS, BlockingCompleting, Completing, Desk, Step
from holdfast.crashpoints import reach
from holdfast.errors import Misuse
from holdfast.models import Asked
from holdfast.starting import Starting
from holdfast.store import completing
from holdfast.store.borrowed import Borrowed
from holdfast.store.tx import OpenTx, Runner, drive
from holdfast.tasks import Task, require_task

R = TypeVar("R")


class Block:
    """One completion without a worker, from its opening to its end, as coroutines for both colours.

    *begin* opens a transaction, ours or the one that *using* means; *borrow* gives the caller's instead, if there is
    one.
    """

    def __init__(
        self,
        begin: Callable[[float, None, object], Awaitable[OpenTx]],
        borrow: Callable[[], Awaitable[Runner]] | None,
        using: object,
        starting: Starting,
        asked: Asked,
    ) -> None:
        self._begin = begin
        self._borrow = borrow
        self._using = using
        self._starting = starting
        self._asked = asked
        self._open_tx: OpenTx | None = None
        self._held = ExitStack()
        self._is_entered = False

    async def enter(self, task: Task[..., Any], job_id: UUID) -> Step:
        """Open the transaction, and take the job in the hand."""
        if self._is_entered:
            raise Misuse("this block was entered already; write hf.completing(…) again")
        require_task(task, "hf.completing")
        if self._borrow is not None and self._using is not None:
            raise Misuse("connection= is a transaction that you have opened, using= one that we are to open; give one")
        self._is_entered = True
        if self._borrow is not None:
            return await self._enter_borrowed(await self._borrow(), task, job_id)
        open_blocks.refuse_write("hf.completing")
        open_tx = self._open_tx = await self._begin(STANDSTILL_SECONDS, None, self._using)
        self._desk = Desk(open_tx, self._starting, self._asked, open_tx)
        try:
            step = await self._desk.look(task, job_id, task.names)
        except BaseException:
            await open_tx.roll_back()
            raise
        self._mark = open_blocks.enter("hf.completing()")
        return step

    async def _enter_borrowed(self, at: Runner, task: Task[..., Any], job_id: UUID) -> Step:
        """Take the job in the hand in the caller's transaction; one that the library opens is open for the block."""
        if isinstance(at, Borrowed):
            at = self._held.enter_context(at.held())
        self._desk = Desk(at, self._starting, self._asked, None)
        try:
            return await self._desk.look(task, job_id, task.names)
        except BaseException as error:
            self._let_go(error)
            raise

    def _let_go(self, error: BaseException | None) -> None:
        self._held.__exit__(None if error is None else type(error), error, None)

    async def leave(self, error: BaseException | None) -> None:
        """Commit what we have opened, or roll it back; a caller's transaction is left to the caller."""
        self._desk.close()
        open_tx = self._open_tx
        if open_tx is None:
            self._let_go(error)
            return
        open_blocks.leave(self._mark)
        try:
            if error is None:
                open_tx.refuse_unusable()
                if self._desk.touched:
                    await open_tx.run(completing.follow, self._desk.touched)
                await open_tx.commit()
                reach("outside.after_commit")
        finally:
            if not open_tx.is_committed:
                await open_tx.roll_back()


class AsyncCompletingBlock(Generic[R]):
    """What `hf.completing()` gives; nothing happens before it is entered."""

    def __init__(self, block: Block, task: Task[..., R], job_id: UUID) -> None:
        self._block = block
        self._task = task
        self._job_id = job_id

    async def __aenter__(self) -> Completing[R]:
        return Completing(await self._block.enter(self._task, self._job_id))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._block.leave(error)

    if not TYPE_CHECKING:  # both type checkers refuse it by themselves

        def __enter__(self) -> None:
            raise Misuse("this face is async; write `async with hf.completing(…)`, or `with hf.sync.completing(…)`")

        def __exit__(self, *_: object) -> None: ...


class BlockingCompletingBlock(Generic[R]):
    """What `hf.sync.completing()` gives; nothing happens before it is entered."""

    def __init__(self, block: Block, task: Task[..., R], job_id: UUID) -> None:
        self._block = block
        self._task = task
        self._job_id = job_id

    def __enter__(self) -> BlockingCompleting[R]:
        return BlockingCompleting(drive(self._block.enter(self._task, self._job_id)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        drive(self._block.leave(error))
