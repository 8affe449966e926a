"""At most so many connections of one colour, made by whoever needs one, used last in, first out.

Why not psycopg_pool: decision 0007. In one sentence: it connects in the background, where no deadline of ours reaches
and no caller hears what is wrong. Here all of that happens in the caller, or not at all.

Written once for both colours, like an operation: over the blocking side its awaits never suspend.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from holdfast.database.postgres.deadline import Deadline
from holdfast.database.postgres.tx import OwnAsyncPostgresTx, OwnPostgresTx
from holdfast.errors import Unavailable

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

IDLE_SECONDS = 300.0
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


class Connector(Protocol):
    """How one colour connects, and waits until one of the places is free."""

    async def acquire(self, seconds: float | None) -> bool:
        """Wait for a free place, for ever if need be; tell whether there was one in time."""

    def release(self) -> None:
        """Free a place."""

    async def connect(self, deadline: Deadline) -> PooledConnection:
        """Make a connection."""


class ConnectionPool:
    """The connections of one side of a store."""

    def __init__(self, doors: Connector, size: int, monotonic: Callable[[], float]) -> None:
        self._doors = doors
        self._size = size
        self._monotonic = monotonic
        self._all: set[PooledConnection] = set()
        self._idle: deque[PooledConnection] = deque()
        self._is_closed = False

    async def take(self, deadline: Deadline) -> PooledConnection:
        """Lend a connection; give it back in every case."""
        if not await self._doors.acquire(deadline.remaining()):
            raise Unavailable(
                f"all {self._size} connections were in use for {deadline.seconds:g} s; raise pool_size, or make "
                "transactions shorter"
            )
        return await self.lend(deadline)

    async def wait_for_place(self) -> None:
        """Wait until a connection may be lent, for as long as the caller does; `lend` it then, and at once."""
        await self._doors.acquire(None)

    async def lend(self, deadline: Deadline) -> PooledConnection:
        """Lend a connection to who has a place; give it back in every case."""
        try:
            if self._is_closed:
                raise Unavailable("the store was closed while this was under way; try again")
            with suppress(IndexError):
                return self._idle.pop()
            return await self._connect(deadline)
        except BaseException:
            self._doors.release()
            raise

    def give_back(self, lent: PooledConnection, *, is_clean: bool) -> None:
        """Keep *lent* for the next one, or throw it away. Never suspends, so no cancellation can lose it."""
        now = lent.used = self._monotonic()
        if is_clean and now - lent.born < LIFETIME_SECONDS:
            self._idle.append(lent)
            self._drop_old(now)
        else:
            self._finish(lent)
        if self._is_closed:
            self.drop_idle()
        self._doors.release()

    def drop_idle(self) -> None:
        """Throw away what nobody uses: where one connection was lost, the others probably are."""
        with suppress(IndexError):
            while True:
                self._finish(self._idle.pop())

    def close(self) -> None:
        """Throw away what is idle now, and later what is still lent."""
        self._is_closed = True
        self.drop_idle()

    def abandon(self) -> set[PooledConnection]:
        """Hand out every connection without a word to the server: in a forked child they are the parent's."""
        self._idle.clear()
        return self._all

    async def _connect(self, deadline: Deadline) -> PooledConnection:
        lent = await self._doors.connect(deadline)
        self._all.add(lent)
        return lent

    def _finish(self, lent: PooledConnection) -> None:
        self._all.discard(lent)
        lent.tx.let_go()
        lent.pgconn.finish()

    def _drop_old(self, now: float) -> None:
        with suppress(IndexError):
            while now - self._idle[0].used > IDLE_SECONDS:
                self._finish(self._idle.popleft())
