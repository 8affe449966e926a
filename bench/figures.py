"""What it costs to look, at 1,000 and 1,000,000 jobs: lists by every filter, the inbox, explanations, figures.

A database is filled once for each size, by hand and in one go, with the same share of every kind of job: 1 of 100 each
is failed, paused, ready, scheduled, blocked, running, a question, a webhook that was given up, the head of a halted
lane, and behind such a head; the other 90 have completed. Each question is asked on the blocking face, in pages of 50.

    statements  how many of ours it takes
    work        on PostgreSQL the pages that they touch (EXPLAIN ANALYZE), on SQLite the steps of its machine
    ms          the median by the clock; another program on the machine moves it, and neither of the others

What may be read is bounded, so work must not grow with the table.
"""

from __future__ import annotations

import argparse
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from statistics import median
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

import psycopg

from bench.backlog import HOUR_MS, IDS, LANES, NOW, NUMBERED, connected
from bench.explaining import ExplainingTx
from bench.machine import Unsuited
from bench.places import Places, both
from bench.report import grid
from holdfast import Holdfast, Question, Tasks
from holdfast.database.sqlite.tx import SqliteTx
from holdfast.database.tx import Operation, drive
from holdfast.models import DELIVER, INTERNAL_QUEUE
from holdfast.store import workers
from holdfast.store.insight import gauges
from holdfast.store.workers import Member

P = ParamSpec("P")
R = TypeVar("R")

FEW, MANY = 1_000, 1_000_000
CYCLE = 100
KINDS = ("failed", "paused", "ready", "scheduled", "blocked", "halted", "behind", "asked", "running", "dead letter")
"""The kind of job *n* is the one at n % 100; all others have completed."""
STEPS = 100
ROUNDS = 15

TASKS = Tasks()


@TASKS.task(name="charge")
async def charge(order: int) -> None:
    """Do what most jobs of the crowd do."""


@TASKS.task(name="approve", asks=Question("Approve the refund?"))
async def approve(order: int) -> bool:
    """Ask for what only a person knows."""
    raise NotImplementedError


def by_kind(otherwise: str = "NULL", **kinds: str) -> str:
    """Write what a column holds: for the *kinds* as it is given, and *otherwise* for all others."""
    cases = " ".join(f"WHEN {KINDS.index(kind.replace('_', ' '))} THEN {sql}" for kind, sql in kinds.items())
    return f"CASE n % {CYCLE} {cases} ELSE {otherwise} END"


ERROR = """'{"type": "' || CASE n % 3 WHEN 0 THEN 'TimeoutError' ELSE 'ValueError' END
    || '", "message": "no answer", "attempt": 1, "worker": "w"}'"""
CLOSED = by_kind("'completed'", **dict.fromkeys(("failed", "halted", "dead_letter"), "'failed'"), **dict.fromkeys(
    ("paused", "ready", "scheduled", "blocked", "behind", "asked", "running"), "NULL"
))  # fmt: skip
CELLS = {
    "task": by_kind("'charge'", asked="'approve'", dead_letter=f"'{DELIVER}'"),
    "queue": by_kind("'default'", asked="'people'", dead_letter=f"'{INTERNAL_QUEUE}'"),
    "lane": by_kind(halted="'lane-' || n", behind="'lane-' || (n - 1)"),
    "tags": f"CASE n % {CYCLE} WHEN 50 THEN '[\"vip\"]' END",
    "status": by_kind(
        "'completed'", failed="'failed'", paused="'paused'", ready="'pending'", scheduled="'pending'",
        blocked="'blocked'", halted="'failed'", behind="'pending'", asked="'pending'", running="'running'",
        dead_letter="'failed'",
    ),
    "gate": by_kind(ready="'ready'", scheduled="'arrival'", behind="'lane'", asked="'ready'"),
    "wake_at": by_kind(scheduled="{now} + {hour}"),
    "place": by_kind(halted="1", behind="2"),
    "head": by_kind("0", halted="1"),
    "closed_as": CLOSED,
    "closed_at": f"CASE WHEN {CLOSED} IS NULL THEN NULL ELSE {{now}} END",
    "finished_at": f"CASE WHEN {CLOSED} IS NULL THEN NULL ELSE {{now}} END",
    "run_at": by_kind("{now} - {hour}", scheduled="{now} + {hour}"),
    "sort_key": "{now} - {hour} + n",
    "attempt": by_kind("1", ready="0", scheduled="0", blocked="0", behind="0", asked="0"),
    "nonce": by_kind(running="'nonce'"),
    "worker": by_kind(running="'bench'"),
    "lease_until": by_kind(running="{now} + {hour}"),
    "lease_ms": by_kind(running="30000"),
    "open_blockers": by_kind("0", blocked="1"),
    "input": "'{\"order\":' || n || '}'",
    "error": by_kind(failed=ERROR, halted=ERROR, dead_letter=ERROR),
    "created_at": "{now} - {hour}",
}  # fmt: skip
JOBS = f"INSERT INTO holdfast_job (id, chain_id, {', '.join(CELLS)}) SELECT {{id}}, {{id}}, {', '.join(CELLS.values())}"
MORE = (
    LANES,
    """INSERT INTO holdfast_blocker (job, position, chain_id, state)
    SELECT waits.seq, 0, other.id, 'armed' FROM holdfast_job AS waits
    JOIN holdfast_job AS other ON other.seq = waits.seq - 2 WHERE waits.status = 'blocked'""",
    f"""INSERT INTO holdfast_delivery (job, target, event, receiver)
    SELECT seq, seq - 9, 'job:failed', 'example.com:443/hook' FROM holdfast_job WHERE task = '{DELIVER}'""",
    """INSERT INTO holdfast_event (job, name, at, status, version, attempt)
    SELECT seq, 'job:enqueued', created_at, 'pending', 1, 0 FROM holdfast_job""",
    """INSERT INTO holdfast_event (job, name, at, status, version, attempt)
    SELECT seq, 'job:paused', created_at, 'paused', 2, 1 FROM holdfast_job WHERE status = 'paused'""",
    "ANALYZE",  # as autovacuum would; SQLite forgets it when it is opened, for we never analyse there
)


# two hours of 10 s, two days of minutes and 400 days of hours, as workers have folded them
TALLIES = {10: 720, 60: 2_880, 3_600: 9_600}
TALLY = """INSERT INTO holdfast_tally (width, at, queue, task, source, started, completed, wait, run)
    SELECT {width}, ({now} / {ms} - n) * {ms}, 'default', 'charge', '', 20, 20, '{{"4":20}}', '{{"9":20}}'"""


def write_crowd(store: str, url: str, rows: int) -> None:
    """Write *rows* jobs of all kinds, with what belongs to them."""
    shared = {"now": NOW[store], "hour": HOUR_MS, "id": IDS[store]}
    insert = JOBS
    for name, text in shared.items():
        insert = insert.replace(f"{{{name}}}", str(text))
    numbered = NUMBERED[store].replace("{insert}", insert).replace("{first}", "0").replace("{end}", str(rows))
    with connected(store, url) as execute:
        for each in (numbered, *MORE[: -1 if store == "SQLite" else None]):
            execute(each)
        for width, count in TALLIES.items():
            insert = TALLY.format(width=width, ms=width * 1000, now=f"({NOW[store]})")
            execute(NUMBERED[store].format(insert=insert, first=0, end=count))


def job_of(kind: str, rows: int) -> str:
    """Give the id of a job of *kind* in the middle of the crowd."""
    number = KINDS.index(kind) if kind in KINDS else CYCLE - 1
    return f"00000000-0000-4000-8000-{rows // 2 // CYCLE * CYCLE + number:012x}"


Asking: TypeAlias = Callable[[], object]


def questions(hf: Holdfast, rows: int) -> dict[str, Asking]:
    """Name what is asked of a crowd of *rows* jobs."""
    face = hf.sync
    head = job_of("halted", rows)
    lane = f"lane-{int(head[-12:], 16)}"
    until = datetime.now(UTC)
    recent = until - timedelta(days=1)
    lists: dict[str, dict[str, Any]] = {
        "all": {},
        "status=failed": {"status": "failed"},
        "status=paused": {"status": "paused"},
        "status=running": {"status": "running"},
        "status=pending": {"status": "pending"},
        "task": {"task": "approve"},
        "queue": {"queue": "people"},
        "id": {"id": head},
        "chain": {"chain": head},
        "chain_task": {"chain_task": "charge"},
        "lane": {"lane": lane},
        "tag": {"tag": "vip"},
        "tag that none has": {"tag": "nobody"},
        "worker": {"worker": "bench"},
        "error": {"error": "TimeoutError"},
        "input": {"input": {"order": rows // 2}},
        "input that none has": {"input": {"order": -1}},
        "parent": {"parent": head},
        "created_from": {"created_from": recent},
    }
    asked: dict[str, Asking] = {
        f"list_jobs: {name}": lambda wanted=wanted: face.list_jobs(limit=50, **wanted)  # type: ignore[misc]
        for name, wanted in lists.items()
    }
    page = face.inbox(limit=5)
    asked |= {
        "inbox": lambda: face.inbox(limit=50),
        "inbox: asked": lambda: face.inbox(kind="asked", limit=50),
        "inbox: failed": lambda: face.inbox(kind="failed", limit=50),
        "inbox: halted": lambda: face.inbox(kind="halted", limit=50),
        "inbox: next page": lambda: face.inbox(limit=50, cursor=page.next_cursor),
    }
    asked |= {f"explain: {kind}": partial(face.explain, job_of(kind, rows)) for kind in (*KINDS, "completed")}
    asked |= {
        "explain_queue": lambda: face.explain_queue("default"),
        "list_tasks": face.list_tasks,
        "list_queues": face.list_queues,
        "list_workers": face.list_workers,
        "list_lanes": lambda: face.list_lanes(limit=50),
        "list_lanes: halted": lambda: face.list_lanes(state="halted", limit=50),
        "list_lanes: prefix": lambda: face.list_lanes(prefix=lane, limit=50),
        "lane.jobs": lambda: face.lane(lane).jobs(limit=50),
        "overview, shared sample": face.overview,
        "overview, new sample": lambda: drive(face._blocking.read(gauges.sample)),
        "stats: an hour": face.stats,
        "stats: a task, a day": lambda: face.stats(task="charge", since=recent),
        "stats: 1,999 minutes": lambda: face.stats(since=until - timedelta(minutes=1_999), until=until, width=60),
    }
    return asked


class Cost(NamedTuple):
    """What one question costs."""

    statements: int
    work: int
    milliseconds: float


class CountingPostgresTx(ExplainingTx):
    """Counts statements and pages."""

    statements = 0

    async def execute(self, sql: str, /, **values: object) -> None:
        """Explain *sql*, count it, and run it."""
        self.statements += 1
        await super().execute(sql, **values)

    @property
    def work(self) -> int:
        """The pages."""
        return self.pages


class CountingSqliteTx(SqliteTx):
    """Counts statements, and the steps that SQLite's machine takes, by the hundred."""

    def __init__(self, connection: sqlite3.Connection, dialect: Any) -> None:
        super().__init__(connection, dialect)
        self.statements = self.work = 0
        connection.set_progress_handler(self._step, STEPS)

    def _step(self) -> int:
        self.work += STEPS
        return 0

    async def execute(self, sql: str, /, **values: object) -> None:
        """Count *sql*, and run it."""
        self.statements += 1
        await super().execute(sql, **values)

    async def fetch_all(self, sql: str, /, **values: object) -> list[Any]:
        """Count *sql*, and run it."""
        self.statements += 1
        return await super().fetch_all(sql, **values)


class CountingRunner:
    """Runs the reads of a face over a connection of its own, and counts."""

    def __init__(self, tx: CountingPostgresTx | CountingSqliteTx) -> None:
        self.tx = tx

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation*."""
        return await operation(self.tx, *args, **kwargs)

    run = read  # to look for a lock is to write, and nothing is written


@contextmanager
def counting(hf: Holdfast, store: str, url: str) -> Iterator[CountingRunner]:
    """Have the blocking face of *hf* read over a connection that counts."""
    with ExitStack() as stack:
        if store == "SQLite":
            file = sqlite3.connect(url, isolation_level=None)
            stack.callback(file.close)
            runner = CountingRunner(CountingSqliteTx(file, hf.store.dialect))
        else:
            options = "-c plan_cache_mode=force_custom_plan"
            connection = stack.enter_context(psycopg.connect(url, options=options))
            runner = CountingRunner(CountingPostgresTx(connection, hf.store.dialect))
        usual = hf.sync._blocking
        hf.sync._blocking = runner  # type: ignore[assignment]  # no more of it is used here
        try:
            yield runner
        finally:
            hf.sync._blocking = usual


def cost_of(hf: Holdfast, store: str, url: str, question: Asking, rounds: int) -> Cost:
    """Ask *question* once to count, and *rounds* times for the clock."""
    question()  # what is made once, and shared, is there
    with counting(hf, store, url) as runner:
        question()
        statements, work = runner.tx.statements, runner.tx.work
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        question()
        seconds.append(time.perf_counter() - began)
    return Cost(statements, work, median(seconds) * 1000)


def measure(places: Places, store: str, rows: int, rounds: int) -> dict[str, Cost]:
    """Fill a database with *rows* jobs, and ask everything."""
    with places.address(store, f"crowd_{rows}") as url:
        hf = Holdfast(url, tasks=[TASKS], deadline_seconds=60)
        try:
            if store == "PostgreSQL":
                hf.sync.migrate()
            hf.sync.open()
            write_crowd(store, url, rows)
            hf.store.run_sync(workers.beat, Member.here("bench", "bench", queues=["default"], tasks=["charge"]))
            found = len(hf.sync.list_jobs(limit=500, internal=True))
            if found != min(rows, 500):
                raise Unsuited(f"the crowd is not there: {found} jobs were listed")
            return {name: cost_of(hf, store, url, each, rounds) for name, each in questions(hf, rows).items()}
        finally:
            hf.sync.close()


def table(store: str, sizes: Sequence[int], found: Sequence[dict[str, Cost]]) -> str:
    """Write what was found at each of *sizes*, side by side."""
    work = "pages" if store == "PostgreSQL" else "steps"
    names = [f"{name}, {size:,}" for name in ("statements", work, "ms") for size in sizes]
    lines = []
    for question in found[0]:
        costs = [each[question] for each in found]
        cells = [f"{each.statements}" for each in costs]
        cells += [f"{each.work:,}" for each in costs] + [f"{each.milliseconds:.1f}" for each in costs]
        lines.append((question, *cells))
    return grid((store, *names), lines, names)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--quick", action="store_true", help="tiny counts: shows that it works, and nothing else")
    parser.add_argument("--only", choices=("sqlite", "postgres"), help="one of the stores")
    parser.add_argument("--rows", type=int, nargs="+", default=[FEW, MANY], help="jobs in the table (default: both)")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; the exit code says whether it could be measured."""
    sizes, rounds = ([200, 400], 1) if arguments.quick else (arguments.rows, ROUNDS)
    stores = {"sqlite": ["SQLite"], "postgres": ["PostgreSQL"], None: ["SQLite", "PostgreSQL"]}[arguments.only]
    with both(is_quick=arguments.quick) as places:
        for store in stores:
            found = [measure(places, store, rows, rounds) for rows in sizes]
            print(table(store, sizes, found), end="\n\n", flush=True)
    return 0
