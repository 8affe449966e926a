"""A connection to SQLite that a test leaves open fails that test, and no other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
    import sqlite3
    import threading

    import pytest

    kept = []

    @pytest.fixture(scope="module")
    def shared():
        connection = sqlite3.connect(":memory:")
        yield connection
        connection.close()

    @pytest.fixture
    def own():
        connection = sqlite3.connect(":memory:")
        yield connection
        connection.close()

    def test_a(shared, own):
        sqlite3.connect(":memory:").close()

    def test_b():
        kept.append(sqlite3.connect(":memory:"))

    def test_c(shared, own):
        pass

    def test_d():
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        threading.Timer(0.2, connection.close).start()
"""


def test_a_connection_left_open_fails_its_own_test_and_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(dedent(TESTS))

    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-c",
            "/dev/null",
            "--rootdir",
            tmp_path,
            "-p",
            "tests.support.unclosed",
            "-rA",
            tmp_path,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert re.findall(r"^ERROR \S*::(\w+)", ran.stdout, re.MULTILINE) == ["test_b"], ran.stdout
    assert "4 passed, 1 error" in ran.stdout
    assert 'kept.append(sqlite3.connect(":memory:"))' in ran.stdout
