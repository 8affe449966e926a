"""The benchmarks work: they do what they say, and say what they did. Of speed nothing is said here."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bench import backlog, drain, lanes, latency, start, throughput
from bench.__main__ import COMMANDS, main
from bench.limits.sqlite import SqliteByHand
from bench.machine import Unsuited
from bench.report import Comparison, table
from bench.rounds import Entrant, ratios, spread, take_turns
from holdfast import Holdfast

ROOT = Path(__file__).resolve().parent.parent


def test_the_help_names_every_command() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "bench", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout

    assert all(name in shown for name in COMMANDS)


def test_start_measures_both_stores_and_finds_the_rows(
    postgres_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["start", "--quick"]) == 0

    shown = capsys.readouterr().out
    lines = [line.split("|")[1].strip() for line in shown.splitlines() if re.match(r"\| (SQLite|PostgreSQL):", line)]
    beside_peers = ("huey", "pgqueuer", "pgqueuer, 1,000 at once")
    assert lines == [each.ours for each in (*start.SQLITE, *start.POSTGRES) if each.other not in beside_peers]
    assert re.findall(r"rows found: by hand [\d,]+, ours [\d,]+", shown) == [
        f"rows found: by hand {number(start.QUICK, hands)}, ours {number(start.QUICK, ours)}"
        for hands, ours in (((1, 1), (3, 1)), ((2, 2), (4, 2)))
    ]
    assert "commits per second" in shown


def test_throughput_runs_every_job_on_both_stores(postgres_server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["throughput", "--quick"]) == 0

    shown = capsys.readouterr().out
    done = throughput.QUICK.jobs * (throughput.QUICK.rounds + 1)
    assert first_cells(shown) == ["SQLite: one worker", "PostgreSQL: one worker"]
    assert shown.count(f"jobs done: by hand {done:,}, ours {done:,}") == 2


def test_lanes_runs_every_job_with_lanes_and_without(postgres_server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lanes", "--quick"]) == 0

    shown = capsys.readouterr().out
    assert first_cells(shown) == ["SQLite: 10,000 lanes", "PostgreSQL: 10,000 lanes"]
    assert shown.count(f"jobs done: ours {2 * lanes.QUICK.jobs * (lanes.QUICK.rounds + 1):,}") == 2


def test_latency_runs_every_job_in_one_process_and_in_two(
    postgres_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["latency", "--quick"]) == 0

    lines = [line.split("|") for line in capsys.readouterr().out.splitlines() if " process" in line]
    kinds = ("SQLite: one process", "SQLite: two processes", "PostgreSQL: one process", "PostgreSQL: two processes")
    assert [(line[1].strip(), line[5].strip()) for line in lines] == [
        (kind, str(latency.QUICK.starts)) for kind in kinds
    ]


def test_idle_watches_a_worker_of_each_store(postgres_server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["idle", "--quick"]) == 0

    lines = [line for line in capsys.readouterr().out.splitlines() if "< 1 and" in line]
    assert [line.split("|")[1].strip() for line in lines] == ["SQLite", "PostgreSQL"]


def test_backlog_claims_and_drains_beside_every_kind_of_row(
    postgres_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["backlog", "--quick"]) == 0

    assert first_cells(capsys.readouterr().out) == [
        f"{store}: {kind}" for store in ("SQLite", "PostgreSQL") for kind in backlog.KINDS
    ]


@pytest.mark.parametrize("kind", backlog.KINDS)
def test_a_backlog_has_the_rows_that_it_names(kind: str, tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    with asyncio.Runner() as runner, drain.opened(path, runner) as hf:
        backlog.write_backlog("SQLite", path, kind, 200)
        jobs = runner.run(hf.list_jobs(limit=200))

    states = {
        "pending": {"pending": 200},
        "future": {"pending": 200},
        "finished": {"completed": 200},
        "blocked": {"blocked": 200},
        "halted": {"failed": 2, "pending": 198},
        "unknown": {"pending": 200},
    }
    assert Counter(str(job.status) for job in jobs) == states[kind]


def test_jobs_that_were_not_run_are_not_reported() -> None:
    with pytest.raises(Unsuited, match="not done"):
        drain.check({"ours": 5}, [("ours", Entrant("SQLite: one worker", 3, lambda _: 1.0))], rounds=1)


def first_cells(shown: str) -> list[str]:
    """Read the first cell of each line about a store."""
    return [line.split("|")[1].strip() for line in shown.splitlines() if re.match(r"\| (SQLite|PostgreSQL):", line)]


def number(sizes: start.Sizes, kinds: tuple[int, int]) -> str:
    """Count the rows of a run: so many entrants start one by one and so many together, and each kind has its crowds."""
    singles, together = kinds
    crowds = 2 * sizes.shared + sizes.batches * start.BATCH
    return f"{(sizes.rounds + 1) * (singles * sizes.singles + together * sizes.together + crowds):,}"


def test_a_start_by_hand_leaves_the_row_that_ours_leaves(tmp_path: Path) -> None:
    hf = Holdfast(str(tmp_path / "jobs.db"), tasks=[start.TASKS])
    with hf.sync:
        hf.sync.start(start.work(text=start.TEXT))
        by_hand = SqliteByHand(tmp_path / "jobs.db", start.INPUT)
        by_hand.one_by_one(1)
        by_hand.many_at_once(2, batch=2)
        by_hand.close()

        ours, *others = hf.sync.list_jobs(order="oldest")

    own = {"id", "seq", "chain_id", "task", "created_at", "run_at", "input"}
    facts = [{name: getattr(job, name) for name in job.__slots__ if name not in own} for job in (ours, *others)]
    assert len(others) == 3
    assert all(each == facts[0] for each in facts)
    assert ours.input.text == others[0].input["text"] == start.TEXT


def test_work_that_was_not_done_is_not_reported() -> None:
    idle = [Entrant("SQLite: blocking", 3, lambda _: 1.0)]

    with pytest.raises(Unsuited, match="not done"):
        start.check_rows(idle, 1, {"ours": 5})


def test_everybody_takes_a_turn_in_each_round_and_the_first_round_does_not_count() -> None:
    turns: list[str] = []

    def entrant(name: str, seconds: float) -> Entrant:
        return Entrant(name, 10, lambda _: turns.append(name) or seconds)

    rates = take_turns([entrant("one", 1.0), entrant("two", 2.0)], rounds=2)

    assert turns == ["one", "two"] * 3
    assert rates == {"one": [10.0, 10.0], "two": [5.0, 5.0]}


def test_a_comparison_is_the_median_of_the_ratios_round_by_round() -> None:
    rates = {"ours": [10.0, 100.0, 20.0], "other": [10.0, 200.0, 10.0]}

    assert spread(ratios(rates, "ours", "other")).middle == 1.0


def test_the_table_marks_what_is_reached_and_what_is_not_and_leaves_out_what_was_not_measured() -> None:
    comparisons = [Comparison("a", "b", 0.5), Comparison("b", "a", 3), Comparison("a", "missing", 1)]

    lines = table(comparisons, {"a": [10.0], "b": [20.0]}).splitlines()

    assert [line.split("|")[-2].strip() for line in lines[2:]] == ["✓", "✗"]
