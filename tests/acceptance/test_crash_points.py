"""Every statement and every commit: whatever happens to a process there, nothing is lost, doubled, or half done.

The ways are kill -9, an error that nobody could expect, SIGSTOP until all leases are over, and on PostgreSQL a cut of
all connections; after the last three the process itself has to go on. The last two come at every third statement only.
`scenarios` says what is played, `walker` plays it, and `points.json` lists the points of each scenario: a test fails if
one is passed that is not in it, and every run fails if its point is not passed. `python -m tests.acceptance.walker
write` writes the list anew.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import InvalidSettings
from holdfast.fault_points import IN_TRANSACTIONS, OUTSIDE, Trap
from tests.acceptance import test_media_pipeline
from tests.acceptance import test_webhooks_of_killed_workers as test_webhooks
from tests.acceptance.crash_cases import IN_CHILDREN, cases, places
from tests.acceptance.jobs_in_children import in_child
from tests.acceptance.play import REACHED, trapped, until_on_stage
from tests.acceptance.processes import state_of
from tests.acceptance.scenarios import SCENARIOS
from tests.acceptance.scene import ROOT, Scene, WorkerProcess
from tests.acceptance.walker import is_about, table
from tests.acceptance.walks import VARYING, Way, all_settings, ask, failures, points_of, walk, ways

IN_CHILDREN_APP = "tests.acceptance.jobs_in_children:hf"
ALWAYS: set[Way] = {
    ("complete", "sqlite", "kill"),
    ("complete", "sqlite", "raise"),
    ("skip", "sqlite", "kill"),
    ("pause_queue", "postgres", "cut"),
    ("pause_lane", "sqlite", "stop"),
}
WALKS = ways({name: each for name, each in SCENARIOS.items() if not each.needs})


@pytest.mark.source("DF-35")
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("name", "database", "mode"), places(WALKS, ALWAYS))
def test_whatever_happens_at_a_point_loses_and_doubles_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, database: str, mode: str
) -> None:
    """F-01, F-03, F-15, F-39, I-12, I-13, P-08, P-15, P-20."""
    wrong = walk(request, tmp_path, name, database, mode)

    assert not wrong, failures(wrong)


def test_a_walk_sees_an_operation_that_is_done_by_half(tmp_path: Path) -> None:
    points = ["lanes.pause_lane.statement 1", "lanes.pause_lane.statement 4"]
    asked = {"name": "pause_lane", "settings": {}, "mode": "kill", "points": points, "in_halves": True}

    (failures,) = ask("walk", tmp_path, [asked])

    assert list(failures) == points[1:]
    assert "half of it is there" in failures[points[1]]


@pytest.mark.long
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_every_point_that_is_passed_is_walked(request: pytest.FixtureRequest, tmp_path: Path, database: str) -> None:
    """A new statement, or a new operation, is a new point: record the table anew, or play the operation somewhere.

    That none is left in the table which is no longer passed, each walk sees by itself.
    """
    names = [name for name, each in SCENARIOS.items() if database in each.databases and not each.needs]
    walked = {point for found in table().values() for point in found.get(database, ())}
    settings = next(all_settings(request, database))

    (found,) = ask("record", tmp_path, [{"names": names, "settings": settings}])

    walked |= {point.partition(":")[0] for point in walked}  # which pass it is counts only where each is walked
    passed = {
        point if is_about(SCENARIOS[name], point) else point.partition(":")[0]
        for name, (points,) in found.items()
        for point in points
    }
    new = {each for each in passed - walked if not each.startswith(VARYING)}
    assert {each for each in new if each.rpartition(".")[0] not in BESIDE} == set()


@pytest.mark.parametrize(
    ("stage_database", "point", "mode"), places(cases(IN_CHILDREN), ()), indirect=["stage_database"]
)
def test_whatever_happens_in_a_child_costs_its_worker_nothing(stage: Scene, point: str, mode: str) -> None:
    """F-01, F-05: each child springs the trap once."""
    stage.hf.tasks.add(in_child)
    stage.start(*[in_child(n=n) for n in range(2)])

    worker = stage.worker("--concurrency", "2", waits=False, app=IN_CHILDREN_APP, **trapped(f"{point}:1:{mode}"))

    def is_done() -> bool:
        for child in stopped_children(worker):
            os.kill(child, signal.SIGCONT)
        return stage.are_all("completed") and REACHED in worker.said

    until_on_stage(stage, is_done, "all is done, and the point was reached")
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0, worker.said
    stage.assert_each_completed_once()


def stopped_children(worker: WorkerProcess) -> list[int]:
    """Name the children of *worker* that stand still."""
    children = Path(f"/proc/{worker.id}/task/{worker.id}/children").read_text().split()
    return [int(child) for child in children if state_of(int(child)) == "T"]


BESIDE = {
    "settling.settle": "what an exchange failed with is settled alone: by the statements of `exchanging.exchange`",
    "planner_statistics.forget": "throws away what the server knows about tables",
    "reaping.still_locked": "looks at locks, and writes nothing",
    "reaping.absolve": "one statement that writes: a crash that was none; without it the crash stays counted",
    "reaping.give_back_unwritten": "the last act of a worker that could not settle; without it the leases end",
    "claiming.claim": "a claim without an exchange: what it finds it claims by the statements of `exchanging.exchange`",
    "claiming.begin": "one statement, before the handler of a job that has crashed twice",
    "unique.free": "frees keys of chains that are gone",
    "workers.mark_awake": "one statement: a worker that nobody need wake any more",
    "unique.sweep": "frees keys that nothing holds any more",
    "pruning.delete_events": "forgets events of jobs that are gone",
    "schedules.tick_one": "one schedule alone, after a batch has failed: by the statements of `schedules.tick`",
    "schedules.give_up": "one statement that writes: a schedule whose call cannot start goes on with its next time",
    "schedules.forget_ticks": "forgets ticks that are older than they are kept",
    "glance.write_marks": "says in idle tenants that their host sleeps; without it, it looks at them more often",
    "glance.take_marks": "takes that back; a mark that is left is forgotten",
    "tenants.note_trouble": "one statement: why a tenant is left out, for people to read",
    "settling.append_warning": "one event, of a job that has ended",
    "journaling.append_after_end": "the last log lines of an attempt that has ended; without it they are lost",
    "journal.delete_old": "one statement that writes: it forgets journals that are older than they are kept",
    "access.note_use": "when a token or a session was last used, to five minutes; two statements that may each be lost",
    "access.open_session": "one statement: without it nobody is logged in, and logs in again",
    "access.end_session": "one statement: whoever was told of no answer logs out again",
    "access.delete_old": "forgets sessions, tokens and links that are over",
    "audit.write": "one row that is written alone, of an export; that of an act is walked with the act",
    "audit.delete_old": "one statement that writes: it forgets entries that are older than they are kept",
    "workers.beat": "the sign of life of who follows the log; a worker's own is `workers.give_sign`",
    "workers.forget_astray": "forgets who has not been seen for days",
    "block_ends.is_completed_by": "looks whether a COMMIT in doubt has happened",
    **dict.fromkeys(
        ("tenants.begin_creating", "tenants.end_creating", "tenants.begin_dropping", "tenants.end_dropping"),
        "tests/tenants/test_crashes.py kills the command there",
    ),
    "tenants.stop_dropping": "one statement: without it the tenant is still being dropped, and `drop` goes on",
    "tenants.wake": "changes nothing, and has workers look a little sooner",
    "orm_transaction.execute": "one statement of an operation that is walked where it runs whole",
    "orm_transaction.fetch": "one statement of an operation that is walked where it runs whole",
}
"""Operations that no scenario is about, with the reason."""


@cache
def operations() -> frozenset[str]:
    """Name the operations that the sources have run in a write transaction."""
    found = set()
    for path in Path(holdfast.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).rpartition(".")[2] in RUNS:
                found |= {ast.unparse(each) for each in node.args[:2] if is_operation(each)}
    return frozenset(found)


RUNS = ("run", "run_sync", "gather", "gather_sync", "bound", "_write", "_steer", "shield")


def is_operation(node: ast.expr) -> bool:
    """Tell whether *node* names a function of a module of the store."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in STORE


STORE = {path.stem for path in (Path(holdfast.__file__).parent / "store").rglob("*.py")}


def test_every_operation_that_writes_is_walked() -> None:
    walked = {point.rpartition(".")[0] for found in table().values() for points in found.values() for point in points}

    assert operations() - walked - set(BESIDE) - {"steering.at_once"} == set()


def test_every_point_outside_transactions_is_walked_in_every_way() -> None:
    walked = {(way[1], point, way[2]) for way in ways(SCENARIOS) for point in points_of(*way)}
    walked |= {*cases(IN_CHILDREN), *test_webhooks.CASES}
    walked |= {(database, point, mode) for database, point, _, mode in test_media_pipeline.CASES}

    assert set(cases(OUTSIDE)) - walked == set()


def test_a_kill_and_an_error_come_at_every_point_and_the_rest_at_every_commit() -> None:
    points = table()["complete in a lane"]["postgres"]
    commits = {each for each in points if "commit" in each}

    chosen = {mode: points_of("complete in a lane", "postgres", mode) for mode in ("kill", "raise", "stop", "cut")}

    assert chosen["kill"] == chosen["raise"] == points
    assert chosen["stop"] == chosen["cut"]
    assert commits < set(chosen["cut"]) < set(points)


def test_the_table_has_nothing_but_points() -> None:
    points = {point for found in table().values() for points in found.values() for point in points}

    names = {each.partition(":")[0] for each in points}
    assert {each for each in names if each not in OUTSIDE and not IN_TRANSACTIONS.fullmatch(each)} == set()


@cache
def passed_in_the_code() -> Collection[str]:
    """Name the points that the sources pass by their names."""
    found = set()
    for path in Path(holdfast.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "reach":
                found |= {str(each.value) for each in node.args if isinstance(each, ast.Constant)}
    return frozenset(found)


def test_the_points_outside_transactions_are_those_that_the_code_names() -> None:
    assert passed_in_the_code() == set(OUTSIDE)


@pytest.mark.parametrize(
    "text",
    [
        "nowhere",
        "settling.settle.statement",
        "settling.settle.statement 0",
        "renew.before:x",
        "renew.before:1:explode",
        "renew.before:1:delay=soon",
        "renew.before:1:delay",
        "renew.before:1:stop=",
        "renew.before:1:cut=2",
    ],
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
from holdfast.fault_points import cut_connections

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
