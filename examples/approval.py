"""Approve in time, on a SQLite file: a job rejects by itself when its time has come, unless a person is faster.

Each article has one job, scheduled ahead, whose handler rejects it. An editor approves earlier by completing that job
from outside: whichever of the two commits first wins, and the other one is told.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from pathlib import Path

from holdfast import Context, Holdfast, StatusConflict, Tasks
from holdfast.sync import Chain

tasks = Tasks()

HOUR = 0.25  # seconds, so that nobody has to wait


@tasks.task(name="review")
async def review(ctx: Context, article: str) -> str:
    """Reject what nobody has approved in time."""
    async with ctx.complete() as tx:
        await tx.execute("UPDATE articles SET state = 'rejected' WHERE title = :title", title=article)
        return tx.finish("rejected, nobody came")


@tasks.task(name="publish")
async def publish(article: str) -> str:
    """Publish what was approved."""
    return f"published: {article}"


async def approve(hf: Holdfast, chain: Chain[str], editor: str) -> str:
    """Take the review in the hand, write down who approved, and go on to publish: one commit."""
    try:
        async with hf.completing(review, chain, by=editor) as job:
            title = job.input.article
            await job.tx.execute("UPDATE articles SET state = 'approved' WHERE title = :title", title=title)
            await job.continue_with(publish(article=title))
            return f"approved by {editor}"
    except StatusConflict as error:
        return f"{editor} is too late: it is {error.status}"


def submit(hf: Holdfast, desk: sqlite3.Connection, article: str) -> Chain[str]:
    """Write an article and the job that will reject it, in one transaction."""
    desk.execute("BEGIN IMMEDIATE")
    desk.execute("INSERT INTO articles VALUES (?, 'submitted')", [article])
    chain = hf.sync.start(review(article=article), delay=2 * HOUR, connection=desk)
    desk.execute("COMMIT")
    return chain


async def main() -> None:
    """Submit two articles; one of them is approved in time."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "articles.db"
        hf = Holdfast(str(path), tasks=[tasks])
        async with hf:
            desk = sqlite3.connect(path, isolation_level=None)
            desk.execute("CREATE TABLE articles (title TEXT PRIMARY KEY, state TEXT)")
            tea, coffee = submit(hf, desk, "On tea"), submit(hf, desk, "On coffee")

            print("On tea:   ", await approve(hf, tea, "ada"))
            async with hf.worker():  # from now on what is due is rejected, and what was approved is published
                await hf.wait([tea, coffee], timeout=20)
            print("On coffee:", await approve(hf, coffee, "bob"))

            for chain in (tea, coffee):
                ended = await hf.get_chain(chain)
                steps = [f"{job.task} {job.state}" for job in await hf.list_chain_jobs(chain)]
                print(f"{ended.output:<22} ({', '.join(steps)})")
            print(*desk.execute("SELECT title, state FROM articles"))
            desk.close()


if __name__ == "__main__":
    asyncio.run(main())
