"""The ASGI applications: `asgi(hf)` is the HTTP API, `events_app(hf)` the events alone.

Every address is made from the request's `root_path`, so either can be mounted at any path.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TypedDict, Unpack

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from holdfast.app import Holdfast
from holdfast.errors import HoldfastError
from holdfast.http.answering import answer
from holdfast.http.endpoint import Endpoint
from holdfast.http.endpoints import ENDPOINTS
from holdfast.http.headers import add_usual
from holdfast.http.identity import Auth, Identities, ProxyUsers
from holdfast.http.limits import Limits
from holdfast.http.origins import Origins
from holdfast.http.problems import InternalError, MethodNotAllowed, NoSuchRoute, RefusedByApplication
from holdfast.http.redacting import NOTHING_SHOWN, Redacting
from holdfast.http.service import Incoming, Service
from holdfast.http.sse import Events, EventsOptions
from holdfast.integrations.starlette import lifespan
from holdfast.logging import say
from holdfast.worker.options import WorkerKeywords

ARRIVAL, ANSWERING = "holdfast.arrival", "holdfast.answering"
METHODS_OF_PREFLIGHT = "GET, POST, PUT, DELETE"
HEADERS_OF_PREFLIGHT = "Authorization, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID, X-API-Key"

logger = logging.getLogger(__name__)


def events_app(hf: Holdfast, **options: Unpack[EventsOptions]) -> Starlette:
    """Make an application that serves `GET /api/events`, by itself or mounted: `app.mount("/jobs", events_app(hf))`.

    By itself it opens *hf* and closes it; mounted, it leaves that to whom it is mounted in, and *hf* opens when first
    used. The keywords are those of `Events`.
    """
    return Starlette(routes=[Route("/api/events", Events(hf, **options))], lifespan=lifespan(hf))


class ApiOptions(TypedDict, total=False):
    """The keywords of `asgi` and `wsgi`."""

    auth: Auth | None
    hosts: Sequence[str]
    origins: Sequence[str]
    proxies: Sequence[str]
    proxy_users: ProxyUsers | None
    redact: Iterable[str]
    webhook_hosts: Iterable[str]
    metrics_on_loopback: bool
    limits: Limits | None
    tokens: Sequence[str]


def asgi(
    hf: Holdfast,
    *,
    auth: Auth | None = None,
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
    proxies: Sequence[str] = (),
    proxy_users: ProxyUsers | None = None,
    redact: Iterable[str] = (),
    webhook_hosts: Iterable[str] = (),
    metrics_on_loopback: bool = False,
    limits: Limits | None = None,
    tokens: Sequence[str] = (),
    has_streams: bool = True,
) -> Api:
    """Make the HTTP API of *hf*, by itself or mounted: `app.mount("/jobs", asgi(hf, auth=staff_only))`.

    By itself it opens *hf* and closes it; mounted, *hf* opens when first used. Nobody may do anything without a token
    of `holdfast token create`, or without *auth*: an async function that gives the `Identity` of a request's user, or
    None. *hosts* are the host names that it is served under, beside those of this machine. Pages of *origins* may use
    it. What `X-Forwarded-…` says is believed from the networks *proxies* alone; *proxy_users* names the header with
    the user's name. *redact* are further keys whose values are hidden. *webhook_hosts* may be named by operators who
    start a job with a webhook of its own. *tokens* are further tokens of admins, which hold for this process. Without
    *has_streams* there are no streams: clients poll.
    """
    service = Service(
        hf,
        Identities(hf, auth, proxy_users, tokens),
        Origins.of(hosts, origins, proxies),
        limits or Limits(),
        Redacting(redact),
        webhook_hosts=frozenset(webhook_hosts),
        metrics_on_loopback=metrics_on_loopback,
        has_streams=has_streams,
    )
    return Api(service, ENDPOINTS)


class Api:
    """An application that is made of a table of endpoints."""

    def __init__(
        self, service: Service, endpoints: Sequence[Endpoint], *, worker: bool | WorkerKeywords = False
    ) -> None:
        self.service = service
        self.endpoints = service.endpoints = tuple(endpoints)
        by_path: dict[str, dict[str, Endpoint]] = {}
        for each in endpoints:
            by_path.setdefault(each.path, {})[each.method] = each
        routes = [Route(path, _Resource(service, methods)) for path, methods in by_path.items()]
        self._router = Router(
            routes, redirect_slashes=False, default=_no_route, lifespan=lifespan(service.hf, worker=worker)
        )

    @property
    def routes(self) -> list[Route]:
        """The routes, as Starlette has them."""
        return [each for each in self._router.routes if isinstance(each, Route)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._router({**scope, "app": _App()}, receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _Answering(self.service, Request(scope), send)
        try:
            arrival, within = await self.service.arrive(scope, exchange.request_id)
            exchange.arrival = arrival
            if scope["method"] == "OPTIONS" and (response := self._preflight(exchange.request)) is not None:
                await response(scope, receive, exchange.send)
            else:
                await self._router({**within, ARRIVAL: arrival, ANSWERING: exchange}, receive, exchange.send)
        except Exception as error:
            if exchange.has_begun:
                raise
            if isinstance(error, HTTPException):  # by auth= of an application
                error = RefusedByApplication(error.status_code, str(error.detail), error.headers)
            if not isinstance(error, HoldfastError):
                say(logger, "http_request_failed", trace=error, request=exchange.request_id, error=type(error).__name__)
                error = InternalError(
                    f"the server could not answer; its log has more of it under the request id {exchange.request_id}"
                )
            await self.service.problem(error, exchange.request_id, NOTHING_SHOWN)(scope, receive, exchange.send)

    def _preflight(self, request: Request) -> Response | None:
        """Tell a browser what pages of a named origin may send."""
        if not self.service.origins.allows(request.headers.get("origin", "")):
            return None
        allowed = {
            "Access-Control-Allow-Methods": METHODS_OF_PREFLIGHT,
            "Access-Control-Allow-Headers": HEADERS_OF_PREFLIGHT,
            "Access-Control-Max-Age": "600",
        }
        return Response(status_code=204, headers=allowed)


class _Answering:
    """One answer on its way: it gets the headers that every answer has."""

    def __init__(self, service: Service, request: Request, send: Send) -> None:
        self.request = request
        self.request_id = service.hf._starter.new_id().hex
        self.arrival: Incoming | None = None
        self.has_begun = False
        self.operation = "none"
        self._service = service
        self._send = send

    async def send(self, message: Message) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            self.has_begun = True
            self._service.answered[self.operation, message["status"] // 100] += 1
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            is_https = self.arrival is not None and self.arrival.client.scheme == "https"
            add_usual(headers, self.request_id, is_https=is_https)
            self._service.allow_origin(headers, self.request.headers.get("origin"))
            message = {**message, "headers": headers.raw}
        await self._send(message)


class _Resource:
    """One path of the table, with its methods."""

    def __init__(self, service: Service, endpoints: dict[str, Endpoint]) -> None:
        self._service = service
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        if (endpoint := self._endpoints.get(method)) is None:
            allowed = ", ".join([*self._endpoints, *(["HEAD"] if "GET" in self._endpoints else [])])
            raise MethodNotAllowed(f"this path has no {scope['method']}; it has {allowed}", headers={"Allow": allowed})
        scope[ANSWERING].operation = endpoint.operation_id
        response = await answer(self._service, endpoint, Request(scope, receive), scope[ARRIVAL])
        await response(scope, receive, send)


async def _no_route(scope: Scope, receive: Receive, send: Send) -> None:
    raise NoSuchRoute(f"there is no {scope['path']!r} here; GET /api/openapi.json lists what there is")


class _App:
    """What `lifespan` keeps its Holdfast on, where there is no application of Starlette."""

    def __init__(self) -> None:
        from starlette.datastructures import State

        self.state = State()
