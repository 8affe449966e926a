"""Holdfast over HTTP: `events_app(hf)` is an application, `Events(hf)` an endpoint for yours; needs Starlette."""

from __future__ import annotations

from importlib.util import find_spec

from holdfast.errors import MissingLibrary

if find_spec("starlette") is None:
    raise MissingLibrary("holdfast.http", "starlette", ".[http]")

from holdfast.http.app import events_app
from holdfast.http.sse import Events

__all__ = ["Events", "events_app"]
