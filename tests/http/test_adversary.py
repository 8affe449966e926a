"""What hostile readers, operators and unlucky clients have tried, on both databases: each test is one attempt."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.datastructures import Headers

from holdfast import Holdfast, Tasks
from holdfast.http import asgi
from holdfast.http.origins import Origins
from holdfast.http.targets import targets
from tests.http.api import api
from tests.store.engine import admit
from tests.support.ways import Way

tasks = Tasks()
ARGUMENTS = {"note": "hello", "password": "hunter2", "iban": "DE02", "card": {"number": "4111", "holder": "Ada"}}


@tasks.task(name="charge", redact=["card.number"])
async def charge(note: str, password: str, iban: str, card: dict[str, str]) -> None:
    """Take what has secrets by name, by the server and by the task."""


@pytest.fixture(params=["sqlite", "postgres"])
async def hf(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Holdfast]:
    """A face on either database, whose task has secrets."""
    face = new_holdfast(request.param, tasks=[tasks])
    async with face:
        yield face


async def paused_job(hf: Holdfast) -> str:
    """Start a job that waits for an edit."""
    return str((await hf.start(charge(**ARGUMENTS).options(paused=True))).id)  # type: ignore[arg-type]


# finding out what is hidden


@pytest.mark.parametrize(
    ("guess", "other", "changed"),
    [
        ({"card": {"number": "4111"}}, {"card": {"number": "4112"}}, ["card.number"]),
        ({"password": "hunter2"}, {"password": "hunter3"}, ["password"]),
        ({"iban": "DE02"}, {"iban": "DE03"}, ["iban"]),
    ],
)
async def test_an_edit_does_not_tell_whether_a_hidden_value_was_guessed(
    hf: Holdfast, guess: dict[str, Any], other: dict[str, Any], changed: list[str]
) -> None:
    told = []
    async with api(hf, role="operator", redact=["iban"]) as operator:
        for arguments in (guess, other):
            job = await paused_job(hf)
            await operator.post(f"/api/jobs/{job}/resume", json={"arguments": arguments})
            events = (await operator.get(f"/api/jobs/{job}/timeline")).json()["items"]
            entries = (await operator.get(f"/api/jobs/{job}/journal")).json()["items"]
            told.append(([each["facts"].get("changed") for each in events], len(entries)))
    assert told == [([None, changed], 1)] * 2


async def test_an_operator_without_payloads_changes_no_input(hf: Holdfast) -> None:
    job = await paused_job(hf)
    async with api(hf, role="operator", payloads=False) as operator:
        refused = await operator.post(f"/api/jobs/{job}/resume", json={"arguments": {"note": "hello"}})
    assert (refused.status_code, (await hf.get_job(job)).state) == (403, "paused")


# losing what was there


async def test_an_edit_that_sends_back_what_the_server_hides_leaves_it_as_it_was(hf: Holdfast) -> None:
    job = await paused_job(hf)
    async with api(hf, role="operator", redact=["iban"]) as operator:
        seen = (await operator.get(f"/api/jobs/{job}")).json()["input"]
        await operator.post(f"/api/jobs/{job}/resume", json={"arguments": {**seen, "note": "bye"}})
    stored = (await hf.get_job(job)).input
    assert (stored.note, stored.iban, stored.card["number"]) == ("bye", "DE02", "4111")


# doing what only others may


@pytest.mark.parametrize("wanted", ["status:cancelled", "id:{id}", "chain:{id}", "chain_task:holdfast.bulk"])
async def test_an_operator_revives_no_bulk_delete_by_a_filter(hf: Holdfast, wanted: str) -> None:
    async with api(hf, role="admin", name="root") as admin, api(hf, role="operator") as operator:
        act = (await admin.post("/api/bulk", json={"verb": "delete", "filter": "task:charge"})).json()["id"]
        await admin.post(f"/api/jobs/{act}/cancel")
        retry = {"verb": "retry", "filter": wanted.format(id=act)}
        count = (await operator.post("/api/bulk", json={**retry, "dry_run": True})).json()["count"]
        await operator.post("/api/bulk", json=retry)
        async with hf.worker():
            await hf.wait([each.chain_id for each in await hf.list_jobs(task="holdfast.bulk") if each.id != act])
    assert (count, (await hf.get_job(act)).state) == (0, "cancelled")


# asking what breaks the server


async def test_a_number_of_thousands_of_digits_is_a_wrong_filter(hf: Holdfast) -> None:
    async with api(hf) as viewer:
        assert (await viewer.get("/api/jobs", params={"input.amount": "9" * 5_000})).status_code == 400


async def test_an_outsider_is_not_told_where_the_database_is(
    new_holdfast: Callable[..., Holdfast], tmp_path: Path
) -> None:
    async with new_holdfast("sqlite", tasks=[tasks]) as face:
        chain = await face.start(charge(**ARGUMENTS))  # type: ignore[arg-type]
        link = await face.links.create(chain, payloads=True)
        async with api(face, token=link.token) as guest:
            assert (await guest.get(f"/api/chains/{chain.id}")).status_code == 200
            (tmp_path / "jobs.db").rename(tmp_path / "away.db")
            told = await guest.get(f"/api/chains/{chain.id}")
            (tmp_path / "away.db").rename(tmp_path / "jobs.db")
    assert (told.status_code, "jobs.db" in told.text) == (503, False)


async def test_a_body_that_anybody_may_send_is_small(hf: Holdfast) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(asgi(hf)), base_url="http://localhost") as nobody:
        headers = {"Content-Type": "application/json", "Sec-Fetch-Site": "same-origin"}
        many = json.dumps(dict.fromkeys(map(str, range(2_000)), 0))
        assert (await nobody.post("/api/session", content=many, headers=headers)).status_code == 413


async def test_of_many_wrong_keys_ten_are_told_and_all_are_counted(hf: Holdfast) -> None:
    async with api(hf, role="operator") as operator:
        told = (await operator.post("/api/jobs", json=dict.fromkeys(map(str, range(99_000)), 0))).json()
    assert (len(told["errors"]), told["detail"]) == (10, "task: field required (and 99000 more)")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"task": ' + b"9" * 5_000 + b"}", "digits"),
        (b'{"task": NaN}', "NaN is not a JSON value"),
        (b'{"task": "\xff"}', "no UTF-8"),
    ],
)
async def test_a_body_that_cannot_be_read_is_told_why(hf: Holdfast, body: bytes, reason: str) -> None:
    async with api(hf, role="operator") as operator:
        told = await operator.post("/api/jobs", content=body, headers={"Content-Type": "application/json"})
    assert (told.status_code, reason in told.json()["detail"]) == (400, True), told.text


async def test_a_key_of_a_million_characters_is_not_sent_back(hf: Holdfast) -> None:
    async with api(hf, role="operator") as operator:
        assert len((await operator.post("/api/jobs", json={"k" * 900_000: 0})).content) < 2_000


@pytest.mark.parametrize(
    ("address", "source", "is_behind_proxy"),
    [
        ("::ffff:192.0.2.7", "192.0.2.7", False),
        ("::ffff:10.0.0.7", "10.0.0.7", True),
        ("::ffff:7f00:1", "127.0.0.1", False),
        ("fe80::7%eth0", "fe80::/64", False),
        ("unix:", "unix:", False),
    ],
)
def test_a_socket_of_both_kinds_of_addresses_tells_them_apart(address: str, source: str, is_behind_proxy: bool) -> None:
    rules = Origins.of([], [], ["10.0.0.0/8"])
    client = rules.client({"type": "http", "client": (address, 1)}, Headers({"host": "localhost"}))
    assert (client.source, client.is_behind_proxy) == (source, is_behind_proxy)


async def test_the_default_of_a_hidden_argument_is_hidden(hf: Holdfast) -> None:
    @dataclass
    class Card:
        number: str = "canary"
        holder: str = "shown-holder"

    @hf.task(name="pay", redact=["card.number", "pin"])
    async def pay(
        card: Card, pin: str = "canary", api_key: str = "canary", iban: str = "canary", note: str = "shown-note"
    ) -> None:
        """Take secrets unless they are given."""

    await hf.start(pay(card=Card()))
    async with api(hf, redact=["iban"]) as viewer:
        for path in ("/api/tasks", "/api/tasks/pay"):
            text = (await viewer.get(path)).text
            assert ("canary" in text, "shown-holder" in text, "shown-note" in text) == (False, True, True), text


# the target queue's own routes


@asynccontextmanager
async def target_client(hf: Holdfast, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Give a client of the target queue's own routes, with a viewer's key."""

    @hf.task(name="operate")
    async def operate(target: str, name: str, parameters: dict[str, Any]) -> None:
        """Do what a client has sent."""

    key = (await hf.tokens.create("reader", **options)).token
    transport = httpx.ASGITransport(targets(hf, task=operate))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers={"X-API-Key": key}
    ) as client:
        await hf.start(operate(target="vm-7", name="reboot", parameters={}).options(lane="vm-7"))
        yield client


async def test_who_is_shown_no_inputs_finds_no_target_job_by_its_name(hf: Holdfast) -> None:
    async with target_client(hf, payloads=False) as reader:
        assert (await reader.get("/jobs/?name=reboot")).status_code == 403


async def test_a_target_with_a_nul_is_a_wrong_name(hf: Holdfast) -> None:
    async with target_client(hf) as reader:
        assert [(await reader.get(each)).status_code for each in ("/jobs/?target=%00", "/targets/%00/jobs/")] == [
            400,
            400,
        ]


async def test_the_health_of_a_target_server_does_not_tell_where_its_database_is(
    new_holdfast: Callable[..., Holdfast], tmp_path: Path
) -> None:
    async with new_holdfast("sqlite") as face, target_client(face) as nobody:
        (tmp_path / "jobs.db").rename(tmp_path / "away.db")
        told = await nobody.get("/health/db", headers={"X-API-Key": ""})
        (tmp_path / "away.db").rename(tmp_path / "jobs.db")
    assert (told.status_code, "jobs.db" in told.text) == (503, False)


# having the server keep too much


@pytest.mark.parametrize("order", ["newest", "oldest"])
async def test_a_page_of_large_jobs_is_short_and_the_next_goes_on_behind_it(
    hf: Holdfast, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.http.jobs.MOST_FULL_LENGTH", 4_000)
    large = {**ARGUMENTS, "note": "x" * 1_500}
    started = await hf.start_many([charge(**large) for _ in range(5)])  # type: ignore[arg-type]
    seen: list[str] = []
    sizes: list[tuple[int, bool]] = []
    cursor: str | None = ""
    async with api(hf) as viewer:
        while cursor is not None:
            query = f"view=full&limit=100&order={order}" + (f"&cursor={cursor}" if cursor else "")
            page = (await viewer.get(f"/api/jobs?{query}")).json()
            seen += [each["id"] for each in page["items"]]
            sizes.append((len(page["items"]), page["searched"]["is_end"]))
            cursor = page["next_cursor"]
    wanted = [str(each.id) for each in started]
    assert (seen, sizes) == (wanted if order == "oldest" else wanted[::-1], [(2, False), (2, False), (1, True)])


async def test_the_jobs_of_a_lane_are_listed_without_their_inputs(hf: Holdfast) -> None:
    await hf.start(charge(**ARGUMENTS).options(lane="vm-7"))  # type: ignore[arg-type]
    await admit(Way(hf, is_async=True))
    async with api(hf) as viewer:
        (job,) = (await viewer.get("/api/lane/jobs?key=vm-7")).json()["items"]
    assert (job["lane"], job["input"]) == ("vm-7", None)


async def test_a_path_of_the_input_that_is_given_twice_is_refused(hf: Holdfast) -> None:
    async with api(hf) as viewer:
        told = await viewer.get("/api/jobs?input.note=hello&input.note=bye")
    assert (told.status_code, told.json()["errors"][0]["path"]) == (400, "input.note")


async def test_what_is_said_of_a_wrong_argument_does_not_tell_the_default_of_a_secret(hf: Holdfast) -> None:
    @hf.task(name="pay")
    async def pay(amount: int, api_key: str = "canary", note: str = "shown-note") -> None:
        """Take a secret unless it is given."""

    async with api(hf, role="operator") as operator:
        told = (await operator.post("/api/jobs", json={"task": "pay", "arguments": {"amount": "x"}})).text
    assert ("canary" in told, "shown-note" in told) == (False, True), told
