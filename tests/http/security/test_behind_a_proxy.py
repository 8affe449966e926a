"""A stream through a proxy that buffers: at once if it heeds what the answer says, else late and whole (S-31)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from holdfast import Holdfast
from holdfast.http import asgi
from holdfast.http.app import Api
from tests.http.security.buffering import buffering
from tests.http.serving import served
from tests.support.factories import TASKS, greet
from tests.support.sse_reader import Message, Reader


@asynccontextmanager
async def reading(port: int, token: str, last_id: str) -> AsyncIterator[asyncio.StreamReader]:
    """Ask for a stream of what comes behind an id."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [
        f"GET /api/events?last_event_id={last_id} HTTP/1.0",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {token}",
        "",
        "",
    ]
    writer.write("\r\n".join(lines).encode())
    try:
        yield reader
    finally:
        writer.transport.abort()


async def messages(reader: asyncio.StreamReader, number: int, seconds: float = 20) -> list[Message]:
    """Read so many events of jobs."""
    source, found = Reader(), list[Message]()
    async with asyncio.timeout(seconds):
        while len(found) < number:
            piece = await reader.read(65_536)
            assert piece, "the stream has ended"
            found += [each for each in source.feed(piece) if each.event == "job:enqueued"]
    return found[:number]


def app_of(hf: Holdfast) -> Api:
    """Serve with the proxy's address as that of one of ours."""
    return asgi(hf, proxies=["127.0.0.1"])


@pytest.fixture
def file(new_holdfast: Callable[..., Holdfast]) -> Holdfast:
    """A face on a file, where the database makes no difference."""
    return new_holdfast("sqlite", tasks=[TASKS])


async def test_a_proxy_that_heeds_the_answer_passes_each_event_on_at_once(file: Holdfast) -> None:
    token = (await file.tokens.create("ada")).token
    async with served(app_of(file)) as server, buffering(server.port, 16_384, is_heedful=True) as port:
        async with reading(port, token, await file.cursor()) as reader:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            for name in ("one", "two"):
                await file.start(greet(name=name))
                (message,) = await messages(reader, 1)
                assert name in message.data

    assert b"x-accel-buffering: no" in head.lower()
    assert b"cache-control: no-store" in head.lower()


@pytest.mark.long
@pytest.mark.parametrize("page", [4_096, 16_384])
async def test_a_proxy_that_heeds_nothing_delays_events_and_loses_none(file: Holdfast, page: int) -> None:
    token = (await file.tokens.create("ada")).token
    async with served(app_of(file)) as server, buffering(server.port, page, is_heedful=False) as port:
        async with reading(port, token, await file.cursor()) as reader:
            for number in range(60):
                await file.start(greet(name=f"{number:03} {'x' * 600}"))
            read = await messages(reader, 30)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers={"Connection": "close"}) as client:
            client.headers["Authorization"] = f"Bearer {token}"
            polled = (await client.get("/api/events.json", params={"after": read[-1].last_id, "limit": 500})).json()[
                "items"
            ]

    assert [each.data.partition('"name":"')[2][:3] for each in read] == [f"{number:03}" for number in range(30)]
    assert [each["job"]["input"]["name"][:3] for each in polled] == [f"{number:03}" for number in range(30, 60)]
