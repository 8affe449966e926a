"""Many customers, each with their own tables, and one worker for all of them.

    python3 -m examples.tenants             # files below a temporary folder
    python3 -m examples.tenants URL         # a PostgreSQL database; makes and drops the schemas shop_t_acme, …

One customer floods the worker with jobs. The others are served by turns. Then one is suspended, and
dropped.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path

from holdfast import Context, Holdfast, Tasks, TenantSuspended

tasks = Tasks()
order_of_runs: list[str] = []


@tasks.task(name="resize")
async def resize(ctx: Context, picture: int) -> str:
    """Resize a picture, which takes a moment."""
    await asyncio.sleep(0.002)
    order_of_runs.append(str(ctx.tenant))
    return f"{ctx.tenant}/{picture}.webp"


async def main(database: str) -> None:
    """Serve three customers, one of whom has two hundred times as much to do."""
    hf = Holdfast(database, tasks=[tasks], tenants=True, schema_name="shop")
    await hf.migrate()
    async with hf:
        for name in ("acme", "globex", "initech"):
            await hf.tenants.create(name)
        many = await hf.tenant("acme").start_many([resize(picture=number) for number in range(400)])
        two = [resize(picture=1), resize(picture=2)]
        few = [await hf.tenant(name).start_many(two) for name in ("globex", "initech")]

        async with hf.worker(concurrency=4, tenants={"acme": 3, "*": 1}):
            for chains in few:
                print([await chain.result(timeout=30) for chain in chains])
            await hf.tenant("acme").wait(many, timeout=60)
        print(Counter(order_of_runs)["acme"], "jobs of acme; globex had its first after", order_of_runs.index("globex"))

        await hf.tenants.suspend("globex", by="ada", why="unpaid")
        try:
            await hf.tenant("globex").start(resize(picture=3))
        except TenantSuspended as error:
            print(error)
        for each in await hf.tenants.list():
            if each.state == "active":
                await hf.tenants.suspend(each.name)
            await hf.tenants.drop(each.name, confirm=each.name)
        print(len(await hf.tenants.list()), "tenants are left")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as place:
            asyncio.run(main(str(Path(place) / "shop.db")))
