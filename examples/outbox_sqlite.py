"""No outbox needed, on a SQLite file: a job begins in its order's transaction, and ends in that of its result.

Taking orders and sending receipts is blocking code.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from pathlib import Path

from holdfast import Holdfast, Retry, Tasks
from holdfast.sync import Context

tasks = Tasks()


class OutOfStock(Exception):
    """The order cannot be taken."""


@tasks.task(name="send_receipt", retry=Retry(attempts=2, first=0.1, jitter=0))
def send_receipt(ctx: Context, order_id: int) -> str:
    """Write the receipt down in the commit that completes the job; the first attempt breaks off half way."""
    with ctx.complete() as tx:
        tx.execute("INSERT INTO receipts (order_id, attempt) VALUES (:id, :attempt)", id=order_id, attempt=ctx.job.used)
        if ctx.job.used == 1:
            raise ConnectionError("the printer does not answer")
        return tx.finish(f"receipt for order {order_id}")


def order(hf: Holdfast, shop: sqlite3.Connection, item: str) -> None:
    """Write an order and start its job: both, or neither."""
    shop.execute("BEGIN IMMEDIATE")
    try:
        order_id = shop.execute("INSERT INTO orders (item) VALUES (?)", [item]).lastrowid
        assert order_id is not None
        hf.sync.start(send_receipt(order_id=order_id), connection=shop)
        if item == "teapot":
            raise OutOfStock(item)
    except BaseException:
        shop.execute("ROLLBACK")
        raise
    shop.execute("COMMIT")


async def work(hf: Holdfast) -> None:
    """Run what was started; in a shop `holdfast worker shop:hf` does, in a process of its own."""
    async with hf, hf.worker():
        await hf.wait((await hf.list_chains()).items, timeout=20)


def main() -> None:
    """Take two orders, of which the second is refused; then send the receipts."""
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "shop.db")
        hf = Holdfast(path, tasks=[tasks])
        # open Holdfast before your own transaction: the first use of a new file creates its tables
        with hf.sync:
            shop = sqlite3.connect(path, isolation_level=None)
            shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)")
            shop.execute("CREATE TABLE receipts (order_id INTEGER NOT NULL, attempt INTEGER NOT NULL)")

            order(hf, shop, "kettle")
            try:
                order(hf, shop, "teapot")
            except OutOfStock as error:
                print(f"{error}: rolled back, order and job")
            print("orders:  ", [item for (item,) in shop.execute("SELECT item FROM orders")])
            print("jobs:    ", [job.input.order_id for job in hf.sync.list_jobs(task="send_receipt")])

        asyncio.run(work(hf))
        print("receipts:", shop.execute("SELECT * FROM receipts").fetchall(), "(order, attempt)")
        with hf.sync:
            print("outputs: ", [job.output for job in hf.sync.list_jobs(task="send_receipt")])
        shop.close()


if __name__ == "__main__":
    main()
