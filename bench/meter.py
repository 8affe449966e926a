"""What work costs: its seconds, and the CPU of the client and of the server, which holds still when a machine does not.

The *client* is this process and every process that it has started: workers, their children, peers and their Redis. The
*server* is PostgreSQL with all of its processes, so what the writer of its log and a vacuum do meanwhile is counted,
too. SQLite has none. Where there is no `/proc`, or the server is on another machine, its CPU is unknown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import NamedTuple

import psycopg

TICKS = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds by the clock, and seconds of CPU; *server* is None if there is none or it cannot be seen."""

    seconds: float
    client: float
    server: float | None = None

    @property
    def cpu(self) -> float:
        """The CPU of both."""
        return self.client + (self.server or 0.0)

    def of_each(self, count: int) -> Cost:
        """Share it among *count* jobs."""
        server = None if self.server is None else self.server / count
        return Cost(self.seconds / count, self.client / count, server)


class Meter:
    """Measures one work after the other; *postmaster* is the process of the server, None if there is none."""

    def __init__(self, postmaster: int | None = None) -> None:
        self._postmaster = postmaster
        self.reset()

    def measure(self, work: Callable[[], object]) -> Cost:
        """Do *work* and tell what it cost: all of it, unless it resets or stops the meter."""
        self.reset()
        work()
        return self.read()

    def reset(self) -> None:
        """Forget what the work has cost so far: that was preparation."""
        self._cost: Cost | None = None
        self._others = self._look_at_others()
        self._own = _own_cpu()
        self._began = time.perf_counter()

    def stop(self, seconds: float | None = None) -> None:
        """Count no more: what comes is clearing up. A peer tells its *seconds* itself."""
        cost = self._since()
        self._cost = cost if seconds is None else replace(cost, seconds=seconds)

    def read(self) -> Cost:
        """Tell what it has cost since the meter was reset, until it was stopped or until now."""
        return self._since() if self._cost is None else self._cost

    def _since(self) -> Cost:
        # in the opposite order, so that to look at others, which takes a while, is in neither
        seconds = time.perf_counter() - self._began
        own = _own_cpu() - self._own
        before, now = self._others, self._look_at_others()
        server = None if before.server is None or now.server is None else now.server - before.server
        return Cost(seconds, own + now.started - before.started, server)

    def _look_at_others(self) -> _Others:
        processes = _processes()
        served = _below(processes, self._postmaster)
        started = _below(processes, os.getpid()) - served - {os.getpid()}
        server = sum((_precise(pid) or processes[pid].cpu) + processes[pid].ended for pid in served)
        client = sum(processes[pid].cpu + processes[pid].ended for pid in started)
        return _Others(client, server if served else None)


class _Others(NamedTuple):
    """The CPU of the processes that this one has started, and of the server."""

    started: float
    server: float | None


def _own_cpu() -> float:
    """Tell the CPU of this process and of those that it has started and seen end."""
    return sum(each.ru_utime + each.ru_stime for each in (getrusage(RUSAGE_SELF), getrusage(RUSAGE_CHILDREN)))


def postmaster(url: str) -> int | None:
    """Find the first process of the server at *url*; None if it is not on this machine."""
    with psycopg.connect(url) as connection:
        (backend,) = connection.execute("SELECT pg_backend_pid()").fetchone() or (0,)
        process = _processes().get(backend)
    return process.parent if process is not None and process.name == "postgres" else None


class _Process(NamedTuple):
    """A process: its CPU so far, and that of its children that have ended."""

    name: str
    parent: int
    cpu: float
    ended: float


def _processes() -> dict[int, _Process]:
    return {int(place.name): each for place in PROC.glob("[0-9]*") if (each := _process(place)) is not None}


def _process(place: Path) -> _Process | None:
    """Read a process; None if it is gone."""
    try:
        text = (place / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    user, system, ended_user, ended_system = (int(each) / TICKS for each in fields[11:15])
    return _Process(name, int(fields[1]), user + system, ended_user + ended_system)


def _precise(pid: int) -> float | None:
    """Tell the CPU of a process with one thread to the nanosecond; its ticks are a hundredth of a second."""
    try:
        return int((PROC / str(pid) / "schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def _below(processes: dict[int, _Process], top: int | None) -> set[int]:
    """Give *top* and all that it has started, directly or not."""
    found: set[int] = set()
    new = {top} if top is not None and top in processes else set()
    while new:
        found |= new
        new = {pid for pid, each in processes.items() if each.parent in new} - found
    return found
