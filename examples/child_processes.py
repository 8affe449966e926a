"""Handlers that compute, hang or crash, each in a child process: none of them harms the worker or its neighbours.

A child imports the application by its place, so this file is run by the children as well, up to its last lines.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import time
from pathlib import Path

from holdfast import ChainFailed, Context, Holdfast, Retry

# what the worker and its children must agree on comes from the surroundings
hf = Holdfast(os.environ.setdefault("EXAMPLE_DATABASE", str(Path(tempfile.mkdtemp(), "children.db"))))


@hf.task(run_in="process")
def count_primes(below: int) -> int:
    """Compute, on a core of its own."""
    return sum(all(number % divisor for divisor in range(2, int(number**0.5) + 1)) for number in range(2, below))


@hf.task(run_in="process", timeout=0.5, retry=Retry.never())
def hang() -> None:
    """Take no notice of anything; a thread could not be ended."""
    while True:
        time.sleep(1)


@hf.task(run_in="process", retry=Retry(first=0.0))
def crash() -> None:
    """Take the process down, as a broken extension module would."""
    os.abort()


@hf.task
async def greet(ctx: Context, name: str) -> str:
    """Run in the worker's own loop, beside all of that."""
    return f"hello, {name}, in attempt {ctx.job.attempt}"


async def main() -> None:
    """Start one of each, and see what becomes of them."""
    await hf.migrate()
    async with hf, hf.worker(children=2):
        computing = await hf.start(count_primes(below=20_000))
        hanging = await hf.start(hang())
        crashing = await hf.start(crash())
        print(await (await hf.start(greet(name="Ada"))).result(timeout=10))
        print(f"{await computing.result(timeout=30)} primes")
        for name, chain in {"hang": hanging, "crash": crashing}.items():
            try:
                await chain.result(timeout=30)
            except ChainFailed as failed:
                error = failed.error or {}
                print(f"{name}: failed for {failed.reason or error['type']}: {error['message']}")


if __name__ == "__main__":
    logging.getLogger("holdfast").setLevel(logging.ERROR)  # who was killed is told below
    asyncio.run(main())
