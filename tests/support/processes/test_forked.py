"""What is forked is a process as any other: it has its own streams, place and environment, and can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.fault_points import VARIABLE
from tests.support.processes import forked

PROGRAM = """
import json, os, sys, warnings
print(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get("OWN"), __name__, "tests" in sys.modules]), flush=True)
if "warns" in sys.argv:
    warnings.warn("a warning", stacklevel=1)
if "waits" in sys.argv:
    sys.stdin.read()
sys.exit(7)
"""

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can make it a child of who asked")


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    """A program that says where it is, and ends with 7."""
    (tmp_path / "program.py").write_text(PROGRAM)
    return [sys.executable, str(tmp_path / "program.py")]


@on_linux
def test_it_runs_with_its_own_words_place_environment_and_exit_code(program: list[str], tmp_path: Path) -> None:
    environment = {**os.environ, "OWN": "value"}

    told = forked.run([*program, "a", "b"], cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert told.stdout == f'[["a", "b"], "{tmp_path}", "value", "__main__", false]\n'
    assert (told.returncode, told.stderr) == (7, "")


@on_linux
def test_a_text_runs_as_a_program_does(tmp_path: Path) -> None:
    told = forked.run([sys.executable, "-c", PROGRAM, "a"], cwd=tmp_path, capture_output=True, text=True)

    assert told.stdout == f'[["a"], "{tmp_path}", null, "__main__", false]\n'
    assert (told.returncode, told.stderr) == (7, "")


@on_linux
def test_it_is_a_child_that_can_be_killed_and_waited_for(program: list[str]) -> None:
    process = forked.Popen([*program, "waits"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline()
    parent = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1])

    process.kill()

    assert parent == os.getpid()
    assert process.wait(10) == -signal.SIGKILL
    process.communicate()


@pytest.mark.parametrize(("words", "code"), [(["-W", "error"], 1), ([], 7)])
def test_a_warning_is_an_error_only_if_that_was_asked_for(program: list[str], words: list[str], code: int) -> None:
    told = forked.run([program[0], *words, program[1], "warns"], capture_output=True, text=True)

    assert told.returncode == code
    assert "a warning" in told.stderr


@pytest.mark.parametrize(("trap", "code"), [("renew.after", -signal.SIGKILL), ("renew.before", 0), ("", 0)])
def test_a_crash_point_is_set_for_one_program_and_no_other(tmp_path: Path, trap: str, code: int) -> None:
    """A new process sets it while it imports Holdfast, which has been done in what forks."""
    (tmp_path / "program.py").write_text("from holdfast.fault_points import reach\nreach('renew.after')")

    told = forked.run([sys.executable, tmp_path / "program.py"], env={**os.environ, VARIABLE: trap})

    assert told.returncode == code
