"""A worker in a process of its own: `python -m bench.worker_process URL`, or `… URL '{"*": 4}'` for tenants.

It says `ready`; for each job it says how many nanoseconds ago that was started, by the clock that all processes of a
machine share. For a line `usage` it says how many seconds of CPU it has used and how many statements SQLite has run for
it; these are counted only with `--count`, for that slows down whoever runs many. It ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from subprocess import PIPE, Popen
from typing import Any

from bench.machine import Unsuited
from holdfast import Holdfast, Tasks
from holdfast.supervisor.run import leave_alone_what_stays

TASKS = Tasks()
SCHEDULED = "scheduled"
COUNT = "--count"
statements = 0


@TASKS.task(name="note")
async def note(sent: int) -> None:
    """Say how long it took to come here."""
    print(time.monotonic_ns() - sent, flush=True)


@TASKS.task(name=SCHEDULED)
async def scheduled() -> None:
    """Do nothing, at the time of a schedule."""


@TASKS.task(name="take_time")
async def take_time(seconds: float) -> None:
    """Take a while, and say nothing."""
    await asyncio.sleep(seconds)


class WorkerProcess:
    """Our side of the pipe."""

    def __init__(self, process: Popen[str]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    def read(self) -> str:
        """Wait for its next line."""
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise Unsuited(f"the worker ended with code {self._process.wait()}")
        return line.strip()

    def usage(self) -> tuple[float, int]:
        """Ask for its seconds of CPU and its statements."""
        if self._process.stdin is None:
            raise Unsuited("the worker has no standard input")
        self._process.stdin.write("usage\n")
        self._process.stdin.flush()
        seconds, statements = self.read().split()
        return float(seconds), int(statements)


@contextmanager
def worker_process(
    url: str, tenants: Mapping[str, int] | None = None, *, counts: bool = False
) -> Iterator[WorkerProcess]:
    """Run a worker on *url* until the block ends; with *tenants* it serves these, and if it *counts*, statements."""
    command = [sys.executable, "-m", "bench.worker_process", url, *([json.dumps(dict(tenants))] if tenants else [])]
    command += [COUNT] if counts else []
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        worker = WorkerProcess(process)
        if worker.read() != "ready":
            raise Unsuited("the worker did not start")
        yield worker


def count_statements() -> None:
    """Have every connection to SQLite that is made from now on count its statements."""
    connect: Any = sqlite3.connect

    def counting(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.set_trace_callback(_count)
        return connection

    sqlite3.connect = counting  # type: ignore[assignment]


def _count(_: str) -> None:
    global statements
    statements += 1


async def main(url: str, tenants: Mapping[str, int] | None) -> None:
    """Work until the input ends."""
    hf = Holdfast(url, tasks=[TASKS], tenants=tenants is not None)
    async with hf.worker(tenants=tenants):
        leave_alone_what_stays()  # as `holdfast worker` does
        print("ready", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(time.process_time(), statements, flush=True)
    await hf.close()


if __name__ == "__main__":
    url, *rest = (each for each in sys.argv[1:] if each != COUNT)
    if COUNT in sys.argv:
        count_statements()
    asyncio.run(main(url, json.loads(rest[0]) if rest else None))
