"""The application that the real workers of these tests run: `holdfast worker tests.acceptance.jobs_of_tests:hf`.

Its handlers write down when they begin and end, by the machine's monotonic clock, in a file that the test reads.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast import Context, Holdfast, Job, Retention, Tasks
from holdfast.outcomes import Pause, Reschedule, Retry
from holdfast.worker.attempts.context import BlockingContext

LEASE = 2.0
PLACE = "HOLDFAST_TEST_PLACE"

TASKS = Tasks()
task = TASKS.task(lease=LEASE, retry=Retry(first=0.05, maximum=0.05, jitter=0))


def place() -> Path:
    """The directory of this test: the log, and the gates that handlers wait for."""
    return Path(os.environ[PLACE])


def note(what: str, ctx: Context | BlockingContext, **facts: object) -> None:
    """Write a line to the log, whole: one write, at the end of the file."""
    line = {
        "what": what,
        "job": str(ctx.job.id),
        "task": ctx.job.task,
        "attempt": ctx.job.attempt,
        "lane": ctx.job.lane,
        "tenant": ctx.tenant,
    }
    text = json.dumps(line | {"at": time.monotonic(), "process": os.getpid()} | facts) + "\n"
    descriptor = os.open(place() / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, text.encode())
    os.close(descriptor)


@contextmanager
def noted(ctx: Context | BlockingContext) -> Iterator[None]:
    """Write down the beginning and the end of a handler."""
    note("begin", ctx)
    try:
        yield
    finally:
        note("end", ctx, aborted=ctx.abort_reason)


@task(name="quick")
async def quick(ctx: Context, n: int = 0) -> int:
    """Do nothing."""
    with noted(ctx):
        return n


@task(name="gated", timeout=3600)
async def gated(ctx: Context, gate: str = "gate") -> str:
    """Wait until the test opens *gate*."""
    with noted(ctx):
        while not (place() / gate).exists():
            await asyncio.sleep(0.02)
        return gate


@TASKS.task(name="drained", retry=Retry.never(), lease=LEASE, on_lost="fail", on_interrupt="pause")
async def drained(ctx: Context, gate: str = "gate") -> str:
    """Wait as `gated` does, with the policy of a target queue: nothing is repeated unless a person says so."""
    with noted(ctx):
        while not (place() / gate).exists():
            await asyncio.sleep(0.02)
        return gate


@task(name="gated_thread")
def gated_thread(ctx: BlockingContext, gate: str = "gate") -> str:
    """Wait in a thread until the test opens *gate*, whatever else is asked."""
    with noted(ctx):
        while not (place() / gate).exists():
            time.sleep(0.02)
        return gate


@task(name="blocks_the_loop")
async def blocks_the_loop(ctx: Context, seconds: float) -> str:
    """Sleep as one must not."""
    with noted(ctx):
        time.sleep(seconds)
        return "slept"


@task(name="cleans_up")
async def cleans_up(ctx: Context) -> str:
    """Take its time to clean up when it is interrupted."""
    with noted(ctx):
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.2)
            note("cleaned", ctx)
        return "never"


@task(name="lane_step")
async def lane_step(ctx: Context, seconds: float = 0.005) -> int:
    """Hold its lane for a moment."""
    with noted(ctx):
        await asyncio.sleep(seconds)
        return 1


@task(name="deadly")
async def deadly(ctx: Context, *, kill: bool = False) -> None:
    """Take its process down, by an exit or as the system does that runs out of memory."""
    note("begin", ctx)
    if kill:
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(9)


@task(name="moody")
async def moody(ctx: Context, mood: str) -> str:
    """End its first run in another way than by a result."""
    with noted(ctx):
        ctx.progress(50, "half")
        if (place() / mood).exists():
            return mood
        if mood in ("cancel", "wait"):
            await asyncio.Event().wait()
        (place() / mood).touch()
        match mood:
            case "error":
                raise ValueError(mood)
            case "snooze":
                raise Reschedule(after=0.05)
            case _:
                raise Pause(mood)


@task(name="in_blocks")
async def in_blocks(ctx: Context) -> int:
    """Do its work in two transactions of its own, the second of which completes it."""
    with noted(ctx):
        async with ctx.prepare() as tx:
            await tx.fetch_all("SELECT 1")
        async with ctx.complete() as tx:
            return tx.finish(1)


@task(name="pays")
async def pays(ctx: Context) -> int:
    """Pay in the transaction that completes it, and write down why that could not be."""
    try:
        async with ctx.complete() as tx:
            await tx.execute("INSERT INTO shop_paid (attempt) VALUES (:attempt)", attempt=ctx.job.attempt)
            return tx.finish(1)
    except Exception as error:
        note("unpaid", ctx, error=type(error).__name__)
        raise
    except asyncio.CancelledError:
        note("unpaid", ctx, error=f"cancelled: {ctx.abort_reason}")
        raise


@task(name="goes_on")
async def goes_on(ctx: Context) -> int:
    """Leave the rest to another job."""
    with noted(ctx):
        return ctx.continue_with(quick(n=9))


def note_end(job: Job) -> None:
    """Write down that retention is about to take a job through a stage."""
    with (place() / "ends").open("a") as stream:
        stream.write(f"{job.id}\n")


@task(name="kept", retention=Retention(on_stale=note_end, on_delete=note_end))
async def kept(ctx: Context) -> None:
    """Do nothing, and be asked about before it is marked or deleted."""


hf = Holdfast(os.environ.get("HOLDFAST_DATABASE", "jobs.db"), tasks=[TASKS])
