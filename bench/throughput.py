"""How fast one worker process runs jobs that do nothing, on both stores with durability on, beside the raw loop.

By hand means the bare driver: claim 200, complete them in the next transaction, two rows of the log for each. Ours runs
with the defaults that we ship, checks and decodes each argument, runs its handler and writes three rows of the log; its
time is from the worker's start until it has stopped. Targets are those of the performance page that the project began
with.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import psycopg

from bench.drain import COMPLETED, INPUT, TASK, check, entrant, opened
from bench.limits import postgres_drain
from bench.limits.postgres import TASK as BY_HAND
from bench.limits.postgres import AsyncPostgresByHand
from bench.limits.sqlite import SqliteByHand
from bench.limits.sqlite_drain import SqliteDrain
from bench.peers.process import (
    HUEY_DRAIN,
    PGQUEUER_DRAIN,
    PROCRASTINATE_DRAIN,
    Peer,
    PeerProcess,
    PeerUnavailable,
    running,
)
from bench.places import Places, both
from bench.report import Comparison, table
from bench.rounds import Entrant, Seconds, take_turns

BATCH = 200


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many jobs are run in one round, and how many rounds there are; peers that are slower are given fewer."""

    rounds: int = 7
    jobs: int = 5_000
    fewer: int = 1_000
    fewest: int = 200


QUICK = Sizes(rounds=1, jobs=400, fewer=20, fewest=10)

SQLITE = (
    Comparison("SQLite: one worker", "SQLite by hand", 0.5),
    Comparison("SQLite: one worker", "huey", 10),
)

POSTGRES = (
    Comparison("PostgreSQL: one worker", "psycopg by hand, two loops", 0.45),
    Comparison("PostgreSQL: one worker", "pgqueuer", 1.8),
    Comparison("PostgreSQL: one worker", "procrastinate"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument(
        "--peers", action="store_true", help="also huey, pgqueuer, procrastinate, installed on first use"
    )
    parser.add_argument("--quick", action="store_true", help="tiny counts: shows that it works, and nothing else")
    parser.add_argument("--only", choices=("sqlite", "postgres"), help="one of the stores")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; the exit code says whether it could be measured, not whether targets are met."""
    sizes = QUICK if arguments.quick else Sizes()
    with both(is_quick=arguments.quick) as places:
        if arguments.only != "postgres":
            print(measure_sqlite(places, sizes, arguments.peers), end="\n\n", flush=True)
        if arguments.only != "sqlite":
            print(measure_postgres(places, sizes, arguments.peers), flush=True)
    return 0


def measure_sqlite(places: Places, sizes: Sizes, with_peers: bool) -> str:
    """Measure the SQLite store; answer its table."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        url = stack.enter_context(places.address("SQLite", "throughput"))
        hf = stack.enter_context(opened(url, runner))
        filler = SqliteByHand(Path(url), INPUT)
        stack.callback(filler.close)
        by_hand = SqliteDrain(Path(url))
        stack.callback(by_hand.close)

        def drain_by_hand(count: int) -> Seconds:
            filler.many_at_once(count, batch=BATCH)
            started = time.perf_counter()
            by_hand.drain()
            return time.perf_counter() - started

        peers = Peers(stack, with_peers)
        entrants = [
            (BY_HAND, Entrant("SQLite by hand", sizes.jobs, drain_by_hand)),
            (TASK, entrant("SQLite: one worker", sizes.jobs, hf, runner)),
            *peers.entrants(HUEY_DRAIN, "huey", sizes.fewer, str(places.directory / "huey.db")),
        ]
        rates = take_turns([each for _, each in entrants], sizes.rounds)
        with closing(sqlite3.connect(url)) as connection:
            done = dict(connection.execute(COMPLETED).fetchall())
        return f"{table(SQLITE, rates)}\n{check(done | peers.done(), entrants, sizes.rounds)}"


def measure_postgres(places: Places, sizes: Sizes, with_peers: bool) -> str:
    """Measure the PostgreSQL store; answer its table."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        url = stack.enter_context(places.address("PostgreSQL", "throughput"))
        hf = stack.enter_context(opened(url, runner))
        filler = runner.run(AsyncPostgresByHand.connect(url, INPUT))
        stack.callback(lambda: runner.run(filler.close()))

        async def drain_by_hand(count: int) -> Seconds:
            await filler.many_at_once(count, batch=BATCH)
            started = time.perf_counter()
            await postgres_drain.drain(filler.connections[:2])
            return time.perf_counter() - started

        peers = Peers(stack, with_peers)
        theirs = [
            stack.enter_context(places.address("PostgreSQL", f"{name}_drain")) for name in ("pgq", "procrastinate")
        ]
        entrants = [
            (
                BY_HAND,
                Entrant("psycopg by hand, two loops", sizes.jobs, lambda count: runner.run(drain_by_hand(count))),
            ),
            (TASK, entrant("PostgreSQL: one worker", sizes.jobs, hf, runner)),
            *peers.entrants(PGQUEUER_DRAIN, "pgqueuer", sizes.jobs, theirs[0]),
            *peers.entrants(PROCRASTINATE_DRAIN, "procrastinate", sizes.fewest, theirs[1]),
        ]
        rates = take_turns([each for _, each in entrants], sizes.rounds)
        with psycopg.connect(url) as connection:
            done: dict[str, int] = dict(connection.execute(COMPLETED).fetchall())
        return f"{table(POSTGRES, rates)}\n{check(done | peers.done(), entrants, sizes.rounds)}"


class Peers:
    """The peers of one store, as far as they are wanted and can be had."""

    def __init__(self, stack: ExitStack, are_wanted: bool) -> None:
        self._stack = stack
        self._are_wanted = are_wanted
        self._running: dict[str, PeerProcess] = {}

    def entrants(self, peer: Peer, name: str, count: int, database: str) -> list[tuple[str, Entrant]]:
        """Start *peer* on *database*; give its entrant, or none with the reason printed."""
        if not self._are_wanted:
            return []
        try:
            process = self._stack.enter_context(running(peer, database, INPUT))
        except PeerUnavailable as error:
            print(f"{peer.name} is left out: {error}", flush=True)
            return []
        print(f"beside {process.version}", flush=True)
        self._running[name] = process

        def drain(count: int) -> Seconds:
            process.work("fill", count)
            return process.work("drain", count)

        return [(name, Entrant(name, count, drain))]

    def done(self) -> dict[str, int]:
        """Count what each of them has run."""
        return {name: process.rows() for name, process in self._running.items()}
