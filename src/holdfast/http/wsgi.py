"""The HTTP API for WSGI servers: `wsgi(hf)`, to be mounted in Flask or served by gunicorn.

The application itself is async. Each process runs it in a loop of its own, in a thread that begins with the first
request: a server that forks before that loses nothing. A stream would hold one of the server's few threads for ever, so
there are none, and clients poll `/api/events.json`; every answer is whole before its first byte is sent. The body of a
request is read by the server's thread, piece by piece, when the application asks for it. One that breaks off, or that
the server cannot tell the end of, is no shorter body: the application is told that its client is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from queue import SimpleQueue
from typing import Any, TypeAlias, Unpack

from starlette.types import ASGIApp, Message, Scope

from holdfast.app import Holdfast
from holdfast.http.app import ApiOptions, asgi
from holdfast.threads import LoopThread

PIECE_BYTES = 65_536
LOOP = LoopThread("holdfast-http")
"""The loop of this process in which all applications for WSGI run."""

Read: TypeAlias = Callable[[int], bytes]


def wsgi(hf: Holdfast, **options: Unpack[ApiOptions]) -> WsgiApp:
    """Make the HTTP API of *hf* for WSGI, without streams; the keywords are those of `asgi`.

    With *auth* the function gets a request of Starlette, whose `scope["wsgi_environ"]` is the environment of WSGI. It
    runs in a loop of another thread than the request, where nothing may block.
    """
    return WsgiApp(asgi(hf, has_streams=False, **options))


class WsgiApp:
    """A WSGI application around an ASGI one whose answers have an end."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        scope = scope_of(environ)
        answer = answered(self.app, scope, body_of(environ))
        start_response(f"{answer.status} {_phrase(answer.status)}", as_texts(answer.headers))
        return [bytes(answer.body) if scope["method"] != "HEAD" else b""]


def answered(app: ASGIApp, scope: Scope, body: Body) -> WholeAnswer:
    """Have *app* answer a request in the loop, and wait for all of the answer; *body* is read here."""
    answer = WholeAnswer(body)
    running = asyncio.run_coroutine_threadsafe(answer.run(app, scope), LOOP.loop)
    while (asked := answer.asked.get()) is not None:
        message = body.next()
        LOOP.loop.call_soon_threadsafe(_resolve, asked, message)
    running.result()
    return answer


class Body:
    """The body of a request: *read* gives at most so many bytes of it, *length* says how many there are.

    None as *length*: it ends where *read* gives nothing more.
    """

    def __init__(self, read: Read, length: int | None) -> None:
        self._read = read
        self._left = length
        self.has_ended = length == 0

    def next(self) -> Message:
        """Give the next piece, or that the client is gone, as the messages of ASGI."""
        try:
            piece = self._read(PIECE_BYTES if self._left is None else min(PIECE_BYTES, self._left))
        except Exception:  # noqa: BLE001 - each server has its own error for a client that has gone away
            return self._gone()
        if self._left is not None:
            if not piece:
                return self._gone()
            self._left -= len(piece)
        self.has_ended = self._left == 0 if self._left is not None else not piece
        return {"type": "http.request", "body": piece, "more_body": not self.has_ended}

    def _gone(self) -> Message:
        self.has_ended = True
        return {"type": "http.disconnect"}


class WholeAnswer:
    """An answer that is complete, once `run` has ended; *asked* gets a future for each piece of the body wanted."""

    def __init__(self, body: Body) -> None:
        self.asked: SimpleQueue[asyncio.Future[Message] | None] = SimpleQueue()
        self.status = 500
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = bytearray()
        self._request_body = body
        self._has_asked = False

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        """Have *app* answer."""
        try:
            await app(scope, self._receive, self._send)
        finally:
            self.asked.put(None)

    async def _receive(self) -> Message:
        if self._request_body.has_ended and self._has_asked:
            await asyncio.get_running_loop().create_future()  # nobody is seen to go away before the answer is whole
        if self._request_body.has_ended:
            self._has_asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        self._has_asked = True
        asked: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.asked.put(asked)
        return await asked

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message.get("headers", []))
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")


def scope_of(environ: Mapping[str, Any]) -> Scope:
    """Describe a request of WSGI as one of ASGI."""
    root = _utf8(environ.get("SCRIPT_NAME", "")).rstrip("/")
    given = {name.removeprefix("HTTP_"): value for name, value in environ.items() if _is_header(name) and value != ""}
    headers = [
        (name.lower().replace("_", "-").encode("latin-1"), value.encode("latin-1")) for name, value in given.items()
    ]
    address = environ.get("REMOTE_ADDR")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": environ.get("SERVER_PROTOCOL", "HTTP/1.1").rpartition("/")[2],
        "method": environ["REQUEST_METHOD"],
        "scheme": environ.get("wsgi.url_scheme", "http"),
        "root_path": root,
        "path": root + _utf8(environ.get("PATH_INFO", "")),
        "query_string": environ.get("QUERY_STRING", "").encode("latin-1"),
        "headers": headers,
        "client": (address, int(environ.get("REMOTE_PORT") or 0)) if address else None,
        "server": (environ["SERVER_NAME"], int(environ["SERVER_PORT"])),
        "wsgi_environ": environ,
    }


def body_of(environ: Mapping[str, Any]) -> Body:
    """Give the body of a request of WSGI."""
    read, length = environ["wsgi.input"].read, environ.get("CONTENT_LENGTH") or ""
    if length:
        return Body(read, int(length))
    if "HTTP_TRANSFER_ENCODING" not in environ:
        return Body(read, 0)
    return Body(read if environ.get("wsgi.input_terminated") else _endless, None)


def as_texts(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Write the headers of ASGI as texts; what becomes of the connection is for the server alone to say."""
    return [
        (name.decode("latin-1"), value.decode("latin-1")) for name, value in headers if name.lower() != b"connection"
    ]


def _endless(_: int) -> bytes:
    raise OSError("this server hands on a body without an end; to read it would wait for ever")


def _is_header(name: str) -> bool:
    # some servers say the type and the length twice
    return name in ("CONTENT_TYPE", "CONTENT_LENGTH") or (
        name.startswith("HTTP_") and name not in ("HTTP_CONTENT_TYPE", "HTTP_CONTENT_LENGTH")
    )


def _utf8(text: str) -> str:
    """Read what WSGI hands on as bytes in the shape of a text."""
    return text.encode("latin-1").decode("utf-8", "replace")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def _resolve(asked: asyncio.Future[Message], message: Message) -> None:
    if not asked.done():  # the application may have waited long enough
        asked.set_result(message)
