"""The HTTP API in a Django project: one view, which hands a request of Django's on to an ASGI application of ours.

    path("jobs/", include("holdfast.integrations.django.urls"))

Django's middleware has seen the request by then, so its logins hold: staff may look, the permissions
`holdfast.operate` and `holdfast.administer` make operators and admins. Under WSGI the application runs in a loop of
another thread, without streams; under ASGI it runs in the loop of the server, and streams too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.decorators import login_not_required
from django.contrib.sessions.backends.signed_cookies import SessionStore as SignedSession
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.asgi import ASGIRequest
from django.db import close_old_connections, connections, transaction
from django.http import HttpResponse, StreamingHttpResponse
from django.views.decorators.csrf import csrf_exempt
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Scope

from holdfast.access import ALL_TENANTS, Role
from holdfast.app import Holdfast
from holdfast.http.app import Api, ApiOptions, asgi
from holdfast.http.identity import BEARER, Identity
from holdfast.http.wsgi import Body, answered, as_texts, body_of
from holdfast.integrations.django.project import holdfast, http_options

LOGIN = "holdfast.login"

NOT_IN_SETTINGS = {"auth", "hosts", "tokens"}

_APPS: dict[bool, tuple[Holdfast, dict[str, Any], Api]] = {}
"""The applications for requests with and without streams; a test runner changes the project's Holdfast."""


def serve(request: Any, rest: str = "") -> Any:
    """Answer *request*, whose path ends in *rest*, as the HTTP API does."""
    host = request.get_host()  # raises unless ALLOWED_HOSTS has it; no middleware need have asked
    has_streams = isinstance(request, ASGIRequest)
    scope = _scope(request, rest, host)
    if not request.headers.get("authorization", "").lower().startswith(f"{BEARER}hf_"):  # another may be Django's
        scope[LOGIN] = _Login(request)
    body = _body(request)
    if has_streams:
        return async_to_sync(_respond)(_app(has_streams=True), scope, body)
    answer = answered(_app(has_streams=False), scope, body)
    return _response(HttpResponse(bytes(answer.body), status=answer.status), answer.headers)


# Django's CSRF token is of no use to programs, nor is it needed: what may change something is taken only with a bearer
# token, or from pages of this site (Sec-Fetch-Site, Origin), before the body is read. And who is not logged in, nor
# has a token, is told so by us: a program has no use for the page of a login.
serve = login_not_required(csrf_exempt(serve))
for _alias in connections:  # every act has its own commit, so a transaction around the view would only hold locks
    serve = transaction.non_atomic_requests(using=_alias)(serve)


def identity_of(user: Any) -> Identity | None:
    """Tell what a user of Django may do; None if that is nothing."""
    if user is None or not user.is_active:
        return None
    if user.has_perm("holdfast.administer"):
        role = Role.ADMIN
    elif user.has_perm("holdfast.operate"):
        role = Role.OPERATOR
    elif user.is_staff:
        role = Role.VIEWER
    else:
        return None
    return Identity(user.get_username(), role, tenant=ALL_TENANTS if user.is_superuser else None)


class _Login:
    """Who was logged in when a request came; a stream asks again whether they still are."""

    def __init__(self, request: Any) -> None:
        self._user: Any = getattr(request, "user", None)
        self._session: Any = getattr(request, "session", None)
        self._identity: Identity | None = identity_of(self._user)
        self._is_fresh = True

    async def look(self) -> Identity | None:
        if self._is_fresh or self._identity is None:
            self._is_fresh = False
            return self._identity
        return await sync_to_async(self._look_again, thread_sensitive=False)()

    def _look_again(self) -> Identity | None:
        close_old_connections()
        try:
            if not self._has_session():
                return None
            user = self._user._meta.default_manager.filter(pk=self._user.pk).first()
            return None if user is None or user.password != self._user.password else identity_of(user)
        finally:
            connections.close_all()  # of this thread, which may not come again for long

    def _has_session(self) -> bool:
        """Tell whether the session has not been ended, as far as anybody but the browser knows."""
        key = getattr(self._session, "session_key", None)
        return key is None or isinstance(self._session, SignedSession) or bool(self._session.exists(key))


async def _logged_in(request: Request) -> Identity | None:
    login: _Login | None = request.scope.get(LOGIN)
    return None if login is None else await login.look()


def _app(*, has_streams: bool) -> Api:
    hf, options = holdfast(), http_options()
    kept = _APPS.get(has_streams)
    if kept is None or kept[0] is not hf or kept[1] != options:
        if odd := options.keys() - (ApiOptions.__annotations__.keys() - NOT_IN_SETTINGS):
            raise ImproperlyConfigured(
                f'HOLDFAST["http"] has {min(odd)!r}; it takes keywords of holdfast.http.asgi, except '
                f"{', '.join(sorted(NOT_IN_SETTINGS))}, which Django decides"
            )
        app = asgi(hf, auth=_logged_in, hosts=("*",), has_streams=has_streams, **options)
        kept = _APPS[has_streams] = hf, dict(options), app
    return kept[2]


def _scope(request: Any, rest: str, host: str) -> Scope:
    """Describe a request of Django's as one of ASGI, below where the view is mounted."""
    path: str = request.path
    address = request.META.get("REMOTE_ADDR")
    headers = {**{name.lower(): value for name, value in request.headers.items()}, "host": host}
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,  # as SECURE_PROXY_SSL_HEADER says
        "root_path": path[: len(path) - len(rest)].rstrip("/"),
        "path": path,
        "query_string": request.META.get("QUERY_STRING", "").encode("latin-1", "replace"),
        "headers": [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()],
        "client": (address, 0) if address else None,
        "server": None,
    }


def _body(request: Any) -> Body:
    """Give the body of a request, also if some middleware has read it."""
    length = request.META.get("CONTENT_LENGTH") or ""
    if not length and not isinstance(request, ASGIRequest):
        return body_of(request.environ)  # Django takes one without a length for empty
    return Body(request.read, int(length) if length else None)


async def _respond(app: ASGIApp, scope: Scope, body: Body) -> Any:
    """Begin an answer in this loop; one that goes on is left open."""
    exchange = _Exchange(app, scope, body)
    start, first = await exchange.next(), await exchange.next()
    if first.get("more_body", False):
        response = StreamingHttpResponse(_Pieces(exchange, first), status=start["status"])
    else:
        response = HttpResponse(first.get("body", b""), status=start["status"])
    return _response(response, start.get("headers", []))


def _response(response: Any, headers: list[tuple[bytes, bytes]]) -> Any:
    del response.headers["Content-Type"]  # one of Django's own
    for name, value in as_texts(headers):
        response.headers[name] = value
    return response


class _Exchange:
    """A request that our application answers in a task of its own, message by message."""

    def __init__(self, app: ASGIApp, scope: Scope, body: Body) -> None:
        self._body = body
        self._has_asked = False
        self._sent: asyncio.Queue[Message] = asyncio.Queue(1)
        self._has_gone = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._running = asyncio.create_task(_run(app, scope, self))

    async def next(self) -> Message:
        """Give the next message; raise what the application raises."""
        sent = asyncio.create_task(self._sent.get())
        try:
            await asyncio.wait({sent, self._running}, return_when=asyncio.FIRST_COMPLETED)
            if sent.done():
                return sent.result()
        finally:
            sent.cancel()
        if not self._sent.empty():
            return self._sent.get_nowait()
        self._running.result()
        return {"type": "http.response.body"}

    def leave(self) -> None:
        """Tell the application, from any thread, that nobody takes more."""
        self._loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        self._has_gone.set()
        while not self._sent.empty():  # whoever waits for room has it
            self._sent.get_nowait()

    async def receive(self) -> Message:
        """Be `receive` of ASGI: Django has the whole body."""
        if not self._has_asked or not self._body.has_ended:
            self._has_asked = True
            if self._body.has_ended:
                return {"type": "http.request", "body": b"", "more_body": False}
            return self._body.next()
        await self._has_gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Be `send` of ASGI: it waits until the message before has been taken; once nobody does, it takes all."""
        if not self._has_gone.is_set():
            await self._sent.put(message)


async def _run(app: ASGIApp, scope: Scope, exchange: _Exchange) -> None:
    await app(scope, exchange.receive, exchange.send)


class _Pieces:
    """The pieces of an answer, for Django, which calls `close` in every case."""

    def __init__(self, exchange: _Exchange, first: Message) -> None:
        self._exchange = exchange
        self._next: Message | None = first

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._all()

    async def _all(self) -> AsyncIterator[bytes]:
        message = self._next
        self._next = None
        try:
            while message is not None:
                if message.get("body"):
                    yield message["body"]
                message = await self._exchange.next() if message.get("more_body") else None
        finally:
            self._exchange.leave()

    def close(self) -> None:
        self._exchange.leave()
