"""PostgreSQL away, read-only, colliding, full or locked: work waits for it, and nobody is blamed or robbed."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from holdfast import Holdfast, Tasks
from holdfast.errors import StoreError, Unavailable
from holdfast.outcomes import Retry
from holdfast.store import workers
from holdfast.store.workers import Member
from holdfast.testing import NotOurServer, PostgresServer
from tests.acceptance.hall import Hall, NewHoldfast, deadlocks, reaped, rows, until_counts, until_past
from tests.conftest import SCHEMA
from tests.support.conditions import until

# what a busy machine may add to a promised time
NOISE = 10.0
SLEEPER = Member("sleeper-1", None, "host", 7)


class Numbered:
    """A task that notes which of its jobs ran, and how often."""

    def __init__(self) -> None:
        self.tasks = Tasks()
        self.ran: Counter[int] = Counter()

        @self.tasks.task(name="numbered", retry=Retry(first=0.05, maximum=0.05, jitter=0))
        async def numbered(n: int) -> int:
            self.ran[n] += 1
            await asyncio.sleep(0.005)
            return n

        self.numbered = numbered


@pytest.mark.long
async def test_a_server_that_is_gone_for_several_leases_only_delays_work(own_server: PostgresServer) -> None:
    """F-18, F-17, I-20: starts are refused in time, handlers stop themselves, and work resumes when it is back."""
    lease = 1.5
    hall = Hall(lease)
    hf = Holdfast(own_server.url, tasks=[hall.tasks], deadline_seconds=1)
    await hf.migrate()
    async with hf, hf.worker(poll=0.5):
        kept = await hf.start_many([hall.waits() for _ in range(5)])
        await until(lambda: len(hall.begun) == 5, "the handlers run")

        try:
            own_server.stop("immediate")
        except NotOurServer as error:
            pytest.skip(f"F-18 is not shown: {error}")
        with pytest.raises(StoreError):  # what had been sent on a connection that was cut is in doubt
            await hf.start(hall.waits())
        began = time.monotonic()
        with pytest.raises(Unavailable):
            await hf.start(hall.waits())
        told = time.monotonic() - began
        await until(lambda: len(hall.stopped) == 5, "the handlers stop themselves", lease + NOISE)
        await until_past(3 * lease)
        own_server.start()
        hall.gate.set()
        began = time.monotonic()
        late = await hf.start(hall.waits())
        await late.result(timeout=5 + NOISE)
        resumed = time.monotonic() - began
        await until_counts(hf, 30, completed=6)

    found = [await hf.get_job(chain) for chain in kept]
    assert told < 1 + NOISE
    assert resumed < 5 + NOISE
    assert set(hall.stopped.values()) == {"error"}
    assert {job.error for job in found} == {None}
    await hf.close()


@contextmanager
def colliding(url: str, each: int) -> Iterator[None]:
    """Have every statement of number *each* that writes jobs end in a serialisation failure or a deadlock."""
    with psycopg.connect(url, autocommit=True) as person:
        person.execute(f"CREATE SEQUENCE {SCHEMA}.collisions")
        person.execute(
            f"""CREATE FUNCTION {SCHEMA}.collide() RETURNS trigger LANGUAGE plpgsql AS $$
            DECLARE turn bigint := nextval('{SCHEMA}.collisions');
            BEGIN
                IF turn % {each} = 0 THEN
                    RAISE EXCEPTION 'collided'
                        USING ERRCODE = CASE WHEN turn / {each} % 2 = 0 THEN '40001' ELSE '40P01' END;
                END IF;
                RETURN NULL;
            END $$"""
        )
        person.execute(
            f"CREATE TRIGGER collide AFTER INSERT OR UPDATE ON {SCHEMA}.holdfast_job"
            f" FOR EACH STATEMENT EXECUTE FUNCTION {SCHEMA}.collide()"
        )
        try:
            yield
        finally:
            person.execute(f"DROP FUNCTION {SCHEMA}.collide CASCADE")
            person.execute(f"DROP SEQUENCE {SCHEMA}.collisions")


async def test_collisions_are_tried_again_as_a_whole_and_nobody_hears_of_them(
    new_holdfast: NewHoldfast, empty_url: str
) -> None:
    """F-21: one of six statements fails by a trigger, at starts, claims and settlements alike."""
    here = Numbered()
    hf = new_holdfast("postgres", tasks=[here.tasks])
    async with hf:
        with colliding(empty_url, each=6):
            for n in range(10):
                await hf.start(here.numbered(n=n), lane=f"lane-{n % 3}")
            async with hf.worker(concurrency=5, poll=0.05):
                await until_counts(hf, 30, completed=10)
            tried = await rows(hf, f"SELECT last_value FROM {SCHEMA}.collisions")

    assert here.ran == dict.fromkeys(range(10), 1)
    assert await rows(hf, "SELECT max(used), max(crashes), count(error) FROM holdfast_job") == [(1, 0, 0)]
    assert tried[0][0] > 30
    await hf.close()


@pytest.fixture
def own_database(empty_url: str) -> Iterator[str]:
    """A database of its own, in which a test may change what belongs to the server."""
    name = f"holdfast_fault_{secrets.token_hex(6)}"
    with psycopg.connect(empty_url, autocommit=True) as person:
        person.execute(f"CREATE DATABASE {name}")
        yield urlsplit(empty_url)._replace(path=f"/{name}").geturl()
        person.execute(f"DROP DATABASE {name} WITH (FORCE)")


def say_that_it_is_full(person: psycopg.Connection[Any]) -> None:
    """Have the server say so of its queue of notifications, in this database."""
    try:
        person.execute(
            "CREATE OR REPLACE FUNCTION pg_catalog.pg_notification_queue_usage() RETURNS double precision"
            " LANGUAGE sql AS 'SELECT 0.9::double precision'"
        )
    except psycopg.errors.InsufficientPrivilege as error:
        pytest.skip(f"F-23 is not shown: {error}")


async def test_a_queue_of_notifications_that_fills_fails_no_start_and_the_poll_finds_the_job(own_database: str) -> None:
    """F-23: to fill it takes gigabytes, so the server is made to say that it is as good as full."""
    here = Numbered()
    hf = Holdfast(own_database, tasks=[here.tasks])
    await hf.migrate()
    with psycopg.connect(own_database, autocommit=True) as person:
        person.execute("LISTEN holdfast_public")
        await hf.store.run(workers.mark_asleep, SLEEPER)
        await hf.start(here.numbered(n=0))
        with_room = list(person.notifies(timeout=5, stop_after=1))
        say_that_it_is_full(person)
        await hf.start(here.numbered(n=1))
        when_full = list(person.notifies(timeout=0.2))
        async with hf, hf.worker(poll=0.2):
            await until_counts(hf, completed=2)
    await hf.close()

    assert [each.payload for each in with_room] == [""]
    assert when_full == []


@pytest.mark.long
async def test_a_table_that_is_written_anew_under_load_robs_nobody(new_holdfast: NewHoldfast, empty_url: str) -> None:
    """F-26: VACUUM FULL takes the whole table each time."""
    before = deadlocks(empty_url)
    here = Numbered()
    hf = new_holdfast("postgres", tasks=[here.tasks])
    async with hf, await psycopg.AsyncConnection.connect(empty_url, autocommit=True) as person:
        async with hf.worker(concurrency=10, poll=0.05):
            for round_ in range(10):
                calls = [here.numbered(n=40 * round_ + n).options(lane=f"lane-{n % 20}") for n in range(40)]
                starting = asyncio.create_task(hf.start_many(calls))
                await person.execute(f"VACUUM FULL {SCHEMA}.holdfast_job")
                await starting
            await until_counts(hf, 30, completed=400)

    assert here.ran == dict.fromkeys(range(400), 1)
    assert await reaped(hf) == 0
    await hf.close()
    assert deadlocks(empty_url) == before
