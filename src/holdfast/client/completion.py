"""A block that may complete a job, from its opening to its end: one life for both fences, in both colours.

`ctx.prepare()`, `ctx.complete()`, `ctx.atomic()` and `hf.completing()` all live it:

    new ──enter──▶ open ──leave, write──▶ committing ──▶ committed
                    │ refused, or an error   │ COMMIT has failed, or nobody knows
                    └──────▶ rolled back ◀───┘

They differ in the fence, which keeps the job for the block. `TokenFence` (`worker.attempts.blocks`) looks at the
job without a lock when the block opens, and its guarded UPDATE decides just before COMMIT. `RowLockFence`
(`client.outside_completion`) locks the job when the block opens, so that nothing is left to decide. A block in a
caller's transaction neither begins nor ends it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum, auto
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar
from uuid import UUID

from holdfast import current_block
from holdfast.client.starter import Starter
from holdfast.client.transactions import Statements
from holdfast.current_block import Mark
from holdfast.database.tx import Last, OpenTx, drive
from holdfast.errors import LeaseLost, Misuse, Unavailable, UnknownMethod, UnknownOutcome

T = TypeVar("T")


class BlockState(Enum):
    """How far a block has come."""

    NEW = auto()
    OPEN = auto()
    COMMITTING = auto()
    COMMITTED = auto()
    ROLLED_BACK = auto()


class Fence(ABC):
    """What keeps the job for one block: it looks when the block opens, and guards when it ends."""

    async_only: ClassVar[str]
    """What to write instead of `with`, on an async face."""
    blocking_only: ClassVar[str]
    """What to write instead of `async with`, on a blocking face."""

    def __init__(self, name: str, starter: Starter, chain_id: UUID | None = None) -> None:
        self.mark = Mark(name)
        self.starter = starter
        self.chain_id = chain_id
        """The chain whose unique keys a start in the block may take over."""
        self.state = BlockState.NEW
        self.open_tx: OpenTx | None = None
        """The block's transaction, unless it is the caller's."""
        self.opened: Statements | None = None

    @property
    def statements(self) -> Statements:
        """What the user runs in the block's transaction."""
        if self.opened is None:
            raise Misuse("with connection= the transaction is your own; run your statements on that")
        return self.opened

    @abstractmethod
    def admit(self) -> None:
        """Raise if the block may not be opened now."""

    @abstractmethod
    async def open(self) -> OpenTx | None:
        """Open the transaction and look at the job, or raise and leave nothing open; None if it is the caller's."""

    def refuse(self) -> None:  # noqa: B027 - a fence need not
        """Raise if the block may not go on."""

    @abstractmethod
    async def end(self, open_tx: OpenTx) -> Last | None:
        """Give what has to be written right before COMMIT; or raise, and everything rolls back."""

    async def append(self, open_tx: OpenTx, kind: object, body: object) -> None:
        """Append an entry to the job's journal; only an attempt has one to write."""
        raise Misuse("only a handler writes a journal: tx.journal is for the blocks of its ctx")

    async def explain(self, error: LeaseLost | Unavailable) -> None:  # noqa: B027 - a fence need not
        """Raise what says more than *error*, by which nothing was committed; all is undone."""

    async def resolve(self, error: UnknownOutcome) -> None:
        """Return if a COMMIT whose answer was lost has happened; else raise."""
        raise error

    def answered(self) -> None:  # noqa: B027 - most have nothing to note
        """Note what became of COMMIT, by the state."""

    async def roll_back(self, open_tx: OpenTx) -> None:
        """Undo all of the block."""
        await open_tx.roll_back()
        self.state = BlockState.ROLLED_BACK

    def let_go(self, error: BaseException | None) -> None:  # noqa: B027 - a fence need not
        """Leave a caller's transaction to the caller."""


F = TypeVar("F", bound=Fence)


class CompletionBlock(Generic[T]):
    """One block behind *fence*, which gives a *face* of it; nothing happens before it is entered.

    It is written as coroutines; on the blocking side nothing that they await suspends.
    """

    def __init__(self, fence: F, face: Callable[[F], T]) -> None:
        self._fence: Fence = fence
        self._face: Callable[[], T] = lambda: face(fence)

    async def _enter(self) -> T:
        fence = self._fence
        fence.admit()
        fence.state = BlockState.OPEN
        try:
            open_tx = fence.open_tx = await fence.open()
        except BaseException:
            fence.state = BlockState.ROLLED_BACK
            raise
        if open_tx is not None:
            current_block.enter(fence.mark)
            fence.opened = Statements(open_tx, fence.starter, fence.refuse, fence.chain_id, fence.append)
        return self._face()

    async def _leave(self, error: BaseException | None) -> None:
        """Commit, or roll all of it back and raise."""
        fence, open_tx = self._fence, self._fence.open_tx
        current_block.leave(fence.mark)
        if open_tx is None:
            fence.let_go(error)
            return
        fence.statements.close()
        try:
            if error is None:
                await self._commit(open_tx)
        finally:
            if fence.state is not BlockState.COMMITTED:
                await fence.roll_back(open_tx)

    async def _commit(self, open_tx: OpenTx) -> None:
        fence = self._fence
        fence.refuse()
        open_tx.refuse_unusable()
        last = await fence.end(open_tx)
        is_resolved = False
        try:
            await open_tx.commit(last, self._begin_commit)
        except UnknownOutcome as error:
            await fence.resolve(error)
            is_resolved = True
        except (LeaseLost, Unavailable) as error:
            await fence.explain(error)
            raise
        finally:  # it may be committed although whoever waited for it was cancelled meanwhile
            has_happened = is_resolved or open_tx.is_committed
            fence.state = BlockState.COMMITTED if has_happened else BlockState.OPEN
            fence.answered()

    def _begin_commit(self) -> None:
        """Note that from now on nobody can keep COMMIT from happening."""
        self._fence.state = BlockState.COMMITTING


class AsyncBlock(CompletionBlock[T]):
    """A block as an async context manager."""

    async def __aenter__(self) -> T:
        return await self._enter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(error)

    if not TYPE_CHECKING:  # both type checkers refuse it by themselves

        def __getattr__(self, name: str) -> None:
            raise _not_entered(name, self._fence.async_only)

        def __enter__(self) -> None:
            raise Misuse(self._fence.async_only)

        def __exit__(self, *_: object) -> None: ...


class BlockingBlock(CompletionBlock[T]):
    """A block as a context manager."""

    def __enter__(self) -> T:
        return drive(self._enter())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        drive(self._leave(error))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> None:
            raise _not_entered(name, self._fence.blocking_only)

        async def __aenter__(self) -> None:
            raise Misuse(self._fence.blocking_only)

        async def __aexit__(self, *_: object) -> None: ...


def _not_entered(name: str, advice: str) -> AttributeError:
    """Make the error for an attribute that only what a block gives has, such as `tx.execute`."""
    if name.startswith("_"):
        return AttributeError(name)
    return UnknownMethod(f"a block has no {name}; enter it and use what it gives: {advice.partition('; ')[2]}")
