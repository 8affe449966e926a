"""Schedules and `kill -9`: several workers share them, each dies at any moment, and every tick has one job."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tests.acceptance.jobs_of_tests import quick
from tests.acceptance.processes import until
from tests.acceptance.scene import Scene

EVERY_MS = 1_000


def case(database: str, workers: int, kills: int, *marks: Any) -> Any:
    return pytest.param(database, workers, kills, id=f"{database}-{workers}-{kills}", marks=marks)


LONG = pytest.mark.long, pytest.mark.timeout(300)


@pytest.mark.parametrize(
    ("stage_database", "workers", "kills"),
    [case("sqlite", 2, 1), case("sqlite", 4, 40, *LONG), case("postgres", 4, 40, *LONG)],
    indirect=["stage_database"],
)
@pytest.mark.long
def test_every_second_has_one_job_although_workers_are_killed_at_any_moment(
    stage: Scene, workers: int, kills: int, record_property: Callable[[str, object], None]
) -> None:
    """I-83: none twice, and with missed="all" none lost, however long nobody was there."""
    seed = time.time_ns() % 1_000_000
    record_property("seed", seed)
    chance = Random(seed)
    for name in ("one", "other"):
        stage.face.schedules.put(name, quick(n=1), every=EVERY_MS // 1_000, missed="all")
    alive = [stage.worker(waits=False) for _ in range(workers)]
    until(lambda: ticks(stage), f"the first tick is started; {stage.logs()}", 30)

    for _ in range(kills):
        await_moment(time.monotonic() + chance.random() * 1.2)
        victim = chance.choice(alive)
        victim.kill()
        alive.remove(victim)
        alive.append(stage.worker(waits=False))
    seen = len(ticks(stage))
    until(lambda: len(ticks(stage)) >= seen + 4, f"ticks go on; {stage.logs()}", 60)
    for name in ("one", "other"):
        stage.face.schedules.pause(name)
    stage.until_all("completed", 60)

    found = ticks(stage)
    jobs = stage.rows("SELECT id, scheduled_at FROM holdfast_job")
    assert Counter((chain, at) for _, at, chain in found) == Counter(jobs)
    for name in ("one", "other"):
        times = sorted(at for schedule, at, _ in found if schedule == name)
        assert times == list(range(times[0], times[-1] + 1, EVERY_MS)), f"seed {seed}"
    stage.assert_each_completed_once()


def await_moment(moment: float) -> None:
    until(lambda: time.monotonic() >= moment, "the moment comes")


def ticks(stage: Scene) -> list[tuple[Any, ...]]:
    """Read which schedule had which time, and by which chain."""
    return stage.rows("SELECT schedule, at, chain_id FROM holdfast_tick WHERE outcome = 'started'")
