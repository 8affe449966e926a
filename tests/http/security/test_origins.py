"""Where requests come from: sites, hosts, proxies; and what every answer says to browsers.

S-05, S-06, S-07, S-09, S-31.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Message

from holdfast import Holdfast
from holdfast.access import Role
from holdfast.errors import InvalidSettings
from holdfast.http import asgi
from holdfast.http.app import Api
from holdfast.http.endpoints import ENDPOINTS
from holdfast.http.headers import USUAL
from holdfast.http.identity import Identity, ProxyUsers
from holdfast.http.limits import Limits
from holdfast.http.origins import Origins
from tests.http.security.asking import SAME_SITE, WIDE, ask, browser, frame, log_in, request
from tests.support.factories import TASKS

OWN, FRIEND, EVIL = "http://localhost", "https://app.example.com", "https://evil.test"
CROSS = {"Sec-Fetch-Site": "cross-site"}
JSON, FORM = "application/json", "application/x-www-form-urlencoded"


@pytest.fixture
def file(new_holdfast: Callable[..., Holdfast]) -> Holdfast:
    """A face on a file, where the database makes no difference."""
    return new_holdfast("sqlite", tasks=[TASKS])


async def ada(request: Request) -> Identity | None:
    """Know everybody, as an application does by cookies of its own."""
    return Identity("ada", Role.ADMIN)


# what other sites send


SITES: list[tuple[dict[str, str], bool]] = [
    ({"Sec-Fetch-Site": "same-origin"}, True),
    ({"Sec-Fetch-Site": "same-origin", "Origin": OWN}, True),
    ({"Sec-Fetch-Site": "none"}, True),
    ({"Sec-Fetch-Site": "same-site"}, False),
    ({"Sec-Fetch-Site": "same-site", "Origin": "http://sibling.localhost"}, False),
    ({"Sec-Fetch-Site": "cross-site"}, False),
    ({"Sec-Fetch-Site": "cross-site", "Origin": EVIL}, False),
    ({"Sec-Fetch-Site": "cross-site", "Origin": OWN}, False),
    ({"Sec-Fetch-Site": "cross-site", "Origin": FRIEND}, True),
    ({"Sec-Fetch-Site": "same-site", "Origin": FRIEND}, True),
    ({"Sec-Fetch-Site": "Same-Origin"}, False),
    ({"Sec-Fetch-Site": ""}, False),
    ({"Sec-Fetch-Site": "nonsense", "Origin": OWN}, False),
    ({"Origin": OWN}, True),
    ({"Origin": FRIEND}, True),
    ({"Origin": EVIL}, False),
    ({"Origin": "null"}, False),
    ({"Origin": "https://localhost"}, False),
    ({"Origin": "http://localhost:81"}, False),
    ({"Origin": "http://localhost.evil.test"}, False),
    ({"Origin": f"{FRIEND}.evil.test"}, False),
    ({"Origin": "http://app.example.com"}, False),
    ({"Referer": f"{OWN}/"}, False),
    ({}, False),
]


async def test_what_a_page_of_another_site_may_have_sent_changes_nothing(file: Holdfast) -> None:
    acts = [each for each in ENDPOINTS if each.is_act]
    wrong = {}
    async with browser(frame(file, auth=ada, origins=[FRIEND])) as client:
        for headers, is_ours in SITES:
            for each in acts if headers == CROSS else acts[1:3]:
                status = await ask(client, each, headers=headers)
                if status != (200 if is_ours else 403):
                    wrong[each.method, each.path, *headers.items()] = status
        reads = [await ask(client, each, headers=CROSS) for each in ENDPOINTS if not each.is_act]

    assert wrong == {}
    assert set(reads) == {200}


async def test_a_bearer_token_needs_no_origin(file: Holdfast) -> None:
    token = (await file.tokens.create("ci", role="admin")).token
    wrong = {}
    async with browser(frame(file)) as client:
        for headers, _ in SITES:
            given = {**headers, "Authorization": f"Bearer {token}"}
            status = await ask(client, ENDPOINTS[3], headers=given)
            if status != 200:
                wrong[tuple(headers.items())] = status

    assert wrong == {}


@pytest.mark.parametrize("who", ["cookie", "bearer"])
@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (JSON, 204),
        ("application/json; charset=utf-8", 204),
        ("Application/JSON", 204),
        ("text/plain", 415),
        ("text/plain; x=application/json", 415),
        (FORM, 415),
        ("multipart/form-data; boundary=x", 415),
        ("application/jsonx", 415),
        ("application/problem+json", 415),
        ("", 415),
    ],
)
async def test_a_body_is_json_and_says_so(file: Holdfast, who: str, kind: str, status: int) -> None:
    token = (await file.tokens.create("ada", role="operator")).token
    async with browser(asgi(file)) as client:
        if who == "cookie":
            await log_in(client, token)
        headers = {
            **SAME_SITE,
            "Content-Type": kind,
            **({"Authorization": f"Bearer {token}"} if who != "cookie" else {}),
        }
        answer = await client.post("/api/queue/pause?name=mail", content='{"why":"x"}', headers=headers)

    assert answer.status_code == status


async def test_a_body_that_no_header_tells_of_is_json_too(file: Holdfast) -> None:
    """HTTP/2 needs neither a length nor an encoding."""
    headers = [(b"host", b"localhost"), (b"content-type", b"text/plain"), (b"sec-fetch-site", b"same-origin")]

    assert await raw(asgi(file, auth=ada), headers, b'{"why": "x"}', "POST", "/api/queue/pause?name=mail") == 415


async def test_who_is_refused_has_nothing_of_the_body_read(file: Holdfast) -> None:
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"999")]
    cross = [*headers, (b"origin", b"https://evil.test")]
    unknown = [*headers, (b"authorization", b"Bearer hf_none")]

    assert await raw(asgi(file, auth=ada), cross, None, "POST", "/api/jobs") == 403
    assert await raw(asgi(file, auth=ada), unknown, None, "POST", "/api/jobs") == 401


async def raw(
    app: Api, headers: list[tuple[bytes, bytes]], body: bytes | None, method: str = "GET", target: str = "/api"
) -> int:
    """Send a request as a server hands it on; give the status. Without a *body*, it must not be asked for."""
    sent: list[Message] = []

    async def receive() -> Message:
        assert body is not None, "the body was read"
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    path, _, query = target.partition("?")
    request = {"method": method, "path": path, "query_string": query.encode(), "headers": headers}
    scope = {"type": "http", "http_version": "2", "scheme": "http", "client": ("127.0.0.1", 1), **request}
    await app(scope, receive, send)
    return int(sent[0]["status"])


# which hosts are served


@pytest.mark.parametrize(
    ("is_served", "hosts"),
    [
        (
            True,
            ["localhost", "LOCALHOST", "localhost:8321", "localhost.", "localhost.:80", "127.0.0.1", "127.0.0.1:80"],
        ),
        (True, ["[::1]", "[::1]:8321", "jobs.example.com", "a.b.example.org"]),
        (False, ["evil.test", "evil.test:8321", "evil.test.", "localhost.evil.test", "127.0.0.1.evil.test", ""]),
        (False, ["localhost@evil.test", "evil.test@localhost", "evil.test:80@localhost", "localhost evil.test"]),
        (False, ["[::1", "[::1]evil.test", "[::1]:80:80", "[::1]:x", "::1:80:80", "localhost:80:80", "localhost.."]),
        (False, ["example.org", "aexample.org", "0.0.0.0", "127.1", "169.254.169.254", "[::ffff:127.0.0.1]"]),
        (False, ["localhost/", "localhost#", "localhost\\", "localhost:", "localhost:\u00b2"]),
    ],
)
async def test_a_host_that_is_not_served_is_421(file: Holdfast, is_served: bool, hosts: list[str]) -> None:
    app = frame(file, auth=ada, hosts=["jobs.example.com", "*.example.org"])
    told = {each: await raw(app, [(b"host", each.encode("latin-1"))], None) for each in hosts}

    assert told == dict.fromkeys(hosts, 200 if is_served else 421)


@pytest.mark.parametrize("hosts", [[], ["localhost", "evil.test"], ["evil.test", "localhost"], ["localhost"] * 2])
async def test_a_request_names_one_host(file: Holdfast, hosts: list[str]) -> None:
    assert await raw(frame(file, auth=ada), [(b"host", each.encode()) for each in hosts], None) == 421


async def test_no_endpoint_answers_another_host(file: Holdfast) -> None:
    async with browser(frame(file, auth=ada), host="evil.test:8321") as client:
        answers = {each: await request(client, each, headers=SAME_SITE) for each in ENDPOINTS}
        more = [await client.get("/"), await client.options("/api/jobs", headers={"Origin": FRIEND})]

    assert {each.status_code for each in (*answers.values(), *more)} == {421}
    assert {each.headers["content-type"] for each in answers.values()} == {"application/problem+json"}


@pytest.mark.parametrize(
    "rules",
    [
        {"hosts": ["https://example.com"]},
        {"hosts": ["example.com:80"]},
        {"hosts": [""]},
        {"hosts": "example.com"},
        {"origins": ["example.com"]},
        {"origins": ["*"]},
        {"origins": ["null"]},
        {"origins": ["https://example.com/"]},
        {"proxies": ["localhost"]},
    ],
)
def test_rules_that_are_none_are_refused(rules: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings):
        Origins.of(**{"hosts": [], "origins": [], "proxies": [], **rules})


# who may read


@pytest.mark.parametrize(("origin", "is_named"), [(FRIEND, True), (EVIL, False), ("null", False), (OWN, False)])
async def test_a_preflight_is_granted_to_named_origins_alone(file: Holdfast, origin: str, is_named: bool) -> None:
    wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    async with browser(asgi(file, auth=ada, origins=[FRIEND])) as client:
        preflight = await client.options("/api/jobs", headers={**wanted, "Origin": origin})
        read = await client.get("/api", headers={"Origin": origin, **CROSS})
        refused = await client.get("/api/jobs/none", headers={"Origin": origin, **CROSS})

    assert preflight.status_code == (204 if is_named else 405)
    for each in (preflight, read, refused):
        given = {name: value for name, value in each.headers.items() if name.startswith("access-control-allow-")}
        assert given.get("access-control-allow-origin") == (origin if is_named else None)
        assert bool(given) == is_named
        assert ("Origin" in each.headers.get("vary", "")) == is_named


async def test_no_origin_is_allowed_unless_it_is_named(file: Holdfast) -> None:
    async with browser(asgi(file, auth=ada)) as client:
        answers = [await client.get("/api", headers={"Origin": each}) for each in (OWN, FRIEND, EVIL, "null", "*")]

    assert [name for each in answers for name in each.headers if name.startswith("access-control")] == []


# what every answer says to browsers


async def test_every_answer_has_the_headers_that_keep_browsers_from_using_it(file: Holdfast) -> None:
    app = asgi(file, auth=ada, limits=WIDE, has_streams=False)
    wrong = []
    async with browser(app) as client:
        answers = [await request(client, each, headers=SAME_SITE) for each in ENDPOINTS]
        answers += [await request(client, each, headers=CROSS) for each in ENDPOINTS]
        answers += [
            await client.get("/"),
            await client.get("/api/nothing"),
            await client.put("/api"),
            await client.options("/api"),
            await client.head("/api"),
            await client.get("/api", headers={"Accept": "text/html"}),
            await client.get("/api", headers={"Host": "evil.test"}),
            await client.get("/api", headers={"If-None-Match": (await client.get("/api")).headers["etag"]}),
            await client.post("/api/jobs", content="{", headers={**SAME_SITE, "Content-Type": JSON}),
        ]
    for each in answers:
        for name, value in USUAL.items():
            if each.headers.get(name) != value and not (name == "Cache-Control" and "ETag" in each.headers):
                wrong.append(
                    (each.request.method, each.request.url.path, each.status_code, name, each.headers.get(name))
                )
        if "server" in each.headers or "text/html" in each.headers.get("content-type", ""):
            wrong.append((each.request.method, each.request.url.path, each.status_code, "says more", ""))

    assert wrong == []
    assert {each.status_code for each in answers} >= {200, 204, 304, 400, 403, 404, 405, 406, 421, 501}
    assert {each.headers["cache-control"] for each in answers} == {"no-store", "private, no-cache"}
    assert USUAL["Content-Security-Policy"].startswith("default-src 'none'; frame-ancestors 'none'; base-uri 'none'")


async def test_an_internal_error_has_those_headers_and_tells_nothing(file: Holdfast) -> None:
    async def broken(request: Request) -> Identity | None:
        raise ValueError("canary")

    async with browser(asgi(file, auth=broken)) as client:
        answer = await client.get("/api")

    assert answer.status_code == 500
    assert "canary" not in answer.text
    assert {name: answer.headers.get(name) for name in USUAL} == USUAL


# what proxies say


PROXY, OUTSIDER = "10.0.0.1", "192.0.2.1"


def addresses(app: Api, peer: str, headers: list[tuple[str, str]]) -> tuple[str, str, bool]:
    """Tell who an application takes a sender for: address, scheme, and whether it may be given a cookie."""
    scope = {
        "type": "http",
        "scheme": "http",
        "client": (peer, 1),
        "headers": [(name.lower().encode(), value.encode()) for name, value in [("host", "localhost"), *headers]],
    }
    client = app.service.origins.client(scope, Request(scope).headers)
    return client.address, client.scheme, client.is_private


FORWARDED = "X-Forwarded-For"


@pytest.mark.parametrize(
    ("peer", "headers", "seen"),
    [
        (OUTSIDER, [(FORWARDED, "127.0.0.1"), ("X-Forwarded-Proto", "https")], (OUTSIDER, "http", False)),
        (PROXY, [(FORWARDED, "192.0.2.9"), ("X-Forwarded-Proto", "https")], ("192.0.2.9", "https", True)),
        (PROXY, [(FORWARDED, "127.0.0.1, 192.0.2.9, 10.0.0.7")], ("192.0.2.9", "http", False)),
        (PROXY, [(FORWARDED, "127.0.0.1"), (FORWARDED, "192.0.2.9")], ("192.0.2.9", "http", False)),
        (PROXY, [("X-Forwarded-Proto", "https"), ("X-Forwarded-Proto", "http")], (PROXY, "http", False)),
        (PROXY, [("X-Forwarded-Proto", "https, http")], (PROXY, "http", False)),
        (PROXY, [(FORWARDED, "nonsense")], (PROXY, "http", False)),
        (PROXY, [(FORWARDED, "127.0.0.1")], ("127.0.0.1", "http", False)),
        (PROXY, [], (PROXY, "http", False)),
        ("127.0.0.1", [], ("127.0.0.1", "http", True)),
        # a proxy on this machine that nobody has named: all the world comes from here
        ("127.0.0.1", [(FORWARDED, "192.0.2.9")], ("127.0.0.1", "http", False)),
        ("127.0.0.1", [("Via", "1.1 front")], ("127.0.0.1", "http", False)),
    ],
)
def test_what_a_proxy_says_is_believed_of_named_ones_alone(
    file: Holdfast, peer: str, headers: list[tuple[str, str]], seen: tuple[str, str, bool]
) -> None:
    assert addresses(asgi(file, proxies=["10.0.0.0/8"]), peer, headers) == seen


async def test_the_user_that_a_proxy_names_cannot_be_named_by_the_client_as_well(file: Holdfast) -> None:
    app = frame(file, proxies=[PROXY], proxy_users=ProxyUsers("X-User", frozenset({"olga"})))
    async with browser(app, client=(PROXY, 1)) as client:
        told = [await client.get("/api", headers=each) for each in ([("X-User", "vera")], TWICE, [("X-User", " ")])]

    assert [each.status_code for each in told] == [200, 401, 401]


TWICE = [("X-User", "olga"), ("X-User", "vera")]


async def test_metrics_are_open_to_this_machine_and_not_to_a_proxy_on_it(file: Holdfast) -> None:
    """S-30."""
    app = frame(file, metrics_on_loopback=True)
    cases: list[tuple[str, Mapping[str, str], int]] = [
        ("127.0.0.1", {}, 200),
        ("127.0.0.1", {FORWARDED: "192.0.2.9"}, 401),
        (OUTSIDER, {}, 401),
        (OUTSIDER, {FORWARDED: "127.0.0.1"}, 401),
    ]
    for peer, headers, status in cases:
        async with browser(app, client=(peer, 1)) as client:
            assert (await client.get("/metrics", headers=headers)).status_code == status


async def test_a_spoofed_address_is_no_way_round_the_limit_of_logins(file: Holdfast) -> None:
    """S-11."""
    app = asgi(file, limits=Limits(logins_per_minute=2))
    async with browser(app, client=("127.0.0.1", 1)) as client:
        answers = [await guess(client, {}) for number in range(2)]
        answers += [await guess(client, {FORWARDED: f"192.0.2.{number}"}) for number in range(3)]

    assert [each.status_code for each in answers[:2]] == [401] * 2
    assert {each.status_code for each in answers[2:]} <= {403, 429}


async def guess(client: httpx.AsyncClient, headers: Mapping[str, str]) -> httpx.Response:
    return await client.post("/api/session", json={"token": "hf_none"}, headers={**SAME_SITE, **headers})
