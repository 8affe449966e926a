"""What handlers and tests tell each other, by files, for they may be in two processes: notes there, gates back."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from holdfast.errors import HoldfastError
from tests.support.conditions import GLANCE_SECONDS, until
from tests.support.processes.lines import whole_lines
from tests.worker.runners.behaviours import LONGEST_SECONDS, is_plain

PLACE = "HOLDFAST_RUNNERS_PLACE"


def place() -> Path:
    """The directory of this run: notes and gates by job, and the SQLite file."""
    return Path(os.environ[PLACE])


def note(ctx: Any, *words: Any) -> None:
    """Write a line for the test, whole: one write, at the end of the file of this job."""
    descriptor = os.open(place() / f"{ctx.job.id}.notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{json.dumps(words)}\n".encode())
    finally:
        os.close(descriptor)


def read_notes(job_id: UUID) -> list[list[Any]]:
    """Read what the handler of a job has written, in all its attempts."""
    return [json.loads(line) for line in whole_lines(place() / f"{job_id}.notes")]


def open_gate(job_id: UUID) -> None:
    """Let the handler of a job pass its gate."""
    (place() / f"{job_id}.gate").touch()


def gate_of(ctx: Any) -> Path:
    """The file that is there when the gate of this job is open."""
    return place() / f"{ctx.job.id}.gate"


async def pass_gate(ctx: Any) -> None:
    """Wait until the test opens the gate of this job."""
    await wait_until(ctx, gate_of(ctx).exists, "the test opens the gate")


async def wait_until(ctx: Any, condition: Callable[[], bool], what: str) -> None:
    """Wait, as a handler of its colour does, until *condition* holds; fail naming *what* did not happen."""
    if not is_plain(ctx):
        await until(condition, what, LONGEST_SECONDS)
        return
    glance, deadline = threading.Event(), time.monotonic() + LONGEST_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"did not happen: {what}"
        glance.wait(GLANCE_SECONDS)


async def pass_gate_whatever_happens(ctx: Any) -> None:
    """The same for a handler that does not stop when it is told to: what it does next is what is tested."""
    with suppress(asyncio.CancelledError):
        await pass_gate(ctx)


@asynccontextmanager
async def noting_errors(ctx: Any) -> AsyncIterator[None]:
    """Write down what is raised inside, one of ours by its code and reason, and let it pass."""
    try:
        yield
    except BaseException as error:
        word = error.code if isinstance(error, HoldfastError) else type(error).__name__
        note(ctx, "raised", word, str(getattr(error, "reason", error)))
        raise
