"""Many clients at once, each of which checks that it is told of every job, once and in order, whatever happens."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress

from tests.http.clients import PATH

NUMBER = re.compile(rb'"input":\{"name":"(\d+)"\}')
ID = re.compile(rb"^id: (\S+)$", re.MULTILINE)
COME_BACK_SECONDS = 0.05


class Listener:
    """A client that comes back, with its last id, whenever its stream ends."""

    def __init__(self, port: int, headers: str = "host: test\r\n") -> None:
        self._port = port
        self._headers = headers
        self._rest = b""
        self.last_id: str | None = None
        self.seen = 0
        self.streams = 0
        self.resets = 0

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._read()
            await asyncio.sleep(COME_BACK_SECONDS)

    async def _read(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            resumed = f"last-event-id: {self.last_id}\r\n" if self.last_id else ""
            writer.write(f"GET {PATH}?snapshot=false HTTP/1.0\r\n{self._headers}{resumed}\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 503 " in head:  # the server is stopping, and has not closed its socket yet
                return
            assert b" 200 " in head
            self.streams += 1
            self._rest = b""  # a message that was cut off comes again
            while piece := await reader.read(1 << 18):
                self._take(piece)
        finally:
            writer.transport.abort()

    def _take(self, piece: bytes) -> None:
        whole, end, self._rest = (self._rest + piece).rpartition(b"\n\n")
        if not end:
            return
        for number in NUMBER.findall(whole):
            assert int(number) == self.seen, f"told of {int(number)} instead of {self.seen}"
            self.seen += 1
        self.resets += whole.count(b"event: reset\n")
        for last in ID.findall(whole)[-1:]:
            self.last_id = last.decode()


class Crowd:
    """Several of them."""

    def __init__(self, port: int, number: int, headers: Sequence[str] = ("host: test\r\n",)) -> None:
        self.listeners = [Listener(port, headers[each % len(headers)]) for each in range(number)]

    async def __aenter__(self) -> Crowd:
        self._running = [asyncio.create_task(each.run()) for each in self.listeners]
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in self._running:
            each.cancel()
        await asyncio.wait(self._running)

    @property
    def seen(self) -> int:
        """What all of them have seen."""
        self._refuse_broken()
        return min(each.seen for each in self.listeners)

    @property
    def have_begun(self) -> bool:
        """Whether all of them have their place."""
        self._refuse_broken()
        return all(each.last_id for each in self.listeners)

    def _refuse_broken(self) -> None:
        for each in self._running:
            if each.done():
                each.result()
