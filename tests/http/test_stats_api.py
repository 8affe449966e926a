"""`/api`, `/api/overview`, `/api/stats`, `/api/workers`, `/api/inbox`, `/api/suggest`: how everything stands."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Context, Fail, Holdfast, Question
from holdfast.figures import Counts
from holdfast.wire.figures_json import CountsObject
from tests.http.api import api
from tests.store.engine import admit
from tests.support.conditions import until
from tests.support.factories import add, greet
from tests.support.ways import Way


@dataclass
class Refund:
    order: int


def failing(hf: Holdfast) -> Any:
    """Make a task whose jobs fail, with what only their errors should tell."""

    @hf.task(name="charge")
    async def charge(context: Context, card: str) -> None:
        raise Fail(f"card {card} was refused, password=hunter2")

    return charge


async def test_who_asks_is_told_what_this_is_and_what_they_may_do(hf: Holdfast) -> None:
    async with api(hf, role="operator", payloads=False, name="Bob") as client:
        found = (await client.get("/api")).json()

    assert found["who"] == {"name": "Bob", "role": "operator", "payloads": False, "tenant": None, "chain": None}
    assert found["database"] == ("postgres" if hf.settings.is_postgres else "sqlite")
    assert found["features"] == {"streams": True, "tenants": False}
    assert found["limits"]["body_bytes"] == 1_000_000


async def test_a_guest_is_told_which_chain_they_may_see(hf: Holdfast) -> None:
    chain = await hf.start(greet(name="Ada"))
    token = (await hf.links.create(chain)).token
    async with api(hf, token=token) as client:
        found = (await client.get("/api")).json()["who"]

    assert (found["role"], found["chain"]) == ("guest", str(chain.id))


async def test_the_overview_says_what_waits_in_which_queue(hf: Holdfast) -> None:
    await hf.start(greet(name="Ada"))
    await hf.start(add(1, 2).options(delay=3600))
    async with api(hf) as client:
        found = (await client.get("/api/overview")).json()

    queues = {each["name"]: (each["ready"]["value"], each["scheduled"]["value"]) for each in found["queues"]}
    assert queues == {"default": (1, 0), "sums": (0, 1)}
    assert found["open_chains"]["value"] == 2


async def test_what_happened_is_told_in_columns(hf: Holdfast) -> None:
    start = datetime.now(UTC).replace(second=0, microsecond=0)
    query = {"from": start.isoformat(), "to": (start + timedelta(minutes=5)).isoformat(), "width": "60"}
    async with api(hf) as client:
        found = (await client.get("/api/stats", params=query)).json()

    assert found["width"] == 60
    assert len(found["at"]) == len(found["series"]["completed"]) == len(found["wait"]["p95"]) == 5
    assert found["total"]["counts"] == dict.fromkeys(Counts._fields, 0)


def test_the_counts_of_the_api_are_those_of_the_engine() -> None:
    assert tuple(CountsObject.model_fields) == Counts._fields


@pytest.mark.parametrize("query", [{"width": "7"}, {"from": "2026-01-01T00:00"}, {"from": "now"}, {"width": "x"}])
async def test_a_wrong_range_is_refused(hf: Holdfast, query: dict[str, str]) -> None:
    async with api(hf) as client:
        assert (await client.get("/api/stats", params=query)).status_code == 400


async def test_the_inbox_has_the_requests_that_fit(hf: Holdfast) -> None:
    charge = failing(hf)
    approve = hf.declare("approve", Refund, bool, asks=Question("Approve?"))
    asked = await hf.start(approve(order=7))
    halting = await hf.start(greet(name="Ada").options(lane="a/b&c"))
    await admit(Way(hf, is_async=True))
    await hf.pause(halting)
    paused = await hf.start(greet(name="Bob").options(paused=True))
    failed = await hf.start(charge(card="4242"))
    async with api(hf, role="operator") as client:
        async with hf.worker():
            await until(lambda: _has_failed(hf, failed), "the job fails")
        found = {each["kind"]: each for each in (await client.get("/api/inbox")).json()["items"]}
        verbs = {kind: [each["verb"] for each in entry["verbs"]] for kind, entry in found.items()}
        for kind in ("failed", "halted", "paused"):
            request = found[kind]["verbs"][0]
            done = await client.request(request["method"], request["path"], json=request["body"])
            assert done.status_code == 200, done.text
        rest = [each["kind"] for each in (await client.get("/api/inbox")).json()["items"]]

    assert verbs == {
        "asked": ["complete", "cancel"],
        "failed": ["retry"],
        "paused": ["resume", "cancel"],
        "halted": ["resume", "skip"],
    }
    assert found["asked"]["job"]["id"] == str(asked.id)
    assert found["halted"]["job"]["id"] == str(halting.id)
    assert found["paused"]["job"]["id"] == str(paused.id)
    assert rest == ["asked"]


async def _has_failed(hf: Holdfast, chain: Any) -> bool:
    return (await hf.get_chain(chain)).status == "failed"


async def test_the_inbox_tells_no_more_of_errors_than_jobs_do(hf: Holdfast) -> None:
    charge = failing(hf)
    failed = await hf.start(charge(card="4242"))
    async with hf.worker():
        await until(lambda: _has_failed(hf, failed), "the job fails")
    async with api(hf) as client, api(hf, payloads=False, name="Bob") as blind:
        (seen,) = (await client.get("/api/inbox?kind=failed")).json()["items"]
        (hidden,) = (await blind.get("/api/inbox?kind=failed")).json()["items"]

    assert "card 4242 was refused" in seen["message"]
    assert "hunter2" not in seen["message"]
    assert hidden["message"] is None


async def test_a_living_worker_is_listed(hf: Holdfast) -> None:
    async with api(hf) as client, hf.worker(name="one", concurrency=3):
        async with asyncio.timeout(10):
            while not (found := (await client.get("/api/workers")).json()["items"]):
                await hf._runtime.sleep(0.01)

    assert [(each["name"], each["is_alive"]) for each in found] == [("one", True)]
    assert set(found[0]["tasks"]) >= {"greet", "add"}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"field": "task", "prefix": "gr"}, ["greet"]),
        ({"field": "queue"}, ["default", "sums"]),
        ({"field": "status", "prefix": "can"}, ["cancelled", "cancelling"]),
        ({"field": "lane", "prefix": "user"}, ["user/7"]),
        ({"field": "tag"}, ["big"]),
        ({"q": "status:failed task:gr", "at": "21"}, ["greet"]),
        ({"q": "status:failed,pau"}, ["paused", "pausing"]),
        ({"q": "st"}, ["status"]),
        ({"q": "input.n"}, ["input.name"]),
        ({"q": "nothing:x"}, []),
    ],
)
async def test_words_are_suggested_for_where_somebody_types(
    hf: Holdfast, query: dict[str, str], words: list[str]
) -> None:
    await hf.start(greet(name="Ada").options(lane="user/7", tags=["big"]))
    await admit(Way(hf, is_async=True))
    async with api(hf) as client:
        found = (await client.get("/api/suggest", params=query)).json()

    assert found["items"] == words


async def test_what_is_wrong_with_a_filter_is_told_with_its_column(hf: Holdfast) -> None:
    async with api(hf) as client:
        found = (await client.get("/api/suggest", params={"q": "task:a statuss:b"})).json()

    assert found["problem"]["column"] == 8
    assert "statuss" in found["problem"]["message"]


@pytest.mark.parametrize("query", [{}, {"field": "task", "q": "task:"}, {"field": "nothing"}])
async def test_a_suggestion_needs_a_field_or_a_filter(hf: Holdfast, query: dict[str, str]) -> None:
    async with api(hf) as client:
        assert (await client.get("/api/suggest", params=query)).status_code == 400
