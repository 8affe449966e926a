"""The example of a target queue, as it is served: real requests of its clients, and the signal that stops it."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from examples.targets.server import set_up
from tests.support.conditions import until
from tests.support.processes import forked

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Place:
    """Where the queue is, with the API key of each customer."""

    database: str
    keys: dict[str, str]

    @asynccontextmanager
    async def served(self, grace: float = 300) -> AsyncIterator[Served]:
        """Serve it in a process of its own, until the block ends or somebody has stopped it."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = forked.Popen(
            [sys.executable, "-m", "examples.targets.server", self.database, str(port)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "SHUTDOWN_GRACE_PERIOD_SECONDS": str(grace)},
        )
        headers = {"Host": f"acme.localhost:{port}", "X-API-Key": self.keys["acme"]}
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=20) as client:
                served = Served(client, process)
                await until(served.answers, "the server answers")
                yield served
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.to_thread(process.wait, 20)
            finally:
                process.kill()


@dataclass(frozen=True)
class Served:
    """A server, and a client of one of its customers."""

    client: httpx.AsyncClient
    process: forked.Popen

    async def answers(self) -> bool:
        """Tell whether the server answers."""
        try:
            return (await self.client.get("/health/db")).status_code == 200
        except httpx.TransportError:
            return False

    async def make(self, target: str, name: str, *steps: dict[str, Any]) -> dict[str, Any]:
        """Make a job."""
        body = {"name": name, "parameters": {"steps": steps}}
        made: dict[str, Any] = (await self.client.post(f"/targets/{target}/jobs/", json=body)).json()
        return made

    async def becomes(self, job: dict[str, Any], status: str) -> dict[str, Any]:
        """Poll, as clients do, until a job has a status."""
        found: dict[str, Any] = {}

        async def has_it() -> bool:
            found.update((await self.client.get(f"/targets/{job['target']}/jobs/{job['id']}")).json())
            return bool(found["status"] == status)

        await until(has_it, f"the job becomes {status}")
        return found

    async def messages(self, job: dict[str, Any]) -> list[str]:
        """Read what the job has said to its machine."""
        logs = (await self.client.get(f"/targets/{job['target']}/jobs/{job['id']}/logs/")).json()
        return [each["content"]["content"] for each in logs if each["type"] == "message"]


@pytest.fixture
def url(postgres_server: str) -> Iterator[str]:
    """An empty PostgreSQL database."""
    name = f"holdfast_targets_{secrets.token_hex(6)}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield urlsplit(postgres_server)._replace(path=f"/{name}").geturl()
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgres"])
async def place(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    """The queue of the example, set up."""
    database = str(tmp_path / "queue.db") if request.param == "sqlite" else str(request.getfixturevalue("url"))
    await set_up(database)
    return Place(database, dict(line.split() for line in capsys.readouterr().out.splitlines()))


@pytest.mark.long
@pytest.mark.ways("sqlite")
@pytest.mark.source("TQ-2", "TQ-35", "TQ-36", "TQ-37", "TQ-41", "TQ-42", "TQ-43")
async def test_a_client_of_the_source_is_served(place: Place) -> None:
    async with place.served(grace=0.05) as queue:
        client = queue.client
        job = await queue.make("vm-1", "report", {"say": "log in", "needs": "a code"}, {"say": "sit", "seconds": 60})
        paused = await queue.becomes(job, "PAUSED")
        of_job = f"/targets/vm-1/jobs/{job['id']}"
        statuses = [
            (await client.post(f"{of_job}/cancel/")).status_code,
            (await client.post(f"{of_job}/resume/")).status_code,
            (await client.get("/targets/vm-9/jobs/")).status_code,
            (await client.get(f"/targets/vm-2/jobs/{job['id']}")).status_code,
            (await client.get("/jobs/", headers={"X-API-Key": place.keys["globex"]})).status_code,
            (await client.get("/jobs/", headers={"Host": "initech.localhost"})).status_code,
        ]
        await queue.becomes(job, "RUNNING")
        await client.post(f"{of_job}/interrupt/")
        interrupted = await queue.becomes(job, "PAUSED")
        resumed = await client.post(f"/jobs/{job['id']}/resume")
        await queue.becomes(job, "SUCCESS")  # it goes on behind its last message
        failed = await queue.becomes(await queue.make("vm-2", "spend", {"say": "much", "tokens": 10**6}), "ERROR")
        resolved = await client.post(f"/targets/vm-2/jobs/{failed['id']}/resolve/", json={"result": {"by": "hand"}})
        listed = (await client.get("/jobs/", params={"status": "SUCCESS", "limit": 1})).json()
        exchanges = (await client.get(f"{of_job}/http_exchanges/")).json()

    assert statuses == [400, 200, 404, 404, 401, 403]
    assert (paused["error"], interrupted["error"]) == ("a code", "Job was interrupted by user")
    assert (resumed.status_code, failed["error"]) == (200, "the limit of 500,000 tokens is reached")
    assert (resolved.json()["status"], listed["total"], listed["jobs"]) == ("SUCCESS", 2, [resolved.json()])
    assert [each["type"] for each in exchanges] == ["http_exchange", "http_exchange"]


@pytest.mark.long
@pytest.mark.source("TQ-32", "TQ-43")
async def test_a_stopped_server_lets_what_runs_end_and_begins_nothing(place: Place) -> None:
    async with place.served() as queue:
        running = await queue.make("vm-1", "report", {"say": "work", "seconds": 1})
        await queue.becomes(running, "RUNNING")
        behind = await queue.make("vm-1", "report", {"say": "work"})
    async with place.served() as queue:
        done = await queue.becomes(running, "SUCCESS")
        after = await queue.becomes(behind, "SUCCESS")

    assert done["completed_at"] < after["completed_at"]
    assert queue.process.returncode in (0, -signal.SIGTERM)


@pytest.mark.long
@pytest.mark.source("TQ-16", "TQ-20", "TQ-33", "TQ-43", "TQ-44", "DF-34")
async def test_what_outlasts_the_grace_is_paused_and_goes_on_where_it_was(place: Place) -> None:
    async with place.served(grace=0.2) as queue:
        job = await queue.make("vm-1", "watch", {"say": "wait", "seconds": 60}, {"say": "go home"})
        await queue.becomes(job, "RUNNING")

        async def has_said() -> bool:
            return await queue.messages(job) == ["wait"]

        await until(has_said, "the job has said something")
    async with place.served() as queue:
        paused = await queue.becomes(job, "PAUSED")
        await queue.client.post(f"/targets/vm-1/jobs/{job['id']}/resume/")
        await queue.becomes(job, "SUCCESS")
        messages = await queue.messages(job)

    assert (paused["error"], messages) == ("shutdown", ["wait", "go home"])


@pytest.mark.long
def test_the_example_tells_what_came_of_it(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "examples.targets"]
    done = forked.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60
    )

    assert done.stdout.splitlines() == [
        "globex:   401 this API key is not one of this tenant",
        "vm-1:     PAUSED the screen asks for a code",
        "resumed:  SUCCESS ['log in', 'work']",
        "restart:  [('vm-2', 'PAUSED', 'shutdown')]",
        "resolved: SUCCESS {'seen': True}",
    ], done.stderr


def test_the_server_is_short() -> None:
    lines = (ROOT / "examples" / "targets" / "server.py").read_text(encoding="utf-8").splitlines()

    assert len(lines) < 150
