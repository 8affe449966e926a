"""Uses all of the engine that writes, a little of each: `python -m tests.disk.program jobs.db acks full 2`.

It waits for a line before it begins. Whatever a caller was told is done, it writes down in a file beside the database,
a line each: what stands there must be found again, however the program ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Any, Literal, cast

from holdfast import Context, Holdfast, Retention, Tasks
from holdfast.database.sqlite import wal
from holdfast.database.tx import Tx
from holdfast.outcomes import Retry
from tests.disk.one_thread import one_thread

TASKS = Tasks()
task = TASKS.task(lease=30, retry=Retry(first=0.05, maximum=0.05, jitter=0))

TABLES = [
    "CREATE TABLE IF NOT EXISTS payment (job TEXT PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS receipt (job TEXT PRIMARY KEY)",
]


@task(name="plain")
async def plain(n: int) -> int:
    """Do nothing."""
    return n


@task(name="pay")
async def pay(ctx: Context) -> str:
    """Write to two tables in the transaction that completes it."""
    async with ctx.complete() as tx:
        for table in ("payment", "receipt"):
            await tx.fetch_all(f"INSERT INTO {table} VALUES (:job)", job=str(ctx.job.id))
        return tx.finish("paid")


@task(name="build", phases=("plan", "make"))
async def build(ctx: Context) -> int:
    """Go through two phases."""
    planned = await ctx.phase("plan", _one)
    return planned + await ctx.phase("make", _one)


@task(name="fleeting", retention=Retention(stale_after=0, delete_after=0))
async def fleeting() -> None:
    """Be deleted by the next pass of retention."""


@task(name="hesitant")
async def hesitant(ctx: Context) -> int:
    """Fail once, then leave the rest to another job."""
    if ctx.job.attempt == 1:
        raise ValueError("not yet")
    return ctx.continue_with(plain(n=7))


async def _one() -> int:
    return 1


class Acks:
    """The file of what was told."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def tell(self, what: str, *jobs: object) -> None:
        """Write down that *what* is true of each of *jobs*."""
        os.write(self._descriptor, "".join(f"{what} {job}\n" for job in jobs).encode())


def new_holdfast(path: str, synchronous: str = "full", **options: Any) -> Holdfast:
    """Make a face on the file *path* that knows the tasks of this program."""
    return Holdfast(path, tasks=[TASKS], synchronous=cast('Literal["full", "normal"]', synchronous), **options)


async def create(tx: Tx) -> None:
    """Create the tables of the application."""
    for each in TABLES:
        await tx.execute(each)


async def work(hf: Holdfast, acks: Acks) -> None:
    """Start jobs, alone, in a group and in one call, run them, and take away what has ended."""
    chains = [await hf.start(pay())]
    acks.tell("started", *(each.id for each in chains))
    together = await asyncio.gather(*(hf.start(plain(n=n)) for n in range(4)))
    acks.tell("started", *(each.id for each in together))
    batch = await hf.start_many(
        [build(), hesitant(), fleeting(), plain(n=5).options(lane="a", blockers=[together[0]]), pay().options(lane="a")]
    )
    acks.tell("started", *(each.id for each in batch))
    async with hf.worker(poll=0.05, concurrency=3, webhooks=False):
        await _until_completed([*chains, *together, *batch], acks)
    hf.store.tidy()
    done = await hf.retain()
    acks.tell("retained", done.stale, done.deleted)


async def _until_completed(chains: Sequence[Any], acks: Acks) -> None:
    for each in chains:
        await each.result(timeout=60)
        acks.tell("completed", each.id)


async def main(path: str, acks: Acks, synchronous: str, rounds: int) -> None:
    """Work some times, with the database closed in between: then there is a log to begin anew."""
    hf = new_holdfast(path, synchronous, runtime=one_thread())
    for _ in range(rounds):
        async with hf:
            await hf.store.run(create)
            acks.tell("created", "tables")
            await work(hf, acks)


if __name__ == "__main__":
    sys.stdin.readline()
    wal.LONG_BYTES, wal.AGAIN_SECONDS = 1, 0.0  # it is written back whenever somebody looks
    asyncio.run(main(sys.argv[1], Acks(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
