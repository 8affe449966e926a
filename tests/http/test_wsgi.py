"""The HTTP API by WSGI: whole answers, bodies in every shape that servers hand on, and loops beside each other."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO, StringIO
from typing import Any
from wsgiref.validate import validator

import pytest
from starlette.types import Receive, Scope, Send
from werkzeug.test import Client, EnvironBuilder, run_wsgi_app

from holdfast import Holdfast
from holdfast.database.postgres.colours import AsyncSide
from holdfast.http import Identity, Limits, Role, asgi, wsgi
from holdfast.http.wsgi import LOOP, WsgiApp
from tests.http.api import api
from tests.support.factories import TASKS, greet


@pytest.fixture(params=["sqlite", "postgres"])
def blocking(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> Holdfast:
    """A face that blocking code uses."""
    return new_holdfast(request.param, tasks=[TASKS])


@pytest.fixture
def file(new_holdfast: Callable[..., Holdfast]) -> Holdfast:
    """A face on a SQLite file, where the database makes no difference."""
    return new_holdfast("sqlite", tasks=[TASKS])


def client_of(hf: Holdfast, role: str = "operator", **options: Any) -> Client:
    """Give a client with a token."""
    token = hf.sync.tokens.create("ada", role=role).token
    client = Client(wsgi(hf, **options))
    client.environ_base = {"HTTP_AUTHORIZATION": f"Bearer {token}"}  # type: ignore[attr-defined]
    return client


def call(
    hf: Holdfast, path: str, method: str = "GET", options: dict[str, Any] | None = None, /, **environ: Any
) -> tuple[int, Any]:
    """Send a request by hand as an operator; give the status and what was answered."""
    token = hf.sync.tokens.create("ada", role="operator").token
    base = EnvironBuilder(path, method=method).get_environ()
    given = {**base, "HTTP_AUTHORIZATION": f"Bearer {token}", "CONTENT_TYPE": "application/json", **environ}
    pieces, status, _ = run_wsgi_app(wsgi(hf, **options or {}), given)
    text = b"".join(pieces)
    return int(status.split(" ")[0]), json.loads(text) if text else None


def why(hf: Holdfast) -> list[str | None]:
    return [each.why for each in hf.sync.audit() if each.action == "cancel"]


def test_a_body_of_a_length_is_read(blocking: Holdfast) -> None:
    job = blocking.sync.start(greet(name="Ada")).id
    body = b'{"why": "no stock"}'

    told = call(
        blocking, f"/api/jobs/{job}/cancel", "POST", **{"wsgi.input": BytesIO(body + b"more"), "CONTENT_LENGTH": "19"}
    )

    assert (told[0], why(blocking)) == (200, ["no stock"])


def test_a_body_in_chunks_is_read_to_its_end_if_the_server_tells_it(file: Holdfast) -> None:
    job = file.sync.start(greet(name="Ada")).id
    body = {"wsgi.input": BytesIO(b'{"why": "no stock"}'), "wsgi.input_terminated": True}

    told = call(file, f"/api/jobs/{job}/cancel", "POST", HTTP_TRANSFER_ENCODING="chunked", **body)

    assert (told[0], why(file)) == (200, ["no stock"])


class Broken(BytesIO):
    """What a client has sent that went away in the middle."""

    def read(self, size: int | None = -1) -> bytes:
        if piece := super().read(size):
            return piece
        raise OSError("the client is gone")


@pytest.mark.parametrize(
    "body",
    [
        {"wsgi.input": BytesIO(b'{"why": "no'), "CONTENT_LENGTH": "19"},
        {"wsgi.input": Broken(b'{"why": "no'), "CONTENT_LENGTH": "19"},
        {"wsgi.input": BytesIO(b'{"why": "no stock"}'), "HTTP_TRANSFER_ENCODING": "chunked"},
    ],
    ids=["short", "broken", "without an end"],
)
def test_a_body_that_is_not_whole_is_refused_and_is_no_empty_one(file: Holdfast, body: dict[str, Any]) -> None:
    job = file.sync.start(greet(name="Ada")).id

    status, told = call(file, f"/api/jobs/{job}/cancel", "POST", **body)

    assert (status, told["code"], file.sync.get_job(job).status) == (400, "invalid_input", "pending")


@pytest.mark.long
def test_a_body_that_takes_too_long_is_told_so(file: Holdfast) -> None:
    has_answered = threading.Event()

    class Slow(BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            has_answered.wait(1.5)
            return super().read(size)

    job = file.sync.start(greet(name="Ada")).id
    body = {"wsgi.input": Slow(b"{}"), "CONTENT_LENGTH": "2"}

    status, told = call(file, f"/api/jobs/{job}/cancel", "POST", {"limits": Limits(body_seconds=1)}, **body)

    assert (status, told["code"], file.sync.get_job(job).status) == (408, "slow_request", "pending")


def test_nothing_of_the_body_of_a_stranger_is_read(file: Holdfast) -> None:
    body = BytesIO(b"{}")
    given = EnvironBuilder("/api/jobs", method="POST", input_stream=body, content_type="application/json").get_environ()

    own_page = {"HTTP_SEC_FETCH_SITE": "same-origin", "CONTENT_LENGTH": "2"}
    pieces, status, _ = run_wsgi_app(wsgi(file), {**given, **own_page})

    assert (status, body.tell()) == ("401 Unauthorized", 0)
    assert json.loads(b"".join(pieces))["code"] == "unauthenticated"


def test_head_has_the_headers_and_no_body(file: Holdfast) -> None:
    client = client_of(file)
    headers = client.environ_base  # type: ignore[attr-defined]

    whole = client.get("/api/jobs", environ_base=headers)
    head = client.head("/api/jobs", environ_base=headers)

    assert (head.status_code, head.data, head.headers["ETag"]) == (200, b"", whole.headers["ETag"])


@pytest.mark.parametrize("path", ["/\xff", "/api/jobs\xc3", "//api/jobs", "/api/jobs/"])
def test_a_path_that_is_nothing_is_not_found(file: Holdfast, path: str) -> None:
    status, told = call(file, "/", PATH_INFO=path, QUERY_STRING="\xff=\xff")

    assert (status, told["code"]) == (404, "no_such_route")


def test_the_users_own_function_sees_the_environment_of_wsgi(file: Holdfast) -> None:
    async def own(request: Any) -> Identity | None:
        name = request.scope["wsgi_environ"].get("REMOTE_USER")
        return Identity(name, Role.VIEWER) if name else None

    client = Client(wsgi(file, auth=own))

    assert client.get("/api", environ_base={"REMOTE_USER": "bob"}).get_json()["who"]["name"] == "bob"
    assert client.get("/api").status_code == 401


def test_what_an_application_raises_reaches_the_server() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        run_wsgi_app(WsgiApp(broken), EnvironBuilder("/").get_environ())


def test_threads_are_answered_beside_each_other(blocking: Holdfast) -> None:
    client = client_of(blocking)
    headers = client.environ_base  # type: ignore[attr-defined]
    order = {"task": "greet", "arguments": {"name": "Ada"}}

    def start(_: int) -> int:
        return client.post("/api/jobs", json=order, environ_base=headers).status_code

    with ThreadPoolExecutor(8) as threads:
        statuses = list(threads.map(start, range(24)))

    assert statuses == [201] * 24
    assert len(blocking.sync.list_jobs(limit=100).items) == 24


async def test_one_holdfast_serves_two_loops_and_a_thread_at_the_same_time(hf: Holdfast) -> None:
    """Each starts its jobs while the others do, waits for them, and misses no event."""
    client = client_of(hf)
    headers = client.environ_base  # type: ignore[attr-defined]
    seen: list[str] = []

    async def follow() -> None:
        async with hf.events(names=["job:completed"]) as events:
            ready.set_result(None)
            async for event in events:
                seen.append(str(event.job and event.job.id))
                if len(seen) == 60:
                    return

    async def by_loop() -> list[str]:
        return [str((await hf.start(greet(name="Ada"))).id) for _ in range(20)]

    def by_thread() -> list[str]:
        return [str(hf.sync.start(greet(name="Ada")).id) for _ in range(20)]

    def by_wsgi() -> list[str]:
        order = {"task": "greet", "arguments": {"name": "Ada"}}
        answers = [client.post("/api/jobs", json=order, environ_base=headers) for _ in range(20)]
        return [each.get_json()["job"]["id"] for each in answers]

    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    following = asyncio.create_task(follow())
    await ready
    async with hf.worker():
        started = await asyncio.gather(by_loop(), asyncio.to_thread(by_thread), asyncio.to_thread(by_wsgi))
        async with asyncio.timeout(30):
            await following

    assert sorted(seen) == sorted(each for some in started for each in some)


async def test_after_a_close_all_loops_go_on(hf: Holdfast) -> None:
    client = client_of(hf)
    headers = client.environ_base  # type: ignore[attr-defined]
    assert (await asyncio.to_thread(client.get, "/api/jobs", environ_base=headers)).status_code == 200

    await asyncio.to_thread(hf.sync.close)

    assert (await asyncio.to_thread(client.get, "/api/jobs", environ_base=headers)).status_code == 200
    async with api(hf, app=asgi(hf)) as other:
        assert (await other.get("/api/jobs")).status_code == 200


def test_a_close_lets_go_of_the_connections_of_the_loop_too(new_holdfast: Callable[..., Holdfast]) -> None:
    hf = new_holdfast("postgres", tasks=[TASKS])
    assert call(hf, "/api/jobs")[0] == 200
    sides: dict[object, AsyncSide] = hf.store._connections._async_sides  # type: ignore[attr-defined]
    side = sides[LOOP.loop]

    hf.sync.close()  # whoever drops the database next would be refused

    assert (side.is_closed, [len(pool._all) for pool in side.pools]) == (True, [0, 0])
    assert call(hf, "/api/jobs")[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "given", "status"),
    [
        ("GET", "/api/jobs", {}, 200),
        ("HEAD", "/api/jobs", {}, 200),
        ("GET", "/healthz", {}, 204),
        ("GET", "/api/nothing", {}, 404),
        ("POST", "/api/jobs", {"CONTENT_LENGTH": "2000000", "CONTENT_TYPE": "application/json"}, 413),
    ],
)
def test_every_answer_keeps_the_rules_of_wsgi(
    file: Holdfast, method: str, path: str, given: dict[str, str], status: int
) -> None:
    token = file.sync.tokens.create("ada", role="operator").token
    environ = {**EnvironBuilder(path, method=method).get_environ(), "HTTP_AUTHORIZATION": f"Bearer {token}", **given}

    told = run_wsgi_app(validator(wsgi(file)), {**environ, "wsgi.errors": StringIO()}, buffered=True)

    assert told[1].startswith(str(status))
    assert "Connection" not in told[2]
