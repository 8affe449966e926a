"""One worker, as we ship it, running jobs that do nothing until so many of them are done and written down."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Unpack

from bench.machine import Unsuited
from bench.meter import Meter
from bench.rounds import Entrant, awaited
from holdfast import Holdfast, Tasks
from holdfast.worker.options import WorkerKeywords
from holdfast.worker.tally import Tally

TASK = "ours"
BATCH = 1000
TEXT = "x" * 188
"""Makes an argument of 200 bytes: `{"text":"xxx…"}`."""
INPUT = f'{{"text":"{TEXT}"}}'

TASKS = Tasks()


class Goal:
    """How many handlers are still to be called."""

    def __init__(self) -> None:
        self._left = 0
        self._counting = threading.Lock()
        self._is_reached = asyncio.Event()

    def set(self, count: int) -> None:
        """Wait for *count* more."""
        self._left = count
        self._is_reached = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def count(self) -> None:
        """Count one; called by the handler, in any thread."""
        with self._counting:
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            self._loop.call_soon_threadsafe(self._is_reached.set)

    async def wait(self) -> None:
        """Wait until all were called."""
        await self._is_reached.wait()


GOAL = Goal()


@TASKS.task(name=TASK)
async def work(text: str) -> None:
    """Do nothing, and be counted."""
    GOAL.count()


@contextmanager
def opened(url: str, runner: asyncio.Runner, tasks: Tasks = TASKS) -> Iterator[Holdfast]:
    """Open a database, for what runs *tasks*."""
    with ExitStack() as stack:
        hf = Holdfast(url, tasks=[tasks])
        runner.run(hf.migrate())
        runner.run(hf.open())
        stack.callback(lambda: runner.run(hf.close()))
        yield hf


async def fill(hf: Holdfast, count: int, lanes: int = 0) -> None:
    """Start *count* jobs, in turn in so many *lanes*."""
    for first in range(0, count, BATCH):
        numbers = range(first, min(first + BATCH, count))
        calls = [work(text=TEXT) for _ in numbers]
        if lanes:
            calls = [call.options(lane=f"lane-{n % lanes}") for call, n in zip(calls, numbers, strict=True)]
        await hf.start_many(calls)


@contextmanager
def without_figures() -> Iterator[None]:
    """Have workers count nothing of their attempts, to see what that costs."""
    kept = Tally.started, Tally.settled
    Tally.started, Tally.settled = (lambda *_: None), (lambda *_: None)  # type: ignore[method-assign]
    try:
        yield
    finally:
        Tally.started, Tally.settled = kept  # type: ignore[method-assign]


async def drain(hf: Holdfast, count: int, **options: Unpack[WorkerKeywords]) -> None:
    """Have one worker run *count* jobs; it ends when all of them are written down and the worker has stopped."""
    GOAL.set(count)
    async with hf.worker(**options):
        await GOAL.wait()


def entrant(name: str, count: int, hf: Holdfast, runner: asyncio.Runner, meter: Meter, lanes: int = 0) -> Entrant:
    """Make an entrant that starts *count* jobs, and is measured while it drains them."""

    async def run(count: int) -> None:
        await fill(hf, count, lanes)
        meter.reset()
        await drain(hf, count)

    return Entrant(name, count, awaited(run, runner))


COMPLETED = """
    SELECT holdfast_job.task, count(*) FROM holdfast_job
    JOIN holdfast_event ON holdfast_event.job = holdfast_job.seq AND holdfast_event.name = 'job:completed'
    WHERE holdfast_job.status = 'completed' GROUP BY holdfast_job.task"""


def check(done: dict[str, int], entrants: Sequence[tuple[str, Entrant]], rounds: int) -> str:
    """Say how many jobs are done; raise if it is not what the rounds should have left. Names go before entrants."""
    expected: dict[str, int] = {}
    for name, each in entrants:
        expected[name] = expected.get(name, 0) + each.count * (rounds + 1)
    if done != expected:
        raise Unsuited(f"the work was not done: there should be {expected}, there are {done}")
    return f"jobs done: {', '.join(f'{name} {number:,}' for name, number in sorted(done.items()))}"
