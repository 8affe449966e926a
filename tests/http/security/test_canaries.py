"""What is hidden is in no answer, stream, download, log or problem; what is shown is there (S-10, S-23, S-24).

A job leaves canaries wherever it can. Their names say who may see them: `plain` is shown to whoever is shown payloads,
`hidden` to nobody, `address` to admins.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
import pytest

from holdfast import Context, Fail, Holdfast, Retry, Tasks
from holdfast.access import Role, make_token
from holdfast.http import asgi
from holdfast.http.endpoint import Endpoint
from holdfast.http.endpoints import ENDPOINTS
from holdfast.worker.options import WorkerKeywords
from tests.http.security.asking import SAME_SITE, WIDE, browser, follow, path_of
from tests.store.engine import make_deliveries
from tests.support.conditions import until
from tests.support.factories import change_job
from tests.support.ways import Way

CANARY = re.compile(r"canary-(?:plain|hidden|address)-\w+")
FAST: WorkerKeywords = {"concurrency": 2, "grace": 0.05}
URL = "https://hooks.example.com/canary-address-path?token=canary-address-query"
NO_ANSWER = {"/api/events"}
"""A stream is read by itself."""

tasks = Tasks()


class CardRefused(Fail):
    """An error that has attributes."""


@tasks.task(name="charge", retry=Retry.never(), redact=("card.number", "lines.*.iban", "output_card"))
async def charge(ctx: Context, note: str, password: str, card: dict[str, str], lines: list[dict[str, str]]) -> Any:
    """Leave canaries wherever a job can."""
    ctx.progress(50, "password=canary-hidden-message at postgres://ada:canary-hidden-dsn@db/shop")
    await ctx.journal.append("message", {"text": "canary-plain-journal", "api_key": "canary-hidden-journal"})
    if note == "canary-plain-broken":
        error = CardRefused("canary-plain-error; token=canary-hidden-error postgres://ada:canary-hidden-url@db/shop")
        error.password = "canary-hidden-attribute"  # type: ignore[attr-defined]
        raise error
    return {"text": "canary-plain-output", "secret": "canary-hidden-output", "output_card": "canary-hidden-path"}


INPUT = {
    "note": "canary-plain-note",
    "password": "canary-hidden-password",
    "card": {"number": "canary-hidden-number", "holder": "canary-plain-holder"},
    "lines": [{"iban": "canary-hidden-iban", "text": "canary-plain-line"}],
}


@dataclass(frozen=True)
class Scene:
    """Two jobs that have left canaries, one that is paused, and all else that an endpoint can be asked for."""

    hf: Holdfast
    done: str
    failed: str
    paused: str
    names: dict[str, str]
    """What stands for `{id}` below each resource."""


@pytest.fixture(params=["sqlite", "postgres"])
async def scene(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Scene]:
    """Have jobs leave their canaries."""
    hf = new_holdfast(request.param, tasks=[tasks])
    way = Way(hf, is_async=True)
    async with hf:
        webhook = await hf.webhooks.subscribe(URL)
        done, failed = [
            await hf.start(charge(**{**INPUT, "note": note}), lane="one") for note in ("canary-plain-note", BROKEN)
        ]
        paused = await hf.start(charge(**INPUT), paused=True, lane="two")
        await hf.schedules.put("nightly", charge(**INPUT).options(webhook=URL), cron="0 3 * * *")
        async with hf.worker(**FAST):
            await until(lambda: _is_over(hf, [done.id, failed.id]), "the jobs are over")
        await make_deliveries(way)
        deliveries = await hf.webhooks.deliveries()
        for each in deliveries:
            await change_job(way, each.id, error=f'{{"type":"Refused","message":"cannot post to {URL}"}}')
        link = await hf.links.create(done)
        names = {"webhooks": str(webhook.id), "deliveries": str(deliveries[0].id), "links": str(link.link.id)}
        yield Scene(hf, str(done.id), str(failed.id), str(paused.id), names)


BROKEN = "canary-plain-broken"


async def _is_over(hf: Holdfast, ids: list[Any]) -> bool:
    return {str((await hf.get_job(each)).state) for each in ids} <= {"completed", "failed"}


def query_of(endpoint: Endpoint) -> dict[str, Any]:
    """Give what an endpoint asks for."""
    if "lane" in endpoint.path:
        return {"key": "one"} if "key" in endpoint.query.model_fields else {}
    if "/schedule/preview" in endpoint.path:
        return {"rule": "0 3 * * *"}
    if "/schedule" in endpoint.path:
        return {"name": "nightly"} if "name" in endpoint.query.model_fields else {}
    if "/queue" in endpoint.path:
        return {"name": "default"} if "name" in endpoint.query.model_fields else {}
    if "suggest" in endpoint.path:
        return {"q": "input."}
    if "events.json" in endpoint.path:
        return {"limit": 500}
    return {"view": "full", "limit": 100} if "view" in endpoint.query.model_fields else {}


async def walk(client: httpx.AsyncClient, scene: Scene, role: Role) -> dict[str, httpx.Response]:
    """Ask every endpoint that reads, about each of the jobs."""
    answers = {}
    for each in ENDPOINTS:
        if each.is_act or each.in_control or each.path in NO_ANSWER:
            continue
        if isinstance(each.role, Role) and not role.allows(each.role):
            continue
        resource = each.path.split("/")[2] if each.path.count("/") > 1 else ""
        for id_ in [scene.names[resource]] if resource in scene.names else [scene.done, scene.failed, scene.paused]:
            path = path_of(each).replace(path_of(NO_ID_ENDPOINT).rpartition("/")[2], id_).replace("/some", "/charge")
            answers[f"{path} of {id_}"] = await client.get(path, params=query_of(each))
    return answers


NO_ID_ENDPOINT = next(each for each in ENDPOINTS if each.path == "/api/jobs/{id}")


def canaries(*texts: str) -> set[str]:
    """Find the canaries in texts."""
    return {found for each in texts for found in CANARY.findall(each)}


def kinds(found: set[str]) -> set[str]:
    """Give who may see them."""
    return {each.split("-")[1] for each in found}


PLAIN = {"note", "holder", "line", "journal", "error", "output", "broken"}


@pytest.mark.parametrize(
    ("role", "payloads", "seen"),
    [
        (Role.VIEWER, False, set()),
        (Role.OPERATOR, False, set()),
        (Role.ADMIN, False, {"address"}),
        (Role.VIEWER, True, {"plain"}),
        (Role.ADMIN, True, {"plain", "address"}),
    ],
)
async def test_a_reader_sees_just_what_they_may(scene: Scene, role: Role, payloads: bool, seen: set[str]) -> None:
    token = (await scene.hf.tokens.create("ada", role=role, payloads=payloads)).token
    async with browser(asgi(scene.hf, limits=WIDE)) as client:
        client.headers["Authorization"] = f"Bearer {token}"
        answers = await walk(client, scene, role)
        stream = await streamed(scene, token)
    broken = {name: (each.status_code, each.text[:300]) for name, each in answers.items() if each.status_code >= 500}
    refused = {name for name, each in answers.items() if each.status_code in (400, 403, 404)}
    wrong = {name: found for name, each in answers.items() if not kinds(found := canaries(each.text)) <= seen}
    all_seen = canaries(stream, *(each.text for each in answers.values()))

    assert broken == {}
    assert wrong == {}
    assert kinds(canaries(stream)) <= seen
    assert kinds(all_seen) == seen
    assert not [name for name in refused if "/phases/" not in name and "openapi" not in name], refused
    if payloads:
        assert {each.split("-")[2] for each in all_seen if "plain" in each} == PLAIN
        assert {each.split("-")[2] for each in canaries(stream) if "plain" in each} >= {"note", "output", "error"}


async def streamed(scene: Scene, token: str) -> str:
    """Read a stream from its snapshot on, and what happens meanwhile."""
    async with follow(asgi(scene.hf), token) as stream, scene.hf.worker(**FAST):
        await scene.hf.retry(scene.failed)
        await until(lambda: "job:failed" in stream.text or stream.is_over, "the failure has come")
    return stream.text


VERBS = ("retry", "cancel", "pause")


@pytest.mark.parametrize("payloads", [False, True])
async def test_no_problem_tells_what_is_hidden(scene: Scene, payloads: bool, caplog: pytest.LogCaptureFixture) -> None:
    odd = {**INPUT, "password": ["canary-hidden-odd"], "card": {"number": {"of": "canary-hidden-deep"}}, "note": 7}
    way = Way(scene.hf, is_async=True)
    await change_job(way, UUID(scene.paused), input=json.dumps(odd))
    token = (await scene.hf.tokens.create("ada", role="operator", payloads=payloads)).token
    caplog.clear()
    caplog.set_level("DEBUG")
    async with browser(asgi(scene.hf, limits=WIDE)) as client:
        client.headers["Authorization"] = f"Bearer {token}"
        stale = {"if_state": "done/9/00"}
        answers = [
            *[await client.post(f"/api/jobs/{scene.failed}/{verb}", json=stale) for verb in VERBS],
            await client.post(f"/api/jobs/{scene.paused}/resume", json={"arguments": {"note": 8}}),
            await client.post(f"/api/jobs/{scene.paused}/resume", json={"arguments": {"card": 8}}),
            await client.post(f"/api/jobs/{scene.paused}/start-again", json={}),
            await client.post(f"/api/jobs/{scene.done}/retry", json={}),
            await client.post(f"/api/jobs/{scene.done}/complete", json={"output": 1}),
            await client.post("/api/lane/skip?key=one", json={"if_head": scene.done}),
            await client.get("/api/jobs", params={"input.password": "canary"}),
            await client.get("/api/jobs", params={"input.card.number": "canary"}),
            await client.get("/api/jobs", params={"q": "input.lines.0.iban:canary"}),
            await client.get("/api/jobs.csv", params={"input.password": "canary"}),
            await client.post("/api/bulk", json={"verb": "cancel", "dry_run": True, "filter": "input.password:c"}),
            await client.post("/api/bulk", json={"verb": "cancel", "filter": {"input": {"card.number": "c"}}}),
        ]
        shown = await client.get("/api/jobs", params={"input.note": "Ada"})
    told = "".join([*(each.text for each in answers), caplog.text])

    assert {each.status_code for each in answers[:3]} == {412}
    assert [each.status_code for each in answers[-6:]] == [403] * 6
    assert shown.status_code == (200 if payloads else 403)
    assert kinds(canaries(told)) <= ({"plain"} if payloads else set())


async def test_nobody_is_told_where_the_database_is(caplog: pytest.LogCaptureFixture) -> None:
    """S-23, S-30."""
    caplog.set_level("DEBUG")
    url = "postgresql://canary-hidden-user:canary-hidden-password@127.0.0.1:1/canary-hidden-name"
    hf = Holdfast(url, deadline_seconds=0.1)
    async with browser(asgi(hf)) as client:
        answers = [
            await client.get("/readyz"),
            await client.get("/api/jobs", headers={"Authorization": f"Bearer {make_token(7)}"}),
            await client.post("/api/session", json={"token": make_token(7)}, headers=SAME_SITE),
            await client.get("/healthz"),
        ]
    await hf.close()

    assert [each.status_code for each in answers] == [503, 503, 503, 204]
    assert [each.text for each in answers if "127.0.0.1" in each.text or "canary" in each.text] == []
    assert "canary-hidden-password" not in caplog.text + repr(hf)
    assert answers[-1].content == b""


async def test_what_is_put_into_names_forges_no_line_and_no_formula(hf: Holdfast) -> None:
    """S-26, S-27."""
    token = (await hf.tokens.create("ada", role="operator")).token
    async with browser(asgi(hf)) as client:
        client.headers["Authorization"] = f"Bearer {token}"
        forged = [await start(client, lane=each) for each in ("a\n\nevent: x", "a\x00", "\x1b")]
        formula = [await start(client, lane=each) for each in ('=cmd|" /C calc"!A0', "+1", "-1", "@x")]
        rows = (await client.get("/api/jobs.csv")).text.splitlines()[1:]
        key = await client.post("/api/jobs", json={"task": "greet"}, headers={"Idempotency-Key": "a\tb"})

    assert [each.status_code for each in (*forged, key)] == [400] * 4
    assert [each.status_code for each in formula] == [201] * 4
    assert len(rows) == 4
    assert [cell for row in csv.reader(rows) for cell in row if cell[:1] in ("=", "+", "-", "@")] == []


async def start(client: httpx.AsyncClient, **options: Any) -> httpx.Response:
    return await client.post("/api/jobs", json={"task": "greet", "arguments": {"name": "Ada"}, "options": options})
