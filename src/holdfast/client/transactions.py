"""A block's transaction in the hand of its user: statements, savepoints, and chains that start with its commit.

Written once, over an open transaction of the store, with a face for each colour. It neither commits nor rolls back:
whoever has opened the block does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, ClassVar, TypeVar, Unpack
from uuid import UUID

from holdfast.client.chain_handle import BlockingChain, Chain, ChainHandle, Handles, Seconds
from holdfast.client.starter import Starter, take_calls
from holdfast.database.borrowed import Borrowed
from holdfast.database.records import Record
from holdfast.database.tx import OpenTx, Runner, drive, plain
from holdfast.errors import Misuse, WrongConnection
from holdfast.tasks.calls import Call, StartOptions

R = TypeVar("R")
S = TypeVar("S")


class Statements:
    """What both faces do, as coroutines; *refuse* raises when the block may not go on, such as after a lost lease."""

    def __init__(
        self,
        open_tx: OpenTx,
        starter: Starter,
        refuse: Callable[[], None],
        from_chain: UUID | None,
        append: Callable[[OpenTx, object, object], Awaitable[None]],
    ) -> None:
        self._open_tx = open_tx
        self._starter = starter
        self._refuse = refuse
        self._from_chain = from_chain
        self._append = append
        self._is_closed = False

    @property
    def open_tx(self) -> OpenTx:
        """The transaction, as long as the block is open and may go on."""
        self.refuse_closed()
        self._refuse()
        return self._open_tx

    def refuse_closed(self) -> None:
        """Raise `Misuse` after the block."""
        if self._is_closed:
            raise Misuse("the block is closed, and its transaction with it; use `tx` inside the block only")

    def refuse_elsewhere(self, starter: Starter) -> None:
        """Raise `WrongConnection` for the face of another tenant, whose tables are not those of the block."""
        if (here := starter.tenant.name) != (block := self._starter.tenant.name):
            raise WrongConnection(
                f"tx is of {_place(block)}, and the call is for {_place(here)}; a block writes in one place: make "
                "this call after it, without connection="
            )

    def close(self) -> None:
        """Refuse what comes after the block."""
        self._is_closed = True

    async def query(self, sql: str, values: dict[str, object]) -> list[Record]:
        """Run the user's statement."""
        return await self.open_tx.query(sql, values)

    async def fetch_one(self, sql: str, values: dict[str, object]) -> Record | None:
        """Run the user's statement and give its row; more than one is a mistake."""
        rows = await self.query(sql, values)
        if len(rows) > 1:
            raise Misuse(f"fetch_one() found {len(rows)} rows; narrow the statement, or use fetch_all()")
        return rows[0] if rows else None

    async def start(self, calls: Sequence[Call[Any]], kind: type[ChainHandle[Any]]) -> list[Any]:
        """Start chains in this transaction; a key that the own chain holds is handed over."""
        handles = Handles(kind, partial(self._result_of, kind))
        return await self._starter.start(self.open_tx, take_calls(calls), handles, self._from_chain)

    async def append(self, kind: object, body: object) -> None:
        """Append an entry to the job's journal in this transaction."""
        await self._append(self.open_tx, kind, body)

    async def _result_of(self, kind: type[ChainHandle[Any]], chain_id: UUID, timeout: Seconds | None) -> Any:
        """Wait for a chain that was started here, which nobody sees before the block has committed."""
        if not self._is_closed:
            raise Misuse("the chain starts when the block commits; wait for its result after the block")
        return await self._starter.get_result[kind](chain_id, timeout)


class BlockTransaction:
    """What the faces have without a colour; a verb takes either as its `connection=`."""

    _statements: Statements

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    @property
    def connection(self) -> Any:
        """The driver's own connection: psycopg's of this colour, or sqlite3's; or that behind the `session`."""
        return self._statements.open_tx.connection

    @property
    def session(self) -> Any:
        """The session of your own library that this transaction is, with `using=` or `transactions=`; else `Misuse`."""
        return self._statements.open_tx.session

    def session_as(self, kind: type[S]) -> S:
        """Give `session` as a *kind*, such as `AsyncSession`, for type checkers; raise `Misuse` if it is another.

        >>> order = await tx.session_as(AsyncSession).get_one(Order, order_id)  # doctest: +SKIP
        """
        session = self.session
        if not isinstance(session, kind):
            raise Misuse(f"tx.session is a {type(session).__qualname__}, not a {kind.__qualname__}; ask for what it is")
        return session

    def runner_for(self, starter: Starter, *, is_async: bool) -> InBlock:
        """Give the transaction for `connection=tx` of a face, by its *starter*; raise if it is of another place."""
        self._statements.refuse_elsewhere(starter)
        return self.runner(is_async=is_async)

    def runner(self, *, is_async: bool) -> InBlock:
        """Give the transaction for what a face of this colour does."""
        if is_async is not self._is_async:
            raise Misuse("tx is async; write `await hf.…`" if self._is_async else "tx is blocking; write `hf.sync.…`")
        return InBlock(self._statements.open_tx)

    _is_async: ClassVar[bool]


class InBlock:
    """A block's transaction in the shape of a `Runner`: for verbs it is like a caller's own."""

    def __init__(self, open_tx: OpenTx) -> None:
        self.run = open_tx.run
        self.read = open_tx.read
        self.gather = open_tx.gather


def _place(tenant: str | None) -> str:
    return "the control place" if tenant is None else f"tenant {tenant!r}"


def is_callers(runner: Runner) -> bool:
    """Tell whether it writes in a transaction that the caller, or a block, has opened and will commit."""
    return isinstance(plain(runner), Borrowed | InBlock)


class BlockJournal:
    """`tx.journal` of an `async with` block of a handler."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    async def append(self, kind: str, body: Any) -> None:
        """Append an entry to the job's journal that commits with the block; else as `ctx.journal.append`."""
        await self._statements.append(kind, body)


class BlockingBlockJournal:
    """`tx.journal` of a `with` block of a handler."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    def append(self, kind: str, body: Any) -> None:
        """Append an entry to the job's journal that commits with the block; else as `ctx.journal.append`."""
        drive(self._statements.append(kind, body))


class Transaction(BlockTransaction):
    """The transaction of an `async with` block; your statements commit with it, or not at all.

    Parameters are written `:name` and given by name: `await tx.execute("UPDATE t SET a = :a", a=1)`.
    """

    _is_async = True

    @property
    def journal(self) -> BlockJournal:
        """The journal of the job, for entries that commit with the block; in the blocks of a handler only."""
        return BlockJournal(self._statements)

    async def execute(self, sql: str, /, **values: object) -> None:
        """Run a statement."""
        await self._statements.query(sql, values)

    async def fetch_one(self, sql: str, /, **values: object) -> Record | None:
        """Run a statement and give its one row, or None; by place, by `row["name"]` or by `row.name`."""
        return await self._statements.fetch_one(sql, values)

    async def fetch_all(self, sql: str, /, **values: object) -> list[Record]:
        """Run a statement and give all its rows."""
        return await self._statements.query(sql, values)

    async def start(self, call: Call[R], **options: Unpack[StartOptions]) -> Chain[R]:
        """Start a chain that exists when the block commits; the keywords are those of `Call.options`.

        Wait for its result after the block: inside it, `chain.result()` raises `Misuse`.
        """
        return (await self.start_many([call.options(**options) if options else call]))[0]

    async def start_many(self, calls: Sequence[Call[R]]) -> list[Chain[R]]:
        """Start a chain for each of *calls*, in order; all exist when the block commits."""
        return await self._statements.start(calls, Chain)

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Try something: an error inside undoes what was done inside, and the block can go on without it."""
        open_tx = self._statements.open_tx
        name = await open_tx.begin_savepoint()
        try:
            yield
        except BaseException:
            await open_tx.roll_back_to(name)
            raise
        await open_tx.release(name)


class BlockingTransaction(BlockTransaction):
    """The transaction of a `with` block; public as `holdfast.sync.Transaction`."""

    _is_async = False

    @property
    def journal(self) -> BlockingBlockJournal:
        """The journal of the job, for entries that commit with the block; in the blocks of a handler only."""
        return BlockingBlockJournal(self._statements)

    def execute(self, sql: str, /, **values: object) -> None:
        """Run a statement."""
        drive(self._statements.query(sql, values))

    def fetch_one(self, sql: str, /, **values: object) -> Record | None:
        """Run a statement and give its one row, or None; by place, by `row["name"]` or by `row.name`."""
        return drive(self._statements.fetch_one(sql, values))

    def fetch_all(self, sql: str, /, **values: object) -> list[Record]:
        """Run a statement and give all its rows."""
        return drive(self._statements.query(sql, values))

    def start(self, call: Call[R], **options: Unpack[StartOptions]) -> BlockingChain[R]:
        """Start a chain that exists when the block commits; the keywords are those of `Call.options`.

        Wait for its result after the block: inside it, `chain.result()` raises `Misuse`.
        """
        return self.start_many([call.options(**options) if options else call])[0]

    def start_many(self, calls: Sequence[Call[R]]) -> list[BlockingChain[R]]:
        """Start a chain for each of *calls*, in order; all exist when the block commits."""
        return drive(self._statements.start(calls, BlockingChain))

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Try something: an error inside undoes what was done inside, and the block can go on without it."""
        open_tx = self._statements.open_tx
        name = drive(open_tx.begin_savepoint())
        try:
            yield
        except BaseException:
            drive(open_tx.roll_back_to(name))
            raise
        drive(open_tx.release(name))
