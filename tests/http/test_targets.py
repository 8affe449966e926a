"""The target queue's own routes: its paths, words, answers and errors, over jobs in lanes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast import Context, Fail, Holdfast, Misuse, Pause, Retry, Tasks
from holdfast.access import Role
from holdfast.http import targets
from holdfast.http.endpoint import NOBODY, Endpoint
from holdfast.http.target_jobs import TargetJobObject
from holdfast.http.targets import AS_WRITTEN
from holdfast.worker.options import WorkerKeywords
from tests.http.api import differences
from tests.support.conditions import until

tasks = Tasks()
FAST: WorkerKeywords = {"concurrency": 5, "grace": 0.05}


@tasks.task(name="operate", retry=Retry.never(), on_interrupt="pause", cancel_running="pause")
async def operate(ctx: Context, target: str, name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Do what *name* says."""
    if name == "sit" and ctx.job.attempt == 1:
        await ctx.aborted
        ctx.raise_if_aborted()
    if name == "talk" and ctx.job.attempt == 1:
        await ctx.journal.append("message", {"role": "user", "content": "log in"})
        await ctx.journal.append("http_exchange", {"url": "https://vm-7", "status": 200, "api_key": "canary"})
        raise Pause("the screen asks for a code")
    if name == "break" and ctx.job.attempt == 1:
        raise Fail("the screen went dark")
    return {"target": target, **parameters}


@tasks.task(name="other")
async def other(target: str, name: str, parameters: dict[str, Any]) -> None:
    """Be of another task."""


@pytest.fixture(params=["sqlite", "postgres"])
async def hf(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Holdfast]:
    """An open face on either database."""
    async with new_holdfast(request.param, tasks=[tasks]) as face:
        yield face


@pytest.fixture
async def file(new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Holdfast]:
    """An open face on a file, where the database makes no difference."""
    async with new_holdfast("sqlite", tasks=[tasks]) as face:
        yield face


@asynccontextmanager
async def queue(
    hf: Holdfast, role: Role | str = "operator", host: str = "localhost", **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """Give a client with an API key; every job that it is answered is held against the model."""
    app = targets(hf, task=operate, **options)
    key = (await hf.tokens.create("panel", role=role)).token
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url=f"http://{host}:8321",
        headers={"X-API-Key": key},
        event_hooks={"response": [like_the_model]},
    ) as client:
        yield client


async def like_the_model(response: httpx.Response) -> None:
    """Fail unless what was answered is a job, jobs, or an error, as that service writes them."""
    await response.aread()
    body = response.json()
    if response.status_code >= 400:
        assert list(body) == ["detail"], body
        assert isinstance(body["detail"], str)
    elif isinstance(body, dict):
        for each in body.get("jobs", [body] if "lease_owner" in body else []):
            assert not differences(TargetJobObject, each)


async def make(client: httpx.AsyncClient, target: str = "vm-7", name: str = "work", **body: Any) -> dict[str, Any]:
    """Make a job as a client of the target queue does."""
    answer = await client.post(f"/targets/{target}/jobs/", json={"name": name, **body})
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def act(client: httpx.AsyncClient, job: dict[str, Any], verb: str, **body: Any) -> httpx.Response:
    """Do *verb* to a job; without a body, as most clients do it."""
    return await client.post(f"/targets/{job['target']}/jobs/{job['id']}/{verb}/", json=body or None)


async def look(client: httpx.AsyncClient, job: dict[str, Any]) -> dict[str, Any]:
    """Read a job."""
    found: dict[str, Any] = (await client.get(f"/targets/{job['target']}/jobs/{job['id']}")).json()
    return found


async def becomes(client: httpx.AsyncClient, job: dict[str, Any], status: str) -> dict[str, Any]:
    """Poll, as clients do, until a job has a status."""
    found: dict[str, Any] = {}

    async def has_it() -> bool:
        found.update(await look(client, job))
        return bool(found["status"] == status)

    await until(has_it, f"job {job['id']} becomes {status}")
    return found


@pytest.mark.source("TQ-4", "TQ-6", "TQ-35")
async def test_a_job_is_made_and_queued_in_one_commit(hf: Holdfast) -> None:
    async with queue(hf) as client:
        made = await make(client, parameters={"command": "log in"})

    job = await hf.get_job(made["id"])
    assert (job.task, job.lane, job.status) == ("operate", "vm-7", "pending")
    assert {**made, "created_at": "", "updated_at": ""} == {
        "id": str(job.id),
        "target": "vm-7",
        "name": "work",
        "parameters": {"command": "log in"},
        "status": "QUEUED",
        "result": None,
        "error": None,
        "cancel_requested": False,
        "lease_owner": None,
        "lease_expires_at": None,
        "created_at": "",
        "updated_at": "",
        "completed_at": None,
    }


@pytest.mark.source("TQ-6")
async def test_a_job_that_is_made_paused_is_pending_until_somebody_resumes_it(file: Holdfast) -> None:
    async with queue(file) as client:
        made = await make(client, paused=True)
        resumed = await act(client, made, "resume")

    assert (made["status"], resumed.json()["status"]) == ("PENDING", "QUEUED")


@pytest.mark.source("TQ-35")
async def test_jobs_are_listed_newest_first_ten_at_a_time_with_their_total(hf: Holdfast) -> None:
    async with queue(hf) as client:
        made = [(await make(client, f"vm-{number % 2}"))["id"] for number in range(12)]
        first = (await client.get("/jobs/")).json()
        rest = (await client.get("/jobs/", params={"offset": 10})).json()
        beyond = (await client.get("/jobs/", params={"limit": 3, "offset": 50})).json()

    assert (first["total"], rest["total"], beyond) == (12, 12, {"total": 12, "jobs": []})
    assert [each["id"] for each in first["jobs"] + rest["jobs"]] == made[::-1]


@pytest.mark.source("TQ-35")
async def test_lists_are_narrowed_by_target_and_name(hf: Holdfast) -> None:
    async with queue(hf) as client:
        one = await make(client, "vm-1", "log in")
        two = await make(client, "vm-2", "log in", parameters={"name": "work"})
        await make(client, "vm-2", "work")
        await hf.start(other(target="vm-2", name="log in", parameters={}), lane="vm-2")
        named = (await client.get("/jobs/", params={"name": "log in"})).json()
        both = (await client.get("/jobs/", params={"name": "log in", "target": "vm-2"})).json()
        of_target = (await client.get("/targets/vm-2/jobs/", params={"name": "log in"})).json()

    assert (named["total"], [each["id"] for each in named["jobs"]]) == (2, [two["id"], one["id"]])
    assert both == of_target == {"total": 1, "jobs": [two]}


@pytest.mark.source("TQ-5", "TQ-35")
async def test_each_status_has_its_word_and_lists_find_it_by_that(hf: Holdfast) -> None:
    async with queue(hf) as client, hf.worker(**FAST):
        words = {"sit": "RUNNING", "talk": "PAUSED", "break": "ERROR", "work": "SUCCESS"}
        jobs = {word: await make(client, name, name) for name, word in words.items()}
        jobs["QUEUED"] = await make(client, "sit")
        jobs["PENDING"] = await make(client, "vm-1", paused=True)
        jobs["CANCELED"] = await make(client, "sit")
        assert (await act(client, jobs["CANCELED"], "cancel")).json()["status"] == "CANCELED"
        for word, job in jobs.items():
            await becomes(client, job, word)
        found = {word: (await client.get("/jobs/", params={"status": word})).json()["jobs"] for word in jobs}
        several = (await client.get("/jobs/", params={"status": "ERROR,SUCCESS"})).json()

    assert {word: [each["id"] for each in listed] for word, listed in found.items()} == {
        word: [job["id"]] for word, job in jobs.items()
    }
    assert several["total"] == 2


@pytest.mark.source("TQ-4", "TQ-36")
async def test_a_job_tells_who_runs_it_and_what_it_came_to(file: Holdfast) -> None:
    async with queue(file) as client, file.worker(**FAST):
        sitting = await becomes(client, await make(client, "vm-1", "sit"), "RUNNING")
        done = await becomes(client, await make(client, "vm-2", parameters={"command": "ls"}), "SUCCESS")
        failed = await becomes(client, await make(client, "vm-3", "break"), "ERROR")

    assert sitting["lease_owner"]
    assert sitting["lease_expires_at"] > sitting["created_at"]
    assert (done["result"], done["error"]) == ({"target": "vm-2", "command": "ls"}, None)
    assert done["lease_owner"] is done["lease_expires_at"] is None
    assert done["completed_at"] == done["updated_at"]
    assert failed["error"] == "the screen went dark"


@pytest.mark.source("TQ-19", "TQ-36", "TQ-42")
async def test_an_interrupted_job_is_paused_in_the_words_of_the_source_and_resumed(hf: Holdfast) -> None:
    async with queue(hf) as client, hf.worker(**FAST):
        job = await becomes(client, await make(client, name="sit"), "RUNNING")
        asked = (await act(client, job, "interrupt")).json()
        paused = await becomes(client, job, "PAUSED")
        resumed = await act(client, job, "resume")
        done = await becomes(client, job, "SUCCESS")

    assert (asked["status"], asked["cancel_requested"]) == ("RUNNING", True) or asked["status"] == "PAUSED"
    assert (paused["error"], paused["cancel_requested"]) == ("Job was interrupted by user", False)
    assert resumed.status_code == 200
    assert done["error"] is None


@pytest.mark.source("TQ-42")
async def test_a_job_that_was_paused_elsewhere_without_a_word_was_interrupted_too(file: Holdfast) -> None:
    async with queue(file) as client, file.worker(**FAST):
        job = await becomes(client, await make(client, name="sit"), "RUNNING")
        await file.cancel(job["id"])
        paused = await becomes(client, job, "PAUSED")

    assert paused["error"] == "Job was interrupted by user"


@pytest.mark.source("TQ-28", "DF-33")
async def test_an_interrupted_job_that_waits_halts_nothing(hf: Holdfast) -> None:
    async with queue(hf) as client, hf.worker(**FAST):
        job = await make(client, paused=True)
        after = await make(client)
        stopped = (await act(client, job, "interrupt")).json()
        await becomes(client, after, "SUCCESS")
        again = await act(client, job, "interrupt")

    assert stopped["status"] == "CANCELED"
    assert (again.status_code, "is CANCELED" in again.json()["detail"]) == (400, True)


@pytest.mark.source("TQ-25", "TQ-36", "TQ-41")
async def test_a_failed_job_is_resumed_by_either_route(hf: Holdfast) -> None:
    async with queue(hf) as client, hf.worker(**FAST):
        one = await becomes(client, await make(client, "vm-1", "break"), "ERROR")
        two = await becomes(client, await make(client, "vm-2", "break"), "ERROR")
        answers = [await act(client, one, "resume"), await client.post(f"/jobs/{two['id']}/resume")]
        ends = [await becomes(client, job, "SUCCESS") for job in (one, two)]

    assert [each.status_code for each in answers] == [200, 200]
    assert [each["error"] for each in ends] == [None, None]


@pytest.mark.source("TQ-26", "TQ-36")
async def test_a_person_resolves_a_paused_job_with_a_result(hf: Holdfast) -> None:
    async with queue(hf) as client, hf.worker(**FAST):
        job = await becomes(client, await make(client, name="talk"), "PAUSED")
        wrong = await act(client, job, "resolve", result="no object")
        done = (await act(client, job, "resolve", result={"code": 4711})).json()

    assert wrong.status_code == 400
    assert (job["error"], done["status"], done["result"]) == ("the screen asks for a code", "SUCCESS", {"code": 4711})


@pytest.mark.parametrize(
    ("status", "verbs"),
    [
        ("QUEUED", ["resume", "resolve"]),
        ("RUNNING", ["resume", "resolve", "cancel"]),
        ("PAUSED", ["cancel"]),
        ("ERROR", ["cancel", "interrupt"]),
        ("SUCCESS", ["resume", "interrupt", "cancel", "resolve"]),
    ],
)
@pytest.mark.source("TQ-25", "TQ-26", "TQ-27", "TQ-37")
async def test_in_a_wrong_state_the_answer_is_400_and_names_it(file: Holdfast, status: str, verbs: list[str]) -> None:
    name = {"RUNNING": "sit", "PAUSED": "talk", "ERROR": "break"}.get(status, "work")
    async with queue(file) as client:
        job = await make(client, name=name)
        if status != "QUEUED":
            async with file.worker(**FAST):
                await becomes(client, job, status)
                answers = [await act(client, job, verb, result={}) for verb in verbs]
        else:
            answers = [await act(client, job, verb, result={}) for verb in verbs]

    assert [each.status_code for each in answers] == [400] * len(verbs)
    assert all(f"is {status};" in each.json()["detail"] for each in answers)


async def test_of_two_who_resume_at_once_one_is_told_that_it_is_queued(hf: Holdfast) -> None:
    async with queue(hf) as client:
        job = await make(client, paused=True)
        answers = await asyncio.gather(*(act(client, job, "resume") for _ in range(2)))

    assert sorted(each.status_code for each in answers) == [200, 400]
    assert "is QUEUED" in next(each.json()["detail"] for each in answers if each.status_code == 400)


@pytest.mark.source("TQ-16", "TQ-17", "TQ-36", "TQ-44")
async def test_logs_and_exchanges_are_read_from_the_journal(hf: Holdfast) -> None:
    async with queue(hf) as client, hf.worker(**FAST):
        job = await becomes(client, await make(client, name="talk"), "PAUSED")
        below = f"/targets/vm-7/jobs/{job['id']}"
        logs = (await client.get(f"{below}/logs/")).json()
        newer = (await client.get(f"{below}/logs/", params={"after": logs[0]["id"]})).json()
        exchanges = (await client.get(f"{below}/http_exchanges/")).json()

    assert [each["type"] for each in logs] == ["message", "http_exchange"]
    assert logs[0]["content"] == {"role": "user", "content": "log in"}
    assert exchanges == newer == logs[1:]
    assert exchanges[0]["content"] == {"url": "https://vm-7", "status": 200, "api_key": "•••"}


@pytest.mark.source("TQ-37")
async def test_what_is_not_there_is_404(file: Holdfast) -> None:
    async def is_target(tenant: str | None, target: str) -> bool:
        return target in ("vm-7", "vm-8")

    async with queue(file, is_target=is_target) as client:
        job = await make(client)
        strange = await file.start(other(target="vm-7", name="", parameters={}), lane="vm-7")
        answers = [
            await client.get("/targets/vm-9/jobs/"),
            await client.post("/targets/vm-9/jobs/", json={"name": "work"}),
            await client.get(f"/targets/vm-8/jobs/{job['id']}"),
            await client.post(f"/targets/vm-8/jobs/{job['id']}/cancel/"),
            await client.get(f"/targets/vm-7/jobs/{uuid4()}"),
            await client.get(f"/targets/vm-7/jobs/{strange.id}/logs/"),
            await client.post(f"/jobs/{strange.id}/resume"),
            await client.get("/targets/"),
        ]
        listed = await client.get("/targets/vm-8/jobs/")

    assert [each.status_code for each in answers] == [404] * len(answers)
    assert answers[-1].json() == {"detail": "Not Found"}
    assert listed.json() == {"total": 0, "jobs": []}


@pytest.mark.parametrize("headers", [{}, {"X-API-Key": "hf_nonsense"}, {"Authorization": "Bearer nonsense"}])
@pytest.mark.source("TQ-2", "TQ-37")
async def test_without_the_key_it_is_401(file: Holdfast, headers: dict[str, str]) -> None:
    transport = httpx.ASGITransport(targets(file, task=operate))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        answers = [await client.get("/jobs/"), await client.post("/targets/vm-7/jobs/", json={"name": "work"})]

    assert [(each.status_code, list(each.json())) for each in answers] == [(401, ["detail"])] * 2


async def test_a_key_is_taken_as_a_bearer_token_too(file: Holdfast) -> None:
    async with queue(file) as client:
        client.headers["Authorization"] = f"Bearer {client.headers.pop('X-API-Key')}"
        answer = await client.post("/targets/vm-7/jobs/", json={"name": "work"})

    assert answer.status_code == 200


@pytest.mark.parametrize("endpoint", AS_WRITTEN, ids=lambda each: f"{each.method} {each.path}")
async def test_every_route_asks_for_its_role(file: Holdfast, endpoint: Endpoint) -> None:
    chain = await file.start(operate(target="vm-7", name="work", parameters={}), lane="vm-7", paused=True)
    keys = {
        "guest": (await file.links.create(chain)).token,
        **{role: (await file.tokens.create(role, role=role)).token for role in ("viewer", "operator")},
    }
    path = endpoint.path.replace("{target}", "vm-7").replace("{id}", str(chain.id))
    transport = httpx.ASGITransport(targets(file, task=operate))
    body = {"name": "work", "result": {}} if endpoint.is_act else None
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answers = [await client.request(endpoint.method, path, json=body)]
        answers += [
            await client.request(endpoint.method, path, json=body, headers={"X-API-Key": key}) for key in keys.values()
        ]

    refused = [each.status_code for each in answers if each.status_code in (401, 403)]
    if endpoint.role is NOBODY:
        assert refused == []
    else:
        assert refused == {"GET": [401, 403], "POST": [401, 403, 403]}[endpoint.method]


async def test_a_key_without_payloads_is_shown_no_parameters_and_no_results(file: Holdfast) -> None:
    async with queue(file) as client, file.worker(**FAST):
        done = await becomes(client, await make(client, parameters={"command": "canary"}), "SUCCESS")
        stuck = await becomes(client, await make(client, name="talk"), "PAUSED")
        client.headers["X-API-Key"] = (await file.tokens.create("blind", payloads=False)).token
        shown = [await look(client, done), await look(client, stuck)]
        logs = await client.get(f"/targets/vm-7/jobs/{stuck['id']}/logs/")

    assert [(each["parameters"], each["result"], each["error"]) for each in shown] == [(None, None, None)] * 2
    assert [each["content"] for each in logs.json()] == [None, None]


async def test_it_can_be_mounted_below_a_path(file: Holdfast) -> None:
    app = Starlette(routes=[Mount("/queue", targets(file, task=operate))])
    key = (await file.tokens.create("panel", role="operator")).token
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers={"X-API-Key": key}
    ) as client:
        made = await client.post("/queue/targets/vm-7/jobs/", json={"name": "work"})
        beside = await client.get("/queues/jobs/")

    assert (made.status_code, beside.status_code) == (200, 404)


async def test_what_is_done_stands_in_the_audit_by_the_name_of_the_key(file: Holdfast) -> None:
    async with queue(file) as client:
        job = await make(client)
        await act(client, job, "cancel", why="not needed")

    page = await file.audit(subject=UUID(job["id"]))
    assert [(each.who, each.action, each.why) for each in page] == [
        ("panel", "cancel", "not needed"),
        ("panel", "start", None),
    ]


async def test_what_a_client_says_besides_is_passed_over_and_what_is_wrong_is_400(file: Holdfast) -> None:
    async with queue(file) as client:
        more = await client.post("/targets/vm-7/jobs/?trace=1", json={"name": "work", "colour": "red"})
        nameless = await client.post("/targets/vm-7/jobs/", json={"parameters": {}})
        no_word = await client.get("/jobs/", params={"status": "STUCK"})

    assert [each.status_code for each in (more, nameless, no_word)] == [200, 400, 400]
    assert "name" in nameless.json()["detail"]


@pytest.mark.source("TQ-36")
async def test_the_health_of_the_database_is_told_to_anybody(file: Holdfast) -> None:
    transport = httpx.ASGITransport(targets(file, task=operate))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.get("/health/db")

    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


async def test_each_path_is_there_with_and_without_a_slash_at_its_end(file: Holdfast) -> None:
    async with queue(file) as client:
        job = await make(client)
        known = [each for each in AS_WRITTEN if each.method == "GET"]
        paths = [each.path.replace("{target}", "vm-7").replace("{id}", job["id"]).rstrip("/") for each in known]
        answers = [await client.get(path + end) for path in paths for end in ("", "/")]

    assert {each.status_code for each in answers} == {200}


@pytest.fixture
async def control(
    sqlite_of_tenant: tuple[str, dict[str, object]], new_holdfast: Callable[..., Holdfast]
) -> AsyncIterator[Holdfast]:
    """A control place with two tenants that have hosts."""
    async with new_holdfast("sqlite", tasks=[tasks], tenants=True) as face:
        for name in ("acme", "globex"):
            await face.tenants.create(name, host=f"{name}.example.com")
        yield face


@pytest.mark.source("TQ-1", "TQ-2")
async def test_the_tenant_is_that_of_the_host_without_its_port(control: Holdfast) -> None:
    acme, globex = control.tenant("acme"), control.tenant("globex")
    app = targets(control, task=operate)
    key = (await acme.tokens.create("panel", role="operator")).token
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), headers={"X-API-Key": key}) as client:
        made = await client.post("http://acme.example.com:8321/targets/vm-7/jobs/", json={"name": "work"})
        elsewhere = await client.get("http://globex.example.com/jobs/")
        strange = await client.get("http://initech.example.com/jobs/")
        ours = await client.get("http://localhost/jobs/")

    assert [job.lane for job in await acme.list_jobs()] == ["vm-7"]
    assert not await globex.list_jobs()
    assert [each.status_code for each in (made, elsewhere, strange, ours)] == [200, 401, 403, 403]


@pytest.mark.source("TQ-2", "TQ-37")
async def test_a_suspended_tenant_is_refused_whatever_it_asks_for(control: Holdfast) -> None:
    await control.tenants.suspend("acme")
    transport = httpx.ASGITransport(targets(control, task=operate))
    key = (await control.tenant("acme").tokens.create("panel", role="operator")).token
    async with httpx.AsyncClient(transport=transport, base_url="http://acme.example.com") as client:
        answers = [
            await client.get("/jobs/", headers={"X-API-Key": key}),
            await client.post("/targets/vm-7/jobs/", json={"name": "work"}, headers={"X-API-Key": key}),
            await client.get("/jobs/"),
        ]
        health = await client.get("/health/db")

    assert [each.status_code for each in answers] == [403, 403, 403]
    assert health.status_code == 200


def test_what_is_no_task_is_refused_at_once(new_holdfast: Callable[..., Holdfast]) -> None:
    with pytest.raises(Misuse, match="task="):
        targets(new_holdfast("sqlite"), task=7)  # type: ignore[arg-type]
