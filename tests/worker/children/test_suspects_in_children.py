"""Suspects of ordinary tasks: in a child of their own if the worker has `app=`, else alone in the worker (I-24)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from holdfast import Chain, Holdfast
from holdfast.worker.children import pool, remote_attempt, suspects
from holdfast.worker.claiming import dispatcher
from tests.support.conditions import until
from tests.worker.children import application
from tests.worker.children.watching import PATIENCE, ends_as, gone

APP = "tests.worker.children.application:hf"


async def start_suspects(hf: Holdfast, *calls: Any) -> list[Chain[Any]]:
    """Start jobs whose process has died under them twice."""
    chains = await hf.start_many([each.options(paused=True) for each in calls])

    async def crash(tx: Any) -> None:
        await tx.execute(
            "UPDATE holdfast_job SET crashes = 2 WHERE id $any(ids: text)", ids=[str(c.id) for c in chains]
        )

    await hf.store.run(crash)
    await hf.resume_many(chains)
    return chains


async def pids(chains: list[Chain[int]]) -> set[int]:
    """Wait for the results of jobs that tell which process they ran in."""
    return {await each.result(timeout=PATIENCE) for each in chains}


async def test_a_suspect_runs_in_a_child_beside_the_others(hf: Holdfast) -> None:
    async with hf.worker(app=APP):
        other = await hf.start(application.wait_here())
        await ends_as(hf, other, "running")
        chains = await start_suspects(hf, application.here())
        found = await pids(chains)
        beside = (await hf.get_job(other)).status
        await hf.cancel(other)

    job = await hf.get_job(chains[0])
    assert found.isdisjoint({os.getpid()})
    assert beside == "running"
    assert (job.crashes, job.used, job.completed_by is not None and job.completed_by.endswith("/child")) == (2, 1, True)


async def test_a_suspect_of_a_worker_without_app_runs_in_the_worker(hf: Holdfast) -> None:
    async with hf.worker():
        chains = await start_suspects(hf, application.here())
        assert await pids(chains) == {os.getpid()}


@pytest.mark.long
async def test_a_suspect_runs_alone_in_the_worker_if_no_child_can_import_the_application(
    hf: Holdfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaw = tmp_path / "flaw"
    flaw.touch()
    monkeypatch.setenv("HOLDFAST_BROKEN", str(flaw))
    monkeypatch.setattr(remote_attempt, "GIVEN_BACK_MS", 50)
    monkeypatch.setattr(pool, "FIND_SECONDS", 3.0)
    async with hf.worker(app="tests.worker.children.broken:hf"):
        chains = await start_suspects(hf, application.here())
        assert await pids(chains) == {os.getpid()}

    job = await hf.get_job(chains[0])
    assert (job.crashes, job.used) == (2, 1)


@pytest.mark.long
async def test_a_suspect_whose_task_the_children_lack_runs_alone_in_the_worker(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_attempt, "GIVEN_BACK_MS", 50)

    @hf.task(name="made_here")
    async def made_here() -> int:
        return os.getpid()

    async with hf.worker(app=APP):
        chains = await start_suspects(hf, made_here())
        assert await pids(chains) == {os.getpid()}


@pytest.mark.long
async def test_children_of_suspects_end_when_they_have_nothing_to_do(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects, "IDLE_SECONDS", 0.1)
    async with hf.worker(app=APP):
        (first,) = await pids(await start_suspects(hf, application.here()))
        await gone(first)
        (second,) = await pids(await start_suspects(hf, application.here()))

    assert first != second


@pytest.mark.long
async def test_suspects_that_are_too_many_are_given_back_for_a_moment(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "MOST_HELD", 1)
    monkeypatch.setattr(dispatcher, "CHILD_SECONDS", 0.1)
    async with hf.worker(app=APP, poll=0.1):
        chains = await start_suspects(hf, *[application.here() for _ in range(3)])
        found = await pids(chains)

    jobs = [await hf.get_job(each) for each in chains]
    assert found.isdisjoint({os.getpid()})
    assert {each.used for each in jobs} == {1}
    assert max(each.interrupted for each in jobs) > 0


async def test_a_cancelled_suspect_that_waits_for_a_child_is_cancelled(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "FIND_SECONDS", 1.0)
    monkeypatch.setattr(pool.Children, "_start", lambda _: None)
    async with hf.worker(app=APP):
        (chain,) = await start_suspects(hf, application.here())
        await ends_as(hf, chain, "running")
        await hf.cancel(chain)
        await until(lambda: _is(hf, chain, "cancelled"), "it is cancelled", PATIENCE)


async def _is(hf: Holdfast, chain: Chain[Any], status: str) -> bool:
    return (await hf.get_job(chain)).status == status
