"""procrastinate, working. Run it in its environment: `python -m bench.peers.procrastinate_drain URL TEXT`."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from importlib.metadata import version

from procrastinate import App, PsycopgConnector  # type: ignore[import-not-found]

from bench.peers.serving import latency_async, serve

url, text = sys.argv[1], sys.argv[2]

logging.disable(logging.WARNING)  # it says that the app should not be made in the main module
app = App(connector=PsycopgConnector(conninfo=url))
begun: asyncio.Queue[float] = asyncio.Queue()

# "By default, each worker only takes one job at a time", and to do several at once "`app.run_worker(concurrency=30)`";
# `wait=False` ends it with the queue
CONCURRENCY = 30


@app.task(name="work")  # type: ignore[untyped-decorator]
async def work(text: str) -> None:
    """Do nothing."""


@app.task(name="mark")  # type: ignore[untyped-decorator]
async def mark(text: str) -> None:
    """Say when it was called."""
    begun.put_nowait(time.perf_counter())


async def open_app() -> None:
    """Open its pool, of the size that it has by itself."""
    await app.open_async()


async def fill(count: int) -> None:
    """Enqueue all at once: "more efficient than deferring them one by one"."""
    await work.batch_defer_async(*[{"text": text} for _ in range(count)])


async def drain() -> None:
    """Run until the queue is empty."""
    await app.run_worker_async(wait=False, concurrency=CONCURRENCY, install_signal_handlers=False)


async def latency(count: int) -> str:
    """Defer one at a time while a worker of the same process idles."""
    running = asyncio.create_task(app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False))
    await asyncio.sleep(1)
    answer = await latency_async(count, lambda: mark.defer_async(text=text), begun)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return answer


async def rows() -> int:
    """Count what it has recorded as done."""
    return len(await app.job_manager.list_jobs_async(task="work", status="succeeded"))


def main() -> None:
    """Make its tables, and serve."""
    with asyncio.Runner() as runner:
        runner.run(open_app())
        runner.run(app.schema_manager.apply_schema_async())
        works = {
            "fill": lambda count: runner.run(fill(count)),
            "drain": lambda _: runner.run(drain()),
            "latency": lambda count: runner.run(latency(count)),
        }
        serve(f"procrastinate {version('procrastinate')}", works, lambda: runner.run(rows()))
        runner.run(app.close_async())


if __name__ == "__main__":
    main()
