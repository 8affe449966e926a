"""Prepare, work, complete: an order is charged at a service outside, and paid in the same commit as its job completes.

The first attempt breaks off after the service has charged and before anything is written. The second one charges again
under the same key, so the customer pays once; and the row, the completion and the next job are one commit.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from holdfast import Context, Holdfast, Retry, Tasks

tasks = Tasks()


@dataclass
class Payments:
    """Stands for a service outside the database: it knows what it has done by the key that it was given."""

    charged: dict[str, int] = field(default_factory=dict)
    requests: int = 0

    async def charge(self, cents: int, key: str) -> None:
        """Charge once for each *key*, however often it is asked."""
        self.requests += 1
        self.charged.setdefault(key, cents)


payments = Payments()


@tasks.task(name="charge", retry=Retry(attempts=3, first=0.1, jitter=0))
async def charge(ctx: Context, order_id: int) -> str:
    """Charge an order, and have it shipped; the annotation is the type of the chain's end."""
    async with ctx.prepare() as tx:  # read, and commit
        order = await tx.fetch_one("SELECT cents FROM orders WHERE id = :id", id=order_id)
        assert order is not None
    await payments.charge(order.cents, key=ctx.idempotency_key)  # long work; no transaction is open
    async with ctx.complete() as tx:  # your writes, the completion and what follows: one commit
        await tx.execute("UPDATE orders SET state = 'paid' WHERE id = :id", id=order_id)
        if ctx.job.used == 1:
            raise ConnectionError("broken off in the middle of the block")
        return tx.continue_with(ship(order_id=order_id))


@tasks.task(name="ship")
async def ship(ctx: Context, order_id: int) -> str:
    """Hand the parcel over, all in one transaction."""
    async with ctx.atomic() as tx:
        await tx.execute("UPDATE orders SET state = 'shipped' WHERE id = :id", id=order_id)
        return tx.finish(f"parcel {order_id}")


async def main() -> None:
    """Take an order and see it through."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "shop.db"
        hf = Holdfast(str(path), tasks=[tasks])
        async with hf, hf.worker():
            shop = sqlite3.connect(path, isolation_level=None)
            shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, cents INTEGER, state TEXT)")
            shop.execute("BEGIN IMMEDIATE")
            shop.execute("INSERT INTO orders VALUES (7, 995, 'new')")
            started = hf.sync.start(charge(order_id=7), connection=shop)
            shop.execute("COMMIT")

            chain = await hf.get_chain(started)
            print("output:  ", await chain.result(timeout=20))
            for job in await hf.list_chain_jobs(chain):
                print(f"step:     {job.task}, {job.state} in attempt {job.attempt}")
            print("order:   ", *shop.execute("SELECT id, state FROM orders").fetchone())
            print(f"payments: asked {payments.requests} times, charged {list(payments.charged.values())}")
            shop.close()


if __name__ == "__main__":
    asyncio.run(main())
