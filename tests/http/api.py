"""A client of the HTTP API, which holds every answer against the table: its status, its type and its keys.

async with api(hf, role="operator") as client:
    answer = await client.post("/api/jobs", json={"task": "greet", "arguments": {"name": "Ada"}})
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from re import Pattern
from typing import Any

import httpx
from pydantic import TypeAdapter
from starlette.routing import compile_path

from holdfast import Holdfast
from holdfast.access import Role
from holdfast.http.app import Api, asgi
from holdfast.http.endpoint import Endpoint
from holdfast.http.endpoints import ENDPOINTS
from holdfast.http.problems import MEDIA_TYPE, ProblemObject

USUAL_PROBLEMS = (400, 401, 403, 405, 406, 421, 429, 503)
WITH_A_BODY = (408, 413, 415)


@asynccontextmanager
async def api(
    hf: Holdfast,
    *,
    role: Role | str = Role.VIEWER,
    payloads: bool = True,
    name: str = "ada",
    app: Api | None = None,
    token: str | None = None,
    **options: Any,
) -> AsyncIterator[httpx.AsyncClient]:
    """Give a client with a bearer token of *role*; *options* are those of `asgi`, unless an *app* is given."""
    served = app or asgi(hf, **options)
    secret = token if token is not None else (await hf.tokens.create(name, role=role, payloads=payloads)).token
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(served),
        base_url="http://localhost",
        headers={"Authorization": f"Bearer {secret}"},
        event_hooks={"response": [as_the_table_says]},
    ) as client:
        yield client


async def as_the_table_says(response: httpx.Response) -> None:
    """Fail unless the table has an answer like this one."""
    kind = response.headers.get("content-type", "").partition(";")[0]
    if kind == "text/event-stream":
        return
    await response.aread()
    request = response.request
    found = _endpoint(request.method, request.url.path)
    if found is None or request.method in ("HEAD", "OPTIONS"):
        return
    told = f"{request.method} {request.url.raw_path.decode()} answered {response.status_code}: {response.text[:1000]}"
    if response.status_code >= 400:
        usual = USUAL_PROBLEMS + (WITH_A_BODY if found.is_act else ())
        assert response.status_code in (*usual, *found.problems), told
        assert kind == MEDIA_TYPE, told
        assert not differences(ProblemObject, response.json()), told
        return
    assert response.status_code in (found.status, *found.also, 304), told
    model = found.also.get(response.status_code, found.gives)
    if model is not None and response.content and kind == "application/json":
        wrong = differences(model, response.json())
        assert not wrong, f"{wrong}: {told}"


def differences(model: Any, value: object) -> list[str]:
    """Say in what *value* is not as *model* describes it: a wrong type, a missing key, or one too many."""
    adapter = TypeAdapter(model)
    read = adapter.validate_json(json.dumps(value), strict=True)
    return _different(adapter.dump_python(read, mode="json", by_alias=True, warnings=False), value, "")


def _different(described: object, given: object, path: str) -> list[str]:
    if isinstance(described, dict) and isinstance(given, dict):
        odd = [f"{path}.{name} is on one side only" for name in sorted(described.keys() ^ given.keys())]
        both = described.keys() & given.keys()
        return odd + [wrong for name in both for wrong in _different(described[name], given[name], f"{path}.{name}")]
    if isinstance(described, list) and isinstance(given, list) and len(described) == len(given):
        pairs = enumerate(zip(described, given, strict=True))
        return [wrong for at, (one, other) in pairs for wrong in _different(one, other, f"{path}.{at}")]
    return [] if described == given else [f"{path} is {given!r}, and would be {described!r}"]


def _endpoint(method: str, path: str) -> Endpoint | None:
    """Find the endpoint of a request, also below a tenant's path."""
    if path.startswith("/t/"):
        path = "/" + path.split("/", 3)[-1]
    fitting = (each for pattern, each in _patterns() if each.method == method and pattern.match(path))
    return next(fitting, None)


@cache
def _patterns() -> Sequence[tuple[Pattern[str], Endpoint]]:
    return [(compile_path(each.path)[0], each) for each in ENDPOINTS]
