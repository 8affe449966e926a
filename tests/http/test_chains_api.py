"""`/api/chains`, `/api/links`, `/api/tasks` and what is exported."""

from __future__ import annotations

import csv
import io
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Holdfast
from tests.http.api import api
from tests.store.engine import DONE, run
from tests.support.factories import greet, make_job
from tests.support.ways import Way


@pytest.fixture
def way(hf: Holdfast) -> Way:
    return Way(hf, is_async=True)


def ids(answer: Any) -> list[str]:
    return [each["id"] for each in answer.json()["items"]]


# ---- chains


async def test_chains_are_listed_and_narrowed(way: Way) -> None:
    open_, closed = await way.hf.start_many([greet(name="Ada"), greet(name="Bob")])
    await way.hf.cancel(closed)

    async with api(way.hf) as client:
        everything = await client.get("/api/chains")
        only_open = await client.get("/api/chains?is_open=true")
        cancelled = await client.get("/api/chains?status=cancelled&limit=1")

    assert ids(everything) == [str(closed.id), str(open_.id)]
    assert (ids(only_open), ids(cancelled)) == ([str(open_.id)], [str(closed.id)])


async def test_a_chain_and_its_jobs_are_read(way: Way) -> None:
    chain = await way.hf.start(greet(name="Ada"))
    await run(way, DONE)

    async with api(way.hf) as client:
        found = (await client.get(f"/api/chains/{chain.id}")).json()
        steps = await client.get(f"/api/chains/{chain.id}/jobs?view=full")

    assert (found["status"], found["is_open"]) == ("completed", False)
    assert [each["input"] for each in steps.json()["items"]] == [{"name": "Ada"}]


@pytest.mark.parametrize("path", ["", "/jobs", "/blocked", "/export"])
async def test_a_chain_that_is_not_there_is_not_found(hf: Holdfast, path: str) -> None:
    async with api(hf) as client:
        answer = await client.get(f"/api/chains/{uuid4()}{path}")

    assert answer.status_code == 404


async def test_a_guest_reads_one_chain(hf: Holdfast) -> None:
    mine, other = await hf.start_many([greet(name="Ada"), greet(name="Bob")])
    link = (await hf.links.create(mine)).token

    async with api(hf, token=link) as client:
        answers = [
            (await client.get(path)).status_code
            for path in (
                f"/api/chains/{mine.id}",
                f"/api/chains/{mine.id}/jobs",
                f"/api/chains/{other.id}",
                f"/api/chains/{other.id}/jobs",
                f"/api/jobs/{mine.id}",
                "/api/chains",
            )
        ]

    assert answers == [200, 200, 404, 404, 403, 403]


async def test_a_dry_run_tells_what_a_delete_would_take_and_takes_nothing(hf: Holdfast) -> None:
    first = await hf.start(greet(name="Ada"))
    second = await hf.start(greet(name="Bob").options(blockers=[first]))
    path = f"/api/chains/{second.id}"

    async with api(hf, role="operator") as client:
        alone = (await client.delete(path, params={"dry_run": "true"})).json()
        with_all = (await client.delete(path, params={"dry_run": "true", "cascade": "true"})).json()
        kept = await hf.list_jobs()
        done = (await client.delete(path, params={"cascade": "true", "why": "old"})).json()

    assert (alone["ids"], set(with_all["ids"]), len(kept)) == ([str(second.id)], {str(first.id), str(second.id)}, 2)
    assert set(done["ids"]) == set(with_all["ids"])
    (entry,) = await hf.audit(action="delete")
    assert entry.why == "old"


@pytest.mark.parametrize("dry_run", ["true", "false"])
async def test_what_others_wait_for_is_not_deleted(hf: Holdfast, dry_run: str) -> None:
    first = await hf.start(greet(name="Ada"))
    second = await hf.start(greet(name="Bob").options(blockers=[first]))

    async with api(hf, role="operator") as client:
        answer = await client.delete(f"/api/chains/{first.id}", params={"dry_run": dry_run})
        gone = await client.delete(f"/api/chains/{uuid4()}", params={"dry_run": dry_run})

    assert (answer.status_code, answer.json()["code"]) == (409, "still_referenced")
    assert answer.json()["facts"]["references"] == [[str(first.id), str(second.id)]]
    assert gone.status_code == 404


# ---- links


async def test_a_link_is_made_used_listed_and_revoked(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.http.identity.KEPT_SECONDS", 0.0)
    chain = await hf.start(greet(name="Ada"))
    body = {"hours": 2, "why": "for the customer"}

    async with api(hf, role="operator") as client:
        made = await client.post(f"/api/chains/{chain.id}/links", json=body)
        listed = await client.get("/api/links")
        address, _, secret = made.json()["url"].partition("#")
        async with api(hf, token=secret) as guest:
            seen = await guest.get(f"/api/chains/{chain.id}")
            await client.delete(f"/api/links/{made.json()['link']['id']}")
            unseen = await guest.get(f"/api/chains/{chain.id}")

    assert (made.status_code, address) == (201, "http://localhost/shared")
    assert ids(listed) == [made.json()["link"]["id"]]
    assert secret not in listed.text
    assert (seen.status_code, unseen.status_code) == (200, 401)


async def test_nobody_shows_by_a_link_what_they_may_not_see(hf: Holdfast) -> None:
    chain = await hf.start(greet(name="Ada"))

    async with api(hf, role="operator", payloads=False) as client:
        refused = await client.post(f"/api/chains/{chain.id}/links", json={"payloads": True})
        made = await client.post(f"/api/chains/{chain.id}/links", json={})

    assert (refused.status_code, made.status_code) == (403, 201)


# ---- exports


async def test_an_exported_chain_has_its_jobs_and_their_events_and_stands_in_the_audit(way: Way) -> None:
    chain = await way.hf.start(greet(name="Ada"))
    await run(way, DONE)

    async with api(way.hf, name="ada") as client:
        answer = await client.get(f"/api/chains/{chain.id}/export")

    found = answer.json()
    assert [job["input"] for job in found["jobs"]] == [{"name": "Ada"}]
    assert [event["event"] for event in found["events"]][:2] == ["job:enqueued", "job:started"]
    assert (found["is_whole"], found["exported_by"]) == (True, "ada")
    assert answer.headers["content-disposition"] == f'attachment; filename="chain-{chain.id}.json"'
    (entry,) = await way.hf.audit(action="export")
    assert (entry.who, entry.subject) == ("ada", str(chain.id))


async def test_an_export_shows_no_more_than_its_reader_may_see(hf: Holdfast) -> None:
    chain = await hf.start(greet(name="canary"))

    async with api(hf, payloads=False) as client:
        answer = await client.get(f"/api/chains/{chain.id}/export")

    assert "canary" not in answer.text


async def test_jobs_are_downloaded_as_csv_without_payloads_and_no_cell_is_a_formula(way: Way) -> None:
    await way.hf.start(greet(name="canary").options(lane="=1+1", tags=["@sum"], priority=-5))
    await make_job(way, "failed", error='{"type": "-Boom", "message": "canary"}', reason="\tcmd")

    async with api(way.hf) as client:
        answer = await client.get("/api/jobs.csv?order=oldest")

    first, second = csv.DictReader(io.StringIO(answer.text))
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert (first["lane"], first["tags"], first["priority"]) == ("'=1+1", "'@sum", "-5")
    assert (second["error_type"], second["reason"]) == ("'-Boom", "'\tcmd")
    assert "canary" not in answer.text
    assert len(await way.hf.audit(action="export")) == 1


async def test_a_csv_goes_over_several_pages_and_has_an_end(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.http.exports.LARGE_PAGE", 2)
    monkeypatch.setattr("holdfast.http.exports.MOST_ROWS", 5)
    await hf.start_many([greet(name=str(number)) for number in range(7)])

    async with api(hf) as client:
        answer = await client.get("/api/jobs.csv")
        head = await client.head("/api/jobs.csv")

    assert len(answer.text.splitlines()) == 1 + 5
    assert (head.status_code, head.content) == (200, b"")


# ---- tasks


async def test_tasks_are_listed_and_read_with_their_figures(hf: Holdfast) -> None:
    async with api(hf) as client:
        listed = await client.get("/api/tasks")
        one = await client.get("/api/tasks/greet")
        other = await client.get("/api/tasks/gret")

    assert [each["name"] for each in listed.json()["items"]] == ["add", "greet"]
    assert one.json()["input_schema"]["properties"]["name"]["type"] == "string"
    assert one.json()["last_hour"]["counts"]["started"] == 0
    assert (other.status_code, other.json()["code"]) == (404, "task_not_found")
