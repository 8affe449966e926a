"""At most so many connections of one colour, made by whoever needs one, used last in, first out.

Why not psycopg_pool: decision 0007. In one sentence: it connects in the background, where no deadline of ours reaches
and no caller hears what is wrong. Here all of that happens in the caller, or not at all.

Written once for both colours, like an operation: over the blocking side its awaits never suspend. A connector is what
the colours do differently: how one connects, and waits until one of the pool's places is free.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import psycopg
from psycopg import pq
from psycopg.pq import ConnStatus, PollingStatus
from psycopg.pq.abc import PGconn

from holdfast.database.dialect import Dialect
from holdfast.database.postgres.address import Address
from holdfast.database.postgres.async_connection import AsyncConnection
from holdfast.database.postgres.deadline import EVENTS, Deadline, wait
from holdfast.database.postgres.tx import OwnAsyncPostgresTx, OwnPostgresTx
from holdfast.errors import StoreError, Unavailable
from holdfast.threads import in_slices

OLDEST_SERVER = 140000
ANY_TEXT = ("UTF8", "SQL_ASCII")  # the second takes whatever bytes it is given
IDLE_SECONDS = 30.0  # a server has few connections for many processes
LIFETIME_SECONDS = 3600.0  # so that a server's memory for us, and a balanced address, do not grow old


@dataclass(slots=True, eq=False)
class PooledConnection:
    """A connection of ours: the libpq one, which has no colour, and what runs our SQL on it."""

    pgconn: PGconn
    tx: OwnAsyncPostgresTx | OwnPostgresTx
    born: float
    used: float = 0.0
    planned: float = float("-inf")
    """When it has forgotten its plans last."""


class Places(Protocol):
    """So many places, in one colour."""

    async def acquire(self, seconds: float | None) -> bool:
        """Wait for a free place, for ever if need be; tell whether there was one in time."""

    def release(self) -> None:
        """Free a place."""


class Connector(Places, Protocol):
    """How one colour connects, and waits until one of the places is free."""

    async def connect(self, deadline: Deadline) -> PooledConnection:
        """Make a connection."""


CallLater: TypeAlias = Callable[[float, Callable[[], None]], Callable[[], object]]
"""Has something called in so many seconds, where the pool may be used; gives what takes that back."""


class ConnectionPool:
    """The connections of one side of a store; by *call_later* it closes those that nobody has used for a while."""

    def __init__(
        self,
        connector: Connector,
        dialect: Dialect,
        size: int,
        monotonic: Callable[[], float],
        call_later: CallLater,
    ) -> None:
        self.dialect = dialect
        self._connector = connector
        self._size = size
        self._monotonic = monotonic
        self._call_later = call_later
        self._all: set[PooledConnection] = set()
        self._idle: deque[PooledConnection] = deque()
        self._planning = threading.Lock()
        self._will_look = False
        self._look_no_more: Callable[[], object] = lambda: None
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def take(self, deadline: Deadline) -> PooledConnection:
        """Lend a connection; give it back in every case."""
        if not await self._connector.acquire(deadline.remaining()):
            raise Unavailable(
                f"all {self._size} connections were in use for {deadline.seconds:g} s; raise pool_size, or make "
                "transactions shorter"
            )
        return await self.lend(deadline)

    async def wait_for_place(self) -> None:
        """Wait until a connection may be lent, for as long as the caller does; `lend` it then, and at once."""
        await self._connector.acquire(None)

    async def lend(self, deadline: Deadline) -> PooledConnection:
        """Lend a connection to who has a place; give it back in every case."""
        try:
            if self._is_closed:
                raise Unavailable("hf was closed while this ran; try again")
            with suppress(IndexError):
                return self._idle.pop()
            lent = await self._connector.connect(deadline)
            self._all.add(lent)
            return lent
        except BaseException:
            self._connector.release()
            raise

    def give_back(self, lent: PooledConnection, *, is_clean: bool) -> None:
        """Keep *lent* for the next one, or throw it away. Never suspends, so no cancellation can lose it."""
        now = lent.used = self._monotonic()
        if is_clean and now - lent.born < LIFETIME_SECONDS:
            self._idle.append(lent)
        else:
            self._finish(lent)
        if self._is_closed:
            self.drop_idle()
        else:
            self._plan_look(IDLE_SECONDS)
        self._connector.release()

    def _plan_look(self, seconds: float) -> None:
        with self._planning:
            if self._will_look:
                return
            self._will_look = True
        try:
            self._look_no_more = self._call_later(seconds, self._look)
        except RuntimeError:  # no thread can be made, or the loop is closed: whoever gives one back next tries again
            self._will_look = False
        if self._is_closed:  # meanwhile, by another thread
            self._look_no_more()

    def _look(self) -> None:
        """Close what nobody has used for a while, those that were given back first; look again when others are as old.

        If another thread takes one meanwhile, a newer one may be closed in its place, which is as good.
        """
        self._will_look = False
        now = self._monotonic()
        with suppress(IndexError):
            while (left := self._idle[0].used + IDLE_SECONDS - now) <= 0:
                self._finish(self._idle.popleft())
            self._plan_look(left)

    def drop_idle(self) -> None:
        """Throw away what nobody uses: where one connection was lost, the others probably are."""
        with suppress(IndexError):
            while True:
                self._finish(self._idle.pop())

    def close(self) -> None:
        """Throw away what is idle now, and later what is still lent."""
        self._is_closed = True
        self._look_no_more()
        self.drop_idle()

    def abandon(self) -> set[PooledConnection]:
        """Hand out every connection without a word to the server: in a forked child they are the parent's."""
        self._idle.clear()
        return self._all

    def _finish(self, lent: PooledConnection) -> None:
        self._all.discard(lent)
        lent.tx.let_go()
        lent.pgconn.finish()


class PoolShare:
    """What one schema may have of a pool that several share, in the shape of a pool: *most* connections at a time.

    So one whose tables are locked leaves connections for the others. A connection speaks the pool's own dialect, and
    the share's while it is lent here; it keeps as many statements prepared as *most_prepared* says.
    """

    def __init__(
        self, pool: ConnectionPool, places: Places, most: int, dialect: Dialect, most_prepared: Callable[[], int]
    ) -> None:
        self._pool = pool
        self._places = places
        self._most = most
        self._dialect = dialect
        self._most_prepared = most_prepared

    async def take(self, deadline: Deadline) -> PooledConnection:
        """Lend a connection; give it back in every case."""
        if not await self._places.acquire(deadline.remaining()):
            raise Unavailable(
                f"the {self._most} connections that one schema may have of a shared pool were in use for "
                f"{deadline.seconds:g} s; raise pool_size, or make transactions shorter"
            )
        try:
            return self._speaking(await self._pool.take(deadline))
        except BaseException:
            self._places.release()
            raise

    async def wait_for_place(self) -> None:
        """Wait until a connection may be lent, for as long as the caller does; `lend` it then, and at once."""
        await self._places.acquire(None)
        try:
            await self._pool.wait_for_place()
        except BaseException:
            self._places.release()
            raise

    async def lend(self, deadline: Deadline) -> PooledConnection:
        """Lend a connection to who has a place; give it back in every case."""
        try:
            return self._speaking(await self._pool.lend(deadline))
        except BaseException:
            self._places.release()
            raise

    def give_back(self, lent: PooledConnection, *, is_clean: bool) -> None:
        """Keep *lent* for the next one of any schema, or throw it away."""
        lent.tx.speak(self._pool.dialect)
        self._pool.give_back(lent, is_clean=is_clean)
        self._places.release()

    def drop_idle(self) -> None:
        """Throw away what nobody uses, of any schema."""
        self._pool.drop_idle()

    def _speaking(self, lent: PooledConnection) -> PooledConnection:
        lent.tx.speak(self._dialect)
        lent.tx.keep_prepared(self._most_prepared())
        return lent


class AsyncPlaces:
    """So many places on one event loop."""

    def __init__(self, size: int) -> None:
        self._places = asyncio.Semaphore(size)

    async def acquire(self, seconds: float | None) -> bool:
        if not self._places.locked():
            return await self._places.acquire()
        try:
            async with asyncio.timeout(seconds):
                return await self._places.acquire()
        except TimeoutError:
            return False

    def release(self) -> None:
        self._places.release()


class BlockingPlaces:
    """So many places for all threads."""

    def __init__(self, size: int) -> None:
        self._places = threading.Semaphore(size)

    async def acquire(self, seconds: float | None) -> bool:
        return in_slices(lambda slice_seconds: self._places.acquire(timeout=slice_seconds), seconds)

    def release(self) -> None:
        self._places.release()


class AsyncConnector(AsyncPlaces):
    """The connector of a pool that belongs to one event loop."""

    def __init__(self, address: Address, dialect: Dialect, size: int, monotonic: Callable[[], float]) -> None:
        super().__init__(size)
        self._address = address
        self._dialect = dialect
        self._monotonic = monotonic

    async def connect(self, deadline: Deadline) -> PooledConnection:
        try:
            async with asyncio.timeout(deadline.remaining()):
                connection = await AsyncConnection.connect(
                    **self._address.parameters,
                    autocommit=True,
                    prepare_threshold=self._address.prepare_threshold,
                )
        except TimeoutError as error:
            raise psycopg.errors.ConnectionTimeout("the connection was not made in time") from error
        return _checked(
            PooledConnection(connection.pgconn, OwnAsyncPostgresTx(connection, self._dialect), self._monotonic())
        )


class BlockingConnector(BlockingPlaces):
    """The connector of a pool that all threads share."""

    def __init__(self, address: Address, dialect: Dialect, size: int, monotonic: Callable[[], float]) -> None:
        super().__init__(size)
        self._address = address
        self._dialect = dialect
        self._monotonic = monotonic

    async def connect(self, deadline: Deadline) -> PooledConnection:
        connection = connect(self._address.hosts(), deadline)
        connection.autocommit = True
        connection.prepare_threshold = self._address.prepare_threshold
        return _checked(
            PooledConnection(connection.pgconn, OwnPostgresTx(connection, self._dialect), self._monotonic())
        )


def _checked(lent: PooledConnection) -> PooledConnection:
    """Refuse a server that is too old, or a database that cannot hold every text; both were told while we connected."""
    if (version := lent.pgconn.server_version) < OLDEST_SERVER:
        lent.pgconn.finish()
        raise StoreError(f"PostgreSQL {version // 10000} is too old; Holdfast needs 14 or newer")
    encoding = (lent.pgconn.parameter_status(b"server_encoding") or b"UTF8").decode()  # a pooler may not know it
    if encoding not in ANY_TEXT:
        lent.pgconn.finish()
        raise StoreError(f"the database has the encoding {encoding}, which lacks characters; create one with UTF8")
    return lent


def connect(hosts: list[str], deadline: Deadline) -> psycopg.Connection[tuple[object, ...]]:
    """Connect to the first of *hosts*, written as libpq wants them, that lets us; a silent one costs its share.

    It ends by its deadline; psycopg's own counts whole seconds, at least two for each host.
    """
    for left in range(len(hosts), 0, -1):
        try:
            return psycopg.Connection(_establish(hosts[-left], deadline.share(left)))
        except psycopg.OperationalError:
            if left == 1:
                raise
    raise ValueError("no host to connect to")


def _establish(host: str, deadline: Deadline) -> PGconn:
    """Have libpq connect, step by step."""
    pgconn = pq.PGconn.connect_start(host.encode())
    try:
        while (step := _next_step(pgconn)) is not PollingStatus.OK:
            wait(pgconn.socket, EVENTS[step], deadline)
    except BaseException:
        pgconn.finish()
        raise
    pgconn.nonblocking = 1
    return pgconn


def _next_step(pgconn: PGconn) -> PollingStatus:
    """Go as far as the server has answered; tell what to wait for next."""
    step = PollingStatus.FAILED
    if pgconn.status != ConnStatus.BAD:
        step = PollingStatus(pgconn.connect_poll())
    if step is PollingStatus.FAILED:
        raise psycopg.OperationalError(f"connection failed: {pgconn.get_error_message()}")
    return step
