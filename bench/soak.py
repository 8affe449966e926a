"""Whether a worker needs more and more as it runs jobs: memory, descriptors, threads, connections; on both stores.

It is a process of its own with the defaults that we ship, and is given jobs of several kinds for as long as one likes:
most do nothing, some have a lane, a key, a blocker or a successor, or run in a thread. After some that warm it up it is
asked from time to time what it holds. The CPU of a job is that of its start and of the worker. *Memory* and *blocks*,
the pieces that Python has allocated, are fitted by a line over the number of jobs; the rest must stay as it was. In the
end no row may be left of lanes and keys.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from bench.machine import Unsuited
from bench.meter import Cost, Meter
from bench.places import Places, both
from bench.report import CPU, cpu, grid
from bench.soak_worker import TASKS, nothing, onward, threaded
from holdfast import Call, Holdfast
from holdfast.database.tx import Tx

HEADER = ("worker", "jobs", "jobs/s", CPU, "MB/100k", "MB in all", "blocks/job", "descriptors", "threads", "tasks",
          "connections", "-wal MB", "claim p99, last/first", "left over", "")  # fmt: skip
BATCH = 200
FINISH_SECONDS = 60.0
LANES = 50


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many jobs warm it up, how long it is watched, and the limits, which are wider the shorter that is."""

    warm_up: int = 2_000
    seconds: float = 180.0
    jobs: int = 1_000_000
    """It ends when so many are done, if that is sooner."""
    every_seconds: float = 5.0
    bytes_per_job: float = 20.0
    bytes_in_all: float = 15e6
    blocks_per_job: float = 0.1
    wal_bytes: float = 64e6
    claim_ratio: float = 1.5


SIZES = Sizes()
QUICK = Sizes(warm_up=200, seconds=5, jobs=1_000, every_seconds=0.1, bytes_per_job=1e6, blocks_per_job=10,
              claim_ratio=100)  # fmt: skip
SHORT = Sizes(warm_up=1_500, seconds=60, jobs=5_000, every_seconds=0.3, bytes_per_job=3_000, blocks_per_job=0.5,
              claim_ratio=10)  # fmt: skip
"""Five thousand jobs: a machine's memory says little so soon, the pieces that Python has allocated say much."""
CONSTANT = ("descriptors", "threads", "tasks", "connections")
SPARE = {"descriptors": 4, "threads": 4, "tasks": 8, "connections": 3}
"""By how much they may differ at two moments: pools fill as they are used, and requests are under way."""


@dataclass(frozen=True, slots=True)
class Soaked:
    """What a soak came to: samples after the warm-up, each with the size of the -wal file and the connections."""

    store: str
    cost: Cost
    samples: list[dict[str, float]]
    left: int
    """How many rows of lanes and keys have outlived their jobs."""

    @property
    def jobs(self) -> float:
        """How many jobs were run while it was watched."""
        return self.samples[-1]["done"] - self.samples[0]["done"]

    def slope(self, name: str) -> float:
        """Tell by how much something grows with each job."""
        return slope([(each["done"], each[name]) for each in self.samples])

    def growth(self, name: str) -> float:
        """Tell by how much more there is in the last quarter than in the first, at most."""
        quarter = max(len(self.samples) // 4, 1)
        first, last = self.samples[:quarter], self.samples[-quarter:]
        return max(each[name] for each in last) - max(each[name] for each in first)

    @property
    def claim_ratio(self) -> float:
        """Tell how much longer a claim takes in the last quarter than in the first, by its 99th percentile."""
        took = [each["claim"] for each in self.samples if each["claim"]]
        quarter = max(len(took) // 4, 1)
        first, last = sum(took[:quarter]) / quarter, sum(took[-quarter:]) / quarter
        return last / first if first else 1.0

    def complaints(self, sizes: Sizes) -> list[str]:
        """Name the limits that it does not keep."""
        found = {
            f"memory grows by {self.slope('memory'):.1f} bytes a job": self.slope("memory") > sizes.bytes_per_job,
            f"memory has grown by {self.growth('memory') / 1e6:.1f} MB": self.growth("memory") > sizes.bytes_in_all,
            f"{self.slope('blocks'):.2f} blocks are kept of a job": self.slope("blocks") > sizes.blocks_per_job,
            f"the -wal file has {self.most('wal') / 1e6:.0f} MB": self.most("wal") > sizes.wal_bytes,
            f"a claim takes {self.claim_ratio:.1f} times as long": self.claim_ratio > sizes.claim_ratio,
            f"{self.left} rows are left of lanes and keys": self.left > 0,
        }
        found |= {f"{name} grow by {self.growth(name):.0f}": self.growth(name) > SPARE[name] for name in CONSTANT}
        return [what for what, is_so in found.items() if is_so]

    def most(self, name: str) -> float:
        """Tell the largest number there was of something."""
        return max(each[name] for each in self.samples)

    def cells(self, sizes: Sizes) -> tuple[str, ...]:
        """Write its line of the table."""
        return (
            self.store,
            f"{self.jobs:,.0f}",
            f"{self.jobs / self.cost.seconds:,.0f}",
            cpu([self.cost.of_each(max(round(self.jobs), 1))]),
            f"{self.slope('memory') * 100_000 / 1e6:.2f}",
            f"{self.growth('memory') / 1e6:+.1f}",
            f"{self.slope('blocks'):.3f}",
            *(f"{self.most(name):.0f}" for name in CONSTANT),
            f"{self.most('wal') / 1e6:.1f}",
            f"{self.claim_ratio:.2f}",
            str(self.left),
            "✗" if self.complaints(sizes) else "✓",
        )


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Fit a line by least squares; tell how steep it is."""
    middle_x = sum(x for x, _ in points) / len(points)
    middle_y = sum(y for _, y in points) / len(points)
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / spread if spread else 0.0


class SoakWorker:
    """Our side of the pipe."""

    def __init__(self, process: Popen[str]) -> None:
        self._process = process

    def ask(self, what: str) -> Any:
        """Ask for something, and wait for the answer."""
        if self._process.stdin is None or self._process.stdout is None:
            raise Unsuited("the worker has no pipes")
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise Unsuited(f"the worker ended with code {self._process.wait()}")
        return json.loads(line)


@contextmanager
def soak_worker(url: str, *, is_traced: bool = False) -> Iterator[SoakWorker]:
    """Run a worker on *url* until the block ends."""
    environment = {**os.environ, **({"PYTHONTRACEMALLOC": "1"} if is_traced else {})}
    command = [sys.executable, "-m", "bench.soak_worker", url]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True, env=environment) as process:
        if process.stdout is None or process.stdout.readline() != "ready\n":
            raise Unsuited("the worker did not start")
        yield SoakWorker(process)


class Supply:
    """Starts jobs of all kinds, and no more than a worker can run soon."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._number = 0
        self.handlers = 0
        """How many handlers are to be called for what was started."""

    def start(self) -> None:
        """Start some."""
        calls = [self._call(self._number + each) for each in range(BATCH)]
        chains = self._hf.sync.start_many(calls)
        self._hf.sync.start(nothing(n=self._number), blockers=chains[:3])
        self._number += BATCH
        self.handlers += BATCH + BATCH // 20 + 1

    def _call(self, number: int) -> Call[None]:
        match number % 20:
            case 0:
                return onward(n=number)
            case 1 | 2:
                return nothing(n=number).options(lane=f"lane-{number % LANES}")
            case 3:
                return nothing(n=number).options(unique=f"key-{number}")
            case 4:
                return threaded(n=number)
            case _:
                return nothing(n=number)


def soak(
    store: str, url: str, sizes: Sizes, meter: Meter | None = None, *, is_traced: bool = False
) -> tuple[Soaked, list[str]]:
    """Soak a worker of one store; give what it came to, and what it then held most of."""
    meter = meter or Meter()
    hf = Holdfast(url, tasks=[TASKS])
    hf.sync.migrate()
    with closing(hf.sync), soak_worker(url, is_traced=is_traced) as worker:
        supply, samples = Supply(hf), list[dict[str, float]]()
        run_until(supply, worker, sizes.warm_up)
        done = finish(hf, supply, worker)
        meter.reset()
        began = time.monotonic()
        samples.append(sample(hf, worker))
        while done < sizes.warm_up + sizes.jobs and time.monotonic() - began < sizes.seconds:
            until = time.monotonic() + sizes.every_seconds
            run_until(supply, worker, sizes.warm_up + sizes.jobs, until)
            done = finish(hf, supply, worker)
            samples.append(sample(hf, worker))
        cost = meter.read()
        largest = worker.ask("largest")
        left = rows(hf, "SELECT (SELECT count(*) FROM holdfast_lane) + (SELECT count(*) FROM holdfast_unique)")
    return Soaked(store, cost, samples, left), largest


def run_until(supply: Supply, worker: SoakWorker, jobs: int, until: float = float("inf")) -> None:
    """Have so many jobs run, or as many as can be *until* then."""
    while (done := worker.ask("done")) < jobs and time.monotonic() < until:
        if supply.handlers - done < 4 * BATCH:
            supply.start()
        else:
            time.sleep(0.002)


def finish(hf: Holdfast, supply: Supply, worker: SoakWorker) -> int:
    """Wait until all that was started has run, and is written down; tell how many that were."""
    deadline = time.monotonic() + FINISH_SECONDS
    while worker.ask("done") < supply.handlers or rows(hf, RUNNING):
        if time.monotonic() > deadline:
            raise Unsuited(f"of {supply.handlers} handlers {worker.ask('done')} were called")
        time.sleep(0.01)
    return supply.handlers


def sample(hf: Holdfast, worker: SoakWorker) -> dict[str, float]:
    """Ask the worker what it holds; look at the rest from outside."""
    held: dict[str, float] = worker.ask("sample")
    wal = Path(f"{hf.settings.database}-wal")
    held["wal"] = wal.stat().st_size if not hf.settings.is_postgres and wal.exists() else 0
    held["connections"] = rows(hf, CONNECTIONS) if hf.settings.is_postgres else 0
    return held


RUNNING = "SELECT count(*) FROM holdfast_job WHERE lease_until IS NOT NULL"
CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"


def rows(hf: Holdfast, sql: str) -> int:
    """Ask the database for a number."""

    async def fetch(tx: Tx) -> int:
        ((number,),) = await tx.fetch_all(sql)
        return int(number)

    return hf.store.read_sync(fetch)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--quick", action="store_true", help="tiny counts: shows that it works, and nothing else")
    parser.add_argument("--only", choices=("sqlite", "postgres"), help="one of the stores")
    parser.add_argument("--seconds", type=float, default=SIZES.seconds, help="how long each store is soaked")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; the exit code says whether it could be measured, not whether limits are kept."""
    sizes = QUICK if arguments.quick else replace(SIZES, seconds=arguments.seconds)
    stores = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
    with both(is_quick=arguments.quick) as places:
        wanted = [name for key, name in stores.items() if arguments.only in (None, key)]
        soaked = [measure(places, store, sizes) for store in wanted]
        print(grid(HEADER, [each.cells(sizes) for each, _ in soaked], HEADER[1:-1]))
    for each, largest in soaked:
        for what in each.complaints(sizes):
            print(f"\n{each.store}: {what}", *largest, sep="\n  ")
    return 0


def measure(places: Places, store: str, sizes: Sizes) -> tuple[Soaked, list[str]]:
    """Soak one store on a disk."""
    with places.address(store, "soak") as url:
        return soak(store, url, sizes, places.meter(store))
