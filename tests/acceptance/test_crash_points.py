"""kill -9 at every commit boundary: whoever comes after finishes everything, and nothing is lost or doubled."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

import holdfast
from holdfast.crashpoints import POINTS, VARIABLE, Trap
from holdfast.errors import InvalidSettings
from tests.acceptance.processes import until
from tests.acceptance.produce import job_id
from tests.acceptance.scene import ROOT, Scene, WorkerProcess, scene

ALWAYS = {("sqlite", "complete.before_commit"), ("postgres", "claim.after_commit")}
# what only one database has: a lock that proves a death
ONLY_ON = {"reap.after_proof": "sqlite"}


def places() -> list[object]:
    """Name every (database, point); most take part only in the long run."""
    pairs = [(database, point) for point in POINTS for database in ("sqlite", "postgres")]
    wanted = [(database, point) for database, point in pairs if ONLY_ON.get(point, database) == database]
    return [
        pytest.param(database, point, marks=[] if (database, point) in ALWAYS else pytest.mark.long)
        for database, point in wanted
    ]


@pytest.mark.parametrize(("stage_database", "point"), places(), indirect=["stage_database"])
def test_a_process_killed_at_any_point_loses_and_doubles_nothing(
    stage_database: tuple[str, dict[str, str]], tmp_path: Path, point: str
) -> None:
    database, settings = stage_database
    environment = {**os.environ, "HOLDFAST_DATABASE": database, "HOLDFAST_TEST_PLACE": str(tmp_path)}
    environment |= {f"HOLDFAST_{name.upper()}": value for name, value in settings.items()}
    told = run_in_spite_of([str(Path(sys.executable).with_name("holdfast")), "migrate"], environment, point)

    with scene(database, tmp_path, **settings) as stage:
        told += run_in_spite_of([sys.executable, "-m", "tests.acceptance.produce", "early"], stage.environment, point)
        stage.worker(waits=False, **{VARIABLE: "claim.after_commit"}).exit_code()
        told += run_in_spite_of([sys.executable, "-m", "tests.acceptance.produce", "late"], stage.environment, point)
        play_until_the_end_of(stage.worker("--grace", "0.5", waits=False, **{VARIABLE: point}), stage)
        finish(stage)

        assert "crash_point_reached" in told + stage.logs()
        assert stage.statuses() == {"completed": 11, "cancelled": 1}
        assert set(stage.completions().values()) == {1}
        assert stage.rows("SELECT count(*) FROM holdfast_event WHERE name = 'job:enqueued'") == [(12,)]
        assert stage.rows("SELECT count(*) FROM holdfast_job WHERE gate IS NOT NULL OR head = 1") == [(0,)]


def run_in_spite_of(command: Sequence[str], environment: dict[str, str], point: str) -> str:
    """Run a program with the trap set, and again without if that kills it; give what it said."""
    trapped = subprocess.run(
        command, env={**environment, VARIABLE: point}, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    if trapped.returncode == -signal.SIGKILL:
        subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, timeout=30, check=True)
    return trapped.stderr


def play_until_the_end_of(worker: WorkerProcess, stage: Scene) -> None:
    """Steer the jobs as people would, then tell the worker to stop; it may die at any moment."""

    def has_only_the_waiting_one_left() -> bool:
        steer(stage)
        return not worker.is_alive or (
            stage.statuses() == {"completed": 10, "cancelled": 1, "running": 1} and is_waiting(stage)
        )

    until(has_only_the_waiting_one_left, f"the jobs end: {stage.statuses()}", 40)
    if worker.is_alive:
        worker.send(signal.SIGTERM)
    worker.exit_code()


def is_waiting(stage: Scene) -> bool:
    rows = stage.rows("SELECT progress FROM holdfast_job WHERE id = :id", id=str(job_id("wait")))
    return rows == [(50,)]


def steer(stage: Scene) -> None:
    """Resume what is paused, and cancel the job that wants it once its handler runs."""
    for (paused,) in stage.rows("SELECT id FROM holdfast_job WHERE status = 'paused'"):
        stage.face.resume(paused)
    if str(job_id("cancel")) in {each["job"] for each in stage.notes("begin")}:
        stage.face.cancel(job_id("cancel"))


def finish(stage: Scene) -> None:
    """Let a worker without a trap do what is left."""
    stage.open("wait")
    stage.face.cancel(job_id("cancel"))
    stage.worker(waits=False)

    def is_finished() -> bool:
        steer(stage)
        return set(stage.statuses()) <= {"completed", "cancelled"}

    until(is_finished, f"everything is finished; {stage.logs()}", 40)
    rest = "SELECT count(*) FROM holdfast_job WHERE gate IS NOT NULL OR head = 1"
    until(lambda: stage.rows(rest) == [(0,)], "nothing is left to be done for a finished row")


@cache
def reached_in_the_code() -> frozenset[str]:
    """Name the points that the sources pass, by a literal or by the kinds of settlements."""
    found = set()
    for path in Path(holdfast.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("reach", "pass_points"):
                where = node.args[-1]
                if isinstance(where, ast.Constant):
                    found.add(str(where.value))
    return frozenset(found)


@pytest.mark.parametrize("point", POINTS)
def test_every_point_is_somewhere_in_the_code(point: str) -> None:
    assert {point, point.partition(".")[2]} & reached_in_the_code()


def test_every_point_in_the_code_is_registered() -> None:
    named = {each for each in reached_in_the_code() if "." in each}

    assert named <= set(POINTS)


@pytest.mark.parametrize("text", ["nowhere", "renew.before:x", "renew.before:1:explode", "renew.before:1:delay=soon"])
def test_a_trap_that_cannot_be_set_is_refused(text: str) -> None:
    with pytest.raises(InvalidSettings):
        Trap.parse(text)


def test_a_trap_springs_at_the_pass_that_was_asked_for() -> None:
    trap = Trap.parse("renew.before:2:raise")

    trap.reach("renew.before")
    trap.reach("renew.after")
    with pytest.raises(Exception, match=r"renew\.before"):
        trap.reach("renew.before")
    trap.reach("renew.before")
