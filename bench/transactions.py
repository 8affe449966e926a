"""How fast jobs run that read and write the user's own table in blocks, beside the same transactions by hand.

What a job does, and in which blocks, stands in `bench.shapes`: it looks at an account and pays. *Ours* is one worker
with eight slots; its time is from its start until all is written down and it has stopped. *By hand* is the bare driver
with the same transactions over eight connections, on SQLite over one. It claims 200 jobs at once, while a worker claims
for the slots that are free.

The first round warms up and does not count. Afterwards every job has its end in the log, and as much was paid as there
were jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import psycopg

from bench.drain import BATCH, COMPLETED, GOAL, check, drain, opened
from bench.limits.postgres import CONNECTIONS as SLOTS
from bench.limits.postgres_transactions import AsyncPostgresTransactions, PostgresTransactions
from bench.limits.sqlite_transactions import SqliteTransactions
from bench.machine import Unsuited
from bench.meter import Meter
from bench.places import Places, print_each
from bench.places import add_arguments as add_arguments  # noqa: PLC0414 - of this command, too
from bench.report import Comparison, table
from bench.rounds import Entrant, take_turns
from bench.shapes import ACCOUNTS, FILL, LOOK, PAID, PAY, TABLE, TASK, Shape
from holdfast import Context, Holdfast, Task, Tasks
from holdfast.sync import Context as BlockingContext

Work: TypeAlias = Task[..., None]
Drain: TypeAlias = Callable[[int, Shape], object]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many jobs each entrant runs in one round, and how many rounds there are."""

    rounds: int = 5
    jobs: int = 1_000


QUICK = Sizes(rounds=1, jobs=10)

DRIVERS = {
    "SQLite": {"async": "SQLite", "blocking": "SQLite"},
    "PostgreSQL": {"async": "async psycopg", "blocking": "psycopg"},
}
TARGETS = {("PostgreSQL", Shape.PREPARE): 0.5, ("SQLite", Shape.PREPARE): 0.3}
COMPARISONS = {
    store: [
        Comparison(f"{store}: {shape}, {colour}", f"{driver} by hand: {shape}", TARGETS.get((store, shape)))
        for shape in Shape
        for colour, driver in drivers.items()
    ]
    for store, drivers in DRIVERS.items()
}

# a registry for each, so that every worker serves one task
BY_HAND_TASKS, ASYNC_TASKS, BLOCKING_TASKS = Tasks(), Tasks(), Tasks()


@BY_HAND_TASKS.task(name=TASK)
async def nothing(shape: Shape, account: int) -> None:
    """Be the task of jobs that are done by hand."""


@ASYNC_TASKS.task(name="async")
async def work(ctx: Context, shape: Shape, account: int) -> None:
    """Look at the account and pay, in blocks as *shape* says."""
    if shape is Shape.PREPARE:
        async with ctx.prepare() as tx:
            await tx.fetch_one(LOOK, account=account)
    async with ctx.atomic() if shape is Shape.ATOMIC else ctx.complete() as end:
        if shape is Shape.ATOMIC:
            await end.fetch_one(LOOK, account=account)
        await end.execute(PAY, account=account)
        end.finish()
    GOAL.count()


@BLOCKING_TASKS.task(name="blocking")
def work_blocking(ctx: BlockingContext, shape: Shape, account: int) -> None:
    """Do the same in a plain function."""
    if shape is Shape.PREPARE:
        with ctx.prepare() as tx:
            tx.fetch_one(LOOK, account=account)
    with ctx.atomic() if shape is Shape.ATOMIC else ctx.complete() as end:
        if shape is Shape.ATOMIC:
            end.fetch_one(LOOK, account=account)
        end.execute(PAY, account=account)
        end.finish()
    GOAL.count()


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    sizes = QUICK if arguments.quick else Sizes()
    return print_each(arguments, partial(measure, sizes))


def measure(sizes: Sizes, places: Places, store: str) -> str:
    """Measure one store; answer its table."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        url = stack.enter_context(places.address(store, "transactions"))
        meter = places.meter(store)
        field = Field(store, url, sizes.jobs, runner, meter, stack)
        entrants = [*field.by_hand(), *field.ours()]
        costs = take_turns([each for _, each in entrants], sizes.rounds, meter)
        done: dict[str, int] = dict(query(store, url, COMPLETED))
        check_paid(query(store, url, PAID)[0][0], sum(done.values()))
        return f"{table(COMPARISONS[store], costs)}\n{check(done, entrants, sizes.rounds)}"


class Field:
    """Where all of one *store* are measured, at *url*, with *jobs* in each round; *stack* closes what they open."""

    def __init__(self, store: str, url: str, jobs: int, runner: asyncio.Runner, meter: Meter, stack: ExitStack) -> None:
        self._store = store
        self._url = url
        self._jobs = jobs
        self._runner = runner
        self._meter = meter
        self._stack = stack
        self._filler = self._opened(BY_HAND_TASKS)
        for statement in (TABLE, FILL):
            query(store, url, statement)

    def by_hand(self) -> list[tuple[str, Entrant]]:
        """Make those who do by hand what blocks do."""
        return [
            (TASK, self._entrant(f"{driver} by hand: {shape}", self._filler, nothing, shape, drain))
            for driver, drain in self._drivers().items()
            for shape in Shape
        ]

    def ours(self) -> list[tuple[str, Entrant]]:
        """Make a worker for each colour of handlers, which runs each of the shapes."""
        return [
            (task.name, self._entrant(f"{self._store}: {shape}, {task.name}", hf, task, shape, self._worker(hf)))
            for hf, task in ((self._opened(ASYNC_TASKS), work), (self._opened(BLOCKING_TASKS), work_blocking))
            for shape in Shape
        ]

    def _opened(self, tasks: Tasks) -> Holdfast:
        return self._stack.enter_context(opened(self._url, self._runner, tasks))

    def _entrant(self, name: str, hf: Holdfast, task: Work, shape: Shape, run: Drain) -> Entrant:
        """Have jobs started, which is not measured, and then *run*."""

        def fill_and_run(count: int) -> None:
            self._runner.run(fill(hf, task, shape, count))
            self._meter.reset()
            run(count, shape)

        return Entrant(name, self._jobs, fill_and_run)

    def _worker(self, hf: Holdfast) -> Drain:
        return lambda count, _: self._runner.run(drain(hf, count, concurrency=SLOTS))

    def _drivers(self) -> dict[str, Drain]:
        """Connect by each driver; give what drains by it."""
        if self._store == "SQLite":
            file = SqliteTransactions(Path(self._url))
            self._stack.callback(file.close)
            return {"SQLite": lambda _, shape: file.drain_by(shape)}
        blocking = PostgresTransactions(self._url)
        self._stack.callback(blocking.close)
        connected = self._runner.run(AsyncPostgresTransactions.connect(self._url))
        self._stack.callback(lambda: self._runner.run(connected.close()))
        return {
            "async psycopg": lambda _, shape: self._runner.run(connected.drain(shape)),
            "psycopg": lambda _, shape: blocking.drain(shape),
        }


async def fill(hf: Holdfast, task: Work, shape: Shape, count: int) -> None:
    """Start *count* jobs, for one account after the other."""
    for first in range(0, count, BATCH):
        numbers = range(first, min(first + BATCH, count))
        await hf.start_many([task(shape=shape, account=number % ACCOUNTS) for number in numbers])


def check_paid(paid: int, done: int) -> None:
    """Raise unless every job that is done has paid once."""
    if paid != done:
        raise Unsuited(f"the work was not done: {done:,} jobs have ended, and {paid:,} have paid")


def query(store: str, url: str, sql: str) -> list[tuple[Any, ...]]:
    """Run a statement by the bare driver."""
    if store == "SQLite":
        with closing(sqlite3.connect(url)) as file, file:
            return file.execute(sql).fetchall()
    with psycopg.connect(url) as connection:
        cursor = connection.execute(sql)
        return cursor.fetchall() if cursor.description else []
