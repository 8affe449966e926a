"""Sends the shop some requests, as its customers would, then runs what they have started."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from uuid import UUID

import django


def main() -> None:
    """Order two things, of which the second is out of stock; then see the first one paid, and look at the admin."""
    django.setup()
    from django.core.management import call_command
    from django.db import connections
    from django.test import Client

    from holdfast.integrations.django import holdfast

    call_command("migrate", verbosity=0)  # our tables too
    hf, shop = holdfast(), Client()

    taken = order(shop, "kettle", 3900).json()
    print(f"kettle:   ordered as number {taken['order_id']}")
    print(f"teapot:   {order(shop, 'teapot', 2500).status_code}, out of stock")
    print("jobs:    ", [job.input.order_id for job in hf.sync.list_jobs(task="charge")])

    print("output:  ", asyncio.run(work(UUID(taken["job_id"]))))
    job = hf.sync.get_job(UUID(taken["job_id"]))
    found = shop.get(f"/orders/{taken['order_id']}").json()
    print(f"order:    {found['item']} is {found['state']}, job {job.status} in attempt {job.attempt}")
    print(f"admin:    {look(shop, taken['job_id'])}")
    connections.close_all()
    hf.sync.close()


def order(shop: Any, item: str, cents: int) -> Any:
    """Send an order, as a browser would."""
    return shop.post("/orders", {"item": item, "cents": cents}, content_type="application/json")


async def work(job: UUID) -> str:
    """Run what was started, until *job* is done; in a shop `manage.py holdfast_worker` does."""
    from holdfast.integrations.django import holdfast, tidy_connections

    async with holdfast() as hf, hf.worker(middleware=[tidy_connections]):
        return str(await (await hf.get_chain(job)).result(timeout=20))


def look(shop: Any, job_id: str) -> str:
    """Find the job in the admin."""
    from django.contrib.auth.models import User

    shop.force_login(User.objects.create_superuser("ada"))
    page = shop.get(f"/admin/holdfast/job/{job_id}/change/").content.decode()
    return f"the page of the job has its receipt: {'receipt for order 1' in page}"


if __name__ == "__main__":
    os.environ["DJANGO_SETTINGS_MODULE"] = "examples.orders_django.settings"
    with tempfile.TemporaryDirectory() as directory:
        os.environ["SHOP_DATABASE"] = sys.argv[1] if len(sys.argv) > 1 else str(Path(directory) / "shop.sqlite3")
        main()
