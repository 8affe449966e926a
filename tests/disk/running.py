"""Runs the program of these tests, and looks at what it has left."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.database.tx import Tx
from tests.disk.program import create, new_holdfast
from tests.disk.recording import OPTIONS, Event, read_recording
from tests.support.conditions import until
from tests.support.faults.strace import Strace
from tests.support.processes import forked

ROOT = Path(__file__).parents[2]
DATABASE, ACKS = "jobs.db", "acks"

MOUNTING = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--map-root-user", "--mount")
"""In front of a command: what it mounts nobody else sees, and with a namespace of his own a user may mount, too."""


def may_mount(place: Path) -> bool:
    """Tell whether a disk can be mounted at *place*."""
    command = [*MOUNTING, "mount", "-t", "tmpfs", "none", str(place)]
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@contextmanager
def waiting_program(directory: Path, synchronous: str = "full", rounds: int = 1) -> Iterator[subprocess.Popen[Any]]:
    """Start the program in *directory*; it begins when it is sent a line."""
    words = [str(directory / DATABASE), str(directory / ACKS), synchronous, str(rounds)]
    with forked.Popen([sys.executable, "-m", "tests.disk.program", *words], cwd=ROOT, stdin=subprocess.PIPE) as program:
        try:
            yield program
        finally:
            program.kill()


def record(strace: Strace, directory: Path, synchronous: str, rounds: int = 1) -> list[Event]:
    """Run the program in *directory*, which is empty, and give all that it does to the files there."""
    output = directory.with_name(f"{directory.name}-calls")
    with waiting_program(directory, synchronous, rounds) as program:
        with strace.attached(program.pid, *OPTIONS, output=output):
            program.communicate(b"\n", timeout=60)
    assert program.returncode == 0
    return read_recording(output, directory, ACKS)


def run_until_write(strace: Strace, directory: Path, number: int) -> bool:
    """Run the program in *directory* and kill it at its write *number*; tell whether it got that far."""
    with waiting_program(directory) as program:
        kill = ("-e", "trace=pwrite64", "-e", f"inject=pwrite64:signal=KILL:when={number}")
        with strace.attached(program.pid, *kill):
            program.communicate(b"\n", timeout=60)
    assert program.returncode in (0, -9), "the program itself has failed"
    return program.returncode != 0


JOBS = "SELECT id, task, status FROM holdfast_job"
COMPLETIONS = """
    SELECT holdfast_job.id
    FROM holdfast_event JOIN holdfast_job ON holdfast_job.seq = holdfast_event.job
    WHERE holdfast_event.name = 'job:completed'"""
UNANNOUNCED = """
    SELECT id FROM holdfast_job
    WHERE NOT EXISTS (SELECT 1 FROM holdfast_event WHERE job = holdfast_job.seq AND name = 'job:enqueued')"""
TABLES = "SELECT name FROM sqlite_schema WHERE name IN ('payment', 'receipt')"


@dataclass(frozen=True, slots=True)
class Left:
    """What a program has left behind, as any other program reads it."""

    is_sound: bool
    told: list[list[str]]
    tasks: dict[str, str]
    status: dict[str, str]
    completions: Counter[str]
    unannounced: list[str]
    rows: dict[str, set[str]]
    """The jobs in the tables of the application."""

    def told_of(self, what: str) -> set[str]:
        """Name the jobs of which *what* was told."""
        return {job for word, job in self.told if word == what}

    def completed(self, task: str) -> set[str]:
        """Name the jobs of *task* that are completed."""
        return {job for job, status in self.status.items() if self.tasks[job] == task and status == "completed"}


def look(directory: Path) -> Left:
    """Read what is in *directory*."""
    acks = directory / ACKS
    told = acks.read_text().splitlines() if acks.exists() else []
    with closing(sqlite3.connect(directory / DATABASE, isolation_level=None)) as connection:

        def ask(sql: str) -> list[tuple[Any, ...]]:
            return connection.execute(sql).fetchall()

        jobs = ask(JOBS)
        return Left(
            is_sound=ask("PRAGMA integrity_check") == [("ok",)],
            told=[line.split() for line in told],
            tasks={job: task for job, task, _ in jobs},
            status={job: status for job, _, status in jobs},
            completions=Counter(job for (job,) in ask(COMPLETIONS)),
            unannounced=[job for (job,) in ask(UNANNOUNCED)],
            rows={name: {job for (job,) in ask(f"SELECT job FROM {name}")} for (name,) in ask(TABLES)},
        )


async def finish(directory: Path) -> None:
    """Have a new worker do what is left to do."""
    hf = new_holdfast(str(directory / DATABASE))

    async def is_done() -> bool:
        return not await hf.store.read(_open_jobs)

    async with hf:
        await hf.store.run(create)
        async with hf.worker(poll=0.05, webhooks=False):
            await until(is_done, "a new worker finishes everything", 30)


async def _open_jobs(tx: Tx) -> list[Any]:
    return await tx.fetch_all("SELECT id FROM holdfast_job WHERE status <> 'completed'")
