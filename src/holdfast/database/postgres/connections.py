"""What the stores of several schemas on one server share: the sides with their pools, the cancels, what reads are like.

A store has them for itself until others are made from it by `for_schema`. Then a hundred schemas need no more
connections than one.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from contextlib import suppress

from holdfast.database.dialect import Dialect
from holdfast.database.postgres.address import Address
from holdfast.database.postgres.beginning import MOST_PREPARED
from holdfast.database.postgres.colours import AsyncSide, BlockingSide, Resources, abandon
from holdfast.database.postgres.deadline import Cancels
from holdfast.database.postgres.listener import SharedListener
from holdfast.database.single_statement import MultiStatementReads
from holdfast.runtime import Runtime
from holdfast.settings import Settings
from holdfast.threads import ENGINE_LOOPS, SlicedEvent

CLOSE_SECONDS = 5.0
PREPARED_FOR_EACH = 40  # a worker runs about so many different statements, and each has a text for each schema
MOST_PREPARED_FOR_ALL = 2_000  # a prepared statement of ours takes 29 kB of the server's memory, on each connection


class Connections:
    """The connections to the server of *settings*, of both colours, and of blocks."""

    def __init__(self, settings: Settings, runtime: Runtime, dialect: Dialect, address: Address | None = None) -> None:
        self.address = address or Address.of(settings)
        self.block_address = Address.for_blocks(settings)
        self.multi_statement = MultiStatementReads()
        self._dialect = dialect
        self._size = settings.pool_size
        self._deadline_seconds = settings.deadline_seconds
        self._runtime = runtime
        self._schemas: set[str] = set()
        self.listener = _make_listener(settings, runtime)
        self._start()
        CONNECTIONS.add(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._cancels = Cancels(self._runtime, self._deadline_seconds)
        self._async_sides: dict[asyncio.AbstractEventLoop, AsyncSide] = {}
        self._blocking: BlockingSide | None = None

    def note_schema(self, schema: str) -> None:
        """Note that another schema is on these connections."""
        with self._lock:
            self._schemas.add(schema)

    def most_prepared(self) -> int:
        """Say how many statements a connection keeps prepared."""
        return min(MOST_PREPARED + PREPARED_FOR_EACH * len(self._schemas), MOST_PREPARED_FOR_ALL)

    def async_side(self) -> AsyncSide:
        """Give the side of the running event loop."""
        loop = asyncio.get_running_loop()
        if (side := self._async_sides.get(loop)) is None:
            with self._lock:
                self._drop_sides_of_stopped_loops()
                side = self._async_sides[loop] = AsyncSide(self._resources())
        return side

    def blocking_side(self) -> BlockingSide:
        """Give the side of all threads."""
        if (side := self._blocking) is None:
            with self._lock:
                side = self._blocking = self._blocking or BlockingSide(self._resources())
        return side

    async def close(self) -> None:
        """Let go of every connection, task and thread of both sides; the next use makes others."""
        with self._lock:
            own = self._async_sides.pop(asyncio.get_running_loop(), None)
        if own is not None:
            await own.close()
        self.close_sync()

    def close_sync(self) -> None:
        """Let go of what belongs to no running event loop but our own."""
        with self._lock:
            blocking, self._blocking = self._blocking, None
            self._drop_sides_of_stopped_loops()
            own = [(loop, self._async_sides.pop(loop)) for loop in [*self._async_sides] if loop in ENGINE_LOOPS]
        for loop, side in own:
            _close_there(loop, side)
        if blocking is not None:
            blocking.close()
        self._cancels.stop()

    def forget_parent(self) -> None:
        """Leave to the parent what it has; keep the objects, so that no destructor says goodbye for it."""
        for side in (*self._async_sides.values(), self._blocking):
            if side is not None:
                LEFT_TO_PARENTS.append(side)
                abandon(side)
        LEFT_TO_PARENTS.append(self._cancels)
        if self.listener is not None:
            LEFT_TO_PARENTS.append(self.listener.abandon())
        self._start()

    def _resources(self) -> Resources:
        return Resources(
            self.address,
            self.block_address,
            self._dialect,
            self._size,
            self._runtime,
            self._cancels,
        )

    def _drop_sides_of_stopped_loops(self) -> None:
        for loop in [loop for loop in self._async_sides if not loop.is_running()]:
            self._async_sides.pop(loop).close_pools()


def _close_there(loop: asyncio.AbstractEventLoop, side: AsyncSide) -> None:
    """Close the pools of a loop in its own thread, and wait for that: the database may be dropped next."""
    has_closed = SlicedEvent()

    def close() -> None:
        side.close_pools()
        has_closed.set()

    with suppress(RuntimeError):  # it was closed just now
        loop.call_soon_threadsafe(close)
        has_closed.wait(CLOSE_SECONDS)


def _make_listener(settings: Settings, runtime: Runtime) -> SharedListener | None:
    if settings.listen_url is None and settings.transaction_pooler:
        return None
    direct = {"database": settings.listen_url or settings.database, "transaction_pooler": False}
    return SharedListener(Address.of(settings.model_copy(update=direct)), runtime)


CONNECTIONS: weakref.WeakSet[Connections] = weakref.WeakSet()
LEFT_TO_PARENTS: list[object] = []


def forget_parents() -> None:
    """Drop, in a child process that was just forked, what belongs to its parent."""
    for connections in CONNECTIONS:
        connections.forget_parent()


os.register_at_fork(after_in_child=forget_parents)
