"""A thousand jobs from one, and one that comes after them all: fan-out and fan-in, on a SQLite file.

The handler decides at run time how many there are. It starts them, and what follows them, in the commit that completes
it: a crash leaves either none of them or all.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from holdfast import Context, Holdfast, Tasks

tasks = Tasks()

BOOK = [f"page {number} of a long book" for number in range(1000)]


@tasks.task(name="count_words")
async def count_words(page: int) -> int:
    """Count the words of one page."""
    return len(BOOK[page].split())


@tasks.task(name="add_up")
async def add_up(ctx: Context) -> int:
    """Add up what was counted; it runs once every page is done, and is given their outputs."""
    return sum(ctx.blocker(count_words, index) for index in range(len(ctx.blockers)))


@tasks.task(name="count_book")
async def count_book(ctx: Context) -> int:
    """Start a job for each page, and go on when all of them have completed."""
    async with ctx.complete() as tx:
        pages = await tx.start_many([count_words(page=number) for number in range(len(BOOK))])
        return tx.continue_with(add_up().options(blockers=pages))


async def main() -> None:
    """Count a book."""
    with tempfile.TemporaryDirectory() as directory:
        hf = Holdfast(str(Path(directory) / "jobs.db"), tasks=[tasks])
        async with hf, hf.worker():
            began = time.monotonic()
            book = await hf.start(count_book())
            words = await book.result(timeout=50)
            seconds = time.monotonic() - began
            steps = [f"{job.task} {job.state}" for job in await hf.list_chain_jobs(book)]
        print("one chain:", ", ".join(steps))
        print(f"{words} words on {len(BOOK)} pages, in {seconds:.1f} s")


if __name__ == "__main__":
    asyncio.run(main())
