"""What clients do to a real server: slow bodies, large ones, readers that stall, guesses, and kills (S-10, S-11)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress

import httpx
import pytest

from holdfast import Holdfast
from holdfast.http import asgi
from tests.http.crowd import Crowd
from tests.http.security.asking import SAME_SITE
from tests.http.security.server import Server
from tests.http.serving import served
from tests.support.conditions import until
from tests.support.factories import TASKS, greet

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]
MOST_BYTES = 20_000_000
GUESSES = 10_000


async def operator(hf: Holdfast, name: str = "ada") -> str:
    """Make the token of an operator."""
    return (await hf.tokens.create(name, role="operator")).token


def head(token: str, length: int, *more: str) -> bytes:
    """Write the head of a start whose body has so many bytes."""
    lines = ["POST /api/jobs HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {token}"]
    lines += ["Content-Type: application/json", f"Content-Length: {length}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


async def status_of(reader: asyncio.StreamReader) -> int:
    """Read the status of an answer."""
    return int((await reader.readline()).split(b" ")[1])


async def test_a_body_of_a_byte_a_second_is_cut_off_and_others_are_served(hf: Holdfast) -> None:
    token = await operator(hf)
    async with Server(hf) as server, httpx.AsyncClient(base_url=server.url) as client:
        client.headers["Authorization"] = f"Bearer {token}"
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        began = time.monotonic()
        writer.write(head(token, 1_000))
        answered = asyncio.create_task(status_of(reader))
        while not answered.done() and time.monotonic() - began < 40:
            with suppress(ConnectionError):
                writer.write(b" ")
                await writer.drain()
            assert (await client.get("/api/jobs")).status_code == 200
            await asyncio.wait([answered], timeout=1)
        took = time.monotonic() - began
        rest = await asyncio.wait_for(reader.read(), 10)
        writer.transport.abort()

    assert answered.result() == 408
    assert 14 < took < 20
    assert b"connection: close" in rest.lower()


@pytest.mark.parametrize("more", [[], ["Expect: 100-continue"]])
async def test_a_body_that_is_too_large_is_refused_before_it_is_sent(hf: Holdfast, more: list[str]) -> None:
    token = await operator(hf)
    async with Server(hf) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head(token, 1_000_001, *more))
        status = await asyncio.wait_for(status_of(reader), 10)
        rest = await asyncio.wait_for(reader.read(), 10)
        writer.transport.abort()

    assert status == 413
    assert b"HTTP/1.1" not in rest  # it was not asked for either


async def test_a_body_without_end_is_refused_as_soon_as_it_is_too_large(hf: Holdfast) -> None:
    token = await operator(hf)
    async with Server(hf) as server:
        before = server.resident_bytes
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        lines = ["POST /api/jobs HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {token}"]
        lines += ["Content-Type: application/json", "Transfer-Encoding: chunked", "", ""]
        writer.write("\r\n".join(lines).encode())
        answered = asyncio.create_task(status_of(reader))
        with suppress(ConnectionError):
            for _ in range(1_000):
                writer.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
                await asyncio.wait_for(writer.drain(), 10)
                if answered.done():
                    break
        status = await asyncio.wait_for(answered, 10)
        grown = server.resident_bytes - before
        writer.transport.abort()

    assert status == 413
    assert grown < MOST_BYTES


async def test_a_reader_that_stalls_is_cut_off(new_holdfast: Callable[..., Holdfast]) -> None:
    hf = new_holdfast("sqlite", tasks=[TASKS])
    token = await operator(hf)
    app = asgi(hf)
    app.service.live.send_seconds = 0.3
    async with served(app) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
        request = f"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n"
        writer.write(request.encode())
        await until(lambda: app.service.streams.total == 1, "the stream is open")
        deadline = time.monotonic() + 60
        while app.service.streams.total and time.monotonic() < deadline:
            await hf.start_many([greet(name="x" * 2_000) for _ in range(200)])
        assert app.service.streams.total == 0
        assert reader is not None
        writer.transport.abort()


async def test_ten_thousand_guesses_let_few_through_and_hold_nobody_up(hf: Holdfast) -> None:
    token = await operator(hf)
    statuses: dict[int, int] = {}
    async with Server(hf) as server, httpx.AsyncClient(base_url=server.url) as client:
        others = {"Authorization": f"Bearer {token}"}
        assert (await client.get("/api/jobs", headers=others)).status_code == 200
        before, began, slowest = server.resident_bytes, time.monotonic(), 0.0

        async def guess(number: int) -> None:
            body = {"token": f"hf_{number:049}"}
            answer = await client.post("/api/session", json=body, headers=SAME_SITE)
            statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1

        for first in range(0, GUESSES, 20):
            await asyncio.gather(*(guess(first + each) for each in range(20)))
            if first % 500 == 0:
                asked = time.monotonic()
                assert (await client.get("/api/jobs", headers=others)).status_code == 200
                slowest = max(slowest, time.monotonic() - asked)
        minutes = (time.monotonic() - began) / 60
        grown = server.resident_bytes - before

    assert set(statuses) <= {401, 429}
    assert statuses.get(401, 0) <= 10 + 10 * minutes + 1
    assert sum(statuses.values()) == GUESSES
    assert grown < MOST_BYTES
    assert slowest < 2
    assert b"hf_" not in server.log


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_two_hundred_streams_miss_nothing_and_have_nothing_twice_when_the_server_is_killed(
    new_holdfast: Callable[..., Holdfast], database: str
) -> None:
    hf = new_holdfast(database, tasks=[TASKS])
    tokens = [await operator(hf, f"reader {each}") for each in range(25)]
    headers = [f"Host: 127.0.0.1\r\nAuthorization: Bearer {each}\r\n" for each in tokens]
    count = 0

    async def emit(number: int) -> None:
        nonlocal count
        await hf.start_many([greet(name=str(each)) for each in range(count, count + number)])
        count += number

    async with Server(hf) as server, Crowd(server.port, 200, headers) as crowd:
        await until(lambda: crowd.have_begun, "all have their place", 60)
        for _ in range(3):
            for _ in range(5):
                await emit(20)
            await server.kill()
            await emit(20)
            await server.start()
            await emit(20)
            await until(lambda: crowd.seen == count, "all are told of everything", 60)

    assert {each.seen for each in crowd.listeners} == {count}
    assert {each.resets for each in crowd.listeners} == {0}
    assert min(each.streams for each in crowd.listeners) >= 4


async def test_an_act_is_audited_if_and_only_if_it_was_committed_whenever_the_server_is_killed(
    hf: Holdfast, seed: int
) -> None:
    """S-27."""
    chance = random.Random(seed)
    token, kills = await operator(hf), 0
    async with Server(hf) as server, httpx.AsyncClient(timeout=10) as client:
        client.headers["Authorization"] = f"Bearer {token}"

        async def act(number: int) -> None:
            """Start a job and cancel every other one; a lost answer is sent again, as a program does."""
            key = {"Idempotency-Key": f"job {number}"}
            made = await again("/api/jobs", {"task": "greet", "arguments": {"name": str(number)}}, key)
            if number % 2:
                await again(f"/api/jobs/{made.json()['chain']['id']}/cancel", {"why": "odd"}, {})

        async def again(path: str, body: object, headers: dict[str, str]) -> httpx.Response:
            while True:
                with suppress(httpx.TransportError):
                    answer = await client.post(f"{server.url}{path}", json=body, headers=headers)
                    if answer.status_code not in (429, 503):
                        assert answer.status_code in (200, 201), answer.text
                        return answer
                await asyncio.sleep(0.02)

        acting = asyncio.gather(*(act(each) for each in range(150)))
        while not acting.done():
            await asyncio.wait([acting], timeout=chance.uniform(0.05, 0.3))
            if not acting.done():
                await server.kill()
                await server.start()
                kills += 1
        await acting
    print(f"{kills} kills")

    jobs = await hf.list_jobs(limit=500)
    entries = await hf.audit(limit=500)
    starts = [each.subject for each in entries if each.action == "start"]
    cancels = [
        each.subject for each in entries if each.action == "cancel" and each.facts["answers"] == {"cancelled": 1}
    ]

    assert sorted(int(each.input.name) for each in jobs) == list(range(150))
    assert sorted(starts) == sorted(str(each.id) for each in jobs)
    assert sorted(cancels) == sorted(str(each.id) for each in jobs if str(each.state) == "cancelled")
    assert (len(cancels), kills > 0) == (75, True)
