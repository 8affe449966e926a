"""Real workers that serve many tenants: killed, drained, and while tenants come and go."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, TenantInUse, TenantNotFound, TenantSuspended
from holdfast.database import migrations
from holdfast.sync import BlockingHoldfast
from tests.acceptance.conftest import SCHEMA
from tests.acceptance.jobs_of_tests import drained, gated, quick
from tests.acceptance.processes import until
from tests.acceptance.scene import APP, ROOT, Scene, scene
from tests.acceptance.test_worker_processes import on_both_but
from tests.support.processes import forked

MANY = [f"t{number}" for number in range(20)]


@pytest.fixture
def house(stage_database: tuple[str, dict[str, str]], tmp_path: Path) -> Iterator[Scene]:
    """A stage whose database has tenants."""
    database, settings = stage_database
    if settings:
        remove_tenants(database)
    with scene(database, tmp_path, tenants="true", **settings) as made:
        yield made
    if settings:
        remove_tenants(database)


def remove_tenants(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE %s", [f"{SCHEMA}\\_t\\_%"])
        for (name,) in found.fetchall():
            connection.execute(f"DROP SCHEMA {name} CASCADE")


def create(house: Scene, *names: str) -> list[BlockingHoldfast]:
    """Create tenants; give their faces."""
    for each in names:
        house.face.tenants.create(each)
    return [house.face.tenant(each) for each in names]


def rows(tenant: BlockingHoldfast, sql: str) -> list[tuple[Any, ...]]:
    """Look into the tables of a tenant."""

    async def fetch(tx: Any) -> list[tuple[Any, ...]]:
        return list(await tx.fetch_all(sql))

    return tenant.store.read_sync(fetch)


def statuses(tenant: BlockingHoldfast) -> Counter[str]:
    return Counter(dict(rows(tenant, "SELECT status, count(*) FROM holdfast_job GROUP BY status")))


def completions(tenant: BlockingHoldfast) -> list[int]:
    """Say how often each job of a tenant was completed."""
    return [count for _, count in rows(tenant, COMPLETIONS)]


COMPLETIONS = "SELECT job, count(*) FROM holdfast_event WHERE name = 'job:completed' GROUP BY job"


def until_statuses(house: Scene, tenants: Sequence[BlockingHoldfast], seconds: float = 30, **wanted: int) -> None:
    """Wait until the jobs of each tenant are so."""
    try:
        until(lambda: all(statuses(each) == wanted for each in tenants), f"{wanted} in each tenant", seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}; they are {list(map(statuses, tenants))}; {house.logs()}") from None


def begun(house: Scene, task: str) -> Counter[str]:
    """Count the beginnings of a task's handler, by tenant."""
    return Counter(each["tenant"] for each in house.notes("begin") if each["task"] == task)


@pytest.mark.long
@on_both_but("sqlite")
def test_the_jobs_of_all_tenants_of_a_killed_worker_run_again(house: Scene) -> None:
    """F-01, I-25, I-52."""
    tenants = create(house, *MANY)
    victim = house.worker("--concurrency", "20", "--tenant", "*=1")
    for each in tenants:
        each.start_many([gated(), quick()])
    until(lambda: begun(house, "gated") == Counter(MANY), "a job of each tenant runs", 30)

    victim.kill()
    house.worker("--concurrency", "20", "--tenant", "*=1")
    until(lambda: begun(house, "gated") == Counter(MANY * 2), "each runs again", 30)
    house.open()
    until_statuses(house, tenants, completed=2)

    assert begun(house, "quick") == Counter(MANY)
    assert [completions(each) for each in tenants] == [[1, 1]] * len(tenants)


@pytest.mark.long
@on_both_but("postgres")
def test_tenants_are_created_suspended_resumed_and_dropped_under_load(house: Scene) -> None:
    """I-52."""
    (load,) = create(house, "load")
    worker = house.worker("--concurrency", "4", "--tenant", "acme=2", "--tenant", "*=1", "--log-level", "debug")
    (acme,) = create(house, "acme")
    acme.start_many([gated(), gated(), *(quick() for _ in range(5))])
    until(lambda: begun(house, "gated")["acme"] == 2, "a tenant that was created is served", 20)

    house.face.tenants.suspend("acme", by="ada", why="unpaid")
    with pytest.raises(TenantSuspended, match="by ada"):
        acme.start(quick())
    with pytest.raises(TenantInUse, match="run"):
        house.face.tenants.drop("acme", confirm="acme")
    until(lambda: "worker_drains" in worker.said, "the worker hears of it", 20)
    house.open()
    until(lambda: statuses(acme) == {"completed": 2, "pending": 5}, "what ran has ended", 20)
    load.start_many([quick() for _ in range(20)])
    until_statuses(house, [load], completed=20)
    assert statuses(acme) == {"completed": 2, "pending": 5}
    assert begun(house, "quick")["acme"] == 0

    house.face.tenants.resume("acme")
    until_statuses(house, [acme], completed=7)
    house.face.tenants.suspend("acme")
    house.face.tenants.drop("acme", confirm="acme")
    with pytest.raises(TenantNotFound):
        acme.start(quick())
    load.start_many([quick() for _ in range(20)])
    until_statuses(house, [load], completed=40)
    (again,) = create(house, "acme")
    again.start(quick())
    until_statuses(house, [again], completed=1)

    assert worker.is_alive
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0, worker.said
    assert begun(house, "quick") == {"acme": 6, "load": 40}


@pytest.mark.source("TQ-32")
@on_both_but("sqlite")
def test_running_jobs_of_all_tenants_go_on_in_the_grace_time(house: Scene) -> None:
    tenants = create(house, "acme", "globex")
    worker = house.worker("--concurrency", "2", "--tenant", "*=1", "--grace", "300")
    for each in tenants:
        each.start_many([drained(), quick()])
    until(lambda: begun(house, "drained").total() == 2, "both run", 20)

    worker.send(signal.SIGTERM)
    until(lambda: "worker_drains" in worker.said, "it drains")
    assert [statuses(each) for each in tenants] == [{"running": 1, "pending": 1}] * 2
    house.open()

    assert worker.exit_code() == 0, worker.said
    assert [statuses(each) for each in tenants] == [{"completed": 1, "pending": 1}] * 2


@pytest.mark.source("TQ-33", "TQ-20")
@on_both_but("postgres")
def test_what_still_runs_after_the_grace_time_is_paused_in_every_tenant(house: Scene) -> None:
    tenants = create(house, "acme", "globex")
    worker = house.worker("--concurrency", "2", "--tenant", "*=1", "--grace", "0.2")
    for each in tenants:
        each.start(drained())
    until(lambda: begun(house, "drained").total() == 2, "both run", 20)

    worker.send(signal.SIGTERM)

    assert worker.exit_code() == 0, worker.said
    told = [rows(each, "SELECT status, reason FROM holdfast_job") for each in tenants]
    assert told == [[("paused", "shutdown")]] * 2
    assert {each["aborted"] for each in house.notes("end")} == {"shutdown"}


@pytest.mark.source("TQ-33")
async def test_to_drain_and_to_stop_a_worker_of_tenants_twice_is_harmless(tmp_path: Path) -> None:
    hf = Holdfast(str(tmp_path / "jobs.db"), tenants=True)
    has_begun, is_open = asyncio.Event(), asyncio.Event()

    @hf.task(name="waits")
    async def waits() -> str:
        has_begun.set()  # a job that is claimed and has not begun is given back by a drain, and that is no harm
        await is_open.wait()
        return "done"

    async with hf:
        await hf.tenants.create("acme")
        async with hf.worker(tenants={"*": 1}, grace=300) as worker:
            chain = await hf.tenant("acme").start(waits())
            await has_begun.wait()
            worker.drain()
            worker.drain()
            both = asyncio.gather(worker.stop(), worker.stop())
            is_open.set()
            await both
            await worker.stop()
        assert (await hf.tenant("acme").get_job(chain)).status == "completed"


def holdfast(house: Scene, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of ours as a process."""
    command = [str(Path(sys.executable).with_name("holdfast")), *words]
    return forked.run(command, check=False, cwd=ROOT, env=house.environment, capture_output=True, text=True, timeout=60)


@on_both_but("postgres")
def test_one_command_migrates_all_tenants_and_names_those_that_fail(house: Scene) -> None:
    create(house, "acme", "broken")
    number = migrations.code_number(house.hf.store.database)
    say_version(house, "broken", number - 1)  # a step that was taken cannot be taken again

    first = holdfast(house, "migrate", "--tenants", APP)
    say_version(house, "broken", number)
    again = holdfast(house, "migrate", "--tenants", APP)

    assert first.returncode == 4, first
    assert "broken" in first.stdout + first.stderr
    assert again.returncode == 0, again


def say_version(house: Scene, tenant: str, number: int) -> None:
    """Have the tables of a tenant say that so many steps were taken, as nobody does by our code."""
    told, where = f"SET value = '{number}' WHERE key = 'schema'", house.hf.tenant(tenant).database
    if house.hf.store.database == "postgres":
        with psycopg.connect(where) as connection:
            connection.execute(f"UPDATE {SCHEMA}_t_{tenant}.holdfast_meta {told}")
    else:
        with closing(sqlite3.connect(where)) as file, file:
            file.execute(f"UPDATE holdfast_meta {told}")
