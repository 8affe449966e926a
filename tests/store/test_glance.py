"""A look at a tenant tells what a worker would do there, and when; one statement looks at many."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.database import make_glance_store
from holdfast.database.dialect import PostgresDialect, in_schema
from holdfast.runtime import Runtime
from holdfast.store import glance, workers
from holdfast.store.glance import Served
from holdfast.store.jobs import claiming
from holdfast.store.jobs.claiming import Want
from holdfast.store.workers import Member
from tests.conftest import SCHEMA
from tests.support.factories import HOUR_MS, CountingTx, add, greet, make_job
from tests.support.ways import Way

SERVED = Served(["default", "sums"], ["greet", "add"])
OTHER = "glance_other"


async def test_in_an_empty_place_there_is_nothing(way: Way) -> None:
    found = await way.read(glance.look, SERVED)

    assert not found.has_work
    assert found.next_ms is None
    assert found.version.schema > 0


async def test_a_job_that_can_be_claimed_is_found(way: Way) -> None:
    await make_job(way, gate="ready")

    assert (await way.read(glance.look, SERVED)).ready is not None


async def test_a_start_is_found_before_anybody_has_admitted_it(way: Way) -> None:
    await way.face.start(greet(name="Ada"))

    found = await way.read(glance.look, SERVED)

    assert found.has_work


async def test_a_job_of_another_task_or_queue_is_not(way: Way) -> None:
    await make_job(way, gate="ready", task="unknown")
    await make_job(way, gate="ready", queue="elsewhere")

    assert not (await way.read(glance.look, SERVED)).has_work


async def test_a_paused_queue_hides_its_jobs(way: Way) -> None:
    await make_job(way, gate="ready")
    way.hf.sync.queue("default").pause()
    assert (await way.read(glance.look, SERVED)).ready is None

    await way.face.start(add(a=1, b=2))

    assert (await way.read(glance.look, SERVED)).has_work


async def test_the_next_arrival_is_told_in_milliseconds(way: Way) -> None:
    await way.face.start(greet(name="Ada"), delay=3600)

    found = await way.read(glance.look, SERVED)

    assert not found.has_work
    assert found.arrival_ms is not None
    assert HOUR_MS - 60_000 < found.arrival_ms <= HOUR_MS


async def test_the_first_lease_is_told(way: Way) -> None:
    await make_job(way, gate="ready")
    await way.call(claiming.claim, [Want("default", "greet", 30_000)], 1, "worker-1", "nonce")

    found = await way.read(glance.look, SERVED)

    assert found.ready is None
    assert found.lease_ms is not None
    assert 0 < found.lease_ms <= 30_000


async def test_the_next_tick_and_the_end_of_a_pause_are_told(way: Way) -> None:
    await way.call(_put_schedule, "ticks", "$now + 60000", "NULL", "NULL")
    await way.call(_put_schedule, "paused", "$now - 60000", "$now", "$now + 30000")
    await way.call(_put_schedule, "paused for good", "$now - 60000", "$now", "NULL")

    found = await way.read(glance.look, SERVED)

    assert found.tick_ms is not None
    assert found.pause_ms is not None
    assert 30_000 < found.tick_ms <= 60_000
    assert 0 < found.pause_ms <= 30_000
    assert not found.has_work


async def _put_schedule(tx: Any, name: str, next_at: str, paused_at: str, until: str) -> None:
    columns, times = "next_at, paused_at, until, created_at", f"{next_at}, {paused_at}, {until}, $now"
    await tx.execute(
        f"INSERT INTO holdfast_schedule (name, task, input, options, rule, {columns}) "
        f"VALUES (:name, 'greet', '{{}}', '{{}}', 'every 60', {times})",
        name=name,
    )


async def test_events_that_wait_for_webhooks_are_told_to_who_posts_them(way: Way) -> None:
    way.hf.sync.webhooks.subscribe("https://example.com/", events=["job:cancelled"])
    job = await way.face.start(greet(name="Ada"), delay=3600)
    await way.face.cancel(job)

    assert (await way.read(glance.look, SERVED)).outbox is not None
    assert (await way.read(glance.look, SERVED._replace(posts=False))).outbox is None


async def test_it_is_one_statement(way: Way) -> None:
    async def look(tx: object) -> int:
        counting = CountingTx(tx)  # type: ignore[arg-type]
        await glance.look(counting, SERVED)
        return len(counting.statements)

    assert await way.read(look) == 1


def test_a_table_that_has_its_schema_keeps_it() -> None:
    sql = "SELECT holdfast_job.seq FROM holdfast_job, holdfast_queue AS held WHERE held.name = 'holdfast_job'"

    named = in_schema(sql, "acme")

    assert PostgresDialect("other").compile(named).text == (
        'SELECT holdfast_job.seq FROM "acme".holdfast_job, "acme".holdfast_queue AS held '
        "WHERE held.name = 'holdfast_job'"
    )


@pytest.fixture
def two_schemas(empty_url: str) -> str:
    """A database where two schemas have our tables."""
    hf = Holdfast(empty_url, schema_name=OTHER, tasks=[]).sync
    hf.migrate()
    hf.close()
    with psycopg.connect(empty_url, autocommit=True) as connection:
        for table in ("job", "event", "worker"):
            connection.execute(f'DELETE FROM "{OTHER}".holdfast_{table}')
    return empty_url


@pytest.mark.parametrize("way", ["postgres-async", "postgres-blocking"], indirect=True)
async def test_many_are_looked_at_by_one_statement_each_in_its_own_schema(way: Way, two_schemas: str) -> None:
    await make_job(way, gate="ready")
    text = glance.text_for([OTHER, SCHEMA])

    other, own = await way.read(glance.look_at_many, text, SERVED)

    assert not other.has_work
    assert own.has_work


@pytest.mark.parametrize("way", ["postgres-async"], indirect=True)
async def test_many_are_marked_by_one_statement_and_unmarked_by_another(way: Way, two_schemas: str) -> None:
    member = Member(f"{workers.WATCH}1", None, "host", 7)
    places = [OTHER, SCHEMA]
    sql = f'SELECT id, asleep_at IS NOT NULL FROM "{OTHER}".holdfast_worker UNION ALL SELECT id, asleep_at IS NOT NULL'
    sql += " FROM holdfast_worker"

    await way.call(glance.write_marks, glance.mark_text_for(places), member)
    await way.call(glance.write_marks, glance.mark_text_for(places), member)
    assert await way.rows(sql) == [(f"{workers.WATCH}1", True), (f"{workers.WATCH}1", True)]
    await way.call(glance.take_marks, glance.unmark_text_for(places), f"{workers.WATCH}1")

    assert await way.rows(sql) == []


@pytest.mark.parametrize("way", ["postgres-async"], indirect=True)
async def test_it_goes_by_indexes_alone_and_is_planned_once(way: Way, two_schemas: str) -> None:
    store = make_glance_store(way.hf.settings, Runtime())
    text = glance.text_for([OTHER, SCHEMA])
    try:
        for _ in range(3):
            await store.read(glance.look_at_many, text, SERVED)

        ((plans,),) = await store.read(_generic_plans)
        explained = "\n".join(line for (line,) in await store.read(_explain, text))
    finally:
        await store.close()

    assert plans >= 3
    assert "JIT" not in explained
    assert "Seq Scan" not in explained
    assert explained.count("holdfast_job_ready") == 2
    assert "Filter: (task" not in explained


async def _generic_plans(tx: object) -> list[tuple[int]]:
    return await tx.fetch_all("SELECT max(generic_plans) FROM pg_prepared_statements WHERE statement LIKE '%look%'")  # type: ignore[attr-defined,no-any-return]


async def _explain(tx: object, text: str) -> list[tuple[str]]:
    return await tx.fetch_all(f"EXPLAIN {text}", **SERVED.values())  # type: ignore[attr-defined,no-any-return]


async def test_the_row_of_a_host_is_forgotten_after_three_times_as_long(way: Way) -> None:
    await way.call(workers.beat, Member(f"{workers.WATCH}1", None, "host", 7))
    await way.call(workers.beat, Member("worker-1", None, "host", 7))
    await way.call(_grow_old, 400_000)

    assert await way.call(workers.forget_silent, 300_000) == ["worker-1"]
    await way.call(_grow_old, 600_000)
    assert await way.call(workers.forget_silent, 300_000) == [f"{workers.WATCH}1"]


async def _grow_old(tx: object, milliseconds: int) -> None:
    await tx.execute("UPDATE holdfast_worker SET seen_at = seen_at - :ms", ms=milliseconds)  # type: ignore[attr-defined]
