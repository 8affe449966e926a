"""A block in a transaction of the user's own kind: a library opens and ends it, and our statements run in it.

What a library must be able to do is a `UserTransaction`, one small class for each. All the rest is here, once for both
colours: over a blocking one nothing suspends. Our operations run on the driver's connection behind it, as on any that
is borrowed. Everything that could let half of a block be committed is looked for before COMMIT is sent:

    ended        the user's code has ended the transaction itself: the library tells, and a mark that goes with it
    broken       a statement has failed and was swallowed, outside a savepoint that was rolled back (`course`)
    late         SQLite only, where it keeps all other writers waiting; PostgreSQL ends one that stands still by itself
    in use       another thread or task is still in it

Hooks of the user's run until the very last, so a library looks once more when only COMMIT is left to be sent.

Nobody can end a user's transaction from outside while its own code is in it: a connection of SQLite's that another
thread closes, or a session that another task rolls back, is left in no known state. So one that is late is ended by
the next statement of ours or at the block's end, and one that must be ended while somebody else uses it is broken off:
the driver's connection is made useless first, and whoever used it gives it back.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from secrets import token_hex
from typing import Any, Protocol, TypeAlias

from holdfast.database.borrowed.borrow import Borrowed, Borrower, Identity
from holdfast.database.borrowed.transaction_watch import TransactionWatch, said_by_database, sqlstate_of
from holdfast.database.records import Record
from holdfast.database.tx import Database, First, Last, ListOperation, Operation, P, R, Row, T, Tx, nothing
from holdfast.errors import (
    HoldfastError,
    Misuse,
    TransactionBroken,
    TransactionRequired,
    TransactionTimeout,
    Unavailable,
    UnknownOutcome,
    WrongConnection,
)
from holdfast.fault_points import after_commit, before_commit, note

SAT_TOO_LONG = "25P03"  # idle_in_transaction_session_timeout

Check: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""Raises if COMMIT would commit something else than the whole block; it sends a statement."""


class UserTransaction(Protocol):
    """A transaction of one library, from its beginning to its end; nothing suspends where it is blocking."""

    @property
    def session(self) -> Any:
        """What the user's code writes by; a `Library` of the lender's reaches the driver's connection behind it."""

    async def begin(self, course: TransactionWatch) -> None:
        """Begin it, on SQLite with the right to write; tell *course* from now on what happens to it.

        That is each statement that has `ran`, each that has `failed`, by whomever, and on SQLite to `refuse_late`
        before each. What is run on the driver's connection itself the library cannot know, and need not tell.
        """

    async def flush(self) -> None:
        """Send what the user's code has changed and not sent yet."""

    async def query(self, sql: str, values: Mapping[str, object]) -> list[Record]:
        """Run the user's *sql*, in the grammar of `statements`, and return its rows."""

    async def begin_savepoint(self) -> Any:
        """Mark a place to which one may roll back, as the library does; return it."""

    async def release(self, savepoint: Any) -> None:
        """Forget *savepoint* and keep what was done since."""

    async def roll_back_to(self, savepoint: Any) -> None:
        """Undo what was done since *savepoint*, errors included."""

    def refuse_ended(self) -> None:
        """Raise `ended_by_user()` if the library knows that it is no longer in the transaction that we have begun."""

    def is_lost(self, error: BaseException) -> bool:
        """Tell whether *error* says that the connection is gone."""

    @property
    def is_commit_sent(self) -> bool:
        """Tell whether COMMIT is on its way, or has been answered: what a hook raises before that is no doubt."""

    async def commit(self, check: Check) -> None:
        """Commit, and give the connection back; *check* comes after every hook of the user's, right before COMMIT."""

    async def roll_back(self) -> None:
        """Undo everything and give the connection back, or throw it away; raise nothing, whatever state it is in."""

    def break_off(self) -> None:
        """Make the driver's connection useless, from any thread, so that a statement under way fails at once."""


OPEN_POSTGRES = """
    SELECT set_config('idle_in_transaction_session_timeout', CAST(:milliseconds AS text), true),
        set_config('holdfast.block', CAST(:name AS text), true), current_setting('transaction_isolation')"""
READ_POSTGRES = "SELECT current_setting('holdfast.block', true)"
OPEN_SQLITE = "SAVEPOINT holdfast_block"
CLOSE_SQLITE = "RELEASE holdfast_block"
TAKE_RIGHT = "UPDATE holdfast_job SET seq = seq WHERE 0"
"""Has a transaction of SQLite's that was begun without it the right to write, and changes nothing."""
SNAPSHOTS = ("repeatable read", "serializable")


async def mark(tx: Tx, name: str, lease_seconds: float) -> None:
    """Leave a mark that is gone with the transaction; a process that stands still loses it with its lease."""
    if tx.database == "sqlite":
        await tx.execute(OPEN_SQLITE)
        return
    [row] = await tx.fetch_all(OPEN_POSTGRES, name=name, milliseconds=str(max(10, int(lease_seconds * 1000))))
    if row[-1] in SNAPSHOTS:
        raise WrongConnection(
            f"this transaction has the isolation level {row[-1].upper()}, and PostgreSQL would refuse to complete the "
            "job in it when the worker renews the lease; use READ COMMITTED: with SQLAlchemy write "
            '`engine.execution_options(isolation_level="READ COMMITTED")`, with Django leave out isolation_level in '
            "OPTIONS"
        )


async def is_marked(tx: Tx, name: str) -> bool:
    """Tell whether the transaction is the one that was marked; on SQLite that takes the mark away."""
    if tx.database == "postgres":
        return await tx.fetch_all(READ_POSTGRES) == [(name,)]
    try:
        await tx.execute(CLOSE_SQLITE)
    except Exception as error:  # whichever driver's it is
        if "no such savepoint" not in str(error):
            raise
        return False
    return True


class OrmTransaction:
    """A `UserTransaction` in the shape of an `OpenTx`, blocking: nothing suspends."""

    def __init__(
        self, transaction: UserTransaction, borrowed: Borrowed, course: TransactionWatch, mark_name: str
    ) -> None:
        self.is_committed = False
        self.tx: Tx = OrmTx(self, course.database)
        self._transaction = transaction
        self._borrowed = borrowed
        self._course = course
        self._mark_name = mark_name
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._busy = 0
        self._savepoints: dict[str, Any] = {}
        self._over: Callable[[], HoldfastError] | None = None
        self._is_ending = False
        self._is_broken_off = False

    @property
    def session(self) -> Any:
        """The library's own object for the transaction."""
        self.refuse_unusable()
        return self._transaction.session

    @property
    def connection(self) -> Any:
        """The driver's own connection behind it."""
        self.refuse_unusable()
        return self._borrowed.lent.connection

    async def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in the transaction, after what the user's code has changed before it."""

        async def flush_and_run() -> R:
            await self._transaction.flush()
            note(self, operation, args)
            try:
                return await self._borrowed.run(operation, *args, **kwargs)
            except Exception as error:
                self._course.failed(error)  # which the library has not seen
                raise

        return await self._do(flush_and_run())

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in the transaction: it sees what was written there."""
        return await self.run(operation, *args, **kwargs)

    async def gather(self, operation: ListOperation[T, R], items: Sequence[T]) -> Sequence[R]:
        """Run a list operation in the transaction."""
        return await self.run(operation, items)

    async def query(self, sql: str, values: Mapping[str, object]) -> list[Record]:
        """Run the user's *sql*, after what was changed before it, and return its rows."""

        async def flush_and_query() -> list[Record]:
            await self._transaction.flush()
            return await self._transaction.query(sql, values)

        return await self._do(flush_and_query())

    async def begin_savepoint(self) -> str:
        name = f"holdfast_{len(self._savepoints) + 1}"
        self._savepoints[name] = await self._do(self._transaction.begin_savepoint())
        return name

    async def release(self, name: str) -> None:
        await self._do(self._transaction.release(self._savepoints[name]))

    async def roll_back_to(self, name: str) -> None:
        await self._do(self._transaction.roll_back_to(self._savepoints[name]), mends=True)

    def refuse_unusable(self, *, mends: bool = False) -> None:
        """Raise if it can no longer be committed; an error that a savepoint *mends* is let pass."""
        self._refuse_child()
        if self._is_broken_off:
            raise _broken_off()
        if self._over is not None:
            raise self._over()
        self._course.refuse_late()
        if not mends:
            self._course.refuse_broken()
            self._refuse_ended()

    async def commit(self, last: Last | None = None, begin_commit: Callable[[], None] = nothing) -> None:
        """Run *last*, commit, and give the connection back; a caller who is cancelled waits for the outcome."""
        try:
            if last is not None:
                await self.run(last)
            with self._lock:
                self.refuse_unusable()
                if self._busy:
                    raise TransactionBroken("a statement of this block is still running; await it inside the block")
                self._over, self._is_ending = _ended, True
        except BaseException:
            await self.roll_back()
            raise
        begin_commit()
        await self._apart(self._commit())

    async def roll_back(self) -> None:
        """Undo everything and give the connection back; a statement under way is broken off."""
        if self._process != os.getpid():
            return
        with self._lock:
            if self._is_ending:
                return
            self._over = _ended
            self._is_ending = is_unused = not self._busy
        if is_unused:
            await self._apart(self._transaction.roll_back())
        else:
            self._is_broken_off = True
            self._break_off()

    async def _commit(self) -> None:
        try:
            await self._transaction.flush()
            before_commit(self, is_block=True)
            await self._transaction.commit(self._refuse_half)
            after_commit(self, is_block=True)
            self.is_committed = True
        except BaseException as error:
            await self._transaction.roll_back()
            if self._is_in_doubt(error):
                raise UnknownOutcome(
                    "COMMIT was sent and its answer was lost: either the whole block is committed or nothing is; "
                    "read the job before you run the block again"
                ) from error
            if (lost := self._lost(error)) is not None:
                raise lost from error
            raise

    async def _do(self, work: Coroutine[Any, Any, R], *, mends: bool = False) -> R:
        """Run *work*, if the transaction is still the block's."""
        try:
            self._enter(mends=mends)
        except BaseException:
            work.close()
            raise
        try:
            return await self._step(work, mends=mends)
        except asyncio.CancelledError:
            self._course.spoil("it was cancelled, and may or may not have run")
            raise
        except Exception as error:
            lost = self._lost(error)
            if lost is not None or isinstance(error, WrongConnection):
                self._course.spoil(str(lost or error))  # whoever swallows it does not commit the rest
            if lost is not None:
                raise lost from error
            raise
        finally:
            await self._leave()

    async def _refuse_half(self) -> None:
        """Raise if a COMMIT that is sent now would not commit the whole block, and nothing else."""
        self._course.refuse_broken()
        self._refuse_ended()
        if not await self._borrowed.run(is_marked, self._mark_name):
            raise ended_by_user()

    def _refuse_ended(self) -> None:
        """Raise if the user's code has ended the transaction: by the library, or by a statement on its connection.

        Some drivers would commit each further statement of ours alone.
        """
        self._transaction.refuse_ended()
        try:
            self._borrowed.refuse_ended()
        except (TransactionRequired, WrongConnection) as error:
            raise self._lost(error) or error from error

    def _enter(self, *, mends: bool) -> None:
        self._refuse_child()
        with self._lock:
            self.refuse_unusable(mends=mends)
            self._busy += 1

    async def _leave(self) -> None:
        """Let go; whoever broke it off has left it to us to give the connection back."""
        with self._lock:
            self._busy -= 1
            is_ours_to_end = self._over is not None and not self._busy and not self._is_ending
            self._is_ending |= is_ours_to_end
        if is_ours_to_end:
            await self._apart(self._transaction.roll_back())

    def _is_in_doubt(self, error: BaseException) -> bool:
        """Tell whether COMMIT was sent, and it was not the database itself that refused it."""
        if not self._transaction.is_commit_sent or sqlstate_of(error) == SAT_TOO_LONG:
            return False
        return said_by_database(error) is None or self._transaction.is_lost(error)

    def _lost(self, error: BaseException) -> HoldfastError | None:
        """Say why the connection or its transaction is gone, if it is."""
        if isinstance(error, TransactionRequired):
            return ended_by_user()
        if sqlstate_of(error) == SAT_TOO_LONG:
            return TransactionTimeout(
                "this block sent no statement for as long as its lease lasts, so the server rolled it back; do the "
                "long work before the block"
            )
        if self._is_broken_off:
            return _broken_off()
        is_closed = isinstance(error, WrongConnection) and self._is_closed()  # or another statement is under way
        if is_closed or (not isinstance(error, HoldfastError) and self._transaction.is_lost(error)):
            return Unavailable(
                "the connection of this block was lost, so everything in the block is rolled back; let the error "
                "leave the block, and try again"
            )
        return None

    def _is_closed(self) -> bool:
        """Tell whether the driver's connection can do nothing more."""
        try:
            self._borrowed.refuse_ended()
        except WrongConnection:
            return True
        except TransactionRequired:
            pass
        return False

    async def _step(self, work: Coroutine[Any, Any, R], *, mends: bool) -> R:
        """Run *work*, which `_break_off` may end."""
        return await work

    def _break_off(self) -> None:
        """End the statements under way."""
        self._transaction.break_off()

    async def _apart(self, work: Coroutine[Any, Any, R]) -> R:
        """Run *work* to its end, whoever is cancelled meanwhile."""
        return await work

    def _refuse_child(self) -> None:
        if self._process != os.getpid():
            raise Misuse(
                "this block was opened before the process was forked, and belongs to the parent process; use it "
                "only there"
            )


class AsyncOrmTransaction(OrmTransaction):
    """A `UserTransaction` in the shape of an `OpenTx`, in an event loop; what is done in it at once is done in turn."""

    def __init__(
        self, transaction: UserTransaction, borrowed: Borrowed, course: TransactionWatch, mark_name: str
    ) -> None:
        super().__init__(transaction, borrowed, course, mark_name)
        self._steps: set[asyncio.Task[Any]] = set()
        self._turn = asyncio.Lock()

    async def _step(self, work: Coroutine[Any, Any, R], *, mends: bool) -> R:
        """Run *work* in a task of its own, which is cancelled with its caller, or without."""
        step: asyncio.Task[R] = asyncio.ensure_future(self._in_turn(work, mends=mends))
        self._steps.add(step)
        try:
            return await step
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._is_broken_off and caller is not None and not caller.cancelling():
                raise _broken_off() from None
            raise
        finally:
            self._steps.discard(step)
            work.close()  # it may never have had its turn

    async def _in_turn(self, work: Coroutine[Any, Any, R], *, mends: bool) -> R:
        """Run *work* when no other is under way, if the block is still in order then."""
        if HAS_TURN.get() is self:  # a hook of the user's inside a statement, which would wait for itself
            return await work
        async with self._turn:
            self.refuse_unusable(mends=mends)
            HAS_TURN.set(self)
            return await work

    def _break_off(self) -> None:
        """Cancel the statements under way, as their drivers know how to: also on the server."""
        for each in self._steps:
            each.cancel()

    async def _apart(self, work: Coroutine[Any, Any, R]) -> R:
        """Run *work* in a task of its own; a caller who is cancelled waits for it."""
        return await apart(work)


HAS_TURN: ContextVar[AsyncOrmTransaction | None] = ContextVar("HAS_TURN", default=None)
"""The block whose statement this task is, or was begun by."""


class OrmTx:
    """A provided transaction as operations see it, a call for each statement."""

    def __init__(self, provided: OrmTransaction, database: Database) -> None:
        self.database: Database = database
        self._provided = provided

    async def execute(self, sql: str, /, **values: object) -> None:

        async def execute(tx: Tx) -> None:
            await tx.execute(sql, **values)

        await self._provided.run(execute)

    async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:

        async def fetch(tx: Tx) -> list[Row]:
            return await tx.fetch_all(sql, **values)

        return await self._provided.run(fetch)


async def begin_provided(
    transaction: UserTransaction,
    lender: Borrower,
    identity: Identity,
    course: TransactionWatch,
    lease_seconds: float,
    first: First | None,
    *,
    is_async: bool,
) -> OrmTransaction:
    """Begin *transaction* and make it a block's; *first* runs in it before anybody has it."""
    mark_name = token_hex(8)
    await lender.know(identity)  # now, and not while we hold the right to write
    try:
        await transaction.begin(course)
        borrowed = await lender.borrow(transaction.session, is_async=is_async, identity=identity)
        await borrowed.run(mark, mark_name, lease_seconds)
        if first is not None:
            await borrowed.run(first)
    except BaseException:
        rolling_back = transaction.roll_back()
        await (apart(rolling_back) if is_async else rolling_back)
        raise
    return (AsyncOrmTransaction if is_async else OrmTransaction)(transaction, borrowed, course, mark_name)


async def apart(work: Coroutine[Any, Any, R]) -> R:
    """Run *work* in a task of its own; a caller who is cancelled waits for it, and is then cancelled."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):  # it is raised all the same, when the outcome is known
                await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # whoever is cancelled hears nothing else
        raise


def ended_by_user() -> HoldfastError:
    """Make the error for a transaction that the user's code has ended itself."""
    return TransactionBroken(
        "commit(), rollback() or close() on the session ended the transaction of this block, but only Holdfast may "
        "end it: leave the block to commit, raise to roll back, and write `tx.savepoint()` around a part that may "
        "fail"
    )


def _ended() -> HoldfastError:
    return Misuse("this block has ended, so its transaction cannot be used any more; use it only inside the block")


def _broken_off() -> HoldfastError:
    return TransactionBroken(
        "this block was interrupted during a statement, because its task was cancelled or its job was stopped; "
        "everything in the block is rolled back: let the error leave the block"
    )
