"""What schedules cost: 10,000 that are due in one minute, and 10,000 whose time is far, beside a worker without any.

    due   all are due at the same minute: how long one worker takes to start their jobs, and to run them; how late the
          row of a job comes after its tick, and its handler
    idle  none is due: what they cost a worker that has nothing else to do, beside one without schedules in the same run

The worker is a process of its own with the defaults that we ship; its handler does nothing. The rows of the schedules
are copies, by hand, of one that the library has put. Statements are counted as in `bench idle`.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from statistics import median, quantiles
from typing import Any

from bench import idle
from bench.backlog import NUMBERED, connected
from bench.drain import opened
from bench.idle import Watched
from bench.machine import Unsuited
from bench.meter import Meter
from bench.places import Places, add_arguments, print_each
from bench.report import cpu, grid
from bench.worker_process import TASKS, scheduled, worker_process
from holdfast import Holdfast

__all__ = ["add_arguments", "run"]

FAR = "0 12 1 1 *"
"""The rule of a schedule that is idle: noon of New Year's Day."""
SOON_SECONDS = 5.0
"""How long before its minute a worker is there at least."""
LONGEST_SECONDS = 600.0
COPY = """
    INSERT INTO holdfast_schedule (name, task, input, options, rule, next_at, missed, jitter_ms, left_out, created_at)
    SELECT 'schedule-' || n, task, input, options, rule, next_at, missed, jitter_ms, left_out, created_at"""
OPEN = "SELECT count(*) FROM holdfast_job WHERE status <> 'completed'"
STARTED = "SELECT count(*) FROM holdfast_tick"
LATE = "SELECT created_at - scheduled_at, started_at - scheduled_at, finished_at - scheduled_at FROM holdfast_job"
DUE_HEADER = (
    *("due at one minute", "schedules", "all started s", "all run s", "CPU µs"),
    *("row p50 ms", "row p99 ms", "handler p50 ms", "handler p99 ms"),
)
IDLE_HEADER = ("idle worker", "statements/s", "CPU %", "server CPU %", "seconds")


WATCHING = idle.Sizes()


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many schedules there are, and how an idle worker is watched, in how many rounds."""

    schedules: int = 10_000
    watching: idle.Sizes = WATCHING
    rounds: int = 1


QUICK = Sizes(schedules=50, watching=idle.QUICK, rounds=1)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; the exit code says whether it could be measured."""
    return print_each(arguments, partial(measure, sizes=QUICK if arguments.quick else Sizes()))


def measure(places: Places, store: str, sizes: Sizes) -> str:
    """Measure both kinds on one store; write their tables."""
    due = grid(DUE_HEADER, [measure_due(places, store, sizes)], DUE_HEADER[1:])
    return f"{due}\n\n{grid(IDLE_HEADER, measure_idle(places, store, sizes), IDLE_HEADER[1:])}"


# due


def measure_due(places: Places, store: str, sizes: Sizes) -> tuple[str, ...]:
    """Have one worker start and run the jobs of schedules that are due at once; write the cells."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        url = stack.enter_context(places.address(store, "due"))
        hf = stack.enter_context(opened(url, runner, TASKS))
        minute = coming_minute()
        put_many(hf, runner, store, url, f"{minute:%M %H} * * *", sizes.schedules)
        stack.enter_context(worker_process(url))
        meter = places.meter(store)
        cost = meter.measure(partial(await_minute, minute, store, url, sizes.schedules, meter))
        with connected(store, url) as execute:
            late = list(execute(LATE))
    if len(late) != sizes.schedules:
        raise Unsuited(f"the work was not done: {sizes.schedules} schedules were due, and {len(late)} jobs are there")
    rows, handlers, ends = (sorted(each) for each in zip(*late, strict=True))
    return (
        store,
        f"{sizes.schedules:,}",
        f"{rows[-1] / 1000:.1f}",
        f"{ends[-1] / 1000:.1f}",
        cpu([cost.of_each(sizes.schedules)]),
        *(f"{part:,.0f}" for each in (rows, handlers) for part in (median(each), quantiles(each, n=100)[98])),
    )


def coming_minute() -> datetime:
    """Give the next full minute by which a worker can be there."""
    return (datetime.now(UTC) + timedelta(minutes=1, seconds=SOON_SECONDS)).replace(second=0, microsecond=0)


def await_minute(minute: datetime, store: str, url: str, schedules: int, meter: Meter) -> None:
    """Wait until all jobs have run; what it costs is counted from shortly before the minute on."""
    time.sleep(max(0.0, (minute - datetime.now(UTC)).total_seconds() - 1))
    meter.reset()
    until = time.monotonic() + LONGEST_SECONDS
    with connected(store, url) as execute:
        while count(execute, STARTED) < schedules or count(execute, OPEN):
            if time.monotonic() > until:
                raise Unsuited(f"the work was not done: {count(execute, STARTED)} of {schedules} ticks are there")
            time.sleep(0.25)
    meter.stop()


def count(execute: Callable[[str], Iterable[tuple[Any, ...]]], sql: str) -> int:
    """Ask for a number."""
    ((number,),) = execute(sql)
    return int(number)


def put_many(hf: Holdfast, runner: asyncio.Runner, store: str, url: str, cron: str, number: int) -> None:
    """Write *number* schedules: one as a program does, the others by hand, as copies."""
    runner.run(hf.schedules.put("schedule", scheduled(), cron=cron))
    with connected(store, url) as execute:
        execute(NUMBERED[store].format(insert=COPY, first=1, end=number) + ", holdfast_schedule")
        if store == "PostgreSQL":
            execute("ANALYZE")


# idle


def measure_idle(places: Places, store: str, sizes: Sizes) -> list[tuple[str, ...]]:
    """Watch an idle worker with schedules and one without, in turns; write a line for each."""
    found: dict[str, list[Watched]] = {}
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        urls = {}
        for name, number in (("without_schedules", 0), ("with_schedules", sizes.schedules)):
            urls[number] = stack.enter_context(places.address(store, name))
            hf = stack.enter_context(opened(urls[number], runner, TASKS))
            if number:
                put_many(hf, runner, store, urls[number], FAR, number)
        for _ in range(sizes.rounds):
            for number, url in urls.items():
                name = f"{store}: {number:,} schedules" if number else f"{store}: none"
                found.setdefault(name, []).append(idle.watch(places, store, url, sizes.watching))
    return [(name, *middle(each).cells, f"{sizes.watching.watch:g}") for name, each in found.items()]


def middle(rounds: list[Watched]) -> Watched:
    """Give the medians."""
    rates = [each.rate for each in rounds if each.rate is not None]
    served = [each.served for each in rounds if each.served is not None]
    return Watched(
        median(rates) if rates else None, median(each.share for each in rounds), median(served) if served else None
    )
