"""Sends the shop some requests, as its customers would, then runs what they have started."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from uuid import UUID

from examples.orders_flask.models import db_session
from examples.orders_flask.web import create_app
from holdfast import Holdfast


def main(database: str) -> None:
    """Order two things, of which the second is out of stock; then see the first one paid."""
    with_tables = Holdfast(database).sync
    with_tables.migrate()  # on a server this is a step of a deployment: `holdfast migrate`, or a revision of Alembic
    with_tables.close()
    app = create_app(database)
    hf: Holdfast = app.extensions["holdfast"]
    shop = app.test_client()

    taken = shop.post("/orders", json={"item": "kettle", "cents": 3900}).get_json()
    print(f"kettle:   ordered as number {taken['order_id']}")
    refused = shop.post("/orders", json={"item": "teapot", "cents": 2500})
    print(f"teapot:   {refused.status_code}, out of stock")
    print("jobs:    ", [job.input.order_id for job in hf.sync.list_jobs(task="charge")])

    print("output:  ", asyncio.run(work(hf, UUID(taken["job_id"]))))
    job = hf.sync.get_job(UUID(taken["job_id"]))
    order = shop.get(f"/orders/{taken['order_id']}").get_json()
    print(f"order:    {order['item']} is {order['state']}, job {job.status} in attempt {job.attempt}")
    hf.sync.close()
    db_session.get_bind().engine.dispose()


async def work(hf: Holdfast, job: UUID) -> str:
    """Run what was started, until *job* is done; in a shop `holdfast worker` does, in a process of its own."""
    async with hf, hf.worker():
        return str(await (await hf.get_chain(job)).result(timeout=20))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(sys.argv[1] if len(sys.argv) > 1 else str(Path(directory) / "shop.db"))
