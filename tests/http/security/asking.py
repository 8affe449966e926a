"""What the tests of security share: applications whose handlers do nothing, and requests as browsers send them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import httpx
from pydantic import BaseModel

from holdfast import Holdfast
from holdfast.http.app import Api, asgi
from holdfast.http.endpoint import Endpoint, Inquiry, Taken
from holdfast.http.endpoints import ENDPOINTS
from holdfast.http.limits import Limits
from tests.support.conditions import until

WIDE = Limits(requests_per_second=100_000, logins_per_minute=100_000)
"""Limits that no test comes near to."""
NO_ID = UUID(int=7)
SAME_SITE = {"Sec-Fetch-Site": "same-origin"}


async def reached(ask: Inquiry[Any, Any]) -> dict[str, str]:
    """Say who has come as far as the handler."""
    return {"name": ask.who.name, "role": str(ask.who.role)}


def frame(hf: Holdfast, endpoints: Sequence[Endpoint] = ENDPOINTS, **options: Any) -> Api:
    """Make an application of the table whose handlers only say that they were reached: what refuses is the frame."""
    stubs = [replace(each, handler=reached, status=200, media="application/json") for each in endpoints]
    return Api(asgi(hf, **{"limits": WIDE, **options}).service, stubs)


def path_of(endpoint: Endpoint, id_: UUID = NO_ID) -> str:
    """Fill in the path of an endpoint."""
    return endpoint.path.replace("{id}", str(id_)).replace("{name}", "some")


def required(model: type[BaseModel] | None) -> dict[str, Any]:
    """Give some value to all that a model asks for, so that what answers is not its reading."""
    if model is None:
        return {}
    found = {each.alias or name: each for name, each in model.model_fields.items() if each.is_required()}
    return {name: SOME.get(name, "some") for name in found}


SOME: dict[str, Any] = {"jobs": [], "verb": "cancel", "events": ["completed"]}


async def ask(client: httpx.AsyncClient, endpoint: Endpoint, id_: UUID = NO_ID, root: str = "", **also: Any) -> int:
    """Send a request that the endpoint can read; give the status."""
    answer = await request(client, endpoint, id_, root, **also)
    return answer.status_code


async def request(
    client: httpx.AsyncClient, endpoint: Endpoint, id_: UUID = NO_ID, root: str = "", **also: Any
) -> httpx.Response:
    """Send a request that the endpoint can read."""
    query: type[Taken] = endpoint.query
    body = {"json": required(endpoint.takes)} if endpoint.takes is not None else {}
    return await client.request(
        endpoint.method, f"{root}{path_of(endpoint, id_)}", params=required(query), **{**body, **also}
    )


@asynccontextmanager
async def browser(
    app: Callable[..., Any], host: str = "localhost", client: tuple[str, int] = ("127.0.0.1", 4711)
) -> AsyncIterator[httpx.AsyncClient]:
    """Give a client that keeps cookies, at an address of its own."""
    transport = httpx.ASGITransport(app, client=client)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as made:
        yield made


async def log_in(client: httpx.AsyncClient, token: str, root: str = "") -> httpx.Response:
    """Log in as our own page does."""
    return await client.post(f"{root}/api/session", json={"token": token}, headers=SAME_SITE)


class Stream:
    """A stream that somebody reads: what has come so far."""

    def __init__(self, reading: asyncio.Task[None], pieces: list[str], starts: list[Any]) -> None:
        self._reading = reading
        self._pieces = pieces
        self._starts = starts

    @property
    def status(self) -> int:
        """What it was answered; 0 before that."""
        return self._starts[0]["status"] if self._starts else 0

    @property
    def headers(self) -> dict[str, str]:
        """What it was answered with."""
        return {name.decode().lower(): value.decode() for name, value in self._starts[0]["headers"]}

    @property
    def text(self) -> str:
        """What has come."""
        return "".join(self._pieces)

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._reading.done()


@asynccontextmanager
async def follow(app: Callable[..., Any], token: str, target: str = "/api/events") -> AsyncIterator[Stream]:
    """Read a stream in the block, from its snapshot on."""
    pieces: list[str] = []
    starts: list[Any] = []

    async def send(message: Any) -> None:
        starts.extend([message] if "status" in message else [])
        pieces.append(bytes(message.get("body", b"")).decode())

    async def receive() -> Any:
        await asyncio.Event().wait()

    path, _, query = target.partition("?")
    headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {token}".encode())]
    request = {"method": "GET", "path": path, "query_string": query.encode(), "headers": headers}
    scope = {"type": "http", "scheme": "http", "client": ("127.0.0.1", 1), **request}
    reading = asyncio.create_task(app(scope, receive, send))
    stream = Stream(reading, pieces, starts)
    try:
        await until(lambda: "event: snapshot" in stream.text or stream.is_over, "the snapshot has come")
        yield stream
    finally:
        reading.cancel()
        await asyncio.wait([reading])
