"""A block: an open transaction, in the hands of a user's code, on a connection that is lent for as long.

Written once for both colours, like an operation: over the blocking side its awaits never suspend. Whoever ends a block
may be another than who uses it, and does not wait for a statement under way. It shuts the connection's socket, which
ends whatever the driver waits for, and the statement's own thread or task, when it has noticed, gives the connection
back: nobody closes one that somebody else is using. An async handler that must stop is cancelled, so its statement is
broken off; a plain one has its thread to itself, and learns it when its statement has ended.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus

from holdfast.database.postgres.address import READ_MARK
from holdfast.database.postgres.colours import Side
from holdfast.database.postgres.deadline import Alarm, CancellingAlarm, Deadline
from holdfast.database.postgres.errors import Trouble, diagnose, failure, first_line
from holdfast.database.postgres.execution import IN_DOUBT, is_rolled_back
from holdfast.database.postgres.pool import PooledConnection
from holdfast.database.postgres.tx import OwnAsyncPostgresTx, OwnPostgresTx
from holdfast.database.records import Record
from holdfast.database.statements import in_postgres
from holdfast.database.tx import Database, Last, ListOperation, Operation, P, R, Row, T, Tx, bound, no_session, nothing
from holdfast.errors import HoldfastError, Misuse, TransactionBroken, TransactionTimeout, Unavailable, UnknownOutcome
from holdfast.fault_points import after_commit, before_commit

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

    from holdfast.database.postgres.colours import Side

SAT_TOO_LONG = "25P03"  # idle_in_transaction_session_timeout
REFUSED = "22012"  # division_by_zero: how a last statement keeps COMMIT from being run


class PostgresTransaction:
    """The transaction that has begun on *lent*, in the shape of an `OpenTx`; what is ours has *seconds* each time."""

    def __init__(self, side: Side, lent: PooledConnection, seconds: float) -> None:
        self.is_committed = False
        self.tx: Tx = PostgresBlockTx(self)
        self._side = side
        self._lent = lent
        self._seconds = seconds
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._busy = 0
        self._savepoints = 0
        self.is_handed_out = False
        self._is_as_lent = True
        self._over: Callable[[], HoldfastError] | None = None
        self._is_ending = False
        self._is_broken_off = False
        self._has_rung = False
        self._ran_last: object = lent.tx
        """On what the operation ran that names the points of COMMIT."""
        lent.tx.hasten_by(self._break_off)

    @property
    def connection(self) -> Any:
        """The driver's own connection, psycopg's of the block's colour."""
        self.refuse_unusable()
        self.is_handed_out = True
        self._lent.tx.give_away()
        return self._lent.tx.connection

    @property
    def session(self) -> Any:
        """Refuse: it has none."""
        raise no_session()

    async def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in the block's transaction, by our deadline."""
        return await self.do(bound(operation, *args, **kwargs))

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in the block's transaction: it sees what was written there."""
        return await self.run(operation, *args, **kwargs)

    async def gather(self, operation: ListOperation[T, R], items: Sequence[T]) -> Sequence[R]:
        """Run a list operation in the block's transaction."""
        return await self.run(operation, items)

    async def query(self, sql: str, values: Mapping[str, object]) -> list[Record]:
        """Run the user's *sql* and return its rows."""
        statement = in_postgres(sql)
        given = statement.bind(values)
        self._enter()
        self._is_as_lent &= not statement.stays
        try:
            return await self._under_way(self._lent.tx.query(statement.text, given))
        except psycopg.Error as error:
            if (lost := self._lost(error)) is None:
                raise
            raise lost from error
        finally:
            self._leave()

    async def begin_savepoint(self) -> str:
        self._savepoints += 1
        name = f"holdfast_{self._savepoints}"
        await self.do(lambda tx: tx.execute(f"SAVEPOINT {name}"))
        return name

    async def release(self, name: str) -> None:
        await self.do(lambda tx: tx.execute(f"RELEASE {name}"))

    async def roll_back_to(self, name: str) -> None:
        await self.do(lambda tx: self._lent.tx.begin(f"ROLLBACK TO {name}; RELEASE {name}"), mends=True)

    def refuse_unusable(self, *, mends: bool = False) -> None:
        """Raise if it can no longer be committed; an error that a savepoint *mends* is let pass."""
        self._refuse_child()
        if self._is_broken_off:
            raise _broken_off()
        if self._over is not None:
            raise self._over()
        match self._lent.pgconn.transaction_status:
            case TransactionStatus.INTRANS | TransactionStatus.ACTIVE:
                return
            case TransactionStatus.INERROR:
                if mends:
                    return
                raise TransactionBroken(
                    "a statement of this block has failed, so the block cannot be committed; let the error leave "
                    "the block, or write `tx.savepoint()` around a statement that may fail"
                )
            case TransactionStatus.IDLE:
                raise _ended_by_user()
            case _:
                raise Unavailable(
                    "the connection of this block was lost, so everything in the block is rolled back; let the "
                    "error leave the block, and try again"
                )

    async def commit(self, last: Last | None = None, begin_commit: Callable[[], None] = nothing) -> None:
        """Run *last*, commit, and give the connection back; a caller who is cancelled waits for the outcome."""
        try:
            if last is not None and await self._commit_with_last(bound(last), begin_commit):
                return
            self._begin_end()
        except BaseException:
            await self.roll_back()
            raise
        begin_commit()
        if self.is_handed_out:
            await self._side.apart(self._commit(), lambda: None)
        else:
            await self._lent.tx.patiently(self._commit())

    async def roll_back(self) -> None:
        """Undo everything and give the connection back; a statement under way is broken off."""
        if self._process != os.getpid():
            return
        with self._lock:
            if self._is_ending:
                return
            is_used = self._busy or self._lent.pgconn.transaction_status == TransactionStatus.ACTIVE
            self._over = _ended
            self._is_ending = not is_used
        if is_used:
            self._break_off()
        elif self.is_handed_out:
            await self._side.apart(self._roll_back(), self._break_off)
        else:
            await self._roll_back()

    async def do(self, work: Callable[[Tx], Coroutine[Any, Any, R]], *, mends: bool = False) -> R:
        """Run *work* of ours, by our deadline, with our errors."""
        self._enter(mends=mends)
        alarm: Alarm | None = None
        try:
            alarm = self._arm()
            return await self._under_way(work(self._lent.tx))
        except psycopg.Error as error:
            if (ours := self._of_ours(error, alarm)) is error:
                raise
            raise ours from error
        finally:
            if alarm is not None:
                alarm.disarm()
                self._has_rung |= alarm.has_rung
            self._leave()

    async def _under_way(self, work: Coroutine[Any, Any, R]) -> R:
        """Run *work* to its end; a caller who is cancelled has it broken off, and waits for that."""
        if self.is_handed_out:  # the connection waits as its user expects, who may have to wait long
            return await self._side.apart(work, self._break_off)
        try:
            return await work
        except asyncio.CancelledError:
            if not self._is_broken_off and not self._is_ending:  # it waited for another statement of the block
                self._break_off()
            raise

    def _enter(self, *, mends: bool = False) -> None:
        self._refuse_child()
        with self._lock:
            self.refuse_unusable(mends=mends)
            self._busy += 1

    def _leave(self) -> None:
        """Let go; whoever broke it off has left it to us to give the connection back."""
        with self._lock:
            self._busy -= 1
            is_ours_to_end = self._over is not None and not self._busy and not self._is_ending
            self._is_ending |= is_ours_to_end
        if is_ours_to_end:
            self._give_back(is_clean=False)

    def _begin_end(self, own: int = 0) -> None:
        """Let nobody else use or end it any more; *own* is how many statements under way are its end's."""
        with self._lock:
            self.refuse_unusable()
            if self._busy > own:
                raise TransactionBroken("a statement of this block is still running; await it inside the block")
            self._over, self._is_ending = _ended, True

    async def _commit_with_last(self, last: Last, begin_commit: Callable[[], None]) -> bool:
        """Run *last*; tell whether COMMIT was in its last round trip, and the connection is given back."""
        ending = self._ran_last = EndingTx(self, self._lent.tx, begin_commit)
        try:
            await self.do(lambda _: last(ending))
            return ending.is_over
        finally:
            if ending.is_over:
                self._give_back(is_clean=ending.is_clean and not self._has_rung)

    async def commit_with(self, ending: EndingTx, sql: str, values: Mapping[str, object]) -> None:
        """Run *sql* and COMMIT in one round trip; if *sql* refuses that, all is as it was before."""
        tx = self._lent.tx
        self._begin_end(own=1)
        ending.is_over = True
        is_sent = False
        try:
            if has_spoken(self._lent.pgconn):
                await tx.fetch_all("SELECT 1")
            before_commit(ending, is_block=True)
            is_sent = True
            await tx.run_and_commit("SAVEPOINT holdfast_end", sql, values)
            self.is_committed = ending.is_clean = True
        except psycopg.Error as error:
            if error.sqlstate == REFUSED and self._lent.pgconn.transaction_status == TransactionStatus.INERROR:
                await tx.begin("ROLLBACK TO holdfast_end; RELEASE holdfast_end")
                self._over, self._is_ending, ending.is_over = None, False, False
                return
            ending.is_clean = await is_rolled_back(self._lent)
            if is_sent and is_in_doubt(error):
                raise UnknownOutcome(IN_DOUBT) from error
            raise
        after_commit(ending, is_block=True)

    async def _commit(self) -> None:
        is_sent = is_clean = False
        alarm: Alarm | None = None
        try:
            alarm = self._arm()
            if self.is_handed_out and await self._lent.tx.fetch_all(READ_MARK) != [("open",)]:
                raise _ended_by_user()
            if has_spoken(self._lent.pgconn):  # to COMMIT there would be two answers, if a pooler says farewell too
                await self._lent.tx.fetch_all("SELECT 1")
            before_commit(self._ran_last, is_block=True)
            is_sent = True
            await self._lent.tx.commit()
            self.is_committed = is_clean = True
            after_commit(self._ran_last, is_block=True)
        except psycopg.Error as error:
            is_clean = await is_rolled_back(self._lent)
            if is_sent and is_in_doubt(error):
                raise UnknownOutcome(IN_DOUBT) from error
            if (ours := self._of_ours(error, alarm)) is error:
                raise
            raise ours from error
        finally:
            if alarm is not None:
                alarm.disarm()
            self._give_back(is_clean=is_clean and not (alarm is not None and alarm.has_rung))

    async def _roll_back(self) -> None:
        is_clean = False
        alarm: Alarm | None = None
        try:
            alarm = self._arm()
            is_clean = await is_rolled_back(self._lent) and not alarm.has_rung
        except RuntimeError:  # no thread can be made, as at the interpreter's end: the server will see us gone
            is_clean = False
        finally:
            if alarm is not None:
                alarm.disarm()
            self._give_back(is_clean=is_clean)

    def _give_back(self, *, is_clean: bool) -> None:
        # whoever was given the connection may still have it when another block has, and say COMMIT there
        is_as_lent = self._is_as_lent and not self.is_handed_out
        self._lent.tx.hasten_by(None)
        self._side.blocks.give_back(self._lent, is_clean=is_clean and is_as_lent)

    def _break_off(self) -> None:
        """End whatever the driver waits for, here and on the server."""
        self._is_broken_off = True
        CancellingAlarm(self._lent.pgconn, self._side.cancels).ring()

    def _arm(self) -> Alarm:
        return self._side.arm_cut(self._lent.pgconn, Deadline(self._side.monotonic, self._seconds))

    def _of_ours(self, error: psycopg.Error, alarm: Alarm | None) -> Exception:
        if self._is_ending and isinstance(error, psycopg.IntegrityError):
            return error  # a constraint of the user's, which is checked at COMMIT
        if alarm is not None and alarm.has_rung and error.sqlstate != SAT_TOO_LONG:
            return Unavailable(f"the database did not answer within {self._seconds:g} s; try again")
        if (lost := self._lost(error)) is not None:
            return lost
        trouble = diagnose(error)
        return error if trouble is Trouble.MISTAKE else failure(trouble, self._side.scrub(first_line(error)))

    def _lost(self, error: psycopg.Error) -> HoldfastError | None:
        """Say why the connection is gone, if it is."""
        if error.sqlstate == SAT_TOO_LONG:
            return TransactionTimeout(
                "this block sent no statement for as long as its lease lasts, so the server rolled it back; do the "
                "long work before the block"
            )
        if self._is_broken_off:
            return _broken_off()
        if diagnose(error) is not Trouble.LOST:
            return None
        self._side.drop_idle()
        return failure(Trouble.LOST, self._side.scrub(first_line(error)))

    def _refuse_child(self) -> None:
        if self._process != os.getpid():
            raise Misuse(
                "this block was opened before the process was forked, and belongs to the parent process; use it "
                "only there"
            )


class PostgresBlockTx:
    """A block's transaction as operations see it, each statement by our deadline."""

    database: Database = "postgres"

    def __init__(self, block: PostgresTransaction) -> None:
        self._block = block

    async def execute(self, sql: str, /, **values: object) -> None:
        await self._block.do(lambda tx: tx.execute(sql, **values))

    async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:
        return await self._block.do(lambda tx: tx.fetch_all(sql, **values))


class EndingTx:
    """A block's transaction that may commit with its last statement, in one round trip; *begin_commit* is told before.

    Where the connection was handed out it cannot: then COMMIT comes after a look whose transaction it is.
    """

    database: Database = "postgres"

    def __init__(
        self, block: PostgresTransaction, tx: OwnAsyncPostgresTx | OwnPostgresTx, begin_commit: Callable[[], None]
    ) -> None:
        self.is_over = False
        """Whether it has committed, or failed to: it cannot be used any more."""
        self.is_clean = False
        """Whether its connection then can."""
        self._block = block
        self._tx = tx
        self._begin_commit = begin_commit

    async def execute(self, sql: str, /, **values: object) -> None:
        await self._tx.execute(sql, **values)

    async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:
        return await self._tx.fetch_all(sql, **values)

    async def commit_with(self, sql: str, /, **values: object) -> bool:
        """Run *sql* and COMMIT, unless *sql* divides by zero; tell whether that happened."""
        if self._block.is_handed_out:
            return False
        self._begin_commit()
        await self._tx.patiently(self._block.commit_with(self, sql, values))
        return self.is_over


def is_in_doubt(error: psycopg.Error) -> bool:
    """Tell whether a COMMIT that was sent and met *error* may have happened all the same."""
    return diagnose(error) is Trouble.LOST and error.sqlstate != SAT_TOO_LONG


def has_spoken(pgconn: PGconn) -> bool:
    """Tell whether the server has said something unasked, as one does that has ended the transaction."""
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))


def _ended() -> HoldfastError:
    return Misuse("this block has ended, so its transaction cannot be used any more; use it only inside the block")


def _broken_off() -> HoldfastError:
    return TransactionBroken(
        "this block was interrupted during a statement, because its task was cancelled or its job was stopped; "
        "everything in the block is rolled back: let the error leave the block"
    )


def _ended_by_user() -> HoldfastError:
    return TransactionBroken(
        "a statement on tx.connection ended the transaction of this block, but only Holdfast may end it: leave the "
        "block to commit, raise to roll back"
    )
