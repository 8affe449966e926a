"""Schedules inside tenants: those that code declares for each, also for one that nobody uses, and suspended ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Context, Holdfast, Misuse, TenantSuspended
from holdfast.worker.hosts import host as hosts
from holdfast.worker.hosts import serving
from tests.support.conditions import until
from tests.support.log_lines import lines
from tests.worker.tenants import Scene, scene_on


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.long), "postgres"])
async def scene(
    request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scene]:
    """A `Holdfast` that declares a schedule for its tenants, due every second."""
    monkeypatch.setattr(hosts, "REGISTRY_SECONDS", 0.2)
    url = request.getfixturevalue("empty_url") if request.param == "postgres" else None
    async with scene_on(new_holdfast(request.param, tenants=True), url) as scene:

        @scene.hf.task(name="sweep")
        async def sweep(ctx: Context) -> None:
            scene.begin(str(ctx.tenant))
            scene.end(str(ctx.tenant))

        scene.hf.schedule("sweep-all", sweep(), every=1, tenants=True)
        yield scene


async def test_a_schedule_for_tenants_runs_in_each_and_not_in_the_control_place(scene: Scene) -> None:
    await scene.create("acme", "globex")

    async with scene.host():
        await until(lambda: scene.count("acme") > 0 and scene.count("globex") > 0, "it has run in both")
        await scene.create("initech")
        await until(lambda: scene.count("initech") > 0, "it runs in a tenant that nobody has used, too")

    assert [each.name for each in await scene.hf.tenant("acme").schedules.list()] == ["sweep-all"]
    assert list(await scene.hf.schedules.list()) == []


async def test_the_decorator_of_a_task_declares_a_schedule_for_tenants_as_well(scene: Scene) -> None:
    @scene.hf.task(name="swab", every=3600, tenants=True)
    async def swab() -> None:
        """Do nothing."""

    await scene.create("acme")
    acme = scene.hf.tenant("acme")
    await acme.start(swab())

    assert [each.name for each in await acme.schedules.list()] == ["swab", "sweep-all"]
    assert list(await scene.hf.schedules.list()) == []


async def test_a_schedule_of_the_control_place_that_nobody_serves_is_said_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hosts, "BEAT_SECONDS", 0.05)
    reads: list[object] = []
    await scene.hf.schedules.put("forgotten", scene.hf.call("sweep", {}), every=3600)
    look = hosts.WorkerHost._look_for_unserved_schedules

    async def count(host: hosts.WorkerHost) -> None:
        await look(host)
        reads.append(host)

    monkeypatch.setattr(hosts.WorkerHost, "_look_for_unserved_schedules", count)
    async with scene.host():
        await until(lambda: len(reads) > 1, "it has looked")
        assert "schedules_not_served" not in lines(caplog), "it is not due"
        assert not (await scene.hf.schedules.get("forgotten")).is_late
        await scene.hf.store.run(overdue)
        await until(lambda: "schedules_not_served" in lines(caplog), "it is said")
        said = len(reads)
        await until(lambda: len(reads) > said + 2, "it has looked again")

    assert lines(caplog).count("schedules_not_served") == 1
    assert (await scene.hf.schedules.get("forgotten")).is_late


async def overdue(tx: Any) -> None:
    """Have every schedule be due for two minutes."""
    await tx.execute("UPDATE holdfast_schedule SET next_at = $now - 120000")


async def test_the_schedules_of_a_suspended_tenant_start_nothing(scene: Scene) -> None:
    await scene.create("acme")
    acme = scene.hf.tenant("acme")
    await acme.start(scene.hf.call("sweep", {}))  # so that its schedules are written down
    await scene.hf.tenants.suspend("acme")

    async with acme.worker(poll=0.05) as worker:
        await until(lambda: worker.health().claimed_at is not None, "it has looked")
        with pytest.raises(TenantSuspended):
            await acme.schedules.run("sweep-all")
        due = datetime.now(UTC) + timedelta(seconds=1.2)
        await until(lambda: datetime.now(UTC) > due, "a time of the rule has passed")
        assert list(await acme.schedules.ticks("sweep-all")) == []
        await scene.hf.tenants.resume("acme")
        await until(lambda: scene.count("acme") > 1, "it goes on")


@pytest.mark.long
async def test_a_pause_that_ends_by_itself_ends_in_an_idle_tenant(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("QUIET_SECONDS", 0.5), ("MARK_SECONDS", 0.1), ("CHECK_SECONDS", 0.05)):
        monkeypatch.setattr(serving, name, value)
    await scene.create("acme")
    acme = scene.hf.tenant("acme")
    await acme.start(scene.hf.call("sweep", {}))
    async with scene.host() as host:
        await until(lambda: scene.count("acme") > 0, "its job has run")
        await acme.schedules.pause("sweep-all", until=datetime.now(UTC) + timedelta(seconds=4))
        await until(lambda: not host._workers, "its worker was closed")
        before = scene.count("acme")

        await until(lambda: scene.count("acme") > before, "the schedule goes on after its pause")


async def test_a_schedule_for_tenants_is_refused_where_there_are_none(new_holdfast: Callable[..., Holdfast]) -> None:
    hf = new_holdfast("sqlite")
    hf.schedule("sweep-all", hf.call("sweep", {}), every=60, tenants=True)

    with pytest.raises(Misuse, match=r"Holdfast\(…, tenants=True\)"):
        await hf.open()
    await hf.close()


async def test_a_worker_of_the_control_place_says_that_it_serves_no_tenants(
    new_holdfast: Callable[..., Holdfast], caplog: pytest.LogCaptureFixture
) -> None:
    async with new_holdfast("sqlite", tenants=True) as hf, hf.worker():
        await until(lambda: "worker_serves_no_tenants" in lines(caplog), "it is said")
