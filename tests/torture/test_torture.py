"""Real processes under faults, for seconds by default and for minutes when asked: what was recorded is as promised.

Whatever fails prints the command that repeats it, and where its history is kept.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from holdfast.testing.postgres import URL_VARIABLE
from tests.torture.__main__ import verdict
from tests.torture.report import Report, report
from tests.torture.run import DatabaseKind, Plan, Run

KEPT = Path(__file__).parents[2] / ".cache" / "torture"
SCRIPTS = {
    "sqlite": ("kill_worker", "hold_file", "drain_worker"),
    "postgres": ("kill_worker", "cut_at_commit", "cut", "lock_rows", "drain_worker"),
}


def judged(plan: Plan, place: Path) -> Report:
    """Lead a run, and fail with all that there is to say if something is wrong."""
    made = report(Run(plan, place).lead())
    if made.violations:
        kept = KEPT / f"{plan.database}-{plan.seed}"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(place, kept)
        pytest.fail(f"{made.table()}\n{verdict(made, kept)}", pytrace=False)
    return made


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> DatabaseKind:
    """Each of the databases; skip the one whose server cannot be had, or is somebody else's to stop and start."""
    if request.param == "postgres":
        request.getfixturevalue("postgres_server")
        if os.environ.get(URL_VARIABLE):
            pytest.skip(f"the server at {URL_VARIABLE} is not ours to restart")
    kind: DatabaseKind = request.param
    return kind


@pytest.mark.long  # the two long runs come across more; by default the checker has its edited histories
@pytest.mark.timeout(240)
def test_nothing_is_lost_in_a_few_seconds_of_faults(tmp_path: Path, database: DatabaseKind) -> None:
    plan = Plan(
        database, 1, 3.0, workers=2, fault_seconds=0.5, longs=0.2, has_aborts=False, has_webhooks=False,
        has_children=False,
        script=SCRIPTS[database],
    )  # fmt: skip

    made = judged(plan, tmp_path)

    assert made.reached["completed"]
    assert made.reached["reaped"]


@pytest.mark.long
@pytest.mark.timeout(420)
@pytest.mark.parametrize("seed", [101, pytest.param(102, marks=pytest.mark.by_hand)])
def test_nothing_is_lost_in_minutes_of_faults(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, database: DatabaseKind, seed: int
) -> None:
    made = judged(Plan(database, seed, 80), tmp_path)

    with capsys.disabled():
        print(f"\n{made.table()}")
    assert made.missing == [], "too tame"
