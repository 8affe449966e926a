"""What a backlog costs: a claim of 50 and a drain with 100,000 rows of a kind in the way, beside 1,000 of them.

    pending   may be claimed at once: there is that much to do
    future    are due in an hour
    finished  are done
    blocked   wait for other chains
    halted    wait in lanes, a hundred in each, whose first job has failed
    unknown   are ready, older and of a task that this worker does not know, in the same queue

Two more conditions have as many pending rows on both sides:

    old snapshot      somebody else's transaction has been open since before the run: nothing can be cleaned up
    stale statistics  were taken when there were ten rows, and are beside fresh ones

The rows are written by hand and, on PostgreSQL, analysed. A claim is the transaction that a worker makes when it has
nothing to settle: admit, claim, log, commit; its CPU is given for each of the jobs. Its pages are those that its
statements touch on PostgreSQL, by EXPLAIN (ANALYZE, BUFFERS) after the last round; they have no target, for they move
by a quarter from one round to the next. In the end, whole drains beside a transaction that stays open for all of them
are compared with drains beside none.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from statistics import median
from typing import Any, NamedTuple

import psycopg

from bench.drain import TASK, TEXT, drain, entrant, fill, opened, work
from bench.explaining import ExplainingTx
from bench.limits import postgres, sqlite
from bench.machine import Unsuited
from bench.meter import Cost, Meter
from bench.places import Places, both
from bench.report import CPU, Comparison, cpu, grid, table
from bench.rounds import ratios, spread, take_turns
from holdfast import Holdfast
from holdfast.database.tx import drive
from holdfast.store import admission
from holdfast.store.jobs import claiming
from holdfast.store.jobs.claiming import Want

HOUR_MS = 3_600_000
BATCH = 50
IN_A_LANE = 100
FEW = 1_000
FLAT = 1.2
"""How many times as long a claim may take."""
AT_MOST = 100_000
"""So many rows are halted, unknown, or beside an old snapshot or stale statistics, even if there are more of others."""
HEADER = (
    *("in the way", "rows", "ms", CPU, "beside", "ms", CPU, "ratio", "middle half", "target", ""),
    *("pages", "beside", "drain", "at least", ""),
)
NUMBERS = ("rows", "ms", CPU, "beside", "ratio", "target", "pages", "drain", "at least")

# what differs from a job that may be claimed: task, lane, status, gate, wake_at, place, head, closed_as; `n` counts
KINDS = {
    "pending": ("'{task}'", "NULL", "'pending'", "'ready'", "NULL", "NULL", "0", "NULL"),
    "future": ("'{task}'", "NULL", "'pending'", "'arrival'", "{now} + {hour}", "NULL", "0", "NULL"),
    "finished": ("'{task}'", "NULL", "'completed'", "NULL", "NULL", "NULL", "0", "'completed'"),
    "blocked": ("'{task}'", "NULL", "'blocked'", "NULL", "NULL", "NULL", "0", "NULL"),
    "halted": (
        "'{task}'",
        "'lane-' || (n / {lane})",
        "CASE n % {lane} WHEN 0 THEN 'failed' ELSE 'pending' END",
        "CASE n % {lane} WHEN 0 THEN NULL ELSE 'lane' END",
        "NULL",
        "n % {lane}",
        "CASE n % {lane} WHEN 0 THEN 1 ELSE 0 END",
        "CASE n % {lane} WHEN 0 THEN 'failed' END",
    ),
    "unknown": ("'elsewhere'", "NULL", "'pending'", "'ready'", "NULL", "NULL", "0", "NULL"),
}
NUMBERED = {
    "SQLite": """
        WITH RECURSIVE c(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM c WHERE n + 1 < {end})
        {insert} FROM c""",
    "PostgreSQL": "{insert} FROM generate_series({first}, {end} - 1) AS c(n)",
}
STALE = 10
AUTOVACUUM_OFF = {"SQLite": [], "PostgreSQL": ["ALTER TABLE holdfast_job SET (autovacuum_enabled = false)"]}
WANTS = [Want("default", TASK, HOUR_MS)]
IDS = {
    "SQLite": "'00000000-0000-4000-8000-' || printf('%012x', n)",
    "PostgreSQL": "'00000000-0000-4000-8000-' || lpad(to_hex(n), 12, '0')",
}
NOW = {"SQLite": sqlite.NOW, "PostgreSQL": postgres.NOW}
INSERT = """
    INSERT INTO holdfast_job (id, chain_id, task, queue, lane, status, gate, wake_at, place, head, closed_as, closed_at,
        finished_at, run_at, sort_key, input, created_at)
    SELECT {id}, {id}, {task}, 'default', {lane}, {status}, {gate}, {wake}, {place}, {head}, {closed},
        CASE WHEN {closed} IS NULL THEN NULL ELSE {now} END, CASE WHEN {closed} IS NULL THEN NULL ELSE {now} END,
        {now} - {hour}, {now} - {hour}, '{text}', {now}"""
LANES = """
    INSERT INTO holdfast_lane (key, places)
    SELECT lane, max(place) FROM holdfast_job WHERE lane IS NOT NULL GROUP BY lane"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many rows there are at most, and what a round has; *warm_up* rounds do not count."""

    rounds: int = 3
    warm_up: int = 1
    claims: int = 10
    jobs: int = 1_000
    drained: int = 5_000
    few: int = FEW
    most: int = AT_MOST


QUICK = Sizes(rounds=1, warm_up=0, claims=1, jobs=10, drained=50, few=50, most=100)


@dataclass(frozen=True, slots=True)
class Side:
    """So many rows of a kind; *is_stale* if the statistics are older, *is_pinned* if somebody's transaction is."""

    kind: str
    rows: int
    is_stale: bool = False
    is_pinned: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """What is in the way, and what it is compared with; *least* is what the drain should keep of its speed."""

    name: str
    with_it: Side
    beside: Side
    least: float | None = None


def cases(sizes: Sizes) -> list[Case]:
    """List what is compared."""
    capped = min(sizes.most, AT_MOST)
    many = {kind: capped if kind in ("halted", "unknown") else sizes.most for kind in KINDS}
    return [
        *(
            Case(kind, Side(kind, rows), Side(kind, sizes.few), least=0.9 if kind == "halted" else None)
            for kind, rows in many.items()
        ),
        Case("old snapshot", Side("pending", capped, is_pinned=True), Side("pending", capped)),
        Case("stale statistics", Side("pending", capped, is_stale=True), Side("pending", capped)),
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--quick", action="store_true", help="tiny counts: shows that it works, and nothing else")
    parser.add_argument("--only", choices=("sqlite", "postgres"), help="one of the stores")
    parser.add_argument("--most", type=int, default=AT_MOST, help="rows in the way (default: %(default)s)")
    parser.add_argument("--cases", nargs="+", metavar="CASE", help="some of the cases: pending, 'old snapshot', …")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; the exit code says whether it could be measured, not whether targets are met."""
    sizes = QUICK if arguments.quick else Sizes(most=arguments.most)
    stores = {"sqlite": ["SQLite"], "postgres": ["PostgreSQL"], None: ["SQLite", "PostgreSQL"]}[arguments.only]
    with both(is_quick=arguments.quick) as places:
        print(f"a claim of {BATCH}; ratios are those with what is in the way to those beside it\n")
        wanted = [case for case in cases(sizes) if arguments.cases is None or case.name in arguments.cases]
        lines = [measure(places, store, case, sizes) for store in stores for case in wanted]
        print(grid(HEADER, lines, NUMBERS), end="\n\n", flush=True)
        costs = {name: each for store in stores for name, each in drains_beside(places, store, sizes).items()}
        print(table(BESIDE_OPEN_TRANSACTION, costs))
    return 0


def measure(places: Places, store: str, case: Case, sizes: Sizes) -> tuple[str, ...]:
    """Measure both sides of *case*, in turns; write the cells."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        sides = [prepared(stack, runner, places, store, side) for side in (case.with_it, case.beside)]
        meter = places.meter(store)
        found = Found([], []), Found([], [])
        for number in range(sizes.warm_up + sizes.rounds):
            for each, (hf, _) in zip(found, sides, strict=True):
                claimed = meter.measure(partial(runner.run, claim(hf, sizes.claims, meter)))
                drained = meter.measure(partial(runner.run, fill_and_drain(hf, sizes.jobs, meter)))
                if number >= sizes.warm_up:
                    each.claims.append(claimed.of_each(sizes.claims * BATCH))
                    each.drains.append(drained)
        pages = [pages_of_claim(hf, url) if store == "PostgreSQL" else None for hf, url in sides]
    return line(f"{store}: {case.name}", case, found, pages)


def prepared(stack: ExitStack, runner: asyncio.Runner, places: Places, store: str, side: Side) -> tuple[Holdfast, str]:
    """Open a database with the rows of *side* in it."""
    name = "_".join(str(part).lower() for part in (side.kind, side.rows, side.is_stale, side.is_pinned))
    url = stack.enter_context(places.address(store, name))
    hf = stack.enter_context(opened(url, runner))
    write_backlog(store, url, side)
    if side.is_pinned:
        stack.enter_context(open_transaction(store, url))
    return hf, url


class Found(NamedTuple):
    """What one side costs, round by round: a job that is claimed, and a whole drain."""

    claims: list[Cost]
    drains: list[Cost]

    @property
    def milliseconds(self) -> list[float]:
        """How long a claim takes."""
        return [each.seconds * BATCH * 1000 for each in self.claims]


def line(name: str, case: Case, found: tuple[Found, Found], pages: Sequence[int | None]) -> tuple[str, ...]:
    """Write the cells of one case."""
    with_it, without = found
    slower = spread(ratios(without.milliseconds, with_it.milliseconds))
    faster = median(ratios([each.seconds for each in with_it.drains], [each.seconds for each in without.drains]))
    beside = f"{case.beside.rows:,}" if case.beside.rows != case.with_it.rows else "none"
    return (
        name,
        f"{case.with_it.rows:,}",
        f"{median(with_it.milliseconds):.2f}",
        cpu(with_it.claims),
        beside,
        f"{median(without.milliseconds):.2f}",
        cpu(without.claims),
        f"{slower.middle:.2f}",
        f"{slower.low:.2f} to {slower.high:.2f}",
        f"≤ {FLAT:g}",
        "✓" if slower.middle <= FLAT else "✗",
        *("" if each is None else f"{each:,}" for each in pages),
        f"{faster:.2f}",
        "" if case.least is None else f"{case.least:g}",
        "" if case.least is None else "✓" if faster >= case.least else "✗",
    )


def write_backlog(store: str, url: str, side: Side) -> None:
    """Write the rows of *side*, and have PostgreSQL analyse them, unless its statistics are to be stale."""
    shared = {"now": NOW[store], "hour": HOUR_MS, "task": TASK, "lane": IN_A_LANE}
    names = ("task", "lane", "status", "gate", "wake", "place", "head", "closed")
    cells = {name: text.format(**shared) for name, text in zip(names, KINDS[side.kind], strict=True)}
    insert = INSERT.format(id=IDS[store], text='{"text":"x"}', now=NOW[store], hour=HOUR_MS, **cells)

    def rows(first: int, end: int) -> str:
        return NUMBERED[store].format(insert=insert, first=first, end=end)

    statements = [rows(0, side.rows), LANES]
    if side.is_stale:
        statements = [rows(0, STALE), *AUTOVACUUM_OFF[store], "ANALYZE", rows(STALE, side.rows), LANES]
    elif store == "PostgreSQL":  # SQLite is not analysed by us, nor does it analyse by itself
        statements.append("ANALYZE")
    with connected(store, url) as execute:
        for each in statements:
            execute(each)


@contextmanager
def connected(store: str, url: str) -> Iterator[Callable[[str], Iterable[tuple[Any, ...]]]]:
    """Connect to a database by hand; give what runs a statement, which commits by itself."""
    if store == "SQLite":
        with closing(sqlite3.connect(url, isolation_level=None)) as file:
            yield file.execute
        return
    with psycopg.connect(url, autocommit=True) as connection:
        yield lambda text: connection.execute(text.encode())


@contextmanager
def open_transaction(store: str, url: str) -> Iterator[None]:
    """Keep a transaction open that has read, and so sees all as it was; it does nothing more."""
    begin = {"SQLite": "BEGIN", "PostgreSQL": "BEGIN ISOLATION LEVEL REPEATABLE READ"}[store]
    with connected(store, url) as execute:
        execute(begin)
        execute("SELECT seq FROM holdfast_job LIMIT 1")
        yield
        execute("ROLLBACK")


nonces = count()


async def claim(hf: Holdfast, claims: int, meter: Meter) -> None:
    """Start jobs and measure how they are claimed, 50 at a time; of the seconds those of the median count."""
    await fill(hf, claims * BATCH)
    seconds = []
    meter.reset()
    for _ in range(claims):
        started = time.perf_counter()
        claimed = await hf.store.run(claiming.admit_and_claim, WANTS, BATCH, "bench", f"nonce-{next(nonces)}")
        seconds.append(time.perf_counter() - started)
        if len(claimed.jobs) != BATCH:
            raise Unsuited(f"the work was not done: {len(claimed.jobs)} jobs were claimed instead of {BATCH}")
    meter.stop(seconds=median(seconds) * claims)


async def fill_and_drain(hf: Holdfast, jobs: int, meter: Meter) -> None:
    """Start jobs, and measure one worker that runs as many."""
    await fill(hf, jobs)
    meter.reset()
    await drain(hf, jobs)


def pages_of_claim(hf: Holdfast, url: str) -> int:
    """Count the pages of PostgreSQL that a claim touches; it is undone.

    A drain leaves up to a hundred arrivals behind. They are admitted before, or the pages would be mostly theirs.
    """
    while hf.store.run_sync(admission.admit, "default"):
        pass
    hf.sync.start_many([work(text=TEXT) for _ in range(BATCH)])
    with psycopg.connect(url, options="-c plan_cache_mode=force_custom_plan") as connection:
        tx = ExplainingTx(connection, hf.store.dialect)
        drive(claiming.admit_and_claim(tx, WANTS, BATCH, "bench", f"nonce-{next(nonces)}"))
        connection.rollback()
    return tx.pages


BESIDE_OPEN_TRANSACTION = (
    Comparison("SQLite: a transaction open", "SQLite: none open"),
    Comparison("PostgreSQL: a transaction open", "PostgreSQL: none open", 0.8),
)


def drains_beside(places: Places, store: str, sizes: Sizes) -> dict[str, list[Cost]]:
    """Measure drains while a transaction stays open for all of them, and drains beside none."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        meter = places.meter(store)
        entrants = []
        for name, is_pinned in (("a transaction open", True), ("none open", False)):
            hf, _ = prepared(stack, runner, places, store, Side("finished", sizes.few, is_pinned=is_pinned))
            entrants.append(entrant(f"{store}: {name}", sizes.drained, hf, runner, meter))
        return take_turns(entrants, sizes.rounds, meter)
