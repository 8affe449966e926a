"""The server: it has the target queue's routes, and works on the jobs in the same process.

    python3 -m examples.targets.server queue.db set-up      # makes the customers, and prints their API keys
    python3 -m examples.targets.server queue.db 8000        # serves http://acme.localhost:8000/jobs/ until a signal

A job is a conversation with a machine, kept in its journal: a resumed job reads it back, and goes on behind its last
message. On SIGTERM no job is begun any more. What runs has five minutes to end, and is paused then.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from holdfast import Context, Fail, Holdfast, Pause, Retry, Tasks
from holdfast.http import targets

MACHINES = {"acme": ("vm-1", "vm-2"), "globex": ("vm-1",)}
WORKERS = int(os.environ.get("JOB_WORKERS", "2"))
GRACE_SECONDS = float(os.environ.get("SHUTDOWN_GRACE_PERIOD_SECONDS", "300"))
MOST_TOKENS = 500_000

tasks = Tasks()


@tasks.task(
    name="operate",
    retry=Retry.never(),  # people resume
    lease=60,
    on_lost="fail",
    on_interrupt="pause",
    cancel_running="pause",
)
async def operate(ctx: Context, target: str, name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Talk to a machine, step by step, until it has done what *name* asks for."""
    said = [entry.body for entry in await ctx.journal.read(kind="message")]
    tokens = sum(message["tokens"] for message in said)
    for step in parameters.get("steps", [])[len(said) :]:
        tokens += step.get("tokens", 100)
        if tokens > MOST_TOKENS:
            raise Fail(f"the limit of {MOST_TOKENS:,} tokens is reached")
        await ctx.journal.append("message", {"role": "user", "content": step["say"], "tokens": step.get("tokens", 100)})
        await ctx.journal.append("http_exchange", {"method": "POST", "url": f"http://{target}/type", "status": 200})
        if "needs" in step:
            raise Pause(step["needs"])
        await asyncio.sleep(step.get("seconds", 0))
    return {"name": name, "customer": ctx.tenant, "steps": len(parameters.get("steps", []))}


async def has_machine(tenant: str | None, target: str) -> bool:
    """Tell whether a customer has a machine; one who has none is told 404."""
    return target in MACHINES.get(tenant or "", ())


def make_holdfast(database: str) -> Holdfast:
    """Make the queue on *database*, a SQLite file or a postgresql:// address."""
    return Holdfast(database, tasks=[tasks], tenants=True, delete_journal_after_seconds=7 * 86_400)


def make_app(database: str) -> ASGIApp:
    """Make the application; its worker begins and drains with the server."""
    hf = make_holdfast(database)
    return targets(hf, task=operate, is_target=has_machine, worker={"tenants": {"*": WORKERS}, "grace": GRACE_SECONDS})


async def set_up(database: str) -> None:
    """Make the customers, each with tables, a host and an API key of their own."""
    hf = make_holdfast(database)
    await hf.migrate()
    async with hf:
        for name in MACHINES:
            await hf.tenants.create(name, host=f"{name}.localhost")
            made = await hf.tenant(name).tokens.create("panel", role="operator")
            print(name, made.token, flush=True)


if __name__ == "__main__":
    if sys.argv[2] == "set-up":
        asyncio.run(set_up(sys.argv[1]))
    else:
        uvicorn.run(make_app(sys.argv[1]), port=int(sys.argv[2]), log_level="warning")
