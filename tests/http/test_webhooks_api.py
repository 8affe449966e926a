"""`/api/webhooks` and `/api/deliveries`: subscriptions, what came of them, and who sees how much of an address."""

from __future__ import annotations

import httpx
import pytest

from holdfast import Holdfast
from holdfast.models import DEFAULT_TRIGGERS
from tests.http.api import api
from tests.store.engine import make_deliveries
from tests.support.factories import change_job, greet
from tests.support.ways import Way

URL = "https://hooks.example.com/T00/secret-path"
MASKED = "https://hooks.example.com"


async def a_delivery(hf: Holdfast) -> tuple[str, str]:
    """Have a delivery made for a subscription; give the ids of both."""
    subscription = await hf.webhooks.subscribe(URL)
    chain = await hf.start(greet(name="Ada"))
    await hf.cancel(chain)
    way = Way(hf, is_async=True)
    await make_deliveries(way)
    (delivery,) = await hf.webhooks.deliveries(job=chain)
    await hf.cancel(delivery.id)
    await change_job(way, delivery.id, output='{"status":410,"body":"gone"}')
    return str(subscription.id), str(delivery.id)


async def test_a_subscription_is_made_read_disabled_enabled_and_removed(hf: Holdfast) -> None:
    async with api(hf, role="admin") as client:
        made = (await client.post("/api/webhooks", json={"url": URL, "name": "billing", "tasks": ["greet"]})).json()
        path = f"/api/webhooks/{made['id']}"
        disabled = (await client.post(f"{path}/disable", json={"why": "moving house"})).json()
        enabled = (await client.post(f"{path}/enable")).json()
        listed = (await client.get("/api/webhooks")).json()["items"]
        removed = await client.delete(path)
        gone = await client.get(path)

    assert (made["url"], made["tasks"], made["events"]) == (URL, ["greet"], list(DEFAULT_TRIGGERS))
    assert (disabled["reason"], enabled["disabled_at"]) == ("moving house", None)
    assert listed == [enabled]
    assert (removed.status_code, gone.status_code, gone.json()["code"]) == (204, 404, "subscription_not_found")


async def test_who_is_no_admin_sees_the_host_of_an_address_alone(hf: Holdfast) -> None:
    subscription, _ = await a_delivery(hf)
    async with api(hf, role="operator") as client, api(hf, role="admin", name="root") as admin:
        seen = [await urls(client, subscription), await urls(admin, subscription)]
        answers = [(await each.get("/api/deliveries")).json()["items"][0]["answer"] for each in (client, admin)]

    assert seen == [[MASKED] * 4, [URL] * 4]
    assert answers == [None, {"status": 410, "body": "gone"}]


async def urls(client: httpx.AsyncClient, subscription: str) -> list[str]:
    """Give the addresses that are seen everywhere."""
    paths = ("/api/webhooks", f"/api/webhooks/{subscription}/deliveries", f"/api/deliveries?webhook={subscription}")
    read = (await client.get(f"/api/webhooks/{subscription}")).json()
    lists = [(await client.get(path)).json()["items"] for path in paths]
    return [read["url"], *(each["url"] for found in lists for each in found)]


async def test_a_delivery_that_has_ended_is_delivered_again(hf: Holdfast) -> None:
    _, delivery = await a_delivery(hf)
    async with api(hf, role="admin") as client:
        again = await client.post(f"/api/deliveries/{delivery}/redeliver", json={"why": "they lost it"})
        twice = await client.post(f"/api/deliveries/{again.json()['id']}/redeliver")
        unknown = await client.post("/api/deliveries/01980f00-6e1c-7000-8000-5a1c2f9e0b77/redeliver")

    assert again.status_code == 201
    assert (again.json()["status"], again.json()["id"] != delivery) == ("pending", True)
    assert (twice.status_code, twice.json()["code"]) == (409, "status_conflict")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "delivery_not_found")


@pytest.mark.parametrize(
    "body",
    [
        {"url": "http://127.0.0.1/"},
        {"url": "nothing"},
        {"url": URL, "events": ["job:exploded"]},
        {"url": URL, "events": []},
        {"url": URL, "secrets": ["whsec_AAAA"]},
        {"url": URL, "event": ["job:failed"]},
        {},
    ],
)
async def test_a_wrong_subscription_is_refused(hf: Holdfast, body: dict[str, object]) -> None:
    async with api(hf, role="admin") as client:
        answer = await client.post("/api/webhooks", json=body)

    assert answer.status_code == 400, answer.text


async def test_only_an_admin_subscribes_and_redelivers(hf: Holdfast) -> None:
    subscription, delivery = await a_delivery(hf)
    async with api(hf, role="operator") as client:
        answers = [
            await client.post("/api/webhooks", json={"url": URL}),
            await client.post(f"/api/webhooks/{subscription}/disable"),
            await client.delete(f"/api/webhooks/{subscription}"),
            await client.post(f"/api/deliveries/{delivery}/redeliver"),
        ]

    assert [each.status_code for each in answers] == [403] * 4


async def test_the_job_that_posts_shows_neither_address_nor_body_nor_answer(hf: Holdfast) -> None:
    _, delivery = await a_delivery(hf)
    async with api(hf, role="operator") as client:
        answers = [
            await client.get(f"/api/jobs/{delivery}"),
            await client.get(f"/api/jobs?id={delivery}&internal=true&view=full"),
        ]

    for answer in answers:
        assert delivery in answer.text
        assert "secret-path" not in answer.text
        assert "gone" not in answer.text
        assert "Ada" not in answer.text
