"""oban, working. Run it in oban's environment: `python -m bench.peers.oban_drain URL TEXT`."""

from __future__ import annotations

import asyncio
import sys
import time
from importlib.metadata import version

import uvloop  # type: ignore[import-not-found]
from oban import Oban, job  # type: ignore[import-not-found]
from oban.schema import install  # type: ignore[import-not-found]
from psycopg_pool import AsyncConnectionPool  # type: ignore[import-not-found]

from bench.peers.serving import Tally, latency_async, serve

url, text = sys.argv[1], sys.argv[2]

# its page Defining Queues: "I/O-bound jobs … can often use higher concurrency", and "there isn't a limit to … how many
# jobs may execute concurrently"; its page Ready for Production: "a queue with a limit of `100` does not hold `100`
# connections", and "the default of `10`" connections "is comfortable for most deployments"
LIMIT = 100

tally = Tally()
begun: asyncio.Queue[float] = asyncio.Queue()


@job(queue="work")  # type: ignore[untyped-decorator]
async def work(text: str) -> None:
    """Do nothing, and be counted."""
    tally.count()


@job(queue="mark")  # type: ignore[untyped-decorator]
async def mark(text: str) -> None:
    """Say when it was called."""
    begun.put_nowait(time.perf_counter())


async def fill(pool: AsyncConnectionPool, count: int) -> None:
    """Enqueue all at once: "more efficient than calling enqueue() multiple times"."""
    await Oban(pool=pool).enqueue_many(work.new(text) for _ in range(count))


async def drain(pool: AsyncConnectionPool, count: int) -> str:
    """Run the queue until all were called; to stop it acknowledges what is left."""
    tally.expect(count)
    async with Oban(pool=pool, queues={"work": LIMIT}):
        await tally.wait_async()
    return tally.seconds()


async def latency(pool: AsyncConnectionPool, count: int) -> str:
    """Enqueue one at a time while a worker of the same process idles."""
    async with Oban(pool=pool, queues={"mark": LIMIT}) as oban:
        await asyncio.sleep(1)
        return await latency_async(count, lambda: oban.enqueue(mark.new(text)), begun)


async def rows(pool: AsyncConnectionPool) -> int:
    """Count what it has recorded as done."""
    async with pool.connection() as connection:
        cursor = await connection.execute("SELECT count(*) FROM oban_jobs WHERE state = 'completed' AND queue = 'work'")
        ((count,),) = await cursor.fetchall()
    return int(count)


def main() -> None:
    """Make its tables, and serve, on uvloop as `oban start` does."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        pool = runner.run(Oban.create_pool(url))
        runner.run(install(pool))
        works = {
            "fill": lambda count: runner.run(fill(pool, count)),
            "drain": lambda count: runner.run(drain(pool, count)),
            "latency": lambda count: runner.run(latency(pool, count)),
        }
        serve(f"oban {version('oban')}", works, lambda: runner.run(rows(pool)))
        runner.run(pool.close())


if __name__ == "__main__":
    main()
