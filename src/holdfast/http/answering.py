"""The way of a request: who asks, may they, what do they ask, the handler, its answer.

The order matters: nothing of a body is read before its sender may send it, and nothing is read from the database for a
host or a page of another site.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from holdfast.access import Role
from holdfast.errors import ChainNotFound, HoldfastError
from holdfast.http.endpoint import KEY, NOBODY, Endpoint, Inquiry, NoBody, Reply, Taken
from holdfast.http.headers import compress
from holdfast.http.identity import Identity
from holdfast.http.problems import Forbidden, InvalidRequest, NotAcceptable, Unauthenticated
from holdfast.http.reading import read_body, read_query
from holdfast.http.redacting import NOTHING_SHOWN
from holdfast.http.service import Incoming, Service
from holdfast.ids import target_id
from holdfast.wire.json_text import json_bytes


async def answer(service: Service, endpoint: Endpoint, request: Request, came: Incoming) -> ASGIApp:
    """Answer a request, or raise why not."""
    is_open = endpoint.role is NOBODY
    await service.admit(came, is_open=is_open)
    _refuse_not_acceptable(endpoint, request)
    if not service.identities.is_program(request.headers):
        service.origins.refuse_cross_site(request.method, request.headers, came.client)
    who = await _who(service, endpoint, request, came)
    await service.refuse_tenant(who, came.tenant, is_open=is_open, in_control=endpoint.in_control)
    _refuse_key(endpoint, request)
    query = read_query(endpoint.query, request.query_params.multi_items())
    _refuse_other_chain(endpoint, who, request.path_params, query)
    limits = service.limits.of_strangers if is_open else service.limits
    body = await read_body(endpoint.takes or NoBody, request, limits) if endpoint.is_act else NoBody()
    place, control = service.place(None if is_open else came.tenant), service.place(None)
    shown = NOTHING_SHOWN if is_open else await service.redacting.of(place, came.tenant, payloads=who.payloads)
    why = getattr(body, "why", None) or getattr(query, "why", None)
    if endpoint.is_act and not is_open:
        place = place.acting(by=who.name, why=why, request=came.request_id)
        control = control.acting(by=who.name, why=why, request=came.request_id) if came.tenant else place
    ask = Inquiry(
        service=service,
        hf=place,
        control=control,
        who=who,
        tenant=came.tenant,
        path=request.path_params,
        query=query,
        body=body,
        request=request,
        request_id=came.request_id,
        shown=shown,
    )
    try:
        return _response(endpoint, request, await endpoint.handler(ask))
    except HoldfastError as error:  # here, where it is known what who asks may see
        return service.problem(error, came.request_id, NOTHING_SHOWN if who.role is Role.GUEST else ask.shown)


async def _who(service: Service, endpoint: Endpoint, request: Request, came: Incoming) -> Identity:
    """Find out who asks, and refuse who may not, or asks too often."""
    address = f"address {came.client.source}"
    is_open = endpoint.role is NOBODY or (
        endpoint.path == "/metrics" and service.metrics_on_loopback and came.client.is_local
    )
    if is_open:
        service.requests.spend(address, "requests from this address")
        return Identity("nobody", Role.GUEST, payloads=False, tenant=came.tenant, key=address)
    if not await service.identities.knows(request, came.client):  # or each guess would cost the database a read
        service.requests.look(address, "requests from this address")
    try:
        who = await service.identities.identify(request, came.client)
    except Unauthenticated:
        service.requests.spend(address, "requests from this address")
        raise
    if who is None:
        service.requests.spend(address, "requests from this address")
        raise Unauthenticated(
            "nobody is logged in; send `Authorization: Bearer hf_…` with a token of `holdfast token create`, or "
            "log in with POST /api/session"
        )
    service.requests.spend(who.key, f"requests of {who.name}")
    assert isinstance(endpoint.role, Role)  # noqa: S101 - NOBODY is done above
    if not who.role.allows(endpoint.role):
        raise Forbidden(
            f"this needs the role {endpoint.role}, and {who.name} is {_article(who.role)}; ask an admin for "
            f"that role, or for a token that has it (`holdfast token create NAME --role {endpoint.role}`)"
        )
    return who


def _refuse_other_chain(endpoint: Endpoint, who: Identity, path: Mapping[str, Any], query: Taken) -> None:
    """Let a guest see one chain and no other."""
    if who.role is not Role.GUEST or not endpoint.names_chain:
        return
    named = [path["id"]] if "id" in path else list(getattr(query, "chain", ()))
    if not named:
        raise Forbidden("a link shows one chain; add ?chain= with its id, which GET /api says")
    for each in named:
        if target_id(each) != who.chain:
            raise ChainNotFound(target_id(each))


def _refuse_key(endpoint: Endpoint, request: Request) -> None:
    """Refuse an `Idempotency-Key` that would be passed over: whoever sends one trusts that it is heeded."""
    if endpoint.is_act and KEY in request.headers and KEY not in endpoint.headers:
        raise InvalidRequest(
            f"this route takes no {KEY}; leave it out. Only starts take one; to repeat a verb safely, send if_state"
        )


def _response(endpoint: Endpoint, request: Request, given: object) -> ASGIApp:
    if callable(given):
        return given
    if given is None:
        return Response(status_code=204)
    told = given if isinstance(given, Reply) else Reply(given, endpoint.status)
    body = json_bytes(told.body) if told.body is not None else b""
    headers = dict(told.headers)
    if request.method in ("GET", "HEAD") and told.status == 200 and not endpoint.is_secret:
        etag = f'W/"{sha256(body).hexdigest()[:32]}"'
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers={"ETag": etag, "Cache-Control": "private, no-cache"})
        headers |= {"ETag": etag, "Cache-Control": "private, no-cache"}
    response = Response(body, told.status, headers, endpoint.media if body else None)
    if not endpoint.is_secret:
        compress(response, request.headers.get("accept-encoding", ""))
    return response


def _refuse_not_acceptable(endpoint: Endpoint, request: Request) -> None:
    accepted = request.headers.get("accept", "*/*")
    if accepted == "*/*":
        return
    kinds = [each.partition(";")[0].strip().lower() for each in accepted.split(",")]
    whole, group = endpoint.media.partition(";")[0], endpoint.media.partition("/")[0]
    if not {"", "*/*", f"{group}/*", whole, "application/problem+json"} & set(kinds):
        raise NotAcceptable(f"this is answered with {whole}, which `Accept: {accepted[:100]}` leaves out; add it")


def _article(role: Role) -> str:
    return f"an {role}" if role in (Role.ADMIN, Role.OPERATOR) else f"a {role}"
