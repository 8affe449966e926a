"""Without the extra everything else works: nothing that receivers, producers and workers import needs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
for missing in ("httpcore2", "httpx2", "h11", "anyio"):
    sys.modules[missing] = None

import asyncio
from holdfast import Holdfast
from holdfast.parts import verify_webhook
from holdfast.store import outbox
from holdfast.webhooks import new_secret, sign

hf = Holdfast("jobs.db")

@hf.task(name="greet")
async def greet() -> str:
    return "Hello"

async def main():
    async with hf, hf.worker():
        chain = await hf.start(greet(), webhook="https://example.com/hooks")
        print(await chain.result(timeout=20))
        print(await hf.store.read(outbox.backlog))

asyncio.run(main())
"""


def test_a_worker_without_the_extra_runs_jobs_and_leaves_webhooks_alone(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert told.stdout == "Hello\n1\n", told.stderr
