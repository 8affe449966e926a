"""A worker that has run thousands of jobs holds what it held before (I-51), and it is seen if one does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.meter import Cost
from bench.soak import SHORT, SIZES, Soaked, soak
from holdfast.testing import temporary_postgres

FLAT = {"memory": 30e6, "blocks": 1e5, "descriptors": 17, "threads": 9, "tasks": 9, "connections": 5, "wal": 4e6,
        "claim": 0.01}  # fmt: skip
JOBS = 10_000


def soaked(growth: dict[str, float], left: int = 0) -> Soaked:
    """Make up a soak in which some things grow with each job."""
    samples = [
        {"done": done, **{name: value + growth.get(name, 0) * done for name, value in FLAT.items()}}
        for done in range(0, JOBS, JOBS // 20)
    ]
    return Soaked("nowhere", Cost(1.0, 1.0), samples, left)


def test_what_stays_as_it_was_is_not_complained_of() -> None:
    assert soaked({}).complaints(SIZES) == []


@pytest.mark.parametrize(
    ("what", "growth"),
    [
        ("memory grows", {"memory": 25.0}),
        ("memory has grown", {"memory": 5_000.0}),
        ("blocks are kept", {"blocks": 0.2}),
        ("-wal file", {"wal": 1e4}),
        ("a claim takes", {"claim": 1e-6}),
        ("descriptors grow", {"descriptors": 0.001}),
        ("threads grow", {"threads": 0.001}),
        ("tasks grow", {"tasks": 0.01}),
        ("connections grow", {"connections": 0.001}),
    ],
)
def test_what_grows_with_the_jobs_is_complained_of(what: str, growth: dict[str, float]) -> None:
    assert any(what in each for each in soaked(growth).complaints(SIZES))


def test_rows_that_outlive_their_jobs_are_complained_of() -> None:
    assert soaked({}, left=1).complaints(SIZES) == ["1 rows are left of lanes and keys"]


@pytest.mark.long
def test_a_worker_on_sqlite_holds_no_more_after_thousands_of_jobs(tmp_path: Path) -> None:
    judge("SQLite", str(tmp_path / "jobs.db"), str(tmp_path / "again.db"))


@pytest.mark.long
def test_a_worker_on_postgres_holds_no_more_after_thousands_of_jobs() -> None:
    with temporary_postgres() as server:
        judge("PostgreSQL", server.url, server.url)


@pytest.mark.long
def test_the_command_tells_of_both_stores(postgres_server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", "--quick"]) == 0

    lines = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith(("| SQL", "| Post"))]
    assert [cells[1].strip() for cells in lines] == ["SQLite", "PostgreSQL"]
    assert all(int(cells[2].replace(",", "")) > 0 for cells in lines)


def judge(store: str, url: str, other_url: str) -> None:
    """Soak a worker; if something grows, do it again with its memory traced, and say what there is most of."""
    made, _ = soak(store, url, SHORT)
    if complaints := made.complaints(SHORT):
        _, largest = soak(store, other_url, replace(SHORT, jobs=1_000), is_traced=True)
        pytest.fail("\n".join([*complaints, *map(str, made.samples), *largest]), pytrace=False)
