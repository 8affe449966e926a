"""An agent whose messages are its journal: its worker is killed, and another one goes on where it stopped.

The conversation has no fixed length, so phases cannot describe it. Each message is appended to the job's journal before
the next one is made. A later attempt reads the journal, and asks the model only for what is not there yet. The model
here is a script, so that you need no key.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from holdfast import Chain, Context, Holdfast, Tasks

tasks = Tasks()
SECONDS = 60


async def ask_model(messages: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Answer as a language model would: by tools first, and with words once it has looked at both cities."""
    await asyncio.sleep(seconds)
    seen = [each["content"] for each in messages if each["role"] == "tool"]
    if len(seen) < 2:
        return {"role": "assistant", "tool": "weather", "city": ("Oslo", "Rome")[len(seen)]}
    return {"role": "assistant", "content": f"{seen[0]}, {seen[1]}: go to Rome"}


def weather(city: str) -> str:
    """Be a tool."""
    return f"{city} has {'4' if city == 'Oslo' else '19'} degrees"


@tasks.task(name="agent")
async def agent(ctx: Context, question: str) -> str:
    """Converse until the model answers in words; every message is durable before the next one."""
    messages = [entry.body for entry in await ctx.journal.read(kind="message")]

    async def say(message: dict[str, Any]) -> None:
        await ctx.journal.append("message", {**message, "attempt": ctx.job.attempt})
        messages.append(message)

    if not messages:
        await say({"role": "user", "content": question})
    while True:
        last = messages[-1]
        if "tool" in last:
            await say({"role": "tool", "content": weather(last["city"])})
        elif last["role"] == "assistant":
            return str(last["content"])
        else:
            hangs = len(messages) == 3 and ctx.job.attempt == 1
            await say(await ask_model(messages, SECONDS if hangs else 0.01))


async def work(database: str) -> None:
    """Be a worker, until somebody ends the process."""
    logging.getLogger("holdfast").setLevel("ERROR")  # that a worker has died is no news here
    hf = Holdfast(database, tasks=[tasks])
    async with hf:
        await hf.worker(name="agents").run()


def start_worker(database: str) -> subprocess.Popen[bytes]:
    """Start a worker in a process of its own."""
    return subprocess.Popen([sys.executable, __file__, database])


async def until_said(hf: Holdfast, chain: Chain[str], count: int) -> None:
    """Wait until the journal has so many entries."""
    async with asyncio.timeout(SECONDS), hf.events(jobs=chain, names="job:journal") as events:
        seen = len(await hf.journal(chain))  # what was there before the events
        while seen < count:
            seen = (await anext(events)).facts["number"]


async def main() -> None:
    """Ask, kill the worker in the middle of the conversation, and have another one end it."""
    with tempfile.TemporaryDirectory() as directory:
        database = str(Path(directory) / "agent.db")
        async with Holdfast(database, tasks=[tasks]) as hf:
            chain = await hf.start(agent(question="Oslo or Rome?"))
            worker = start_worker(database)
            try:
                await until_said(hf, chain, 3)
                worker.kill()
                worker.wait()
                print("killed:  ", len(await hf.journal(chain)), "messages are in the journal")
                worker = start_worker(database)
                print("answer:  ", await chain.result(timeout=SECONDS))
            finally:
                worker.terminate()
                worker.wait()
            for entry in await hf.journal(chain, kind="message"):
                said = entry.body.get("content") or f"look at the weather of {entry.body['city']}"
                print(f"{entry.number}, in attempt {entry.attempt}: {entry.body['role']}: {said}")


if __name__ == "__main__":
    asyncio.run(main() if len(sys.argv) == 1 else work(sys.argv[1]))
