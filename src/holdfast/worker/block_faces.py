"""What a handler sees of a block: a context manager in its colour, and in it the transaction that ends the job."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar, cast, overload

from holdfast.calls import Call
from holdfast.errors import Misuse
from holdfast.store.tx import drive
from holdfast.transactions import BlockingTransaction, Statements, Transaction
from holdfast.worker.blocks import BlockKind, Blocks
from holdfast.worker.fenced import Block

R = TypeVar("R")
T = TypeVar("T")


class _Ending:
    """What ends the job of a block, in either colour: said inside it, done by its commit."""

    _block: Block
    _blocks: Blocks

    @overload
    def finish(self, output: None = None) -> None: ...
    @overload
    def finish(self, output: R) -> R: ...
    def finish(self, output: object = None) -> object:
        """Complete the job with *output* when the block commits, and give it back: `return tx.finish(output)`."""
        self._block.finish(output)
        self._blocks.has_end = True
        return output

    def continue_with(self, call: Call[R]) -> R:
        """Complete the job when the block commits, and go on with *call*: `return tx.continue_with(ship(order_id=7))`.

        What it gives stands for the chain's output and is only to be returned. The next job has queue, priority, tags,
        webhook and lane of this one, unless its task or *call* says otherwise.
        """
        continued = self._block.continue_with(call)
        self._blocks.has_end = True
        return cast("R", continued)


class CompletingTransaction(Transaction, _Ending):
    """The transaction of `async with ctx.complete()` and `ctx.atomic()`: your statements, and the end of the job."""

    def __init__(self, statements: Statements, block: Block, blocks: Blocks) -> None:
        super().__init__(statements)
        self._block = block
        self._blocks = blocks


class BlockingCompletingTransaction(BlockingTransaction, _Ending):
    """The transaction of `with ctx.complete()` and `ctx.atomic()`; public as `holdfast.sync.CompletingTransaction`."""

    def __init__(self, statements: Statements, block: Block, blocks: Blocks) -> None:
        super().__init__(statements)
        self._block = block
        self._blocks = blocks


class AsyncBlock(Generic[T]):
    """A block as an async context manager that gives a *face* of its transaction; nothing happens before."""

    def __init__(self, block: Block, face: Callable[[Statements, Block], T]) -> None:
        self._block = block
        self._face = face

    async def __aenter__(self) -> T:
        return self._face(await self._block.enter(), self._block)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._block.leave(error)

    if not TYPE_CHECKING:  # both type checkers refuse it by themselves

        def __enter__(self) -> None:
            raise Misuse("this handler is async; write `async with ctx.…() as tx:`")

        def __exit__(self, *_: object) -> None: ...


class BlockingBlock(Generic[T]):
    """A block as a context manager that gives a *face* of its transaction; nothing happens before."""

    def __init__(self, block: Block, face: Callable[[Statements, Block], T]) -> None:
        self._block = block
        self._face = face

    def __enter__(self) -> T:
        return self._face(drive(self._block.enter()), self._block)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        drive(self._block.leave(error))

    if not TYPE_CHECKING:

        async def __aenter__(self) -> None:
            raise Misuse("this handler is a plain function; write `with ctx.…() as tx:`")

        async def __aexit__(self, *_: object) -> None: ...


def prepare(blocks: Blocks, using: object) -> AsyncBlock[Transaction]:
    """Make the block of `ctx.prepare()`."""
    return AsyncBlock(Block(blocks, BlockKind.PREPARE, using), lambda statements, _: Transaction(statements))


def blocking_prepare(blocks: Blocks, using: object) -> BlockingBlock[BlockingTransaction]:
    """Make the blocking block of `ctx.prepare()`."""
    return BlockingBlock(Block(blocks, BlockKind.PREPARE, using), lambda statements, _: BlockingTransaction(statements))


def completing(blocks: Blocks, kind: BlockKind, using: object) -> AsyncBlock[CompletingTransaction]:
    """Make the block of `ctx.complete()` or `ctx.atomic()`."""
    return AsyncBlock(
        Block(blocks, kind, using), lambda statements, block: CompletingTransaction(statements, block, blocks)
    )


def blocking_completing(blocks: Blocks, kind: BlockKind, using: object) -> BlockingBlock[BlockingCompletingTransaction]:
    """Make the blocking block of `ctx.complete()` or `ctx.atomic()`."""
    return BlockingBlock(
        Block(blocks, kind, using), lambda statements, block: BlockingCompletingTransaction(statements, block, blocks)
    )
