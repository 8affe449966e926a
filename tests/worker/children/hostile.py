"""Handlers that do to their child process what nobody should."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from holdfast import Holdfast, Misuse, Retry, Tasks

tasks = Tasks()

in_child = tasks.task(run_in="process", retry=Retry.never())


@tasks.task(run_in="process")
def write_to_every_socket(note: str) -> str:
    """Write something to whatever is a socket, the line to the worker among them; the second time, do not."""
    if Path(note).exists():
        return "not again"
    Path(note).touch()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(entry.name)).st_mode):
                os.write(int(entry.name), b"what is this")
    return "what nobody hears"


@in_child
def fork(note: str) -> int:
    """Leave the handler twice: as itself, and as its copy."""
    return _forked(note)


@in_child
async def fork_in_the_loop(note: str) -> int:
    """Do the same in the event loop."""
    return _forked(note)


def _forked(note: str) -> int:
    if copy := os.fork():
        Path(note).write_text(str(copy))
    return os.getpid()


@in_child
def own_pid() -> int:
    """Tell which process it is."""
    return os.getpid()


@in_child
def have_a_worker() -> str:
    """Make a worker in this process."""
    try:
        hf.worker()
    except Misuse as mistake:
        return str(mistake)
    return "it has one"


hf = Holdfast(os.environ.get("HOLDFAST_DATABASE", "jobs.db"), tasks=[tasks])
