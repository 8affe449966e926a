"""Handlers in child processes: who runs them, how many at once, and what a child is made of."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.figures import Counts
from tests.support.conditions import until
from tests.support.log_lines import lines
from tests.worker.children import application
from tests.worker.children.watching import PATIENCE, children_of, has_idle_child, lives, noted_pid


async def test_a_child_runs_one_job_after_the_other_beside_those_of_the_worker(hf: Holdfast) -> None:
    async with hf.worker(children=1):
        first = await (await hf.start(application.own_pid())).result(timeout=PATIENCE)
        second = await (await hf.start(application.own_pid())).result(timeout=PATIENCE)
        own = await (await hf.start(application.here())).result(timeout=PATIENCE)

    assert first == second != os.getpid() == own
    assert (await hf.stats()).total.counts == Counts(started=3, completed=3)


@pytest.mark.long
async def test_a_child_is_ready_before_there_is_a_job_and_gone_with_its_worker(hf: Holdfast) -> None:
    async with hf.worker(children=1) as worker:
        await has_idle_child(worker)
        pid = await (await hf.start(application.own_pid())).result(timeout=PATIENCE)
        assert lives(pid)

    assert not lives(pid)


async def test_no_more_is_claimed_than_there_are_children(hf: Holdfast, note: Path, gate: Path) -> None:
    """P-24."""
    async with hf.worker(children=1) as worker:
        chains = await hf.start_many(
            [application.say_pid_and_wait_for(note=str(note), gate=str(gate)) for _ in range(3)]
        )
        await noted_pid(note)
        own = await (await hf.start(application.here())).result(timeout=PATIENCE)
        statuses = [(await hf.get_job(chain)).status for chain in chains]
        running = children_of(worker)
        gate.touch()
        pids = {await chain.result(timeout=PATIENCE) for chain in chains}

    assert own == os.getpid()
    assert sorted(statuses) == ["pending", "pending", "running"]
    assert (running.busy, running.idle, running.starting) == (1, 0, 0)
    assert len(pids) == 1


@pytest.mark.long
async def test_a_handler_that_holds_the_lock_for_longer_than_its_lease_loses_nothing(hf: Holdfast) -> None:
    """I-19."""
    async with hf.worker(children=1):
        chain = await hf.start(application.hold_the_lock_then_complete())

        assert await chain.result(timeout=PATIENCE) == 1

    assert (await hf.stats()).total.counts == Counts(started=1, completed=1)


@pytest.mark.long
async def test_a_spare_child_is_started_while_there_is_room(hf: Holdfast, note: Path, gate: Path) -> None:
    async with hf.worker(children=2) as worker:
        first = await hf.start(application.say_pid_and_wait_for(note=str(note), gate=str(gate)))
        await noted_pid(note)
        await has_idle_child(worker)
        other = await (await hf.start(application.own_pid())).result(timeout=PATIENCE)
        gate.touch()

        assert await first.result(timeout=PATIENCE) != other


@pytest.mark.long
async def test_a_child_is_replaced_after_so_many_jobs(hf: Holdfast) -> None:
    async with hf.worker(children=1, child_jobs=2):
        pids = [await (await hf.start(application.own_pid())).result(timeout=PATIENCE) for _ in range(3)]

    assert pids[0] == pids[1] != pids[2]


@pytest.mark.long
async def test_a_child_that_has_grown_too_big_is_replaced(hf: Holdfast) -> None:
    async with hf.worker(children=1, child_megabytes=1):
        pids = [await (await hf.start(application.own_pid())).result(timeout=PATIENCE) for _ in range(2)]

    assert pids[0] != pids[1]


async def test_of_the_files_of_its_worker_a_child_has_none(hf: Holdfast, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as secret:
        os.set_inheritable(secret.fileno(), True)
        async with hf.worker(children=1):
            found = await (await hf.start(application.descriptors())).result(timeout=PATIENCE)

    assert found
    assert not [each for each in found if each.startswith(str(tmp_path))]


async def test_memory_beyond_the_limit_of_its_task_raises_in_the_handler_and_leaves_the_child(hf: Holdfast) -> None:
    async with hf.worker(children=1):
        before = await (await hf.start(application.own_pid())).result(timeout=PATIENCE)
        taken = await (await hf.start(application.take_memory(megabytes=16))).result(timeout=PATIENCE)
        refused = await hf.start(application.take_memory(megabytes=256))
        await until(lambda: _has_failed(hf, refused), "the job has failed", PATIENCE)
        after = await (await hf.start(application.own_pid())).result(timeout=PATIENCE)

    job = await hf.get_job(refused)
    assert taken == 16
    assert job.error is not None
    assert job.error["type"] == "MemoryError"
    assert before == after


async def _has_failed(hf: Holdfast, chain: object) -> bool:
    return (await hf.get_job(chain)).status == "failed"  # type: ignore[arg-type]


async def test_a_drain_waits_for_a_child_and_claims_nothing_for_it(hf: Holdfast, note: Path, gate: Path) -> None:
    async with hf.worker(children=1, grace=None) as worker:
        running = await hf.start(application.say_pid_and_wait_for(note=str(note), gate=str(gate)))
        pid = await noted_pid(note)
        worker.drain()
        later = await hf.start(application.own_pid())
        gate.touch()
        await asyncio.wait_for(asyncio.shield(worker.ended), PATIENCE)

    assert await running.result(timeout=PATIENCE) == pid
    assert (await hf.get_job(later)).status == "pending"
    assert not lives(pid)


async def test_a_job_is_given_back_whose_child_lacks_its_task(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.worker.children import newer

    monkeypatch.setattr(newer, "hf", hf)
    hf.tasks.merge(newer.tasks)
    async with hf.worker(children=1, app="tests.worker.children.application:hf"):
        chain = await hf.start(newer.unknown_there())
        await until(lambda: "child_lacks_task" in lines(caplog), "the worker has said so", PATIENCE)
        await until(lambda: _is_given_back(hf, chain), "the job waits", PATIENCE)

    job = await hf.get_job(chain)
    assert (job.used, job.interrupted) == (0, 1)


async def _is_given_back(hf: Holdfast, chain: object) -> bool:
    job = await hf.get_job(chain)  # type: ignore[arg-type]
    return job.status == "pending" and job.reason == "the child process lacks the task"
