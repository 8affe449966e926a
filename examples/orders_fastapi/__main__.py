"""Sends the shop some requests, as its customers would, and tells what came of them."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from uuid import UUID

import httpx

from examples.orders_fastapi.jobs import payments
from examples.orders_fastapi.web import create_app
from holdfast import Holdfast


async def main(database: str) -> None:
    """Order two things, of which the second is out of stock; wait until the first one is paid."""
    hf = Holdfast(database)
    await hf.migrate()  # on a server this is a step of a deployment: `holdfast migrate`, or a revision of Alembic
    await hf.close()
    app = create_app(database)
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://shop") as shop:
        hf = app.state.holdfast
        taken = (await shop.post("/orders", json={"item": "kettle", "cents": 3900})).json()
        print(f"kettle:   ordered as number {taken['order_id']}")
        refused = await shop.post("/orders", json={"item": "teapot", "cents": 2500})
        print(f"teapot:   {refused.json()['detail']}")
        print("jobs:    ", [job.input.order_id for job in await hf.list_jobs(task="charge")])

        chain = await hf.get_chain(UUID(taken["job_id"]))
        print("output:  ", await chain.result(timeout=20))
        job = await hf.get_job(chain)
        order = (await shop.get(f"/orders/{taken['order_id']}")).json()
        print(f"order:    {order['item']} is {order['state']}, job {job.status} in attempt {job.attempt}")
        print(f"payments: asked {payments.requests} times, charged {list(payments.charged.values())}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else str(Path(directory) / "shop.db")))
