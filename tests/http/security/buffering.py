"""A proxy that keeps answers back until it has a page of them, unless the answer asks it not to; as nginx does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.http.serving import listen

HEAD_END = b"\r\n\r\n"


class BufferingProxy:
    """Passes connections on to *port*, and what comes back in pieces of *page* bytes, or what is left at the end."""

    def __init__(self, port: int, page: int, *, is_heedful: bool) -> None:
        self._to = port
        self._page = page
        self._is_heedful = is_heedful
        """Whether `x-accel-buffering: no` makes it pass on everything at once."""

    async def pass_on(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        """Ask for a client, and answer it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._to)
        asking = asyncio.create_task(self._ask(client, writer))
        try:
            await self._answer(reader, back)
        finally:
            asking.cancel()
            await asyncio.wait([asking])
            for each in (writer, back):
                each.transport.abort()

    async def _ask(self, client: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await client.read(65_536):
            writer.write(piece)

    async def _answer(self, reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        held = await reader.readuntil(HEAD_END)
        page = 1 if self._is_heedful and b"x-accel-buffering: no" in held.lower() else self._page
        while piece := await reader.read(65_536):
            held += piece
            while len(held) >= page:
                some = len(held) if page == 1 else page
                back.write(held[:some])
                held = held[some:]
            await back.drain()
        back.write(held)
        with suppress(ConnectionError):
            await back.drain()


@asynccontextmanager
async def buffering(port: int, page: int, *, is_heedful: bool) -> AsyncIterator[int]:
    """Run such a proxy in the block; give its port."""
    proxy = BufferingProxy(port, page, is_heedful=is_heedful)
    serving: set[asyncio.Task[None]] = set()

    def begin(client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        serving.add(asyncio.create_task(proxy.pass_on(client, back)))

    listening = listen()
    server = await asyncio.start_server(begin, sock=listening)
    try:
        yield int(listening.getsockname()[1])
    finally:
        server.close()
        for each in serving:
            each.cancel()
        if serving:
            await asyncio.wait(serving)
