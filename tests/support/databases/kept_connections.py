"""Hands the connections of one test's pools on to the next: to make one costs 3 ms, and its first statements as much.

A server's process for a connection begins with nothing known of our tables. So what a pool throws away, idle and whole,
is kept here, made as new by `DISCARD ALL`, and given to the next pool that asks for one with the same parameters. What
a store does with its connections is not changed by it; what is about making and losing them says so by the fixture
`own_connections`, and so does who counts them on the server.
"""

from __future__ import annotations

import os
import select
from collections import defaultdict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import conninfo
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus

from holdfast.database.postgres.async_connection import AsyncConnection
from holdfast.database.postgres.deadline import Deadline
from holdfast.database.postgres.pool import AsyncConnector, BlockingConnector, ConnectionPool, PooledConnection
from holdfast.database.postgres.tx import OwnAsyncPostgresTx, OwnPostgresTx

MOST = 8  # of one kind; a test with more of them makes the others itself


class KeptConnections:
    """The connections that nobody uses now to the database at *url*, in this process."""

    def __init__(self, url: str) -> None:
        place = conninfo.conninfo_to_dict(url)
        self._place = {name: place[name] for name in ("host", "port", "dbname") if name in place}
        self._kept: defaultdict[Hashable, list[Any]] = defaultdict(list)
        self._kinds: dict[int, Hashable] = {}
        self._process = os.getpid()
        self.is_on = True

    def take(self, parameters: dict[str, Any]) -> Any | None:
        """Give a connection made with *parameters* that still stands, if there is one."""
        kept = self._kept[_kind(parameters)] if self._is_ours(parameters) else []
        while kept:
            pgconn = kept.pop()
            if not select.select([pgconn.socket], [], [], 0)[0]:  # else the server has said goodbye
                return pgconn
            pgconn.finish()
        return None

    def note(self, pgconn: Any, parameters: dict[str, Any]) -> None:
        """Remember how *pgconn* was made, and forget one that had its number before."""
        self._kinds.pop(id(pgconn), None)
        if self._is_ours(parameters):
            self._kinds[id(pgconn)] = _kind(parameters)

    def keep(self, lent: PooledConnection) -> bool:
        """Keep the connection of *lent* for others; tell whether it may be."""
        kind = self._kinds.pop(id(lent.pgconn), None)
        if kind is None or not self.is_on or os.getpid() != self._process or len(self._kept[kind]) >= MOST:
            return False
        if not _is_idle(lent.pgconn) or lent.pgconn.exec_(b"DISCARD ALL").status != ExecStatus.COMMAND_OK:
            return False
        lent.tx.connection._pool = self  # or it warns that nobody has closed it
        self._kept[kind].append(lent.pgconn)
        return True

    def close(self) -> None:
        """Close all of them."""
        for kept in self._kept.values():
            while kept:
                kept.pop().finish()

    def _is_ours(self, parameters: dict[str, Any]) -> bool:
        is_here = all(str(parameters.get(name)) == str(value) for name, value in self._place.items())
        return self.is_on and is_here and os.getpid() == self._process


@contextmanager
def kept_connections(url: str) -> Iterator[KeptConnections]:
    """Have the pools of this process hand on their connections to the database at *url*."""
    kept = KeptConnections(url)
    connect_async, connect, finish = AsyncConnector.connect, BlockingConnector.connect, ConnectionPool._finish

    async def connect_async_or_take(doors: AsyncConnector, deadline: Deadline) -> PooledConnection:
        parameters = doors._address.parameters
        if (pgconn := kept.take(parameters)) is None:
            lent = await connect_async(doors, deadline)
        else:
            lent = PooledConnection(
                pgconn, OwnAsyncPostgresTx(_as_new(AsyncConnection(pgconn), doors), doors._dialect), doors._monotonic()
            )
        kept.note(lent.pgconn, parameters)
        return lent

    async def connect_or_take(doors: BlockingConnector, deadline: Deadline) -> PooledConnection:
        parameters = doors._address.parameters
        if (pgconn := kept.take(parameters)) is None:
            lent = await connect(doors, deadline)
        else:
            connection = _as_new(psycopg.Connection(pgconn), doors)
            lent = PooledConnection(pgconn, OwnPostgresTx(connection, doors._dialect), doors._monotonic())
        kept.note(lent.pgconn, parameters)
        return lent

    def keep_or_finish(pool: ConnectionPool, lent: PooledConnection) -> None:
        lent.tx.let_go()
        if kept.keep(lent):
            pool._all.discard(lent)
        else:
            finish(pool, lent)

    AsyncConnector.connect, BlockingConnector.connect = connect_async_or_take, connect_or_take  # type: ignore[method-assign]
    ConnectionPool._finish = keep_or_finish  # type: ignore[method-assign]
    try:
        yield kept
    finally:
        AsyncConnector.connect, BlockingConnector.connect = connect_async, connect  # type: ignore[method-assign]
        ConnectionPool._finish = finish  # type: ignore[method-assign]
        kept.close()


def _as_new(connection: Any, doors: AsyncConnector | BlockingConnector) -> Any:
    connection._autocommit = True
    connection.prepare_threshold = doors._address.prepare_threshold
    return connection


def _kind(parameters: dict[str, Any]) -> Hashable:
    return tuple(sorted(parameters.items()))


def _is_idle(pgconn: Any) -> bool:
    return pgconn.status == ConnStatus.OK and pgconn.transaction_status == TransactionStatus.IDLE
