"""How well handlers that cost CPU use two cores: 1 ms each, in one and two worker processes, in one and two children.

Plain Python keeps the interpreter to itself, so one process has one core, however many threads it has. *Bare* is the
same function called in a loop, in one or two processes, without any engine. The workers are those that we ship
(`holdfast worker`), are up before the first round and idle while others have their turn; each serves a queue of its
own, which is paused while its jobs are started. What is timed: from the resumption until all of them are completed.
*Tiny jobs* are those that cost nothing, so what is measured is the way to a child and back.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from subprocess import DEVNULL, PIPE, Popen
from typing import Any
from uuid import UUID

from bench.drain import BATCH
from bench.machine import Unsuited
from bench.meter import Meter
from bench.places import Places, both
from bench.report import Comparison, table
from bench.rounds import Entrant, awaited, take_turns
from holdfast import Holdfast, WaitTimeout
from holdfast.tasks.task import Task

MILLISECONDS = 1.0
LOOK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many jobs are run in one round, and how many rounds there are."""

    rounds: int = 5
    jobs: int = 1_500


QUICK = Sizes(rounds=1, jobs=20)


@dataclass(frozen=True, slots=True)
class Crew:
    """Workers that are measured: the queue that they serve, their task, and what `holdfast worker` is told."""

    queue: str
    task: str
    options: tuple[str, ...]


CREWS = {
    "one process": Crew("one", "in_thread", ("--concurrency", "4")),
    "two processes": Crew("two", "in_thread", ("--concurrency", "4", "--processes", "2")),
    "one child": Crew("child", "in_child", ("--children", "1")),
    "two children": Crew("children", "in_child", ("--children", "2")),
}


def comparisons(store: str) -> tuple[Comparison, ...]:
    """Say what is set beside what."""
    return (
        Comparison(f"{store}: two processes", f"{store}: one process", 1.8),
        Comparison(f"{store}: two children", f"{store}: one child", 1.8),
        Comparison(f"{store}: one process", "bare, one process"),
        Comparison(f"{store}: two processes", "bare, two processes"),
        Comparison(f"{store}: one child", "bare, one process"),
        Comparison(f"{store}: two children", "bare, two processes"),
        Comparison("bare, two processes", "bare, one process"),
        Comparison(f"{store}: one child, tiny jobs", f"{store}: one process, tiny jobs"),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--quick", action="store_true", help="tiny counts: shows that it works, and nothing else")
    parser.add_argument("--only", choices=("sqlite", "postgres"), help="one of the stores")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; the exit code says whether it could be measured, not whether targets are met."""
    sizes = QUICK if arguments.quick else Sizes()
    stores = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
    wanted = [name for key, name in stores.items() if arguments.only in (None, key)]
    with both(is_quick=arguments.quick) as places:
        spins = calibrate()
        print(f"{spins:,} turns of the loop are {MILLISECONDS:g} ms of CPU here", end="\n\n", flush=True)
        for store in wanted:
            print(measure(places, store, spins, sizes), end="\n\n", flush=True)
    return 0


def calibrate() -> int:
    """Find how many turns cost a millisecond, by the fastest of some tries."""
    from bench.cpu_application import spin

    spins = 50_000
    tries = []
    for _ in range(9):
        started = time.process_time()
        spin(spins)
        tries.append(time.process_time() - started)
    return round(spins * MILLISECONDS / 1000 / min(tries))


def measure(places: Places, store: str, spins: int, sizes: Sizes) -> str:
    """Measure one store; answer its table."""
    with ExitStack() as stack:
        url = stack.enter_context(places.address(store, "cpu"))
        environment = {**os.environ, "HOLDFAST_DATABASE": url}
        runner = stack.enter_context(asyncio.Runner())
        hf = Holdfast(url)
        runner.run(hf.migrate())
        runner.run(hf.open())
        stack.callback(lambda: runner.run(hf.close()))
        declared: dict[str, Task[..., int]] = {
            name: hf.declare(name, Spins, int) for name in sorted({crew.task for crew in CREWS.values()})
        }
        workers = {name: stack.enter_context(at_work(crew, environment)) for name, crew in CREWS.items()}

        meter = places.meter(store)

        async def drain(name: str, spins: int, count: int) -> None:
            crew = CREWS[name]
            ids = await fill_paused(hf, declared[crew.task], crew.queue, spins, count)
            meter.reset()
            await drain_queue(hf, crew.queue, ids, workers[name])

        def crew(name: str, spins: int) -> Callable[[int], object]:
            return awaited(partial(drain, name, spins), runner)

        entrants = [
            Entrant("bare, one process", sizes.jobs, partial(bare, meter, spins, 1)),
            Entrant("bare, two processes", sizes.jobs, partial(bare, meter, spins, 2)),
            *(Entrant(f"{store}: {name}", sizes.jobs, crew(name, spins)) for name in CREWS),
            *(
                Entrant(f"{store}: {name}, tiny jobs", sizes.jobs, crew(name, 0))
                for name in ("one process", "one child")
            ),
        ]
        return table(comparisons(store), take_turns(entrants, sizes.rounds, meter))


@dataclass(frozen=True, slots=True)
class Spins:
    """The argument of the tasks."""

    spins: int


@contextmanager
def at_work(crew: Crew, environment: dict[str, str]) -> Iterator[Popen[bytes]]:
    """Have a crew work until the block ends."""
    command = [sys.executable, "-m", "holdfast", "worker", "bench.cpu_application:hf", "--queues", crew.queue]
    with Popen([*command, *crew.options], env=environment, stderr=DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()


def bare(meter: Meter, spins: int, processes: int, count: int) -> None:
    """Spin without an engine, in so many processes at once, until the slowest is ready."""
    command = [sys.executable, "-m", "bench.cpu_application", str(spins), str(count // processes)]
    crew = [Popen(command, stdin=PIPE, stdout=PIPE, text=True) for _ in range(processes)]
    with ExitStack() as stack:
        for each in crew:
            stack.enter_context(each)
        for each in crew:
            tell(each, "")
        meter.reset()
        for each in crew:
            tell(each, "go\n")
        for each in crew:
            tell(each, "")
        meter.stop()


def tell(process: Popen[str], word: str) -> str:
    """Send a word, or without one wait for the answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    if word:
        process.stdin.write(word)
        process.stdin.flush()
        return ""
    line = process.stdout.readline()
    if not line:
        raise Unsuited(f"a process that was to spin ended with code {process.wait()}")
    return line


async def fill_paused(hf: Holdfast, task: Task[..., Any], queue: str, spins: int, count: int) -> list[UUID]:
    """Pause a queue, start *count* jobs in it, and give them."""
    await hf.queue(queue).pause()
    ids: list[UUID] = []
    for first in range(0, count, BATCH):
        calls = [task(spins=spins).options(queue=queue) for _ in range(first, min(first + BATCH, count))]
        ids += [chain.id for chain in await hf.start_many(calls)]
    return ids


async def drain_queue(hf: Holdfast, queue: str, ids: Sequence[UUID], worker: Popen[bytes]) -> None:
    """Resume a queue, and wait until *worker* has completed all of its jobs."""
    await hf.queue(queue).resume()
    for some in (ids[-1:], ids):  # the last one first: to wait for it alone costs those least who work
        await wait_for(hf, some, worker)


async def wait_for(hf: Holdfast, ids: Sequence[UUID], worker: Popen[bytes]) -> None:
    """Wait until all are completed, as long as *worker* lives."""
    while True:
        try:
            await hf.wait(ids, timeout=LOOK_SECONDS)
            return
        except WaitTimeout:
            if (code := worker.poll()) is not None:
                raise Unsuited(f"the worker ended with code {code}") from None
