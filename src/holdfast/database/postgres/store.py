"""The store on a PostgreSQL server: what the faces call, in both colours."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

from holdfast.database import migrations
from holdfast.database.dialect import Dialect, PostgresDialect, channel
from holdfast.database.hints import HintListener, Hints, Notify, OnHint
from holdfast.database.postgres.address import PATIENT_SECONDS, Address, block_plan
from holdfast.database.postgres.block import PostgresTransaction
from holdfast.database.postgres.colours import AsyncSide, BlockingSide, Side
from holdfast.database.postgres.connections import LEFT_TO_PARENTS, Connections
from holdfast.database.postgres.deadline import Deadline
from holdfast.database.postgres.execution import Execution, Opening, Reading
from holdfast.database.postgres.group import AsyncGroup, BlockingGroup, Run
from holdfast.database.postgres.listener import HintChannel, NoListener
from holdfast.database.postgres.migrating import TakingStep
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
    is_giving_way,
    is_one_write,
    is_patient,
    is_repeatable,
)
from holdfast.runtime import Runtime
from holdfast.settings import Settings

AnySide = TypeVar("AnySide", AsyncSide, BlockingSide)


class PostgresStore:
    """Our tables on a PostgreSQL server, and transactions of our own there.

    >>> store = PostgresStore(Settings(database="postgresql://localhost/app"))
    """

    dialect: Dialect
    database: Database = "postgres"

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime | None = None,
        *,
        connections: Connections | None = None,
        address: Address | None = None,
    ) -> None:
        self.dialect = PostgresDialect(settings.schema_name)
        self._settings = settings
        self._runtime = runtime or Runtime()
        self._is_guest = connections is not None
        self._connections = connections or Connections(settings, self._runtime, self.dialect, address)
        self._is_checked = False
        self._sides: dict[Side, Side] = {}
        self._hints = Hints(self._hint_source)
        STORES.add(self)

    def for_schema(self, schema: str) -> PostgresStore:
        """Make a store for another *schema* on the same connections; to close it closes none of them.

        It may have a part of them at a time, so that one schema with locked tables does not keep the others waiting.
        """
        settings = self._settings.model_copy(update={"schema_name": schema})
        self._connections.note_schema(schema)
        return PostgresStore(settings, self._runtime, connections=self._connections)

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
        opening = Opening(side, first, block_plan(self._connections.block_address, lease_seconds), self._deadline())
        return PostgresTransaction(side, await opening.run(), self._settings.deadline_seconds)

    def begin_sync(self, lease_seconds: float, first: First | None = None) -> OpenTx:
        """Open a transaction around a user's code, blocking."""
        self._check_sync()
        side = self._blocking_side()
        opening = Opening(side, first, block_plan(self._connections.block_address, lease_seconds), self._deadline())
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
        self._forget()
        if not self._is_guest:
            await self._connections.close()

    def close_sync(self) -> None:
        """Let go of what belongs to no running event loop; the next use opens it again."""
        self._forget()
        if not self._is_guest:
            self._connections.close_sync()

    async def migrate(self) -> list[str]:
        """Bring the schema up to date, a transaction for each step; return the names of the steps taken."""
        side = self._async_side()
        await side.finish(self._standing(side))  # by the usual deadline: a step may take long, to connect may not
        taken = []
        while (name := await side.finish(TakingStep(side, self._connections.address))) is not None:
            taken.append(name)
        return taken

    def migrate_sync(self, *, anew: bool = True) -> list[str]:
        """Bring the schema up to date, blocking, or raise if there is none, unless *anew*; return the steps taken."""
        side = self._blocking_side()
        side.finish(self._standing(side))
        taken = []
        while (name := side.finish(TakingStep(side, self._connections.address, anew=anew))) is not None:
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

    def role_sync(self) -> str:
        """Name the role by which the server knows us; whatever that role may do."""
        side = self._blocking_side()
        return side.finish(self._reading(side, _role, _role))

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
            return Execution(side, work, self._connections.address.patient, deadline, is_repeatable=repeats)
        address = self._connections.address
        plan = address.alone if is_one_write(operation) else address.write
        if is_giving_way(operation):
            plan = address.giving_way
        return Execution(side, work, plan, self._deadline(), is_repeatable=repeats)

    def _reading(
        self,
        side: Side,
        operation: Callable[..., Any],
        work: Callable[[Tx], Coroutine[Any, Any, R]],
    ) -> Execution[R]:
        if self._settings.transaction_pooler:  # the time-outs travel with BEGIN, so there must be one
            return Execution(side, work, self._connections.address.view, self._deadline())
        return Reading(
            side, operation, work, self._connections.address.view, self._deadline(), self._connections.multi_statement
        )

    def _standing(self, side: AsyncSide | BlockingSide) -> Execution[migrations.SchemaVersion]:
        return self._reading(side, migrations.standing, lambda tx: migrations.standing(tx, self.database))

    async def _check_schema(self, tx: Tx) -> None:
        await migrations.check(tx, self.database)

    def _flight(self, side: Side, operation: ListOperation[T, R]) -> Run[T, R]:
        repeats = is_repeatable(operation)

        async def run(items: Sequence[T], deadline: Deadline) -> Sequence[R]:
            plan = self._connections.address.alone if only_insert(items) else self._connections.address.write
            return await Execution(side, bound(operation, items), plan, deadline, is_repeatable=repeats).run()

        return run

    def _hint_source(self, notify: Notify) -> HintChannel | NoListener:
        listener = self._connections.listener
        if listener is None:
            return NoListener()
        return HintChannel(listener, channel(self._settings.schema_name), notify)

    def _deadline(self) -> Deadline:
        return Deadline(self._runtime.monotonic, self._settings.deadline_seconds)

    def _async_side(self) -> AsyncSide:
        side = self._connections.async_side()
        return self._own(side) if self._is_guest else side

    def _blocking_side(self) -> BlockingSide:
        side = self._connections.blocking_side()
        return self._own(side) if self._is_guest else side

    def _own(self, side: AnySide) -> AnySide:
        """Give this schema's own view of a *side* that others share."""
        if (own := self._sides.get(side)) is None:
            for closed in [each for each in tuple(self._sides) if each.is_closed]:
                self._sides.pop(closed, None)
            own = self._sides.setdefault(side, side.for_schema(self.dialect, self._connections.most_prepared))
        return cast("AnySide", own)

    def _forget(self) -> None:
        self._is_checked = False
        self._sides = {}

    def _forget_parent(self) -> None:
        LEFT_TO_PARENTS.extend((self._hints, *self._sides.values()))
        self._hints = Hints(self._hint_source)
        self._sides = {}


async def _role(tx: Tx) -> str:
    ((role,),) = await tx.fetch_all("SELECT CAST(current_user AS text)")
    return str(role)


def may_wait(items: Sequence[object]) -> bool:
    """Tell whether inserting *items* may wait for a stranger's transaction; nobody shall wait with them."""
    return any(getattr(item, "may_wait", False) for item in items)


def only_insert(items: Sequence[object]) -> bool:
    """Tell whether an operation on *items* is nothing but their INSERT, with its events: one statement."""
    return all(getattr(item, "only_inserts", False) for item in items)


STORES: weakref.WeakSet[PostgresStore] = weakref.WeakSet()


def forget_parents() -> None:
    """Leave, in a child process that was just forked, what every store has to the parent."""
    for store in STORES:
        store._forget_parent()


os.register_at_fork(after_in_child=forget_parents)
