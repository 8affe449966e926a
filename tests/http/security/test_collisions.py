"""Two operators at once, and a request that is sent again: nothing is done twice, and nothing by mistake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from holdfast.http import asgi
from tests.http.security.asking import browser
from tests.store.engine import admit
from tests.support.factories import greet, make_job
from tests.support.ways import Way

START = {"task": "greet", "arguments": {"name": "Ada"}}


@pytest.fixture
async def two(hf: Holdfast) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """Two operators, each at a server of their own."""
    tokens = [(await hf.tokens.create(name, role="operator")).token for name in ("ada", "bob")]
    async with browser(asgi(hf)) as ada, browser(asgi(hf)) as bob:
        for client, token in zip((ada, bob), tokens, strict=True):
            client.headers["Authorization"] = f"Bearer {token}"
        yield ada, bob


Two = tuple[httpx.AsyncClient, httpx.AsyncClient]


async def audited(hf: Holdfast) -> list[tuple[str, str]]:
    """Give who has done what."""
    return sorted((each.who, each.action) for each in await hf.audit(limit=500))


async def test_of_two_who_click_retry_one_does_and_the_other_is_shown_what_it_is_now(hf: Holdfast, two: Two) -> None:
    job = await make_job(Way(hf, is_async=True), "failed")
    seen = [(await each.get(f"/api/jobs/{job}")).json()["state_tag"] for each in two]
    answers = await asyncio.gather(
        *(each.post(f"/api/jobs/{job}/retry", json={"if_state": tag}) for each, tag in zip(two, seen, strict=True))
    )
    done, refused = sorted(answers, key=lambda each: each.status_code)

    assert (done.status_code, refused.status_code) == (200, 412)
    assert done.json()["job"]["status"] == "pending"
    assert (refused.json()["code"], refused.json()["facts"]["job"]["status"]) == ("state_conflict", "pending")
    assert refused.json()["facts"]["job"]["state_tag"] == done.json()["job"]["state_tag"]
    assert [action for _, action in await audited(hf)] == ["retry"]


async def test_of_two_who_skip_a_job_in_its_lane_one_does_and_the_next_job_stays(hf: Holdfast, two: Two) -> None:
    head, behind = [await hf.start(greet(name=each), lane="one") for each in ("Ada", "Bob")]
    await admit(Way(hf, is_async=True))
    await hf.pause(head)
    body = {"if_head": str(head.id)}
    answers = await asyncio.gather(*(each.post("/api/lane/skip?key=one", json=body) for each in two))

    assert sorted(each.status_code for each in answers) == [200, 412]
    assert [str((await hf.get_job(each)).status) for each in (head, behind)] == ["paused", "pending"]
    assert [action for _, action in await audited(hf) if action == "lane.skip"] == ["lane.skip"]


async def test_a_post_whose_answer_was_lost_is_sent_again_and_there_is_one_job(hf: Holdfast, two: Two) -> None:
    ada, _ = two
    key = {"Idempotency-Key": "once"}
    lost = asyncio.create_task(ada.post("/api/jobs", json=START, headers=key))
    first, *again = [await lost] + [await ada.post("/api/jobs", json=START, headers=key) for _ in range(2)]

    assert [each.status_code for each in (first, *again)] == [201, 200, 200]
    assert {each.json()["chain"]["id"] for each in (first, *again)} == {first.json()["chain"]["id"]}
    assert len(await hf.list_jobs()) == 1


async def test_the_same_post_sent_by_many_at_once_starts_one_job(hf: Holdfast, two: Two) -> None:
    key = {"Idempotency-Key": "once"}
    answers = await asyncio.gather(*(two[0].post("/api/jobs", json=START, headers=key) for _ in range(8)))

    assert sorted(each.status_code for each in answers) == [200] * 7 + [201]
    assert len(await hf.list_jobs()) == 1


@pytest.mark.parametrize(
    "other", [{**START, "arguments": {"name": "Bob"}}, {"task": "add", "arguments": {"a": 1, "b": 2}}]
)
async def test_a_key_that_was_used_for_another_call_is_refused(hf: Holdfast, two: Two, other: dict[str, Any]) -> None:
    key = {"Idempotency-Key": "once"}
    await two[0].post("/api/jobs", json=START, headers=key)
    answer = await two[0].post("/api/jobs", json=other, headers=key)

    assert (answer.status_code, answer.json()["code"]) == (409, "idempotency_conflict")
    assert len(await hf.list_jobs()) == 1


async def test_the_same_key_of_somebody_else_starts_another_job(hf: Holdfast, two: Two) -> None:
    key = {"Idempotency-Key": "once"}
    answers = [await each.post("/api/jobs", json=START, headers=key) for each in two]

    assert [each.status_code for each in answers] == [201, 201]
    assert len({each.json()["chain"]["id"] for each in answers}) == 2


async def test_many_starts_that_are_sent_again_are_the_same(hf: Holdfast, two: Two) -> None:
    body = {"jobs": [START, {**START, "arguments": {"name": "Bob"}}]}
    answers = [await two[0].post("/api/jobs/many", json=body, headers={"Idempotency-Key": "all"}) for _ in range(2)]

    assert [each.status_code for each in answers] == [201, 200]
    assert len(await hf.list_jobs()) == 2
