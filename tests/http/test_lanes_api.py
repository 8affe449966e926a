"""`/api/queues` and `/api/lanes`: how they stand, who has paused them and why, and the verbs for them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from tests.http.api import api
from tests.store.engine import admit
from tests.support.factories import greet
from tests.support.ways import Way


async def in_lane(hf: Holdfast, lane: str = "user/7") -> tuple[str, str]:
    """Have two jobs stand in a lane, of which the first is paused; give their ids."""
    first = await hf.start(greet(name="Ada").options(lane=lane))
    second = await hf.start(greet(name="Bob").options(lane=lane))
    await admit(Way(hf, is_async=True))
    await hf.pause(first, why="wait for me")
    return str(first.id), str(second.id)


async def items(client: httpx.AsyncClient, path: str, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.get(path, params=query)).json()["items"]
    return found


async def test_a_queue_says_who_has_paused_it_until_when_and_why(hf: Holdfast) -> None:
    until = datetime.now(UTC) + timedelta(hours=1)
    async with api(hf, role="operator") as client:
        body = {"why": "too many", "until": until.isoformat()}
        assert (await client.post("/api/queue/pause?name=sums", json=body)).status_code == 204
        queue = (await client.get("/api/queue?name=sums")).json()["queue"]

    assert queue["is_paused"]
    assert (queue["paused_by"], queue["reason"]) == ("ada", "too many")
    assert queue["paused_until"] == until.isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def test_resuming_a_queue_says_whether_it_was_paused(hf: Holdfast) -> None:
    async with api(hf, role="operator") as client:
        await client.post("/api/queue/pause?name=sums")
        first = (await client.post("/api/queue/resume?name=sums")).json()
        again = (await client.post("/api/queue/resume?name=sums")).json()

    assert (first, again) == ({"was_paused": True}, {"was_paused": False})


async def test_a_queue_that_nobody_knows_is_null(hf: Holdfast) -> None:
    async with api(hf) as client:
        assert (await client.get("/api/queue?name=nobody")).json() == {"queue": None, "figures": None}


async def test_a_queue_without_workers_says_so(hf: Holdfast) -> None:
    await hf.start(greet(name="Ada"))
    async with api(hf) as client:
        found = (await client.get("/api/queue/explain?name=default")).json()
        queues = await items(client, "/api/queues")

    assert [each["code"] for each in found["reasons"]] == ["no_worker"]
    assert [each["name"] for each in queues] == ["default", "sums"]


async def test_a_remedy_is_a_request_that_does_it(hf: Holdfast) -> None:
    async with api(hf, role="operator") as client:
        await client.post("/api/queue/pause?name=a%26b/c")
        (paused, *_) = (await client.get("/api/queue/explain?name=a%26b/c")).json()["reasons"]
        request = paused["remedy"]["request"]
        assert (await client.request(request["method"], request["path"], json=request["body"])).json() == {
            "was_paused": True
        }


async def test_a_lane_tells_who_halts_it(hf: Holdfast) -> None:
    first, second = await in_lane(hf)
    async with api(hf) as client:
        (listed,) = await items(client, "/api/lanes", state="halted", prefix="user/")
        lane = (await client.get("/api/lane", params={"key": "user/7"})).json()
        jobs = await items(client, "/api/lane/jobs", key="user/7")

    assert listed["halted_by"] == lane["halted_by"] == first
    assert (lane["depth"], lane["halted_because"], lane["is_moving"]) == (2, "wait for me", False)
    assert [each["id"] for each in jobs] == [first, second]


async def test_why_a_lane_is_halted_is_hidden_from_who_sees_no_payloads(hf: Holdfast) -> None:
    await in_lane(hf)
    async with api(hf, payloads=False) as client:
        lane = (await client.get("/api/lane", params={"key": "user/7"})).json()

    assert lane["halted_because"] is None


async def test_skipping_sets_the_job_aside_that_was_seen_and_no_other(hf: Holdfast) -> None:
    first, second = await in_lane(hf)
    path = "/api/lane/skip?key=user/7"
    async with api(hf, role="operator") as client:
        other = await client.post(path, json={"if_head": second})
        done = await client.post(path, json={"if_head": first, "why": "let the others pass"})
        again = await client.post(path, json={"if_head": first})

    assert (other.status_code, other.json()["code"]) == (412, "head_conflict")
    assert done.json() == {"skipped": first}
    assert again.status_code == 412


async def test_a_lane_is_paused_and_resumed(hf: Holdfast) -> None:
    await in_lane(hf)
    async with api(hf, role="operator") as client:
        assert (await client.post("/api/lane/pause?key=user/7", json={"why": "look"})).status_code == 204
        paused = (await client.get("/api/lane?key=user/7")).json()
        resumed = (await client.post("/api/lane/resume?key=user/7")).json()

    assert (paused["paused_by"], paused["reason"]) == ("ada", "look")
    assert resumed == {"was_paused": True}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/api/lane", "key: "),
        ("/api/lanes?state=stuck", "state: "),
        ("/api/lanes?limit=0", "limit"),
        ("/api/lanes?limit=501", "500"),
        ("/api/lanes?cursor=x", "cursor"),
        ("/api/lane?key=%00", "printable"),
        ("/api/lanes?statte=halted", "did you mean state"),
    ],
)
async def test_a_wrong_question_is_refused(hf: Holdfast, path: str, said: str) -> None:
    async with api(hf) as client:
        answer = await client.get(path)

    assert answer.status_code == 400
    assert said in answer.json()["detail"]


async def test_a_viewer_may_not_pause(hf: Holdfast) -> None:
    async with api(hf) as client:
        assert (await client.post("/api/lane/pause?key=a")).status_code == 403
        assert (await client.post("/api/queue/pause?name=a")).status_code == 403
