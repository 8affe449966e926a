"""The benchmarks work: they do what they say, and say what they did. Of speed nothing is said here."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest

from bench import (
    backlog,
    drain,
    events,
    figures,
    http,
    lanes,
    latency,
    schedules,
    stack_starts,
    start,
    throughput,
    transactions,
)
from bench.__main__ import COMMANDS, main
from bench.everything import Everything
from bench.limits.sqlite import SqliteByHand
from bench.machine import Unsuited
from bench.meter import Cost, Meter, postmaster
from bench.peers import process
from bench.places import database
from bench.report import Comparison, table
from bench.rounds import Dropout, Entrant, ratios, spread, take_turns
from bench.shapes import Shape
from bench.stacks import STACKS
from bench.worker_process import TASKS
from holdfast import Holdfast
from holdfast.testing import temporary_postgres

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def durable_server(postgres_server: str) -> Iterator[str]:
    """Start a server that waits for its disk, as a benchmark does, once for all of them; skip without PostgreSQL."""
    with temporary_postgres(durable=True) as server:
        yield server.url


@pytest.fixture
def benchmarked(durable_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have the benchmarks measure on that server."""
    monkeypatch.setenv("HOLDFAST_TEST_DATABASE_URL", durable_server)
    return durable_server


def test_the_help_names_every_command() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "bench", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout

    assert all(name in shown for name in COMMANDS)


@pytest.mark.long
def test_start_measures_both_stores_and_finds_the_rows(benchmarked: str, capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.long
def test_start_measures_every_stack_beside_itself_by_hand(benchmarked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["start", "--quick", "--stack", "all"]) == 0

    shown = capsys.readouterr().out
    lines = [line.split("|") for line in shown.splitlines() if " by hand, " in line]
    assert [(line[1].strip(), line[4].strip()) for line in lines] == [
        (f"{name}: {many}", f"{name} by hand, {many}") for name in STACKS for many in ("one", "100 in one")
    ]
    rows = [stack_rows(name) for name in ("SQLite", "PostgreSQL")]
    assert re.findall(r"rows found: (.*)", shown) == [f"by hand {each}, ours {each}" for each in rows]
    assert "sqlalchemy 2" in shown


def stack_rows(store: str) -> int:
    """Count the rows of one side, over all stacks of a store."""
    stacks = [each for each in STACKS.values() if each.store == store]
    return len(stacks) * (start.QUICK.singles + start.QUICK.together) * (start.QUICK.rounds + 1)


@pytest.mark.long
def test_start_measures_one_stack_alone(benchmarked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["start", "--quick", "--stack", "session-aiosqlite"]) == 0

    lines = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines() if " by hand, " in line]
    assert lines == ["session-aiosqlite: one", "session-aiosqlite: 100 in one"]


def test_a_stack_that_nobody_knows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["start", "--stack", "fortran"])

    assert "asyncpg" in capsys.readouterr().err


@pytest.mark.parametrize("store", ["SQLite", "PostgreSQL"])
def test_a_row_by_hand_in_a_stack_is_the_row_that_ours_leaves_there(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    stacks = [each for each in STACKS.values() if each.store == store]
    with ExitStack() as resources:
        address = str(tmp_path / "jobs.db")
        if store == "PostgreSQL":
            address = resources.enter_context(database(request.getfixturevalue("postgres_server"), "rows_by_hand"))
        runner = resources.enter_context(asyncio.Runner())
        hf = resources.enter_context(drain.opened(address, runner, start.TASKS))
        for stack in stacks:
            for each in stack_starts.entrants_of(stack, address, hf, start.QUICK, runner, resources):
                each.run(1)
        jobs = runner.run(hf.list_jobs(limit=100)).items

    own = {"id", "seq", "chain_id", "task", "created_at", "run_at", "input", "state_tag"}
    facts = [{field: getattr(job, field) for field in job.__slots__ if field not in own} for job in jobs]
    assert Counter(job.task for job in jobs) == {"by hand": 2 * len(stacks), start.TASK: 2 * len(stacks)}
    assert all(each == facts[0] for each in facts)


def test_throughput_runs_every_job_on_both_stores(benchmarked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["throughput", "--quick"]) == 0

    shown = capsys.readouterr().out
    done = throughput.QUICK.jobs * (throughput.QUICK.rounds + 1)
    assert first_cells(shown) == ["SQLite: one worker", "PostgreSQL: one worker"]
    assert shown.count(f"jobs done: by hand {done:,}, ours {done:,}") == 2


@pytest.mark.long
def test_transactions_runs_every_shape_in_both_colours_and_finds_what_was_paid(
    benchmarked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["transactions", "--quick"]) == 0

    shown = capsys.readouterr().out
    done = len(Shape) * transactions.QUICK.jobs * (transactions.QUICK.rounds + 1)
    assert first_cells(shown) == [each.ours for lines in transactions.COMPARISONS.values() for each in lines]
    assert re.findall(r"jobs done: .*", shown) == [
        f"jobs done: async {done}, blocking {done}, by_hand {drivers * done}" for drivers in (1, 2)
    ]


def test_jobs_that_have_ended_and_did_not_pay_are_not_reported() -> None:
    with pytest.raises(Unsuited, match="6 jobs have ended, and 5 have paid"):
        transactions.check_paid(5, 6)


@pytest.mark.long
def test_lanes_runs_every_job_with_lanes_and_without(benchmarked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lanes", "--quick"]) == 0

    shown = capsys.readouterr().out
    assert first_cells(shown) == ["SQLite: 10,000 lanes", "PostgreSQL: 10,000 lanes"]
    assert shown.count(f"jobs done: ours {2 * lanes.QUICK.jobs * (lanes.QUICK.rounds + 1):,}") == 2


@pytest.mark.long
def test_events_drains_follows_and_streams_on_both_stores(benchmarked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["events", "--quick"]) == 0

    shown = capsys.readouterr().out
    expected = [each.ours for store in ("SQLite", "PostgreSQL") for each in events.comparisons(store)]
    drained = events.QUICK.jobs * (events.QUICK.rounds + 1)
    assert first_cells(shown) == expected
    assert shown.count(f"jobs done: {2 * drained + events.QUICK.jobs} alone, {drained} with a subscription") == 2


def test_events_that_are_not_there_are_not_reported() -> None:
    with closing(sqlite3.connect(":memory:")) as file, pytest.raises(Unsuited, match="3 events are missing"):
        events.select(lambda _: closing(file.execute("SELECT 1 WHERE false")), after=7, number=3)


@pytest.mark.long
def test_latency_runs_every_job_in_one_process_and_in_two(benchmarked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["latency", "--quick"]) == 0

    lines = [line.split("|") for line in capsys.readouterr().out.splitlines() if " process" in line]
    kinds = ("SQLite: one process", "SQLite: two processes", "PostgreSQL: one process", "PostgreSQL: two processes")
    assert [(line[1].strip(), line[5].strip()) for line in lines] == [
        (kind, str(latency.QUICK.starts)) for kind in kinds
    ]


@pytest.mark.long
def test_idle_watches_a_worker_of_each_store(postgres_server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["idle", "--quick"]) == 0

    lines = [line for line in capsys.readouterr().out.splitlines() if "< 1 and" in line]
    assert [line.split("|")[1].strip() for line in lines] == ["SQLite", "PostgreSQL"]


TROUBLE = ", a locked and a broken one"


@pytest.mark.long
@pytest.mark.parametrize(("key", "store"), [("sqlite", "SQLite"), ("postgres", "PostgreSQL")])
def test_tenants_measures_idle_and_busy_ones_and_starts_beside_trouble(
    key: str, store: str, benchmarked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tenants", "--quick", "--only", key]) == 0

    shown = capsys.readouterr().out
    kinds = ("1 tenant", "8 tenants", "1 busy tenant", "2 busy tenants", "1 tenant", "2 tenants")
    floods = [f"a flood of {each} ms jobs" for each in (10, 0)]
    beside = [
        line for each in floods for line in (f"1 tenant, {each}", f"2 tenants, {each}, a locked and a broken one")
    ]
    assert first_cells(shown) == [f"{store}: {each}" for each in (*kinds, *beside)]
    assert "8 tenants made" in shown


@pytest.mark.long
@pytest.mark.timeout(300)
def test_schedules_measures_those_that_are_due_and_those_that_are_idle(
    benchmarked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schedules", "--quick"]) == 0  # waits for the next full minute, once for each store

    number = f"{schedules.QUICK.schedules:,}"
    lines = [[cell.strip() for cell in line.split("|")] for line in capsys.readouterr().out.splitlines()]
    assert [line[1:3] for line in lines if len(line) == 11 and line[2] == number] == [
        ["SQLite", number],
        ["PostgreSQL", number],
    ]
    stores = ("SQLite", "PostgreSQL")
    wanted = [f"{store}: {what}" for store in stores for what in ("none", f"{number} schedules")]
    assert [line[1] for line in lines if len(line) > 1 and ": " in line[1]] == wanted


def test_the_schedules_that_are_copied_by_hand_are_due_like_the_one_that_was_put(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    with asyncio.Runner() as runner, drain.opened(path, runner, TASKS) as hf:
        schedules.put_many(hf, runner, "SQLite", path, schedules.FAR, 20)
        found = runner.run(hf.schedules.list(limit=100))

    assert len(found) == 20
    assert len({(each.task, each.next_at, each.rule, each.missed) for each in found}) == 1


@pytest.mark.long
def test_backlog_claims_and_drains_beside_every_kind_of_row_and_an_open_transaction(
    benchmarked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["backlog", "--quick", "--only", "sqlite"]) == 0

    names = [each.name for each in backlog.cases(backlog.QUICK)]
    assert names == [*backlog.KINDS, "old snapshot", "stale statistics"]
    assert first_cells(capsys.readouterr().out) == [
        *(f"SQLite: {name}" for name in names),
        "SQLite: a transaction open",
    ]


@pytest.mark.long
def test_backlog_counts_the_pages_of_a_claim_on_postgres(benchmarked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backlog", "--quick", "--only", "postgres", "--cases", "finished", "stale statistics"]) == 0

    shown = capsys.readouterr().out
    assert first_cells(shown) == [
        "PostgreSQL: finished",
        "PostgreSQL: stale statistics",
        "PostgreSQL: a transaction open",
    ]
    pages = [line.split("|")[12:14] for line in shown.splitlines() if re.match(r"\| PostgreSQL: (fin|stale)", line)]
    assert all(int(cell.replace(",", "")) > backlog.BATCH for cells in pages for cell in cells)


BACKLOGS = {
    "pending": {"pending": 200},
    "future": {"pending": 200},
    "finished": {"completed": 200},
    "blocked": {"blocked": 200},
    "halted": {"failed": 2, "pending": 198},
    "unknown": {"pending": 200},
}


@pytest.mark.parametrize("is_stale", [False, True], ids=["fresh", "stale"])
@pytest.mark.parametrize("kind", backlog.KINDS)
def test_a_backlog_has_the_rows_that_it_names(kind: str, is_stale: bool, tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    with asyncio.Runner() as runner, drain.opened(path, runner) as hf:
        backlog.write_backlog("SQLite", path, backlog.Side(kind, 200, is_stale))
        jobs = runner.run(hf.list_jobs(limit=200))

    assert Counter(str(job.status) for job in jobs) == BACKLOGS[kind]


def test_a_crowd_has_the_same_share_of_every_kind_of_job(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    with closing(Holdfast(path, tasks=[figures.TASKS]).sync.open()) as face:
        figures.write_crowd("SQLite", path, 300)
        jobs = face.list_jobs(limit=500, internal=True)
        waiting = Counter(each.kind for each in face.inbox())
        counted = {kind: face.get_job(figures.job_of(kind, 300)).state for kind in (*figures.KINDS, "completed")}

    assert Counter(str(job.status) for job in jobs) == {
        "completed": 270,
        "pending": 12,
        "failed": 9,
        "paused": 3,
        "blocked": 3,
        "running": 3,
    }
    assert waiting == {"asked": 3, "failed": 2, "paused": 3, "halted": 3, "dead_letter": 1}
    assert list(map(str, counted.values())) == [
        *("failed", "paused", "pending", "scheduled", "blocked", "failed", "waiting", "pending", "running", "failed"),
        "completed",
    ]


@pytest.mark.long
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_figures_asks_every_question_at_both_sizes(
    store: str, benchmarked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["figures", "--quick", "--only", store]) == 0

    lines = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][2:]
    asked = [line[1].strip() for line in lines]
    assert {each.partition(":")[0] for each in asked} >= {"list_jobs", "inbox", "explain", "list_lanes", "stats"}
    assert all(1 <= int(cell) <= 10 for line in lines for cell in line[2:4])


@pytest.mark.long
@pytest.mark.parametrize(("key", "store"), [("sqlite", "SQLite"), ("postgres", "PostgreSQL")])
def test_http_measures_requests_streams_and_lists(
    key: str, store: str, benchmarked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["http", "--quick", "--only", key, "--jobs", "200"]) == 0

    shown = capsys.readouterr().out
    requests = [f"{store}: {each.name}" for each in http.KINDS.values()]
    streams = [f"{store}: {each}" for each in ("none", "5 open", "5 open, 1 single events", "5 open, 20 events/s")]
    lists = [f"{store}: {each}" for each in http.questions(200)]
    compared = [each for each in requests for _ in range(3)]
    assert first_cells(shown) == [*compared, *requests, *streams, *lists]


@pytest.mark.long
def test_http_asks_for_what_is_there_by_every_list(benchmarked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["http", "--quick", "--only", "sqlite", "--part", "lists", "--jobs", "200"]) == 0

    lines = [line.split("|")[1:5] for line in capsys.readouterr().out.splitlines() if "SQLite:" in line]
    items = {name.strip().removeprefix("SQLite: "): int(found) for name, _, found, _ in lines}
    assert items == {
        "newest": 50,
        "status=failed": 4,
        "tag=vip, 1 of 100": 2,
        "tag=rare, 1 of all": 1,
        "tag=nobody": 0,
        "q=status:failed,paused": 6,
        "q=input.order, in the middle": 1,
        "q=input.order, that none has": 0,
    }


@pytest.mark.long
def test_a_backlog_has_the_same_rows_on_postgres(durable_server: str) -> None:
    found = {}
    with database(durable_server, "backlogs") as url, asyncio.Runner() as runner, drain.opened(url, runner):
        for kind in backlog.KINDS:
            backlog.write_backlog("PostgreSQL", url, backlog.Side(kind, 200))
            with psycopg.connect(url) as connection:
                found[kind] = dict(
                    connection.execute("SELECT status, count(*) FROM holdfast_job GROUP BY 1").fetchall()
                )
                connection.execute("TRUNCATE holdfast_job, holdfast_lane CASCADE")

    assert found == BACKLOGS


@pytest.mark.long
def test_a_transaction_that_is_kept_open_holds_what_it_saw(durable_server: str) -> None:
    with database(durable_server, "pinned") as url, asyncio.Runner() as runner, drain.opened(url, runner):
        with backlog.open_transaction("PostgreSQL", url), psycopg.connect(url) as connection:
            held = connection.execute(
                "SELECT state, backend_xmin IS NOT NULL FROM pg_stat_activity"
                " WHERE datname = 'pinned' AND state LIKE 'idle in transaction%'"
            ).fetchall()

    assert held == [("idle in transaction", True)]


def test_jobs_that_were_not_run_are_not_reported() -> None:
    with pytest.raises(Unsuited, match="not done"):
        drain.check({"ours": 5}, [("ours", Entrant("SQLite: one worker", 3, lambda _: None))], rounds=1)


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

    own = {"id", "seq", "chain_id", "task", "created_at", "run_at", "input", "state_tag"}
    facts = [{name: getattr(job, name) for name in job.__slots__ if name not in own} for job in (ours, *others)]
    assert len(others) == 3
    assert all(each == facts[0] for each in facts)
    assert ours.input.text == others[0].input["text"] == start.TEXT


def test_work_that_was_not_done_is_not_reported() -> None:
    idle = [Entrant("SQLite: blocking", 3, lambda _: None)]

    with pytest.raises(Unsuited, match="not done"):
        start.check_rows(idle, 1, {"ours": 5})


def test_everybody_takes_a_turn_in_each_round_and_the_first_round_does_not_count() -> None:
    turns: list[str] = []
    meter = Meter()

    def entrant(name: str, seconds: float) -> Entrant:
        return Entrant(name, 10, lambda _: turns.append(name) or meter.stop(seconds=seconds))

    costs = take_turns([entrant("one", 1.0), entrant("two", 2.0)], 2, meter)

    assert turns == ["one", "two"] * 3
    assert {name: [each.seconds for each in rounds] for name, rounds in costs.items()} == {
        "one": [0.1, 0.1],
        "two": [0.2, 0.2],
    }


def test_who_drops_out_is_told_of_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    def fall(_: int) -> float:
        raise Dropout("it is gone")

    costs = take_turns([Entrant("one", 10, fall), Entrant("two", 10, lambda _: None)], 2, Meter())

    assert {name: len(rounds) for name, rounds in costs.items()} == {"two": 2}
    assert capsys.readouterr().out == "one dropped out: it is gone\n"


def test_a_peer_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = "import sys; print('peer 1.0', flush=True); sys.stdin.readline(); sys.stdin.readline()"
    with subprocess.Popen(
        [sys.executable, "-c", hangs], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as popen:
        peer = process.PeerProcess(popen)
        monkeypatch.setattr(process, "PATIENCE", 0.1)

        with pytest.raises(process.PeerUnavailable, match="it ended with code -9"):
            peer.work("drain", 1)


def test_latency_goes_on_without_who_drops_out(capsys: pytest.CaptureFixture[str]) -> None:
    def fall() -> list[float]:
        raise Dropout("it is gone")

    found = latency.take_rounds(
        [latency.Kind("one", Meter(), fall), latency.Kind("two", Meter(), lambda: [1.0])], rounds=2
    )

    assert {name: [each.milliseconds for each in rounds] for name, rounds in found.items()} == {"two": [[1.0], [1.0]]}
    assert capsys.readouterr().out == "one dropped out: it is gone\n"


def test_a_peer_that_needs_a_newer_python_than_there_is_says_so() -> None:
    with pytest.raises(process.PeerUnavailable, match=r"it needs Python 3\.99 or newer"):
        process.find_python((3, 99))


def test_all_runs_every_command_with_the_options_that_it_knows(capsys: pytest.CaptureFixture[str]) -> None:
    class Measure:
        """Measures nothing."""

        def __init__(self, *options: str, is_suited: bool) -> None:
            self.options, self.is_suited = options, is_suited

        def add_arguments(self, parser: ArgumentParser) -> None:
            for option in self.options:
                parser.add_argument(option, action="store_true")

        def run(self, arguments: Namespace) -> int:
            print(vars(arguments))
            if not self.is_suited:
                raise Unsuited("not here")
            return 0

    everything = Everything(
        {"one": Measure("--quick", "--only", is_suited=False), "two": Measure("--peers", is_suited=True)}
    )

    assert everything.run(Namespace(peers=True, quick=True)) == 1

    printed = capsys.readouterr()
    assert printed.err == "bench: not here\n"
    assert [line for line in printed.out.splitlines() if line and not line.startswith("took")] == [
        "## python3 dev.py bench one --quick",
        "{'quick': True, 'only': False}",
        "## python3 dev.py bench two --peers",
        "{'peers': True}",
    ]


def test_a_comparison_is_the_median_of_the_ratios_round_by_round() -> None:
    ours, other = [10.0, 100.0, 20.0], [10.0, 50.0, 40.0]

    assert spread(ratios(ours, other)).middle == 1.0


def test_the_table_marks_what_is_reached_and_what_is_not_and_leaves_out_what_was_not_measured() -> None:
    comparisons = [Comparison("a", "b", 0.5), Comparison("b", "a", 3), Comparison("a", "missing", 1)]

    lines = table(comparisons, {"a": [Cost(0.2, 3e-6, 4e-6)], "b": [Cost(0.1, 20e-6)]}).splitlines()

    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    assert cells == [
        ["a", "5", "3.0 + 4.0", "b", "10", "20 + -", "0.50", "0.50 to 0.50", "2.86", "✓", "≥ 0.5", "✓"],
        ["b", "10", "20 + -", "a", "5", "3.0 + 4.0", "2.00", "2.00 to 2.00", "0.35", "✗", "≥ 3", "✗"],
    ]


def test_the_meter_counts_what_comes_between_its_reset_and_its_stop() -> None:
    meter = Meter()

    def work() -> None:
        spin(0.2)
        meter.reset()
        spin(0.05)
        meter.stop()
        spin(0.2)

    cost = meter.measure(work)

    assert 0.05 <= cost.client < 0.2
    assert cost.server is None


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the kernel shows no processes")
def test_the_meter_counts_processes_that_still_run() -> None:
    code = "import time; t = time.process_time()\nwhile time.process_time() - t < 0.1: pass\nprint(flush=True); input()"

    def work() -> None:
        spins.stdout.readline()

    meter = Meter()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as spins:
        cost = meter.measure(work)
        spins.communicate("\n")

    assert cost.client >= 0.05


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the kernel shows no processes")
def test_the_meter_counts_the_server_apart_from_the_client(durable_server: str) -> None:
    meter = Meter(postmaster(durable_server))

    with psycopg.connect(durable_server) as connection:
        cost = meter.measure(lambda: connection.execute("SELECT count(*) FROM generate_series(1, 3000000)"))

    assert cost.server is not None
    assert cost.server > 0.05 > cost.client


def spin(seconds: float) -> None:
    """Use so much CPU."""
    began = time.process_time()
    while time.process_time() - began < seconds:
        pass
