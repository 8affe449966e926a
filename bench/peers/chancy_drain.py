"""chancy, working. Run it in chancy's environment: `python -m bench.peers.chancy_drain URL TEXT`."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from importlib.metadata import version

from chancy import Chancy, Queue, Worker, job  # type: ignore[import-not-found]

from bench.peers.serving import Tally, latency_async, serve

url, text = sys.argv[1], sys.argv[2]

# its page AsyncExecutor: "useful for running large numbers of IO-bound jobs, as it can run many jobs concurrently …
# without the high overhead of new processes or threads"; its concurrency, "by default, returns 100"; its page Queue:
# with `eager_polling` "the worker will immediately poll for new jobs after a job completes"
QUEUES = [Queue(name=name, executor=Chancy.Executor.Async, eager_polling=True) for name in ("work", "mark")]

tally = Tally()
begun: asyncio.Queue[float] = asyncio.Queue()


@job(queue="work")  # type: ignore[untyped-decorator]
async def work(*, text: str) -> None:
    """Do nothing, and be counted."""
    tally.count()


@job(queue="mark")  # type: ignore[untyped-decorator]
async def mark(*, text: str) -> None:
    """Say when it was called."""
    begun.put_nowait(time.perf_counter())


async def fill(chancy: Chancy, count: int) -> None:
    """Push all, in batches of a thousand as `push_many` does by itself."""
    async for _ in chancy.push_many([work.job.with_kwargs(text=text) for _ in range(count)]):
        pass


async def drain(chancy: Chancy, count: int) -> str:
    """Work until all were called and recorded; it records them every second, or when `flush` is called."""
    tally.expect(count)
    async with Worker(chancy, register_signal_handlers=False) as worker:
        await tally.wait_async()
        await worker.flush()
        return tally.seconds()


async def latency(chancy: Chancy, count: int) -> str:
    """Push one at a time while a worker of the same process idles."""
    async with Worker(chancy, register_signal_handlers=False):
        await asyncio.sleep(1)
        return await latency_async(count, lambda: chancy.push(mark.job.with_kwargs(text=text)), begun)


async def rows(chancy: Chancy) -> int:
    """Count what it has recorded as done."""
    async with chancy.pool.connection() as connection:
        cursor = await connection.execute(
            "SELECT count(*) FROM chancy_jobs WHERE state = 'succeeded' AND queue = 'work'"
        )
        ((count,),) = await cursor.fetchall()
    return int(count)


def main() -> None:
    """Make its tables, and serve."""
    quiet = logging.getLogger("quiet")
    quiet.setLevel(logging.WARNING)
    with asyncio.Runner() as runner:
        chancy = Chancy(url, log=quiet)
        runner.run(chancy.__aenter__())
        runner.run(chancy.migrate())
        for each in QUEUES:
            runner.run(chancy.declare(each))
        works = {
            "fill": lambda count: runner.run(fill(chancy, count)),
            "drain": lambda count: runner.run(drain(chancy, count)),
            "latency": lambda count: runner.run(latency(chancy, count)),
        }
        serve(f"chancy {version('chancy')}", works, lambda: runner.run(rows(chancy)))
        runner.run(chancy.__aexit__(None, None, None))


if __name__ == "__main__":
    main()
