"""A block: the right to write and an open transaction, in the hands of a user's code, for a limited time.

Whoever wants something of it takes its lock first: the user's statements, in whichever thread, and the writer's shell,
which ends a block whose time is over or that nobody wants any more. So each of them finds it open or ended, and never
in between. A statement under way when the time is over is interrupted by a progress handler, in its own thread; what
the user's code does between statements nobody can interrupt, but its next statement is refused, and so is its commit.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

from holdfast.database.records import Record, records
from holdfast.database.sqlite.connection import BlockConnection
from holdfast.database.sqlite.guarded import GuardedConnection
from holdfast.database.sqlite.readers import INSTRUCTIONS_BETWEEN_LOOKS
from holdfast.database.sqlite.statement_times import TURN_SECONDS, StatementTimes
from holdfast.database.statements import in_sqlite
from holdfast.database.tx import (
    Database,
    Last,
    ListOperation,
    Operation,
    P,
    R,
    Row,
    T,
    Tx,
    bound,
    drive,
    no_session,
    nothing,
)
from holdfast.errors import HoldfastError, Misuse, TransactionBroken, TransactionTimeout
from holdfast.fault_points import after_commit, before_commit
from holdfast.threads import Threads

INTERRUPT_SECONDS = 0.05
V = TypeVar("V")


class SqliteTransaction:
    """A transaction that has begun on *connection* and has *seconds* to end; *end* gives the right to write back."""

    def __init__(
        self,
        connection: BlockConnection,
        monotonic: Callable[[], float],
        seconds: float,
        end: Callable[[], None],
    ) -> None:
        self.is_committed = False
        self.until = monotonic() + seconds
        self._seconds = seconds
        self._monotonic = monotonic
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._connection = connection
        self._guarded = connection.guarded
        self._tx = connection.make_tx()
        self._cursor = self._guarded.plain_cursor()
        self.end = end
        self._is_unwanted = False
        self._is_lent = False
        self._is_as_found = True
        self._broken_by: str | None = None
        self._savepoints = 0
        self._over: Callable[[], HoldfastError] | None = None
        self._guarded.guard = self.guard
        self._guarded.set_progress_handler(self._is_to_stop, INSTRUCTIONS_BETWEEN_LOOKS)

    @property
    def connection(self) -> GuardedConnection:
        """The connection itself; it is closed when the block ends, for the user's code may keep it."""
        self.refuse_unusable()
        self._is_lent = True
        return self._guarded

    @property
    def is_unchanged(self) -> bool:
        """Tell whether nothing was written in it, and its connection goes back as it came."""
        return not self._is_lent and self._is_as_found and self._connection.is_unchanged

    @property
    def is_due(self) -> bool:
        return self._over is None and self._is_to_stop()

    def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a whole operation of ours."""
        return self.do(lambda: self._plainly(lambda: drive(bound(operation, *args, **kwargs)(self._tx))))

    def fetch_all(self, sql: str, values: Mapping[str, object]) -> list[Row]:
        """Run one statement of ours."""
        return self.do(lambda: self._plainly(lambda: drive(self._tx.fetch_all(sql, **values))))

    def query(self, sql: str, values: Mapping[str, object]) -> list[Record]:
        """Run one statement of the user's."""
        statement = in_sqlite(sql)
        given = statement.bind(values)
        self._is_as_found &= not statement.stays
        return self.do(lambda: self._query(statement.text, given))

    def time_query(self, sql: str, values: Mapping[str, object]) -> tuple[list[Record], float]:
        """Run one statement of the user's; tell also how many seconds it took."""
        began = self._monotonic()
        return self.query(sql, values), self._monotonic() - began

    def lock_if_free(self) -> bool:
        """Keep others from using it, unless somebody does; tell which. Whoever has locked it calls `unlock`."""
        return self._lock.acquire(blocking=False)

    def unlock(self) -> None:
        """Let others use it again."""
        self._lock.release()

    def begin_savepoint(self) -> str:
        """Mark a place to which one may roll back."""
        self._savepoints += 1
        name = f"holdfast_{self._savepoints}"
        self.do(lambda: self._cursor.execute(f"SAVEPOINT {name}"))
        return name

    def release(self, name: str) -> None:
        """Forget a savepoint and keep what was done since."""
        self.do(lambda: self._cursor.execute(f"RELEASE {name}"))

    def roll_back_to(self, name: str) -> None:
        """Undo what was done since a savepoint, errors included, and forget it."""
        with self._lock:
            broken_by, self._broken_by = self._broken_by, None
            try:
                self.do(lambda: self._cursor.execute(f"ROLLBACK TO {name}"))
                self.do(lambda: self._cursor.execute(f"RELEASE {name}"))
            except BaseException:
                self._broken_by = broken_by
                raise

    def spoil(self, what: str) -> None:
        """Take note that *what* happened, after which it may not be committed."""
        self._broken_by = what

    def refuse_unusable(self) -> None:
        """Raise if it can no longer be committed."""
        self.refuse_child()
        if self._over is not None:
            raise self._over()
        if self._is_to_stop():
            raise self._late()
        if self._broken_by is not None:
            raise TransactionBroken(
                f"a statement of this block has failed ({self._broken_by}), so the block cannot be committed; let "
                "the error leave the block, or write `tx.savepoint()` around a statement that may fail"
            )
        if not self._is_in_transaction():
            raise TransactionBroken(
                "a disk error or a statement with ON CONFLICT ROLLBACK ended the transaction of this block; let the "
                "error leave the block"
            )

    def commit(self, last: Last | None = None) -> None:
        """Run *last*, commit, and let go of the right to write; whatever is raised, it has been let go of."""
        self.refuse_child()
        with self._lock:
            try:
                if last is not None:
                    self.run(last)
                self.refuse_unusable()
                self._unguard()
                before_commit(self._tx, is_block=True)
                self._connection.commit()
            except BaseException as error:
                if self._over is None:
                    self._undo(self._late if self._is_overdue() else _ended, error)
                raise
            self.is_committed = True
            self._let_go(_ended, None)
        after_commit(self._tx, is_block=True)

    def roll_back(self) -> None:
        """Undo everything and let go of the right to write; a statement under way is interrupted."""
        if self._process == os.getpid():
            self._is_unwanted = True
            self._stop(_ended)

    def give_up(self) -> None:
        """Want no more of it, without waiting: whoever looks after blocks will end it, if nobody else does."""
        self._is_unwanted = True

    def end_if_due(self) -> None:
        """Roll back if its time is over, or nobody wants it any more."""
        if self.is_due:
            self._stop(_ended if self._is_unwanted else self._late)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Keep everybody else out while the user's code uses the connection itself."""
        self.refuse_child()
        with self._lock:
            self.refuse_unusable()
            yield

    def do(self, work: Callable[[], V]) -> V:
        """Run *work* on the connection, if it is still the block's."""
        self.refuse_child()
        with self._lock:
            self.refuse_unusable()
            try:
                return work()
            except Exception as error:
                if self._is_to_stop():
                    self.end_if_due()
                    raise self._late() from error
                if is_from_database(error):
                    self._broken_by = f"SQLite: {error}"
                raise

    def refuse_child(self) -> None:
        """Raise in a process that was forked: there the lock may be held by nobody, and the connection is not ours."""
        if self._process != os.getpid():
            raise Misuse(
                "this block was opened before the process was forked, and belongs to the parent process; use it "
                "only there"
            )

    def _query(self, text: str, values: Mapping[str, object]) -> list[Record]:
        rows = self._cursor.execute(text, values).fetchall()
        return records((column[0] for column in self._cursor.description or ()), rows)

    def _plainly(self, work: Callable[[], V]) -> V:
        """Run *work* of ours; texts are texts in it, whatever a user has told the connection that was lent him."""
        if not self._is_lent:
            return work()
        text_factory, self._guarded.text_factory = self._guarded.text_factory, str
        try:
            return work()
        finally:
            self._guarded.text_factory = text_factory

    def _is_to_stop(self) -> bool:
        return self._is_unwanted or self._is_overdue()

    def _is_overdue(self) -> bool:
        return self._monotonic() >= self.until

    def _is_in_transaction(self) -> bool:
        try:
            return self._guarded.in_transaction
        except sqlite3.ProgrammingError:  # closed, just now, by whoever ended the block
            return False

    def _stop(self, why: Callable[[], HoldfastError]) -> None:
        while not self._lock.acquire(timeout=INTERRUPT_SECONDS):
            with suppress(sqlite3.ProgrammingError):  # it was closed meanwhile
                self._guarded.interrupt()
        try:
            if self._over is None:
                self._undo(why, None)
        finally:
            self._lock.release()

    def _undo(self, why: Callable[[], HoldfastError], error: BaseException | None) -> None:
        self._unguard()
        self._connection.roll_back()
        self._let_go(why, error)

    def _unguard(self) -> None:
        self._guarded.set_progress_handler(None, 0)

    def _let_go(self, why: Callable[[], HoldfastError], error: BaseException | None) -> None:
        self._over = why
        if self._is_lent or not self._is_as_found:
            self._connection.doubt()
        try:
            self._connection.__exit__(type(error) if error else None, error, None)
        finally:
            self.end()

    def _late(self) -> HoldfastError:
        if self._is_unwanted:
            return _ended()
        return TransactionTimeout(
            f"this block was open for {self._seconds:g} s, the longest time that a block may make other SQLite "
            "writers wait, so it was rolled back; do the long work before the block, or raise transaction_seconds"
        )


def _ended() -> HoldfastError:
    return Misuse("this block has ended, so its transaction cannot be used any more; use it only inside the block")


def is_from_database(error: BaseException) -> bool:
    """Tell whether SQLite itself, not its driver, has refused a statement: the rest has sent nothing."""
    found = error.__cause__ if isinstance(error, HoldfastError) else error
    return isinstance(found, sqlite3.Error) and hasattr(found, "sqlite_errorcode")


Call = Callable[[Callable[[], Any]], Awaitable[Any]]


class SqliteBlockTx:
    """A block's transaction as operations see it, a call for each statement."""

    database: Database = "sqlite"

    def __init__(self, block: SqliteTransaction, call: Call) -> None:
        self._block = block
        self._call = call

    async def execute(self, sql: str, /, **values: object) -> None:
        await self.fetch_all(sql, **values)

    async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:
        rows: list[Row] = await self._call(lambda: self._block.fetch_all(sql, values))
        return rows


class BlockingSqliteTransaction:
    """A block in the caller's thread, in the shape of an `OpenTx`; nothing suspends."""

    def __init__(self, block: SqliteTransaction) -> None:
        self._block = block
        self.tx: Tx = SqliteBlockTx(block, self._call)

    @property
    def connection(self) -> sqlite3.Connection:
        """The driver's own connection; it is closed when the block ends."""
        return self._block.connection

    @property
    def session(self) -> Any:
        """Refuse: it has none."""
        raise no_session()

    @property
    def is_committed(self) -> bool:
        return self._block.is_committed

    async def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in the block's transaction."""
        result: R = await self._call(lambda: self._block.run(operation, *args, **kwargs))
        return result

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in the block's transaction: it sees what was written there."""
        return await self.run(operation, *args, **kwargs)

    async def gather(self, operation: ListOperation[T, R], items: Sequence[T]) -> Sequence[R]:
        """Run a list operation in the block's transaction."""
        return await self.run(operation, items)

    async def query(self, sql: str, values: Mapping[str, object]) -> list[Record]:
        """Run the user's *sql* and return its rows."""
        found: list[Record] = await self._call(lambda: self._block.query(sql, values))
        return found

    async def begin_savepoint(self) -> str:
        name: str = await self._call(self._block.begin_savepoint)
        return name

    async def release(self, name: str) -> None:
        await self._call(lambda: self._block.release(name))

    async def roll_back_to(self, name: str) -> None:
        await self._call(lambda: self._block.roll_back_to(name))

    def refuse_unusable(self) -> None:
        """Raise if it can no longer be committed."""
        self._block.refuse_unusable()

    async def commit(self, last: Last | None = None, begin_commit: Callable[[], None] = nothing) -> None:
        """Run *last*, commit, and let go of the right to write."""
        begin_commit()
        self._block.commit(last)

    async def roll_back(self) -> None:
        """Undo everything and let go of the right to write."""
        self._block.roll_back()

    async def _call(self, work: Callable[[], Any]) -> Any:
        return work()


class EndsBlocks(Protocol):
    """The writer, as a block in an event loop sees it."""

    async def commit(self, block: SqliteTransaction, last: Last | None) -> None:
        """Have *last* run in *block*, and the block committed."""

    def commit_here(self, block: SqliteTransaction, last: Last | None) -> bool:
        """Do the same at once, if *block* has written nothing; else say False."""

    def give_up(self, block: SqliteTransaction) -> None:
        """Have *block* rolled back soon."""


class AsyncSqliteTransaction(BlockingSqliteTransaction):
    """A block in an event loop: its statements run in *threads*, and *writer* ends it, whoever is cancelled.

    By *times* the loop runs the short ones itself. The writer's thread commits: it has the next block to open right
    after, so that one hop does for both.
    """

    def __init__(self, block: SqliteTransaction, threads: Threads, writer: EndsBlocks, times: StatementTimes) -> None:
        super().__init__(block)
        self._threads = threads
        self._writer = writer
        self._times = times
        self._turn = 0.0
        """For how many seconds it has run statements in the loop since the last hop."""

    async def query(self, sql: str, values: Mapping[str, object]) -> list[Record]:
        """Run the user's *sql* and return its rows: here if it is short, and no other statement is under way."""
        block = self._block
        if self._turn < TURN_SECONDS and self._times.is_short(sql) and block.lock_if_free():
            try:
                found, seconds = block.time_query(sql, values)
            finally:
                block.unlock()
            self._turn += seconds
        else:
            found, seconds = await self._call(lambda: block.time_query(sql, values))
            self._turn = 0.0
        self._times.note(sql, seconds)
        return found

    async def commit(self, last: Last | None = None, begin_commit: Callable[[], None] = nothing) -> None:
        """Run *last*, commit, and let go of the right to write; a caller who is cancelled waits for the outcome."""
        self._block.refuse_child()
        begin_commit()
        if not self._writer.commit_here(self._block, last):
            await self._writer.commit(self._block, last)

    async def roll_back(self) -> None:
        """Undo everything and let go of the right to write; that happens also if the caller is cancelled."""
        self._writer.give_up(self._block)
        await self._threads.call(self._block.roll_back)

    async def _call(self, work: Callable[[], Any]) -> Any:
        try:
            return await self._threads.call(work)
        except asyncio.CancelledError:
            self._block.spoil("it was cancelled, and may or may not have run")
            raise
