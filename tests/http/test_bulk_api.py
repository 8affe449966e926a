"""`POST /api/bulk`: one verb for many jobs, by their ids or by a filter; counted first, if that is asked for."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from holdfast import Holdfast
from tests.http.api import api
from tests.support.factories import add, greet


async def names(hf: Holdfast, count: int) -> list[str]:
    return [str(each.id) for each in await hf.start_many([greet(name=str(number)) for number in range(count)])]


def codes(answer: Any) -> list[str]:
    return [each["code"] for each in answer.json()["items"]]


# ---- by ids


async def test_jobs_are_acted_on_fifty_at_a_time_with_an_answer_for_each(hf: Holdfast) -> None:
    ids = await names(hf, 120)

    async with api(hf, role="operator", name="ada") as client:
        answer = await client.post("/api/bulk", json={"verb": "cancel", "ids": ids, "why": "wrong list"})

    assert codes(answer) == ["done"] * 120
    entries = await hf.audit(action="cancel")
    assert [(each.who, each.why) for each in entries] == [("ada", "wrong list")] * 3
    assert {job.status for job in await hf.list_jobs(limit=200)} == {"cancelled"}


async def test_one_that_does_not_allow_it_stops_no_other(hf: Holdfast) -> None:
    paused, ready = await hf.start_many([greet(name="Ada").options(paused=True), greet(name="Bob")])
    missing = str(uuid4())

    async with api(hf, role="operator") as client:
        answer = await client.post("/api/bulk", json={"verb": "pause", "ids": [str(paused.id), missing, str(ready.id)]})

    assert codes(answer) == ["status_conflict", "job_not_found", "done"]
    assert "paused" in answer.json()["items"][0]["detail"]
    assert (await hf.get_job(ready.id)).status == "paused"


async def test_a_cancel_that_changes_nothing_says_so(hf: Holdfast) -> None:
    (one,) = await names(hf, 1)

    async with api(hf, role="operator") as client:
        body = {"verb": "cancel", "ids": [one]}
        answers = [codes(await client.post("/api/bulk", json=body)) for _ in range(2)]

    assert answers == [["done"], ["already_terminal"]]


async def test_chains_are_deleted_by_admins_alone(hf: Holdfast) -> None:
    first = await hf.start(greet(name="Ada"))
    second = await hf.start(greet(name="Bob").options(blockers=[first]))
    third = await hf.start(greet(name="Eve"))
    missing = str(uuid4())
    body = {"verb": "delete", "ids": [str(first.id), missing, str(third.id)]}

    async with api(hf, role="operator") as client:
        refused = await client.post("/api/bulk", json=body)
    async with api(hf, role="admin") as client:
        done = await client.post("/api/bulk", json=body)

    assert refused.status_code == 403
    assert codes(done) == ["still_referenced", "job_not_found", "done"]
    assert [job.id for job in await hf.list_jobs()] == [second.id, first.id]


async def test_ids_are_counted_by_their_states(hf: Holdfast) -> None:
    ids = await names(hf, 3)
    await hf.pause(ids[0])

    async with api(hf, role="operator") as client:
        body = {"verb": "cancel", "ids": [*ids, str(uuid4())], "dry_run": True}
        counted = (await client.post("/api/bulk", json=body)).json()

    assert (counted["count"], counted["by_state"]) == (3, {"pending": 2, "paused": 1})


@pytest.mark.parametrize(("count", "status"), [(500, 200), (501, 400)])
async def test_500_ids_are_taken_and_no_more(hf: Holdfast, count: int, status: int) -> None:
    ids = [str(uuid4()) for _ in range(count)]

    async with api(hf, role="operator") as client:
        answer = await client.post("/api/bulk", json={"verb": "cancel", "ids": ids, "dry_run": True})

    assert answer.status_code == status


# ---- by a filter


@pytest.mark.parametrize("narrowed", ["task:greet", {"task": ["greet"]}])
async def test_what_fits_is_counted_and_then_done_by_a_job(hf: Holdfast, narrowed: Any) -> None:
    ids = await names(hf, 3)
    await hf.start(add(a=1, b=2))

    async with api(hf, role="operator") as client:
        body = {"verb": "cancel", "filter": narrowed}
        counted = (await client.post("/api/bulk", json={**body, "dry_run": True})).json()
        await hf.queue("default").pause()
        later = await hf.start(greet(name="later"))
        started = await client.post("/api/bulk", json={**body, "upto": counted["upto"]})
    async with hf.worker(name="w", poll=0.05):
        result = await (await hf.get_chain(started.json()["id"])).result(20)

    assert (counted["count"], counted["is_exact"], counted["by_state"]) == (3, True, {"pending": 3})
    assert counted["sample"] == ids
    assert (started.status_code, result.done) == (202, 3)
    assert (await hf.get_job(later.id)).status != "cancelled"


async def test_a_count_ends_at_a_bound_and_says_so(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.client.bulk.MOST_COUNTED", 2)
    monkeypatch.setattr("holdfast.store.jobs.bulk_pages.PAGE", 2)
    await names(hf, 5)

    async with api(hf, role="operator") as client:
        answer = await client.post("/api/bulk", json={"verb": "cancel", "filter": "task:greet", "dry_run": True})

    assert (answer.json()["count"], answer.json()["is_exact"]) == (2, False)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"verb": "cancel"}, "invalid_input"),
        ({"verb": "cancel", "filter": "task:greet", "ids": []}, "invalid_input"),
        ({"verb": "cancel", "filter": {}}, "filter_required"),
        ({"verb": "cancel", "filter": ""}, "filter_required"),
        ({"verb": "cancel", "filter": "tusk:greet"}, "invalid_filter"),
        ({"verb": "cancel", "filter": {"tusk": ["greet"]}}, "invalid_input"),
        ({"verb": "explode", "ids": []}, "invalid_input"),
        ({"verb": "cancel", "ids": [], "after": 5}, "invalid_input"),
        ({"verb": "cancel", "ids": [], "cascade": True}, "invalid_input"),
        ({"verb": "cancel", "filter": "task:greet", "cascade": True}, "invalid_input"),
        ({"verb": "reschedule", "ids": ["nonsense"]}, "invalid_id"),
        ({"verb": "reschedule", "ids": [str(uuid4())]}, "invalid_input"),
        ({"verb": "cancel", "ids": [], "upto": 5}, "invalid_input"),
    ],
)
async def test_what_cannot_be_meant_is_refused(hf: Holdfast, body: Any, code: str) -> None:
    async with api(hf, role="operator") as client:
        answer = await client.post("/api/bulk", json=body)

    assert (answer.status_code, answer.json()["code"]) == (400, code)


async def test_jobs_are_rescheduled_together(hf: Holdfast) -> None:
    ids = await names(hf, 2)

    async with api(hf, role="operator") as client:
        answer = await client.post("/api/bulk", json={"verb": "reschedule", "ids": ids, "after": 3600})

    assert codes(answer) == ["done", "done"]
    assert {job.state for job in await hf.list_jobs()} == {"scheduled"}
