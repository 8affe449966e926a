"""A host serves many tenants with one set of slots; what is wrong with one of them is not the others' business."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from math import inf
from typing import Any
from uuid import UUID

import psycopg
import pytest

from holdfast import (
    Context,
    Holdfast,
    InvalidInput,
    InvalidSettings,
    Misuse,
    Tasks,
    UsageError,
    WrongConnection,
)
from holdfast.client.tenant_store import TenantStore
from holdfast.database.postgres.listener import SharedListener
from holdfast.database.sqlite.store import SqliteStore
from holdfast.logging import JobFilter
from holdfast.store import tenants, workers
from holdfast.store.jobs import claiming
from holdfast.store.jobs.claiming import Want
from holdfast.sync import Context as BlockingContext
from holdfast.testing.postgres import PostgresServer, temporary_postgres
from holdfast.worker.hosts import files, glances, serving, tenant
from holdfast.worker.hosts import host as hosts
from holdfast.worker.hosts.host import WorkerHost
from holdfast.worker.hosts.tenant import VISIT_SECONDS
from holdfast.worker.upkeep import reaper
from holdfast.worker.upkeep.liveness_lock import LivenessLocks
from tests.support.conditions import until
from tests.support.log_lines import lines, named
from tests.worker.tenants import Scene, execute, scene_on

FAST = {"QUIET_SECONDS": 0.2, "MARK_SECONDS": 0.1, "LONGEST_QUIET_SECONDS": 0.4}


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.long), "postgres"])
async def scene(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Scene]:
    """A `Holdfast` with tenants, on either database."""
    async with make_scene(request.param, request, new_holdfast) as scene:
        yield scene


@pytest.fixture
async def on_postgres(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Scene]:
    async with make_scene("postgres", request, new_holdfast) as scene:
        yield scene


@pytest.fixture
async def on_sqlite(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Scene]:
    async with make_scene("sqlite", request, new_holdfast) as scene:
        yield scene


@asynccontextmanager
async def make_scene(
    database: str, request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]
) -> AsyncIterator[Scene]:
    """Have a scene, which handlers find."""
    url = request.getfixturevalue("empty_url") if database == "postgres" else None
    request.getfixturevalue("monkeypatch").setattr(hosts, "REGISTRY_SECONDS", 0.2)
    async with scene_on(new_holdfast(database, tasks=[TASKS], tenants=True), url) as scene:
        HERE.append(scene)
        yield scene
        scene.gate.set()
        HERE.pop()


TASKS = Tasks()
HERE: list[Scene] = []


@TASKS.task(name="note")
async def note(tenant: str) -> None:
    HERE[-1].begin(tenant)
    HERE[-1].end(tenant)


@TASKS.task(name="reach_over")
async def reach_over(ctx: Context, job: str) -> list[str]:
    """Try to write in other places by the block of this one."""
    other, hf = HERE[-1].hf.tenant("globex"), HERE[-1].hf
    told: list[str] = []
    async with ctx.complete() as tx:
        for attempt in (
            lambda: other.start(note(tenant="globex"), connection=tx),
            lambda: hf.start(note(tenant="control"), connection=tx),
            lambda: other.cancel_many([job], connection=tx),
            lambda: other.start(note(tenant="globex")),
        ):
            try:
                await attempt()
            except UsageError as error:
                told.append(f"{error.code}: {error}")
        await hf.tenant("acme").start(note(tenant="acme"), connection=tx)
        return tx.finish(told)


@TASKS.task(name="reach_over_blocking")
def reach_over_blocking(ctx: BlockingContext) -> str:
    with ctx.complete() as tx:
        try:
            HERE[-1].hf.sync.tenant("globex").start(note(tenant="globex"), connection=tx)
        except WrongConnection as error:
            return tx.finish(str(error))
    return ""


@TASKS.task(name="hold")
async def hold(tenant: str) -> None:
    HERE[-1].begin(tenant)
    try:
        await HERE[-1].gate.wait()
    finally:
        HERE[-1].end(tenant)


@TASKS.task(name="step")
async def step(tenant: str) -> None:
    HERE[-1].begin(tenant)
    await asyncio.sleep(0.002)
    HERE[-1].end(tenant)


STRANGERS = Tasks()


@STRANGERS.task(name="strange")
async def strange() -> None:
    """Be of a task that the host does not know."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers closed after a fraction of a second."""
    for name, value in FAST.items():
        monkeypatch.setattr(serving, name, value)
    monkeypatch.setattr(serving, "CHECK_SECONDS", 0.05)


async def start(scene: Scene, name: str, call: Any, count: int = 1) -> None:
    await scene.hf.tenant(name).start_many([call(tenant=name) for _ in range(count)])


async def until_ran(scene: Scene, name: str, count: int = 1) -> None:
    await until(lambda: scene.count(name) >= count, f"{count} jobs of {name} ran; {scene.ran[-20:]}")


def tenant_of(host: WorkerHost, name: str) -> tenant.HostedTenant:
    return host._tenants[name]


async def test_each_tenant_is_served_from_its_own_place(scene: Scene) -> None:
    await scene.create("acme", "globex")
    async with scene.host():
        await start(scene, "acme", note)
        await start(scene, "globex", note, 2)

        await until_ran(scene, "acme")
        await until_ran(scene, "globex", 2)

    assert sorted(scene.ran) == ["acme", "globex", "globex"]


async def test_the_control_place_and_tenants_that_are_not_named_are_left_alone(scene: Scene) -> None:
    await scene.create("acme", "globex")
    await scene.hf.start(note(tenant="control"))
    await start(scene, "globex", note)
    async with scene.host(tenants={"acme": 1}):
        await start(scene, "acme", note)
        await until_ran(scene, "acme")

    assert scene.ran == ["acme"]


@pytest.mark.source("TQ-10")
async def test_slots_of_a_tenant_are_a_cap(scene: Scene) -> None:
    await scene.create("acme", "globex")
    await start(scene, "acme", hold, 10)
    await start(scene, "globex", hold, 10)
    async with scene.host(tenants={"acme": 3, "*": 1}):
        await until(lambda: scene.running == {"acme": 3, "globex": 1}, "both have what they may have")
        scene.gate.set()
        await until_ran(scene, "acme", 10)
        await until_ran(scene, "globex", 10)

    assert scene.most["acme"] == 3
    assert scene.most["globex"] == 1


async def test_the_slots_of_all_tenants_are_at_most_those_of_the_host(scene: Scene) -> None:
    await scene.create("one", "two", "three")
    for name in ("one", "two", "three"):
        await start(scene, name, hold, 5)
    async with scene.host(concurrency=4, tenants={"*": 4}):
        await until(lambda: scene.running.total() == 4, "all slots are taken")
        scene.gate.set()
        for name in ("one", "two", "three"):
            await until_ran(scene, name, 5)

    assert scene.most["all"] == 4


@pytest.mark.long
@pytest.mark.source("TQ-11")
async def test_flooded_tenants_take_turns(scene: Scene) -> None:
    names = ("one", "two", "three")
    await scene.create(*names)
    for name in names:
        await start(scene, name, step, 300)
    async with scene.host(concurrency=3, tenants={"*": 3}):
        await until(lambda: len(scene.ran) >= 450, "half of all jobs ran", timeout=60)

        counts = [scene.ran[:450].count(name) for name in names]

    assert min(counts) >= 75, counts


async def test_a_flooded_tenant_does_not_keep_another_from_its_turn(scene: Scene) -> None:
    await scene.create("flooded", "other")
    await start(scene, "flooded", step, 2_000)
    async with scene.host(concurrency=2, tenants={"*": 2}):
        await until_ran(scene, "flooded", 20)
        before = scene.count("flooded")
        await start(scene, "other", note)
        await until_ran(scene, "other")
        between = scene.count("flooded") - before

    assert between < 1_900


async def test_a_quiet_worker_is_closed_and_opened_again_by_a_new_job(scene: Scene, quick: None) -> None:
    await scene.create("acme")
    async with scene.host() as host:
        for number in range(1, 4):
            await start(scene, "acme", note)
            await until_ran(scene, "acme", number)
            await until(lambda: tenant_of(host, "acme").serving is None, "its worker is closed")

    assert scene.count("acme") == 3


async def test_a_job_that_is_due_later_wakes_its_tenant(scene: Scene, quick: None) -> None:
    await scene.create("acme")
    async with scene.host() as host:
        await until(lambda: host.health().tenants == 1, "the tenant is known")
        await scene.hf.tenant("acme").start(note(tenant="acme"), delay=1.5)
        await until(lambda: tenant_of(host, "acme").serving is None, "no worker is there for it")

        await until_ran(scene, "acme")


async def test_with_every_hint_lost_the_glance_finds_the_job(
    on_postgres: Scene, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkerHost, "_on_hint", lambda *_: None)
    await on_postgres.create("acme")
    async with on_postgres.host() as host:
        await until(lambda: host.health().claimed_at is not None, "it has looked once")
        await start(on_postgres, "acme", note)

        await until_ran(on_postgres, "acme")


async def test_a_hint_wakes_a_tenant_that_is_seldom_looked_at(
    on_postgres: Scene, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await on_postgres.create("acme")
    async with on_postgres.host() as host:
        await until(lambda: host.health().hints == "listening", "hints are heard")
        acme = tenant_of(host, "acme")
        await until(lambda: acme.mark is not None and acme.mark.is_marked, "it is marked as asleep")
        monkeypatch.setattr(glances.TenantGroup, "due_at", lambda _: float("inf"))

        await start(on_postgres, "acme", note)

        await until_ran(on_postgres, "acme")


async def test_a_mark_is_taken_away_while_a_worker_is_there_and_at_the_end(on_postgres: Scene) -> None:
    await on_postgres.create("acme")
    store = on_postgres.hf.tenant("acme").store

    async def watches() -> list[str]:
        rows = await store.read(_worker_ids)
        return [each for each in rows if each.startswith(workers.WATCH)]

    async with on_postgres.host():
        await until(watches, "the host sleeps there")
        await start(on_postgres, "acme", hold)
        await until(lambda: on_postgres.running["acme"] == 1, "the job runs")
        assert await watches() == []
        on_postgres.gate.set()

    assert await watches() == []


async def _worker_ids(tx: Any) -> list[str]:
    return [id_ for (id_,) in await tx.fetch_all("SELECT id FROM holdfast_worker")]


async def test_what_the_worker_of_a_tenant_logs_names_the_tenant(
    on_sqlite: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "holdfast.worker")
    caplog.handler.addFilter(JobFilter())
    await on_sqlite.create("acme", "globex")

    async with on_sqlite.host():
        for name in ("acme", "globex"):
            await start(on_sqlite, name, note)
            await until_ran(on_sqlite, name)

    assert sorted(vars(each)["tenant"] for each in named(caplog, "worker_started")) == ["acme", "globex"]
    (of_all,) = named(caplog, "host_started")
    assert vars(of_all)["tenant"] is None


async def test_a_new_tenant_is_served_soon(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    await scene.create("acme")
    async with scene.host(tenants={"later": 2}):
        await until(lambda: bool(named(caplog, "tenants_unknown")), "it says that there is no such tenant")
        await scene.create("later")
        await start(scene, "later", note)

        await until_ran(scene, "later")


async def test_in_a_suspended_tenant_what_runs_ends_and_nothing_begins(scene: Scene) -> None:
    await scene.create("acme", "globex")
    async with scene.host(tenants={"*": 1}) as host:
        await start(scene, "acme", hold, 3)
        await until(lambda: scene.running["acme"] == 1, "one runs")

        await scene.hf.tenants.suspend("acme")
        await until(lambda: "acme" not in host._tenants, "the host knows")
        scene.gate.set()
        await until(lambda: not host._ending, "its worker is closed")
        await start(scene, "globex", note)
        await until_ran(scene, "globex")
        assert scene.count("acme") == 1

        await scene.hf.tenants.resume("acme")
        await until_ran(scene, "acme", 3)


async def test_a_tenant_that_is_resumed_while_a_job_runs_is_served_beside_it(scene: Scene) -> None:
    await scene.create("acme")
    async with scene.host(tenants={"*": 2}) as host:
        await start(scene, "acme", hold)
        await until(lambda: scene.running["acme"] == 1, "one runs")
        await scene.hf.tenants.suspend("acme")
        await until(lambda: "acme" not in host._tenants, "the host knows")

        await scene.hf.tenants.resume("acme")
        await start(scene, "acme", step, 3)
        await until_ran(scene, "acme", 4)
        await until(lambda: scene.running["acme"] == 1, "only the first still runs")
        assert scene.most["acme"] == 2

        scene.gate.set()
        await until(lambda: not host._ending, "the worker from before is closed")
        await start(scene, "acme", note)
        await until_ran(scene, "acme", 5)


async def test_a_dropped_tenant_vanishes_and_the_others_go_on(scene: Scene) -> None:
    await scene.create("acme", "globex")
    async with scene.host() as host:
        await until(lambda: host.health().tenants == 2, "both are known")
        await scene.hf.tenants.suspend("acme")
        await scene.hf.tenants.drop("acme", confirm="acme")
        await until(lambda: host.health().tenants == 1, "one is gone")
        await start(scene, "globex", note)

        await until_ran(scene, "globex")


async def test_a_tenant_that_is_dropped_and_created_again_at_once_is_served(scene: Scene) -> None:
    await scene.create("acme")
    elsewhere = Holdfast(settings=scene.hf.settings, tasks=[TASKS])
    async with scene.host() as host, elsewhere:
        await until(lambda: host.health().claimed_at is not None, "it was looked at")

        await elsewhere.tenants.suspend("acme")
        await elsewhere.tenants.drop("acme", confirm="acme")
        await elsewhere.tenants.create("acme")
        await elsewhere.tenant("acme").start(note(tenant="acme"))

        await until_ran(scene, "acme")


async def test_a_tenant_whose_tables_are_gone_is_left_out_and_said_so(
    on_postgres: Scene, empty_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await on_postgres.create("broken", "well")
    execute(empty_url, f'DROP TABLE "{on_postgres.place("broken")}".holdfast_job CASCADE')
    async with on_postgres.host():
        await start(on_postgres, "well", note)
        await until_ran(on_postgres, "well")
        await until(lambda: trouble_of(on_postgres, "broken"), "the registry says so")
        assert not await trouble_of(on_postgres, "well")

    (line,) = named(caplog, "tenant_left_out")
    assert line.tenant == "broken"


async def has_completed(scene: Scene, name: str) -> bool:
    return bool((await scene.hf.tenant(name).list_jobs(status="completed")).items)


@pytest.mark.parametrize("scene", ["sqlite", "postgres"], indirect=True)
async def test_a_tenant_that_breaks_while_it_has_a_worker_is_left_out_and_said_once(
    scene: Scene, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(serving, "BROKEN_SECONDS", 0.1)
    await scene.create("broken", "well")
    async with scene.host(poll=0.1, grace=0.2) as host:
        await start(scene, "broken", note)
        await until(lambda: has_completed(scene, "broken"), "its job is written down: a worker would try that first")
        if scene.is_postgres:
            execute(request.getfixturevalue("empty_url"), f'DROP SCHEMA "{scene.place("broken")}" CASCADE')
        else:
            scene.file("broken").unlink()

        await until(lambda: named(caplog, "tenant_left_out"), "it is left out")
        await until(lambda: tenant_of(host, "broken").worker is None, "its worker is closed")
        await start(scene, "well", note)
        await until_ran(scene, "well")
        await until(lambda: trouble_of(scene, "broken"), "the registry says so")

    (line,) = named(caplog, "tenant_left_out")
    assert line.tenant == "broken"
    assert "the tables of tenant 'broken' are gone" in line.reason or "was removed" in line.reason


async def test_a_tenant_of_an_older_schema_is_not_served_and_says_so(
    on_postgres: Scene, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await on_postgres.create("old", "well")
    monkeypatch.setattr(tenant, "LEFT_OUT_SECONDS", 0.3)
    await start(on_postgres, "old", note)
    meta = f'"{on_postgres.place("old")}".holdfast_meta'
    execute(empty_url, f"UPDATE {meta} SET value = '6' WHERE key = 'schema'")
    async with on_postgres.host():
        await start(on_postgres, "well", note)
        await until_ran(on_postgres, "well")
        await until(lambda: trouble_of(on_postgres, "old"), "the registry says so")
        assert "schema 6" in await trouble_of(on_postgres, "old")
        assert on_postgres.count("old") == 0

        execute(empty_url, f"UPDATE {meta} SET value = '7' WHERE key = 'schema'")
        await until_ran(on_postgres, "old")
        await until(lambda: has_no_trouble(on_postgres, "old"), "the registry says that it is well")


async def lock(stranger: psycopg.Connection[Any], place: str) -> None:
    """Have all of a tenant's jobs locked; in a thread, for whoever holds a lock there must go on."""
    await asyncio.to_thread(stranger.execute, f'LOCK TABLE "{place}".holdfast_job IN ACCESS EXCLUSIVE MODE')


@pytest.mark.source("TQ-11")
async def test_a_locked_tenant_does_not_hold_up_the_others(
    on_postgres: Scene, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant, "LEFT_OUT_SECONDS", 0.3)
    await on_postgres.create("locked", "well")
    await start(on_postgres, "locked", note)
    with psycopg.connect(empty_url) as stranger:
        await lock(stranger, on_postgres.place("locked"))
        async with on_postgres.host():
            await until(lambda: trouble_of(on_postgres, "locked"), "the registry says that it is locked")
            for number in range(1, 4):
                await start(on_postgres, "well", note)
                await until_ran(on_postgres, "well", number)
            assert on_postgres.count("locked") == 0

            stranger.rollback()
            await until_ran(on_postgres, "locked")
            await until(lambda: has_no_trouble(on_postgres, "locked"), "the registry says that it is well")


async def test_a_tenant_that_is_locked_while_it_has_a_worker_does_not_hold_up_the_others(
    on_postgres: Scene, empty_url: str
) -> None:
    await on_postgres.create("locked", "well")
    with psycopg.connect(empty_url) as stranger:
        async with on_postgres.host(tenants={"*": 2}, concurrency=2):
            await start(on_postgres, "locked", note, 2)
            await until_ran(on_postgres, "locked", 2)
            await lock(stranger, on_postgres.place("locked"))
            for number in range(1, 6):
                await start(on_postgres, "well", note)
                await until_ran(on_postgres, "well", number)
            stranger.rollback()
            await start(on_postgres, "locked", note)
            await until_ran(on_postgres, "locked", 3)


async def test_a_file_that_is_gone_is_said_and_not_made_anew(
    on_sqlite: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await on_sqlite.create("gone", "well")
    path = on_sqlite.file("gone")
    await on_sqlite.hf.tenant("gone").store.close()
    path.unlink()
    async with on_sqlite.host():
        await start(on_sqlite, "well", note)
        await until_ran(on_sqlite, "well")
        await until(lambda: trouble_of(on_sqlite, "gone"), "the registry says so")

    assert not path.exists()
    assert [line.tenant for line in named(caplog, "tenant_left_out")] == ["gone"]


async def test_a_file_that_cannot_be_written_does_not_hold_up_the_others(on_sqlite: Scene) -> None:
    await on_sqlite.create("sealed", "well")
    await start(on_sqlite, "sealed", note)
    await on_sqlite.hf.tenant("sealed").store.close()
    path = on_sqlite.file("sealed")
    path.write_bytes(b"this is no database" * 1000)
    async with on_sqlite.host():
        await start(on_sqlite, "well", note)
        await until_ran(on_sqlite, "well")
        await until(lambda: trouble_of(on_sqlite, "sealed"), "the registry says so")


async def test_of_many_idle_files_only_some_are_open(on_sqlite: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_OPEN", 2)
    monkeypatch.setattr(files, "MOST_AT_ONCE", 2)
    opened: list[int] = []
    look = files.FileLookout._look

    async def count(lookout: files.FileLookout, file: Any) -> None:
        await look(lookout, file)
        opened.append(len(lookout._open))

    monkeypatch.setattr(files.FileLookout, "_look", count)
    names = [f"t{number}" for number in range(6)]
    await on_sqlite.create(*names)
    async with on_sqlite.host() as host:
        await until(lambda: host.health().tenants == 6, "all are known")
        await until(lambda: all(each.looked_at > 0 for each in host._tenants.values()), "all were looked into")
        lookout = host._lookout
        assert isinstance(lookout, files.FileLookout)
        await until(lambda: len(lookout._open) <= 2, "most are closed again")
        assert max(opened) <= 2 + files.MOST_AT_ONCE, "they are never all open at once"
        await start(on_sqlite, "t0", note)
        await start(on_sqlite, "t5", note)
        await until_ran(on_sqlite, "t0")
        await until_ran(on_sqlite, "t5")


async def run_by_a_stranger(scene: Scene, name: str) -> LivenessLocks:
    """Have a job of a tenant run in another process, for an hour at most; return the locks of its worker."""
    store = scene.hf.tenant(name).store
    assert isinstance(store, TenantStore)
    assert isinstance(store.place, SqliteStore)
    locks = LivenessLocks(store.place, "worker-dd")
    await locks.begin()
    await start(scene, name, note)
    assert await store.run(claiming.claim, [Want("default", "note", 3_600_000)], 1, "worker-dd", "nonce-dd")
    return locks


@pytest.mark.parametrize("moment", ["before the host begins", "while the host works"])
async def test_jobs_of_a_worker_that_died_are_taken_over_before_their_leases_end(on_sqlite: Scene, moment: str) -> None:
    """I-69, I-25."""
    await on_sqlite.create("acme")
    locks = await run_by_a_stranger(on_sqlite, "acme")
    assert locks._own is not None
    if moment == "before the host begins":
        locks._own.close()
    async with on_sqlite.host() as host:
        await until(lambda: host.health().tenants == 1, "the tenant is known")
        await until(lambda: tenant_of(host, "acme").looked_at > 0, "it was looked into")
        if moment == "while the host works":
            assert tenant_of(host, "acme").serving is None, "its worker lives"
        locks._own.close()

        await until_ran(on_sqlite, "acme")
    locks.drop()


async def test_a_worker_that_breaks_is_left_out_and_the_others_go_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.create("cursed", "well")
    make = serving.TenantService._make_worker

    def refuse(service: serving.TenantService, of: tenant.HostedTenant) -> Any:
        if of.name == "cursed":
            raise RuntimeError("no worker for this one")
        return make(service, of)

    monkeypatch.setattr(serving.TenantService, "_make_worker", refuse)
    await start(scene, "cursed", note)
    async with scene.host():
        await start(scene, "well", note)
        await until_ran(scene, "well")
        await until(lambda: trouble_of(scene, "cursed"), "the registry says so")

    assert scene.count("cursed") == 0
    assert len(named(caplog, "tenant_left_out")) == 1


async def test_a_block_of_one_tenant_writes_in_no_other(scene: Scene) -> None:
    """I-52."""
    await scene.create("acme", "globex")
    acme, globex = scene.hf.tenant("acme"), scene.hf.tenant("globex")
    waits = await acme.start(note(tenant="acme").options(delay=3600))
    async with scene.host():
        told = await (await acme.start(reach_over(job=str(waits.id)))).result(timeout=20)
        blocking = await (await acme.start(reach_over_blocking())).result(timeout=20)
        await until_ran(scene, "acme")

    wrong = "wrong_connection: tx is of tenant 'acme', and the call is for"
    assert [each.startswith(wrong) for each in told] == [True, True, True, False]
    assert "the control place" in told[1]
    assert "if the block is not of tenant 'globex', start it after the block" in told[3]
    assert "tx is of tenant 'acme', and the call is for tenant 'globex'" in blocking
    assert (await acme.get_job(waits)).status == "pending"
    assert [*(await globex.list_jobs()), *(await scene.hf.list_jobs())] == []


async def test_a_worker_that_waits_for_a_slot_is_not_quiet(scene: Scene) -> None:
    """Or it would be closed as if its tenant had nothing to do, and not be opened again for the same for minutes."""
    await scene.create("acme", "globex")
    async with scene.host(concurrency=1) as host:
        await start(scene, "acme", hold)
        await until(lambda: scene.running["acme"] == 1, "the only slot is taken")
        await start(scene, "globex", note)
        await until(lambda: tenant_of(host, "globex").worker is not None, "the other one has a worker")
        worker = tenant_of(host, "globex").worker
        assert worker is not None
        share = worker._core.share
        assert share is not None
        await until(lambda: share.hunger > 0, "it waits for a slot")

        assert worker.quiet_seconds == 0.0
        scene.gate.set()
        await until_ran(scene, "globex")
        await until(lambda: worker.quiet_seconds > 0, "it is quiet then")


async def test_what_a_host_that_is_gone_has_said_of_a_tenant_is_taken_away(scene: Scene) -> None:
    await scene.create("acme", "globex")
    async with scene.host():
        await start(scene, "acme", note)
        await until_ran(scene, "acme")
        said = [("acme", "locked for a moment"), ("globex", "locked for a moment")]
        await scene.hf.store.run(tenants.note_trouble, said)
        await start(scene, "globex", note)

        await until(lambda: is_well(scene, "acme"), "that of a busy tenant is taken away")
        await until(lambda: is_well(scene, "globex"), "that of a tenant that was idle, too")


async def is_well(scene: Scene, name: str) -> bool:
    return (await scene.hf.tenants.get(name)).trouble is None


async def test_a_tenant_that_is_dropped_while_its_worker_is_there_is_no_trouble(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "holdfast")
    monkeypatch.setattr(reaper, "PERIOD_SECONDS", 0.05)
    monkeypatch.setattr(hosts, "REGISTRY_SECONDS", 60.0)
    await scene.create("brief")
    await start(scene, "brief", note)
    async with scene.host() as host:
        await until_ran(scene, "brief")
        await until(lambda: has_completed(scene, "brief"), "its end is written down")
        await scene.hf.tenants.suspend("brief")
        await scene.hf.tenants.drop("brief", confirm="brief")
        await until(lambda: "upkeep_failed" in lines(caplog), "its worker meets it")
        await until(lambda: host._workers == [], "it is closed")

    loud = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert loud == []


async def test_jobs_of_unknown_tasks_open_no_worker(scene: Scene, new_holdfast: Callable[..., Holdfast]) -> None:
    await scene.create("acme", "globex")
    elsewhere = new_holdfast(scene.hf.store.database, tasks=[STRANGERS], tenants=True)
    async with elsewhere:
        await elsewhere.tenant("acme").start(strange())
    async with scene.host() as host:
        await start(scene, "globex", note)
        await until_ran(scene, "globex")

        assert tenant_of(host, "acme").serving is None


async def test_a_job_behind_the_cap_of_its_tenant_waits_for_busy_workers(scene: Scene) -> None:
    await scene.create("acme")
    async with scene.host(concurrency=5, tenants={"*": 1}):
        await start(scene, "acme", hold, 2)
        await until(lambda: scene.running["acme"] == 1, "one runs")

        await until(lambda: pending_codes(scene, "acme", ["workers_busy"]), "the other one waits for it")
        scene.gate.set()


async def pending_codes(scene: Scene, name: str, wanted: list[str]) -> bool:
    hf = scene.hf.tenant(name)
    (job,) = (await hf.list_jobs(status="pending")).items
    return [each.code for each in (await hf.explain(job)).reasons] == wanted


async def test_how_long_a_tenant_was_left_out_is_told_also_by_a_new_worker(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.create("acme")
    await scene.hf.store.run(tenants.note_trouble, [("acme", "disk full")])
    await scene.hf.store.run(_was_long_ago)

    async with scene.host():
        await until(lambda: named(caplog, "tenant_served_again"), "it is well")
        await until(lambda: has_no_trouble(scene, "acme"), "the registry says so")

    (line,) = named(caplog, "tenant_served_again")
    assert line.seconds >= 360


async def _was_long_ago(tx: Any) -> None:
    await tx.execute("UPDATE holdfast_tenant SET trouble_at = trouble_at - 360000")


async def test_a_tenant_that_was_dropped_is_not_said_to_be_in_trouble(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who looks at a tenant may come before who reads the registry."""
    await scene.create("acme", "globex")
    async with scene.host() as host:
        await until(lambda: host.health().tenants == 2, "both are known")
        monkeypatch.setattr(hosts, "REGISTRY_SECONDS", 60.0)
        await until(lambda: tenant_of(host, "acme").looked_at > 0, "it was looked at")
        acme = tenant_of(host, "acme")
        await scene.hf.tenants.suspend("acme")
        await scene.hf.tenants.drop("acme", confirm="acme")
        host.note_broken(acme, RuntimeError("no such table"))
        await until(lambda: acme.out_until is not None, "it is left out")
        await start(scene, "globex", note)
        await until_ran(scene, "globex")

    assert named(caplog, "tenant_left_out") == []


async def test_health_sums_up_all_tenants(scene: Scene) -> None:
    await scene.create("acme", "globex", "idle")
    await start(scene, "acme", hold)
    await start(scene, "globex", hold)
    async with scene.host() as host:
        await until(lambda: host.health().running == 2, "both run")
        health = host.health()
        assert health.tenants == 3
        assert health.id == host.id
        assert health.trouble is None
        scene.gate.set()


async def test_a_host_that_stops_gives_running_jobs_back(scene: Scene) -> None:
    await scene.create("acme", "globex")
    await start(scene, "acme", hold)
    await start(scene, "globex", hold)
    async with scene.host(grace=0.0):
        await until(lambda: scene.running.total() == 2, "both run")

    assert scene.running.total() == 0
    for name in ("acme", "globex"):
        ((status,),) = await scene.hf.tenant(name).store.read(_statuses)
        assert status == "pending"


async def _statuses(tx: Any) -> list[tuple[str]]:
    return list(await tx.fetch_all("SELECT status FROM holdfast_job"))


async def test_a_supervisor_can_drain_interrupt_and_abandon_a_host(scene: Scene) -> None:
    await scene.create("acme")
    await start(scene, "acme", hold)
    async with scene.host() as host:
        await until(lambda: scene.running["acme"] == 1, "it runs")
        host.drain()
        assert host.health().is_draining
        assert not await host.has_ended(0.1)
        host.interrupt()
        assert await host.has_ended(20)
        assert not host.has_unwritten
        assert host.stubborn == []


async def test_a_host_that_drains_is_alive_until_its_jobs_have_ended(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "BEAT_SECONDS", 0.05)
    await scene.create("acme")
    await start(scene, "acme", hold)

    beats: set[datetime] = set()

    async def has_beaten() -> bool:
        beats.update(each.seen_at for each in await scene.hf.list_workers())
        return len(beats) > 3  # one may have been on its way when the drain began

    async with scene.host(grace=None) as host:
        await until(lambda: scene.running["acme"] == 1, "it runs")
        host.drain()
        await until(has_beaten, "it gives signs while it drains")
        scene.gate.set()


async def test_a_tenants_worker_counts_as_alive_and_the_hosts_own_row_does_not(on_postgres: Scene) -> None:
    await on_postgres.create("acme")
    store = on_postgres.hf.tenant("acme").store
    async with on_postgres.host():
        await until(lambda: _has_rows(store), "the host sleeps there")
        assert await store.read(workers.living) == []

        await start(on_postgres, "acme", hold)
        await until(lambda: on_postgres.running["acme"] == 1, "it runs")
        await until(lambda: _is_living(store), "its worker is alive")
        on_postgres.gate.set()


async def _has_rows(store: Any) -> bool:
    return bool(await store.read(_worker_ids))


async def _is_living(store: Any) -> bool:
    return bool(await store.read(workers.living))


@pytest.mark.parametrize("wrong", [{}, {"acme": 0}, {"acme": True}, {"acme": "4"}, ["acme"], {"*": 1.5}])
async def test_wrong_slots_are_refused(wrong: Any, on_sqlite: Scene) -> None:
    with pytest.raises(InvalidSettings, match="tenants"):
        on_sqlite.hf.worker(tenants=wrong)


async def test_a_wrong_name_is_refused(on_sqlite: Scene) -> None:
    with pytest.raises(InvalidInput, match="name of a tenant"):
        on_sqlite.hf.worker(tenants={"Acme!": 1})


async def test_without_tenants_there_is_no_host(new_holdfast: Callable[..., Holdfast]) -> None:
    with pytest.raises(Misuse, match="tenants=True"):
        new_holdfast("sqlite").worker(tenants={"*": 1})


async def trouble_of(scene: Scene, name: str) -> str:
    return (await scene.hf.tenants.get(name)).trouble or ""


async def has_no_trouble(scene: Scene, name: str) -> bool:
    return not await trouble_of(scene, name)


LOGGED = re.compile(rb"LOG:  (?:statement|execute [^:]*): ")


@pytest.fixture(scope="module")
def talkative_server() -> Iterator[PostgresServer]:
    """A server of its own that logs every statement."""
    with temporary_postgres(settings={"log_statement": "all"}) as server:
        yield server


@pytest.mark.long
@pytest.mark.parametrize("has_hints", [True, False], ids=["hints", "deaf"])
@pytest.mark.parametrize("count", [30, 200])
async def test_idle_tenants_cost_less_than_two_statements_a_second(
    talkative_server: PostgresServer, monkeypatch: pytest.MonkeyPatch, count: int, has_hints: bool
) -> None:
    """I-85, counted on the server; without the daily visits, which come at random and have a test of their own."""
    monkeypatch.setattr(hosts, "VISIT_SECONDS", inf)
    if not has_hints:
        monkeypatch.setattr(SharedListener, "hears", lambda *_: False)
    names, seconds = [f"t{number}" for number in range(count)], 5 if count < 100 else 20
    hf = Holdfast(talkative_server.url, schema_name=f"idle{count}", tasks=[TASKS], tenants=True)
    await hf.migrate()
    async with hf:
        for name in await missing(hf, names):
            await hf.tenants.create(name)
        async with Scene(hf).host() as host:
            await until(lambda: host.health().tenants == count, "all are known")
            asleep = is_asleep if has_hints else is_looked_at
            await until(lambda: all(map(asleep, host._tenants.values())), "all are idle", timeout=120)

            before = statements_of(talkative_server)
            await asyncio.sleep(seconds)
            statements = statements_of(talkative_server) - before

    assert 0 < statements < 2 * seconds


@pytest.mark.long
async def test_the_daily_visit_of_a_tenant_adds_little_to_what_idle_ones_cost(
    talkative_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-85: 200 tenants without hints cost 1.7 statements a second, and each has a worker for a minute once a day."""
    monkeypatch.setattr(SharedListener, "hears", lambda *_: False)
    hf = Holdfast(talkative_server.url, schema_name="visited", tasks=[TASKS], tenants=True)
    await hf.migrate()
    async with hf:
        await hf.tenants.create("acme")
        async with Scene(hf).host() as host:
            await until(lambda: host.health().tenants == 1 and is_looked_at(host._tenants["acme"]), "it is idle")
            acme = host._tenants["acme"]

            before = statements_of(talkative_server, OF_VISIT)
            acme.visit_at = 0.0
            await until(lambda: acme.serving is not None, "it is visited")
            await until(lambda: acme.is_idle, "the visit is over", timeout=110)
            statements = statements_of(talkative_server, OF_VISIT) - before

    assert 0 < statements * 200 / VISIT_SECONDS < 0.3


OF_VISIT = re.compile(rb"LOG:  (?:statement|execute [^:]*): (?!NOTIFY)(?!.*holdfast_tenant)")
"""Not what the host asks anyway: whether it is heard, and which tenants there are."""


def statements_of(server: PostgresServer, wanted: re.Pattern[bytes] = LOGGED) -> int:
    """Count what has been asked of the server."""
    return len(wanted.findall(server.log.read_bytes()))


async def missing(hf: Holdfast, names: list[str]) -> list[str]:
    known = {each.name for each in await hf.tenants.list()}
    return [each for each in names if each not in known]


def is_asleep(of: tenant.HostedTenant) -> bool:
    return of.is_idle and of.is_sure


def is_looked_at(of: tenant.HostedTenant) -> bool:
    return of.is_idle and of.looked_at > 0


async def test_a_host_forgets_what_is_over_in_the_control_place(
    new_holdfast: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "BEAT_SECONDS", 0.02)
    async with scene_on(new_holdfast("sqlite", tasks=[TASKS], tenants=True), None) as scene:
        made = [(await scene.hf.tokens.create(name, expires=1)).info.id for name in ("ada", "bob")]
        await scene.hf.store.run(end_long_ago, made[0])

        async def is_forgotten() -> bool:
            return [each.id for each in await scene.hf.tokens.list()] == made[1:]

        async with scene.host():
            await until(is_forgotten, "the token is forgotten")


async def end_long_ago(tx: Any, token: UUID) -> None:
    await tx.execute("UPDATE holdfast_token SET expires_at = 1 WHERE id = :id", id=str(token))


async def test_a_host_forgets_nothing_where_retention_is_off(new_holdfast: Callable[..., Holdfast]) -> None:
    hf = new_holdfast("sqlite", tasks=[TASKS], tenants=True, retention=False)
    host = hf.worker(tenants={"*": 1})

    assert isinstance(host, WorkerHost)
    assert host._parts.forget_records is None
