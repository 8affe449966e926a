"""Both type checkers agree on the public types: they refuse the marked lines of `types/`, and no others.

A file in that folder is checked by being there. It says what holds with `assert_type`, and marks each line
that must be an error with `# refused`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).parent / "types"
MARK = "# refused"


@pytest.mark.source("PQ-56", "PQ-65")
def test_mypy_refuses_the_marked_lines_and_no_others() -> None:
    output = _run("mypy", "--strict", "--output=json", str(SOURCES))

    errors = [json.loads(line) for line in output.splitlines()]

    assert {(Path(each["file"]).name, each["line"]): each["message"] for each in errors}.keys() == _marked()


def test_pyright_refuses_the_marked_lines_and_no_others() -> None:
    output = _run("pyright", "--outputjson", str(SOURCES))

    errors = json.loads(output)["generalDiagnostics"]

    found = {(Path(each["file"]).name, each["range"]["start"]["line"] + 1): each["message"] for each in errors}
    assert found.keys() == _marked()


def _marked() -> set[tuple[str, int]]:
    return {
        (path.name, number)
        for path in SOURCES.glob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if line.endswith(MARK)
    }


def _run(checker: str, *arguments: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", checker, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert ran.returncode in (0, 1), ran.stderr or ran.stdout
    return ran.stdout
