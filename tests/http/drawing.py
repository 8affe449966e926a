"""Draws requests from the document of an API, sends them, and says which answers the document does not have.

What draws them is imported by who needs it: that takes half a second, in every process that collects the tests.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import unquote

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from starlette.types import ASGIApp, Message

from holdfast.http.endpoint import Endpoint
from holdfast.http.openapi import document
from tests.http.odd_requests import Change, Known, known_to

if TYPE_CHECKING:
    import requests
    import schemathesis

    AnyCase: TypeAlias = schemathesis.Case[Any]

SLOW_SECONDS, HUNG_SECONDS = 5.0, 20.0
STREAM = b"text/event-stream"


class Drawn(NamedTuple):
    """A request as it was drawn, and what the rest of it is drawn from when it is sent."""

    case: AnyCase
    seed: int


@cache
def cases_of(endpoints: tuple[Endpoint, ...], fitting: int, breaking: int) -> Sequence[Drawn]:
    """Draw for each endpoint so many requests that fit the document, and so many that break it in one place."""
    import schemathesis

    schema = schemathesis.openapi.from_dict(json.loads(json.dumps(document(endpoints))))
    drawn: list[Drawn] = []
    for found in schema.get_all_operations():
        operation: Any = found.ok()  # type: ignore[union-attr]  # the document is valid
        drawn += _drawn(operation, schemathesis.GenerationMode.POSITIVE, fitting)
        if breaking and [*operation.iter_parameters(), *operation.body]:  # who says nothing says nothing wrong
            drawn += _drawn(operation, schemathesis.GenerationMode.NEGATIVE, breaking)
    return sorted(drawn, key=lambda each: each.seed)  # what one of them deletes, others have had before


def _drawn(operation: Any, mode: schemathesis.GenerationMode, count: int) -> list[Drawn]:
    drawn: list[Drawn] = []

    # the first one is always the simplest there is
    @settings(max_examples=count + 1, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(generation_mode=mode), st.integers(0, 2**64))
    def draw(case: AnyCase, seed: int) -> None:
        drawn.append(Drawn(case, seed))

    draw()
    return drawn[1:]


async def wrong_answers(
    app: ASGIApp,
    cases: Sequence[Drawn],
    known: Known,
    headers: Mapping[str, str],
    base: str = "http://localhost",
    *,
    turn: int = 0,
    errors_too: bool = True,
) -> list[str]:
    """Send what was drawn, with known values and odd ones; tell what the document has not said, each kind once.

    The values are others in each *turn*: to send costs a tenth of what it costs to draw.
    Unless *errors_too*, of an error the status alone is looked at.
    """
    found: dict[tuple[str, ...], str] = {}
    for case, seed in cases:
        operation = case.operation
        change = Change(known_to(operation.path, known), Random(f"{seed} {turn}"))
        asked = operation.Case(
            method=case.method,
            path_parameters=change.path(case.path_parameters),
            query=change.query(case.query, [each.name for each in operation.query]),
            body=change.body(case.body, known.get(operation.label)),
            media_type=case.media_type,
        )
        request = _request(asked, change, headers, base)
        for what in await _wrong(app, asked, request, errors_too):
            headers_sent = {name: each for name, each in request.headers.items() if name != "Authorization"}
            told = f"{request.method} {request.url} {headers_sent}\n{str(request.body)[:1000]}\n{what}"
            found.setdefault((operation.label, *what.splitlines()[:3]), told)
    return list(found.values())


async def _wrong(app: ASGIApp, case: AnyCase, request: requests.PreparedRequest, errors_too: bool) -> list[str]:
    from schemathesis.core.failures import FailureGroup

    try:
        response = await _answer(app, request)
        case.validate_response(response, checks=_checks(response, errors_too))
    except FailureGroup as group:
        return [f"{each}\n{response.status_code} {response.text_lossy()[:1000]}" for each in group.exceptions]
    except Exception as error:  # noqa: BLE001 - the application has raised it
        return [f"{error!r}"]
    return [f"slow\nit took {response.elapsed:.1f} s"] if response.elapsed > SLOW_SECONDS else []


def _checks(response: schemathesis.Response, errors_too: bool) -> list[Any]:
    """Give what an answer is held against."""
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    of_status = [not_a_server_error, checks.status_code_conformance]
    if response.status_code >= 400 and not errors_too:
        return of_status
    of_headers = [checks.content_type_conformance, checks.response_headers_conformance]
    # the tool holds a schema against each event of a stream, which to OpenAPI 3.1 is one text
    is_stream = response.headers.get("content-type", [""])[0].startswith(STREAM.decode())
    return [*of_status, *of_headers, *([] if is_stream else [checks.response_schema_conformance])]


def _request(case: AnyCase, change: Change, headers: Mapping[str, str], base: str) -> requests.PreparedRequest:
    import requests

    usual = {"Host": "localhost", "Accept-Encoding": "identity", **headers}
    parts = case.as_transport_kwargs(base_url=base, headers=usual)
    if "json" in parts:  # as ASCII, which has a form for lone surrogates
        parts["data"] = change.raw(json.dumps(parts.pop("json")).encode())
    prepared = requests.Request(**parts).prepare()
    prepared.headers.update(change.headers({}))
    return prepared


async def _answer(app: ASGIApp, request: requests.PreparedRequest) -> schemathesis.Response:
    """Send a request; a stream is left when it begins."""
    import schemathesis

    path, _, query = request.path_url.partition("?")
    body = request.body or b""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), str(value).encode("latin-1")) for name, value in request.headers.items()],
        "client": ("127.0.0.1", 1234),
        "server": ("localhost", 80),
    }
    told: list[Message] = [{"type": "http.request", "body": body if isinstance(body, bytes) else str(body).encode()}]
    sent: list[Message] = []
    is_left = asyncio.Event()

    async def receive() -> Message:
        if told:
            return told.pop()
        await is_left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)
        kind = dict(message.get("headers", ())).get(b"content-type", b"")
        if kind.startswith(STREAM) or (message["type"] == "http.response.body" and not message.get("more_body")):
            is_left.set()

    began = time.perf_counter()
    async with asyncio.timeout(HUNG_SECONDS):
        await app(scope, receive, send)
    start, *pieces = sent
    return schemathesis.Response(
        status_code=start["status"],
        headers={name.decode(): [value.decode("latin-1")] for name, value in start["headers"]},
        content=b"".join(each.get("body", b"") for each in pieces),
        request=request,
        elapsed=time.perf_counter() - began,
        verify=True,
        encoding="utf-8",
    )
