"""pgqueuer. Run it in pgqueuer's environment: `python -m bench.peers.pgqueuer_start URL TEXT`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from importlib.metadata import version

import asyncpg
import uvloop  # type: ignore[import-not-found]
from pgqueuer.db import AsyncpgDriver  # type: ignore[import-not-found]
from pgqueuer.queries import Queries  # type: ignore[import-not-found]

from bench.peers.serving import serve

BATCH = 1000

url, text = sys.argv[1], sys.argv[2].encode()


def install() -> None:
    """Make its tables: `durable`, the default, logs all of them; "Run `pgq autovac` after installation"."""
    for command in ("install", "autovac"):
        subprocess.run([sys.executable, "-m", "pgqueuer", "--pg-dsn", url, command], check=True, capture_output=True)


async def connect() -> Queries:
    """Connect as the README shows a producer: `Queries(AsyncpgDriver(await asyncpg.connect()))`.

    The tuning page has a pool for producers; one caller has nothing to share, and a pool resets its connection each
    time it comes back.
    """
    return Queries(AsyncpgDriver(await asyncpg.connect(url)))


async def single(queries: Queries, count: int) -> None:
    """Enqueue one after the other."""
    for _ in range(count):
        await queries.enqueue("work", text, 0)


async def many(queries: Queries, count: int) -> None:
    """Enqueue a thousand at a time: `enqueue` takes lists for a batch."""
    for _ in range(count // BATCH):
        await queries.enqueue(["work"] * BATCH, [text] * BATCH, [0] * BATCH)


async def count_rows(queries: Queries) -> int:
    """Count what is queued."""
    return sum(each.count for each in await queries.queue_size())


def main() -> None:
    """Serve, on uvloop as `pgq run` does."""
    install()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        queries = runner.run(connect())
        works = {
            "single": lambda count: runner.run(single(queries, count)),
            "many": lambda count: runner.run(many(queries, count)),
        }
        serve(f"pgqueuer {version('pgqueuer')}", works, lambda: runner.run(count_rows(queries)))


if __name__ == "__main__":
    main()
