"""A client of server-sent events over a real socket, which reads only when it is told to."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

from tests.support.sse_reader import Message, Reader

PATH = "/api/events"


class Client:
    """One connection; it speaks HTTP/1.0, so that the body comes as it is and ends with the connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._source = Reader()
        self._waiting: list[Message] = []
        self.seen: list[Message] = []
        self.status = 0
        self.headers: dict[str, str] = {}

    @property
    def last_id(self) -> str:
        """Where it would resume."""
        return self._source.last_id

    @property
    def retry_ms(self) -> int | None:
        """After what time it was asked to come back."""
        return self._source.retry_ms

    async def ask(self, target: str, headers: dict[str, str], method: str = "GET") -> None:
        """Send a request, and read the head of its response."""
        lines = [
            f"{method} {target} HTTP/1.0",
            "host: test",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        self._writer.write("\r\n".join([*lines, "", ""]).encode())
        await self._writer.drain()
        head = (await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), 10)).decode()
        first, *rest = head.strip().split("\r\n")
        self.status = int(first.split(" ")[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}

    async def next(self, timeout: float = 30) -> Message:
        """Give the next message; fail if the stream ends or nothing comes."""
        message = await self.next_or_end(timeout)
        assert message is not None, "the stream has ended"
        return message

    async def next_or_end(self, timeout: float = 30) -> Message | None:
        """Give the next message, or None at the end of the stream."""
        async with asyncio.timeout(timeout):
            while not self._waiting:
                if not (piece := await self._reader.read(65_536)):
                    return None
                self._waiting += self._source.feed(piece)
        self.seen.append(self._waiting[0])
        return self._waiting.pop(0)

    async def until(self, fits: Callable[[Message], bool], timeout: float = 30) -> Message:
        """Read on to a message that fits."""
        while True:
            if fits(message := await self.next(timeout)):
                return message

    async def rest(self, timeout: float = 30) -> list[Message]:
        """Read to the end of the stream."""
        found = []
        while (message := await self.next_or_end(timeout)) is not None:
            found.append(message)
        return found

    async def json(self) -> Any:
        """Read the body of a response that is not a stream."""
        return json.loads(await asyncio.wait_for(self._reader.read(), 10))

    def close(self) -> None:
        """Go away, at once."""
        self._writer.transport.abort()


@asynccontextmanager
async def connected(
    port: int,
    *,
    last_id: str | None = None,
    method: str = "GET",
    path: str = PATH,
    token: str | None = None,
    **query: Any,
) -> AsyncIterator[Client]:
    """Ask for a stream, and go away at the end of the block."""
    client = Client(*await asyncio.open_connection("127.0.0.1", port))
    headers = {} if last_id is None else {"last-event-id": last_id}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    try:
        await client.ask(f"{path}?{urlencode(query, doseq=True)}", headers, method)
        yield client
    finally:
        client.close()


def stalled(port: int, query: str = "") -> socket.socket:
    """Ask for a stream and read nothing of it, with as little room for it as the system allows."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    connection.connect(("127.0.0.1", port))
    connection.sendall(f"GET {PATH}?{query} HTTP/1.0\r\nhost: test\r\n\r\n".encode())
    return connection
