"""Reads `hf.event_stream` in either colour, a message at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.sse_reader import Message, Reader
from tests.support.ways import Way


class Listening:
    """Who reads one stream."""

    def __init__(self, way: Way, **asked: Any) -> None:
        self._way = way
        self.stream: Any = way.hf.event_stream(**asked) if way.is_async else way.hf.sync.event_stream(**asked)
        self._source = Reader()
        self._waiting: list[Message] = []

    @property
    def last_id(self) -> str:
        """Where it would resume."""
        return self._source.last_id

    async def piece(self) -> bytes | None:
        """Give the next piece of bytes, None at the end; in blocking code the loop stands still meanwhile."""
        if self._way.is_async:
            async with asyncio.timeout(20):
                return await anext(self.stream, None)
        return next(self.stream, None)

    async def next(self) -> Message:
        """Give the next message that is no ping."""
        while (message := await self.any()).event == "ping":
            pass
        return message

    async def any(self) -> Message:
        """Give the next message."""
        while not self._waiting:
            piece = await self.piece()
            assert piece is not None, "the stream has ended"
            self._waiting += self._source.feed(piece)
        return self._waiting.pop(0)

    async def take(self, number: int) -> list[Message]:
        """Give the next *number* messages that are no pings."""
        return [await self.next() for _ in range(number)]

    async def begun(self) -> None:
        """Read on to the first id: from there on nothing is missed."""
        while not self.last_id:
            piece = await self.piece()
            assert piece is not None
            self._waiting += self._source.feed(piece)

    async def close(self) -> None:
        """End it."""
        if self._way.is_async:
            await self.stream.aclose()
        else:
            self.stream.close()


@asynccontextmanager
async def listening(way: Way, **asked: Any) -> AsyncIterator[Listening]:
    """Read a stream, and close it at the end of the block."""
    reader = Listening(way, **asked)
    try:
        yield reader
    finally:
        await reader.close()
