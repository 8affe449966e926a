"""Real workers, real signals: what is lost runs again, what is not lost is left alone."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psycopg
import pytest

from holdfast.testing import NotOurServer, PostgresServer
from tests.acceptance.conftest import SCHEMA
from tests.acceptance.jobs_of_tests import (
    LEASE,
    blocks_the_loop,
    cleans_up,
    deadly,
    gated,
    gated_thread,
    lane_step,
    quick,
)
from tests.acceptance.processes import until
from tests.acceptance.scene import Scene, WorkerProcess, overlaps, scene, seconds_until
from tests.support.faults.fault_proxy import FaultProxy

on_sqlite = pytest.mark.parametrize("stage_database", ["sqlite"], indirect=True)
on_both = pytest.mark.parametrize("stage_database", ["sqlite", "postgres"], indirect=True)


def on_both_but(later: str) -> pytest.MarkDecorator:
    """Run on both databases, on *later* only in the long run."""
    marked = [pytest.param(each, marks=pytest.mark.long) if each == later else each for each in ("sqlite", "postgres")]
    return pytest.mark.parametrize("stage_database", marked, indirect=True)


# what a busy machine may add to a promised time
NOISE = 3.0


@pytest.mark.source("DF-9")
@on_both
def test_the_jobs_of_a_killed_worker_run_again_in_time(
    stage: Scene, stage_database: tuple[str, dict[str, str]], record_property: Callable[[str, object], None]
) -> None:
    """F-01, P-21, I-25, I-69: whatever the time-out of their task is."""
    is_sqlite = not stage_database[1]
    promised = 1.5 if is_sqlite else LEASE + 5
    workers = [stage.worker("--concurrency", "2") for _ in range(3)]
    stage.until_running(stage.start(*[gated() for _ in range(6)]))
    victim = workers[1]
    lost = {each["job"] for each in stage.notes("begin") if each["process"] == victim.id}

    victim.kill()
    stage.worker("--concurrency", "2", waits=False)
    took = seconds_until(lambda: lost <= rerun(stage), "the lost jobs run again", promised + NOISE + 3)

    record_property("recovery_seconds", round(took, 2))
    assert len(lost) == 2
    stage.open()
    stage.until_all("completed")
    stage.assert_each_completed_once()
    assert {each["job"] for each in stage.notes("begin") if each["attempt"] > 1} == lost


def rerun(stage: Scene) -> set[str]:
    return {each["job"] for each in stage.notes("begin") if each["attempt"] > 1}


@on_both_but("sqlite")
def test_a_worker_stopped_past_its_lease_is_fenced_when_it_goes_on(stage: Scene) -> None:
    """F-03, I-13, I-20."""
    zombie = stage.worker("--concurrency", "1")
    (job,) = stage.start(gated())
    stage.until_running([job])

    zombie.send(signal.SIGSTOP)
    heir = stage.worker("--concurrency", "1")
    until(lambda: rerun(stage), "another worker takes the job over", LEASE + 5 + NOISE)
    zombie.send(signal.SIGCONT)
    until(lambda: told_to_stop(stage, zombie), "the zombie's handler is told", 10)
    stage.open()
    stage.until_all("completed")

    stage.assert_each_completed_once()
    ((worker,),) = stage.rows("SELECT completed_by FROM holdfast_job")
    assert f"Worker {worker} (pid {heir.id}," in heir.said
    (reason,) = told_to_stop(stage, zombie)
    assert reason in ("error", "taken_by_another_worker")  # by its own clock, or by the row: whichever it reads first
    assert zombie.is_alive


def told_to_stop(stage: Scene, worker: WorkerProcess) -> list[str]:
    return [each["aborted"] for each in stage.notes("end") if each["process"] == worker.id and each["aborted"]]


@pytest.mark.source("DF-37")
@on_both_but("postgres")
def test_a_blocked_event_loop_keeps_its_lease_and_is_reported(stage: Scene) -> None:
    """F-09, I-19."""
    blocked = stage.worker("--concurrency", "2")
    (beside,) = stage.start(gated())
    stage.until_running([beside])
    (job,) = stage.start(blocks_the_loop(seconds=2.5 * LEASE))
    stage.until_running([job])
    stage.worker("--concurrency", "2")

    stage.open()
    stage.until_all("completed")

    stage.assert_each_completed_once()
    assert not rerun(stage)
    assert blocked.said.count("event_loop_blocked") == 1
    assert f"by job {job} (task blocks_the_loop), " in blocked.said
    assert "time.sleep(seconds)" in blocked.said
    until(lambda: "event_loop_answers" in blocked.said, "the loop is said to answer again")


@pytest.mark.long
def test_a_stranger_who_locks_one_row_costs_nobody_a_lease(stage: Scene, postgres_url: str) -> None:
    """F-26, I-63, I-75one row."""
    holder, _ = stage.worker("--concurrency", "50"), stage.worker("--concurrency", "50")
    jobs = stage.start(*[gated() for _ in range(50)])
    stage.until_running(jobs)

    with psycopg.connect(postgres_url) as stranger:
        stranger.execute(f"SELECT 1 FROM {SCHEMA}.holdfast_job WHERE id = %s FOR UPDATE", [str(jobs[7])])
        until_past(stage, 3 * LEASE)
        others = leased(stage)
    until(
        lambda: stage.rows("SELECT count(*) FROM holdfast_job WHERE lease_until > $now") == [(50,)], "all are renewed"
    )
    stage.open()
    stage.until_all("completed")

    assert others == 49
    stage.assert_each_completed_once()
    assert not rerun(stage)
    assert holder.is_alive


def leased(stage: Scene) -> int:
    """Count the jobs whose leases are not over."""
    ((count,),) = stage.rows("SELECT count(*) FROM holdfast_job WHERE lease_until > $now")
    return int(count)


def until_past(stage: Scene, seconds: float) -> None:
    """Wait until the database's clock has gone on by *seconds*."""
    ((begun,),) = stage.rows("SELECT $now")
    until(lambda: stage.rows("SELECT $now")[0][0] > begun + seconds * 1000, "time passes", seconds + 10)


@pytest.mark.long  # by default, `tests/store/test_admission.py` has eight claimers race
@on_both_but("sqlite")
def test_eight_racing_workers_never_overlap_in_a_lane(stage: Scene) -> None:
    """I-26."""
    stage.start(*[lane_step().options(lane=f"lane-{n % 4}") for n in range(120)])

    for _ in range(8):
        stage.worker("--concurrency", "10", "--poll", "0.1", waits=False)
    stage.until_all("completed", 60)

    stage.assert_each_completed_once()
    assert len(stage.notes("begin")) == 120
    assert not overlaps(stage.notes())


def test_open_transactions_of_callers_hold_nobody_up_and_strand_nothing(stage: Scene, postgres_url: str) -> None:
    """F-51, I-60, I-61."""
    stage.worker("--poll", "0.2")
    stage.worker("--poll", "0.2")
    blocker = stage.start(quick())[0]
    callers = [psycopg.connect(postgres_url) for _ in range(4)]
    for n, caller in enumerate(callers):
        caller.execute("SELECT 1")
        for call in (
            lane_step().options(lane="shared", unique=f"key-{n}"),
            quick(n=n).options(blockers=[blocker]),
            quick(n=n).options(delay=0.1),
        ):
            stage.face.start(call, connection=caller)

    seen = stage.start(*[lane_step().options(lane="shared") for _ in range(40)], *[quick(n=n) for n in range(40)])
    until(lambda: stage.completions().total() == len(seen) + 1, "all that is committed completes")
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    waiting = stage.rows(waits)
    for caller in callers[::2]:
        caller.commit()
    for caller in callers[1::2]:
        caller.rollback()
    for caller in callers:
        caller.close()
    stage.until_all("completed")

    assert waiting == [(0,)]
    stage.assert_each_completed_once()
    assert stage.completions().total() == len(seen) + 1 + 6
    assert not overlaps([each for each in stage.notes() if each["lane"]])


@pytest.mark.source("PQ-53", "TQ-32")
@on_both
def test_the_first_signal_drains_and_leaves_no_running_row(stage: Scene) -> None:
    """F-06, I-30, I-50."""
    worker = stage.worker("--grace", "1", "--concurrency", "4")
    finishing, interrupted, threaded = stage.start(gated(), cleans_up(), gated_thread(gate="never"))
    stage.until_running([finishing, interrupted, threaded])

    worker.send(signal.SIGTERM)
    until(lambda: "worker_drains" in worker.said, "the worker drains")
    (late,) = stage.start(quick())
    stage.open()
    began = time.monotonic()
    code = worker.exit_code()

    assert code == 0, worker.said
    assert time.monotonic() - began < 1 + 5 + NOISE
    rows = dict(stage.rows("SELECT id, status FROM holdfast_job"))
    assert rows == {
        str(finishing): "completed",
        str(interrupted): "pending",
        str(threaded): "pending",
        str(late): "pending",
    }
    counts = stage.rows("SELECT used, interrupted, crashes FROM holdfast_job WHERE status = 'pending' ORDER BY seq")
    assert counts == [(0, 1, 0), (0, 1, 0), (0, 0, 0)]
    assert [each["job"] for each in stage.notes("cleaned")] == [str(interrupted)]
    assert not list(stage.directory.glob("*-holdfast-worker-*"))


@on_sqlite
def test_a_cancel_is_heard_while_the_worker_drains(stage: Scene) -> None:
    """I-21, I-33."""
    worker = stage.worker("--grace", "20", "--concurrency", "2")
    (job,) = stage.start(gated(gate="never"))
    stage.until_running([job])
    worker.send(signal.SIGTERM)
    until(lambda: "worker_drains" in worker.said, "the worker drains")

    stage.face.cancel(job)

    assert worker.exit_code(15) == 0
    assert stage.statuses() == {"cancelled": 1}


@pytest.mark.source("TQ-33")
@on_sqlite
def test_a_second_signal_ends_the_process_at_once(stage: Scene) -> None:
    """F-06, I-50."""
    worker = stage.worker("--grace", "60")
    (job,) = stage.start(gated_thread(gate="never"))
    stage.until_running([job])
    worker.send(signal.SIGINT)
    until(lambda: "worker_drains" in worker.said, "the worker drains")

    worker.send(signal.SIGINT)

    assert worker.exit_code(3) == 130


def test_a_worker_without_its_database_still_ends_in_time(own_server: PostgresServer, tmp_path: Path) -> None:
    """P-11, F-18, I-50."""
    with scene(own_server.url, tmp_path) as stage:
        worker = stage.worker("--grace", "1")
        stage.until_running(stage.start(gated(gate="never"), gated_thread(gate="never")))
        stop(own_server)

        began = time.monotonic()
        worker.send(signal.SIGTERM)
        code = worker.exit_code(20)

        assert time.monotonic() - began < 1 + 5 + NOISE
        assert code == 5


@pytest.mark.long
def test_a_worker_whose_database_falls_silent_lives_on_says_so_once_and_ends_in_time(
    postgres_url: str, tmp_path: Path
) -> None:
    """P-11, F-13, I-20, I-50."""
    with FaultProxy(postgres_url) as proxy, scene(postgres_url, tmp_path, schema_name="silence") as stage:
        worker = stage.worker("--grace", "1", HOLDFAST_DATABASE=proxy.url)
        (job,) = stage.start(gated())
        stage.until_running([job])
        proxy.fall_silent()
        until(lambda: "worker_store_trouble" in worker.said, "the worker notices", 30)
        until(lambda: told_to_stop(stage, worker) == ["error"], "the handler is stopped before its lease is over")
        proxy.speak()
        until(lambda: "worker_store_answers" in worker.said, "the worker is back", 30)
        stage.open()
        stage.until_all("completed")
        of_the_first_silence = worker.said

        proxy.fall_silent()
        began = time.monotonic()
        worker.send(signal.SIGTERM)
        worker.exit_code(20)

        assert time.monotonic() - began < 1 + 5 + NOISE
        stage.assert_each_completed_once()
        assert of_the_first_silence.count("worker_store_trouble") == 1, worker.said
        assert of_the_first_silence.count("worker_store_answers") == 1, worker.said


def stop(server: PostgresServer) -> None:
    try:
        server.stop("immediate")
    except NotOurServer as error:
        pytest.skip(str(error))


@pytest.mark.long
def test_a_server_that_crashes_under_load_loses_and_doubles_nothing(own_server: PostgresServer, tmp_path: Path) -> None:
    """F-17, I-01, I-22."""
    with scene(own_server.url, tmp_path) as stage:
        workers = [stage.worker("--concurrency", "10") for _ in range(2)]
        for round_ in range(2):
            stage.start(*[lane_step(seconds=0.05).options(lane=f"{round_}-{n % 40}") for n in range(200)])
            done = 200 * round_ + 40
            until(partial(has_done, stage, done), "the load runs")
            stop(own_server)
            own_server.start()

        stage.until_all("completed", 60)

        stage.assert_each_completed_once()
        assert all(each.is_alive for each in workers)
        assert all(each.said.count("worker_store_trouble") <= 2 for each in workers), stage.logs()


def has_done(stage: Scene, count: int) -> bool:
    return stage.completions().total() > count


@on_sqlite
def test_a_job_that_takes_its_process_down_is_convicted_alone(stage: Scene) -> None:
    """F-07, I-24."""
    innocent = stage.start(*[gated() for _ in range(5)])
    (guilty,) = stage.start(deadly())
    worker = stage.worker(waits=False)

    def is_convicted() -> bool:
        nonlocal worker
        if not worker.is_alive:
            if crashes(stage) == 2:
                stage.open()
            worker = stage.worker(waits=False)
        return stage.rows("SELECT status FROM holdfast_job WHERE id = :id", id=str(guilty)) == [("failed",)]

    until(is_convicted, "the guilty job is convicted", 60)
    until(lambda: stage.statuses() == {"completed": 5, "failed": 1}, "the others complete", 30)

    assert stage.rows("SELECT reason, crashes FROM holdfast_job WHERE id = :id", id=str(guilty)) == [("poison", 3)]
    assert len([each for each in stage.notes("begin") if each["job"] == str(guilty)]) == 3
    assert {str(each) for each in innocent} <= {each["job"] for each in stage.notes("end")}


@pytest.mark.long
@on_both
def test_fifty_long_jobs_complete_beside_one_that_takes_its_process_down(stage: Scene) -> None:
    """F-07, I-24."""
    stage.start(*[gated() for _ in range(50)])
    (guilty,) = stage.start(deadly())
    worker = stage.worker(waits=False)

    def is_over() -> bool:
        nonlocal worker
        if not worker.is_alive:
            if crashes(stage) == 2:
                stage.open()
            worker = stage.worker(waits=False)
        return stage.statuses() == {"completed": 50, "failed": 1}

    until(is_over, "the innocent complete", 100)

    assert stage.rows("SELECT reason FROM holdfast_job WHERE id = :id", id=str(guilty)) == [("poison",)]
    assert set(stage.completions().values()) == {1}


def crashes(stage: Scene) -> int:
    return len([each for each in stage.notes("begin") if each["task"] == "deadly"])
