"""Children that die, by themselves or because they must: what becomes of their jobs (I-24, I-25, I-34, F-05, F-08)."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.worker.attempts.aborts import AbortReason
from holdfast.worker.children import remote_attempt
from tests.support.conditions import until
from tests.worker.children import application
from tests.worker.children.watching import PATIENCE, ends_as, gone, lives, noted_pid


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have children killed soon whose handlers do not stop."""
    monkeypatch.setattr(remote_attempt, "STUBBORN_SECONDS", 0.3)
    monkeypatch.setattr(remote_attempt, "KILL_SECONDS", {AbortReason.TIMEOUT: 0.3, AbortReason.SHUTDOWN: 0.3})


async def history(hf: Holdfast, chain: Any) -> list[tuple[str, dict[str, Any]]]:
    """Tell what happened to a job."""
    return [(event.name, dict(event.facts)) for event in (await hf.timeline(chain)).items]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("exit", "the child process ended by itself, with exit code 3"),
        pytest.param("abort", "the child process died of SIGABRT", marks=pytest.mark.long),
        pytest.param("segfault", "the child process died of SIGSEGV", marks=pytest.mark.long),
    ],
)
async def test_what_takes_its_child_down_three_times_is_poison_and_nothing_else_is_hurt(
    hf: Holdfast, how: str, said: str
) -> None:
    """F-07."""
    async with hf.worker(children=1):
        chain = await hf.start(application.take_down(how=how))
        await ends_as(hf, chain, "failed")
        assert await (await hf.start(application.here())).result(timeout=PATIENCE) == os.getpid()

    job = await hf.get_job(chain)
    told = await history(hf, chain)
    assert (job.reason, job.crashes, job.attempt) == ("poison", 3, 3)
    assert [name for name, _ in told if name != "job:started"] == [
        "job:enqueued",
        "job:reaped",
        "job:reaped",
        "job:failed",
    ]
    assert [facts["error"]["message"] for _, facts in told if "error" in facts] == [said] * 3


@pytest.mark.long
async def test_a_suspect_in_a_child_waits_for_nobody(hf: Holdfast, tmp_path: Path, note: Path, gate: Path) -> None:
    """I-24."""
    mended = tmp_path / "mended"
    async with hf.worker(children=2):
        beside = await hf.start(application.say_pid_and_wait_for(note=str(note), gate=str(gate)))
        await noted_pid(note)
        chain = await hf.start(application.take_down(how="exit", note=str(mended)))

        async def is_suspect() -> bool:
            return (await hf.get_job(chain)).crashes == 2

        await until(is_suspect, "the job is a suspect", PATIENCE)
        mended.touch()
        await chain.result(timeout=PATIENCE)
        assert (await hf.get_job(beside)).status == "running"
        gate.touch()
        await beside.result(timeout=PATIENCE)


@pytest.mark.long
async def test_the_task_says_what_becomes_of_a_job_that_crashed(hf: Holdfast) -> None:
    """I-25."""
    async with hf.worker(children=1):
        chain = await hf.start(application.take_down_and_pause())
        await ends_as(hf, chain, "paused")

    assert (await hf.get_job(chain)).reason == "lost"


@pytest.mark.source("PQ-33")
async def test_a_cancelled_handler_that_does_not_stop_is_killed(hf: Holdfast, note: Path, short_grace: None) -> None:
    """I-34, P-29."""
    async with hf.worker(children=1):
        chain = await hf.start(application.hold_the_lock(note=str(note)))
        pid = await noted_pid(note)
        await hf.cancel(chain)
        await ends_as(hf, chain, "cancelled")

        assert not lives(pid)


@pytest.mark.long
async def test_a_killed_child_whose_job_was_to_pause_leaves_it_paused(
    hf: Holdfast, note: Path, short_grace: None
) -> None:
    async with hf.worker(children=1):
        chain = await hf.start(application.hold_the_lock(note=str(note)))
        await noted_pid(note)
        await hf.pause(chain)
        await ends_as(hf, chain, "paused")

    assert (await hf.get_job(chain)).used == 0


@pytest.mark.source("JC-25")
@pytest.mark.parametrize(
    "task",
    [
        application.hold_the_lock_for_too_long,
        pytest.param(application.swallow_every_stop, marks=pytest.mark.long),
    ],
    ids=["the lock is held", "every stop is swallowed"],
)
async def test_a_time_out_ends_every_handler(hf: Holdfast, note: Path, task: Any, short_grace: None) -> None:
    """F-08."""
    async with hf.worker(children=1):
        chain = await hf.start(task(note=str(note)))
        pid = await noted_pid(note)
        await ends_as(hf, chain, "failed")

        assert not lives(pid)

    job = await hf.get_job(chain)
    assert job.error is not None
    assert (job.error["type"], job.error["message"]) == ("TimeoutError", "not done within 0.3 s")
    assert job.crashes == 0


@pytest.mark.long
async def test_a_child_that_stands_still_is_killed_by_its_time_out(hf: Holdfast, note: Path, short_grace: None) -> None:
    """F-05."""
    async with hf.worker(children=1):
        chain = await hf.start(application.stand_still(note=str(note)))
        await noted_pid(note)
        await ends_as(hf, chain, "failed")

    job = await hf.get_job(chain)
    assert job.error is not None
    assert job.error["type"] == "TimeoutError"


async def test_a_worker_that_stops_kills_what_does_not_and_gives_its_job_back(
    hf: Holdfast, note: Path, short_grace: None
) -> None:
    """I-50."""
    async with hf.worker(children=1, grace=0):
        chain = await hf.start(application.hold_the_lock(note=str(note)))
        pid = await noted_pid(note)

    job = await hf.get_job(chain)
    assert (job.status, job.used, job.crashes, job.interrupted) == ("pending", 0, 0, 1)
    assert not lives(pid)


@pytest.mark.long
async def test_a_worker_that_is_abandoned_kills_its_children_first(hf: Holdfast, note: Path) -> None:
    worker = hf.worker(children=1)
    async with worker:
        chain = await hf.start(application.hold_the_lock(note=str(note)))
        pid = await noted_pid(note)
        worker.drain()
        worker.interrupt()
        assert await worker.abandon(PATIENCE)
        await gone(pid)

    assert (await hf.get_job(chain)).status == "pending"


async def test_a_child_that_dies_when_its_job_is_completed_leaves_a_warning(hf: Holdfast) -> None:
    async with hf.worker(children=1):
        chain = await hf.start(application.complete_then_die())
        assert await chain.result(timeout=PATIENCE) == 7

        async def is_warned() -> bool:
            return any(name == "job:warning" for name, _ in await history(hf, chain))

        await until(is_warned, "the death is in the history", PATIENCE)

    (said,) = [facts["error"]["message"] for name, facts in await history(hf, chain) if name == "job:warning"]
    assert said == "the child process ended by itself, with exit code 3"
    assert (await hf.get_job(chain)).crashes == 0


async def test_a_handler_goes_on_for_as_long_as_it_likes_when_a_block_has_completed_its_job(
    hf: Holdfast, note: Path, gate: Path, short_grace: None
) -> None:
    async with hf.worker(children=1):
        chain = await hf.start(application.complete_then_wait(note=str(note), gate=str(gate)))
        pid = await noted_pid(note)
        assert await chain.result(timeout=PATIENCE) == pid
        # two looks of the leases' thread: longer than it takes to find the job completed and the grace to be over
        await until_looked(hf)
        assert lives(pid)
        gate.touch()
        assert await (await hf.start(application.own_pid())).result(timeout=PATIENCE) == pid


async def until_looked(hf: Holdfast) -> None:
    """Wait until another job, begun after what a test looks at, has been cancelled by the leases' thread."""
    chain = await hf.start(application.wait_here())
    await ends_as(hf, chain, "running")
    await hf.cancel(chain)
    await ends_as(hf, chain, "cancelled")


@pytest.mark.long
async def test_an_idle_child_that_dies_is_replaced(hf: Holdfast) -> None:
    async with hf.worker(children=1):
        first = await (await hf.start(application.own_pid())).result(timeout=PATIENCE)
        os.kill(first, signal.SIGKILL)
        await gone(first)
        second = await (await hf.start(application.own_pid())).result(timeout=PATIENCE)

    assert first != second


async def test_a_job_that_its_child_never_heard_of_is_not_blamed_for_its_death(hf: Holdfast) -> None:
    async with hf.worker(children=1):
        pid = await (await hf.start(application.own_pid())).result(timeout=PATIENCE)
        os.kill(pid, signal.SIGSTOP)  # it is given a job, and does not hear of it
        chain = await hf.start(application.own_pid())
        await ends_as(hf, chain, "running")
        os.kill(pid, signal.SIGKILL)
        assert await chain.result(timeout=PATIENCE) != pid

    job = await hf.get_job(chain)
    assert (job.crashes, job.used, job.attempt) == (0, 1, 1)  # the next child has it from the worker
