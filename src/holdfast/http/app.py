"""An ASGI application that serves what there is over HTTP: today the events."""

from __future__ import annotations

from typing import Unpack

from starlette.applications import Starlette
from starlette.routing import Route

from holdfast.app import Holdfast
from holdfast.http.sse import Events, EventsOptions
from holdfast.integrations.starlette import lifespan


def events_app(hf: Holdfast, **options: Unpack[EventsOptions]) -> Starlette:
    """Make an application that serves `GET /api/events`, by itself or mounted: `app.mount("/jobs", events_app(hf))`.

    By itself it opens *hf* and closes it; mounted, it leaves that to whom it is mounted in, and *hf* opens when first
    used. The keywords are those of `Events`.
    """
    return Starlette(routes=[Route("/api/events", Events(hf, **options))], lifespan=lifespan(hf))
