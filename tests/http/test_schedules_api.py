"""`/api/schedules`: to put, read, pause, resume, run and delete them."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.wire.schedule_json import ScheduleObject, schedule_object
from tests.http.api import api
from tests.support.factories import greet

NIGHTLY = {"task": "greet", "arguments": {"name": "Ada"}, "rule": {"cron": "0 3 * * *", "timezone": "Europe/Rome"}}
PATH = "/api/schedule?name=nightly/a%26b"
NAME = "nightly/a&b"


def verb(word: str) -> str:
    return PATH.replace("schedule", f"schedule/{word}", 1)


async def test_a_schedule_is_put_and_read_back(hf: Holdfast) -> None:
    body = {**NIGHTLY, "options": {"queue": "nights", "tags": ["n"]}, "missed": "skip", "jitter": 60, "why": "new"}
    async with api(hf, role="admin") as client:
        made = await client.put(PATH, json=body)
        read = await client.get(PATH)
        listed = (await client.get("/api/schedules")).json()["items"]

    assert made.status_code == 200, made.text
    found = read.json()
    assert found == made.json() == listed[0]
    assert (found["name"], found["arguments"], found["missed"], found["jitter"]) == (NAME, {"name": "Ada"}, "skip", 60)
    assert found["options"] == {"queue": "nights", "tags": ["n"]}
    assert (found["words"], len(found["next_times"])) == ("At 03:00 every day (Europe/Rome)", 5)
    assert found["changed_by"] == "ada"


async def test_a_schedule_is_paused_resumed_run_and_deleted(hf: Holdfast) -> None:
    await hf.schedules.put(NAME, greet(name="Ada"), every=3600)
    async with api(hf, role="admin") as client:
        paused = (await client.post(verb("pause"), json={"why": "holidays"})).json()
        ran = await client.post(verb("run"), json={})
        resumed = [(await client.post(verb("resume"))).json()["was_paused"] for _ in range(2)]
        ticks = (await client.get(verb("ticks"))).json()
        deleted = await client.delete(f"{PATH}&why=done")
        gone = await client.get(PATH)

    assert (paused["paused_by"], paused["reason"]) == ("ada", "holidays")
    assert ran.status_code == 201
    assert (await hf.get_chain(ran.json()["chain"])).status == "pending"
    assert resumed == [True, False]
    assert ticks == {"items": [], "next_cursor": None}
    assert (deleted.status_code, gone.status_code) == (204, 404)


async def test_a_run_that_meets_its_unique_key_says_so(hf: Holdfast) -> None:
    await hf.schedules.put(NAME, greet(name="Ada").options(unique="one"), every=3600)
    async with api(hf, role="operator") as client:
        first, again = [await client.post(verb("run")) for _ in range(2)]

    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == {"chain": first.json()["chain"], "deduplicated": True}


async def test_arguments_are_shown_as_those_of_a_job(hf: Holdfast) -> None:
    @hf.task(name="pay", redact=["card"])
    async def pay(card: str, token: str, order: int) -> None: ...

    await hf.schedules.put(NAME, pay(card="4242", token="t", order=7), every=3600)
    async with api(hf) as client, api(hf, payloads=False, name="Bob") as blind:
        seen = (await client.get(PATH)).json()["arguments"]
        hidden = (await blind.get(PATH)).json()["arguments"]

    assert seen == {"card": "•••", "token": "•••", "order": 7}
    assert hidden is None


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"rule": {"cron": "61 3 * * *"}}, "invalid_rule"),
        ({"rule": {}}, "invalid_rule"),
        ({"arguments": {"nmae": "Ada"}}, "invalid_input"),
        ({"missed": "two"}, "invalid_input"),
        ({"options": {"run_at": "2030-01-01T00:00:00Z"}}, "invalid_input"),
        ({"jitter": -1}, "invalid_input"),
    ],
)
async def test_a_wrong_schedule_is_refused(hf: Holdfast, change: dict[str, Any], code: str) -> None:
    async with api(hf, role="admin") as client:
        answer = await client.put(PATH, json={**NIGHTLY, **change})

    assert (answer.status_code, answer.json()["code"]) == (400, code), answer.text


async def test_a_rule_is_told_in_words(hf: Holdfast) -> None:
    async with api(hf) as client:
        cron = (
            await client.get("/api/schedule/preview", params={"rule": "0 8 * * 1-5", "timezone": "Asia/Tokyo"})
        ).json()
        every = (await client.get("/api/schedule/preview", params={"every": 300})).json()
        wrong = await client.get("/api/schedule/preview", params={"rule": "0 8"})

    assert (every["words"], len(every["next_times"])) == ("Every 5 minutes", 5)
    assert "08:00" in cron["words"]
    assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_rule")


async def test_an_operator_may_run_a_schedule_and_not_change_it(hf: Holdfast) -> None:
    async with api(hf, role="operator") as client:
        assert (await client.put(PATH, json=NIGHTLY)).status_code == 403
        assert (await client.delete(PATH)).status_code == 403
        assert (await client.post(verb("run"))).status_code == 404


async def test_a_schedule_without_a_reader_is_written_whole(hf: Holdfast) -> None:
    made = await hf.schedules.put(NAME, greet(name="Ada"), every=60)

    assert schedule_object(made)["arguments"] == {"name": "Ada"}
    assert tuple(schedule_object(made)) == tuple(ScheduleObject.model_fields)


async def test_who_is_no_admin_sees_the_host_of_a_webhook_alone(hf: Holdfast) -> None:
    await hf.schedules.put(NAME, greet(name="Ada").options(webhook="https://hooks.example.com/secret"), every=60)
    async with api(hf, role="operator") as client, api(hf, role="admin", name="root") as admin:
        seen = [(await each.get(PATH)).json()["options"]["webhook"] for each in (client, admin)]

    assert seen == ["https://hooks.example.com", "https://hooks.example.com/secret"]
