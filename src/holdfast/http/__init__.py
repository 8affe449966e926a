"""Holdfast over HTTP: `asgi(hf)` is the whole API, `wsgi(hf)` the same for WSGI; `Events(hf)` the events alone.

`targets(hf, task=…)` has the routes of a target queue instead. Needs Starlette.
"""

from __future__ import annotations

from importlib.util import find_spec

from holdfast.errors import MissingLibrary

if find_spec("starlette") is None:
    raise MissingLibrary("holdfast.http", "starlette", ".[http]")

from holdfast.access import Role
from holdfast.http.app import asgi, events_app
from holdfast.http.identity import Identity, ProxyUsers
from holdfast.http.limits import Limits
from holdfast.http.sse import Events
from holdfast.http.targets import targets
from holdfast.http.wsgi import wsgi

__all__ = ["Events", "Identity", "Limits", "ProxyUsers", "Role", "asgi", "events_app", "targets", "wsgi"]
