"""saq on PostgreSQL, working. Run it in saq's environment: `python -m bench.peers.saq_drain URL TEXT`."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from saq import Worker  # type: ignore[import-not-found]
from saq.queue.postgres import PostgresQueue  # type: ignore[import-not-found]

from bench.peers.serving import Tally, latency_async, serve, until_async

url, text = sys.argv[1], sys.argv[2]

# its page Worker: "concurrency: number of jobs to process concurrently", 10 by itself; its page PostgresQueue:
# "max_size: maximum pool size. (default 20)". Its pages Workers and Settings do not say how to choose, so both are left
# alone; with 50, tried three times on a busy machine, it was as fast or up to twice as fast.
CONCURRENCY = 10

tally = Tally()
begun: asyncio.Queue[float] = asyncio.Queue()


async def work(context: dict[str, Any], *, text: str) -> None:
    """Do nothing, and be counted."""
    tally.count()


async def mark(context: dict[str, Any], *, text: str) -> None:
    """Say when it was called."""
    begun.put_nowait(time.perf_counter())


@asynccontextmanager
async def opened() -> AsyncIterator[PostgresQueue]:
    """Open a queue of its own, for a worker of its own."""
    queue = PostgresQueue.from_url(url)
    await queue.connect()
    try:
        yield queue
    finally:
        await queue.disconnect()


@asynccontextmanager
async def working(queue: PostgresQueue) -> AsyncIterator[None]:
    """Work beside what is done in the block."""
    worker = Worker(queue, [work, mark], concurrency=CONCURRENCY)
    running = asyncio.create_task(worker.start())
    try:
        yield
    finally:
        await ended(asyncio.create_task(worker.stop()), running)


async def ended(*stopping: asyncio.Task[None]) -> None:
    """Wait until it has stopped.

    A task of its that is cancelled while it looks for jobs takes that for a time-out and goes on, and the worker waits
    for it for ever; so it is cancelled again.
    """
    while (await asyncio.wait(stopping, timeout=1))[1]:
        for task in asyncio.all_tasks():
            if task.get_name() == "process":
                task.cancel()


async def fill(count: int) -> None:
    """Enqueue from as many callers as run jobs; `ttl=0` keeps what is done for ever."""
    async with opened() as queue:

        async def call() -> None:
            for _ in range(count // CONCURRENCY):
                await queue.enqueue("work", text=text, ttl=0)

        await asyncio.gather(*(call() for _ in range(CONCURRENCY)))


async def drain(count: int) -> str:
    """Work until all were called and recorded."""
    tally.expect(count)
    async with opened() as queue, working(queue):
        await tally.wait_async()
        await until_async(lambda: is_empty(queue))
        return tally.seconds()


async def is_empty(queue: PostgresQueue) -> bool:
    """Tell whether nothing is left."""
    return bool(await queue.count("incomplete") == 0)


async def latency(count: int) -> str:
    """Enqueue one at a time while a worker of the same process idles."""
    async with opened() as queue, working(queue):
        await asyncio.sleep(1)
        return await latency_async(count, lambda: queue.enqueue("mark", text=text), begun)


async def rows() -> int:
    """Count what it has recorded as done."""
    async with opened() as queue, queue.pool.connection() as connection:
        cursor = await connection.execute("SELECT count(*) FROM saq_jobs WHERE status = 'complete'")
        ((count,),) = await cursor.fetchall()
    return int(count)


def main() -> None:
    """Serve; its tables are made when the first queue is opened."""
    logging.disable(logging.WARNING)
    with asyncio.Runner() as runner:
        works = {
            "fill": lambda count: runner.run(fill(count)),
            "drain": lambda count: runner.run(drain(count)),
            "latency": lambda count: runner.run(latency(count)),
        }
        serve(f"saq {version('saq')}", works, lambda: runner.run(rows()))


if __name__ == "__main__":
    main()
