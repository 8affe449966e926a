"""`POST /api/jobs`: starts over HTTP, alone and many at once, and what is sent again under an `Idempotency-Key`."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from holdfast import Holdfast
from tests.http.api import api
from tests.support.factories import greet

ADA = {"task": "greet", "arguments": {"name": "Ada"}}
BOB = {"task": "greet", "arguments": {"name": "Bob"}}


def key(text: str) -> dict[str, str]:
    return {"Idempotency-Key": text}


async def test_a_start_makes_a_chain_and_shows_its_job(hf: Holdfast) -> None:
    async with api(hf, role="operator", name="ada") as client:
        answer = await client.post("/api/jobs", json={**ADA, "why": "asked for"})

    started = answer.json()
    assert (answer.status_code, started["deduplicated"], started["job"]["input"]) == (201, False, {"name": "Ada"})
    assert answer.headers["location"] == f"/api/jobs/{started['chain']['id']}"
    (entry,) = await hf.audit(action="start")
    assert (entry.who, entry.why, entry.subject) == ("ada", "asked for", started["chain"]["id"])


async def test_a_start_takes_options(hf: Holdfast) -> None:
    first = await hf.start(greet(name="Ada"))
    options = {
        "queue": "mail",
        "lane": "user-7",
        "priority": 5,
        "run_at": "2100-01-01T00:00:00Z",
        "unique": {"key": "order-7", "scope": "any", "within": 60},
        "tags": ["big customer"],
        "blockers": [str(first.id)],
        "attempts": 3,
    }

    async with api(hf, role="operator") as client:
        job = (await client.post("/api/jobs", json={**ADA, "options": options})).json()["job"]

    shown = {name: job[name] for name in ("queue", "lane", "priority", "tags", "attempts", "state")}
    assert shown == {
        "queue": "mail",
        "lane": "user-7",
        "priority": 5,
        "tags": ["big customer"],
        "attempts": 3,
        "state": "blocked",
    }


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"task": "greet", "arguments": {"name": "Ada", "nam": 1}}, "arguments.nam"),
        ({"task": "greet", "arguments": {"name": 7}}, "arguments.name"),
        ({**ADA, "options": {"id": "0198c0de-0000-7000-8000-000000000001"}}, "options.id"),
        ({**ADA, "options": {"priority": 101}}, "options.priority"),
        ({**ADA, "options": {"priority": "high"}}, "options.priority"),
        ({**ADA, "options": {"delay": -1}}, "options.delay"),
        ({**ADA, "options": {"queue": "holdfast.internal"}}, "options.queue"),
        ({"arguments": {}}, "task"),
    ],
)
async def test_what_is_wrong_with_a_start_is_named_by_its_path(hf: Holdfast, body: Any, path: str) -> None:
    async with api(hf, role="operator") as client:
        answer = await client.post("/api/jobs", json=body)

    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (400, path)
    assert not await hf.list_jobs()


async def test_a_task_that_nobody_knows_is_refused_with_the_nearest(hf: Holdfast) -> None:
    async with api(hf, role="operator") as client:
        answer = await client.post("/api/jobs", json={"task": "gret"})

    assert (answer.status_code, answer.json()["code"], answer.json()["facts"]["known"]) == (
        400,
        "unknown_task",
        ["greet"],
    )


async def test_who_meets_a_unique_key_is_given_its_chain(hf: Holdfast) -> None:
    body = {**ADA, "options": {"unique": "ada"}}

    async with api(hf, role="operator") as client:
        first = await client.post("/api/jobs", json=body)
        second = await client.post("/api/jobs", json=body)

    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["chain"]["id"] == second.json()["chain"]["id"]
    assert second.json()["deduplicated"]


@pytest.mark.parametrize(
    ("role", "address", "status"),
    [
        ("operator", "https://hooks.example.com/a", 201),
        ("operator", "https://other.example.com/a", 403),
        ("operator", "https://hooks.example.com@other.example.com/a", 403),
        ("admin", "https://other.example.com/a", 201),
        ("operator", None, 201),
        ("operator", "no address", 400),
    ],
)
async def test_operators_name_webhooks_on_allowed_hosts_alone(
    hf: Holdfast, role: str, address: str | None, status: int
) -> None:
    async with api(hf, role=role, webhook_hosts=["hooks.example.com"]) as client:
        answer = await client.post("/api/jobs", json={**ADA, "options": {"webhook": address}})

    assert answer.status_code == status


async def test_a_time_long_past_means_now(hf: Holdfast) -> None:
    async with api(hf, role="operator") as client:
        answer = await client.post("/api/jobs", json={**ADA, "options": {"run_at": "0001-01-01T00:00:00+23:00"}})

    assert answer.json()["job"]["state"] == "pending"


# ---- sent again


async def test_a_request_that_is_sent_again_starts_nothing(hf: Holdfast) -> None:
    async with api(hf, role="operator") as client:
        answers = await asyncio.gather(*(client.post("/api/jobs", json=ADA, headers=key("7")) for _ in range(3)))

    assert sorted(each.status_code for each in answers) == [200, 200, 201]
    assert len({each.json()["chain"]["id"] for each in answers}) == 1
    assert len(await hf.list_jobs()) == len(await hf.audit(action="start")) == 1


async def test_the_id_is_made_of_the_key(hf: Holdfast) -> None:
    async with api(hf, role="operator") as client:
        answer = await client.post("/api/jobs", json=ADA, headers=key("7"))

    assert UUID(answer.json()["chain"]["id"]).version == 5


async def test_another_request_with_the_same_key_is_refused(hf: Holdfast) -> None:
    async with api(hf, role="operator") as client:
        await client.post("/api/jobs", json=ADA, headers=key("7"))
        other = await client.post("/api/jobs", json=BOB, headers=key("7"))

    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    assert len(await hf.list_jobs()) == 1


async def test_the_key_of_somebody_else_is_another(hf: Holdfast) -> None:
    async with api(hf, role="operator", name="ada") as client:
        first = await client.post("/api/jobs", json=ADA, headers=key("7"))
    async with api(hf, role="operator", name="bob") as client:
        second = await client.post("/api/jobs", json=ADA, headers=key("7"))

    assert first.json()["chain"]["id"] != second.json()["chain"]["id"]


async def test_the_same_request_is_known_by_what_it_started_also_if_that_was_edited(hf: Holdfast) -> None:
    body = {**ADA, "options": {"paused": True}}

    async with api(hf, role="operator") as client:
        first = (await client.post("/api/jobs", json=body, headers=key("7"))).json()
        edit = {"arguments": {"name": "Eve"}}
        await client.post(f"/api/jobs/{first['chain']['id']}/resume", json=edit)
        again = await client.post("/api/jobs", json=body, headers=key("7"))

    assert (again.status_code, again.json()["chain"]["id"]) == (200, first["chain"]["id"])


async def test_once_its_job_is_deleted_a_key_starts_another(hf: Holdfast) -> None:
    async with api(hf, role="operator") as client:
        first = await client.post("/api/jobs", json=ADA, headers=key("7"))
        await client.delete(f"/api/chains/{first.json()['chain']['id']}")
        again = await client.post("/api/jobs", json=ADA, headers=key("7"))

    assert again.status_code == 201


@pytest.mark.parametrize(("text", "status"), [("x" * 200, 201), ("x" * 201, 400), ("", 400)])
async def test_a_key_has_1_to_200_characters(hf: Holdfast, text: str, status: int) -> None:
    async with api(hf, role="operator") as client:
        answer = await client.post("/api/jobs", json=ADA, headers=key(text))

    assert answer.status_code == status


# ---- many


async def test_many_are_started_in_their_order(hf: Holdfast) -> None:
    async with api(hf, role="operator") as client:
        answer = await client.post("/api/jobs/many", json={"jobs": [ADA, BOB]})

    assert answer.status_code == 201
    assert [each["job"]["input"]["name"] for each in answer.json()["items"]] == ["Ada", "Bob"]
    assert len(await hf.audit(action="start")) == 1


async def test_of_many_all_or_none_are_started_and_the_wrong_one_is_named(hf: Holdfast) -> None:
    wrong = {"task": "greet", "arguments": {"name": 7}}

    async with api(hf, role="operator") as client:
        answer = await client.post("/api/jobs/many", json={"jobs": [ADA, wrong]})

    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (400, "jobs.1.arguments.name")
    assert not await hf.list_jobs()


@pytest.mark.parametrize(("count", "status"), [(500, 201), (501, 400)])
async def test_500_are_started_at_once_and_no_more(hf: Holdfast, count: int, status: int) -> None:
    async with api(hf, role="operator") as client:
        answer = await client.post("/api/jobs/many", json={"jobs": [ADA] * count})

    assert answer.status_code == status


@pytest.mark.parametrize("other", [[ADA], [ADA, ADA], [ADA, BOB, BOB], [BOB, ADA]])
async def test_a_list_that_is_sent_again_is_started_once_and_another_is_refused(hf: Holdfast, other: Any) -> None:
    async with api(hf, role="operator") as client:
        first = await client.post("/api/jobs/many", json={"jobs": [ADA, BOB]}, headers=key("7"))
        again = await client.post("/api/jobs/many", json={"jobs": [ADA, BOB]}, headers=key("7"))
        wrong = await client.post("/api/jobs/many", json={"jobs": other}, headers=key("7"))

    assert (first.status_code, again.status_code, wrong.status_code) == (201, 200, 409)
    assert len(await hf.list_jobs()) == 2


async def test_a_start_again_makes_a_chain_like_it(hf: Holdfast) -> None:
    chain = await hf.start(greet(name="Ada"))

    async with api(hf, role="operator") as client:
        answer = (await client.post(f"/api/jobs/{chain.id}/start-again", json={"why": "once more"})).json()

    assert (answer["answer"], answer["job"]["input"]) == ("started", {"name": "Ada"})
    assert answer["chain"]["id"] != str(chain.id)


async def test_a_key_that_would_be_passed_over_is_refused(hf: Holdfast) -> None:
    chain = await hf.start(greet(name="Ada"))
    async with api(hf, role="operator") as client:
        again = await client.post(f"/api/jobs/{chain.id}/start-again", headers={"Idempotency-Key": "k"})
        read = await client.get(f"/api/jobs/{chain.id}", headers={"Idempotency-Key": "k"})

    assert (again.status_code, again.json()["code"]) == (400, "invalid_input")
    assert "takes no Idempotency-Key" in again.json()["detail"]
    assert read.status_code == 200
    assert len(await hf.list_jobs()) == 1
