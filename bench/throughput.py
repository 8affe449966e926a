"""How fast one worker process runs jobs that do nothing, on both stores with durability on, beside the raw loop.

What is timed: not the starts, which come before. *By hand* is the bare driver: claim 200, complete them in the next
transaction, two rows of the log for each; its time is from the first claim until nothing is left. *Ours* runs with the
defaults that we ship, checks and decodes each argument, runs its handler and writes two rows of the log; its time is
from the worker's start until all is written down and it has stopped. The *peers* have the same argument, and their
time ends when the last job is recorded, as far as they record it; that of pgqueuer, procrastinate and huey begins with
their start, that of the others with their first handler, so that polls and start-up are not held against them; their
CPU is that of the whole drain.

With `--figures` one worker more runs that counts nothing of its attempts: the difference is what `hf.stats()` costs. It
is smaller than what rounds differ by, so `--rounds 30` says more.

The first round warms up and does not count. Slower peers run fewer jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, stdev

import psycopg

from bench.drain import COMPLETED, INPUT, TASK, check, entrant, opened, without_figures
from bench.limits import postgres_drain
from bench.limits.postgres import TASK as BY_HAND
from bench.limits.postgres import AsyncPostgresByHand
from bench.limits.sqlite import SqliteByHand
from bench.limits.sqlite_drain import SqliteDrain
from bench.meter import Cost, Meter
from bench.peers import rivals
from bench.peers.process import PeerProcess
from bench.peers.rivals import Rival, Rivals
from bench.places import Places, both
from bench.report import Comparison, table
from bench.rounds import Entrant, awaited, take_turns

BATCH = 200


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many jobs are run in one round, at most, and how many rounds there are."""

    rounds: int = 5
    jobs: int = 20_000


QUICK = Sizes(rounds=1, jobs=200)

BESIDE_POSTGRES = (*rivals.POSTGRES, *rivals.REDIS, *rivals.LESS_DURABLE)

NOTHING_COUNTED = "that counts nothing"
SQLITE = (
    Comparison("SQLite: one worker", f"SQLite: one worker {NOTHING_COUNTED}"),
    Comparison("SQLite: one worker", "SQLite by hand", 0.6),
    Comparison("SQLite: one worker", "huey", 7),
    Comparison("SQLite: one worker", "dbos on SQLite"),
)

POSTGRES = (
    Comparison("PostgreSQL: one worker", f"PostgreSQL: one worker {NOTHING_COUNTED}"),
    Comparison("PostgreSQL: one worker", "psycopg by hand, two loops", 0.65),
    Comparison("PostgreSQL: one worker", "pgqueuer", 1.5),
    *(Comparison("PostgreSQL: one worker", each.name) for each in BESIDE_POSTGRES if each.name != "pgqueuer"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--peers", action="store_true", help="also nine other engines, installed on first use")
    parser.add_argument("--quick", action="store_true", help="tiny counts: shows that it works, and nothing else")
    parser.add_argument("--figures", action="store_true", help="also one worker that counts nothing for hf.stats()")
    parser.add_argument("--only", choices=("sqlite", "postgres"), help="one of the stores")
    parser.add_argument("--rounds", type=int, default=Sizes().rounds, help="how often each one runs (default: 5)")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; the exit code says whether it could be measured, not whether targets are met."""
    sizes = QUICK if arguments.quick else Sizes(rounds=arguments.rounds)
    with both(is_quick=arguments.quick) as places:
        if arguments.only != "postgres":
            print(measure_sqlite(places, sizes, arguments.peers, arguments.figures), end="\n\n", flush=True)
        if arguments.only != "sqlite":
            print(measure_postgres(places, sizes, arguments.peers, arguments.figures), flush=True)
    return 0


def measure_sqlite(places: Places, sizes: Sizes, with_peers: bool, with_figures: bool = False) -> str:
    """Measure the SQLite store; answer its table."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        url = stack.enter_context(places.address("SQLite", "throughput"))
        hf = stack.enter_context(opened(url, runner))
        filler = SqliteByHand(Path(url), INPUT)
        stack.callback(filler.close)
        by_hand = SqliteDrain(Path(url))
        stack.callback(by_hand.close)

        meter = places.meter("SQLite")

        def drain_by_hand(count: int) -> None:
            filler.many_at_once(count, batch=BATCH)
            meter.reset()
            by_hand.drain()

        wanted = rivals.SQLITE if with_peers else ()
        peers = Peers(Rivals(stack, places, INPUT).start(wanted, "SQLite"), sizes, meter)
        entrants = [
            (BY_HAND, Entrant("SQLite by hand", sizes.jobs, drain_by_hand)),
            (TASK, ours := entrant("SQLite: one worker", sizes.jobs, hf, runner, meter)),
            *([(TASK, counting_nothing(ours))] if with_figures else []),
            *peers.entrants(),
        ]
        costs = take_turns([each for _, each in entrants], sizes.rounds, meter)
        with closing(sqlite3.connect(url)) as connection:
            done = dict(connection.execute(COMPLETED).fetchall())
        finished = [(name, each) for name, each in entrants if each.name in costs]
        summary = check(done | peers.done(costs), finished, sizes.rounds)
        return f"{table(SQLITE, costs)}\n{price_of_figures(ours, costs)}{summary}"


def measure_postgres(places: Places, sizes: Sizes, with_peers: bool, with_figures: bool = False) -> str:
    """Measure the PostgreSQL store; answer its table."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        url = stack.enter_context(places.address("PostgreSQL", "throughput"))
        hf = stack.enter_context(opened(url, runner))
        filler = runner.run(AsyncPostgresByHand.connect(url, INPUT))
        stack.callback(lambda: runner.run(filler.close()))

        meter = places.meter("PostgreSQL")

        async def drain_by_hand(count: int) -> None:
            await filler.many_at_once(count, batch=BATCH)
            meter.reset()
            await postgres_drain.drain(filler.connections[:2])

        wanted = BESIDE_POSTGRES if with_peers else ()
        peers = Peers(Rivals(stack, places, INPUT).start(wanted, "PostgreSQL"), sizes, meter)
        entrants = [
            (BY_HAND, Entrant("psycopg by hand, two loops", sizes.jobs, awaited(drain_by_hand, runner))),
            (TASK, ours := entrant("PostgreSQL: one worker", sizes.jobs, hf, runner, meter)),
            *([(TASK, counting_nothing(ours))] if with_figures else []),
            *peers.entrants(),
        ]
        costs = take_turns([each for _, each in entrants], sizes.rounds, meter)
        with psycopg.connect(url) as connection:
            done: dict[str, int] = dict(connection.execute(COMPLETED).fetchall())
        finished = [(name, each) for name, each in entrants if each.name in costs]
        summary = check(done | peers.done(costs), finished, sizes.rounds)
        return f"{table(POSTGRES, costs)}\n{price_of_figures(ours, costs)}{summary}"


def counting_nothing(ours: Entrant) -> Entrant:
    """Make an entrant that does the same, and counts nothing of its attempts."""

    def run(count: int) -> None:
        with without_figures():
            ours.run(count)

    return Entrant(f"{ours.name} {NOTHING_COUNTED}", ours.count, run)


def price_of_figures(ours: Entrant, costs: Mapping[str, Sequence[Cost]]) -> str:
    """Say what counting costs the client, if that was measured: the mean of all rounds, and its standard error."""
    counting, nothing = (costs.get(name, []) for name in (ours.name, f"{ours.name} {NOTHING_COUNTED}"))
    if min(len(counting), len(nothing)) < 2:
        return ""
    more = [1e6 * (one.client - other.client) for one, other in zip(counting, nothing, strict=True)]
    return f"figures: {mean(more):.1f} ± {stdev(more) / len(more) ** 0.5:.1f} µs of the client's CPU a job\n"


class Peers:
    """The peers of one store, as far as they are wanted and can be had."""

    def __init__(self, started: Sequence[tuple[Rival, PeerProcess]], sizes: Sizes, meter: Meter) -> None:
        self._started = started
        self._sizes = sizes
        self._meter = meter

    def entrants(self) -> list[tuple[str, Entrant]]:
        """Give an entrant for each of them."""
        return [
            (each.name, Entrant(each.name, min(each.jobs, self._sizes.jobs), partial(drain, process, self._meter)))
            for each, process in self._started
        ]

    def done(self, measured: Collection[str]) -> dict[str, int]:
        """Count what each of those that were *measured* has recorded."""
        return {each.name: process.rows() for each, process in self._started if each.name in measured}


def drain(process: PeerProcess, meter: Meter, count: int) -> None:
    """Have a peer start *count* jobs, and measure it while it runs them; of the seconds it tells those that count."""
    process.work("fill", count)
    meter.reset()
    meter.stop(seconds=process.work("drain", count))
