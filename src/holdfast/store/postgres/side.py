"""The two sides of a store, async and blocking: the few things that they do differently, each with a pool.

Everything above is written once, as coroutines that await nothing but their side. On the blocking side these
awaits never suspend, so that `drive()` finishes them; on the async one they are awaited, in a task of their own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.pq.abc import PGconn

from holdfast.errors import StoreError
from holdfast.store.dialect import Dialect
from holdfast.store.postgres import connecting
from holdfast.store.postgres.address import Address
from holdfast.store.postgres.deadline import Alarm, Deadline, Watch
from holdfast.store.postgres.execution import Execution
from holdfast.store.postgres.group import AsyncGroup, BlockingGroup
from holdfast.store.postgres.pool import Lent, Pool
from holdfast.store.postgres.tx import OwnAsyncPostgresTx, OwnPostgresTx
from holdfast.store.tx import R, drive
from holdfast.surroundings import Surroundings

OLDEST_SERVER = 140000
ANY_TEXT = ("UTF8", "SQL_ASCII")  # the second takes whatever bytes it is given

logger = logging.getLogger(__name__)


class Outage:
    """Logs once that the database cannot be used, and once that it can be again."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._since: float | None = None

    def begins(self, error: StoreError) -> None:
        """Note that a call failed because the database is not there."""
        if self._since is None:
            self._since = self._monotonic()
            logger.warning("database_unavailable", extra={"reason": str(error)})

    def ends(self) -> None:
        """Note that a call succeeded."""
        if self._since is not None:
            seconds, self._since = self._monotonic() - self._since, None
            logger.warning("database_available", extra={"seconds": round(seconds, 1)})


class Side:
    """What an execution and a pool need of their colour."""

    def __init__(self, address: Address, dialect: Dialect, size: int, surroundings: Surroundings) -> None:
        self.chance = surroundings.chance
        self.scrub = address.scrub
        self.outage = Outage(surroundings.monotonic)
        self.pool = Pool(self, size, surroundings.monotonic)
        self._address = address
        self._dialect = dialect
        self._monotonic = surroundings.monotonic

    async def acquire(self, seconds: float) -> bool:
        """Wait for a free place in the pool; tell whether there was one in time."""
        raise NotImplementedError

    def release(self) -> None:
        """Free a place in the pool."""
        raise NotImplementedError

    async def connect(self, deadline: Deadline) -> Lent:
        """Make a connection."""
        raise NotImplementedError

    def arm(self, pgconn: PGconn, deadline: Deadline) -> Alarm:
        """Have the connection's socket shut when *deadline* passes."""
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        raise NotImplementedError


class AsyncSide(Side):
    """The side that belongs to one event loop."""

    def __init__(self, address: Address, dialect: Dialect, size: int, surroundings: Surroundings) -> None:
        super().__init__(address, dialect, size, surroundings)
        self.groups: dict[Callable[..., Any], AsyncGroup[Any, Any]] = {}
        self._loop = asyncio.get_running_loop()
        self._sleep = surroundings.sleep
        self._places = asyncio.Semaphore(size)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def finish(self, execution: Execution[R]) -> R:
        """Run *execution* in a task of its own, which a cancelled caller ends in good order and waits for."""
        task = self.spawn(execution.run())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                execution.abandon(task)
                await asyncio.wait((task,))
            raise

    def spawn(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """Run *work* for as long as it takes, whatever becomes of who asked for it; `close` waits for it."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """Wait for what is under way, which has its deadlines, and let go of every connection."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        self.pool.close()

    async def acquire(self, seconds: float) -> bool:
        """Wait for a free place in the pool; tell whether there was one in time."""
        if not self._places.locked():
            return await self._places.acquire()
        try:
            async with asyncio.timeout(seconds):
                return await self._places.acquire()
        except TimeoutError:
            return False

    def release(self) -> None:
        """Free a place in the pool."""
        self._places.release()

    async def connect(self, deadline: Deadline) -> Lent:
        """Make a connection."""
        try:
            async with asyncio.timeout(deadline.remaining()):
                connection = await psycopg.AsyncConnection.connect(
                    **self._address.parameters,
                    autocommit=True,
                    prepare_threshold=self._address.prepare_threshold,
                )
        except TimeoutError as error:
            raise psycopg.errors.ConnectionTimeout("the connection was not made in time") from error
        return checked(Lent(connection.pgconn, OwnAsyncPostgresTx(connection, self._dialect), self._monotonic()))

    def arm(self, pgconn: PGconn, deadline: Deadline) -> Alarm:
        """Have the connection's socket shut when *deadline* passes."""
        alarm = Alarm(pgconn)
        alarm.disarm = self._loop.call_later(deadline.remaining(), alarm.ring).cancel
        return alarm

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await self._sleep(seconds)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever still waits for it is told; nobody else need be


class BlockingSide(Side):
    """The side that all threads share."""

    def __init__(self, address: Address, dialect: Dialect, size: int, surroundings: Surroundings) -> None:
        super().__init__(address, dialect, size, surroundings)
        self.groups: dict[Callable[..., Any], BlockingGroup[Any, Any]] = {}
        self._sleep = surroundings.sleep_blocking
        self._places = threading.Semaphore(size)
        self._watch = Watch(surroundings)

    def finish(self, execution: Execution[R]) -> R:
        """Run *execution*."""
        return drive(execution.run())

    def close(self) -> None:
        """Let go of every connection, and of the thread."""
        self.pool.close()
        self._watch.stop()

    async def acquire(self, seconds: float) -> bool:
        """Wait for a free place in the pool; tell whether there was one in time."""
        return self._places.acquire(timeout=seconds)

    def release(self) -> None:
        """Free a place in the pool."""
        self._places.release()

    async def connect(self, deadline: Deadline) -> Lent:
        """Make a connection."""
        connection = connecting.connect(self._address.hosts(), deadline)
        connection.autocommit = True
        connection.prepare_threshold = self._address.prepare_threshold
        return checked(Lent(connection.pgconn, OwnPostgresTx(connection, self._dialect), self._monotonic()))

    def arm(self, pgconn: PGconn, deadline: Deadline) -> Alarm:
        """Have the connection's socket shut when *deadline* passes."""
        alarm = Alarm(pgconn)
        self._watch.arm(alarm, deadline.remaining())
        return alarm

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        self._sleep(seconds)


def checked(lent: Lent) -> Lent:
    """Refuse a server that is too old, or a database that cannot hold every text; both were told while we connected."""
    if (version := lent.pgconn.server_version) < OLDEST_SERVER:
        lent.pgconn.finish()
        raise StoreError(f"PostgreSQL {version // 10000} is too old; Holdfast needs 14 or newer")
    encoding = (lent.pgconn.parameter_status(b"server_encoding") or b"UTF8").decode()  # a pooler may not know it
    if encoding not in ANY_TEXT:
        lent.pgconn.finish()
        raise StoreError(f"the database's encoding is {encoding}, which has not every character; make one with UTF8")
    return lent


def abandon(side: Side) -> None:
    """Close, in a forked child, our copies of the parent's sockets, and say nothing on them."""
    for lent in side.pool.abandon():
        with suppress(OSError, psycopg.OperationalError):
            os.close(lent.pgconn.socket)
