"""Posting to receivers that behave, and to those that do not: what comes of it, and within what time and memory."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpcore2
import pytest

from holdfast.webhooks.addresses import AddressRules
from holdfast.webhooks.answers import Answer, NotPosted
from holdfast.webhooks.posting import KEPT_CHARACTERS, MOST_BYTES, Poster, _BoundedStream, _TooLong, resolve
from tests.webhooks.receivers import (
    Behave,
    Received,
    answers,
    bomb,
    drips,
    endless,
    hangs,
    make_certificate,
    receiver,
    says,
)

ANYWHERE = AddressRules(allows_http=True, ports=None, private=True)
SHORT = 0.3


def poster(rules: AddressRules = ANYWHERE, **limits: Any) -> Poster:
    return Poster(rules, time.monotonic, **{"connect_seconds": 5.0, "total_seconds": 10.0, **limits})


async def post(url: str, by: Poster | None = None) -> Answer:
    headers = {"Content-Type": "application/json", "webhook-id": "abc"}
    return await (by or poster()).post(url, headers, b'{"a": 1}')


async def problem_of(url: str, by: Poster | None = None) -> str:
    with pytest.raises(NotPosted) as caught:
        await post(url, by)
    return caught.value.problem


async def test_a_post_is_one_request_with_what_it_was_given() -> None:
    async with receiver(answers(200, b"thanks", X_Extra="1")) as server:
        answer = await post(f"{server.url}?to=7")

    (request,) = server.received
    assert request.line == "POST /hook?to=7 HTTP/1.1"
    assert request.body == b'{"a": 1}'
    assert request.headers["host"] == f"127.0.0.1:{server.port}"
    assert (request.headers["webhook-id"], request.headers["content-type"]) == ("abc", "application/json")
    assert (answer.status, answer.text, answer.headers["x-extra"]) == (200, "thanks", "1")
    assert 0 < answer.seconds < 10


@pytest.mark.parametrize("status", [204, 301, 307, 404, 410, 429, 500, 503])
async def test_any_status_is_an_answer_and_no_redirect_is_followed(status: int) -> None:
    """F-45."""
    async with receiver(answers(200)) as elsewhere:
        async with receiver(answers(status, Location=elsewhere.url, Retry_After="7")) as server:
            answer = await post(server.url)

    assert (answer.status, answer.headers["retry-after"]) == (status, "7")
    assert len(server.received) == 1
    assert not elsewhere.received


# receivers that do not behave


@pytest.mark.parametrize(
    ("behave", "problem"),
    [
        (hangs, "timeout"),
        (drips(b"HTTP/1.1 200 OK\r\n", 0.05), "timeout"),
        (says(b""), "protocol"),
        (says(b"HTTP/1.1 2"), "protocol"),
        (says(b"220 mail.example ESMTP\r\n"), "protocol"),
        (says(b"HTTP/1.1 200 OK\r\nA b c\r\n\r\n"), "protocol"),
        (says(b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n"), "protocol"),
        (endless(b"HTTP/1.1 200 OK\r\n", b"X-Long: " + b"a" * 1000 + b"\r\n"), "too_long"),
        (endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 50), "too_long"),
        (endless(b"", b"a" * 1000), "too_long"),
    ],
    ids=[
        "hangs",
        "drips",
        "closes",
        "half a status",
        "no http",
        "bad header",
        "bad length",
        "long head",
        "1xx",
        "noise",
    ],
)
async def test_without_a_status_it_was_not_posted(behave: Behave, problem: str) -> None:
    """F-45."""
    async with receiver(behave) as server:
        began = time.monotonic()
        found = await problem_of(server.url, poster(total_seconds=SHORT if problem == "timeout" else 10.0))

    assert found == problem
    assert problem != "timeout" or SHORT <= time.monotonic() - began < SHORT + 2


@pytest.mark.parametrize(
    "behave",
    [
        drips(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n" + b"x" * 9, 0.001),
        says(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"),
        says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        endless(b"HTTP/1.1 200 OK\r\nContent-Length: 2147483648\r\n\r\n", b"x" * 65_536),
        endless(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"400\r\n" + b"x" * 1024 + b"\r\n"),
        endless(b"HTTP/1.1 200 OK\r\n\r\n", b"\xff" * 65_536),
    ],
    ids=["drips and closes", "half a body", "bad chunk", "2 GB", "endless chunks", "endless"],
)
async def test_once_the_status_has_come_the_rest_does_not_matter(behave: Behave) -> None:
    """F-45."""
    async with receiver(behave) as server:
        answer = await post(server.url)

    assert answer.status == 200
    assert len(answer.text) <= KEPT_CHARACTERS
    assert answer.seconds < 5  # far from the time limit: it stops by the bytes


async def test_a_body_that_drips_for_ever_ends_with_the_time() -> None:
    """F-45."""
    async with receiver(drips(b"HTTP/1.1 503 No\r\n\r\n" + b"x" * 1000, 0.005)) as server:
        answer = await post(server.url, poster(total_seconds=1.0))

    assert answer.status == 503
    assert answer.text.startswith("xx")
    assert 1.0 <= answer.seconds < 3


async def test_a_compressed_answer_is_not_unpacked_and_memory_stays_flat() -> None:
    """F-45."""
    packed = bomb()
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n".encode()
    async with receiver(says(head + packed)) as server:
        by = poster()
        await post(server.url, by)
        tracemalloc.start()
        try:
            answers_ = [await post(server.url, by) for _ in range(5)]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert [each.status for each in answers_] == [200] * 5
    assert peak < 4_000_000


async def test_no_more_than_64_kilobytes_are_read() -> None:
    """F-45."""
    taken = 0

    async def counting(request: Received, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        transport = writer.transport
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 4096)
            await writer.drain()
            taken += 4096

    async with receiver(counting) as server:
        await post(server.url)

    assert taken < 64 * MOST_BYTES  # the system's own buffers take some more than we do


class Endless(httpcore2.AsyncNetworkStream):
    """Gives as many bytes as it is asked for."""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return b"x" * max_bytes


async def test_a_connection_gives_64_kilobytes_and_then_nothing_more() -> None:
    stream = _BoundedStream(Endless(), MOST_BYTES)

    lengths = [len(await stream.read(40_000)) for _ in range(2)]

    assert lengths == [40_000, MOST_BYTES - 40_000]
    with pytest.raises(_TooLong):
        await stream.read(1)


# where it goes


@pytest.mark.source("DF-43")
async def test_a_private_address_is_refused_and_never_connected_to() -> None:
    async with receiver(answers()) as server:
        strict = AddressRules(allows_http=True, ports=None)
        found = [
            await problem_of(server.url, poster(strict)),
            await problem_of(f"http://localhost:{server.port}/", poster(strict)),
            await problem_of(f"http://inside.example:{server.port}/", poster(strict, resolve=lambda *_: ["127.0.0.1"])),
            await problem_of(
                f"http://mixed.example:{server.port}/", poster(strict, resolve=lambda *_: ["8.8.8.8", "127.0.0.1"])
            ),
            await problem_of(
                f"http://wraps.example:{server.port}/", poster(strict, resolve=lambda *_: ["::ffff:127.0.0.1"])
            ),
        ]

    assert found == ["address"] * 5
    assert not server.received


async def test_a_name_is_resolved_once_and_the_connection_goes_to_what_was_checked() -> None:
    asked: list[tuple[str, int]] = []

    def rebinding(host: str, port: int) -> Sequence[str]:
        asked.append((host, port))
        return ["127.0.0.1"] if len(asked) == 1 else ["192.0.2.1"]

    async with receiver(answers()) as server:
        answer = await post(f"http://hooks.example:{server.port}/x", poster(resolve=rebinding))

    assert answer.status == 200
    assert asked == [("hooks.example", server.port)]
    assert server.received[0].headers["host"] == f"hooks.example:{server.port}"


async def test_a_connection_that_leads_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = httpcore2.AnyIOBackend.connect_tcp

    async def diverted(self: Any, host: str, *args: Any) -> Any:
        return await connect(self, "127.0.0.1", *args)

    monkeypatch.setattr(httpcore2.AnyIOBackend, "connect_tcp", diverted)
    async with receiver(answers()) as server:
        found = await problem_of(f"http://127.0.0.2:{server.port}/")

    assert found == "address"
    assert not server.received


async def test_the_next_address_is_tried_if_the_first_does_not_answer() -> None:
    async with receiver(answers()) as server:
        both = poster(resolve=lambda *_: ["127.0.0.2", "127.0.0.1"])  # the server listens at the second only
        answer = await post(f"http://hooks.example:{server.port}/", both)

    assert answer.status == 200


async def test_no_proxy_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async with receiver(answers()) as server:
        assert (await post(server.url)).status == 200


async def test_a_name_that_nobody_knows_is_told() -> None:
    """F-45."""

    def unknown(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "not known")

    assert await problem_of("http://nobody.example/", poster(resolve=unknown)) == "dns"
    assert await problem_of("http://empty.example/", poster(resolve=lambda *_: [])) == "address"


async def test_a_name_is_resolved_beside_the_event_loop() -> None:
    loop_runs = threading.Event()

    def slow(host: str, port: int) -> Sequence[str]:
        assert loop_runs.wait(10), "the event loop stood still"
        return ["127.0.0.1"]

    async with receiver(answers()) as server:
        posting = asyncio.ensure_future(post(f"http://slow.example:{server.port}/", poster(resolve=slow)))
        await asyncio.sleep(0)
        loop_runs.set()
        assert (await posting).status == 200


async def test_a_resolver_that_hangs_ends_with_the_time() -> None:
    """F-45."""
    gate = threading.Event()

    def hanging(host: str, port: int) -> Sequence[str]:
        gate.wait(10)
        return []

    try:
        assert await problem_of("http://slow.example/", poster(resolve=hanging, total_seconds=SHORT)) == "timeout"
    finally:
        gate.set()


async def test_a_connection_has_a_time_of_its_own() -> None:
    with socket.socket() as full:  # nobody accepts, and one waits already: the next connection is not answered
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(8)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        try:
            assert await problem_of(f"http://127.0.0.1:{port}/", poster(connect_seconds=SHORT)) == "timeout"
        finally:
            for each in waiting:
                each.close()


async def test_nobody_there_is_told() -> None:
    """F-45."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert await problem_of(f"http://127.0.0.1:{closed.getsockname()[1]}/") == "connect"


def test_the_system_resolves_names_and_forms_of_numbers() -> None:
    assert "127.0.0.1" in resolve("localhost", 80) or "::1" in resolve("localhost", 80)
    assert resolve("127.1", 80) == ["127.0.0.1"]


# TLS


async def test_tls_keeps_the_name(tmp_path: Path) -> None:
    context, certificate = make_certificate(tmp_path, "hooks.example")
    names: list[str | None] = []
    context.sni_callback = lambda _, name, __: names.append(name)
    async with receiver(answers(), context) as server:
        by = poster(resolve=lambda *_: ["127.0.0.1"], tls=lambda: ssl.create_default_context(cafile=str(certificate)))
        answer = await post(f"https://hooks.example:{server.port}/", by)

    assert answer.status == 200
    assert names == ["hooks.example"]


async def test_a_certificate_that_is_not_trusted_or_of_another_name_is_refused(tmp_path: Path) -> None:
    """F-45."""
    context, certificate = make_certificate(tmp_path, "hooks.example")
    async with receiver(answers(), context) as server:
        distrusting = poster(resolve=lambda *_: ["127.0.0.1"])
        trusting = poster(
            resolve=lambda *_: ["127.0.0.1"], tls=lambda: ssl.create_default_context(cafile=str(certificate))
        )
        found = [
            await problem_of(f"https://hooks.example:{server.port}/", distrusting),
            await problem_of(f"https://other.example:{server.port}/", trusting),
        ]

    assert found == ["tls", "tls"]
    assert not server.received


async def test_a_server_without_tls_or_one_that_hangs_in_it_is_told() -> None:
    """F-45."""
    async with receiver(hangs) as silent:
        as_tls = f"https://127.0.0.1:{silent.port}/"
        assert await problem_of(as_tls, poster(total_seconds=SHORT)) == "timeout"

    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    async with server:
        assert await problem_of(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/") in ("tls", "connect")
