"""The application that the workers of a torture run run: `holdfast worker tests.torture.application:hf`.

What an attempt comes to stands in its job's input, so that a seed decides it, until the run is calm: then all ends
well, and quickly, but for a job that has taken its process down twice, which is to be found poison. The output is the
number of the attempt, so that a stale one can be told. Handlers write down when they begin and end; what they write in
blocks goes into a table of the user's, in the job's own transaction.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from functools import cache
from typing import Any, Self

from holdfast import Call, Context, Holdfast, Tasks
from holdfast.outcomes import Fail, Pause, Reschedule, Retry
from holdfast.tasks.task import RunIn
from holdfast.worker.attempts.context import BlockingContext
from tests.torture.notes import Notes, end_with_parent, is_set, place

LEASE_SECONDS = 4.0
SUSPECT = 2
"""So many crashes and a job is run in a process of its own, where the third makes it poison."""
PHASES = ("fetch", "cut", "send")
CHILDREN = "TORTURE_CHILDREN"
"""Set in the environment where tasks run in child processes, too: each costs a second of CPU before its first job."""
CHILD: RunIn | None = "process" if CHILDREN in os.environ else None
end_with_parent()
TASKS = Tasks()
task = TASKS.task(lease=LEASE_SECONDS, retry=Retry(attempts=8, first=0.2, maximum=1.0))


@cache
def runs() -> Notes:
    """What handlers write down."""
    return Notes(place() / "runs.jsonl")


def is_calm() -> bool:
    """Tell whether faults and mishaps have stopped."""
    return is_set("calm")


class Run:
    """An attempt, whose beginning and end are written down; the end once."""

    def __init__(self, ctx: Context | BlockingContext) -> None:
        self._ctx = ctx
        self._has_ended = False

    def __enter__(self) -> Self:
        job = self._ctx.job
        more = {"task": job.task, "lane": job.lane, "crashes": job.crashes, "parent": os.getppid()}
        runs().write(what="begin", **self._facts, **more)
        return self

    def end(self) -> None:
        """Write the end down: right before a block commits, for then others of its lane may begin."""
        if not self._has_ended:
            self._has_ended = True
            runs().write(what="end", **self._facts, reason=self._ctx.abort_reason)

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def _facts(self) -> dict[str, Any]:
        return {"job": str(self._ctx.job.id), "attempt": self._ctx.job.attempt, "process": os.getpid()}


def end(ctx: Context | BlockingContext, fate: str) -> None:
    """End an attempt otherwise than well, if that is its *fate*."""
    is_spared = is_calm() and not (fate == "abort" and ctx.job.crashes == SUSPECT)
    match "well" if is_spared else fate:
        case "error" if ctx.job.used <= 2:
            raise OSError(f"attempt {ctx.job.attempt}")
        case "fatal":
            raise Fail("no use")
        case "pause" if ctx.job.attempt <= 2:
            raise Pause("look at this")
        case "later" if ctx.job.attempt <= 2:
            raise Reschedule(after=0.3)
        case "abort":
            runs().write(what="abort", job=str(ctx.job.id), attempt=ctx.job.attempt, process=os.getpid())
            os.abort()


async def spend(seconds: float, fate: str = "well") -> None:
    """Take time, but little of it once the run is calm; who is deaf does not hear that it is to stop."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not is_calm():
        try:
            await asyncio.sleep(min(left, 0.2))
        except asyncio.CancelledError:
            if fate != "deaf":
                raise


def spend_thread(ctx: BlockingContext, seconds: float, fate: str) -> None:
    """Take time in a thread, or in a child, which must look by itself whether it is to stop."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not is_calm():
        if fate != "deaf":
            ctx.raise_if_aborted()
        time.sleep(min(left, 0.1))


EFFECT = "INSERT INTO torture_effect (job, attempt, what) VALUES (:job, :attempt, :what)"


def effect(ctx: Context | BlockingContext, what: str) -> dict[str, Any]:
    """Make the values of a row of the user's."""
    return {"job": str(ctx.job.id), "attempt": ctx.job.attempt, "what": what}


@task(name="steady")
async def steady(ctx: Context, seconds: float = 0.0, fate: str = "well", after: int = 0) -> int:
    """Return."""
    with Run(ctx):
        await spend(seconds, fate)
        end(ctx, fate)
        return ctx.job.attempt


@task(name="threaded")
def threaded(ctx: BlockingContext, seconds: float = 0.0, fate: str = "well", after: int = 0) -> int:
    """Return, out of a thread."""
    with Run(ctx):
        spend_thread(ctx, seconds, fate)
        end(ctx, fate)
        return ctx.job.attempt


@task(name="booked")
async def booked(ctx: Context, seconds: float = 0.0, fate: str = "well", after: int = 0) -> int:
    """Complete in a block, after another."""
    with Run(ctx) as run:
        async with ctx.prepare() as tx:
            await tx.execute(EFFECT, **effect(ctx, "prepared"))
        await spend(seconds, fate)
        async with ctx.complete() as tx:
            await tx.execute(EFFECT, **effect(ctx, "done"))
            end(ctx, fate)
            run.end()
            return tx.finish(ctx.job.attempt)


@task(name="booked_in_thread")
def booked_in_thread(ctx: BlockingContext, seconds: float = 0.0, fate: str = "well", after: int = 0) -> int:
    """Complete in a block, out of a thread."""
    with Run(ctx) as run:
        spend_thread(ctx, seconds, fate)
        with ctx.complete() as tx:
            tx.execute(EFFECT, **effect(ctx, "done"))
            end(ctx, fate)
            run.end()
            return tx.finish(ctx.job.attempt)


@task(name="chained")
async def chained(ctx: Context, seconds: float = 0.0, fate: str = "well", after: int = 0, left: int = 2) -> int:
    """Go on with another step, by a block and without one in turns, until none is left."""
    with Run(ctx) as run:
        await spend(seconds, fate)
        end(ctx, fate)
        if left == 0:
            return ctx.job.attempt
        if left % 2:
            return ctx.continue_with(_step(ctx, seconds, fate, left - 1))
        async with ctx.complete() as tx:
            await tx.execute(EFFECT, **effect(ctx, "done"))
            run.end()
            return tx.continue_with(_step(ctx, seconds, fate, left - 1))


def _step(ctx: Context, seconds: float, fate: str, left: int) -> Call[int]:
    return chained(seconds=seconds, fate=fate, after=ctx.job.attempt, left=left)


@task(name="in_child", run_in=CHILD)
def in_child(ctx: BlockingContext, seconds: float = 0.0, fate: str = "well", after: int = 0) -> int:
    """Return, out of a process of its own."""
    with Run(ctx):
        spend_thread(ctx, seconds, fate)
        end(ctx, fate)
        return ctx.job.attempt


@task(name="booked_in_child", run_in=CHILD)
def booked_in_child(ctx: BlockingContext, seconds: float = 0.0, fate: str = "well", after: int = 0) -> int:
    """Complete in a block, out of a process of its own."""
    with Run(ctx) as run:
        spend_thread(ctx, seconds, fate)
        with ctx.complete() as tx:
            tx.execute(EFFECT, **effect(ctx, "done"))
            end(ctx, fate)
            run.end()
            return tx.finish(ctx.job.attempt)


@task(name="staged", phases=PHASES)
async def staged(ctx: Context, seconds: float = 0.0, fate: str = "well", after: int = 0) -> int:
    """Go on where it was interrupted."""
    with Run(ctx):
        for name in PHASES:

            async def run(name: str = name) -> str:
                runs().write(what="phase", job=str(ctx.job.id), attempt=ctx.job.attempt, name=name)
                await spend(seconds / 3)
                if name == PHASES[1]:
                    end(ctx, fate)
                return f"{name} {ctx.job.attempt}"

            given = await ctx.phase(name, run)
            runs().write(what="given", job=str(ctx.job.id), attempt=ctx.job.attempt, name=name, result=given)
        return ctx.job.attempt


KINDS: tuple[Callable[..., Call[int]], ...] = (
    *[steady] * 6, *[threaded] * 2, *[booked] * 2, booked_in_thread, chained, staged, in_child, booked_in_child,
)  # fmt: skip
"""The tasks, as often as their jobs are started."""
hf = Holdfast(os.environ.get("HOLDFAST_DATABASE", "jobs.db"), tasks=[TASKS])
