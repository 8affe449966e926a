"""A hundred readers of server-sent events in this process, over the loopback address, and who serves them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from bench.machine import Unsuited
from bench.meter import Meter
from holdfast import Call, Holdfast
from holdfast.http import Events

PATH = "/events?snapshot=false&name=job:enqueued"
REQUEST = f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
MESSAGE = b"\ndata: "  # each message has one such line; the JSON behind it has no line's end
READ_BYTES = 64 * 1024
PATIENCE = 60.0


class Streams:
    """Streams the events of what *calls* start to so many *clients*, by *hf* and by hand; *meter* measures that."""

    def __init__(self, hf: Holdfast, calls: Callable[[int], Sequence[Call[Any]]], clients: int, meter: Meter) -> None:
        self._hf = hf
        self._meter = meter
        self._calls = calls
        self._clients = clients
        self._pieces: list[bytes] = []

    async def ours(self, number: int) -> None:
        """Start *number* jobs; measure it until every client has the event of each."""
        calls = self._calls(number)
        app = Starlette(routes=[Route("/events", Events(self._hf))])

        async def begin() -> None:
            await self._hf.start_many(calls)

        async with self._hf.event_stream(snapshot=False, names="job:enqueued") as stream:
            await anext(stream)
            await self._measure(app, begin, number)
            self._pieces = await take(stream, number)

    async def bare(self, number: int) -> None:
        """Send the bytes of the last streams of ours; measure it until every client has them."""
        begun = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield b": welcome\n\n"
            await begun.wait()
            for piece in self._pieces:
                yield piece

        async def endpoint(_: Request) -> StreamingResponse:
            return StreamingResponse(body(), media_type="text/event-stream")

        async def begin() -> None:
            begun.set()

        await self._measure(Starlette(routes=[Route("/events", endpoint)]), begin, number)

    async def _measure(self, app: Starlette, begin: Callable[[], Any], number: int) -> None:
        async with serving(app) as port, asyncio.timeout(PATIENCE):
            clients = [await Client.connect(port) for _ in range(self._clients)]
            self._meter.reset()
            async with asyncio.TaskGroup() as group:
                for each in clients:
                    group.create_task(each.read(number))
                await begin()
            self._meter.stop()
            for each in clients:
                each.close()


async def take(stream: AsyncIterator[bytes], number: int) -> list[bytes]:
    """Take *number* messages from a stream, in the pieces that it gives."""
    pieces: list[bytes] = []
    while sum(each.count(MESSAGE) for each in pieces) < number:
        pieces.append(await anext(stream))
    return pieces


class Client:
    """Reads a stream, and counts its messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int, request: bytes = REQUEST) -> Client:
        """Ask for a stream, and wait until it has begun."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.splitlines()[0]:
            raise Unsuited(f"the server does not stream: {head.splitlines()[0].decode()}")
        await reader.readuntil(b"\n\n")  # its first words: it has its place in the log
        return cls(reader, writer)

    async def read(self, number: int) -> None:
        """Read until *number* messages have come."""
        rest = b""
        while number > 0:
            piece = await self._reader.read(READ_BYTES)
            if not piece:
                raise Unsuited(f"a stream has ended, and {number:,} messages are missing")
            number -= (rest + piece).count(MESSAGE)
            rest = (rest + piece)[1 - len(MESSAGE) :]

    def close(self) -> None:
        """Read no more."""
        self._writer.close()


@asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[int]:
    """Serve *app* by uvicorn in this event loop; give its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
        serving = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]  # who connects before it serves waits
        finally:
            server.should_exit = True
            await serving
