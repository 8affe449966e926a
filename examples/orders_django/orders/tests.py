"""The shop's own tests, by Django's runner: `python -m examples.orders_django.manage test examples.orders_django`."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from django.contrib.auth.models import Permission, User
from django.test import TestCase, TransactionTestCase

from examples.orders_django.orders.models import Order
from holdfast.integrations.django import holdfast, tidy_connections
from holdfast.integrations.django.models import Job


def tearDownModule() -> None:
    """Let go of the test database, which the runner drops."""
    holdfast().sync.close()


class InOneTransaction(TestCase):
    """Each test is rolled back: what it starts is seen by `connection="default"`, and by no worker."""

    def test_an_order_starts_its_job(self) -> None:
        taken = order(self.client, "kettle").json()

        job = holdfast().sync.get_job(taken["job_id"], connection="default")

        self.assertEqual((job.task, job.input.order_id), ("charge", taken["order_id"]))

    def test_what_is_out_of_stock_leaves_neither_order_nor_job(self) -> None:
        refused = order(self.client, "teapot")

        self.assertEqual(refused.status_code, 409)
        self.assertEqual((Order.objects.count(), Job.objects.count()), (0, 0))

    def test_the_admin_lists_jobs_to_whoever_may_view_them(self) -> None:
        taken = order(self.client, "kettle").json()
        clerk = User.objects.create_user("clerk", is_staff=True)
        clerk.user_permissions.add(Permission.objects.get(codename="view_job"))
        self.client.force_login(clerk)

        page = self.client.get("/admin/holdfast/job/?status__exact=pending")

        self.assertContains(page, taken["job_id"])
        self.assertNotContains(page, "Delete")


class WithAWorker(TransactionTestCase):
    """A worker sees what is committed, so nothing is rolled back here; jobs are deleted by hand."""

    def tearDown(self) -> None:
        hf = holdfast().sync
        hf.delete_many([chain.id for chain in hf.list_chains()])

    def test_an_order_is_paid_with_the_commit_that_completes_its_job(self) -> None:
        taken = order(self.client, "kettle").json()

        asyncio.run(work(UUID(taken["job_id"])))

        shown = self.client.get(f"/orders/{taken['order_id']}").json()
        self.assertEqual(shown, {"item": "kettle", "state": "paid"})

    def test_an_operator_cancels_a_job_over_http_and_the_audit_says_who(self) -> None:
        taken = order(self.client, "kettle").json()
        clerk = User.objects.create_user("clerk")
        clerk.user_permissions.add(Permission.objects.get(codename="operate"))
        self.client.force_login(clerk)

        listed = self.client.get("/jobs/api/jobs").json()["items"]
        cancel = f"/jobs/api/jobs/{taken['job_id']}/cancel"
        headers = {"Origin": "http://testserver"}  # as a browser says it
        answer = self.client.post(cancel, {"why": "no stock"}, content_type="application/json", headers=headers)

        self.assertEqual([job["id"] for job in listed], [taken["job_id"]])
        self.assertEqual(answer.status_code, 200)
        [entry] = holdfast().sync.audit()
        self.assertEqual((entry.who, entry.action, entry.why), ("clerk", "cancel", "no stock"))


def order(client: Any, item: str) -> Any:
    """Send an order, as a browser would."""
    return client.post("/orders", {"item": item, "cents": 3900}, content_type="application/json")


async def work(job_id: UUID) -> None:
    """Run a worker until a job is done."""
    async with holdfast() as hf, hf.worker(middleware=[tidy_connections]):
        await hf.wait([job_id], timeout=20)
