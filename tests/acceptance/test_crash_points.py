"""Every commit boundary: whatever happens to a process there, nothing is lost, doubled, or half done.

The ways are kill -9, an error that nobody could expect, SIGSTOP until all leases are over, and on PostgreSQL a cut of
all connections; after the last three the process itself has to go on. Every run fails if its point was not reached, and
one test knows that no point is left out in any way.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import holdfast
from holdfast.crashpoints import POINTS, VARIABLE, Trap
from holdfast.errors import InvalidSettings
from holdfast.store.migrations import steps
from holdfast.store.settling import CRASH_POINTS
from tests import forked
from tests.acceptance import test_completion_by_orm, test_media_pipeline, test_webhooks
from tests.acceptance.crash_cases import IN_CHILDREN, PLAYED, STEERED, Case, cases, places
from tests.acceptance.jobs_in_children import in_child
from tests.acceptance.play import (
    REACHED,
    Tables,
    has_right_to_write,
    produce,
    start,
    surroundings,
    tables,
    trapped,
    until_on_stage,
    walk,
)
from tests.acceptance.processes import state_of, until
from tests.acceptance.scene import ROOT, Scene, WorkerProcess
from tests.acceptance.steer import VERBS

IN_CHILDREN_APP = "tests.acceptance.jobs_in_children:hf"
PLAYED_ALWAYS = {
    ("sqlite", "complete.before_commit", "kill"),
    ("sqlite", "claim.after_commit", "kill"),
    ("sqlite", "flush.after_commit", "raise"),
    ("sqlite", "claim.before_handler", "stop"),
}
STEERED_ALWAYS = {
    ("sqlite", "skip.after_update", "kill"),
    ("postgres", "cancel.after_update", "cut"),
    ("sqlite", "delete.after_update", "stop"),
}


@pytest.mark.parametrize(
    ("stage_database", "point", "mode"), places(cases(PLAYED), PLAYED_ALWAYS), indirect=["stage_database"]
)
def test_whatever_happens_at_a_point_loses_and_doubles_nothing(
    stage_database: tuple[str, dict[str, str]], tmp_path: Path, point: str, mode: str
) -> None:
    """F-01, F-03, F-15, I-13; P-08 is `claim.after_commit`, P-15 `complete.after_event`, P-20 the points of a claim."""
    database, settings = stage_database

    walk(database, tmp_path, settings, f"{point}:1:{mode}")


@pytest.mark.parametrize(
    ("stage_database", "point", "mode"), places(cases(STEERED), STEERED_ALWAYS), indirect=["stage_database"]
)
def test_a_verb_is_done_wholly_or_not_at_all_whatever_happens_to_its_process(
    stage: Scene, point: str, mode: str
) -> None:
    """F-01, F-15, I-12."""
    name, _, where = point.partition(".")
    verb = VERBS[name]
    verb.prepare(stage.hf)
    before = tables(stage)

    program = steering(stage, name, f"{point}:1:{mode}")
    until(lambda: program.is_stopped or not program.is_alive, "the program ends", 60)
    if program.is_stopped:
        look_at_what_stands_still(program, stage, before, is_done=where == "after_commit")
        program.send(signal.SIGCONT)
    code = program.exit_code()

    assert REACHED in program.said
    is_cut_off = mode == "cut" and "UnknownOutcome" in program.said
    assert code == (-signal.SIGKILL if mode == "kill" else int(is_cut_off)), program.said
    if where != "after_commit" and code != 0:
        assert tables(stage) == before
        forked.run(program.process.args, env=stage.environment, cwd=ROOT, capture_output=True, timeout=60, check=True)
    assert stage.rows(verb.sql) == [(verb.value,)]
    if verb.event is not None:
        assert events(tables(stage), verb.event) == events(before, verb.event) + 1


def steering(stage: Scene, name: str, trap: str) -> WorkerProcess:
    """Start the program that steers, with the trap set."""
    command = [sys.executable, "-m", "tests.acceptance.steer", name]
    return start(command, {**stage.environment, VARIABLE: trap}, stage.directory / "steer.log")


def look_at_what_stands_still(program: WorkerProcess, stage: Scene, before: Tables, *, is_done: bool) -> None:
    """See that nobody sees a half of what *program* was at; others can write, unless that has the right to."""
    assert (tables(stage) == before) is not is_done
    assert not (has_right_to_write(program, stage) and is_done)


def events(found: Tables, name: str) -> int:
    return sum(name in row for row in found["event"])


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


@pytest.mark.long
@pytest.mark.parametrize("mode", ["kill", "raise"])
@pytest.mark.parametrize(
    ("stage_database", "number"),
    [(database, step.number) for database in ("sqlite", "postgres") for step in steps(database)],
    indirect=["stage_database"],
)
def test_a_migration_that_ends_at_any_step_is_taken_up_where_it_was(
    stage_database: tuple[str, dict[str, str]], tmp_path: Path, number: int, mode: str
) -> None:
    """F-39."""
    database, settings = stage_database
    environment = surroundings(database, tmp_path, settings)

    said = produce("migrate", environment, f"migrate.step:{number}:{mode}")

    assert REACHED in said
    assert produce("early", environment, "") == ""


def test_every_point_is_walked_in_every_way() -> None:
    """A run that does not reach its point fails; so all of them together reach every point in every way."""
    walked: set[Case] = {
        *cases(PLAYED),
        *cases(STEERED),
        *cases(IN_CHILDREN),
        *test_webhooks.CASES,
        *((database, point, mode) for database, point, _, mode in test_media_pipeline.CASES),
        *((database, point.partition(":")[0], mode) for database, _, point, mode in test_completion_by_orm.CASES),
    }

    assert set(cases(POINTS)) - walked == set()


@cache
def passed_in_the_code() -> frozenset[str]:
    """Name the points that the sources pass: by their names, by a kind of settlement, or by a verb."""
    found = set()
    for path in Path(holdfast.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called == "reach" and isinstance(node.args[0], ast.Constant):
                found.add(str(node.args[0].value))
            elif called == "pass_points" and isinstance(node.args[1], ast.Constant):
                found |= {f"{kind}.{node.args[1].value!s}" for kind in CRASH_POINTS.values()}
            elif called == "pass_commit":
                found |= {f"{verb}.after_commit" for verb in VERBS}
    return frozenset(found)


@pytest.mark.parametrize("point", POINTS)
def test_every_point_is_somewhere_in_the_code(point: str) -> None:
    assert point in passed_in_the_code()


def test_every_point_that_the_code_names_is_registered() -> None:
    by_name = {each for each in passed_in_the_code() if each.partition(".")[0] not in {*VERBS, *CRASH_POINTS.values()}}

    assert by_name <= set(POINTS)


def test_a_point_that_is_not_registered_cannot_be_passed_while_one_is_armed() -> None:
    with pytest.raises(LookupError, match=r"new\.point"):
        Trap.parse("renew.before").reach("new.point")


@pytest.mark.parametrize(
    "text",
    [
        "nowhere",
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
