"""The store on a PostgreSQL server: what the faces call, in both colours."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from holdfast.database import migrations
from holdfast.database.dialect import Dialect, PostgresDialect, channel
from holdfast.database.hints import HintListener, Hints, Notify, OnHint
from holdfast.database.postgres.address import PATIENT_SECONDS, Address, block_plan
from holdfast.database.postgres.block import PostgresTransaction
from holdfast.database.postgres.colours import AsyncSide, BlockingSide, Resources, Side, abandon
from holdfast.database.postgres.deadline import Cancels, Deadline
from holdfast.database.postgres.execution import Execution, Opening, Reading
from holdfast.database.postgres.group import AsyncGroup, BlockingGroup, Run
from holdfast.database.postgres.listener import HintSource, NoListener
from holdfast.database.postgres.migrating import TakingStep
from holdfast.database.single_statement import MultiStatementReads
from holdfast.database.tx import (
    Database,
    First,
    ListOperation,
    OpenTx,
    Operation,
    P,
    R,
    T,
    Tx,
    bound,
    is_one_write,
    is_patient,
    is_repeatable,
)
from holdfast.runtime import Runtime
from holdfast.settings import Settings


class PostgresStore:
    """Our tables on a PostgreSQL server, and transactions of our own there.

    >>> store = PostgresStore(Settings(database="postgresql://localhost/app"))
    """

    dialect: Dialect
    database: Database = "postgres"

    def __init__(self, settings: Settings, runtime: Runtime | None = None) -> None:
        self.dialect = PostgresDialect(settings.schema_name)
        self._settings = settings
        self._runtime = runtime or Runtime()
        self._address = Address.of(settings)
        self._block_address = Address.for_blocks(settings)
        self._cancels = Cancels(self._runtime, settings.deadline_seconds)
        self._multi_statement = MultiStatementReads()
        self._is_checked = False
        self._lock = threading.Lock()
        self._async_sides: dict[asyncio.AbstractEventLoop, AsyncSide] = {}
        self._blocking: BlockingSide | None = None
        self._hints = Hints(self._listener)
        STORES.add(self)

    async def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in a write transaction, again after a failure that left nothing."""
        await self._check()
        side = self._async_side()
        writing: Execution[R] = self._writing(side, operation, bound(operation, *args, **kwargs))
        return await side.finish(writing)

    def run_sync(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in a write transaction, again after a failure that left nothing; blocking."""
        self._check_sync()
        side = self._blocking_side()
        writing: Execution[R] = self._writing(side, operation, bound(operation, *args, **kwargs))
        return side.finish(writing)

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        await self._check()
        side = self._async_side()
        reading: Execution[R] = self._reading(side, operation, lambda tx: operation(tx, *args, **kwargs))
        return await side.finish(reading)

    def read_sync(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        self._check_sync()
        side = self._blocking_side()
        reading: Execution[R] = self._reading(side, operation, lambda tx: operation(tx, *args, **kwargs))
        return side.finish(reading)

    async def gather(self, operation: ListOperation[T, R], items: Sequence[T]) -> Sequence[R]:
        if may_wait(items):
            return await self.run(operation, items)
        await self._check()
        side = self._async_side()
        group: AsyncGroup[T, R] | None = side.groups.get(operation)
        if group is None:
            group = side.groups[operation] = AsyncGroup(self._flight(side, operation), side.here, side.spawn)
        return await group.call(items, self._deadline())

    def gather_sync(self, operation: ListOperation[T, R], items: Sequence[T]) -> Sequence[R]:
        if may_wait(items):
            return self.run_sync(operation, items)
        self._check_sync()
        side = self._blocking_side()
        group: BlockingGroup[T, R] | None = side.groups.get(operation)
        if group is None:
            group = side.groups.setdefault(operation, BlockingGroup(self._flight(side, operation)))
        return group.call(items, self._deadline())

    async def begin(self, lease_seconds: float, first: First | None = None) -> OpenTx:
        """Open a transaction around a user's code, on a connection of the blocks' pool."""
        await self._check()
        side = self._async_side()
        opening = Opening(side, first, block_plan(self._block_address, lease_seconds), self._deadline())
        return PostgresTransaction(side, await opening.run(), self._settings.deadline_seconds)

    def begin_sync(self, lease_seconds: float, first: First | None = None) -> OpenTx:
        """Open a transaction around a user's code, blocking."""
        self._check_sync()
        side = self._blocking_side()
        opening = Opening(side, first, block_plan(self._block_address, lease_seconds), self._deadline())
        return PostgresTransaction(side, side.finish(opening), self._settings.deadline_seconds)

    async def open(self) -> None:
        """Connect, and check that the server is new enough and has our schema."""
        side = self._async_side()
        await side.finish(self._reading(side, migrations.check, self._check_schema))
        self._is_checked = True

    def open_sync(self) -> None:
        """Connect, and check that the server is new enough and has our schema, blocking."""
        side = self._blocking_side()
        side.finish(self._reading(side, migrations.check, self._check_schema))
        self._is_checked = True

    async def close(self) -> None:
        """Let go of every connection, task and thread of both sides; the next use opens it again."""
        with self._lock:
            own = self._async_sides.pop(asyncio.get_running_loop(), None)
        if own is not None:
            await own.close()
        self.close_sync()

    def close_sync(self) -> None:
        """Let go of what belongs to no running event loop; the next use opens it again."""
        self._is_checked = False
        with self._lock:
            blocking, self._blocking = self._blocking, None
            self._drop_sides_of_stopped_loops()
        if blocking is not None:
            blocking.close()
        self._cancels.stop()

    async def migrate(self) -> list[str]:
        """Bring the schema up to date, a transaction for each step; return the names of the steps taken."""
        side = self._async_side()
        await side.finish(self._standing(side))  # by the usual deadline: a step may take long, to connect may not
        taken = []
        while (name := await side.finish(TakingStep(side, self._address))) is not None:
            taken.append(name)
        return taken

    def migrate_sync(self) -> list[str]:
        """Bring the schema up to date, blocking; return the names of the steps taken."""
        side = self._blocking_side()
        side.finish(self._standing(side))
        taken = []
        while (name := side.finish(TakingStep(side, self._address))) is not None:
            taken.append(name)
        return taken

    def watch(self, on_hint: OnHint, *, follows_log: bool = False) -> HintListener:
        """Have *on_hint* called when a hint comes over the connection that listens, which all watches share."""
        return self._hints.watch(on_hint, follows_log=follows_log)

    def tidy(self) -> None:
        """Do nothing: a server looks after its own files."""

    def standing_sync(self) -> migrations.SchemaVersion:
        """Tell how far the schema has been brought; changes nothing."""
        side = self._blocking_side()
        return side.finish(self._standing(side))

    async def _check(self) -> None:
        if not self._is_checked:
            await self.open()

    def _check_sync(self) -> None:
        if not self._is_checked:
            self.open_sync()

    def _writing(
        self,
        side: Side,
        operation: Callable[..., Any],
        work: Callable[[Tx], Coroutine[Any, Any, R]],
    ) -> Execution[R]:
        repeats, seconds = is_repeatable(operation), self._settings.deadline_seconds
        if is_patient(operation) and seconds < PATIENT_SECONDS:
            deadline = Deadline(self._runtime.monotonic, PATIENT_SECONDS)
            return Execution(side, work, self._address.patient, deadline, is_repeatable=repeats)
        plan = self._address.alone if is_one_write(operation) else self._address.write
        return Execution(side, work, plan, self._deadline(), is_repeatable=repeats)

    def _reading(
        self,
        side: Side,
        operation: Callable[..., Any],
        work: Callable[[Tx], Coroutine[Any, Any, R]],
    ) -> Execution[R]:
        if self._settings.transaction_pooler:  # the time-outs travel with BEGIN, so there must be one
            return Execution(side, work, self._address.view, self._deadline())
        return Reading(side, operation, work, self._address.view, self._deadline(), self._multi_statement)

    def _standing(self, side: AsyncSide | BlockingSide) -> Execution[migrations.SchemaVersion]:
        return self._reading(side, migrations.standing, lambda tx: migrations.standing(tx, self.database))

    async def _check_schema(self, tx: Tx) -> None:
        await migrations.check(tx, self.database)

    def _flight(self, side: Side, operation: ListOperation[T, R]) -> Run[T, R]:
        repeats = is_repeatable(operation)

        async def run(items: Sequence[T], deadline: Deadline) -> Sequence[R]:
            plan = self._address.alone if only_insert(items) else self._address.write
            return await Execution(side, bound(operation, items), plan, deadline, is_repeatable=repeats).run()

        return run

    def _listener(self, notify: Notify) -> HintSource | NoListener:
        self._source: HintSource | NoListener = NoListener()
        settings = self._settings
        if settings.listen_url is not None or not settings.transaction_pooler:
            direct = {"database": settings.listen_url or settings.database, "transaction_pooler": False}
            address = Address.of(settings.model_copy(update=direct))
            self._source = HintSource(address, channel(settings.schema_name), self._runtime, notify)
        return self._source

    def _deadline(self) -> Deadline:
        return Deadline(self._runtime.monotonic, self._settings.deadline_seconds)

    def _async_side(self) -> AsyncSide:
        loop = asyncio.get_running_loop()
        if (side := self._async_sides.get(loop)) is None:
            with self._lock:
                self._drop_sides_of_stopped_loops()
                side = self._async_sides[loop] = AsyncSide(self._resources())
        return side

    def _blocking_side(self) -> BlockingSide:
        if (side := self._blocking) is None:
            with self._lock:
                side = self._blocking = self._blocking or BlockingSide(self._resources())
        return side

    def _resources(self) -> Resources:
        size = self._settings.pool_size
        return Resources(
            self._address,
            self._block_address,
            self.dialect,
            size,
            self._runtime,
            self._cancels,
        )

    def _drop_sides_of_stopped_loops(self) -> None:
        for loop in [loop for loop in self._async_sides if not loop.is_running()]:
            self._async_sides.pop(loop).close_pools()

    def _forget_parent(self) -> None:
        """Leave to the parent what it has; keep the objects, so that no destructor says goodbye for it."""
        for side in (*self._async_sides.values(), self._blocking):
            if side is not None:
                LEFT_TO_PARENTS.append(side)
                abandon(side)
        LEFT_TO_PARENTS.extend((self._hints, self._cancels))
        self._cancels = Cancels(self._runtime, self._settings.deadline_seconds)
        self._source.abandon()
        self._hints = Hints(self._listener)
        self._lock = threading.Lock()
        self._async_sides = {}
        self._blocking = None


def may_wait(items: Sequence[object]) -> bool:
    """Tell whether inserting *items* may wait for a stranger's transaction; nobody shall wait with them."""
    return any(getattr(item, "may_wait", False) for item in items)


def only_insert(items: Sequence[object]) -> bool:
    """Tell whether an operation on *items* is nothing but their INSERT, with its events: one statement."""
    return all(getattr(item, "only_inserts", False) for item in items)


STORES: weakref.WeakSet[PostgresStore] = weakref.WeakSet()
LEFT_TO_PARENTS: list[object] = []


def forget_parents() -> None:
    """Drop, in a child process that was just forked, the connections of every store."""
    for store in STORES:
        store._forget_parent()


os.register_at_fork(after_in_child=forget_parents)
