"""`GET /api/events`: the log as server-sent events, for browsers and whoever else reads such a stream.

A client that reads no more costs what its socket and one piece of the stream hold; after a time it is cut off, and
resumes behind the last message that it had read. A client that goes away leaves nothing behind. When its server stops,
a stream ends at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from typing import Any, TypeAlias, TypedDict

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from holdfast.app import Holdfast
from holdfast.errors import HoldfastError, InvalidInput, Misuse, StoreError, UsageError
from holdfast.events.filters import EventOptions, event_filter
from holdfast.events.sse_stream import EventStream
from holdfast.http.connections import Connection, ShutdownSignals, is_server_stopping
from holdfast.logging import reason_of, say
from holdfast.models import EventFilter
from holdfast.wire.sse_frames import MEDIA_TYPE, retry

ALLOWED_SECONDS = 45.0  # after which a right to read is looked at again; a ping later, and within a minute, it is over
FAREWELL_SECONDS = 1.0
RETRY_MS = 1_000
HEADERS = [
    (b"content-type", f"{MEDIA_TYPE}; charset=utf-8".encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # or nginx keeps messages back until it has a page of them
]
FILTERS = {"job": "jobs", "chain": "chains", "task": "tasks", "lane": "lanes", "parent": "parents", "name": "names"}
FORBIDDEN = (403, "forbidden", "you may not read these events")
SWITCH = {"true": True, "1": True, "false": False, "0": False}

logger = logging.getLogger(__name__)

Allow: TypeAlias = Callable[[Request], Awaitable[bool | EventOptions]]


class EventsOptions(TypedDict, total=False):
    """The keywords of `Events`."""

    ping_seconds: float
    send_seconds: float
    most_streams: int
    allow: Allow | None


class Events:
    """The endpoint: `Route("/api/events", Events(hf))`, in Starlette, FastAPI, or by itself as an ASGI application.

    A `ping` is sent after *ping_seconds* without another message. A client that takes nothing for *send_seconds* is cut
    off. More than *most_streams* at once are refused, with 503. *allow* is asked who may read: True, False, or the
    keywords of `hf.events` that a client is confined to, whatever it asks for. What it refuses gets 403. It is asked
    again every minute while a stream is open; one whose answer has changed is ended.
    """

    def __init__(
        self,
        hf: Holdfast,
        *,
        ping_seconds: float = 15.0,
        send_seconds: float = 30.0,
        most_streams: int = 1_000,
        allow: Allow | None = None,
    ) -> None:
        self._hf = hf
        self._ping_seconds = ping_seconds
        self._most_streams = most_streams
        self._allow = allow
        self._live = LiveStreams(send_seconds)

    @property
    def open_streams(self) -> int:
        """How many streams are open."""
        return len(self._live)

    def end_streams(self) -> None:
        """End every open stream, for servers that cannot be seen stopping from here; each can be resumed."""
        self._live.end_all()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise Misuse("events are served by HTTP; mount this endpoint with Route(path, Events(hf))")
        request = Request(scope, receive)
        allowed = await self._allowed(request)
        if (refusal := self._refusal(request, allowed)) is not None:
            await refusal(scope, receive, send)
            return
        with self._live.exchange(request, receive, send) as exchange:
            await self._respond(exchange, allowed)

    def _refusal(self, request: Request, allowed: EventFilter | None) -> JSONResponse | None:
        if request.method != "GET":
            return _error(405, "method_not_allowed", "events are read with GET", allow="GET")
        if allowed is None:
            return _error(*FORBIDDEN)
        if is_server_stopping():  # it may not have closed its socket yet; a stream would be ended at once
            return _error(503, "server_stopping", "this server is stopping; ask again in a moment", retry_after="1")
        if self.open_streams >= self._most_streams:
            message = f"{self._most_streams} streams are open here, which is the most; ask again later"
            return _error(503, "too_many_streams", message, retry_after="5")
        return None

    async def _allowed(self, request: Request) -> EventFilter | None:
        """Give what the client of *request* may read; None if nothing."""
        answer = True if self._allow is None else await self._allow(request)
        if isinstance(answer, bool):
            return EventFilter() if answer else None
        confined = event_filter(**answer)
        # an empty filter narrows nothing: who has no lane of their own would read everybody's
        return confined if all(getattr(confined, name) for name in answer) else None

    async def _respond(self, exchange: StreamExchange, allowed: EventFilter | None) -> None:
        async def is_still_allowed() -> bool:
            return await self._allowed(exchange.request) == allowed

        try:
            asked = _asked(exchange.request, allowed or EventFilter())
            if asked is None:
                await exchange.refuse(*FORBIDDEN)
                return
            stream = self._hf.event_stream(ping_seconds=self._ping_seconds, **asked)
            await self._live.serve(exchange, stream, is_still_allowed)
        except (UsageError, StoreError) as error:  # nothing has been sent, so it can still be said
            await exchange.refuse(error.http_status, error.code, str(error))


class LiveStreams:
    """The open streams of one application: what all of them do, and how they end together.

    A client that takes nothing for *send_seconds* is cut off. Who may read is asked again *allowed_seconds* after the
    last time, as soon as there is something to send.
    """

    def __init__(self, send_seconds: float = 30.0, allowed_seconds: float | None = None) -> None:
        self.send_seconds = send_seconds
        self.allowed_seconds = allowed_seconds
        self._shutdown = ShutdownSignals()
        self._served = 0

    def __len__(self) -> int:
        return len(self._shutdown)

    def end_all(self) -> None:
        """End every open stream; each can be resumed."""
        self._shutdown.stop_all()

    @contextmanager
    def exchange(self, request: Request, receive: Receive, send: Send) -> Iterator[StreamExchange]:
        """Answer *request* in the block, and end with the server."""
        stop = self._shutdown.add(connection := Connection(receive))
        try:
            yield StreamExchange(request, send, connection, stop)
        finally:
            self._shutdown.withdraw(stop)

    async def serve(
        self, exchange: StreamExchange, stream: EventStream, is_still_allowed: Callable[[], Awaitable[bool]]
    ) -> None:
        """Send *stream* until one of both sides ends it; what it raises before its first piece is raised here."""
        async with aclosing(stream):
            first = await anext(stream)
            await exchange.start()
            await exchange.run(self._pump(self._hint() + first, stream, exchange, is_still_allowed))

    async def _next(self, stream: EventStream) -> bytes:
        """Give the next piece; nothing at the end, also of a stream that breaks off: its reader comes again."""
        try:
            return await anext(stream, b"")
        except HoldfastError as error:
            say(logger, "event_stream_broke_off", reason=reason_of(error))
            return b""

    def _hint(self) -> bytes:
        """Say when to come back: not all at once, when the server of many clients has been restarted."""
        self._served += 1
        return retry(RETRY_MS + self._served * 137 % RETRY_MS)

    async def _pump(
        self,
        piece: bytes,
        stream: EventStream,
        exchange: StreamExchange,
        is_still_allowed: Callable[[], Awaitable[bool]],
    ) -> None:
        """Send *piece* and what *stream* gives, until that ends, or its reader stalls or loses the right to it."""
        monotonic = asyncio.get_running_loop().time
        allowed_at = monotonic()
        while await exchange.took(piece, self.send_seconds):
            if (piece := await self._next(stream)) == b"":
                return
            if monotonic() - allowed_at > (self.allowed_seconds or ALLOWED_SECONDS):
                allowed_at = monotonic()
                if not await is_still_allowed():
                    return
        exchange.cut()


class StreamExchange:
    """One response: it has been started, and is ended in every case, also if nobody takes its end."""

    def __init__(self, request: Request, send: Send, connection: Connection, stop: asyncio.Future[None]) -> None:
        self.request = request
        self.send = send
        self.cut = connection.cut
        self._stop = stop

    async def refuse(self, status: int, code: str, message: str) -> None:
        """Say why there is no stream."""
        await _error(status, code, message)(self.request.scope, self.request.receive, self.send)

    async def start(self) -> None:
        """Send the headers."""
        await self.send({"type": "http.response.start", "status": 200, "headers": HEADERS})

    async def took(self, piece: bytes, seconds: float) -> bool:
        """Send *piece*; tell whether its reader, having read what was before it, had room for it in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._send_body(piece, more_body=True)
                return True
        return False

    async def run(self, pump: Coroutine[Any, Any, None]) -> None:
        """Run *pump* until it ends, its reader goes away, or the server stops; then end the response."""
        async with asyncio.TaskGroup() as group:
            pumping = group.create_task(pump)
            leaving = group.create_task(self._gone())
            await asyncio.wait((pumping, leaving, self._stop), return_when=asyncio.FIRST_COMPLETED)
            has_left = leaving.done()
            pumping.cancel()
            leaving.cancel()
        if not has_left:
            await self._end()

    async def _end(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._send_body(b"", more_body=False)
                return
        self.cut()
        with suppress(TimeoutError):  # a server may complain of a response without an end before it sees that it is cut
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._gone()

    async def _gone(self) -> None:
        while (await self.request.receive())["type"] != "http.disconnect":
            pass

    async def _send_body(self, body: bytes, *, more_body: bool) -> None:
        await self.send({"type": "http.response.body", "body": body, "more_body": more_body})


def _asked(request: Request, allowed: EventFilter) -> dict[str, Any] | None:
    """Read what a request asks for, as the keywords of `hf.event_stream`; None if that is nothing it may read."""
    query = request.query_params
    given = {plural: query.getlist(name) for name, plural in FILTERS.items() if name in query}
    wanted = _common(event_filter(**given), allowed)  # type: ignore[arg-type]  # checked there
    # a browser that comes back asks by the same address, and has got further meanwhile: the header is the newer one
    last = request.headers.get("last-event-id") or query.get("last_event_id") or None
    if wanted is None:
        return None
    return {**wanted, "last_event_id": last, "snapshot": _switch(query, "snapshot")}


def _common(asked: EventFilter, allowed: EventFilter) -> dict[str, tuple[Any, ...]] | None:
    """Give what fits both, as keywords; None if one of them leaves nothing of the other."""
    common: dict[str, tuple[Any, ...]] = {}
    for name in FILTERS.values():
        one, other = getattr(asked, name), getattr(allowed, name)
        common[name] = tuple(one & other if one and other else one or other)
        if one and not common[name]:
            return None
    return common


def _switch(query: Mapping[str, str], name: str) -> bool:
    text = query.get(name, "true").lower()
    if text not in SWITCH:
        raise InvalidInput(f"{name} must be true or false", name)
    return SWITCH[text]


def _error(status: int, code: str, message: str, **headers: str) -> JSONResponse:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return JSONResponse({"code": code, "message": message}, status, {"cache-control": "no-store", **named})
