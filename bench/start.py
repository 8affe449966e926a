"""How fast jobs are started, on both stores with durability on, beside the same INSERTs by hand.

Every start is durable when it returns. By hand means the bare driver with the same two INSERTs, of a job and of its
event, into the same tables; ours also checks and writes the argument, and runs with the defaults that we ship.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg

from bench import machine
from bench.limits.postgres import AsyncPostgresByHand, PostgresByHand
from bench.limits.sqlite import SqliteByHand
from bench.peers.process import HUEY, PGQUEUER, Peer, PeerProcess, PeerUnavailable, running
from bench.places import Places, both
from bench.report import Comparison, table
from bench.rounds import Entrant, awaited, take_turns
from bench.stacks import STACKS
from holdfast import Holdfast, Tasks

TASK = "ours"
BATCH = 1000
TEXT = "x" * 188
"""Makes an argument of 200 bytes: `{"text":"xxx…"}`."""
INPUT = f'{{"text":"{TEXT}"}}'

TASKS = Tasks()


@TASKS.task(name=TASK)
def work(text: str) -> None:
    """Stand for a job; it is only started here."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is done in one round, and how many rounds there are."""

    rounds: int = 9
    singles: int = 100
    callers: int = 64
    shared: int = 640
    together: int = 100
    batches: int = 2


QUICK = Sizes(rounds=1, singles=3, callers=4, shared=8, together=3, batches=1)

SQLITE = (
    Comparison("SQLite: blocking", "SQLite by hand"),
    Comparison("SQLite: blocking", "huey", 0.7),
    Comparison("SQLite: async", "SQLite by hand"),
    Comparison("SQLite: async", "huey", 0.5),
    Comparison("SQLite: 64 tasks", "SQLite by hand, 64 tasks"),
    Comparison("SQLite: 64 tasks", "SQLite: async", 5),
    Comparison("SQLite: 64 threads", "SQLite by hand, 64 threads"),
    Comparison("SQLite: 64 threads", "SQLite: blocking", 5),
    Comparison("SQLite: start_many of 1,000", "SQLite by hand, 1,000 at once", 0.6),
    Comparison("SQLite: caller's transaction", "SQLite by hand", 0.8),
    Comparison("SQLite: 100 in the caller's", "SQLite by hand, 100 in one", 0.33),
)

POSTGRES = (
    Comparison("PostgreSQL: async", "psycopg by hand, async", 0.85),
    Comparison("PostgreSQL: async", "pgqueuer", 1.2),
    Comparison("PostgreSQL: blocking", "psycopg by hand", 0.85),
    Comparison("PostgreSQL: 64 tasks", "psycopg by hand, 64 tasks"),
    Comparison("PostgreSQL: 64 tasks", "PostgreSQL: async", 5),
    Comparison("PostgreSQL: 64 threads", "psycopg by hand, 64 threads"),
    Comparison("PostgreSQL: 64 threads", "PostgreSQL: blocking", 5),
    Comparison("PostgreSQL: start_many of 1,000", "psycopg by hand, 1,000 at once", 0.6),
    Comparison("PostgreSQL: start_many of 1,000", "pgqueuer, 1,000 at once", 0.65),
    Comparison("PostgreSQL: caller's transaction, async", "psycopg by hand, async", 0.8),
    Comparison("PostgreSQL: caller's transaction", "psycopg by hand", 0.8),
    Comparison("PostgreSQL: 100 in the caller's, async", "psycopg by hand, 100 in one, async", 0.8),
    Comparison("PostgreSQL: 100 in the caller's", "psycopg by hand, 100 in one", 0.8),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--peers", action="store_true", help="also huey and pgqueuer, installed on first use")
    parser.add_argument("--quick", action="store_true", help="tiny counts: shows that it works, and nothing else")
    parser.add_argument("--only", choices=("sqlite", "postgres"), help="one of the stores")
    parser.add_argument(
        "--stack", choices=("all", *STACKS), help="instead, in a transaction of this library, or of each of them"
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; the exit code says whether it could be measured, not whether targets are met."""
    sizes = QUICK if arguments.quick else Sizes()
    with both(is_quick=arguments.quick) as places:
        if arguments.stack is not None:
            from bench.stack_starts import measure  # it stands upon this module

            names = list(STACKS) if arguments.stack == "all" else [arguments.stack]
            print(measure(places, sizes, names), flush=True)
            return 0
        if arguments.only != "postgres":
            print(measure_sqlite(places, sizes, arguments.peers), end="\n\n", flush=True)
        if arguments.only != "sqlite":
            print(measure_postgres(places, sizes, arguments.peers), flush=True)
    return 0


def measure_sqlite(places: Places, sizes: Sizes, with_peers: bool) -> str:
    """Measure the SQLite store; answer its table."""
    path = places.directory / "jobs.db"
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        hf = Holdfast(str(path), tasks=[TASKS])
        runner.run(hf.open())
        stack.callback(lambda: runner.run(hf.close()))
        by_hand = SqliteByHand(path, INPUT)
        stack.callback(by_hand.close)
        own = sqlite3.connect(path, isolation_level=None)
        stack.callback(own.close)
        own.execute("PRAGMA synchronous = FULL").close()
        peers = Peers(stack, with_peers)
        entrants = [
            Entrant("SQLite by hand", sizes.singles, by_hand.one_by_one),
            Entrant("SQLite: blocking", sizes.singles, partial(start_one_by_one, hf)),
            Entrant("SQLite: async", sizes.singles, awaited(partial(start_one_by_one_async, hf), runner)),
            Entrant("SQLite: caller's transaction", sizes.singles, partial(start_in_sqlite, hf, own)),
            *peers.entrants(HUEY, {"huey": ("single", sizes.singles)}, str(places.directory / "huey.db")),
            Entrant("SQLite by hand, 100 in one", sizes.together, by_hand.in_one_transaction),
            Entrant("SQLite: 100 in the caller's", sizes.together, partial(start_all_in_sqlite, hf, own)),
            Entrant(
                "SQLite by hand, 64 tasks",
                sizes.shared,
                awaited(partial(by_hand.by_tasks, callers=sizes.callers), runner),
            ),
            Entrant(
                "SQLite: 64 tasks",
                sizes.shared,
                awaited(partial(start_by_tasks, hf, callers=sizes.callers), runner),
            ),
            Entrant("SQLite by hand, 64 threads", sizes.shared, partial(by_hand.by_threads, callers=sizes.callers)),
            Entrant("SQLite: 64 threads", sizes.shared, partial(start_by_threads, hf, callers=sizes.callers)),
            Entrant(
                "SQLite by hand, 1,000 at once",
                sizes.batches * BATCH,
                partial(by_hand.many_at_once, batch=BATCH),
            ),
            Entrant("SQLite: start_many of 1,000", sizes.batches * BATCH, partial(start_many, hf)),
        ]
        costs = take_turns(entrants, sizes.rounds, places.meter("SQLite"))
        counted = dict(own.execute(COUNTS).fetchall())
        return f"{table(SQLITE, costs)}\n{check_rows(entrants, sizes.rounds, counted | peers.rows())}"


def measure_postgres(places: Places, sizes: Sizes, with_peers: bool) -> str:
    """Measure the PostgreSQL store; answer its table."""
    with ExitStack() as stack:
        url = stack.enter_context(places.address("PostgreSQL", "holdfast_bench"))
        runner = stack.enter_context(asyncio.Runner())
        hf = Holdfast(url, tasks=[TASKS])
        runner.run(hf.migrate())
        runner.run(hf.open())
        stack.callback(lambda: runner.run(hf.close()))
        by_hand = PostgresByHand(url, INPUT)
        stack.callback(by_hand.close)
        by_hand_async = runner.run(AsyncPostgresByHand.connect(url, INPUT))
        stack.callback(lambda: runner.run(by_hand_async.close()))
        own = stack.enter_context(psycopg.connect(url, autocommit=True))
        own_async = runner.run(connect_async(url))
        stack.callback(lambda: runner.run(own_async.close()))
        peers = Peers(stack, with_peers)
        peer_url = stack.enter_context(places.address("PostgreSQL", "pgqueuer_bench"))
        works = {"pgqueuer": ("single", sizes.singles), "pgqueuer, 1,000 at once": ("many", sizes.batches * BATCH)}
        entrants = [
            Entrant("psycopg by hand, async", sizes.singles, awaited(by_hand_async.one_by_one, runner)),
            Entrant("PostgreSQL: async", sizes.singles, awaited(partial(start_one_by_one_async, hf), runner)),
            Entrant(
                "PostgreSQL: caller's transaction, async",
                sizes.singles,
                awaited(partial(start_in_psycopg_async, hf, own_async), runner),
            ),
            Entrant("psycopg by hand", sizes.singles, by_hand.one_by_one),
            Entrant("PostgreSQL: blocking", sizes.singles, partial(start_one_by_one, hf)),
            Entrant("PostgreSQL: caller's transaction", sizes.singles, partial(start_in_psycopg, hf, own)),
            *peers.entrants(PGQUEUER, works, peer_url),
            Entrant(
                "psycopg by hand, 100 in one, async",
                sizes.together,
                awaited(by_hand_async.in_one_transaction, runner),
            ),
            Entrant(
                "PostgreSQL: 100 in the caller's, async",
                sizes.together,
                awaited(partial(start_all_in_psycopg_async, hf, own_async), runner),
            ),
            Entrant("psycopg by hand, 100 in one", sizes.together, by_hand.in_one_transaction),
            Entrant("PostgreSQL: 100 in the caller's", sizes.together, partial(start_all_in_psycopg, hf, own)),
            Entrant(
                "psycopg by hand, 64 tasks",
                sizes.shared,
                awaited(partial(by_hand_async.by_tasks, callers=sizes.callers), runner),
            ),
            Entrant(
                "PostgreSQL: 64 tasks",
                sizes.shared,
                awaited(partial(start_by_tasks, hf, callers=sizes.callers), runner),
            ),
            Entrant("psycopg by hand, 64 threads", sizes.shared, partial(by_hand.by_threads, callers=sizes.callers)),
            Entrant("PostgreSQL: 64 threads", sizes.shared, partial(start_by_threads, hf, callers=sizes.callers)),
            Entrant(
                "psycopg by hand, 1,000 at once",
                sizes.batches * BATCH,
                awaited(partial(by_hand_async.many_at_once, batch=BATCH), runner),
            ),
            Entrant(
                "PostgreSQL: start_many of 1,000",
                sizes.batches * BATCH,
                awaited(partial(start_many_async, hf), runner),
            ),
        ]
        costs = take_turns(entrants, sizes.rounds, places.meter("PostgreSQL"))
        counted: dict[str, int] = dict(own.execute(COUNTS).fetchall())
        return f"{table(POSTGRES, costs)}\n{check_rows(entrants, sizes.rounds, counted | peers.rows())}"


def start_one_by_one(hf: Holdfast, count: int) -> None:
    """Start *count* jobs from blocking code."""
    for _ in range(count):
        hf.sync.start(work(text=TEXT))


async def start_one_by_one_async(hf: Holdfast, count: int) -> None:
    """Start *count* jobs from async code."""
    for _ in range(count):
        await hf.start(work(text=TEXT))


async def start_by_tasks(hf: Holdfast, count: int, callers: int) -> None:
    """Start *count* jobs from *callers* tasks."""
    await asyncio.gather(*(start_one_by_one_async(hf, count // callers) for _ in range(callers)))


def start_by_threads(hf: Holdfast, count: int, callers: int) -> None:
    """Start *count* jobs from *callers* threads."""
    with ThreadPoolExecutor(callers) as threads:
        list(threads.map(lambda _: start_one_by_one(hf, count // callers), range(callers)))


def start_many(hf: Holdfast, count: int) -> None:
    """Start *count* jobs from blocking code, a thousand at a time."""
    for _ in range(count // BATCH):
        hf.sync.start_many([work(text=TEXT) for _ in range(BATCH)])


async def start_many_async(hf: Holdfast, count: int) -> None:
    """Start *count* jobs from async code, a thousand at a time."""
    for _ in range(count // BATCH):
        await hf.start_many([work(text=TEXT) for _ in range(BATCH)])


def start_in_sqlite(hf: Holdfast, connection: sqlite3.Connection, count: int) -> None:
    """Start *count* jobs, each in a transaction of the caller's."""
    for _ in range(count):
        connection.execute("BEGIN IMMEDIATE")
        hf.sync.start(work(text=TEXT), connection=connection)
        connection.execute("COMMIT")


def start_all_in_sqlite(hf: Holdfast, connection: sqlite3.Connection, count: int) -> None:
    """Start *count* jobs, one by one, in one transaction of the caller's."""
    connection.execute("BEGIN IMMEDIATE")
    for _ in range(count):
        hf.sync.start(work(text=TEXT), connection=connection)
    connection.execute("COMMIT")


def start_in_psycopg(hf: Holdfast, connection: psycopg.Connection[Any], count: int) -> None:
    """Start *count* jobs, each in a transaction of the caller's."""
    for _ in range(count):
        with connection.transaction():
            hf.sync.start(work(text=TEXT), connection=connection)


def start_all_in_psycopg(hf: Holdfast, connection: psycopg.Connection[Any], count: int) -> None:
    """Start *count* jobs, one by one, in one transaction of the caller's."""
    with connection.transaction():
        for _ in range(count):
            hf.sync.start(work(text=TEXT), connection=connection)


async def start_in_psycopg_async(hf: Holdfast, connection: psycopg.AsyncConnection[Any], count: int) -> None:
    """Start *count* jobs, each in a transaction of the caller's."""
    for _ in range(count):
        async with connection.transaction():
            await hf.start(work(text=TEXT), connection=connection)


async def start_all_in_psycopg_async(hf: Holdfast, connection: psycopg.AsyncConnection[Any], count: int) -> None:
    """Start *count* jobs, one by one, in one transaction of the caller's."""
    async with connection.transaction():
        for _ in range(count):
            await hf.start(work(text=TEXT), connection=connection)


class Peers:
    """The peers of one store, as far as they are wanted and can be had."""

    def __init__(self, stack: ExitStack, are_wanted: bool) -> None:
        self._stack = stack
        self._are_wanted = are_wanted
        self._running: dict[str, PeerProcess] = {}

    def entrants(self, peer: Peer, works: dict[str, tuple[str, int]], database: str) -> list[Entrant]:
        """Start *peer* on *database*; give its entrants, or none with the reason printed."""
        if not self._are_wanted:
            return []
        try:
            process = self._stack.enter_context(running(peer, database, INPUT))
        except PeerUnavailable as error:
            print(f"{peer.name} is left out: {error}", flush=True)
            return []
        print(f"beside {process.version}", flush=True)
        self._running[peer.name] = process
        return [Entrant(name, count, partial(process.work, work)) for name, (work, count) in works.items()]

    def rows(self) -> dict[str, int]:
        """Count what each of them has stored."""
        return {name: process.rows() for name, process in self._running.items()}


COUNTS = """
    SELECT holdfast_job.task, count(*) FROM holdfast_job
    JOIN holdfast_event ON holdfast_event.job = holdfast_job.seq AND holdfast_event.name = 'job:enqueued'
    GROUP BY holdfast_job.task"""

STORED_AS = {"SQLite:": TASK, "PostgreSQL:": TASK, "SQLite": "by hand", "psycopg": "by hand"}


def check_rows(entrants: Sequence[Entrant], rounds: int, counted: dict[str, int]) -> str:
    """Compare the rows with what the rounds should have left."""
    expected: dict[str, int] = {}
    for each in entrants:
        word = each.name.split()[0].rstrip(",")
        name = STORED_AS.get(word, word)
        expected[name] = expected.get(name, 0) + each.count * (rounds + 1)
    return check_counts(expected, counted)


def check_counts(expected: dict[str, int], counted: dict[str, int]) -> str:
    """Say how many rows there are; raise if it is not what there should be."""
    if counted != expected:
        raise machine.Unsuited(f"the work was not done: there should be {expected}, there are {counted}")
    return f"rows found: {', '.join(f'{name} {number:,}' for name, number in sorted(counted.items()))}"


async def connect_async(url: str) -> psycopg.AsyncConnection[Any]:
    """Connect as a caller does."""
    return await psycopg.AsyncConnection.connect(url, autocommit=True)
