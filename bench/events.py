"""What the log costs, and how fast it is read: by a follower, and by a hundred streams of server-sent events.

*Drained* is as in `bench throughput`, here with the log and with `history=False`, and with one subscription to
`job:completed` against none: what is timed there is that each job's end also writes a row into the outbox, not the
deliveries, which other workers would make. *Followed* is `hf.events(after=…)` over all that a round of draining has
written, beside a SELECT of the same rows and their jobs by the bare driver, fetched 200 at a time; a row that stands
for two events counts as two for both. *Streamed* is from one `start_many` until each of the clients, which are in the
same process, has read all of its events; beside it an endpoint of Starlette sends them the same bytes, which it has
ready, in the same pieces. Both are served by uvicorn.

The first round warms up and does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg

from bench.drain import BATCH, GOAL, TEXT, drain, opened
from bench.machine import Unsuited
from bench.meter import Meter
from bench.places import Places, print_each
from bench.places import add_arguments as add_arguments  # noqa: PLC0414 - of this command, too
from bench.report import Comparison, table
from bench.rounds import Entrant, awaited, take_turns
from bench.streaming import Streams
from holdfast import Call, Holdfast, Tasks
from holdfast.store.log.events import CLOSES

PAGE = 200
NOWHERE = "https://webhooks.invalid/"  # nobody delivers anything there

TASKS = Tasks()


@TASKS.task(name="told")
async def told(text: str) -> None:
    """Do nothing, be counted, and leave its history."""
    GOAL.count()


@TASKS.task(name="untold", history=False)
async def untold(text: str) -> None:
    """Do the same without a history."""
    GOAL.count()


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many jobs are drained and how many events are streamed in one round, to how many clients; how many rounds."""

    rounds: int = 5
    jobs: int = 10_000
    streamed: int = 200
    clients: int = 100


QUICK = Sizes(rounds=1, jobs=100, streamed=10, clients=5)


def comparisons(store: str) -> tuple[Comparison, ...]:
    """Name what is compared on *store*."""
    return (
        Comparison(f"{store}: drained with the log", f"{store}: drained without", 0.75),
        Comparison(f"{store}: drained with a subscription", f"{store}: drained with the log"),
        Comparison(f"{store}: followed", f"{store} by hand, SELECT", 0.15),
        Comparison(f"{store}: streamed to all clients", "bare endpoint, the same bytes"),
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    sizes = QUICK if arguments.quick else Sizes()
    return print_each(arguments, partial(measure, sizes))


def measure(sizes: Sizes, places: Places, store: str) -> str:
    """Measure one store; answer its table."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        url, subscribed = (stack.enter_context(places.address(store, name)) for name in ("events", "subscribed"))
        hf = stack.enter_context(opened(url, runner, TASKS))
        other = stack.enter_context(opened(subscribed, runner, TASKS))
        runner.run(other.webhooks.subscribe(NOWHERE, events=["job:completed"]))
        field = Field(store, runner, sizes, places.meter(store))
        entrants = [*field.drained(hf, other), *field.read(hf, url, stack), *field.streamed(hf)]
        costs = take_turns(entrants, sizes.rounds, field.meter)
        done = {name: ask(store, each, ENDED) for name, each in (("alone", url), ("subscribed", subscribed))}
        return f"{table(comparisons(store), costs)}\n{check(done, sizes)}"


class Field:
    """Makes those who are measured on one *store* by *meter*, in the event loop of *runner*."""

    def __init__(self, store: str, runner: asyncio.Runner, sizes: Sizes, meter: Meter) -> None:
        self.meter = meter
        self._store = store
        self._runner = runner
        self._sizes = sizes

    def drained(self, hf: Holdfast, subscribed: Holdfast) -> list[Entrant]:
        """Drain jobs with the log and without, and where somebody wants to be told of each."""
        return [
            self._drainer("drained without", hf, untold),
            self._drainer("drained with the log", hf, told),
            self._drainer("drained with a subscription", subscribed, told),
        ]

    def read(self, hf: Holdfast, url: str, stack: ExitStack) -> list[Entrant]:
        """Read what a round of draining has written to the log: as a follower, and by hand."""
        before, first = self._runner.run(hf.cursor()), ask(self._store, url, NEWEST)
        self._runner.run(fill_and_drain(hf, told, self._sizes.jobs, self.meter))
        lines, number = (ask(self._store, url, f"{each} {first}") for each in (COUNT, COUNT_EVENTS))
        rows = stack.enter_context(reading(self._store, url))

        async def follow(number: int) -> None:
            async with hf.events(after=before) as events:
                for _ in range(number):
                    await anext(events)

        return [
            Entrant(f"{self._store} by hand, SELECT", number, lambda _: select(rows, first, lines)),
            Entrant(f"{self._store}: followed", number, awaited(follow, self._runner)),
        ]

    def streamed(self, hf: Holdfast) -> list[Entrant]:
        """Stream the events of some starts to all clients, and the same bytes without us."""
        later = told(text=TEXT).options(delay=86_400)  # or those who drain would run them
        streams = Streams(hf, lambda number: [later] * number, self._sizes.clients, self.meter)
        all_of_them = self._sizes.streamed * self._sizes.clients

        def over(run: Callable[[int], Any]) -> Callable[[int], object]:
            return lambda number: self._runner.run(run(number // self._sizes.clients))

        return [
            Entrant(f"{self._store}: streamed to all clients", all_of_them, over(streams.ours)),
            Entrant("bare endpoint, the same bytes", all_of_them, over(streams.bare)),
        ]

    def _drainer(self, name: str, hf: Holdfast, make: Callable[..., Call[None]]) -> Entrant:
        async def run(number: int) -> None:
            await fill_and_drain(hf, make, number, self.meter)

        return Entrant(f"{self._store}: {name}", self._sizes.jobs, awaited(run, self._runner))


async def fill_and_drain(hf: Holdfast, make: Callable[..., Call[None]], number: int, meter: Meter) -> None:
    """Start *number* jobs that *make* calls for, and measure one worker that runs them; it delivers no webhooks."""
    for first in range(0, number, BATCH):
        await hf.start_many([make(text=TEXT) for _ in range(first, min(first + BATCH, number))])
    meter.reset()
    await drain(hf, number, webhooks=False)


ROWS = """
    SELECT holdfast_event.*, holdfast_job.* FROM holdfast_event
    JOIN holdfast_job ON holdfast_job.seq = holdfast_event.job
    WHERE holdfast_event.seq > {0} ORDER BY holdfast_event.seq"""
NEWEST = "SELECT coalesce(max(seq), 0) FROM holdfast_event"
COUNT = "SELECT count(*) FROM holdfast_event WHERE seq >"
COUNT_EVENTS = f"""
    SELECT sum(CASE WHEN name = 'job:completed' AND facts LIKE '%"{CLOSES}"%' THEN 2 ELSE 1 END)
    FROM holdfast_event WHERE seq >"""
ENDED = "SELECT count(*) FROM holdfast_job WHERE status = 'completed'"

Rows = Callable[[int], AbstractContextManager[Any]]
"""Opens a cursor over the events behind the one of a number, with their jobs."""


@contextmanager
def reading(store: str, url: str) -> Iterator[Rows]:
    """Connect by the bare driver; on PostgreSQL the server keeps the cursor, and sorts once."""
    if store == "SQLite":
        with closing(sqlite3.connect(url)) as file:
            yield lambda after: closing(file.execute(ROWS.format("?"), (after,)))
        return
    with psycopg.connect(url) as connection:

        @contextmanager
        def rows(after: int) -> Iterator[Any]:
            with connection.transaction(), connection.cursor(name="events") as cursor:
                yield cursor.execute(ROWS.format("%s"), (after,))

        yield rows


def select(rows: Rows, after: int, number: int) -> None:
    """Read *number* rows behind the one numbered *after*, a page at a time."""
    with rows(after) as cursor:
        while number > 0:
            if not (page := cursor.fetchmany(min(PAGE, number))):
                raise Unsuited(f"{number:,} events are missing from the log")
            number -= len(page)


def ask(store: str, url: str, sql: str) -> int:
    """Ask for a number, by the bare driver."""
    if store == "SQLite":
        with closing(sqlite3.connect(url)) as file:
            return int(file.execute(sql).fetchone()[0])
    with psycopg.connect(url) as connection:
        (found,) = connection.execute(sql).fetchone() or (0,)
        return int(found)


def check(done: dict[str, int], sizes: Sizes) -> str:
    """Say how many jobs are done; raise if it is not what the rounds should have left."""
    drained = sizes.jobs * (sizes.rounds + 1)
    expected = {"alone": 2 * drained + sizes.jobs, "subscribed": drained}
    if done != expected:
        raise Unsuited(f"the work was not done: there should be {expected}, there are {done}")
    return f"jobs done: {done['alone']:,} alone, {done['subscribed']:,} with a subscription"
