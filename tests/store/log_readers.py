"""Somebody who reads the log by hand: page after page, from where it was."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg

from holdfast.models import Event
from holdfast.store.log import reading
from holdfast.store.log.reading import LoggedEvent
from holdfast.wire.cursors import Cursor, read_cursor
from tests.support.ways import Way


class LogReader:
    """Reads what is new, as often as it is asked, in pages of *most*."""

    def __init__(self, way: Way, cursor: Cursor, most: int = 100) -> None:
        self._way = way
        self.cursor = cursor
        self._most = most

    @classmethod
    async def from_now(cls, way: Way, most: int = 100) -> LogReader:
        """Begin behind all that is committed."""
        return cls(way, await way.read(reading.now), most)

    @classmethod
    def behind(cls, way: Way, cursor: str, most: int = 100) -> LogReader:
        """Come back with a text."""
        return cls(way, read_cursor(cursor), most)

    async def told(self) -> list[LoggedEvent]:
        """Read until there is no more."""
        every: list[LoggedEvent] = []
        while True:
            found = await self._way.read(reading.since, self.cursor, self._most)
            assert len(found.lines) <= self._most
            every += await self._way.read(reading.to_events, found)
            self.cursor = found.cursor
            if found.is_last:
                return every

    async def events(self) -> list[Event]:
        """Give the events alone."""
        return [each.event for each in await self.told()]

    async def names(self) -> list[str]:
        """Name what has happened."""
        return [each.name for each in await self.events()]


@asynccontextmanager
async def writer_elsewhere(url: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Leave a transaction that has written open, in another database of the same server."""
    elsewhere = urlsplit(url)._replace(path="/postgres").geturl()
    async with await psycopg.AsyncConnection.connect(elsewhere) as connection:
        await connection.execute("SELECT pg_current_xact_id()")
        yield connection
        await connection.rollback()
