"""Each limit from both sides: one request that is just below it, and one just above it (S-11, S-12)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import pytest

from holdfast import Holdfast
from holdfast.access import make_token
from holdfast.database.tx import Tx
from holdfast.http import asgi
from holdfast.http.limits import MOST_KEYS, Limits, OpenStreams, Rate
from holdfast.http.problems import TooManyRequests
from holdfast.store import access
from holdfast.store.access import Grant
from tests.http.security.asking import SAME_SITE, WIDE, browser
from tests.support.factories import TASKS, greet


@pytest.fixture
def file(new_holdfast: Callable[..., Holdfast]) -> Holdfast:
    """A face on a file, where the database makes no difference."""
    return new_holdfast("sqlite", tasks=[TASKS])


class Limit(NamedTuple):
    """A limit, and what is asked with so much of it."""

    most: int
    status: int
    """What one more is answered."""
    asked: Callable[[int], dict[str, Any]]


IS_JSON = {"Content-Type": "application/json"}


def get(path: str, **query: Any) -> dict[str, Any]:
    return {"method": "GET", "url": path, "params": query}


def post(path: str, body: Any, **headers: str) -> dict[str, Any]:
    content = body if isinstance(body, str) else json.dumps(body)
    return {
        "method": "POST",
        "url": path,
        "content": content,
        "headers": {"Content-Type": "application/json", **headers},
    }


def start(**options: Any) -> dict[str, Any]:
    return {"task": "greet", "arguments": {"name": "Ada"}, "options": options}


def sized(size: int) -> str:
    """Give a body of so many bytes."""
    head, tail = '{"task":"greet","arguments":{"name":"', '"}}'
    return f"{head}{'x' * (size - len(head) - len(tail))}{tail}"


def nested(depth: int) -> str:
    """Give a body that is so many levels deep; three of them are the call's."""
    return f'{{"task":"greet","arguments":{{"name":{"[" * (depth - 2)}{"]" * (depth - 2)}}}}}'


def of_values(nodes: int) -> str:
    """Give a body of so many values; five of them are the call's."""
    return f'{{"task":"greet","arguments":{{"name":[{",".join("0" * (nodes - 4))}]}}}}'


LIMITS = {
    "body": Limit(1_000_000, 413, lambda n: post("/api/jobs", sized(n))),
    "depth": Limit(64, 413, lambda n: post("/api/jobs", nested(n))),
    "values": Limit(100_000, 413, lambda n: post("/api/jobs", of_values(n))),
    "page": Limit(500, 400, lambda n: get("/api/jobs", limit=n)),
    "page of chains": Limit(500, 400, lambda n: get("/api/chains", limit=n)),
    "page of tokens": Limit(500, 400, lambda n: get("/api/tokens", limit=n)),
    "page of the audit": Limit(500, 400, lambda n: get("/api/audit", limit=n)),
    "page of whole jobs": Limit(100, 400, lambda n: get("/api/jobs", view="full", limit=n)),
    "parameters": Limit(200, 400, lambda n: get("/api/jobs", status=["failed"] * n)),
    "filter": Limit(1_000, 400, lambda n: get("/api/jobs", q=f'lane:"{"x" * (n - 7)}"')),
    "terms of a filter": Limit(
        20, 400, lambda n: get("/api/jobs", q=" ".join([f"input.k{each}:1" for each in range(n)]))
    ),
    "steps into the input": Limit(8, 400, lambda n: get("/api/jobs", **{f"input.{'.'.join('x' * n)}": 1})),
    "why": Limit(500, 400, lambda n: post("/api/queue/pause?name=mail", {"why": "x" * n})),
    "why in a query": Limit(500, 400, lambda n: {"method": "DELETE", "url": f"/api/schedule?name=x&why={'x' * n}"}),
    "name of a token": Limit(100, 400, lambda n: post("/api/tokens", {"name": "x" * n})),
    "starts": Limit(500, 400, lambda n: post("/api/jobs/many", {"jobs": [start()] * n})),
    "ids of a bulk act": Limit(500, 400, lambda n: post("/api/bulk", {"verb": "cancel", "ids": [str(uuid4())] * n})),
    "Idempotency-Key": Limit(200, 400, lambda n: post("/api/jobs", start(), **{"Idempotency-Key": "x" * n})),
}


@pytest.mark.parametrize("name", LIMITS)
async def test_a_limit_lets_just_as_much_through_as_it_says(file: Holdfast, name: str) -> None:
    limit = LIMITS[name]
    token = (await file.tokens.create("ada", role="admin")).token
    async with browser(asgi(file, limits=Limits())) as client:
        client.headers["Authorization"] = f"Bearer {token}"
        below, above = [await client.request(**limit.asked(n)) for n in (limit.most, limit.most + 1)]

    assert above.status_code == limit.status, above.text
    assert below.status_code < 500, below.text
    assert below.status_code not in (413, 429)
    if below.status_code == 400:
        assert below.json()["detail"] != above.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [
        "[" * 500_000,
        '{"a":' * 150_000,
        '{"task":"greet","arguments":{"name":' + "9" * 5_000 + "}}",
        '{"task":"greet","arguments":{"name":NaN}}',
        '{"task":"greet","arguments":{"name":1e999}}',
        '{"task":"greet","arguments":{"name":"\\ud800"}}',
        '{"task":"greet","arguments":{"name":"\\u0000"}}',
        '{"task":"\\u0000","arguments":{}}',
        "\ufeff{}",
        "{",
        "[]",
        "null",
    ],
    ids=lambda body: body[:40],
)
async def test_a_body_that_is_made_to_break_something_breaks_nothing(hf: Holdfast, body: str) -> None:
    token = (await hf.tokens.create("ada", role="admin")).token
    async with browser(asgi(hf)) as client:
        client.headers["Authorization"] = f"Bearer {token}"
        answer = await client.request(**post("/api/jobs", body))

    assert answer.status_code in (201, 400, 404, 413), answer.text


@pytest.mark.parametrize("length", ["9" * 30, "9" * 5_000, "\u00b2", "-1", "+1", "1,1", "x"])
async def test_a_length_that_is_none_breaks_nothing(file: Holdfast, length: str) -> None:
    token = (await file.tokens.create("ada", role="admin")).token
    async with browser(asgi(file)) as client:
        client.headers["Authorization"] = f"Bearer {token}"
        headers = [(b"Content-Type", b"application/json"), (b"Content-Length", length.encode("latin-1"))]
        answer = await client.post("/api/queue/pause?name=mail", content=b"{}", headers=headers)

    assert answer.status_code in (204, 413)


@pytest.mark.parametrize(
    "query",
    [
        {"lane": "%" * 10_000},
        {"lane": "%%%_\\' OR 1=1 --"},
        {"q": 'lane:"%%%"'},
        {"input.a": "%" * 10_000},
        {"input.%": "%"},
        {"input.a'b\"c": "1"},
        {"tag": "\x00"},
        {"q": "\x00"},
        {"worker": "\ud7ff\uffff"},
        {"cursor": "' OR 1=1"},
        {"cursor": "9" * 5_000},
        {"limit": "9" * 5_000},
        {"id": ",".join(["x"] * 5_000)},
        {"status": ",".join(["failed"] * 5_000)},
        {"created_from": "9999-12-31T23:59:59Z"},
        {"created_from": "0001-01-01T00:00:00+14:00"},
    ],
    ids=lambda query: f"{next(iter(query.items()))}"[:40],
)
async def test_a_query_that_is_made_to_break_something_breaks_nothing(hf: Holdfast, query: dict[str, str]) -> None:
    await hf.start(greet(name="Ada"), lane="one")
    token = (await hf.tokens.create("ada")).token
    async with browser(asgi(hf)) as client:
        answer = await client.get("/api/jobs", params=query, headers={"Authorization": f"Bearer {token}"})

    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 200 and "lane" in "".join(query):
        assert answer.json()["items"] == []


# how often


async def test_an_identity_may_ask_so_often_and_others_go_on(file: Holdfast) -> None:
    tokens = [(await file.tokens.create(name)).token for name in ("ada", "bob")]
    async with browser(asgi(file, limits=Limits(requests_per_second=5))) as client:
        ada, bob = [{"Authorization": f"Bearer {token}"} for token in tokens]
        answers = [await client.get("/api", headers=ada) for _ in range(6)]
        other = await client.get("/api", headers=bob)

    assert [each.status_code for each in answers] == [200] * 5 + [429]
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert other.status_code == 200


async def test_guesses_at_a_token_cost_few_reads_and_who_has_one_goes_on(
    file: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    async def find(tx: Tx, hash_: str) -> Grant | None:
        read.append(hash_)
        return await found(tx, hash_)

    found = access.find
    monkeypatch.setattr(access, "find", find)
    token = (await file.tokens.create("ada")).token
    async with browser(asgi(file, limits=Limits(requests_per_second=5))) as client:
        before = await client.get("/api", headers={"Authorization": f"Bearer {token}"})
        guesses = [await client.get("/api", headers={"Authorization": f"Bearer {make_token(n)}"}) for n in range(7)]
        after = await client.get("/api", headers={"Authorization": f"Bearer {token}"})

    assert [each.status_code for each in guesses] == [401] * 5 + [429] * 2
    assert (before.status_code, after.status_code) == (200, 200)
    assert len(read) == 6


async def test_ten_logins_a_minute_come_from_one_address_and_others_still_log_in(file: Holdfast) -> None:
    token = (await file.tokens.create("ada")).token
    app = asgi(file, proxies=["10.0.0.1"])
    async with browser(app, client=("10.0.0.1", 1)) as client:
        forwarded = {**SAME_SITE, "X-Forwarded-Proto": "https"}
        mine, others = [{**forwarded, "X-Forwarded-For": f"192.0.2.{each}"} for each in (1, 2)]
        answers = [await login(client, token, mine) for _ in range(11)]
        other = await login(client, token, others)

    assert [each.status_code for each in answers] == [204] * 10 + [429]
    assert other.status_code == 204


async def test_a_network_of_ipv6_is_one_sender(file: Holdfast) -> None:
    app = asgi(file, limits=Limits(logins_per_minute=2), proxies=["10.0.0.1"])
    async with browser(app, client=("10.0.0.1", 1)) as client:
        forwarded = {**SAME_SITE, "X-Forwarded-Proto": "https"}
        addresses = ["2001:db8::1", "2001:db8::2", "2001:db8:0:0:ffff::3", "2001:db8:0:1::4"]
        answers = [await login(client, "hf_none", {**forwarded, "X-Forwarded-For": each}) for each in addresses]

    assert [each.status_code for each in answers] == [401, 401, 429, 401]


async def login(client: httpx.AsyncClient, token: str, headers: dict[str, str]) -> httpx.Response:
    client.cookies.clear()
    return await client.post("/api/session", json={"token": token}, headers=headers)


async def test_ten_thousand_guesses_let_ten_through_and_the_right_token_in_from_elsewhere(file: Holdfast) -> None:
    """The limit holds in the way of the request itself, so nothing but counting is done for the others."""
    service = asgi(file, limits=WIDE).service
    logins = Rate(10, 60.0, lambda: 0.0)
    passed = 0
    for _ in range(10_000):
        try:
            logins.spend("192.0.2.1", "logins")
        except TooManyRequests:
            continue
        passed += 1

    assert passed == 10
    logins.spend("192.0.2.2", "logins")
    assert service.logins is not logins


def test_a_rate_forgets_who_came_longest_ago() -> None:
    rate = Rate(1, 60.0, lambda: 0.0)
    for each in range(3 * MOST_KEYS):
        rate.spend(str(each), "requests")

    assert len(rate._spent) == MOST_KEYS


def test_streams_are_counted_by_identity_and_in_all() -> None:
    """S-10."""
    streams = OpenStreams(Limits(streams=2, all_streams=3))
    with streams.one_more("ada"), streams.one_more("ada"):
        with pytest.raises(TooManyRequests, match="you have 2 streams open"), streams.one_more("ada"):
            pass
        with streams.one_more("bob"):
            with pytest.raises(TooManyRequests, match="3 streams are open here"), streams.one_more("eve"):
                pass
        with streams.one_more("eve"):
            assert streams.total == 3

    assert (streams.total, streams._open) == (0, {})


async def test_a_host_that_somebody_makes_up_is_seldom_looked_up(
    sqlite_of_tenant: tuple[str, dict[str, object]],
) -> None:
    control = Holdfast(sqlite_of_tenant[0], tenants=True, deadline_seconds=20)
    async with control:
        app = asgi(control, limits=Limits(requests_per_second=5))
        async with browser(app) as client:
            made_up = [await client.get("/healthz", headers={"Host": f"h{each}.test"}) for each in range(7)]
            good = await client.get("/healthz")

    assert [each.status_code for each in made_up] == [421] * 5 + [429] * 2
    assert good.status_code == 204


@pytest.mark.long
async def test_a_body_that_does_not_come_is_waited_for_so_long(file: Holdfast) -> None:
    token = (await file.tokens.create("ada", role="operator")).token

    async def drips() -> Any:
        yield b"{"
        await asyncio.sleep(30)

    async with browser(asgi(file, limits=Limits(body_seconds=1))) as client:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        answer = await client.post("/api/jobs", content=drips(), headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (408, "slow_request")
    assert answer.headers["connection"] == "close"
