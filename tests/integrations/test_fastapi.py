"""Holdfast in FastAPI and Starlette: it opens with the application, works in its process, and stops in time."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from typing import Any
from uuid import UUID

import httpx
import pytest
from fastapi import FastAPI, WebSocket
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from holdfast import Context, Holdfast, InvalidSettings, Misuse, NotMigrated, Tasks
from holdfast.integrations.fastapi import AppHoldfast, get_holdfast, lifespan
from holdfast.models import Job
from holdfast.sync import Context as BlockingContext
from holdfast.worker.worker import Worker
from tests.support.conditions import until
from tests.support.log_lines import lines, name_of, named

tasks = Tasks()
begun = threading.Event()
release = threading.Event()


@tasks.task(name="greet")
async def greet(name: str) -> str:
    return f"Hello, {name}"


@tasks.task(name="sit")
async def sit(ctx: Context) -> str:
    """Run until it is told to stop."""
    begun.set()
    await ctx.aborted
    ctx.raise_if_aborted()
    return "nobody told it to stop"


@tasks.task(name="ignore")
def ignore(ctx: BlockingContext) -> str:
    """Run until the test lets it go, whatever it is told."""
    begun.set()
    release.wait(60)
    return "was told to stop" if ctx.aborted.is_set() else "was left in peace"


@pytest.fixture(autouse=True)
def anew() -> None:
    """Begin each test with nothing begun or released."""
    begun.clear()
    release.clear()


@pytest.fixture(params=["sqlite", "postgres"])
def hf(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> Holdfast:
    """A face on either database, not opened yet."""
    return new_holdfast(request.param, tasks=[tasks])


@pytest.fixture
def file(new_holdfast: Callable[..., Holdfast]) -> Holdfast:
    """A face on a SQLite file, where the database makes no difference."""
    return new_holdfast("sqlite", tasks=[tasks])


def make_app(hf: Holdfast, **options: Any) -> FastAPI:
    app = FastAPI(lifespan=lifespan(hf, **options))

    @app.post("/greetings")
    async def start_greeting(name: str, hf: AppHoldfast) -> UUID:
        return (await hf.start(greet(name=name))).id

    @app.post("/blocking-greetings")
    def start_greeting_blocking(name: str, hf: AppHoldfast) -> UUID:
        return hf.sync.start(greet(name=name)).id

    return app


@asynccontextmanager
async def served(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    """Run the lifespan of *app* as a server does, by messages, and send it requests."""
    to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    from_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    running = asyncio.create_task(app(scope, to_app.get, from_app.put))  # type: ignore[arg-type]
    await to_app.put({"type": "lifespan.startup"})
    if (await from_app.get())["type"] != "lifespan.startup.complete":
        await running
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
            yield client
    finally:
        await to_app.put({"type": "lifespan.shutdown"})
        await running


async def test_an_endpoint_is_given_the_applications_holdfast(hf: Holdfast) -> None:
    async with served(make_app(hf)) as client:
        told = await client.post("/greetings", params={"name": "Ada"})
        job = await hf.get_job(UUID(told.json()))

    assert (job.task, job.input.name, job.status) == ("greet", "Ada", "pending")


async def test_a_plain_endpoint_uses_the_blocking_face(hf: Holdfast) -> None:
    async with served(make_app(hf)) as client:
        told = await client.post("/blocking-greetings", params={"name": "Ada"})
        job = await hf.get_job(UUID(told.json()))

    assert job.input.name == "Ada"


@pytest.mark.source("TQ-43")
async def test_a_worker_in_the_process_runs_what_was_started(hf: Holdfast) -> None:
    async with served(make_app(hf, worker=True)) as client:
        told = await client.post("/greetings", params={"name": "Ada"})
        chain = await hf.get_chain(UUID(told.json()))

        assert await chain.result(timeout=10) == "Hello, Ada"


async def test_the_worker_takes_the_keywords_of_a_worker(file: Holdfast) -> None:
    async with served(make_app(file, worker={"queues": ["mail"], "name": "web"})):
        chain = await file.start(greet(name="Ada"), queue="mail")
        await chain.result(timeout=10)
    with closing(sqlite3.connect(file.settings.database)) as connection:
        told = connection.execute("SELECT facts FROM holdfast_event WHERE name = 'job:started'").fetchall()

    assert ['"web-' in facts for (facts,) in told] == [True]


def test_wrong_keywords_are_refused_before_the_server_starts(file: Holdfast) -> None:
    with pytest.raises(InvalidSettings, match="concurrency"):
        lifespan(file, worker={"concurrency": 0})


async def test_without_a_worker_nothing_is_run_here(file: Holdfast) -> None:
    async with served(make_app(file)) as client:
        await client.post("/greetings", params={"name": "Ada"})
        workers = [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__name__", "") == "_run"]

    assert workers == []


async def test_it_is_closed_when_the_application_has_stopped(
    new_threads: Callable[[], set[str]], file: Holdfast
) -> None:
    app = make_app(file)
    async with served(app) as client:
        await client.post("/greetings", params={"name": "Ada"})

    assert not hasattr(app.state, "holdfast")
    await until(lambda: not any(name.startswith("holdfast") for name in new_threads()), "its threads end")


async def test_an_application_can_be_started_again(file: Holdfast) -> None:
    app = make_app(file, worker=True)
    for name in ("Ada", "Grace"):
        async with served(app) as client:
            told = await client.post("/greetings", params={"name": name})
            chain = await file.get_chain(UUID(told.json()))

            assert await chain.result(timeout=10) == f"Hello, {name}"


async def test_an_own_lifespan_is_entered_before_the_worker_begins_and_left_after_it_has_stopped(
    file: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    @asynccontextmanager
    async def own(app: Any) -> AsyncIterator[dict[str, str]]:
        await file.start(greet(name="Ada"))  # it is open already
        order.append("own begins")
        yield {"colour": "green"}
        await file.start(greet(name="Grace"))  # and open still
        order.append("own ends")

    note(monkeypatch, order, Worker, "__aenter__", "worker begins")
    note(monkeypatch, order, Worker, "drain", "worker drains")
    app = make_app(file, worker=True, own=own)

    @app.get("/colour")
    async def colour(request: Request) -> str:
        return str(request.state.colour)

    async with app.router.lifespan_context(app) as state:
        assert state == {"colour": "green"}

    assert order == ["own begins", "worker begins", "worker drains", "own ends"]


def note(monkeypatch: pytest.MonkeyPatch, order: list[str], owner: type, name: str, word: str) -> None:
    """Write *word* down whenever a method is called."""
    method = getattr(owner, name)

    def noted(*args: Any) -> Any:
        order.append(word)
        return method(*args)

    monkeypatch.setattr(owner, name, noted)


async def test_it_can_be_entered_inside_a_lifespan_of_ones_own(file: Holdfast) -> None:
    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[None]:
        async with lifespan(file)(app):
            yield

    app = FastAPI(lifespan=own)

    @app.get("/")
    async def repeat(hf: AppHoldfast) -> str:
        return repr(hf)

    async with served(app) as client:
        assert (await client.get("/")).json() == repr(file)


@pytest.mark.source("TQ-43")
async def test_what_runs_is_given_its_grace_then_told_to_stop_and_given_back(hf: Holdfast) -> None:
    async with served(make_app(hf, worker={"grace": 0.05})):
        chain = await hf.start(sit())
        await until(begun.is_set, "the handler begins")

    job = await read(hf, chain.id)
    assert (job.status, job.used) == ("pending", 0)


async def test_what_ends_within_the_grace_is_completed(hf: Holdfast) -> None:
    async with served(make_app(hf, worker={"grace": 20.0})):
        chain = await hf.start(ignore())
        await until(begun.is_set, "the handler begins")
        asyncio.get_running_loop().call_later(0.05, release.set)

    assert (await read(hf, chain.id)).output == "was left in peace"


async def test_a_handler_that_does_not_stop_does_not_keep_the_application(
    new_threads: Callable[[], set[str]], hf: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("holdfast.worker.worker.CLEANUP_SECONDS", 0.05)
    try:
        async with served(make_app(hf, worker={"grace": 0.05})):
            chain = await hf.start(ignore())
            await until(begun.is_set, "the handler begins")

        assert not release.is_set()
        assert "handler_left_behind" in lines(caplog)
        assert [vars(each)["left"] for each in named(caplog, "worker_stopped")] == [1]
        assert (await read(hf, chain.id)).status == "pending"
    finally:
        release.set()
        await until(lambda: "holdfast-leases" not in new_threads(), "the worker that was left behind ends")
        await hf.close()


async def read(hf: Holdfast, job: UUID) -> Job:
    """Open *hf* again, only to read a job."""
    async with hf:
        return await hf.get_job(job)


async def test_a_worker_that_breaks_is_told_of_at_once_and_when_the_application_stops(
    file: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(self: Worker, group: asyncio.TaskGroup) -> None:
        raise ValueError("out of order")

    monkeypatch.setattr(Worker, "_work", broken)
    app = make_app(file, worker=True)

    with pytest.raises(ExceptionGroup) as caught:
        async with app.router.lifespan_context(app):
            await until(lambda: "worker_broke" in lines(caplog), "the log tells of it")

    assert caught.group_contains(ValueError, match="out of order")
    assert [each.levelno for each in caplog.records if name_of(each) == "worker_broke"] == [logging.ERROR]


async def test_an_application_without_the_lifespan_says_what_to_write() -> None:
    app = FastAPI()

    @app.get("/")
    async def repeat(hf: AppHoldfast) -> str:
        return repr(hf)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        with pytest.raises(Misuse, match=r"lifespan=lifespan\(hf\)"):
            await client.get("/")


async def test_a_request_before_the_lifespan_or_after_it_says_so_too(file: Holdfast) -> None:
    app = make_app(file)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        with pytest.raises(Misuse, match="lifespan_context"):
            await client.post("/greetings", params={"name": "Ada"})
        async with app.router.lifespan_context(app):
            assert (await client.post("/greetings", params={"name": "Ada"})).status_code == 200
        with pytest.raises(Misuse, match="lifespan_context"):
            await client.post("/greetings", params={"name": "Ada"})


async def test_two_lifespans_in_one_application_are_refused(file: Holdfast) -> None:
    app = FastAPI(lifespan=lifespan(file, own=lifespan(file)))

    with pytest.raises(Misuse, match="already"):
        async with app.router.lifespan_context(app):
            pass


async def test_a_test_can_put_another_in_its_place(file: Holdfast, new_holdfast: Callable[..., Holdfast]) -> None:
    app = make_app(file)
    other = new_holdfast("sqlite", tasks=[tasks])
    app.dependency_overrides[get_holdfast] = lambda: other

    async with other, httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        told = await client.post("/greetings", params={"name": "Ada"})

        assert (await other.get_job(UUID(told.json()))).task == "greet"


async def test_an_application_does_not_start_on_tables_that_are_not_up_to_date(
    postgres_url: str, new_holdfast: Callable[..., Holdfast]
) -> None:
    app = make_app(new_holdfast("postgres", tasks=[tasks], schema_name="nothing_here"))

    with pytest.raises(NotMigrated, match="holdfast migrate"):
        async with served(app):
            pass


async def test_starlette_alone_has_it_by_its_requests(hf: Holdfast) -> None:
    async def start_greeting(request: Request) -> PlainTextResponse:
        chain = await get_holdfast(request).start(greet(name=request.query_params["name"]))
        return PlainTextResponse(str(chain.id))

    routes = [Route("/greetings", start_greeting, methods=["POST"])]
    async with served(Starlette(routes=routes, lifespan=lifespan(hf, worker=True))) as client:
        told = await client.post("/greetings", params={"name": "Ada"})
        chain = await hf.get_chain(UUID(told.text))

        assert await chain.result(timeout=10) == "Hello, Ada"


async def test_a_websocket_has_it_too(file: Holdfast) -> None:
    app = make_app(file)

    @app.websocket("/greetings")
    async def greetings(socket: WebSocket, hf: AppHoldfast) -> None:
        await socket.accept()
        await socket.send_text(repr(hf))

    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/greetings", "headers": [], "query_string": b"", "asgi": {}}
    async with app.router.lifespan_context(app):
        await app(scope, receive, send)

    assert [each["text"] for each in sent if "text" in each] == [repr(file)]


def test_starlettes_module_needs_no_fastapi() -> None:
    code = "import sys; sys.modules['fastapi'] = None; import holdfast.integrations.starlette"

    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
