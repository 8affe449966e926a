"""Work by the clock, on a SQLite file: close the books every night, and synchronize every second.

Two workers share the schedules. Nobody leads: each starts what is due, and every time of a schedule has one job. Then
the night is over, and a person pauses one schedule and runs the other by hand.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from holdfast import Context, Holdfast, Tasks

tasks = Tasks()


@tasks.task(name="close_books", cron="0 3 * * *", timezone="Europe/Rome")
async def close_books(ctx: Context) -> str:
    """Close the books of the night; somebody may also ask for it by day."""
    return "by hand" if ctx.scheduled_at is None else f"for {ctx.scheduled_at:%d %B}"


@tasks.task(name="sync")
async def sync(ctx: Context, source: str) -> str:
    """Fetch what is new since the last time."""
    return f"{source} at {ctx.scheduled_at:%H:%M:%S}"


# while one of these jobs is open, the next time starts no second one
tasks.schedule("sync_crm", sync(source="crm").options(unique="crm"), every=1, missed="skip")


async def main() -> None:
    """Look at the schedules, let two workers serve them for some seconds, then steer them."""
    with tempfile.TemporaryDirectory() as directory:
        hf = Holdfast(str(Path(directory) / "office.db"), tasks=[tasks])
        async with hf:
            for each in await hf.schedules.list():
                print(f"{each.name}: {each.words}; next at {each.next_times[0]:%H:%M:%S} UTC")

            async with hf.worker(), hf.worker():
                while len(ticks := await hf.schedules.ticks("sync_crm")) < 3:  # noqa: ASYNC110 - time itself is awaited
                    await asyncio.sleep(0.05)
                await hf.schedules.pause("sync_crm", by="ada", why="the CRM is down")
                chain = await hf.schedules.run("close_books", by="ada")
                print("books closed", await chain.result(timeout=10))
                await hf.wait([ticks[-1].chain_id], timeout=10)

            times = [job.scheduled_at for job in await hf.list_jobs(task="sync")]
            print("no time has two jobs:", len(times) == len(set(times)))
            print("the first:", (await hf.get_chain(ticks[-1].chain_id)).output)
            print("paused because", (await hf.schedules.get("sync_crm")).reason)


if __name__ == "__main__":
    asyncio.run(main())
