"""pgqueuer, working. Run it in pgqueuer's environment: `python -m bench.peers.pgqueuer_drain URL TEXT`."""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import version

import asyncpg
import uvloop  # type: ignore[import-not-found]
from pgqueuer import PgQueuer  # type: ignore[import-not-found]
from pgqueuer.db import AsyncpgDriver  # type: ignore[import-not-found]
from pgqueuer.models import Job  # type: ignore[import-not-found]
from pgqueuer.queries import Queries  # type: ignore[import-not-found]
from pgqueuer.types import QueueExecutionMode  # type: ignore[import-not-found]

from bench.peers.pgqueuer_start import connect, count_rows, install, text, url
from bench.peers.serving import latency_async, serve

# its tuning page: "Increase `batch_size` when jobs are short-lived (< 1 s)", `max_concurrent_tasks` must be at least
# 2 times `batch_size`, which without a limit it is, and "a single connection for `QueueManager`"
BATCH_SIZE = 200

done = 0


async def worker() -> PgQueuer:
    """Make a worker whose one entrypoint does nothing but be counted."""
    pgq = PgQueuer(AsyncpgDriver(await asyncpg.connect(url)))

    @pgq.entrypoint("work")  # type: ignore[untyped-decorator]
    async def work(job: Job) -> None:
        global done
        done += 1

    return pgq


async def fill(queries: Queries, count: int) -> None:
    """Enqueue all at once: `enqueue` takes lists for a batch."""
    await queries.enqueue(["work"] * count, [text] * count, [0] * count)


async def drain() -> None:
    """Run until the queue is empty: the mode `drain` of its `run`."""
    pgq = await worker()
    await pgq.run(batch_size=BATCH_SIZE, mode=QueueExecutionMode.drain)


async def latency(count: int) -> str:
    """Enqueue one at a time while a worker of the same process idles."""
    pgq = PgQueuer(AsyncpgDriver(await asyncpg.connect(url)))
    begun: asyncio.Queue[float] = asyncio.Queue()

    @pgq.entrypoint("work")  # type: ignore[untyped-decorator]
    async def work(job: Job) -> None:
        begun.put_nowait(time.perf_counter())

    queries = await connect()
    running = asyncio.create_task(pgq.run())
    await asyncio.sleep(1)
    answer = await latency_async(count, lambda: queries.enqueue("work", text, 0), begun)
    pgq.shutdown.set()
    await running
    return answer


async def rows() -> int:
    """Count what was run, less what is left."""
    return done - await count_rows(await connect())


def main() -> None:
    """Serve, on uvloop as `pgq run` does."""
    install()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        queries = runner.run(connect())
        works = {
            "fill": lambda count: runner.run(fill(queries, count)),
            "drain": lambda _: runner.run(drain()),
            "latency": lambda count: runner.run(latency(count)),
        }
        serve(f"pgqueuer {version('pgqueuer')}", works, lambda: runner.run(rows()))


if __name__ == "__main__":
    main()
