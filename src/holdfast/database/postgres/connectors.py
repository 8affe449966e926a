"""How one colour connects, and waits until one of a pool's places is free."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import psycopg

from holdfast.database.dialect import Dialect
from holdfast.database.postgres import connecting
from holdfast.database.postgres.address import Address
from holdfast.database.postgres.async_connection import AsyncConnection
from holdfast.database.postgres.deadline import Deadline
from holdfast.database.postgres.pool import PooledConnection
from holdfast.database.postgres.tx import OwnAsyncPostgresTx, OwnPostgresTx
from holdfast.errors import StoreError
from holdfast.threads import in_slices

OLDEST_SERVER = 140000
ANY_TEXT = ("UTF8", "SQL_ASCII")  # the second takes whatever bytes it is given


class AsyncConnector:
    """The doors of a pool that belongs to one event loop."""

    def __init__(self, address: Address, dialect: Dialect, size: int, monotonic: Callable[[], float]) -> None:
        self._address = address
        self._dialect = dialect
        self._monotonic = monotonic
        self._places = asyncio.Semaphore(size)

    async def acquire(self, seconds: float | None) -> bool:
        """Wait for a free place, for ever if need be; tell whether there was one in time."""
        if not self._places.locked():
            return await self._places.acquire()
        try:
            async with asyncio.timeout(seconds):
                return await self._places.acquire()
        except TimeoutError:
            return False

    def release(self) -> None:
        """Free a place."""
        self._places.release()

    async def connect(self, deadline: Deadline) -> PooledConnection:
        """Make a connection."""
        try:
            async with asyncio.timeout(deadline.remaining()):
                connection = await AsyncConnection.connect(
                    **self._address.parameters,
                    autocommit=True,
                    prepare_threshold=self._address.prepare_threshold,
                )
        except TimeoutError as error:
            raise psycopg.errors.ConnectionTimeout("the connection was not made in time") from error
        return checked(
            PooledConnection(connection.pgconn, OwnAsyncPostgresTx(connection, self._dialect), self._monotonic())
        )


class BlockingConnector:
    """The doors of a pool that all threads share."""

    def __init__(self, address: Address, dialect: Dialect, size: int, monotonic: Callable[[], float]) -> None:
        self._address = address
        self._dialect = dialect
        self._monotonic = monotonic
        self._places = threading.Semaphore(size)

    async def acquire(self, seconds: float | None) -> bool:
        """Wait for a free place, for ever if need be; tell whether there was one in time."""
        return in_slices(lambda slice_seconds: self._places.acquire(timeout=slice_seconds), seconds)

    def release(self) -> None:
        """Free a place."""
        self._places.release()

    async def connect(self, deadline: Deadline) -> PooledConnection:
        """Make a connection."""
        connection = connecting.connect(self._address.hosts(), deadline)
        connection.autocommit = True
        connection.prepare_threshold = self._address.prepare_threshold
        return checked(PooledConnection(connection.pgconn, OwnPostgresTx(connection, self._dialect), self._monotonic()))


def checked(lent: PooledConnection) -> PooledConnection:
    """Refuse a server that is too old, or a database that cannot hold every text; both were told while we connected."""
    if (version := lent.pgconn.server_version) < OLDEST_SERVER:
        lent.pgconn.finish()
        raise StoreError(f"PostgreSQL {version // 10000} is too old; Holdfast needs 14 or newer")
    encoding = (lent.pgconn.parameter_status(b"server_encoding") or b"UTF8").decode()  # a pooler may not know it
    if encoding not in ANY_TEXT:
        lent.pgconn.finish()
        raise StoreError(f"the database's encoding is {encoding}, which has not every character; make one with UTF8")
    return lent
