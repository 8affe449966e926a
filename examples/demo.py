"""What exists today, at work on a SQLite file: `python3 dev.py demo`.

Nothing here runs a job: the engine that does comes next. What you see is everything before it: jobs that commit with
your data, and how they are found again.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from holdfast import ChainNotFound, Holdfast, Job, StillReferenced, Unique

console = Console(highlight=False)
COLOURS = {"pending": "green", "scheduled": "cyan", "blocked": "yellow", "paused": "magenta"}


async def main(directory: Path) -> None:
    """Show it, a step at a time."""
    path = directory / "shop.db"
    hf = Holdfast(str(path))

    @hf.task(name="send_receipt")
    async def send_receipt(order_id: int) -> str:
        return f"receipt for order {order_id}"

    @hf.task(name="pack", queue="warehouse")
    async def pack(order_id: int) -> None:
        return None

    @hf.task(name="report")
    async def report(day: str) -> str:
        return f"report of {day}"

    console.print(f"[bold]Holdfast[/] on SQLite {sqlite3.sqlite_version}, in [bold]{path}[/]", soft_wrap=True)
    async with hf:  # opened before your own transaction: the first use of a new file creates its tables
        shop = sqlite3.connect(path, isolation_level=None)
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)")

        async with step("An order and its job, in one transaction of yours"):
            shop.execute("BEGIN IMMEDIATE")
            shop.execute("INSERT INTO orders (id, item) VALUES (1, 'kettle')")
            chain = hf.sync.start(send_receipt(order_id=1), connection=shop)
            console.print(f"  before COMMIT, others see the job: {await exists(hf, chain.id)}")
            shop.execute("COMMIT")
            console.print(f"  after COMMIT,  others see the job: {await exists(hf, chain.id)}")

        async with step("The same, rolled back: there was never a job"):
            shop.execute("BEGIN IMMEDIATE")
            shop.execute("INSERT INTO orders (id, item) VALUES (2, 'teapot')")
            ghost = hf.sync.start(send_receipt(order_id=2), connection=shop)
            shop.execute("ROLLBACK")
            console.print(f"  the job is there: {await exists(hf, ghost.id)}")

        async with step("64 callers at once share their commits; each returns when its own is on disk"):
            started = time.perf_counter()
            await asyncio.gather(*(hf.start(pack(order_id=n)) for n in range(64)))
            console.print(f"  64 durable starts in {(time.perf_counter() - started) * 1000:.0f} ms")

        async with step("A unique key: the second start is given the chain of the first"):
            first = await hf.start(report(day="monday"), unique="monday")
            again = await hf.start(report(day="monday"), unique=Unique("monday", within=3600))
            console.print(f"  same chain: {first.id == again.id}, deduplicated: {again.deduplicated}")

        async with step("Blockers, a delay, a lane, a job that waits for a person"):
            await hf.start(report(day="tuesday"), blockers=[chain, first])
            await hf.start(report(day="next week"), delay=7 * 24 * 3600, tags=["weekly"])
            await hf.start(pack(order_id=1), lane="robot-7", priority=10)
            await hf.start(pack(order_id=1), paused=True)
            console.print(jobs_table(list(await hf.list_jobs(limit=6))), "", sep="\n")
            scheduled = await hf.list_jobs(status="scheduled")
            console.print(f"  of these, scheduled: {[job.input.day for job in scheduled]}")

        async with step("Deleting: whole chains, and never one that others wait for"):
            try:
                await hf.delete(first)
            except StillReferenced as error:
                console.print(f"  refused, {len(error.references)} job waits for it")
            dependent = (await hf.list_jobs(status="blocked")).items[0]
            gone = await hf.delete_many([dependent, first])
            console.print(f"  deleted together: {len(gone)} chains")

        async with step("The log was written in the same commits"):
            rows = shop.execute("SELECT name, count(*) FROM holdfast_event GROUP BY name ORDER BY 2 DESC")
            for name, count in rows:
                console.print(f"  {name:<14}{count:>4}")
        shop.close()

    console.print(
        "\nNothing has run: the engine that runs jobs comes next. Until then they wait, durably.", soft_wrap=True
    )


@asynccontextmanager
async def step(title: str) -> AsyncIterator[None]:
    """Print *title* over what follows."""
    console.print(f"\n[bold blue]*[/] {title}", soft_wrap=True)
    yield


async def exists(hf: Holdfast, chain_id: object) -> str:
    """Ask on a connection of its own whether the chain is there."""
    try:
        await hf.get_chain(str(chain_id))
    except ChainNotFound:
        return "[red]no[/]"
    return "[green]yes[/]"


def jobs_table(jobs: list[Job]) -> Table:
    """Make a table of *jobs*."""
    table = Table("seq", "task", "input", "state", "queue", "lane", "run at", box=None, padding=(0, 1))
    for job in jobs:
        arguments = ", ".join(f"{name}={value}" for name, value in asdict(job.input).items())
        state = f"[{COLOURS.get(job.state, 'white')}]{job.state}[/]"
        run_at = f"{job.run_at:%d %b %H:%M}"
        table.add_row(str(job.seq), job.task, arguments, state, job.queue, job.lane or "", run_at)
    return table


if __name__ == "__main__":
    keep = "--keep" in sys.argv[1:]
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        asyncio.run(main(folder))
    finally:
        if not keep:
            shutil.rmtree(folder)
    console.print(f"Kept: {folder}" if keep else "The file is removed again; --keep keeps it.", soft_wrap=True)
