"""The shops under real servers, in processes of their own: gunicorn with two workers, and uvicorn."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from tests.support.conditions import until
from tests.support.sse_reader import Message, Reader

pytestmark = pytest.mark.long  # each starts a server

ROOT = Path(__file__).resolve().parent.parent.parent
WORKERS, CLIENTS, STARTS = 2, 4, 20
LOCAL = {"Host": "localhost"}

SHOPS = {
    "django wsgi": ["gunicorn", "django.core.wsgi:get_wsgi_application()"],
    "flask": ["gunicorn", "shop:flask_app()"],
    "flask, loaded and used before the fork": ["gunicorn", "--preload", "shop:used_app()"],
    "django asgi": ["uvicorn", "--factory", "django.core.asgi:get_asgi_application"],
    "fastapi": ["uvicorn", "--factory", "shop:fastapi_app"],
}
SHOP = """
import os

def flask_app():
    from examples.orders_flask.web import create_app
    return create_app(os.environ["SHOP_DATABASE"])

def used_app():
    app = flask_app()
    assert app.test_client().get("/jobs/readyz").status_code == 204
    return app

def fastapi_app():
    from examples.orders_fastapi.web import create_app
    return create_app(os.environ["SHOP_DATABASE"])
"""


class Server:
    """A server in a process of its own, and the face of its database."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, face: Holdfast) -> None:
        self.process = process
        self.address = f"http://127.0.0.1:{port}"
        self.hf = face.sync

    def headers(self, name: str) -> dict[str, str]:
        """Give the headers of somebody with a token of their own."""
        return {**LOCAL, "Authorization": f"Bearer {self.hf.tokens.create(name, role='operator').token}"}

    def client(self, name: str) -> httpx.Client:
        """Give a client with a token of its own."""
        return httpx.Client(base_url=self.address, headers=self.headers(name), timeout=20)

    @property
    def busy_workers(self) -> int:
        """How many of its children have begun the thread that answers."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        return sum(len(list(Path(f"/proc/{each}/task").iterdir())) > 1 for each in children)

    async def answers(self) -> bool:
        """Tell whether it answers."""
        try:
            async with httpx.AsyncClient(base_url=self.address, headers=LOCAL) as client:
                return (await client.get("/jobs/healthz")).status_code == 204
        except httpx.TransportError:
            return False

    def stop(self, timeout: float = 15) -> int:
        """Tell it to stop, and give its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, empty_database: Callable[[str], str]) -> str:
    """An empty database."""
    return empty_database(request.param)


@pytest.fixture
async def start(address: str, tmp_path: Path) -> AsyncIterator[Callable[[str], Any]]:
    """Start the server of a shop, and wait until it answers."""
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    variables = {
        **{name: value for name, value in os.environ.items() if name != "DJANGO_ALLOW_ASYNC_UNSAFE"},
        "SHOP_DATABASE": address,
        "DJANGO_SETTINGS_MODULE": "examples.orders_django.settings",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
    }
    started: list[Server] = []

    async def start(shop: str) -> Server:
        if shop.startswith("django"):
            migrate = [sys.executable, "-m", "examples.orders_django.manage", "migrate", "--verbosity=0"]
            subprocess.run(migrate, env=variables, cwd=tmp_path, check=True, timeout=60)
        face = Holdfast(address)
        face.sync.migrate()
        server, *words = SHOPS[shop]
        port = free_port()
        where = ["--workers", str(WORKERS), "--bind", f"127.0.0.1:{port}"]
        if server == "uvicorn":
            where = ["--port", str(port), "--log-level", "warning"]
        command = [sys.executable, "-m", server, *where, *words]
        started.append(Server(subprocess.Popen(command, env=variables, cwd=tmp_path), port, face))
        await until(started[-1].answers, f"{shop} answers")
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()
        each.hf.close()


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def start_jobs(client: httpx.Client, number: int = STARTS) -> Iterator[str]:
    """Start jobs that nobody runs, and give their ids as far as they are answered."""
    for order in range(number):
        wanted = {"task": "charge", "arguments": {"order_id": order}, "options": {"queue": "later"}}
        answer = client.post("/jobs/api/jobs", json=wanted)
        if answer.status_code == 201:
            yield answer.json()["job"]["id"]


@pytest.mark.parametrize("shop", [name for name, words in SHOPS.items() if "gunicorn" in words])
async def test_two_workers_answer_and_who_polls_either_misses_nothing(start: Callable[[str], Any], shop: str) -> None:
    server: Server = await start(shop)
    clients = [server.client(f"client {number}") for number in range(CLIENTS)]
    poller = server.client("poller")
    cursor = poller.get("/jobs/api/events.json").json()["cursor"]
    seen: list[str] = []

    def poll() -> bool:
        nonlocal cursor
        page = poller.get("/jobs/api/events.json", params={"after": cursor}).json()
        cursor = page.get("cursor", cursor)  # unless it asks too often
        seen.extend(each["job"]["id"] for each in page.get("items", ()) if each["event"] == "job:enqueued")
        return len(seen) >= CLIENTS * STARTS

    with ThreadPoolExecutor(CLIENTS) as threads:
        starting = [threads.submit(lambda client: list(start_jobs(client)), each) for each in clients]
        await until(poll, "all jobs are seen")
        started = [job for each in starting for job in each.result()]
    await until(lambda: bool(clients[0].get("/jobs/api")) and server.busy_workers == WORKERS, "both workers answered")

    assert len(started) == CLIENTS * STARTS
    assert sorted(seen) == sorted(started)
    for each in (*clients, poller):
        each.close()


@pytest.mark.parametrize("shop", ["django wsgi", "flask"])
async def test_workers_that_are_told_to_stop_finish_what_they_have_begun(
    start: Callable[[str], Any], shop: str
) -> None:
    server: Server = await start(shop)
    clients = [server.client(f"client {number}") for number in range(CLIENTS)]
    answered: list[str] = []

    def keep_starting(client: httpx.Client) -> None:
        try:
            for job in start_jobs(client, 1_000_000):
                answered.append(job)  # noqa: PERF402 - one by one, others look at it meanwhile
        except httpx.TransportError:
            return

    with ThreadPoolExecutor(CLIENTS) as threads:
        for each in clients:
            threads.submit(keep_starting, each)
        await until(lambda: len(answered) > CLIENTS * 2, "jobs are started")
        code = await asyncio.to_thread(server.stop)

    stored = {str(job.id) for job in server.hf.list_jobs(limit=500)}
    assert code == 0
    assert set(answered) <= stored
    assert len(stored) - len(answered) <= CLIENTS  # nothing was done twice: at most one each was not heard of
    for each in clients:
        each.close()


class Streaming:
    """A stream of events that is being read."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._pieces = response.aiter_bytes()
        self._reader = Reader()

    async def next(self) -> Message | None:
        """Give the next message that is no ping; None at the end."""
        async with asyncio.timeout(20):
            async for piece in self._pieces:
                for message in self._reader.feed(piece):
                    if message.event != "ping":
                        return message
        return None

    @property
    def retry_ms(self) -> int | None:
        return self._reader.retry_ms


@asynccontextmanager
async def streaming(server: Server, headers: dict[str, str]) -> AsyncIterator[Streaming]:
    async with httpx.AsyncClient(base_url=server.address, headers=headers, timeout=30) as client:
        async with client.stream("GET", "/jobs/api/events") as response:
            assert response.status_code == 200
            yield Streaming(response)


@pytest.mark.parametrize("shop", ["django asgi", "fastapi"])
async def test_a_stream_brings_what_happens_and_ends_at_once_with_its_server(
    start: Callable[[str], Any], shop: str
) -> None:
    server: Server = await start(shop)
    async with streaming(server, server.headers("ada")) as stream:
        first = await stream.next()
        assert first is not None
        assert first.event == "snapshot"

        with server.client("bob") as client:
            [job] = await asyncio.to_thread(lambda: list(start_jobs(client, 1)))
        enqueued = await stream.next()
        assert enqueued is not None
        assert (enqueued.event, job in str(enqueued.data)) == ("job:enqueued", True)

        stopping = asyncio.create_task(asyncio.to_thread(server.stop, 5))
        while await stream.next() is not None:
            pass
        assert stream.retry_ms is not None
        assert await stopping in (0, -signal.SIGTERM)


async def test_a_user_of_django_follows_a_stream_by_their_session(start: Callable[[str], Any], address: str) -> None:
    server: Server = await start("django asgi")
    made = subprocess.run(
        [sys.executable, "-c", LOG_IN],
        env={**os.environ, "SHOP_DATABASE": address, "DJANGO_SETTINGS_MODULE": "examples.orders_django.settings"},
        cwd=ROOT, check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    headers = {**LOCAL, "Cookie": f"sessionid={made.stdout.strip()}"}

    async with streaming(server, headers) as stream:
        first = await stream.next()
        assert first is not None
        assert first.event == "snapshot"


LOG_IN = """
import django
django.setup()
from django.contrib.auth.models import User
from django.test import Client
client = Client()
client.force_login(User.objects.create_user("ada", is_staff=True))
print(client.cookies["sessionid"].value)
"""
