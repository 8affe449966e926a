"""A newer release has written here: what this code cannot know harms nobody but itself (FINDINGS A5).

Every word that a newer release may add stands in the tables: statuses, events, facts, policies, subscriptions; and what
other SQL may leave there, such as texts that are no JSON. Everything else goes on.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from holdfast import Holdfast, Job, Retention, Tasks, Unreadable, unreadable
from holdfast.models import StoredChain
from holdfast.store import lanes, polls, workers
from holdfast.store.jobs import reaping
from holdfast.store.workers import Member
from holdfast.worker.attempts.judging import running_job
from tests.conftest import SCHEMA
from tests.feed.streams import events
from tests.http.listening import listening
from tests.store.engine import admit, claim_one, drain, expire, make_deliveries, run
from tests.support.factories import TASKS, change_job, continue_chain, greet, make_job, row_of, seq_of
from tests.support.ways import WAYS, Way

FOR_EVER = 2**53

# by itself each of these columns keeps its whole row from being read
BAD_COLUMNS: dict[str, dict[str, object]] = {
    "unknown status": {"status": "archived", "gate": None},
    "tags are no JSON": {"tags": "{"},
    "error is no JSON": {"error": "Traceback"},
    "error is too deep": {"error": "[" * 100_000 + "]" * 100_000},
    "unknown phase": {"current_phase": "render"},
}
BAD_POLICIES = {
    "no_json": "not JSON",
    "a_list": "[1]",
    "a_list_of_words": '["phases"]',
    "cut_off": '{"phases":["download"',
    "new_words": '{"on_lost":"escalate","attempts":"many","halts_lane":"maybe","cancel_running":"ask",'
    '"retention":{"stale_after":"soon","archived":{}},"phases":7}',
}
BAD_EVENTS: tuple[tuple[str, str | None, str | None], ...] = (
    ("job:archived", "pending", None),
    ("job:started", "archived", None),
    ("job:progress", "running", "not JSON"),
    ("job:completed", "completed", '{"closes":'),
)
BAD_NEWS: tuple[tuple[str, str | None], ...] = (
    ("tenant:paused", '{"tenant":"a"}'),
    ("lane:paused", "[1]"),
    ("job:deleted", '{"id":"no id"}'),
)


class Newer:
    """The database as a newer release has left it: jobs that cannot be read, by what is wrong with them."""

    def __init__(self, way: Way, write: Callable[[str], None]) -> None:
        self.way = way
        self.write = write
        self.bad: dict[str, UUID] = {}

    async def fill(self) -> None:
        """Write everything that this code cannot know."""
        for what, columns in BAD_COLUMNS.items():
            self.bad[what] = job_id = await make_job(self.way, "paused")
            settings = ", ".join(f"{name} = {_literal(value)}" for name, value in columns.items())
            self.write(f"UPDATE holdfast_job SET {settings} WHERE id = '{job_id}'")
        phased = await seq_of(self.way, self.bad["unknown phase"])
        self.write(f"INSERT INTO holdfast_phase (job, position, name, status) VALUES ({phased}, 0, 'a', 'skipped')")
        for name, policy in BAD_POLICIES.items():
            self.write(
                "INSERT INTO holdfast_task (name, version, policy, input_schema, output_schema, updated_at) "
                f"VALUES ('{name}', '', '{policy}', '{{', '{{', 0)"
            )
        for wanted in ('["job:archived"]', '["job:completed"'):
            self.write(
                "INSERT INTO holdfast_subscription (id, url, events, created_at) "
                f"VALUES ('{wanted}', 'http://127.0.0.1:9/', '{wanted}', 0)"
            )

    async def tell(self, job_id: UUID) -> None:
        """Append events that this code cannot know: of a job, and of none."""
        seq = await seq_of(self.way, job_id)
        told = [(seq, *each) for each in BAD_EVENTS] + [(0, name, None, facts) for name, facts in BAD_NEWS]
        for job, name, status, facts in told:
            self.write(
                "INSERT INTO holdfast_event (job, name, at, status, version, attempt, facts) "
                f"VALUES ({job}, '{name}', 5, {_literal(status)}, 1, 1, {_literal(facts)})"
            )


def _literal(value: object) -> str:
    return "NULL" if value is None else f"'{value}'"


@pytest.fixture(params=WAYS)
async def newer(
    request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast], tmp_path: Path, monkeypatch: Any
) -> AsyncIterator[Newer]:
    """A database in which a newer release has written, without the constraints that keep us from writing so."""
    monkeypatch.setattr(unreadable, "_told", set())
    database, colour = request.param.split("-")
    way = Way(new_holdfast(database, tasks=[TASKS]), is_async=colour == "async")
    await way.face.open()
    if database == "sqlite":
        file = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None, timeout=20)
        file.execute("PRAGMA ignore_check_constraints = ON")
        newer = Newer(way, lambda sql: file.execute(sql) and None)
        await newer.fill()
        yield newer
        await way.close()
        file.close()
        return
    with psycopg.connect(request.getfixturevalue("empty_url"), autocommit=True) as server:
        server.execute(f"SET search_path TO {SCHEMA}")
        kept = server.execute(
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'holdfast_job_status' "
            f"AND conrelid = '{SCHEMA}.holdfast_job'::regclass"
        ).fetchone()
        assert kept is not None
        server.execute("ALTER TABLE holdfast_job DROP CONSTRAINT holdfast_job_status")
        try:
            newer = Newer(way, lambda sql: server.execute(sql) and None)  # type: ignore[arg-type]
            await newer.fill()
            yield newer
            await way.close()
        finally:
            server.execute("DELETE FROM holdfast_job")
            server.execute(f"ALTER TABLE holdfast_job ADD CONSTRAINT holdfast_job_status {kept[0]}")


async def every_page(list_page: Callable[..., Any]) -> list[Any]:
    """Read a list to its end, two items at a time."""
    found: list[Any] = []
    cursor: str | None = None
    while True:
        page = await list_page(limit=2, cursor=cursor)
        found += page.items
        if (cursor := page.next_cursor) is None:
            return found


async def test_lists_pass_over_what_cannot_be_read(newer: Newer) -> None:
    face = newer.way.face
    good = {(await face.start(greet(name=str(n)))).id for n in range(3)}
    jobs: list[Job] = await every_page(face.list_jobs)
    chains: list[StoredChain[Any]] = await every_page(face.list_chains)

    assert {job.id for job in jobs} == good
    assert {chain.id for chain in chains} == good | set(newer.bad.values()) - {newer.bad["unknown status"]}


@pytest.mark.parametrize("what", BAD_COLUMNS)
async def test_who_asks_for_a_row_that_cannot_be_read_is_told_which(newer: Newer, what: str) -> None:
    seq = await seq_of(newer.way, newer.bad[what])

    with pytest.raises(Unreadable, match=f"row {seq} of holdfast_job cannot be read") as told:
        await newer.way.face.get_job(newer.bad[what])

    assert (told.value.table, told.value.row, told.value.code) == ("holdfast_job", seq, "unreadable")


async def test_what_is_left_out_is_logged_once_for_each_row(newer: Newer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, unreadable.__name__):
        await newer.way.face.list_jobs()
        await newer.way.face.list_jobs()

    told = [record.__dict__["row"] for record in caplog.records]
    assert sorted(told) == sorted([await seq_of(newer.way, each) for each in newer.bad.values()])


async def test_jobs_are_started_claimed_settled_and_waited_for(newer: Newer) -> None:
    way = newer.way
    blocker = await way.face.start(greet(name="first"))
    chain = await way.face.start(greet(name="second"), blockers=[blocker], lane="vm-7")

    await run(way)
    await run(way)

    assert [each.status for each in await way.face.wait([blocker, chain], timeout=5)] == ["completed"] * 2
    assert await chain.result(timeout=5) == "Hello" if way.is_async else chain.result(timeout=5) == "Hello"


async def test_a_chain_that_closed_in_a_way_we_do_not_know_says_so(newer: Newer) -> None:
    odd = await make_job(newer.way, "completed", closed_as="archived")
    good = await make_job(newer.way, "completed")
    newer.write(f"UPDATE holdfast_job SET status = 'archived' WHERE id = '{odd}'")

    assert [each.id for each in await newer.way.face.wait([good], timeout=5)] == [good]
    with pytest.raises(Unreadable):
        await newer.way.face.wait([odd], timeout=5)


async def test_who_waits_beside_a_chain_that_cannot_be_read_gets_its_result(newer: Newer) -> None:
    """One reader looks for all who wait in a process."""
    odd = await make_job(newer.way, "completed", closed_as="archived")
    good = await make_job(newer.way, "completed")

    assert list(await newer.way.call(polls.chain_results, [odd, good])) == [good]


async def test_a_job_whose_chain_is_no_id_says_so(newer: Newer) -> None:
    odd = await make_job(newer.way, "completed")
    newer.write(f"UPDATE holdfast_job SET chain_id = 'no id' WHERE id = '{odd}'")

    with pytest.raises(Unreadable, match=str(odd)):
        await newer.way.face.get_chain(odd)
    with pytest.raises(Unreadable):
        await newer.way.face.wait([odd], timeout=5)


@pytest.mark.parametrize("newer", [each for each in WAYS if each.startswith("sqlite")], indirect=True)
@pytest.mark.parametrize("column", ["task = x'ff'", "closed_at = 'soon'", "stale_at = 'soon'"])
async def test_retention_passes_over_a_column_of_another_type(newer: Newer, column: str) -> None:
    odd = await make_job(newer.way, "completed", task="odd", closed_at=1)
    await make_job(newer.way, "completed", closed_at=1)
    newer.write(f"UPDATE holdfast_job SET {column} WHERE id = '{odd}'")

    assert (await newer.way.face.retain()).stale == 1


@pytest.mark.parametrize("task", BAD_POLICIES)
async def test_jobs_of_a_task_with_an_unreadable_policy_are_reaped_by_the_defaults(newer: Newer, task: str) -> None:
    way = newer.way
    odd = await make_job(way, "running", task=task, error="not JSON")
    chain = await way.face.start(greet(name="Ada"))
    await expire(way, (await claim_one(way)).token, lease_ms=1)
    await change_job(way, odd, lease_until=1, lease_ms=1)

    assert (await way.call(reaping.reap, FOR_EVER)).count == 2
    assert await row_of(way, odd, "status", "reason") == ("pending", "lost")
    assert await row_of(way, chain.id, "status", "reason") == ("pending", "lost")


async def test_jobs_of_a_task_with_an_unreadable_policy_can_be_cancelled(newer: Newer) -> None:
    running = [await make_job(newer.way, "running", task=task) for task in BAD_POLICIES]

    assert {str(each) for each in await newer.way.face.cancel_many(running)} == {"requested"}


@pytest.mark.parametrize("task", BAD_POLICIES)
async def test_jobs_of_a_task_with_an_unreadable_policy_are_read_without_phases(newer: Newer, task: str) -> None:
    job_id = await make_job(newer.way, task=task)

    assert (await newer.way.face.get_job(job_id)).phases == ()


async def test_readers_of_the_log_get_past_what_they_cannot_read(newer: Newer) -> None:
    way = newer.way
    cursor = await way.face.cursor()
    chain = await way.face.start(greet(name="Ada"))
    await newer.tell(chain.id)
    await newer.tell(newer.bad["tags are no JSON"])
    await way.face.pause(chain)

    for wanted in ({}, {"jobs": [chain]}, {"tasks": ["greet"]}, {"names": ["job:enqueued", "job:paused"]}):
        async with events(way, cursor, **wanted) as followed:
            assert await followed.names(2) == ["job:enqueued", "job:paused"]
    timeline = await way.face.timeline(chain)
    assert [event.name for event in timeline] == ["job:enqueued", "job:paused"]


async def test_a_stream_for_browsers_gets_past_what_it_cannot_read(newer: Newer) -> None:
    way = newer.way
    chain = await way.face.start(greet(name="Ada"))
    async with listening(way) as reader:
        snapshot = await reader.next()
        await newer.tell(chain.id)
        await way.face.pause(chain)
        message = await reader.next()

    assert [job["id"] for job in snapshot.json["jobs"]] == [str(chain.id)]
    assert message.event == "job:paused"


async def test_retention_deletes_the_others(newer: Newer) -> None:
    way = newer.way
    odd = await make_job(way, "completed", task="new_words", closed_at=1)
    good = await make_job(way, "completed", closed_at=1)

    done = await way.face.retain()
    for each in (odd, good):
        await change_job(way, each, stale_at=1)
    await way.face.retain()

    assert done.stale == 2
    assert await way.rows("SELECT count(*) FROM holdfast_job") == [(len(newer.bad),)]


async def test_a_job_whose_input_is_no_json_is_shown_with_its_text(newer: Newer) -> None:
    job_id = await make_job(newer.way, input="{")

    assert (await newer.way.face.get_job(job_id)).input == "{"
    async with listening(newer.way) as reader:
        assert [job["input"] for job in (await reader.next()).json["jobs"]] == ["{"]


async def test_webhooks_go_on_to_the_subscriptions_that_can_be_read(newer: Newer) -> None:
    way = newer.way
    good = await way.hf.webhooks.subscribe("https://example.com/hook", events=["job:completed"])
    chain = await way.face.start(greet(name="Ada"))

    await run(way)
    await make_deliveries(way)

    assert [each.id for each in await way.hf.webhooks.list()] == [good.id]
    (delivery,) = await way.hf.webhooks.deliveries(job=chain)
    assert (delivery.subscription, delivery.event) == (good.id, "job:completed")


async def test_a_job_runs_whose_blocker_can_no_longer_be_read(newer: Newer) -> None:
    way = newer.way
    blocker = await way.face.start(greet(name="first"))
    waiting = await way.face.start(greet(name="second"), blockers=[blocker])
    await run(way)
    await admit(way)
    newer.write(f"UPDATE holdfast_job SET status = 'archived' WHERE id = '{blocker.id}'")

    claimed = await claim_one(way)

    assert claimed.id == str(waiting.id)
    assert [(each.chain_id, each.closed_as) for each in claimed.blockers] == [(blocker.id, "cancelled")]


async def test_a_job_runs_whose_last_error_cannot_be_read(newer: Newer) -> None:
    way = newer.way
    chain = await way.face.start(greet(name="Ada"))
    newer.write(f"UPDATE holdfast_job SET error = 'not JSON' WHERE id = '{chain.id}'")

    assert running_job(await claim_one(way), greet).error is None


async def test_a_living_worker_is_absolved_although_an_error_cannot_be_read(newer: Newer) -> None:
    way = newer.way
    await way.face.start(greet(name="Ada"))
    token = (await claim_one(way)).token
    newer.write(f"UPDATE holdfast_job SET crashes = 1, error = 'not JSON' WHERE seq = {token.seq}")

    assert await way.call(reaping.absolve, [token], "worker-1") == 0


async def test_the_jobs_of_a_chain_are_listed_without_those_that_cannot_be_read(newer: Newer) -> None:
    first = await make_job(newer.way, "running")
    odd = await continue_chain(newer.way, first, "running")
    last = await continue_chain(newer.way, first)
    newer.write(f"UPDATE holdfast_job SET tags = '{{' WHERE id = '{odd}'")

    assert [job.id for job in await newer.way.face.list_chain_jobs(first)] == [first, last]


async def test_the_dependents_of_a_chain_are_listed_without_those_that_cannot_be_read(newer: Newer) -> None:
    way = newer.way
    blocker = await way.face.start(greet(name="first"))
    odd, good = [await way.face.start(greet(name="next"), blockers=[blocker]) for _ in range(2)]
    newer.write(f"UPDATE holdfast_job SET tags = '{{' WHERE id = '{odd.id}'")

    assert [job.id for job in await way.face.list_blocked_by(blocker)] == [good.id]


async def test_a_stream_of_named_jobs_shows_those_that_can_be_read(newer: Newer) -> None:
    chain = await newer.way.face.start(greet(name="Ada"))

    async with listening(newer.way, jobs=[chain, *newer.bad.values()]) as reader:
        snapshot = await reader.next()

    assert [job["id"] for job in snapshot.json["jobs"]] == [str(chain.id)]


async def test_a_halted_lane_whose_error_cannot_be_read_says_its_reason(newer: Newer) -> None:
    way = newer.way
    await make_job(way, "failed", lane="vm-7", head=1, place=1, reason="attempts used up", error="not JSON")

    assert (await way.call(lanes.lane_info, "vm-7")).halted_because == "attempts used up"


async def test_a_chain_whose_error_cannot_be_read_fails_with_its_reason(newer: Newer) -> None:
    failed = await make_job(newer.way, "failed", reason="attempts used up", error="not JSON")

    (end,) = (await newer.way.call(polls.chain_results, [failed])).values()

    assert (end.closed_as, end.reason, end.error) == ("failed", "attempts used up", None)


@pytest.mark.parametrize("facts", ["not JSON", "[1]", '{"queues":7,"tasks":7}', '{"queues":[7],"tasks":null}'])
async def test_a_worker_whose_facts_cannot_be_read_serves_nothing(newer: Newer, facts: str) -> None:
    way = newer.way
    for name in ("odd", "good"):
        await way.call(workers.beat, Member.here(name, queues=["mail"], tasks=["greet"]))
    newer.write(f"UPDATE holdfast_worker SET facts = '{facts}' WHERE id = 'odd'")

    living = await way.call(workers.living)

    assert [(each.id, sorted(each.queues)) for each in living] == [("good", ["mail"])]
    assert [living[0].runs(queue, "greet") for queue in ("mail", "sums")] == [True, False]


@pytest.mark.parametrize("schema", ["{", "[1]", '{"properties":[1],"required":7}', '{"properties":{"name":true}}'])
async def test_a_task_of_an_unreadable_schema_is_started_unchecked(newer: Newer, schema: str) -> None:
    newer.write(f"UPDATE holdfast_task SET input_schema = '{schema}' WHERE name = 'new_words'")

    chain = await newer.way.face.start(newer.way.hf.call("new_words", {"name": "Ada"}))

    assert await row_of(newer.way, chain.id, "task", "input") == ("new_words", '{"name":"Ada"}')


async def test_deliveries_are_listed_without_those_that_cannot_be_read(newer: Newer) -> None:
    way = newer.way
    chain = await way.face.start(greet(name="Ada"), webhook="https://example.com/hook")
    other = await way.face.start(greet(name="Bob"), webhook="https://example.com/hook")
    await drain(way)
    await make_deliveries(way)
    (odd,) = await way.hf.webhooks.deliveries(job=other)
    newer.write(f"UPDATE holdfast_job SET input = '{{' WHERE id = '{odd.id}'")

    assert [each.target for each in await way.hf.webhooks.deliveries()] == [chain.id]


async def test_a_chain_of_which_a_job_cannot_be_read_is_given_to_no_hook(
    newer: Newer, new_holdfast: Callable[..., Holdfast]
) -> None:
    marked: list[UUID] = []
    tasks = Tasks()

    @tasks.task(name="render", retention=Retention(stale_after=60, on_stale=lambda job: marked.append(job.id)))
    async def render(name: str) -> str:
        return name

    face = new_holdfast(newer.way.database, tasks=[tasks]).sync
    face.open()
    odd, good = [await make_job(newer.way, "completed", task="render", closed_at=1) for _ in range(2)]
    newer.write(f"UPDATE holdfast_job SET tags = '{{' WHERE id = '{odd}'")

    done = face.retain()
    face.close()

    assert (done.stale, marked) == (1, [good])
