"""Handlers that nobody can stop, for real workers: `holdfast worker tests.acceptance.stubborn:hf`.

Each is so in its first run only, so that whoever takes the job over ends it.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import time

from holdfast import Context, Holdfast, Tasks
from holdfast.outcomes import Retry
from holdfast.worker.attempts.context import BlockingContext
from tests.acceptance.jobs_of_tests import note, noted

LEASE = 4.0

TASKS = Tasks()
SOON = Retry(first=0.05, maximum=0.05, jitter=0)
task = TASKS.task(lease=LEASE, timeout=1.0, retry=SOON)
CHILD_TASKS = Tasks()

KEEPING_THE_GIL = ctypes.PyDLL(None)
"""The C library, called as an extension module calls it that does not let other threads run."""


@task(name="spins")
async def spins(ctx: Context) -> str:
    """Keep the event loop from running, for ever."""
    with noted(ctx):
        while ctx.job.attempt == 1:
            pass
        return "stopped"


@task(name="sleeps")
def sleeps(ctx: BlockingContext) -> str:
    """Sleep in a thread for ever, whatever is asked."""
    with noted(ctx):
        for _ in itertools.count():
            if ctx.job.attempt > 1:
                return "stopped"
            time.sleep(0.05)
        return "never"


@task(name="swallows", timeout=None)
async def swallows(ctx: Context) -> str:
    """Take no notice of the first time that it is cancelled, as some libraries do."""
    with noted(ctx):
        for _ in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                note("cancelled", ctx)
        raise asyncio.CancelledError


@task(name="returns_late")
def returns_late(ctx: BlockingContext) -> int:
    """Take no notice of its time-out in a thread, and return after it."""
    with noted(ctx):
        ctx.aborted.wait()
        return ctx.job.attempt


@task(name="swallows_its_timeout")
async def swallows_its_timeout(ctx: Context) -> int:
    """Take no notice of its time-out in the event loop, and return after it."""
    with noted(ctx):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return ctx.job.attempt


@task(name="stops_at_its_timeout", retry=Retry.never())
def stops_at_its_timeout(ctx: BlockingContext) -> None:
    """Stop when its time is over."""
    with noted(ctx):
        ctx.aborted.wait()
        ctx.raise_if_aborted()


@task(name="keeps_the_gil")
def keeps_the_gil(ctx: BlockingContext, seconds: float) -> str:
    """Let no other thread of this process run for a while."""
    with noted(ctx):
        if ctx.job.attempt == 1:
            KEEPING_THE_GIL.usleep(int(seconds * 1_000_000))
            note("let_go", ctx)
        return "stopped"


@task(name="sits_in_a_thread")
def sits_in_a_thread(ctx: BlockingContext) -> str:
    """Sit in a block until it is told to stop."""
    with noted(ctx), ctx.complete() as tx:
        while ctx.job.attempt == 1:
            tx.fetch_all("SELECT 1")
            time.sleep(0.05)
        return tx.finish("stopped")


@CHILD_TASKS.task(name="sits_in_a_child", run_in="process", lease=LEASE, timeout=1.0, retry=SOON)
def sits_in_a_child(ctx: BlockingContext) -> str:
    """Sit in a block for ever; only its time-out ends it."""
    with noted(ctx), ctx.complete() as tx:
        tx.fetch_all("SELECT 1")
        while ctx.job.attempt == 1:
            time.sleep(0.05)
        return tx.finish("stopped")


hf = Holdfast(os.environ.get("HOLDFAST_DATABASE", "jobs.db"), tasks=[TASKS])
with_children = Holdfast(os.environ.get("HOLDFAST_DATABASE", "jobs.db"), tasks=[TASKS, CHILD_TASKS])
