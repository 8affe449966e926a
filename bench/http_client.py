"""A client of the HTTP API that costs little beside its server: connections that are kept."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterable
from typing import NamedTuple

from bench.machine import Unsuited

MOST_BYTES = 1024 * 1024
LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)


class Http(NamedTuple):
    """Where a server is, and what it lets us in by."""

    port: int
    token: str

    def request(self, method: str, path: str, body: object = None) -> bytes:
        """Write a request."""
        content = b"" if body is None else json.dumps(body).encode()
        head = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {self.token}"]
        if body is not None:
            head.append("Content-Type: application/json")
        if method != "GET":
            head.append(f"Content-Length: {len(content)}")
        return "\r\n".join([*head, "\r\n"]).encode() + content


class Kept:
    """A connection that is kept, for one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, http: Http) -> Kept:
        """Connect."""
        return cls(*await asyncio.open_connection("127.0.0.1", http.port, limit=MOST_BYTES))

    async def ask(self, request: bytes) -> bytes:
        """Send a request, and read the body of its answer; raise if it is refused."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = LENGTH.search(head)
        body = await self._reader.readexactly(int(length[1]) if length else 0)
        if head[9:10] != b"2":
            raise Unsuited(f"{request.partition(b' HTTP')[0].decode()} was refused: {(head + body).decode()[:1000]}")
        return body

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        await self._writer.wait_closed()


async def ask_once(http: Http, request: bytes) -> bytes:
    """Send one request; give the body of its answer."""
    kept = await Kept.open(http)
    try:
        return await kept.ask(request)
    finally:
        await kept.close()


class Asked(NamedTuple):
    """What some requests took: by the clock, and each of them."""

    seconds: float
    milliseconds: list[float]


async def ask_all(http: Http, requests: Iterable[bytes], at_once: int) -> Asked:
    """Send all *requests*, on so many connections at once."""
    waiting, milliseconds = iter(requests), list[float]()
    connections = [await Kept.open(http) for _ in range(at_once)]

    async def ask(kept: Kept) -> None:
        for each in waiting:
            began = time.perf_counter()
            await kept.ask(each)
            milliseconds.append((time.perf_counter() - began) * 1000)

    began = time.perf_counter()
    await asyncio.gather(*map(ask, connections))
    seconds = time.perf_counter() - began
    for each in connections:
        await each.close()
    return Asked(seconds, milliseconds)
