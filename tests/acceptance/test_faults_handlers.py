"""Handlers that never end, by real workers: what can be kept is kept, and what cannot be stopped completes nothing."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.worker.attempts.attempt import AGAIN_SECONDS
from tests.acceptance import stubborn
from tests.acceptance.processes import until
from tests.acceptance.scene import Scene, WorkerProcess

APP = "tests.acceptance.stubborn:hf"
# what a busy machine may add to a promised time
NOISE = 10.0

on_both = pytest.mark.parametrize("stage_database", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def stage(stage: Scene, stage_database: tuple[str, dict[str, Any]]) -> Scene:
    """A scene whose face knows the stubborn tasks."""
    database, settings = stage_database
    stage.face.close()
    stage.hf = Holdfast(database, tasks=[stubborn.TASKS, stubborn.CHILD_TASKS], **settings)
    return stage


def worker(stage: Scene, *options: str) -> WorkerProcess:
    return stage.worker("--poll", "0.2", *options, app=APP)


def started(stage: Scene, call: Any) -> Any:
    """Start a job, and wait until its handler runs."""
    (job,) = stage.start(call)
    stage.until_running([job])
    return job


@pytest.mark.long
@on_both
@pytest.mark.parametrize("handler", [stubborn.spins, stubborn.sleeps], ids=["in the loop", "in a thread"])
def test_a_handler_that_never_ends_keeps_its_lease_and_its_process_ends_in_time(stage: Scene, handler: Any) -> None:
    """F-08, I-19, I-34, I-50: past its time-out, which cannot stop it, and past its lease, which is kept for it."""
    first = worker(stage, "--grace", "0.5")
    started(stage, handler())
    second = worker(stage)

    lease_over = time.monotonic() + 1.5 * stubborn.LEASE
    until(lambda: time.monotonic() > lease_over, "the lease would be over", 2 * stubborn.LEASE)
    begun = len(stage.notes("begin"))
    began = time.monotonic()
    first.send(signal.SIGTERM)
    first.exit_code(0.5 + 5 + NOISE)
    took = time.monotonic() - began
    stage.until_all("completed", stubborn.LEASE + 5 + NOISE)

    assert begun == 1
    assert took < 0.5 + 5 + NOISE
    assert second.is_alive
    stage.assert_each_completed_once()
    assert stage.rows("SELECT attempt FROM holdfast_job") == [(2,)]


@pytest.mark.long
@on_both
def test_a_handler_that_lets_no_other_thread_run_for_a_while_keeps_its_lease(stage: Scene) -> None:
    """F-08, I-19: for half of the lease, less what is left of it as a margin."""
    worker(stage)
    started(stage, stubborn.keeps_the_gil(seconds=0.3 * stubborn.LEASE).options(priority=1))
    worker(stage)
    started(stage, stubborn.keeps_the_gil(seconds=0.3 * stubborn.LEASE))

    stage.until_all("completed", 2 * stubborn.LEASE + NOISE)

    stage.assert_each_completed_once()
    assert stage.rows("SELECT max(attempt), max(crashes) FROM holdfast_job") == [(1, 0)]


@pytest.mark.long
def test_a_handler_that_lets_no_other_thread_run_past_its_lease_completes_nothing(stage: Scene) -> None:
    """F-08, I-13, I-20: another has taken the job by then, and what the first one comes to is lost."""
    first = worker(stage)
    job = started(stage, stubborn.keeps_the_gil(seconds=2 * stubborn.LEASE + 6))
    worker(stage)

    until(lambda: stage.statuses() == {"completed": 1}, "the other worker completes it", stubborn.LEASE + 6 + NOISE)
    ((completed_by,),) = stage.rows("SELECT completed_by FROM holdfast_job")
    until(lambda: stage.notes("let_go"), "the first one lets go", 2 * stubborn.LEASE + 6 + NOISE)
    late = started(stage, stubborn.keeps_the_gil(seconds=0))
    stage.until_all("completed")

    assert first.is_alive
    assert f"Worker {completed_by} " not in first.said
    stage.assert_each_completed_once()
    attempts = dict(stage.rows("SELECT id, attempt FROM holdfast_job"))
    assert attempts == {str(job): 2, str(late): 1}


@pytest.mark.long
@on_both
def test_a_handler_that_swallows_its_cancellation_is_cancelled_again(stage: Scene) -> None:
    """F-08, I-34."""
    worker(stage)
    job = started(stage, stubborn.swallows())

    stage.face.cancel(job)
    until(lambda: stage.face.get_job(job).status == "cancelled", "it has stopped", 3 + AGAIN_SECONDS + NOISE)

    first, second = (each["at"] for each in stage.notes("cancelled"))
    assert second - first >= 0.9 * AGAIN_SECONDS


@on_both
@pytest.mark.parametrize("handler", [stubborn.returns_late, stubborn.swallows_its_timeout], ids=["thread", "loop"])
def test_a_handler_that_returns_after_its_time_out_has_completed_its_job(stage: Scene, handler: Any) -> None:
    """F-08: as docs/guides/running-jobs.md says."""
    worker(stage)
    job = started(stage, handler())

    stage.until_all("completed")

    found = stage.face.get_job(job)
    assert (found.attempt, found.output, found.error) == (1, 1, None)
    assert [each["aborted"] for each in stage.notes("end")] == ["timeout"]


@on_both
def test_a_handler_that_stops_at_its_time_out_has_raised_a_timeout_error(stage: Scene) -> None:
    """F-08: as docs/guides/running-jobs.md says."""
    worker(stage)
    job = started(stage, stubborn.stops_at_its_timeout())

    stage.until_all("failed")

    error = stage.face.get_job(job).error
    assert (error["type"], error["message"]) == ("TimeoutError", "not done within 1 s")


@pytest.mark.long
@pytest.mark.parametrize("stage_database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "handler", [stubborn.sits_in_a_thread, stubborn.sits_in_a_child], ids=["in a thread", "in a child"]
)
def test_who_sits_in_a_block_for_ever_keeps_nobody_else_from_writing(stage: Scene, handler: Any) -> None:
    """F-53, I-67: starts go on within their deadline, and the sitter's own completion is undone."""
    app = "tests.acceptance.stubborn:with_children"
    stage.worker("--poll", "0.2", app=app, HOLDFAST_TRANSACTION_SECONDS="0.5")
    job = started(stage, handler())

    beside = [started(stage, stubborn.keeps_the_gil(seconds=0)) for _ in range(3)]
    stage.until_all("completed", 30)

    stage.assert_each_completed_once()
    attempts = dict(stage.rows("SELECT id, attempt FROM holdfast_job"))
    assert attempts == {str(job): 2, **{str(each): 1 for each in beside}}
