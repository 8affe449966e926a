"""An order and its job in one transaction, on a SQLite file, in blocking code."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

from holdfast import Holdfast


class OutOfStock(Exception):
    """The order cannot be taken."""


def main() -> None:
    """Take two orders; the second is refused, and its job goes with it."""
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "shop.db")
        hf = Holdfast(path)

        @hf.task(name="send_receipt")
        def send_receipt(order_id: int) -> str:
            return f"receipt for order {order_id}"

        # open Holdfast before your own transaction: the first use of a new file creates its tables
        with hf.sync:
            shop = sqlite3.connect(path, isolation_level=None)
            shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)")

            def order(item: str) -> None:
                shop.execute("BEGIN IMMEDIATE")
                try:
                    row = shop.execute("INSERT INTO orders (item) VALUES (?)", [item])
                    order_id = row.lastrowid
                    assert order_id is not None
                    hf.sync.start(send_receipt(order_id=order_id), connection=shop)
                    if item == "teapot":
                        raise OutOfStock(item)
                except BaseException:
                    shop.execute("ROLLBACK")
                    raise
                shop.execute("COMMIT")

            order("kettle")
            try:
                order("teapot")
            except OutOfStock as error:
                print(f"{error}: rolled back, order and job")

            print("orders:", [item for (item,) in shop.execute("SELECT item FROM orders")])
            print("jobs:  ", [job.input.order_id for job in hf.sync.list_jobs(task="send_receipt")])
            shop.close()


if __name__ == "__main__":
    main()
