"""What has failed is told also by a run that breaks off."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BREAKS_OFF = """
def pytest_runtest_logfinish(nodeid):
    if nodeid.endswith("test_last"):
        raise RuntimeError("the plugin is broken")
"""
FAILS = """
def test_first():
    assert 6 * 7 == 41

def test_last():
    pass
"""


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_run_that_breaks_off_tells_its_failures_first(tmp_path: Path, processes: str) -> None:
    (tmp_path / "conftest.py").write_text(BREAKS_OFF)
    (tmp_path / "test_it.py").write_text(FAILS)
    (tmp_path / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-n", processes, "-p", "tests.support.broken_off", "--rootdir=."]

    run = subprocess.run(
        [*command, "test_it.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == pytest.ExitCode.INTERNAL_ERROR
    assert "assert (6 * 7) == 41" in run.stdout
    assert run.stdout.count("FAILED test_it.py::test_first") == 1
    assert "1 failed, 1 passed" in run.stdout
