"""`/api/events`: the log as server-sent events, and `/api/events.json`, the same by pages for who can hold no stream.

A stream is that of the face of one place, so events of other tenants cannot be in it. Whoever may read it is asked
again while it is open: it ends once the token is revoked or says something else, and when its tenant is suspended,
resumed or dropped.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.access import Role
from holdfast.errors import HoldfastError
from holdfast.events.sse_stream import EventStream, message_object
from holdfast.http.connections import is_server_stopping
from holdfast.http.endpoint import Inquiry, NoBody, PageLimit, Taken
from holdfast.http.jobs import Words
from holdfast.http.problems import Forbidden, NoStream, ServerStopping
from holdfast.http.sse import FILTERS, HEADERS
from holdfast.models import Event
from holdfast.tenancy import TenantInfo
from holdfast.wire.job_json import JobObject


class EventsFilter(Taken):
    """Which events are wanted; each filter takes one value or several."""

    job: Words = ()
    chain: Words = ()
    task: Words = ()
    lane: Words = ()
    parent: Words = ()
    name: Words = ()
    brief: bool = False
    """Without input, output and tracebacks."""


class StreamQuery(EventsFilter):
    """How a stream begins, and whether events wait for newer ones of the same job."""

    snapshot: bool = True
    merge_ms: int = 0
    last_event_id: str | None = None
    """For clients that cannot send `Last-Event-ID`, which goes before it."""


class EventsQuery(EventsFilter):
    """A page of the log: what comes behind the cursor *after*; without it, where the log is now."""

    after: str | None = None
    limit: PageLimit = 100


class EventObject(BaseModel):
    """An event of the log, and the cursor behind it; its job is null if it is one of a lane or a queue."""

    event: str
    at: str
    status: str | None
    version: int | None
    attempt: int | None
    facts: dict[str, Any]
    job: JobObject | None
    omitted: list[str]
    """What is left out of the job: because it is brief, too large, or not for you."""
    cursor: str


class DeletedEvent(BaseModel):
    """The event of a job that is no more."""

    event: str
    at: str
    deletedJobId: str  # noqa: N815 - as in the stream
    cursor: str


class EventList(BaseModel):
    """A page of the log, which may be short or empty; its cursor always leads on."""

    items: list[EventObject | DeletedEvent]
    cursor: str


async def follow(ask: Inquiry[StreamQuery, NoBody]) -> ASGIApp:
    """Follow the log as server-sent events: a snapshot of the jobs, then every event behind it."""
    if not ask.service.has_streams:
        raise NoStream("this server cannot hold a stream; poll GET /api/events.json instead")
    if ask.request.method == "HEAD":
        return Response(None, 200, {name.decode(): value.decode() for name, value in HEADERS})
    if is_server_stopping():  # it may not have closed its socket yet; a stream would be ended at once
        raise ServerStopping
    stream, tenant = _stream(ask), await _tenant(ask)

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        live = ask.service.live
        with ask.service.streams.one_more(ask.who.key):
            with live.exchange(Request(scope, receive), receive, send) as exchange:
                await live.serve(exchange, stream, partial(_is_still_allowed, ask, tenant))

    return respond


def _stream(ask: Inquiry[StreamQuery, NoBody]) -> EventStream:
    query = ask.query
    return ask.hf.event_stream(
        snapshot=query.snapshot,
        last_event_id=ask.request.headers.get("last-event-id") or query.last_event_id or None,
        brief=query.brief,
        merge_ms=query.merge_ms,
        redaction=ask.shown.reader,
        **_wanted(ask),
    )


def _wanted(ask: Inquiry[Any, Any]) -> dict[str, Any]:
    """Give the filters as keywords; guests have their chain, whatever they ask for."""
    given = {plural: found for name, plural in FILTERS.items() if (found := getattr(ask.query, name))}
    if ask.who.role is Role.GUEST:
        if ask.who.chain is None:
            raise Forbidden("a guest follows one chain, and you are given none; ask for a link to it")
        given["chains"] = (ask.who.chain,)
    return given


async def _tenant(ask: Inquiry[Any, Any]) -> TenantInfo | None:
    """Look how the tenant stands; None where there is none."""
    return None if ask.tenant is None else await ask.service.hf._tenant_faces.registry.look(ask.tenant)


async def _is_still_allowed(ask: Inquiry[Any, Any], before: TenantInfo | None) -> bool:
    """Tell whether who asked may still read: by the same right, of the same tenant, which stands as it stood."""
    client = ask.service.origins.client(ask.request.scope, ask.request.headers)
    try:
        who, now = await ask.service.identities.identify(ask.request, client), await _tenant(ask)
    except (HoldfastError, HTTPException):  # none of these says yes; whoever has the right comes again
        return False
    return who == ask.who and _standing(now) == _standing(before)


def _standing(tenant: TenantInfo | None) -> object:
    return None if tenant is None else (tenant.state, tenant.created_at)


async def list_all(ask: Inquiry[EventsQuery, NoBody]) -> dict[str, Any]:
    """Read a page of the log, without holding a connection."""
    query = ask.query
    page = await ask.hf.list_events(query.after, limit=query.limit, **_wanted(ask))
    return {"items": [_logged(ask, each) for each in page], "cursor": page.cursor}


def _logged(ask: Inquiry[EventsQuery, NoBody], event: Event) -> dict[str, Any]:
    shown = ask.shown.of("" if event.job is None else event.job.task)
    written = message_object(event, shown, brief=ask.query.brief)
    if event.deleted_job_id is None:
        written.setdefault("omitted", [])
    return {**written, "cursor": event.cursor}
