"""What a worker costs that has nothing to do: its statements per second and its share of a CPU, on both stores.

It is a process of its own with the defaults that we ship, and is left alone for some seconds before it is looked at.
The statements on PostgreSQL are those that the server has logged, BEGIN and COMMIT included; on SQLite, those that the
library has run.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

import psycopg

from bench.drain import opened
from bench.places import Places, both
from bench.report import grid
from bench.worker_process import worker_process
from holdfast.testing import NotOurServer

HEADER = ("idle worker", "statements/s", "CPU %", "server CPU %", "seconds", "target", "")
LOGGED = re.compile(rb"LOG:  (?:statement|execute [^:]*): ")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How long it is left alone, and then watched."""

    settle: float = 5.0
    watch: float = 60.0


QUICK = Sizes(settle=0.2, watch=0.5)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--quick", action="store_true", help="half a second: shows that it works, and nothing else")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; the exit code says whether it could be measured, not whether targets are met."""
    sizes = QUICK if arguments.quick else Sizes()
    with both(is_quick=arguments.quick) as places:
        lines = [measure(places, store, sizes) for store in ("SQLite", "PostgreSQL")]
        print(grid(HEADER, lines, HEADER[1:-1]))
    return 0


def measure(places: Places, store: str, sizes: Sizes) -> tuple[str, ...]:
    """Watch an idle worker of one store; write its cells."""
    with asyncio.Runner() as runner, places.address(store, "idle") as url:
        with opened(url, runner):
            pass
        found = watch(places, store, url, sizes)
    is_met = found.share < 0.5 and (found.rate is None or found.rate < 1)
    return store, *found.cells, f"{sizes.watch:g}", "< 1 and < 0.5 %", "✓" if is_met else "✗"


class Watched(NamedTuple):
    """What an idle worker costs: statements a second, and shares of a CPU in percent, None for what nobody can see."""

    rate: float | None
    share: float
    served: float | None

    @property
    def cells(self) -> tuple[str, str, str]:
        """The three as they are shown."""
        told = "not ours to count" if self.rate is None else f"{self.rate:.2f}"
        return told, f"{self.share:.2f}", "-" if self.served is None else f"{self.served:.2f}"


def watch(places: Places, store: str, url: str, sizes: Sizes) -> Watched:
    """Start a worker on *url*, leave it alone, and watch it."""
    if store == "PostgreSQL":
        log_statements(places.server.url, urlsplit(url).path.lstrip("/"))
    with worker_process(url, counts=True) as worker:
        time.sleep(sizes.settle)
        before, counted = worker.usage(), logged(places)
        cost = places.meter(store).measure(partial(time.sleep, sizes.watch))
        after, counted_later = worker.usage(), logged(places)
    statements: float | None = after[1] - before[1]
    if store == "PostgreSQL":
        statements = None if counted is None or counted_later is None else counted_later - counted
    rate = None if statements is None else statements / sizes.watch
    served = None if cost.server is None else cost.server / sizes.watch * 100
    return Watched(rate, (after[0] - before[0]) / sizes.watch * 100, served)


def log_statements(server: str, database: str) -> None:
    """Have the server log every statement on the *database* that the worker is given."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {database} SET log_statement = 'all'".encode())


def logged(places: Places) -> int | None:
    """Count the statements in the server's log; None if it is not ours to read."""
    try:
        return len(LOGGED.findall(places.server.log.read_bytes()))
    except NotOurServer:
        return None
