"""`/api/events` of the whole API, by real uvicorn: who may follow what, and for how long; and the same by pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.http import identity
from holdfast.http.app import Api, asgi
from holdfast.http.limits import Limits
from tests.http.api import api, differences
from tests.http.clients import Client, connected
from tests.http.serving import served
from tests.support.conditions import until
from tests.support.factories import TASKS, greet

on_sqlite = pytest.mark.parametrize("hf", ["sqlite"], indirect=True)
"""Where the database makes no difference."""


async def token_of(hf: Holdfast, role: str = "viewer", **given: Any) -> str:
    return (await hf.tokens.create("ada", role=role, **given)).token


@asynccontextmanager
async def following(app: Api, token: str | None, **asked: Any) -> AsyncIterator[Client]:
    """Follow the events of *app*, served by uvicorn."""
    async with served(app) as server, connected(server.port, token=token, **asked) as client:
        yield client


def serve(hf: Holdfast, **options: Any) -> Api:
    return asgi(hf, hosts=["test"], **options)


# ---- streams


async def test_a_viewer_has_the_jobs_then_what_happens(hf: Holdfast) -> None:
    first = await hf.start(greet(name="Ada"))

    async with following(serve(hf), await token_of(hf)) as client:
        snapshot = await client.next()
        second = await hf.start(greet(name="Bob"))
        event = await client.next()

    assert (client.status, client.headers["x-accel-buffering"]) == (200, "no")
    assert client.retry_ms is not None
    assert [job["id"] for job in snapshot.json["jobs"]] == [str(first.id)]
    assert (event.event, event.json["job"]["id"]) == ("job:enqueued", str(second.id))


async def test_who_may_not_see_payloads_has_none_in_the_stream(hf: Holdfast) -> None:
    await hf.start(greet(name="canary"))

    async with following(serve(hf), await token_of(hf, payloads=False)) as client:
        snapshot = await client.next()
        await hf.start(greet(name="canary"))
        event = await client.next()

    assert "canary" not in snapshot.data + event.data


async def test_a_brief_stream_merges_what_happens_to_one_job(hf: Holdfast) -> None:
    chain = await hf.start(greet(name="Ada"))

    async with following(serve(hf), await token_of(hf), brief="1", merge_ms=50, snapshot="false") as client:
        await until(lambda: bool(client.status), "an answer")
        for _ in range(2):
            await hf.pause(chain)
            await hf.resume(chain)
        event = await client.next()

    assert event.json["job"]["input"] is None
    assert event.json["merged"] >= 1


async def test_a_guest_follows_one_chain_by_its_id_and_no_other(hf: Holdfast) -> None:
    other, mine = await hf.start(greet(name="Ada")), await hf.start(greet(name="Bob"))
    link = (await hf.links.create(mine)).token

    async with served(serve(hf)) as server:
        async with connected(server.port, token=link, chain=str(mine.id)) as client:
            snapshot = await client.next()
            await hf.cancel(other)
            await hf.cancel(mine)
            event = await client.next()
        async with connected(server.port, token=link, chain=str(other.id)) as refused:
            pass
        async with connected(server.port, token=link) as unnamed:
            pass

    assert [job["id"] for job in snapshot.json["jobs"]] == [str(mine.id)]
    assert (event.event, event.json["job"]["id"]) == ("job:cancelled", str(mine.id))
    assert (refused.status, unnamed.status) == (404, 403)


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"merge_ms": 7}, 400),
        ({"name": "job:nothing"}, 400),
        ({"job": "nonsense"}, 400),
        ({"jobs": "a"}, 400),
        ({"snapshot": "perhaps"}, 400),
    ],
)
@on_sqlite
async def test_what_cannot_be_streamed_is_a_problem(hf: Holdfast, asked: dict[str, Any], status: int) -> None:
    async with api(hf) as client:
        answer = await client.get("/api/events", params=asked)

    assert (answer.status_code, answer.json()["status"]) == (status, status)


@on_sqlite
async def test_a_stranger_has_no_stream(hf: Holdfast) -> None:
    async with api(hf, token="") as client:
        answer = await client.get("/api/events")

    assert answer.status_code == 401


@on_sqlite
async def test_a_revoked_token_ends_its_stream(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "KEPT_SECONDS", 0.0)
    made, app = await hf.tokens.create("ada"), serve(hf)
    app.service.live.allowed_seconds = 0.001

    async with following(app, made.token) as client:
        await client.next()
        await hf.start(greet(name="Ada"))
        await client.next()
        await hf.tokens.revoke(made.info.id)
        for _ in range(3):
            await hf.start(greet(name="Bob"))
        rest = await client.rest()

    assert len(rest) < 3


async def test_a_stream_of_a_tenant_has_its_jobs_alone_and_ends_when_it_is_suspended(
    new_holdfast: Callable[..., Holdfast],
) -> None:
    hf = new_holdfast("sqlite", tasks=[TASKS], tenants=True)
    await hf.open()
    for name in ("acme", "other"):
        await hf.tenants.create(name)
    app, token = serve(hf), (await hf.tokens.create("ada", tenant="acme")).token
    app.service.live.allowed_seconds = 0.001
    acme = hf.tenant("acme")

    async with served(app) as server:
        async with connected(server.port, path="/t/other/api/events", token=token) as refused:
            pass
        async with connected(server.port, path="/t/acme/api/events", token=token) as client:
            await client.next()
            await hf.tenant("other").start(greet(name="Ada"))
            await hf.start(greet(name="Bob"))
            mine = await acme.start(greet(name="Eve"))
            event = await client.next()
            for each in (mine, await acme.start(greet(name="Zoe")), await acme.start(greet(name="Ian"))):
                await acme.cancel(each)
            await hf.tenants.suspend("acme")
            await acme.delete(mine)
            rest = await client.rest()
    await hf.close()

    assert (refused.status, event.json["job"]["id"]) == (403, str(mine.id))
    assert "job:deleted" not in [each.event for each in rest]


@on_sqlite
async def test_each_identity_has_so_many_streams_and_is_given_one_back(hf: Holdfast) -> None:
    app, mine = serve(hf, limits=Limits(streams=2)), await token_of(hf)

    async with served(app) as server:
        async with connected(server.port, token=mine) as first, connected(server.port, token=mine) as second:
            async with connected(server.port, token=mine) as third:
                pass
            async with connected(server.port, token=await token_of(hf)) as other:
                pass
        await until(lambda: app.service.streams.total == 0, "the streams are counted out")
        async with connected(server.port, token=mine) as again:
            pass

    assert [each.status for each in (first, second, third, other, again)] == [200, 200, 429, 200, 200]
    assert "retry-after" in third.headers


@on_sqlite
async def test_a_server_that_stops_ends_its_streams(hf: Holdfast) -> None:
    app, token = serve(hf), await token_of(hf)

    async with served(app) as server:
        async with connected(server.port, token=token) as client:
            await client.next()
            server.server.should_exit = True
            assert await client.rest(5) == []

    assert len(app.service.live) == 0


@on_sqlite
async def test_where_no_stream_can_be_held_it_is_said(hf: Holdfast) -> None:
    async with api(hf, has_streams=False) as client:
        answer = await client.get("/api/events")

    assert (answer.status_code, answer.json()["code"]) == (501, "no_stream")


@on_sqlite
async def test_a_head_opens_no_stream(hf: Holdfast) -> None:
    async with api(hf) as client:
        answer = await client.head("/api/events")

    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")


# ---- pages


async def test_the_log_is_read_by_pages_without_a_gap(hf: Holdfast) -> None:
    async with api(hf) as client:
        begun = (await client.get("/api/events.json")).json()
        chains = await hf.start_many([greet(name="Ada"), greet(name="Bob"), greet(name="Eve")])
        first = (await client.get("/api/events.json", params={"after": begun["cursor"], "limit": 2})).json()
        second = (await client.get("/api/events.json", params={"after": first["cursor"]})).json()

    assert begun["items"] == []
    told = [each["job"]["id"] for each in first["items"] + second["items"]]
    assert told == [str(each.id) for each in chains]


async def test_pages_tell_of_lanes_and_of_deleted_jobs(hf: Holdfast) -> None:
    chain = await hf.start(greet(name="Ada"))

    async with api(hf) as client:
        begun = (await client.get("/api/events.json")).json()["cursor"]
        await hf.lane("a").pause()
        await hf.delete(chain)
        events = (await client.get("/api/events.json", params={"after": begun})).json()["items"]

    assert [each["event"] for each in events] == ["lane:paused", "job:deleted"]
    assert events[1]["deletedJobId"] == str(chain.id)


async def test_pages_of_a_guest_are_of_one_chain(hf: Holdfast) -> None:
    other, mine = await hf.start_many([greet(name="Ada"), greet(name="Bob")])
    link = (await hf.links.create(mine)).token

    async with api(hf, token=link) as client:
        asked = {"chain": str(mine.id)}
        begun = (await client.get("/api/events.json", params=asked)).json()["cursor"]
        await hf.cancel_many([other, mine])
        events = (await client.get("/api/events.json", params={**asked, "after": begun})).json()["items"]
        refused = await client.get("/api/events.json", params={"chain": str(other.id)})

    assert {each["job"]["id"] for each in events} == {str(mine.id)}
    assert all(each["job"]["input"] is None for each in events)
    assert refused.status_code == 404


def test_answers_are_held_against_their_models() -> None:
    from holdfast.http.jobs import WhyBody

    assert differences(WhyBody, {"why": None}) == []
    assert differences(WhyBody, {}) == [".why is on one side only"]
