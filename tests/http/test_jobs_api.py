"""`/api/jobs`: lists, one job and what there is of it, and the verbs; every answer is as the table says (`api`)."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast import Holdfast
from holdfast.attempts import attempts_of
from tests.http.api import api
from tests.store.engine import DONE, FAIL, RETRY, claim_one, come_due, run, settle
from tests.support.factories import add, continue_chain, greet, make_job, make_phase, now_ms
from tests.support.ways import Way


@pytest.fixture
def way(hf: Holdfast) -> Way:
    return Way(hf, is_async=True)


def ids(answer: Any) -> list[str]:
    return [each["id"] for each in answer.json()["items"]]


# ---- lists


async def test_a_list_has_the_jobs_that_fit_newest_first(hf: Holdfast) -> None:
    chains = await hf.start_many([greet(name="Ada"), add(a=1, b=2), greet(name="Bob")])

    async with api(hf) as client:
        answer = await client.get("/api/jobs", params={"task": "greet"})

    assert ids(answer) == [str(chains[2].id), str(chains[0].id)]
    assert answer.json()["searched"]["is_end"]


@pytest.mark.parametrize(
    ("query", "fitting"),
    [
        ("q=task:add", [1]),
        ("q=input.name:Ada", [0]),
        ("input.name=Ada", [0]),
        ("input.a=1&task=add", [1]),
        ('input.a="1"&task=add', []),
        ("task=greet,add", [1, 0]),
        ("task=greet&task=add", [1, 0]),
        ("queue=sums", [1]),
        ("q=task:greet&status=pending", [0]),
        ("q=input.a:1&input.b=2", [1]),
        ("q=since:1h&order=oldest", [0, 1]),
    ],
)
async def test_filters_are_single_ones_or_one_text(hf: Holdfast, query: str, fitting: list[int]) -> None:
    chains = await hf.start_many([greet(name="Ada"), add(a=1, b=2)])

    async with api(hf) as client:
        answer = await client.get(f"/api/jobs?{query}")

    assert ids(answer) == [str(chains[at].id) for at in fitting]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("q=task:greet&task=add", "invalid_input"),
        ("q=since:1h&created_from=2026-05-04T12:00Z", "invalid_input"),
        ("q=input.a:1&input.a=2", "invalid_input"),
        ("q=tusk:greet", "invalid_filter"),
        ("tusk=greet", "invalid_input"),
        ("status=asleep", "invalid_input"),
        ("created_from=2026-05-04T12:00", "invalid_input"),
        ("limit=501", "invalid_input"),
        ("view=full&limit=101", "invalid_input"),
        ("cursor=nonsense", "usage"),
        ('input.a="1', "invalid_filter"),
    ],
)
async def test_what_cannot_be_meant_is_refused(hf: Holdfast, query: str, code: str) -> None:
    async with api(hf) as client:
        answer = await client.get(f"/api/jobs?{query}")

    assert (answer.status_code, answer.json()["code"]) == (400, code)


async def test_a_brief_list_has_no_payloads_and_a_full_one_has(hf: Holdfast) -> None:
    await hf.start(greet(name="Ada"))

    async with api(hf) as client:
        brief = (await client.get("/api/jobs")).json()["items"][0]
        full = (await client.get("/api/jobs?view=full&limit=100")).json()["items"][0]

    assert (brief["input"], full["input"]) == (None, {"name": "Ada"})


async def test_the_cursor_of_a_page_leads_to_the_next(hf: Holdfast) -> None:
    chains = await hf.start_many([greet(name=str(number)) for number in range(5)])

    async with api(hf) as client:
        first = await client.get("/api/jobs?limit=3")
        second = await client.get("/api/jobs", params={"limit": 3, "cursor": first.json()["next_cursor"]})

    assert ids(first) + ids(second) == [str(each.id) for each in reversed(chains)]
    assert second.json()["next_cursor"] is None


# ---- one job


async def test_a_job_is_read_with_its_phases(way: Way) -> None:
    job_id = await make_job(way, "running", current_phase="pack")
    await make_phase(way, job_id, "pack")

    async with api(way.hf) as client:
        answer = await client.get(f"/api/jobs/{job_id}")

    assert [each["name"] for each in answer.json()["phases"]] == ["pack"]
    assert answer.json()["input"] == {"name": "Ada"}


async def test_who_may_not_see_payloads_gets_none(way: Way) -> None:
    job_id = await make_job(way, "failed", error='{"type": "Boom", "message": "secret", "attempt": 1, "worker": "w"}')

    async with api(way.hf, payloads=False) as client:
        job = (await client.get(f"/api/jobs/{job_id}")).json()
        why = await client.get(f"/api/jobs/{job_id}/explain")
        result = await client.get(f"/api/jobs/{job_id}/phases/pack/result")

    assert (job["input"], job["error"]) == (None, {"type": "Boom"})
    assert "secret" not in why.text
    assert result.status_code == 403


@pytest.mark.parametrize("path", ["", "/timeline", "/attempts", "/blockers", "/journal", "/phases/pack/result"])
async def test_what_is_not_there_is_not_found(hf: Holdfast, path: str) -> None:
    async with api(hf) as client:
        gone = await client.get(f"/api/jobs/{uuid4()}{path}")
        no_id = await client.get(f"/api/jobs/nonsense{path}")

    assert (gone.status_code, no_id.status_code) == (404, 400)


async def test_it_is_explained_with_the_request_that_helps(hf: Holdfast) -> None:
    chain = await hf.start(greet(name="Ada").options(paused=True))

    async with api(hf, role="operator") as client:
        explained = (await client.get(f"/api/jobs/{chain.id}/explain")).json()
        reason = explained["reasons"][0]
        request = reason["remedy"]["request"]
        helped = await client.request(request["method"], request["path"], json=request["body"])

    assert (reason["code"], explained["job"]["id"]) == ("paused", str(chain.id))
    assert helped.json()["job"]["status"] == "pending"


async def test_of_a_job_that_is_not_there_it_is_said_so(hf: Holdfast) -> None:
    async with api(hf) as client:
        answer = await client.get(f"/api/jobs/{uuid4()}/explain")

    assert [each["code"] for each in answer.json()["reasons"]] == ["not_committed"]


async def test_a_timeline_and_the_attempts_tell_what_was(way: Way) -> None:
    chain = await way.hf.start(greet(name="Ada"))
    await run(way, RETRY)
    await come_due(way)
    await run(way, DONE)

    async with api(way.hf) as client:
        events = (await client.get(f"/api/jobs/{chain.id}/timeline")).json()["items"]
        attempts = (await client.get(f"/api/jobs/{chain.id}/attempts")).json()

    assert [each["event"] for each in events][:3] == ["job:enqueued", "job:started", "job:retrying"]
    assert [(each["number"], each["outcome"]) for each in attempts["items"]] == [(1, "retried"), (2, "completed")]
    assert attempts["items"][0]["wait"] >= 0
    assert attempts["is_whole"]


async def test_an_attempt_that_runs_has_no_end(way: Way) -> None:
    await way.hf.start(greet(name="Ada"))
    job = await claim_one(way)

    (attempt,) = attempts_of(await way.hf.timeline(job.id))

    assert (attempt.ended_at, attempt.outcome, attempt.run) == (None, None, None)


async def test_blockers_are_chains(hf: Holdfast) -> None:
    first = await hf.start(greet(name="Ada"))
    second = await hf.start(greet(name="Bob").options(blockers=[first]))

    async with api(hf) as client:
        blockers = await client.get(f"/api/jobs/{second.id}/blockers")
        blocked = await client.get(f"/api/chains/{first.id}/blocked")

    assert ids(blockers) == [str(first.id)]
    assert ids(blocked) == [str(second.id)]


async def test_a_result_of_a_phase_is_read_by_its_name(way: Way) -> None:
    job_id = await make_job(way, "running", current_phase="pack")
    await make_phase(way, job_id, "pack")

    async with api(way.hf) as client:
        found = await client.get(f"/api/jobs/{job_id}/phases/pack/result")
        other = await client.get(f"/api/jobs/{job_id}/phases/ship/result")

    assert found.json() == {"name": "pack", "status": "completed", "result": None}
    assert (other.status_code, "pack" in other.json()["detail"]) == (404, True)


# ---- verbs


async def test_a_cancel_answers_and_one_that_changes_nothing_says_so(hf: Holdfast) -> None:
    chain = await hf.start(greet(name="Ada"))

    async with api(hf, role="operator") as client:
        first = await client.post(f"/api/jobs/{chain.id}/cancel", json={"why": "no more"})
        again = await client.post(f"/api/jobs/{chain.id}/cancel")

    assert (first.json()["answer"], first.json()["job"]["reason"]) == ("cancelled", "no more")
    assert (again.status_code, again.json()["answer"]) == (200, "already terminal")


async def test_every_verb_is_in_the_audit_once_with_who_why_and_the_request(hf: Holdfast) -> None:
    chain = await hf.start(greet(name="Ada"))

    async with api(hf, role="operator", name="ada") as client:
        answer = await client.post(f"/api/jobs/{chain.id}/pause", json={"why": "later"})
        await client.post(f"/api/jobs/{chain.id}/pause", json={"why": "refused"})

    (entry,) = await hf.audit(action="pause")
    assert (entry.who, entry.why, entry.subject) == ("ada", "later", str(chain.id))
    assert entry.request == answer.headers["x-request-id"]


async def test_jobs_are_paused_resumed_rescheduled_and_triggered(hf: Holdfast) -> None:
    chain = await hf.start(greet(name="Ada"))
    said = []

    async with api(hf, role="operator") as client:
        for verb, body in (
            ("pause", {}),
            ("resume", {"arguments": {"name": "Eve"}}),
            ("reschedule", {"after": 3600}),
            ("reschedule", {"at": "2100-01-01T00:00:00Z"}),
            ("trigger", {}),
        ):
            answer = (await client.post(f"/api/jobs/{chain.id}/{verb}", json=body)).json()
            said.append((answer["answer"], answer["job"]["state"]))

    assert said == [
        ("paused", "paused"),
        ("resumed", "pending"),
        ("rescheduled", "scheduled"),
        ("rescheduled", "scheduled"),
        ("triggered", "pending"),
    ]
    assert (await hf.get_job(chain.id)).input.name == "Eve"


async def test_a_failed_job_is_retried_with_other_arguments(way: Way) -> None:
    await way.hf.start(greet(name="Ada"))
    job = await claim_one(way)
    await settle(way, (job.token, FAIL))

    async with api(way.hf, role="operator") as client:
        wrong = await client.post(f"/api/jobs/{job.id}/retry", json={"arguments": {"name": 7}})
        right = await client.post(f"/api/jobs/{job.id}/retry", json={"arguments": {"name": "Eve"}})
        journal = await client.get(f"/api/jobs/{job.id}/journal?kind=holdfast.input")

    assert (wrong.status_code, wrong.json()["errors"][0]["path"]) == (400, "arguments.name")
    assert (right.json()["answer"], right.json()["job"]["input"]) == ("retried", {"name": "Eve"})
    assert [each["body"]["input"] for each in journal.json()["items"]] == [{"name": "Ada"}]


async def test_of_two_who_retry_one_has_the_job_and_the_other_is_shown_it(way: Way) -> None:
    job_id = await make_job(way, "failed")
    body = {"if_state": (await way.hf.get_job(job_id)).state_tag}

    async with api(way.hf, role="operator", payloads=False) as client:
        first = await client.post(f"/api/jobs/{job_id}/retry", json=body)
        second = await client.post(f"/api/jobs/{job_id}/retry", json=body)

    problem = second.json()
    assert (first.status_code, second.status_code, problem["code"]) == (200, 412, "state_conflict")
    assert (problem["facts"]["job"]["status"], problem["facts"]["job"]["input"]) == ("pending", None)


async def test_a_person_completes_a_job_with_an_output_of_its_type(hf: Holdfast) -> None:
    chain = await hf.start(greet(name="Ada"))

    async with api(hf, role="operator") as client:
        wrong = await client.post(f"/api/jobs/{chain.id}/complete", json={"output": 7})
        right = await client.post(f"/api/jobs/{chain.id}/complete", json={"output": "Hello"})
        late = await client.post(f"/api/jobs/{chain.id}/complete", json={"output": "Hello"})

    assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_output")
    assert (right.json()["answer"], right.json()["job"]["output"]) == ("completed", "Hello")
    assert (late.status_code, late.json()["code"]) == (409, "status_conflict")


async def test_a_verb_under_the_id_of_a_chain_acts_on_its_last_job_and_shows_that(way: Way) -> None:
    chain_id = await make_job(way, closed_as=None)
    last = await continue_chain(way, chain_id, run_at=now_ms() - 1000)

    async with api(way.hf, role="operator") as client:
        answer = await client.post(f"/api/jobs/{chain_id}/cancel")

    assert (UUID(answer.json()["job"]["id"]), answer.json()["job"]["status"]) == (last, "cancelled")


async def test_a_viewer_may_not_steer(hf: Holdfast) -> None:
    chain = await hf.start(greet(name="Ada"))

    async with api(hf, role="viewer") as client:
        answer = await client.post(f"/api/jobs/{chain.id}/cancel")

    assert (answer.status_code, (await hf.get_job(chain.id)).status) == (403, "pending")
