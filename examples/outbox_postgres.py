"""An order and its job in one transaction, on PostgreSQL, in async code.

Run it with HOLDFAST_DATABASE=postgresql://… pointing at a database where it may create tables.
"""

from __future__ import annotations

import asyncio
import os

import psycopg

from holdfast import Holdfast

hf = Holdfast(os.environ["HOLDFAST_DATABASE"])


class OutOfStock(Exception):
    """The order cannot be taken."""


@hf.task(name="send_receipt")
async def send_receipt(order_id: int) -> str:
    """Send the receipt for an order."""
    return f"receipt for order {order_id}"


async def order(shop: psycopg.AsyncConnection, item: str) -> None:
    """Write an order and start its job: both, or neither."""
    async with shop.transaction():
        row = await shop.execute("INSERT INTO shop_order (item) VALUES (%s) RETURNING id", [item])
        ((order_id,),) = await row.fetchall()
        await hf.start(send_receipt(order_id=order_id), connection=shop)
        if item == "teapot":
            raise OutOfStock(item)


async def main() -> None:
    """Take two orders; the second is refused, and its job goes with it."""
    await hf.migrate()  # in production: `holdfast migrate`, before the deploy
    async with hf, await psycopg.AsyncConnection.connect(os.environ["HOLDFAST_DATABASE"]) as shop:
        await shop.execute(
            "CREATE TEMPORARY TABLE shop_order (id int GENERATED ALWAYS AS IDENTITY, item text NOT NULL)"
        )
        await shop.commit()

        await order(shop, "kettle")
        try:
            await order(shop, "teapot")
        except OutOfStock as error:
            print(f"{error}: rolled back, order and job")

        orders = await (await shop.execute("SELECT item FROM shop_order")).fetchall()
        jobs = await hf.list_jobs(task="send_receipt")
        print("orders:", [item for (item,) in orders])
        print("jobs:  ", [job.input.order_id for job in jobs])


if __name__ == "__main__":
    asyncio.run(main())
