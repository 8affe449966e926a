"""Requests that are drawn from the API's own document, by every role: no answer is an error, or undocumented."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, get_args
from uuid import UUID

import pytest

from holdfast import Chain, Holdfast
from holdfast.access import Role
from holdfast.bulks import BulkVerb
from holdfast.errors import JobNotFound
from holdfast.http.app import Api, asgi
from holdfast.http.endpoint import Endpoint
from holdfast.http.endpoints import ENDPOINTS
from holdfast.http.limits import Limits
from holdfast.http.schedules import ScheduleRun
from holdfast.http.targets import AS_WRITTEN, targets
from holdfast.settings import Settings
from tests.http.drawing import Drawn, cases_of, wrong_answers
from tests.store.engine import admit, make_deliveries
from tests.support.factories import TASKS, change_job, continue_chain, greet, make_job, make_phase
from tests.support.ways import Way
from tests.worker.tenants import execute

UNLIMITED = Limits(requests_per_second=1_000_000, streams=10_000, logins_per_minute=1_000_000)
STATUSES = ("pending", "blocked", "paused", "running", "completed", "failed", "cancelled")
ROLES = ("guest", "viewer", "operator", "admin", "viewer without payloads", "admin without payloads")
FITTING, BREAKING, TURNS = 20, 10, 3
TENANTS, SCHEMA = ("tried", "other"), "drawn"

VERBS = ("cancel", "pause", "trigger", "start-again")
MANY = range(10)
NAMED: dict[str, list[Any]] = {
    "if_state": [f"{name}:{number}" for name in STATUSES for number in (1, 2)],
    "task": ["greet", "add", "gone"],
    "queue": ["default", "sums"],
    "lane": ["user/7"],
    "key": ["user/7", "a key"],
    "status": list(STATUSES),
    "arguments": [{"name": "Ada"}, {"a": 1, "b": 2}],
    "output": ["Hello, Ada", 3, None],
    "q": ["status:failed", "task:greet lane:user/7", "Ada", "since:1d", "input.name:Ada"],
    "field": ["task", "error", "tag", "input."],
    "from": ["2020-01-01T00:00:00Z", "2026-11-01T00:00:00+05:30"],
    "to": ["2040-01-01T00:00:00Z"],
    "width": [10, 60, 3600],
    "filter": ["status:failed", "task:greet", {"task": ["greet"]}, {"status": ["paused"]}],
    "url": ["https://hooks.example.com/other"],
    "rule": [{"cron": "0 3 * * *", "timezone": "Europe/Rome"}, {"cron": "0 0 30 2 *"}, {"every": 60}],
    "/api/schedule/preview rule": ["0 3 * * *", "0 0 30 2 *", "*/7 1-5 * * 1"],
    "timezone": ["Europe/Rome", "UTC"],
    "every": [60, 3600],
    "host": ["x.example.com"],
    "confirm": [*TENANTS],
    "limit": [1, 50, 500],
    "at": ["2030-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"],
    "created_from": ["2020-01-01T00:00:00Z"],
    "created_to": ["2040-01-01T00:00:00Z"],
    "tenant": [None],
    "/api/jobs Idempotency-Key": ["a", "b"],
    "tags": [["a", "b"]],
    "priority": [0, 100],
    "delay": [0, 60.5, 1e9],
    "blockers": [[]],
    "attempts": [1, 5],
    "hours": [1, 24],
    "expires": [60],
    "jitter": [0, 10],
    "merge_ms": [0, 250],
}
GREET = {"task": "greet", "arguments": {"name": "Ada"}}
OPTIONS = {"queue": "sums", "lane": "user/7", "priority": 1, "delay": 60, "tags": ["a"], "unique": "one", "attempts": 3}
BODIES: dict[str, list[Any]] = {
    "POST /api/jobs": [
        GREET,
        {**GREET, "options": OPTIONS},
        {**GREET, "options": {"unique": {"key": "k", "within": 9}}},
        {"task": "nobody"},
    ],
    "POST /api/jobs/many": [
        {"jobs": [GREET, {"task": "add", "arguments": {"a": 1, "b": 2}}]},
        {"jobs": []},
        {"jobs": [{"task": "nobody"}]},
    ],
    "POST /api/jobs/{id}/complete": [{"output": "Hello"}, {"output": "Hello", "if_state": "failed:1"}],
    **{f"POST /api/jobs/{{id}}/{verb}": [{}, {"if_state": "failed:1"}] for verb in VERBS},
    **{f"POST /api/lane/{verb}": [{}, {"if_head": str(UUID(int=7))}] for verb in ("pause", "resume", "skip")},
    "POST /api/jobs/{id}/retry": [{}, {"arguments": {"name": "Eve"}}],
    "POST /api/jobs/{id}/resume": [{}, {"arguments": {"name": "Eve"}}],
    "POST /api/jobs/{id}/reschedule": [{"after": 60, "if_state": "failed:1"}, {"at": "2030-01-01T00:00:00Z"}],
    "POST /api/bulk": [
        *({"verb": verb, "filter": "status:paused"} for verb in get_args(BulkVerb)),
        *({"verb": verb, "filter": "task:greet", "dry_run": True} for verb in get_args(BulkVerb)),
    ],
    "PUT /api/schedule": [
        {**GREET, "rule": {"cron": "0 3 * * *"}},
        {**GREET, "options": OPTIONS, "rule": {"every": 9}},
    ],
    "POST /api/webhooks": [{"url": "https://hooks.example.com/new"}],
    "POST /api/tokens": [{"name": "new"}],
    "POST /api/tenants": [{"name": "new"}, {"name": "new", "host": "new.example.com"}, {"name": TENANTS[0]}],
}


async def a_full_place(hf: Holdfast) -> dict[str, list[Any]]:
    """Make some of everything; give what a request may name."""
    jobs, chains = await _jobs(hf)
    subscriptions = [await hf.webhooks.subscribe(f"https://hooks.example.com/{at}", name=f"hook {at}") for at in MANY]
    await hf.cancel(chains[2])
    await make_deliveries(Way(hf, is_async=True))
    deliveries = [each.id for each in await hf.webhooks.deliveries()]
    for each in deliveries[:5]:
        await hf.cancel(each)
        await change_job(Way(hf, is_async=True), each, output='{"status":410,"body":"gone"}')
    schedules = ["nightly/a&b", *(f"every {at}" for at in MANY)]
    for name in schedules:
        await hf.schedules.put(name, greet(name="Ada"), every=3600)
    links = [(await hf.links.create(chains[0])).link.id for _ in MANY]
    tokens = [(await hf.tokens.create("spare")).info.id for _ in MANY]
    page, events = await hf.list_jobs(limit=2), await hf.list_events(None, limit=1)
    return {
        "/api/webhooks/ id": [str(each.id) for each in subscriptions],
        "/api/deliveries/ id": [str(each) for each in deliveries],
        "/api/links/ id": [str(each) for each in links],
        "/api/tokens/ id": [str(each) for each in tokens],
        "/api/schedule name": schedules,
        "/api/queue name": ["default", "sums"],
        "/api/tasks/ name": ["greet", "add", "gone"],
        "/api/jobs/ name": ["ask"],
        "/api/webhooks name": ["billing"],
        "/api/tenants/ name": [*TENANTS, "new"],
        **NAMED,
        **BODIES,
        "ids": [jobs, jobs[:3], jobs[:1]],
        **dict.fromkeys(("id", "job", "chain", "parent", "if_head"), jobs),
        "cursor": [page.next_cursor],
        "after": [events.cursor],
        "last_event_id": [events.cursor],
        "webhook": [str(subscriptions[0].id), "hook 1"],
    }


async def _jobs(hf: Holdfast) -> tuple[list[str], list[Chain[Any]]]:
    """Make jobs in every state; give the ids of all, and the chains of those in a lane."""
    way = Way(hf, is_async=True)
    made = [await make_job(way, status) for status in STATUSES for _ in range(3)]
    made.append(await make_job(way, "pending", task="gone", queue="sums"))
    made.append(await continue_chain(way, await make_job(way, "running"), "running"))
    await make_phase(way, made[-1], "ask")
    in_lane = [await hf.start(greet(name="Ada").options(lane="user/7", tags=["a"])) for _ in range(5)]
    waiting = await hf.start(greet(name="Bob").options(unique="one", blockers=in_lane[:1]))
    await hf.start(greet(name="Eve").options(delay=3600))
    await admit(way)
    await hf.pause(in_lane[0], why="look")
    return [str(each) for each in (*made, *(chain.id for chain in (*in_lane, waiting)))], in_lane


async def wrong(hf: Holdfast, role: str, cases: Sequence[Drawn], turns: int) -> list[str]:
    """Send what was drawn as *role*, so many times, each time to a place that is full again."""
    name, _, no_payloads = role.partition(" ")
    app, found = asgi(hf, limits=UNLIMITED), list[str]()
    for turn in range(turns):
        known = await a_full_place(hf)
        if name == "guest":
            chain = known["chain"][-1]
            token = (await hf.links.create(chain)).token
            known |= {"id": [chain, *known["id"][:1]], "chain": [chain]}
        else:
            token = (await hf.tokens.create(role, role=name, payloads=not no_payloads)).token
        found += await wrong_answers(app, cases, known, {"Authorization": f"Bearer {token}"}, turn=turn)
    return found


async def test_what_an_admin_asks_is_answered_as_documented(new_holdfast: Callable[..., Holdfast]) -> None:
    async with new_holdfast("sqlite", tasks=[TASKS]) as hf:
        found = await wrong(hf, "admin", cases_of(ENDPOINTS, 1, 1), 2)

    assert not found, "\n\n".join(found)


@pytest.mark.long
@pytest.mark.parametrize("role", ROLES)
async def test_whatever_anybody_asks_is_answered_as_documented(hf: Holdfast, role: str) -> None:
    found = await wrong(hf, role, cases_of(ENDPOINTS, FITTING, BREAKING), TURNS)

    assert not found, "\n\n".join(found)


@pytest.fixture(params=["sqlite", "postgres"])
async def control(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Holdfast]:
    """A control place with tenants, which nobody else uses."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    place = Settings.of(database=url or str(tmp_path / "jobs.db"), schema_name=SCHEMA, tenants=True)
    hf = Holdfast(settings=place, tasks=[TASKS])
    await hf.migrate()
    async with hf:
        for name in TENANTS:
            await hf.tenants.create(name)
        yield hf
    hf.sync.close()
    if url is not None:
        for (name,) in execute(url, f"SELECT nspname FROM pg_namespace WHERE starts_with(nspname, '{SCHEMA}')"):
            execute(url, f'DROP SCHEMA "{name}" CASCADE')


@pytest.mark.long
async def test_tenants_and_who_manages_them_are_answered_as_documented(control: Holdfast) -> None:
    app = asgi(control, limits=UNLIMITED)
    token = (await control.tokens.create("root", role="admin", tenant="*")).token
    headers, cases = {"Authorization": f"Bearer {token}"}, cases_of(ENDPOINTS, FITTING, BREAKING)
    of_tenant = await a_full_place(control.tenant(TENANTS[0]))
    of_control = await a_full_place(control)

    found = await wrong_answers(app, cases, of_tenant, headers, f"http://localhost/t/{TENANTS[0]}")
    found += await wrong_answers(app, cases, of_control, headers)

    assert not found, "\n\n".join(found)


@pytest.mark.long
async def test_what_clients_of_the_target_queue_ask_is_answered_as_its_table_says(hf: Holdfast) -> None:
    @hf.task(name="operate")
    async def operate(target: str, name: str, parameters: dict[str, Any]) -> None: ...

    calls = [operate("vm-7", "work", {"a": 1}).options(lane="vm-7", paused=at % 2 == 0) for at in range(20)]
    known: dict[str, list[Any]] = NAMED | {
        "target": ["vm-7", "user/7"],
        "id": [str(each.id) for each in await hf.start_many(calls)],
        "name": ["work"],
        "status": ["QUEUED", "PAUSED,ERROR"],
        "POST /targets/{target}/jobs/": [{"name": "work", "parameters": {"a": 1}}, {"name": "work", "paused": True}],
    }
    headers = {"X-API-Key": (await hf.tokens.create("panel", role="operator")).token}

    # there is no document of them, and their errors are no problems
    app, drawn = targets(hf, task=operate, limits=UNLIMITED), cases_of(AS_WRITTEN, FITTING, BREAKING)
    found = await wrong_answers(app, drawn, known, headers, errors_too=False)

    assert not found, "\n\n".join(found)


async def broken(ask: Any) -> None:
    """Break."""
    raise ValueError("canary")


async def undocumented(ask: Any) -> None:
    """Answer with a status of which the table knows nothing."""
    raise JobNotFound(UUID(int=7))


async def other(ask: Any) -> dict[str, Any]:
    """Answer with something else."""
    return {"chain": 1, "deduplicated": True}


async def test_an_answer_that_is_not_documented_is_found(new_holdfast: Callable[..., Holdfast]) -> None:
    table = tuple(
        Endpoint("GET", f"/api/{handler.__name__}", Role.VIEWER, handler, gives=ScheduleRun)
        for handler in (broken, undocumented, other)
    )
    async with new_holdfast("sqlite") as hf:
        token = (await hf.tokens.create("ada")).token
        app = Api(asgi(hf).service, table)
        found = await wrong_answers(app, cases_of(table, 5, 0), {}, {"Authorization": f"Bearer {token}"})

    told = {("/broken", "Server error"), ("/undocumented", "Undocumented status code"), ("/other", "violates schema")}
    assert {(path, kind) for path, kind in told for each in found if path in each and kind in each} == told
