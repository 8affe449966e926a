"""How long it takes from the call of `start` until the handler runs, with a worker that idles, on both stores.

The start is durable before the worker hears of it. *One process* is a worker in the event loop that starts the job,
*two processes* one in another. Between two starts there is a pause, in which the worker falls asleep. The CPU is that
of all processes for a start, with the pause before it; that of a peer has its worker's start-up in it, too.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median

from bench import worker_process
from bench.machine import Unsuited
from bench.meter import Cost, Meter
from bench.peers import rivals
from bench.peers.rivals import Rivals
from bench.places import Places, both
from bench.report import CPU, cpu, grid
from bench.rounds import Dropout, ratios
from holdfast import Holdfast, Tasks

HEADER = ("start to handler", "p50 ms", "p99 ms", "longest ms", "starts", CPU, "target", "")
NUMBERS = ("p50 ms", "p99 ms", "longest ms", "starts", CPU, "target")
TASKS = Tasks()
begun: asyncio.Queue[int] = asyncio.Queue()


@TASKS.task(name="mark")
async def mark(sent: int) -> None:
    """Say how long it took to come here."""
    begun.put_nowait(time.monotonic_ns() - sent)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many rounds there are, how many starts each has, and the seconds before each start and before the first.

    Of the peers only pgqueuer, which we aim at, has as many starts; some take a tenth of a second for one.
    """

    rounds: int = 5
    starts: int = 40
    fewer: int = 15
    pause: float = 0.03
    sleep: float = 1.5


QUICK = Sizes(rounds=1, starts=3, fewer=3, pause=0.01, sleep=0.1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--peers", action="store_true", help="also nine other engines, installed on first use")
    parser.add_argument("--quick", action="store_true", help="tiny counts: shows that it works, and nothing else")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; the exit code says whether it could be measured, not whether targets are met."""
    sizes = QUICK if arguments.quick else Sizes()
    with both(is_quick=arguments.quick) as places, ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        kinds: list[Kind] = []
        meters = {store: places.meter(store) for store in ("SQLite", "PostgreSQL")}
        for store, meter in meters.items():
            one = stack.enter_context(places.address(store, "one_process"))
            two = stack.enter_context(places.address(store, "two_processes"))
            kinds.append(Kind(f"{store}: one process", meter, partial(in_one_process, one, sizes, runner, meter)))
            kinds.append(Kind(f"{store}: two processes", meter, partial(in_two_processes, two, sizes, runner, meter)))
        if arguments.peers:
            kinds += peers(stack, places, sizes, meters)
        found = take_rounds(kinds, sizes.rounds)
        print(grid(HEADER, [line(name, rounds, found) for name, rounds in found.items()], NUMBERS))
    return 0


@dataclass(frozen=True, slots=True)
class Round:
    """The milliseconds of each start of a round, and what a start has cost."""

    milliseconds: list[float]
    cost: Cost


@dataclass(frozen=True, slots=True)
class Kind:
    """One line: *run* starts jobs and gives the milliseconds that each needed, *meter* measures what that costs."""

    name: str
    meter: Meter
    run: Callable[[], list[float]]

    def take(self) -> Round:
        """Take a turn."""
        milliseconds: list[float] = []
        cost = self.meter.measure(lambda: milliseconds.extend(self.run()))
        return Round(milliseconds, cost.of_each(max(len(milliseconds), 1)))


def take_rounds(kinds: Sequence[Kind], rounds: int) -> dict[str, list[Round]]:
    """Measure each kind once a round; who drops out is told of, and is not in the answer."""
    found: dict[str, list[Round]] = {each.name: [] for each in kinds}
    for _ in range(rounds):
        for each in kinds:
            if each.name not in found:
                continue
            try:
                found[each.name].append(each.take())
            except Dropout as error:
                print(f"{each.name} dropped out: {error}", flush=True)
                del found[each.name]
    return found


def in_one_process(url: str, sizes: Sizes, runner: asyncio.Runner, meter: Meter) -> list[float]:
    """Start jobs beside their worker; give milliseconds."""
    return runner.run(start_beside(url, sizes, meter))


async def start_beside(url: str, sizes: Sizes, meter: Meter) -> list[float]:
    """Start jobs in the event loop of their worker."""
    hf = Holdfast(url, tasks=[TASKS])
    await hf.migrate()
    milliseconds = []
    async with hf.worker():
        await asyncio.sleep(sizes.sleep)
        meter.reset()
        for _ in range(sizes.starts):
            await asyncio.sleep(sizes.pause)
            await hf.start(mark(sent=time.monotonic_ns()))
            milliseconds.append(await begun.get() / 1e6)
        meter.stop()
    await hf.close()
    return milliseconds


def in_two_processes(url: str, sizes: Sizes, runner: asyncio.Runner, meter: Meter) -> list[float]:
    """Start jobs for a worker in another process; give milliseconds."""
    hf = Holdfast(url, tasks=[worker_process.TASKS])
    runner.run(hf.migrate())
    milliseconds = []
    with worker_process.worker_process(url) as worker:
        time.sleep(sizes.sleep)
        meter.reset()
        for _ in range(sizes.starts):
            time.sleep(sizes.pause)
            runner.run(start_for(hf))
            milliseconds.append(int(worker.read()) / 1e6)
        meter.stop()
    runner.run(hf.close())
    return milliseconds


async def start_for(hf: Holdfast) -> None:
    """Start a job for the worker of another process."""
    await hf.start(worker_process.note(sent=time.monotonic_ns()))


def peers(stack: ExitStack, places: Places, sizes: Sizes, meters: Mapping[str, Meter]) -> list[Kind]:
    """Start the peers that can be had; give how each is measured."""
    here = Rivals(stack, places, "x" * 200)
    served = {"PostgreSQL": rivals.POSTGRES, "SQLite": (*rivals.SQLITE, *rivals.REDIS)}
    return [
        Kind(
            f"{each.name}: {'two processes' if each.peer.name == 'celery' else 'one process'}",
            meters[store],
            partial(process.numbers, "latency", sizes.starts if each.name == "pgqueuer" else sizes.fewer),
        )
        for store, wanted in served.items()
        for each, process in here.start(wanted, store)
    ]


def line(name: str, rounds: Sequence[Round], found: Mapping[str, Sequence[Round]]) -> tuple[str, ...]:
    """Write the cells of one kind; raise if a job was not run."""
    all_of_them = sorted(each for one in rounds for each in one.milliseconds)
    if len({len(each.milliseconds) for each in rounds}) != 1 or not all_of_them:
        raise Unsuited(f"the work was not done: {name} has {[len(each.milliseconds) for each in rounds]} starts")
    p50, p99 = median(all_of_them), all_of_them[int(len(all_of_them) * 0.99)]
    target, is_met = aim(name, p50, p99, found)
    cells = (f"{p50:.1f}", f"{p99:.1f}", f"{all_of_them[-1]:.1f}", f"{len(all_of_them):,}")
    costs = cpu([each.cost for each in rounds])
    return (name, *cells, costs, target, "" if is_met is None else "✓" if is_met else "✗")


def aim(name: str, p50: float, p99: float, found: Mapping[str, Sequence[Round]]) -> tuple[str, bool | None]:
    """Say what is aimed for, and whether it is reached; beside pgqueuer, if that was measured, round by round."""
    if name == "SQLite: two processes":
        return "p50 ≤ 15", p50 <= 15
    if name == "PostgreSQL: one process" and (theirs := found.get("pgqueuer: one process")):
        own, other = ([median(each.milliseconds) for each in rounds] for rounds in (found[name], theirs))
        ratio = median(ratios(other, own))
        return f"p50 ≤ 1 of pgqueuer (is {ratio:.2f}), p99 < 20", ratio <= 1 and p99 < 20
    if name.startswith("PostgreSQL"):
        return "p99 < 20", p99 < 20
    return "", None
