"""Jobs that ran while their process died, twice: by real workers they run apart, idle nobody, and are blamed fairly."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from tests.acceptance.jobs_of_tests import LEASE, deadly, gated
from tests.acceptance.processes import until
from tests.acceptance.scene import Scene, WorkerProcess
from tests.worker.children.watching import lives

on_both = pytest.mark.parametrize(
    "stage_database", ["sqlite", pytest.param("postgres", marks=pytest.mark.long)], indirect=True
)


def start_suspects(stage: Scene, *calls: Any) -> list[UUID]:
    """Start jobs whose process has died under them twice."""
    jobs = stage.start(*[each.options(paused=True) for each in calls])

    async def crash(tx: Any) -> None:
        await tx.execute("UPDATE holdfast_job SET crashes = 2 WHERE id $any(ids: text)", ids=[str(job) for job in jobs])

    stage.hf.store.run_sync(crash)
    stage.face.resume_many(jobs)
    return jobs


def begun_in(stage: Scene, jobs: Sequence[UUID]) -> dict[int, list[str]]:
    """Tell which of *jobs* have begun, by the process that they did in."""
    found = defaultdict(list)
    for each in stage.notes("begin"):
        if UUID(each["job"]) in jobs:
            found[each["process"]].append(each["job"])
    return found


def are_completed(stage: Scene, jobs: Sequence[UUID]) -> bool:
    return all(stage.face.get_job(each).status == "completed" for each in jobs)


@on_both
def test_ten_suspects_in_children_leave_every_slot_to_the_others(stage: Scene) -> None:
    """I-24, F-07."""
    suspects = start_suspects(stage, *[gated() for _ in range(10)])
    worker = stage.worker("--concurrency", "20")
    until(lambda: len(begun_in(stage, suspects)) >= 2, "some suspects run", 30)

    others = stage.start(*[gated(gate="other") for _ in range(20)])
    stage.until_running(others)
    stage.open("other")
    until(lambda: are_completed(stage, others), "the others complete", 30)
    held = stage.rows("SELECT count(*) FROM holdfast_job WHERE status = 'completed' AND crashes = 2")
    stage.open()
    stage.until_all("completed")

    assert held == [(0,)]
    assert set(begun_in(stage, others)) == {worker.id}
    assert worker.id not in begun_in(stage, suspects)
    stage.assert_each_completed_once()
    assert set(stage.rows("SELECT crashes FROM holdfast_job")) == {(0,), (2,)}


@pytest.mark.source("DF-8")
@on_both
@pytest.mark.parametrize("kill", [pytest.param(False, marks=pytest.mark.long), True], ids=["exit", "SIGKILL"])
def test_a_job_that_kills_its_process_is_poison_within_three_deaths_and_its_neighbours_complete(
    stage: Scene, kill: bool
) -> None:
    """I-24, F-07: a SIGKILL counts, for the system sends it when memory runs out."""
    (guilty,) = stage.start(deadly(kill=kill))
    neighbours = stage.start(*[gated() for _ in range(5)])
    worker = stage.worker(waits=False)
    dead: list[WorkerProcess] = []

    def is_convicted() -> bool:
        nonlocal worker
        if not worker.is_alive:
            dead.append(worker)
            worker = stage.worker(waits=False)
        return bool(stage.face.get_job(guilty).status == "failed")

    until(is_convicted, "the guilty job is convicted", 60)
    stage.open()
    until(lambda: are_completed(stage, neighbours), "its neighbours complete", 60)

    job = stage.face.get_job(guilty)
    deaths = [each["process"] for each in stage.notes("begin") if each["task"] == "deadly"]
    assert (job.reason, job.crashes, len(deaths)) == ("poison", 3, 3)
    assert len(dead) == 2  # the third death is that of a child, and the worker lives on
    assert worker.is_alive
    assert worker.id not in deaths
    assert {each.attempt for each in map(stage.face.get_job, neighbours)} == {3}


@on_both
def test_a_suspect_in_a_child_is_not_blamed_for_the_death_of_its_worker(stage: Scene) -> None:
    """I-24: it goes with its worker, and is run again."""
    (suspect,) = start_suspects(stage, gated())
    worker = stage.worker()
    stage.until_running([suspect])
    (child,) = begun_in(stage, [suspect])

    worker.kill()
    until(lambda: not lives(child), "its child dies with it")
    stage.open()
    stage.worker()
    stage.until_all("completed")

    job = stage.face.get_job(suspect)
    assert (job.crashes, job.attempt, job.used) == (2, 2, 2)


@pytest.mark.long
@on_both
def test_a_worker_that_drains_gives_back_the_suspects_that_wait_for_a_child(stage: Scene) -> None:
    """I-24, I-50."""
    start_suspects(stage, *[gated() for _ in range(8)])
    worker = stage.worker("--grace", "0.1")
    until(lambda: len(stage.notes("begin")) == 4, "four suspects run", 30)

    worker.send(signal.SIGTERM)

    assert worker.exit_code() == 0
    assert stage.rows("SELECT status, used, crashes, count(*) FROM holdfast_job GROUP BY 1, 2, 3") == [
        ("pending", 0, 2, 8)
    ]


@pytest.mark.long
@on_both
def test_a_lease_that_a_living_worker_has_lost_is_no_crash(stage: Scene) -> None:
    """I-24, I-20: the worker stood still, its job ran elsewhere, and it says so when it goes on."""
    first = stage.worker()
    jobs = stage.start(gated())
    stage.until_running(jobs)
    first.send(signal.SIGSTOP)
    second = stage.worker()
    until(lambda: {each["process"] for each in stage.notes("begin")} >= {second.id}, "another runs it", LEASE + 20)
    counted = stage.rows("SELECT crashes FROM holdfast_job")

    first.send(signal.SIGCONT)
    until(lambda: stage.rows("SELECT crashes FROM holdfast_job") == [(0,)], "the crash is taken back", 20)
    stage.open()
    stage.until_all("completed")

    assert counted == [(1,)]
    assert stage.rows("SELECT attempt, used FROM holdfast_job") == [(2, 2)]
