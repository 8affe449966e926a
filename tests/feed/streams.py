"""A stream in the colour of its way, under `await`: awaited in the loop, or waited for in a thread."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from holdfast import Holdfast
from holdfast.database.tx import Tx
from tests.support.ways import Way

PATIENCE_SECONDS = 20.0


class InColour:
    """What `hf.events()` or `hf.watch()` of either face gives."""

    def __init__(self, way: Way, stream: Any) -> None:
        self._way = way
        self.stream = stream

    async def next(self) -> Any:
        """Wait for what comes next."""
        if self._way.is_async:
            return await asyncio.wait_for(anext(self.stream), PATIENCE_SECONDS)
        return await asyncio.wait_for(asyncio.to_thread(next, self.stream), PATIENCE_SECONDS)

    async def take(self, number: int) -> list[Any]:
        """Wait for the next *number*."""
        return [await self.next() for _ in range(number)]

    async def names(self, number: int) -> list[str]:
        """Name the next *number* events."""
        return [each.name for each in await self.take(number)]

    async def rest(self) -> list[Any]:
        """Wait for all that comes until it ends."""
        found: list[Any] = []
        end = StopAsyncIteration if self._way.is_async else _Ended
        try:
            while True:
                found.append(await self.next() if self._way.is_async else await asyncio.to_thread(self._next))
        except end:
            return found

    def _next(self) -> Any:
        try:
            return next(self.stream)
        except StopIteration:
            raise _Ended from None  # no StopIteration can be raised out of a coroutine

    async def __aenter__(self) -> Self:
        if self._way.is_async:
            await self.stream.__aenter__()
        else:
            await asyncio.to_thread(self.stream.__enter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stream.close()


class _Ended(Exception):
    """A plain iterator has ended."""


def events(way: Way, after: str | None = None, **wanted: Any) -> InColour:
    """Follow the log on the face of *way*."""
    face: Any = way.hf if way.is_async else way.hf.sync
    return InColour(way, face.events(after, **wanted))


def watch(way: Way, job: Any) -> InColour:
    """Watch a job on the face of *way*."""
    face: Any = way.hf if way.is_async else way.hf.sync
    return InColour(way, face.watch(job))


def is_at_rest(hf: Holdfast) -> bool:
    """Tell whether the feed has looked, and sleeps; on PostgreSQL, whether it trusts that it will be woken."""
    rest = hf._feed.here.poller.sleep_mark
    return rest is not None and rest._marked_at is not None and (hf.store.database == "sqlite" or rest._is_sure)


async def become_another(hf: Holdfast) -> None:
    """Let the database be another than it was, as after a failover, for all who have a place in its log."""
    await hf.store.run(_rename)


async def _rename(tx: Tx) -> None:
    await tx.execute("UPDATE holdfast_meta SET value = :name WHERE key = 'identity'", name=str(uuid4()))
