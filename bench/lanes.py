"""What lanes cost: one worker runs jobs in 10,000 lanes, beside the same jobs in none.

Each lane gets two jobs, so that every second claim needs a promotion. Everything else is as in `bench throughput`.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
from contextlib import ExitStack, closing
from dataclasses import dataclass

import psycopg

from bench.drain import COMPLETED, TASK, check, entrant, opened
from bench.places import Places, both
from bench.report import Comparison, table
from bench.rounds import take_turns


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many lanes there are, how many jobs are run in one round, and how many rounds there are."""

    rounds: int = 3
    lanes: int = 10_000
    jobs: int = 20_000


QUICK = Sizes(rounds=1, lanes=50, jobs=100)

COMPARISONS = {
    store: (Comparison(f"{store}: 10,000 lanes", f"{store}: no lane", 0.5),) for store in ("SQLite", "PostgreSQL")
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--quick", action="store_true", help="tiny counts: shows that it works, and nothing else")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; the exit code says whether it could be measured, not whether targets are met."""
    sizes = QUICK if arguments.quick else Sizes()
    with both(is_quick=arguments.quick) as places:
        for store in COMPARISONS:
            print(measure(places, store, sizes), end="\n\n", flush=True)
    return 0


def measure(places: Places, store: str, sizes: Sizes) -> str:
    """Measure one store; answer its table."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        url = stack.enter_context(places.address(store, "lanes"))
        hf = stack.enter_context(opened(url, runner))
        meter = places.meter(store)
        entrants = [
            (TASK, entrant(f"{store}: no lane", sizes.jobs, hf, runner, meter)),
            (TASK, entrant(f"{store}: 10,000 lanes", sizes.jobs, hf, runner, meter, lanes=sizes.lanes)),
        ]
        costs = take_turns([each for _, each in entrants], sizes.rounds, meter)
        return f"{table(COMPARISONS[store], costs)}\n{check(completed(store, url), entrants, sizes.rounds)}"


def completed(store: str, url: str) -> dict[str, int]:
    """Count the jobs that are done and have said so, by their tasks."""
    if store == "SQLite":
        with closing(sqlite3.connect(url)) as file:
            return dict(file.execute(COMPLETED).fetchall())
    with psycopg.connect(url) as connection:
        rows: list[tuple[str, int]] = connection.execute(COMPLETED).fetchall()
        return dict(rows)
