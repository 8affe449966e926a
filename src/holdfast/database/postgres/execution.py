"""One operation from BEGIN to COMMIT, and again where that is safe.

What is known after a failure decides:

    before COMMIT was sent      surely rolled back: again, if it was a collision or the connection that failed
    COMMIT sent, an SQL error   surely rolled back: the server says so; without BEGIN, if it was the first statement
    COMMIT sent, answer lost    in doubt: again if the operation is repeatable (its rows are named by the caller,
                                so the second run finds what the first one did), else `UnknownOutcome`

The second run may find what the first one did, and write nothing. A COMMIT that writes nothing waits for no standby: it
would vouch for what a synchronous standby has not got. So the second run writes a message into the server's log, which
nobody reads, and its COMMIT waits for all that stands before it there.

The deadline covers all of it: the wait for a connection, connecting, every statement of every attempt, COMMIT.
Written once for both colours, like an operation: over the blocking side its awaits never suspend.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Generic

import psycopg
from psycopg.pq import TransactionStatus

from holdfast.database.postgres.address import FORGET_PLANS, PLANS_SECONDS, WRITE, Plan
from holdfast.database.postgres.colours import Side
from holdfast.database.postgres.deadline import Alarm, Deadline
from holdfast.database.postgres.errors import Trouble, diagnose, failure, first_line, no_answer
from holdfast.database.postgres.pool import PooledConnection
from holdfast.database.single_statement import MultiStatementReads
from holdfast.database.tx import Database, First, R, Row, Tx, bound
from holdfast.errors import StoreError, Unavailable, UnknownOutcome
from holdfast.fault_points import after_commit, before_commit, begin

MOST_COLLISIONS = 5
SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 1.0
CANCELLED_SECONDS = 1.0  # who is cancelled is to know what became of its COMMIT, but not to wait for a silent server

WRITE_TO_STANDBY = "SELECT pg_logical_emit_message(true, 'holdfast', '')"

IN_DOUBT = (
    "COMMIT was sent and its answer was lost: it happened wholly or not at all; read what is there before you try again"
)


class Execution(Generic[R]):
    """Runs *work* in a transaction that begins as *plan* says."""

    def __init__(
        self,
        side: Side,
        work: Callable[[Tx], Coroutine[Any, Any, R]],
        plan: Plan,
        deadline: Deadline,
        *,
        is_repeatable: bool = False,
    ) -> None:
        self._side = side
        self._work = work
        self._plan = plan
        self._deadline = deadline
        self._is_repeatable = is_repeatable
        self._alarm: Alarm | None = None
        self._is_committing = False
        self._is_in_doubt = False
        self._reason = ""
        self._failures = 0
        self._collisions = 0

    async def run(self) -> R:
        """Run it until its outcome is known, or cannot be."""
        while True:
            try:
                result = await self._attempt()
            except psycopg.Error as error:
                await self._pause_or_raise(error)
            except Unavailable as error:  # there is no connection to be had
                if not self._is_in_doubt:
                    raise
                raise UnknownOutcome(IN_DOUBT) from error
            else:
                self._side.outage.ends()
                return result

    def _break_off(self) -> None:
        """End the statement under way, for its caller is cancelled; a COMMIT under way has a little time left."""
        if self._alarm is not None and self._is_committing:
            seconds = min(CANCELLED_SECONDS, self._deadline.remaining())
            self._side.set(self._alarm, Deadline(self._side.monotonic, seconds))
        elif self._alarm is not None:
            self._alarm.ring()

    async def _attempt(self) -> R:
        self._is_committing = False
        lent = await self._side.pool.take(self._deadline)
        try:
            alarm = self._alarm = self._side.arm(lent.pgconn, self._deadline)
        except BaseException:  # no thread can be made
            self._side.pool.give_back(lent, is_clean=True)
            raise
        is_clean = False
        lent.tx.hasten_by(self._break_off)
        try:
            result = await self._transact(lent)
            is_clean = True
            return result
        except (Exception, asyncio.CancelledError):
            is_clean = await is_rolled_back(lent)
            raise
        finally:
            self._alarm = None
            lent.tx.hasten_by(None)
            alarm.disarm()
            self._side.pool.give_back(lent, is_clean=is_clean and not alarm.has_rung)

    async def _transact(self, lent: PooledConnection) -> R:
        if not self._plan.begin and not self._is_in_doubt:
            return await self._do_alone(lent)
        begin(lent.tx)
        await lent.tx.begin(self._plan.begin or WRITE)
        result = await self._work(lent.tx)
        if self._is_in_doubt:
            await lent.tx.execute(WRITE_TO_STANDBY)
        if lent.pgconn.transaction_status != TransactionStatus.INTRANS:
            raise RuntimeError("a store operation may not go on after an error of its transaction")
        before_commit(lent.tx)
        self._is_committing = self._plan.writes
        await lent.tx.commit()
        after_commit(lent.tx)
        return result

    async def _do_alone(self, lent: PooledConnection) -> R:
        """Run it without BEGIN; if a statement fails, what the ones before it have written is there."""
        self._is_committing = True  # from its first byte: the statement is its own COMMIT
        alone = Alone(lent.tx)
        try:
            result = await self._work(alone)
        except psycopg.Error:
            self._is_in_doubt |= alone.has_run
            raise
        after_commit(alone)
        return result

    async def _pause_or_raise(self, error: psycopg.Error) -> None:
        trouble = Trouble.COLLISION if error.sqlstate in self._plan.collisions else diagnose(error)
        self._failures += 1
        if not self._deadline.has_passed:  # then it failed by itself, and not because we shut its socket
            self._reason = self._side.scrub(first_line(error))
        if trouble is Trouble.LOST:
            self._side.drop_idle()
            self._is_in_doubt |= self._is_committing
        pause = self._pause(trouble)
        if not self._may_repeat(trouble) or pause >= self._deadline.remaining():
            if trouble is Trouble.MISTAKE and not self._is_in_doubt:
                raise error
            raise self._failure(trouble) from error
        await self._side.sleep(pause)

    def _may_repeat(self, trouble: Trouble) -> bool:
        if self._is_in_doubt and not self._is_repeatable:
            return False
        if trouble is Trouble.COLLISION:
            self._collisions += 1
            return self._collisions < MOST_COLLISIONS
        return trouble is Trouble.LOST

    def _pause(self, trouble: Trouble) -> float:
        """Wait longer each time, and not all at once; but not at all if a connection may just have grown old."""
        if trouble is Trouble.LOST and self._failures == 1:
            return 0.0
        most = min(LONGEST_PAUSE, SHORTEST_PAUSE * 2.0**self._failures)
        return most * (0.5 + 0.5 * self._side.chance.random())

    def _failure(self, trouble: Trouble) -> StoreError:
        if self._is_in_doubt:
            return UnknownOutcome(IN_DOUBT)
        if trouble is Trouble.LOST and not self._reason:  # it was we who have ended the connection
            error: StoreError = no_answer(self._deadline.seconds)
        else:
            error = failure(trouble, self._reason or f"no answer within {self._deadline.seconds:g} s")
        if trouble in (Trouble.LOST, Trouble.REFUSED):
            self._side.outage.begins(error)
        return error


class Alone:
    """No transaction: each statement commits by itself."""

    def __init__(self, tx: Tx) -> None:
        self.database = tx.database
        self.has_run = False
        self._tx = tx

    async def execute(self, sql: str, /, **values: object) -> None:
        await self._tx.execute(sql, **values)
        self.has_run = True

    async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:
        rows = await self._tx.fetch_all(sql, **values)
        self.has_run = True
        return rows


class Opening(Execution[PooledConnection]):
    """Begins a block's transaction, with *first* in it, and lends its connection, which the block gives back.

    It waits for a connection as long as its caller does, since blocks last as long as their users want. From then on it
    has its deadline.
    """

    def __init__(self, side: Side, first: First | None, plan: Plan, deadline: Deadline) -> None:
        super().__init__(side, _no_work, plan, deadline)
        self._first = first
        self._has_waited = False

    async def _attempt(self) -> PooledConnection:
        pool = self._side.blocks
        await pool.wait_for_place()
        if not self._has_waited:
            self._has_waited, self._deadline = True, self._deadline.again()
        lent = await pool.lend(self._deadline)
        is_open = is_clean = False
        alarm: Alarm | None = None
        try:
            alarm = self._alarm = self._side.arm(lent.pgconn, self._deadline)
            lent.tx.hasten_by(alarm.ring)  # who is cancelled waits for nothing
            await self._begin(lent)
            is_open = True
            return lent
        except Exception:
            is_clean = await is_rolled_back(lent)
            raise
        finally:
            self._alarm = None
            lent.tx.hasten_by(None)
            if alarm is not None:
                alarm.disarm()
            if not is_open:
                pool.give_back(lent, is_clean=is_clean and not (alarm is not None and alarm.has_rung))

    async def _begin(self, lent: PooledConnection) -> None:
        begin(lent.tx)
        now = self._side.monotonic()
        is_stale = self._plan.keeps_plans and now - lent.planned >= PLANS_SECONDS
        opening = f"{self._plan.begin}; {FORGET_PLANS}" if is_stale else self._plan.begin
        tx = OpeningTx(lent, opening)
        if self._first is not None:
            await bound(self._first)(tx)
        if not tx.has_begun:
            await lent.tx.begin(opening)
        if is_stale:
            lent.planned = now


class OpeningTx:
    """A transaction that begins, as *begin* says, with its first statement, in one round trip."""

    database: Database = "postgres"

    def __init__(self, lent: PooledConnection, begin: str) -> None:
        self.has_begun = False
        self._tx = lent.tx
        self._begin = begin

    async def execute(self, sql: str, /, **values: object) -> None:
        if self.has_begun:
            await self._tx.execute(sql, **values)
        else:
            await self._open(sql, values)

    async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:
        if self.has_begun:
            return await self._tx.fetch_all(sql, **values)
        return await self._open(sql, values)

    async def _open(self, sql: str, values: Mapping[str, object]) -> list[Row]:
        self.has_begun = True
        return await self._tx.begin_with(self._begin, sql, values)


async def _no_work(tx: Tx) -> Any:
    """Be the work of an opening: what comes after it is not its business."""


class Reading(Execution[R]):
    """Runs work that only reads: without a transaction, as far as *views* knows that one statement will do."""

    def __init__(
        self,
        side: Side,
        operation: Callable[..., Any],
        work: Callable[[Tx], Coroutine[Any, Any, R]],
        plan: Plan,
        deadline: Deadline,
        multi_statement: MultiStatementReads,
    ) -> None:
        super().__init__(side, work, plan, deadline)
        self._operation = operation
        self._multi_statement = multi_statement

    async def _transact(self, lent: PooledConnection) -> R:
        in_transaction = partial(super()._transact, lent)
        return await self._multi_statement.read(self._operation, self._work, lent.tx, in_transaction)


async def is_rolled_back(lent: PooledConnection) -> bool:
    """End what is left of a failed transaction; tell whether the connection can be used again."""
    if lent.pgconn.transaction_status == TransactionStatus.UNKNOWN:
        return False
    try:
        await lent.tx.roll_back()
    except psycopg.Error:
        return False
    return True
