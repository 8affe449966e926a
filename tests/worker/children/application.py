"""The application that child processes import: its database stands in the environment, as in production."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import threading
from contextvars import ContextVar
from pathlib import Path

from holdfast import Context, Holdfast, Retry, Tasks
from holdfast.sync import Context as BlockingContext

tasks = Tasks()

HELD = 60.0
"""How long a handler waits at most for what its test does."""


in_child = tasks.task(run_in="process", retry=Retry.never())
"""Tasks that run in a child process, and are not tried again when they raise."""


@in_child
def own_pid() -> int:
    """Tell which process it is."""
    return os.getpid()


@in_child
def descriptors() -> list[str]:
    """Tell what is open in this process, and can be named."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(entry.readlink()))
        except FileNotFoundError:  # the one that lists them
            continue
    return found


@in_child
def say_pid_and_wait(ctx: BlockingContext, note: str) -> str:
    """Write down which process it is, and wait until it is to stop."""
    Path(note).write_text(str(os.getpid()))
    ctx.aborted.wait(HELD)
    ctx.raise_if_aborted()
    return "nobody stopped it"


@tasks.task(run_in="process", lease=2)
def tell_why_it_stops(ctx: BlockingContext, note: str, said: str) -> None:
    """Write down which process it is, wait until it is to stop, and write down why."""
    Path(note).write_text(str(os.getpid()))
    ctx.aborted.wait(HELD)
    Path(said).write_text(str(ctx.abort_reason))
    ctx.raise_if_aborted()


@in_child
def hold_on(note: str) -> None:
    """Take no notice of whatever happens."""
    Path(note).write_text(str(os.getpid()))
    threading.Event().wait(HELD)


@in_child
def say_pid_and_wait_for(note: str, gate: str) -> int:
    """Write down which process it is, and wait until the file *gate* is there."""
    Path(note).write_text(str(os.getpid()))
    waiting = threading.Event()
    while not Path(gate).exists():
        waiting.wait(0.01)
    return os.getpid()


@tasks.task(run_in="process")
def wait_unless_told(note: str, gate: str) -> int:
    """Say that it has begun, if there is a *note* for that, and wait for the file *gate*; both may be left out."""
    if note:
        Path(note).write_text(str(os.getpid()))
    waiting = threading.Event()
    while gate and not Path(gate).exists():
        waiting.wait(0.01)
    return os.getpid()


@tasks.task(run_in="process")
def wait_and_fork(note: str, gate: str) -> int:
    """Wait for the file *gate*, and leave the handler twice: as a copy first, and as itself when that is gone."""
    pid = wait_unless_told.function(note, gate)  # type: ignore[misc]
    if copy := os.fork():
        os.waitpid(copy, 0)
    return int(pid)


said_before: ContextVar[str] = ContextVar("said_before", default="nothing")


@tasks.task(run_in="process")
def say_what_was_said(word: str) -> str:
    """Tell what the last one has left in a context variable, and leave *word* there."""
    before = said_before.get()
    said_before.set(word)
    return before


@tasks.task(run_in="process")
def raise_or_continue(ctx: BlockingContext, how: str) -> str:
    """Come to an end in one of many ways, by a plain handler."""
    match how:
        case "raise":
            raise ValueError(how)
        case "fail":
            ctx.fail(how)
        case "complete":
            with ctx.complete() as tx:
                return tx.finish(how)
        case "continue":
            return ctx.continue_with(say_what_was_said(word=how))
    return how


@tasks.task(run_in="process")
def hold_the_lock_and_be_tried_again(note: str, gate: str) -> int:
    """Write down which process it is, and never give Python's lock back, unless the file *gate* is there."""
    Path(note).write_text(str(os.getpid()))
    if not Path(gate).exists():
        re.match(r"(a+)+$", "a" * 64 + "b")
    return os.getpid()


@in_child
def hold_the_lock(note: str) -> None:
    """Write down which process it is, and never give Python's lock back."""
    Path(note).write_text(str(os.getpid()))
    re.match(r"(a+)+$", "a" * 64 + "b")


@in_child(lease=1)
def hold_the_lock_then_complete(ctx: BlockingContext) -> int:
    """Hold Python's lock for three leases, and complete the job by a block at once."""
    ctypes.PyDLL(None).sleep(3)
    with ctx.complete() as tx:
        return tx.finish(ctx.job.attempt)


@in_child(timeout=0.3)
def hold_the_lock_for_too_long(note: str) -> None:
    """Do the same, with a time-out."""
    Path(note).write_text(str(os.getpid()))
    re.match(r"(a+)+$", "a" * 64 + "b")


@in_child(timeout=0.3)
async def swallow_every_stop(note: str) -> None:
    """Write down which process it is, and go on whatever happens, with all signals blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    Path(note).write_text(str(os.getpid()))
    while True:
        try:
            threading.Event().wait(0.01)
        except BaseException:  # noqa: BLE001 - that is what it is for
            continue


@in_child(timeout=0.3)
def stand_still(note: str) -> None:
    """Write down which process it is, and stop it."""
    Path(note).write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)


@tasks.task(run_in="process")
def take_down(how: str, note: str = "") -> int:
    """End this process, if nobody has told it otherwise by a file."""
    if note and Path(note).exists():
        return os.getpid()
    match how:
        case "exit":
            os._exit(3)
        case "abort":
            os.abort()
        case _:
            return len(ctypes.string_at(0))


@tasks.task(run_in="process", on_lost="pause")
def take_down_and_pause() -> None:
    """End this process; its task says what becomes of its job."""
    os._exit(3)


@in_child(memory_megabytes=64)
def take_memory(megabytes: int) -> int:
    """Take so much memory, and tell how much it got."""
    return len(bytearray(megabytes << 20)) >> 20


@in_child
async def complete_then_die(ctx: Context) -> int:
    """Complete the job by a block, and take the process down after that."""
    async with ctx.complete() as tx:
        tx.finish(7)
    os._exit(3)


@in_child
async def complete_then_wait(ctx: Context, note: str, gate: str) -> int:
    """Complete the job by a block, and have something to do after that."""
    async with ctx.complete() as tx:
        tx.finish(os.getpid())
    Path(note).write_text(str(os.getpid()))
    waiting = threading.Event()
    while not Path(gate).exists():
        waiting.wait(0.01)
    return os.getpid()


@tasks.task
async def wait_here(ctx: Context) -> None:
    """Wait in the worker's own process until it is to stop."""
    await ctx.aborted
    ctx.raise_if_aborted()


@tasks.task
async def here() -> int:
    """Run in the worker's own process."""
    return os.getpid()


hf = Holdfast(os.environ.get("HOLDFAST_DATABASE", "jobs.db"), tasks=[tasks])
