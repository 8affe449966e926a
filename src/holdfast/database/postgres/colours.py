"""The two sides of a store, async and blocking: the few things that they do differently, each with its pools.

Everything above is written once, as coroutines that await nothing but their side. On the blocking side these
awaits never suspend, so that `drive()` finishes them; on the async one they are awaited, in the task of who calls: to
hand an operation to a task of its own cost two passes of the event loop. A caller who is cancelled waits until the
statement under way has been broken off, or its COMMIT is answered, a second at most (see `async_connection`).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeAlias

import psycopg
from psycopg.pq.abc import PGconn

from holdfast.database.dialect import Dialect
from holdfast.database.postgres.address import Address
from holdfast.database.postgres.deadline import (
    Alarm,
    AlarmThread,
    CancellingAlarm,
    Cancels,
    Deadline,
    LoopAlarms,
    Reminder,
)
from holdfast.database.postgres.pool import (
    AsyncConnector,
    AsyncPlaces,
    BlockingConnector,
    BlockingPlaces,
    ConnectionPool,
    Connector,
    Places,
    PoolShare,
)
from holdfast.database.tx import R, drive
from holdfast.errors import StoreError
from holdfast.logging import reason_of, say
from holdfast.models import R_co
from holdfast.runtime import Runtime

MakeConnector: TypeAlias = Callable[[Address, Dialect, int, Callable[[], float]], Connector]

SMALLEST_SHARE = 2

logger = logging.getLogger(__name__)


class Runs(Protocol[R_co]):
    """What a side runs to its end: one `Execution`."""

    async def run(self) -> R_co:
        """Do the work."""
        ...


class Outage:
    """Logs once that the database cannot be used, and once that it can be again."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._since: float | None = None

    def begins(self, error: StoreError) -> None:
        """Note that a call failed because the database is not there."""
        if self._since is None:
            self._since = self._monotonic()
            say(logger, "database_unavailable", reason=reason_of(error))

    def ends(self) -> None:
        """Note that a call succeeded."""
        if self._since is not None:
            seconds, self._since = self._monotonic() - self._since, None
            say(logger, "database_available", seconds=round(seconds, 1))


@dataclass(frozen=True, slots=True)
class Resources:
    """What both sides of one store are made from."""

    address: Address
    block_address: Address
    dialect: Dialect
    size: int
    runtime: Runtime
    cancels: Cancels


class Side:
    """What an execution and a block need of their colour.

    Blocks have a pool of their own: handlers that sit in them keep nobody from claiming, settling and renewing.
    """

    def __init__(self, resources: Resources, make_connector: MakeConnector) -> None:
        self.monotonic = resources.runtime.monotonic
        self.chance = resources.runtime.chance
        self.scrub = resources.address.scrub
        self.cancels = resources.cancels
        self.outage = Outage(self.monotonic)
        size, dialect = resources.size, resources.dialect
        for_blocks = make_connector(resources.block_address, dialect, size, self.monotonic)
        for_others = make_connector(resources.address, dialect, size, self.monotonic)
        blocks = ConnectionPool(for_blocks, dialect, size, self.monotonic, self.call_later)
        pool = ConnectionPool(for_others, dialect, size, self.monotonic, self.call_later)
        self.pools = (pool, blocks)
        self.pool: ConnectionPool | PoolShare = pool
        self.blocks: ConnectionPool | PoolShare = blocks
        self.groups: dict[Callable[..., Any], Any] = {}
        self._share = max(SMALLEST_SHARE, size // 4)

    @property
    def is_closed(self) -> bool:
        """Tell whether its pools are."""
        return all(pool.is_closed for pool in self.pools)

    def for_schema(self, dialect: Dialect, most_prepared: Callable[[], int]) -> Self:
        """Make the side of another schema: it shares every connection, a part of them at a time, and no commit."""
        side = copy(self)
        pool, blocks = self.pools
        side.pool = PoolShare(pool, self.make_places(self._share), self._share, dialect, most_prepared)
        side.blocks = PoolShare(blocks, self.make_places(self._share), self._share, dialect, most_prepared)
        side.groups = {}
        return side

    def make_places(self, number: int) -> Places:
        """Make *number* places to wait for."""
        raise NotImplementedError

    def call_later(self, seconds: float, function: Callable[[], None]) -> Callable[[], object]:
        """Have *function* called in *seconds*; give what takes that back."""
        raise NotImplementedError

    def arm(self, pgconn: PGconn, deadline: Deadline) -> Alarm:
        """Have the connection's socket shut when *deadline* passes."""
        alarm = Alarm(pgconn)
        self.set(alarm, deadline)
        return alarm

    def arm_cut(self, pgconn: PGconn, deadline: Deadline) -> CancellingAlarm:
        """Have the connection's socket shut when *deadline* passes, and what runs there ended on the server."""
        alarm = CancellingAlarm(pgconn, self.cancels)
        self.set(alarm, deadline)
        return alarm

    def set(self, alarm: Alarm, deadline: Deadline) -> None:
        """Have *alarm* ring when *deadline* passes."""
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        raise NotImplementedError

    async def apart(self, work: Coroutine[Any, Any, R], break_off: Callable[[], object]) -> R:
        """Run *work* to its end; a caller who is cancelled has it broken off, and waits for that."""
        raise NotImplementedError

    def drop_idle(self) -> None:
        """Throw away what nobody uses: where one connection was lost, the others probably are."""
        self.pool.drop_idle()
        self.blocks.drop_idle()

    def close_pools(self) -> None:
        """Throw away what is idle now, and later what is still lent."""
        for pool in self.pools:
            pool.close()


class AsyncSide(Side):
    """The side that belongs to one event loop."""

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources, AsyncConnector)
        self._loop = asyncio.get_running_loop()
        self._alarms = LoopAlarms(self._loop)
        self._sleep = resources.runtime.sleep
        self._under_way: set[asyncio.Future[Any]] = set()

    def call_later(self, seconds: float, function: Callable[[], None]) -> Callable[[], object]:
        """Have *function* called by the loop."""
        return self._loop.call_later(seconds, function).cancel

    def make_places(self, number: int) -> Places:
        """Make *number* places for the tasks of the loop."""
        return AsyncPlaces(number)

    async def finish(self, execution: Runs[R]) -> R:
        """Run *execution*."""
        return await self.here(execution.run())

    async def here(self, work: Coroutine[Any, Any, R]) -> R:
        """Run *work* in the task of its caller; `close` waits for it."""
        ended: asyncio.Future[None] = self._loop.create_future()
        self._under_way.add(ended)
        try:
            return await work
        finally:
            self._under_way.discard(ended)
            ended.set_result(None)

    async def apart(self, work: Coroutine[Any, Any, R], break_off: Callable[[], object]) -> R:
        """Run *work* in a task of its own; a caller who is cancelled has it broken off, and waits for that."""
        task = self.spawn(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                break_off()
            while not task.done():
                with suppress(asyncio.CancelledError):  # it is raised all the same, when the outcome is known
                    await asyncio.wait((task,))
            raise

    def spawn(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """Run *work* for as long as it takes, whatever becomes of who asked for it; `close` waits for it."""
        task = self._loop.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """Wait for what is under way, which has its deadlines, and let go of every connection."""
        if self._under_way:
            await asyncio.wait(self._under_way)
        self.close_pools()

    def set(self, alarm: Alarm, deadline: Deadline) -> None:
        """Have *alarm* ring when *deadline* passes."""
        self._alarms.arm(alarm, deadline.remaining())

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await self._sleep(seconds)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # whoever still waits for it is told; nobody else need be


class BlockingSide(Side):
    """The side that all threads share."""

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources, BlockingConnector)
        self._sleep = resources.runtime.sleep_blocking
        self._watch = AlarmThread(resources.runtime)

    def call_later(self, seconds: float, function: Callable[[], None]) -> Callable[[], object]:
        """Have *function* called by the thread of the deadlines."""
        reminder = Reminder(function)
        self._watch.arm(reminder, seconds)
        return reminder.disarm

    def make_places(self, number: int) -> Places:
        """Make *number* places for all threads."""
        return BlockingPlaces(number)

    def finish(self, execution: Runs[R]) -> R:
        """Run *execution*."""
        return drive(execution.run())

    async def apart(self, work: Coroutine[Any, Any, R], break_off: Callable[[], object]) -> R:
        """Run *work*, which nobody can cancel."""
        return await work

    def close(self) -> None:
        """Let go of every connection, and of the thread."""
        self.close_pools()
        self._watch.stop()

    def set(self, alarm: Alarm, deadline: Deadline) -> None:
        """Have *alarm* ring when *deadline* passes."""
        self._watch.arm(alarm, deadline.remaining())

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        self._sleep(seconds)


def abandon(side: Side) -> None:
    """Close, in a forked child, our copies of the parent's sockets, and say nothing on them."""
    for lent in [each for pool in side.pools for each in pool.abandon()]:
        with suppress(OSError, psycopg.OperationalError):
            os.close(lent.pgconn.socket)
