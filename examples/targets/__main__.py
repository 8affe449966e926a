"""Starts the server, asks it for some work as a customer's program would, and stops it while a job runs.

python3 -m examples.targets [postgresql://…]
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

HALF_A_SECOND = {"SHUTDOWN_GRACE_PERIOD_SECONDS": "0.5"}  # five minutes are long for an example
SERVER = [sys.executable, "-m", "examples.targets.server"]
STEPS = [{"say": "log in", "needs": "the screen asks for a code"}, {"say": "work"}]
REPORT = {"name": "report", "parameters": {"steps": STEPS}}
WATCH = {"name": "watch", "parameters": {"steps": [{"say": "wait", "seconds": 60}]}}


@asynccontextmanager
async def server(database: str, host: str, key: str) -> AsyncIterator[httpx.AsyncClient]:
    """Run the server during the block; then stop it as a deployment does, and wait until it has drained."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(*SERVER, database, str(port), env={**os.environ, **HALF_A_SECOND})
    headers = {"Host": host, "X-API-Key": key}
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:
            await begun(client)
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def begun(client: httpx.AsyncClient) -> None:
    """Wait until the server answers, and its database does."""
    while True:
        with suppress(httpx.TransportError):
            if (await client.get("/health/db")).is_success:
                return
        await asyncio.sleep(0.05)


async def becomes(client: httpx.AsyncClient, job: dict[str, Any], status: str) -> dict[str, Any]:
    """Poll a job until it has a status."""
    while job["status"] != status:
        await asyncio.sleep(0.05)
        job = (await client.get(f"/targets/{job['target']}/jobs/{job['id']}")).json()
    return job


async def main(database: str) -> None:
    """Have a machine do something that needs a person, and another something that is still running at the end."""
    made = subprocess.run([*SERVER, database, "set-up"], check=True, capture_output=True, text=True)  # noqa: ASYNC221
    keys = dict(line.split() for line in made.stdout.splitlines())
    async with server(database, "acme.localhost", keys["acme"]) as acme:
        refused = await acme.get("/jobs/", headers={"X-API-Key": keys["globex"]})
        print("globex:  ", refused.status_code, refused.json()["detail"])

        job = (await acme.post("/targets/vm-1/jobs/", json=REPORT)).json()
        job = await becomes(acme, job, "PAUSED")
        print("vm-1:    ", job["status"], job["error"])
        await acme.post(f"/targets/vm-1/jobs/{job['id']}/resume/")
        job = await becomes(acme, job, "SUCCESS")
        logs = (await acme.get(f"/targets/vm-1/jobs/{job['id']}/logs/")).json()
        print("resumed: ", job["status"], [each["content"]["content"] for each in logs if each["type"] == "message"])

        long = (await acme.post("/targets/vm-2/jobs/", json=WATCH)).json()
        long = await becomes(acme, long, "RUNNING")
    async with server(database, "acme.localhost", keys["acme"]) as acme:
        found = (await acme.get("/jobs/", params={"status": "PAUSED"})).json()
        print("restart: ", [(each["target"], each["status"], each["error"]) for each in found["jobs"]])
        done = (await acme.post(f"/targets/vm-2/jobs/{long['id']}/resolve/", json={"result": {"seen": True}})).json()
        print("resolved:", done["status"], done["result"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else str(Path(directory) / "queue.db")))
