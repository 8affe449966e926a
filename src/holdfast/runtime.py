"""What the engine takes from outside: clocks, chance, sleep, threads; handed in, so that a simulation can replace them.

No module but `threads` and this one reads `time`, `random` or starts a thread on its own (a test walks the sources).
Only the database's clock decides about jobs; these clocks measure waiting and stamp ids.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.signals import program_signals
from holdfast.threads import SlicedEvent, StepThread, Threads


class Stepper(Protocol):
    """Calls a step function whenever it is woken or its own time has come, one call at a time.

    The step answers in how many seconds it wants to be called again at the latest; None means when it is woken.
    """

    def wake(self) -> None:
        """Have the step called soon; wakes that arrive before it are one."""

    def stop(self) -> None:
        """Call the step no more; a call under way is finished first."""


class Signal(Protocol):
    """Something that one thread waits for and another sets, once."""

    def set(self) -> None:
        """Let those who wait go on."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or *timeout* seconds have passed; tell which."""


class Process(Protocol):
    """A child process."""

    @property
    def pid(self) -> int:
        """Its number."""

    def poll(self) -> int | None:
        """Give its exit code, or minus the signal that ended it; None while it lives."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raise `subprocess.TimeoutExpired` after *timeout* seconds."""

    def kill(self) -> None:
        """End it, whatever it does."""


def spawn(module: str, descriptors: Sequence[int]) -> Process:
    """Start a new interpreter that calls `main` of *module*; it has *descriptors*, stdout and stderr, no other files.

    It finds the module where we do, but what Python itself brings first, whatever lies in the directory it begins in.
    """
    program = f"import sys; sys.path += {sys.path!r}; from {module} import main; main(sys.argv)"
    command = [sys.executable, "-P", "-c", program, *map(str, descriptors)]
    with program_signals():
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=descriptors)


def wall_ms() -> int:
    """Read this machine's clock, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def file_mark(path: str) -> object:
    """Give what changes when the file at *path* is written, as far as its clock ticks; None if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - fifty times a second
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(frozen=True, slots=True)
class Runtime:
    """The outside world, as the engine is given it."""

    wall_ms: Callable[[], int] = wall_ms
    monotonic: Callable[[], float] = time.monotonic
    chance: random.Random = field(default_factory=random.SystemRandom)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    sleep_blocking: Callable[[float], None] = time.sleep
    stepper: Callable[[Callable[[], float | None], str], Stepper] = StepThread
    signal: Callable[[], Signal] = SlicedEvent
    threads: Threads = field(default_factory=Threads)
    spawn: Callable[[str, Sequence[int]], Process] = spawn
    file_mark: Callable[[str], object] = file_mark
    has_file_alarms: bool = sys.platform == "linux"
    """Whether the kernel can notify us when a file is written."""
