"""How tests have crash points walked: a `walker` of its own for each scenario, database and mode."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.acceptance.crash_cases import WAYS
from tests.acceptance.scenarios import SCENARIOS, Scenario
from tests.acceptance.scene import ROOT
from tests.acceptance.walker import table
from tests.support.processes import forked

Way: TypeAlias = tuple[str, str, str]
"""Scenario, database, mode."""
LANES = 4
"""How many walk at once where most of the time is spent waiting for the server to cut a transaction."""
POOL_SIZE = 2
"""How many connections a face may open: the server takes longer to make one than the scenario to use it."""
EVERY = 3
"""Of the statements of a transaction, how many there are to one at which a program is stopped, or cut off."""
STATEMENT = re.compile(r"\.statement (\d+)")
VARYING = ("exchanging.exchange.statement ", "claiming.admit_and_claim.statement ")
"""Of these a run may miss the last: how many statements an exchange takes depends on what has gathered by then."""
NOT_PASSED = "the point was not passed"


def ways(scenarios: Mapping[str, Scenario]) -> list[Way]:
    """Name every way in which *scenarios* are walked."""
    return [
        (name, database, mode)
        for name, scenario in scenarios.items()
        for database, mode in WAYS
        if database in scenario.databases
    ]


def walk(request: pytest.FixtureRequest, directory: Path, name: str, database: str, mode: str) -> dict[str, str]:
    """Walk every point of the scenario *name* in *mode*; tell at which of them something is wrong, and what."""
    points = points_of(name, database, mode)
    is_slow = (database, mode) == ("postgres", "stop") and not SCENARIOS[name].table
    lanes = LANES if is_slow else 1
    asked = [
        {"name": name, "settings": settings, "mode": mode, "points": points[number::lanes]}
        for number, settings in zip(range(lanes), all_settings(request, database), strict=False)
    ]
    answers = ask("walk", directory, [each for each in asked if each["points"]])
    wrong = {point: what for answer in answers for point, what in answer.items()}
    last = {max((each for each in points if each.startswith(kind)), key=_number, default="") for kind in VARYING}
    return {point: what for point, what in wrong.items() if what != NOT_PASSED or point not in last}


def failures(wrong: Mapping[str, str]) -> str:
    """Tell the whole of what went wrong at each point."""
    return "\n".join(f"at {point}: {what}" for point, what in wrong.items())


def _number(point: str) -> int:
    found = STATEMENT.search(point)
    return int(found[1]) if found else 0


def points_of(name: str, database: str, mode: str) -> list[str]:
    """Name the points of the scenario *name* that are walked in *mode*.

    A kill and an error come at every point. A stop and a cut come at every point outside transactions, at every commit
    and at every third statement: whatever the statement is, its transaction is over, and the same code finds out.
    """
    points = table()[name][database]
    if mode in ("kill", "raise"):
        return points
    numbers = [(point, STATEMENT.search(point)) for point in points]
    return [point for point, found in numbers if found is None or int(found[1]) % EVERY == 1]


def all_settings(request: pytest.FixtureRequest, database: str) -> Iterator[dict[str, Any]]:
    """Make the settings of each lane."""
    for number in range(LANES):
        if database == "sqlite":
            yield {}
        else:
            url = request.getfixturevalue("postgres_url")
            yield {"database": url, "schema_name": f"walk_{number}", "pool_size": POOL_SIZE}


def ask(what: str, directory: Path, asked: Sequence[dict[str, Any]]) -> list[Any]:
    """Have walkers do something, all at once; give what they answer."""
    command = [sys.executable, "-m", "tests.acceptance.walker", what]
    with ExitStack() as stack:
        walkers = []
        for number, each in enumerate(asked):
            (own := directory / str(number)).mkdir()
            words = [*command, json.dumps({**each, "directory": str(own)})]
            options: dict[str, Any] = {
                "cwd": ROOT,
                "env": environment(),
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
            }
            walkers.append(stack.enter_context(forked.Popen(words, **options)))
        said = [each.communicate(timeout=380) for each in walkers]
    assert [each.returncode for each in walkers] == [0] * len(asked), b"\n".join(errors for _, errors in said).decode()
    return [json.loads(output) for output, _ in said]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
