"""kill -9 at every commit boundary: whoever comes after finishes everything, and nothing is lost or doubled.

The same with the connections cut at every boundary, on PostgreSQL: there the process itself has to finish everything.
"""

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
from holdfast.models import INTERNAL_QUEUE
from tests import forked
from tests.acceptance.jobs_of_tests import quick
from tests.acceptance.processes import until
from tests.acceptance.produce import job_id
from tests.acceptance.scene import ROOT, Scene, WorkerProcess, scene
from tests.acceptance.steer import VERBS

# what takes part in every run, not only in the long one
ALWAYS = {
    ("sqlite", "complete.before_commit", "kill"),
    ("sqlite", "claim.after_commit", "kill"),
    ("sqlite", "skip.after_update", "kill"),
    ("postgres", "cancel.after_update", "cut"),
}
# what only one database has: a lock that proves a death
ONLY_ON = {"reap.after_proof": "sqlite"}
# these a program passes that steers jobs; all others a worker, or whoever starts jobs or migrates
STEERED = [point for point in POINTS if point.partition(".")[0] in VERBS]
# and these a block over somebody else's transaction: test_completion_by_orm.py
PROVIDED = [point for point in POINTS if point.startswith("provided.")]
# and these a worker whose job somebody is to be told of
TOLD = ["complete.after_delivery"]


def places(points: Sequence[str]) -> list[object]:
    """Name every (database, point, mode); SQLite has no connection that could be cut."""
    ways = [("sqlite", "kill"), ("postgres", "kill"), ("postgres", "cut")]
    cases = [(database, point, mode) for point in points for database, mode in ways]
    wanted = [case for case in cases if ONLY_ON.get(case[1], case[0]) == case[0]]
    return [pytest.param(*case, marks=[] if case in ALWAYS else pytest.mark.long) for case in wanted]


# and these the end of a phase: test_media_pipeline.py
PHASED = [point for point in POINTS if point.startswith("phase.")]
ELSEWHERE = [*STEERED, *PROVIDED, *TOLD, *PHASED]
PLAYED = [point for point in POINTS if point not in ELSEWHERE or point.startswith("pause.")]


@pytest.mark.parametrize(("stage_database", "point", "mode"), places(PLAYED), indirect=["stage_database"])
def test_a_process_killed_at_any_point_loses_and_doubles_nothing(
    stage_database: tuple[str, dict[str, str]], tmp_path: Path, point: str, mode: str
) -> None:
    """F-01, F-15; P-08 is `claim.after_commit`, P-15 `complete.after_event`, P-20 the three points of a claim."""
    database, settings = stage_database
    trap = f"{point}:1:{mode}"
    environment = {**os.environ, "HOLDFAST_DATABASE": database, "HOLDFAST_TEST_PLACE": str(tmp_path)}
    environment |= {f"HOLDFAST_{name.upper()}": value for name, value in settings.items()}
    told = run_in_spite_of([str(Path(sys.executable).with_name("holdfast")), "migrate"], environment, trap)

    with scene(database, tmp_path, **settings) as stage:
        told += run_in_spite_of([sys.executable, "-m", "tests.acceptance.produce", "early"], stage.environment, trap)
        stage.worker(waits=False, **{VARIABLE: "claim.after_commit"}).exit_code()
        told += run_in_spite_of([sys.executable, "-m", "tests.acceptance.produce", "late"], stage.environment, trap)
        play_until_the_end_of(stage.worker("--grace", "0.5", waits=False, **{VARIABLE: trap}), stage)
        finish(stage)

        assert "crash_point_reached" in told + stage.logs()
        assert stage.statuses() == {"completed": 14, "cancelled": 1}
        assert set(stage.completions().values()) == {1}
        assert stage.rows("SELECT count(*) FROM holdfast_event WHERE name = 'job:enqueued'") == [(15,)]
        assert stage.rows("SELECT count(*) FROM holdfast_job WHERE gate IS NOT NULL OR head = 1") == [(0,)]


def run_in_spite_of(command: Sequence[str], environment: dict[str, str], trap: str) -> str:
    """Run a program with the trap set, and again without if that kills it; give what it said."""
    trapped = run_trapped(command, environment, trap)
    if trapped.returncode == -signal.SIGKILL:
        forked.run(command, env=environment, cwd=ROOT, capture_output=True, timeout=30, check=True)
    else:
        assert trapped.returncode == 0, trapped.stderr
    return trapped.stderr


def run_trapped(command: Sequence[str], environment: dict[str, str], trap: str) -> subprocess.CompletedProcess[str]:
    environment = {**environment, VARIABLE: trap}
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)


def play_until_the_end_of(worker: WorkerProcess, stage: Scene) -> None:
    """Steer the jobs as people would, then tell the worker to stop; it may die at any moment."""

    def has_only_the_waiting_one_left() -> bool:
        steer(stage)
        return not worker.is_alive or (
            stage.statuses() == {"completed": 13, "cancelled": 1, "running": 1} and is_waiting(stage)
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
    asked = "SELECT 1 FROM holdfast_job WHERE id = :id AND cancel_requested_at IS NOT NULL"
    has_begun = str(job_id("cancel")) in {each["job"] for each in stage.notes("begin")}
    # once: who locks a row of a dead worker again and again has the reaper hold off each time
    if has_begun and not stage.rows(asked, id=str(job_id("cancel"))):
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


@pytest.mark.parametrize(("stage_database", "point", "mode"), places(STEERED), indirect=["stage_database"])
def test_a_verb_whose_process_is_killed_was_done_wholly_or_not_at_all(stage: Scene, point: str, mode: str) -> None:
    """F-01, F-15, I-12."""
    name, _, where = point.partition(".")
    verb = VERBS[name]
    command = [sys.executable, "-m", "tests.acceptance.steer", name]
    verb.prepare(stage.hf)
    before = tables(stage)

    trapped = run_trapped(command, stage.environment, f"{point}:1:{mode}")

    assert "crash_point_reached" in trapped.stderr
    if where != "after_commit" and trapped.returncode != 0:
        assert trapped.returncode == -signal.SIGKILL or "UnknownOutcome" in trapped.stderr, trapped.stderr
        assert tables(stage) == before
        forked.run(command, env=stage.environment, cwd=ROOT, capture_output=True, timeout=30, check=True)
    assert stage.rows(verb.sql) == [(verb.value,)]
    assert events(tables(stage), verb.event) == events(before, verb.event) + 1


@pytest.mark.parametrize(("stage_database", "point", "mode"), places(TOLD), indirect=["stage_database"])
def test_a_worker_killed_as_it_makes_a_delivery_leaves_the_job_and_its_event_undone(
    stage: Scene, point: str, mode: str
) -> None:
    """F-01, F-15, I-12, I-47."""
    stage.face.queue(INTERNAL_QUEUE).pause()
    stage.start(quick(n=1).options(webhook="https://example.com/hook"))

    worker = stage.worker(waits=False, **{VARIABLE: f"{point}:1:{mode}"})
    until(lambda: "crash_point_reached" in worker.said, "the point is reached", 30)
    if mode == "kill":
        worker.exit_code()
        assert stage.rows("SELECT count(*) FROM holdfast_delivery") == [(0,)]
        stage.worker(waits=False)

    ended = "SELECT count(*) FROM holdfast_event WHERE name = 'job:completed'"
    until(lambda: stage.rows(ended) == [(1,)], f"the job completes; {stage.logs()}", 40)
    assert stage.rows("SELECT event FROM holdfast_delivery") == [("job:completed",)]


def tables(stage: Scene) -> dict[str, list[tuple[object, ...]]]:
    """Read all that a verb may write."""
    names = ("job", "event", "lane", "queue", "unique", "blocker", "phase")
    return {name: sorted(stage.rows(f"SELECT * FROM holdfast_{name}"), key=repr) for name in names}


def events(found: dict[str, list[tuple[object, ...]]], name: str) -> int:
    return sum(name in row for row in found["event"])


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


@pytest.mark.parametrize(
    "text", ["nowhere", "renew.before:x", "renew.before:1:explode", "renew.before:1:delay=soon", "renew.before:1:cut=2"]
)
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


def test_a_cut_shuts_what_leads_out_of_the_process_and_nothing_else() -> None:
    ran = subprocess.run([sys.executable, "-c", CUT], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)

    assert (ran.stdout.split(), ran.stderr) == (["connection:", "shut", "listener:", "open", "pair:", "open"], "")


CUT = """
import socket
from holdfast.crashpoints import cut_connections

listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
accepted, _ = listener.accept()
pair = socket.socketpair()
cut_connections()
print("connection:", "shut" if client.recv(1) == b"" else "open")
socket.create_connection(listener.getsockname(), timeout=5).close()
print("listener:", "open")
pair[0].send(b"x")
print("pair:", "open" if pair[1].recv(1) == b"x" else "shut")
"""
