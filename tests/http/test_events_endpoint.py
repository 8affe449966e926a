"""`GET /api/events` by real uvicorn and real sockets: what is answered, who is cut off, what is left of a client."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, Unpack
from uuid import UUID

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast import Holdfast
from holdfast.errors import StoreError
from holdfast.events.filters import EventOptions
from holdfast.http import Events, events_app
from holdfast.http import sse as endpoint
from holdfast.http.sse import EventsOptions
from holdfast.integrations.starlette import lifespan
from tests.http.clients import connected, stalled
from tests.http.serving import listen, served
from tests.support.conditions import until
from tests.support.factories import TASKS, greet
from tests.support.log_lines import name_of


@pytest.fixture
def hf(new_holdfast: Callable[..., Holdfast]) -> Holdfast:
    """A face on a SQLite file, where the database makes no difference."""
    return new_holdfast("sqlite", tasks=[TASKS])


@pytest.fixture(params=["sqlite", "postgres"])
def either(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> Holdfast:
    """A face on either database."""
    return new_holdfast(request.param, tasks=[TASKS])


def followers(hf: Holdfast) -> int:
    gc.collect()
    return len(hf._feed.here._followers)


# what is answered


async def test_a_client_has_the_jobs_then_what_happens(either: Holdfast) -> None:
    async with served(events_app(either)) as server:
        first = await either.start(greet(name="Ada"))
        async with connected(server.port) as client:
            snapshot = await client.next()
            second = await either.start(greet(name="Bob"))
            event = await client.next()

    assert client.status == 200
    assert client.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert client.headers["cache-control"] == "no-store"
    assert client.headers["x-accel-buffering"] == "no"
    assert client.retry_ms is not None
    assert 1000 <= client.retry_ms < 2000
    assert [job["id"] for job in snapshot.json["jobs"]] == [str(first.id)]
    assert (event.event, event.json["job"]["id"]) == ("job:enqueued", str(second.id))


async def test_a_client_resumes_by_its_header_and_else_by_the_query(either: Holdfast) -> None:
    async with served(events_app(either)) as server:
        async with connected(server.port) as client:
            await client.next()
            begun = client.last_id
            first = await either.start(greet(name="Ada"))
            await client.next()
            later = client.last_id
        second = await either.start(greet(name="Bob"))

        async with connected(server.port, last_id=later, last_event_id=begun) as client:
            assert UUID((await client.next()).json["job"]["id"]) == second.id
        async with connected(server.port, last_event_id=begun) as client:
            assert UUID((await client.next()).json["job"]["id"]) == first.id
            assert UUID((await client.next()).json["job"]["id"]) == second.id


async def test_an_id_that_leads_nowhere_gives_reset_and_snapshot(hf: Holdfast) -> None:
    async with served(events_app(hf)) as server:
        async with connected(server.port, last_id="nowhere") as client:
            assert [(await client.next()).event for _ in range(2)] == ["reset", "snapshot"]


async def test_pings_come_at_their_interval(hf: Holdfast) -> None:
    async with served(events_app(hf, ping_seconds=0.02)) as server:
        async with connected(server.port) as client:
            assert [(await client.next()).event for _ in range(4)] == ["snapshot", "ping", "ping", "ping"]


async def test_filters_hold_for_everything_that_is_sent(hf: Holdfast) -> None:
    async with served(events_app(hf)) as server:
        ours = await hf.start(greet(name="Ada"), lane="a")
        await hf.start(greet(name="Bob"), lane="b")
        async with connected(
            server.port, lane=["a", "c"], task="greet", name=["job:cancelled", "job:paused"]
        ) as client:
            snapshot = await client.next()
            await hf.start(greet(name="Cleo"), lane="c")
            await hf.cancel(ours)
            event = await client.next()
        async with connected(server.port, job=str(ours.id), chain=str(ours.id)) as client:
            one = await client.next()

    assert [job["id"] for job in snapshot.json["jobs"]] == [str(ours.id)]
    assert (event.event, event.json["job"]["id"]) == ("job:cancelled", str(ours.id))
    assert [job["id"] for job in one.json["jobs"]] == [str(ours.id)]


async def test_a_client_can_ask_for_the_children_of_one_job(either: Holdfast) -> None:
    """C19: the page for one report."""
    async with served(events_app(either)) as server:
        report, other = await either.start(greet(name="report")), await either.start(greet(name="other"))
        first = await either.start(greet(name="Ada"), parent=report)
        await either.start(greet(name="Bob"), parent=other)
        async with connected(server.port, parent=str(report.id), name=["job:enqueued", "job:deleted"]) as client:
            assert [job["id"] for job in (await client.next()).json["jobs"]] == [str(first.id)]
            await either.start(greet(name="Cleo"), parent=other)
            second = await either.start(greet(name="Dora"), parent=report)
            assert (await client.next()).json["job"]["id"] == str(second.id)
            await either.delete(first)
            assert (await client.next()).json["deletedJobId"] == str(first.id)


async def test_without_a_snapshot_the_response_begins_at_once_all_the_same(hf: Holdfast) -> None:
    async with served(events_app(hf)) as server:
        async with connected(server.port, snapshot="false") as client:
            chain = await hf.start(greet(name="Ada"))
            assert UUID((await client.next()).json["job"]["id"]) == chain.id


async def test_what_cannot_be_asked_for_is_400_with_the_reason(hf: Holdfast) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"job": "no id"}, "invalid_id"),
        ({"chain": ["", "x"]}, "invalid_id"),
        ({"name": "job:startd"}, "invalid_input"),
        ({"snapshot": "perhaps"}, "invalid_input"),
    ]

    async with served(events_app(hf)) as server:
        for query, code in wrong:
            async with connected(server.port, **query) as client:
                told = await client.json()
            assert (client.status, told["code"], bool(told["message"])) == (400, code, True), query


async def test_other_methods_are_405(hf: Holdfast) -> None:
    async with served(events_app(hf)) as server:
        for method in ("HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
            async with connected(server.port, method=method) as client:
                assert (client.status, client.headers["allow"]) == (405, "GET"), method


async def test_a_database_that_is_away_is_503() -> None:
    hf = Holdfast("postgresql://nobody@127.0.0.1:9/none?connect_timeout=1", deadline_seconds=0.2)
    app = Starlette(routes=[Route("/api/events", Events(hf))])

    async with served(app) as server, connected(server.port) as client:
        assert (client.status, (await client.json())["code"]) == (503, "unavailable")


async def test_one_more_stream_than_there_may_be_is_503_until_another_ends(hf: Holdfast) -> None:
    async with served(events_app(hf, most_streams=2)) as server:
        async with connected(server.port) as one, connected(server.port) as two:
            await one.next()
            await two.next()
            async with connected(server.port) as three:
                assert (three.status, three.headers["retry-after"]) == (503, "5")
                assert (await three.json())["code"] == "too_many_streams"

        async def has_room() -> bool:
            async with connected(server.port) as client:
                return client.status == 200

        await until(has_room, "the places of those who left are free")


async def test_who_may_not_read_is_403_and_who_may_no_longer_is_ended(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = {"ada"}

    async def allow(request: Request) -> bool:
        return request.query_params.get("user") in allowed

    monkeypatch.setattr(endpoint, "ALLOWED_SECONDS", 0.05)
    async with served(events_app(hf, allow=allow, ping_seconds=0.02)) as server:
        async with connected(server.port, user="bob") as client:
            assert (client.status, (await client.json())["code"]) == (403, "forbidden")
        async with connected(server.port, user="ada") as client:
            await client.next()
            allowed.clear()
            assert {each.event for each in await client.rest()} <= {"ping"}


async def test_a_client_that_is_confined_reads_nothing_else_whatever_it_asks_for(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes = {"ada": ["a", "c"], "bob": []}

    async def allow(request: Request) -> EventOptions:
        return {"lanes": lanes[request.query_params["user"]]}

    monkeypatch.setattr(endpoint, "ALLOWED_SECONDS", 0.05)
    async with served(events_app(hf, allow=allow, ping_seconds=0.02)) as server:
        ours, other = await hf.start(greet(name="Ada"), lane="a"), await hf.start(greet(name="Bob"), lane="b")
        async with connected(server.port, user="ada", lane="b") as client:
            assert client.status == 403
        async with connected(server.port, user="bob") as client:
            assert client.status == 403  # who has no lane may read none, and not all
        asked: tuple[dict[str, Any], ...] = ({}, {"lane": ["a", "b"]}, {"job": [str(ours.id), str(other.id)]})
        for query in asked:
            async with connected(server.port, user="ada", **query) as client:
                assert [job["id"] for job in (await client.next()).json["jobs"]] == [str(ours.id)]
        async with connected(server.port, user="ada") as client:
            await client.next()
            await hf.cancel(other)
            await hf.cancel(ours)
            event = await client.until(lambda each: each.event != "ping")
            assert event.json["job"]["id"] == str(ours.id)
            await hf.delete_many([other, ours])
            event = await client.until(lambda each: each.event != "ping")
            assert (event.event, event.json["deletedJobId"]) == ("job:deleted", str(ours.id))
            lanes["ada"] = ["b"]
            assert {each.event for each in await client.rest()} <= {"ping"}


# in an application


async def test_it_is_a_route_of_an_application_that_has_its_own_lifespan(hf: Holdfast) -> None:
    app = FastAPI(lifespan=lifespan(hf), routes=[Route("/api/events", Events(hf))])

    async with served(app) as server, connected(server.port) as client:
        assert (await client.next()).event == "snapshot"


async def test_mounted_it_opens_hf_when_it_is_first_asked(hf: Holdfast) -> None:
    app = Starlette()
    app.mount("/jobs", events_app(hf))

    async with served(app) as server, connected(server.port, path="/jobs/api/events") as client:
        assert (await client.next()).event == "snapshot"


def test_without_starlette_it_says_what_to_install() -> None:
    program = (
        "import sys\n"
        "sys.modules['starlette'] = None\n"
        "try:\n    import holdfast.http\n"
        "except ImportError as error:\n    print(error)\n"
    )

    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert "pip install '.[http]'" in told.stdout


# who is cut off, and what is left


@pytest.mark.source("PQ-45")
async def test_a_client_that_goes_away_leaves_nothing(hf: Holdfast) -> None:
    """F-44, I-46."""
    async with served(events_app(hf, ping_seconds=0.05)) as server:
        for _ in range(5):
            async with connected(server.port) as client:
                await client.next()
        await until(lambda: server.connections == 0, "the server has forgotten them")

        await until(lambda: followers(hf) == 0, "nobody follows")
        assert [task for task in asyncio.all_tasks() if "Events" in repr(task)] == []


async def pass_on(request: Request, call_next: RequestResponseEndpoint) -> Response:
    return await call_next(request)


def app_of(hf: Holdfast, *, is_wrapped: bool, **options: Unpack[EventsOptions]) -> Starlette:
    """Make the application, with middleware that wraps what it is given, as in many applications, or without."""
    app = events_app(hf, **options)
    if is_wrapped:
        app.add_middleware(BaseHTTPMiddleware, dispatch=pass_on)
    return app


@pytest.mark.parametrize("is_wrapped", [False, pytest.param(True, marks=pytest.mark.long)])
async def test_a_client_that_does_not_read_is_cut_off_and_slows_nobody(
    hf: Holdfast, is_wrapped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """F-44, I-46."""
    # a second: a busy machine may keep our event loop, and with it one who reads, from running for a good part of it
    async with served(app_of(hf, is_wrapped=is_wrapped, send_seconds=1)) as server:
        async with connected(server.port) as reading:
            await reading.next()
            with closing(stalled(server.port)):
                await until(lambda: followers(hf) == 2, "both follow")
                count = 0
                found = []
                while followers(hf) == 2:
                    await hf.start_many([greet(name="x" * 10_000) for _ in range(20)])
                    count += 20
                    found += [await reading.next(30) for _ in range(20)]
                    assert count < 20_000, "it was not cut off"
                await until(lambda: server.connections == 1, "its connection is gone")

    assert len({each.json["job"]["id"] for each in found}) == count
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_client_that_was_cut_off_resumes_behind_what_it_has_read(hf: Holdfast) -> None:
    """F-44, I-44."""
    async with served(events_app(hf, send_seconds=0.2)) as server:
        async with connected(server.port) as client:
            await client.next()
            count = 0
            while server.connections:
                await hf.start_many([greet(name="x" * 10_000) for _ in range(20)])
                count += 20
                assert count < 20_000, "it was not cut off"
            with suppress(ConnectionResetError):
                await client.rest()
        async with connected(server.port, last_id=client.last_id) as again:
            rest = [await again.next() for _ in range(count - len(client.seen) + 1)]

    told = [each.json["job"]["id"] for each in (*client.seen[1:], *rest)]
    assert len(told) == len(set(told)) == count


async def test_a_stream_that_breaks_off_is_ended_and_goes_on_when_it_is_resumed(
    hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(events_app(hf)) as server:
        async with connected(server.port) as client:
            await client.next()
            hf._feed.here.break_off(StoreError("the log cannot be read"))
            assert await client.rest() == []
        chain = await hf.start(greet(name="Ada"))
        async with connected(server.port, last_id=client.last_id) as client:
            assert UUID((await client.next()).json["job"]["id"]) == chain.id

    assert [name_of(each) for each in caplog.records if each.levelno >= logging.WARNING] == ["event_stream_broke_off"]


# the server stops


async def test_a_server_that_stops_takes_no_new_streams(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "is_server_stopping", lambda: True)

    async with served(events_app(hf)) as server, connected(server.port) as client:
        assert (client.status, client.headers["retry-after"]) == (503, "1")
        assert (await client.json())["code"] == "server_stopping"


@pytest.mark.parametrize("is_wrapped", [False, True])
async def test_a_server_that_stops_is_not_held_up_by_streams(hf: Holdfast, is_wrapped: bool) -> None:
    async with served(app_of(hf, is_wrapped=is_wrapped)) as server:
        async with connected(server.port) as client:
            await client.next()
            server.server.should_exit = True
            assert await client.rest() == []
            await until(lambda: server.connections == 0, "it has let go of the stream", 3)

    assert followers(hf) == 0


async def test_a_server_in_a_thread_is_seen_stopping_too(hf: Holdfast) -> None:
    server = uvicorn.Server(uvicorn.Config(events_app(hf), log_config=None))
    listening = listen()
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()

    async with connected(listening.getsockname()[1]) as client:
        await client.next()
        server.should_exit = True
        assert await client.rest() == []

    await until(lambda: not thread.is_alive(), "the server has stopped", 3)


async def test_a_server_stops_although_a_client_does_not_read(hf: Holdfast) -> None:
    """F-44."""
    async with served(events_app(hf)) as server:
        await hf.start_many([greet(name="x" * 10_000) for _ in range(100)])
        with closing(stalled(server.port)):
            await until(lambda: followers(hf) == 1, "it follows")
            await hf.start_many([greet(name="x" * 10_000) for _ in range(500)])
            server.server.should_exit = True

            await until(lambda: server.connections == 0, "it was cut off", 5)


async def test_streams_can_be_ended_by_hand(hf: Holdfast) -> None:
    events = Events(hf)
    async with served(Starlette(routes=[Route("/api/events", events)])) as server:
        async with connected(server.port) as client:
            await client.next()
            assert events.open_streams == 1
            events.end_streams()
            assert await client.rest() == []
        assert events.open_streams == 0
