"""What the first import costs: CPU milliseconds of `from holdfast import Holdfast`, beside other engines.

Each import runs in a process of its own, and they take turns. For all of them the clock starts when Python has started:
the first line says what that start takes, and no other line includes it. Bytecode is compiled before. The line "with
one task" adds what `import holdfast` leaves for later: a Holdfast object and one task, for which pydantic is imported.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.peers.process import (
    CACHE,
    CELERY_DRAIN,
    HUEY_DRAIN,
    PROCRASTINATE_DRAIN,
    ROOT,
    Peer,
    PeerUnavailable,
    prepare,
)
from bench.report import grid

HEADER = ("import", "CPU ms", "least", "modules", "target", "")
MOST_MILLISECONDS = 150
TIMED = """
import sys, time
began = time.process_time()
{}
print((time.process_time() - began) * 1000, len(sys.modules))
"""
STARTED = """
import sys, time
print(time.process_time() * 1000, len(sys.modules))
"""
"""Prints what the process has used since it was made, which is the start of Python alone."""
ONE_TASK = """from holdfast import Holdfast
hf = Holdfast("jobs.db")
@hf.task
async def greet(name: str) -> str: ..."""


@dataclass(frozen=True, slots=True)
class Import:
    """What is imported, by which Python; *target* is the most that it may take, in milliseconds.

    *program* imports it, and prints the milliseconds of CPU and the number of modules.
    """

    name: str
    statements: str
    python: Path
    target: int | None = None
    program: str = TIMED

    def measure(self) -> tuple[float, int]:
        """Import it once; give the milliseconds of CPU, and how many modules there are then."""
        done = subprocess.run(
            [str(self.python), "-c", self.program.format(self.statements)],
            cwd=ROOT,
            env=_environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        milliseconds, modules = done.stdout.split()
        return float(milliseconds), int(modules)


OURS = (
    Import("start of Python, in no other line", "", Path(sys.executable), program=STARTED),
    Import("holdfast", "from holdfast import Holdfast", Path(sys.executable), MOST_MILLISECONDS),
    Import("holdfast, with one task", ONE_TASK, Path(sys.executable)),
    Import("asyncio alone", "import asyncio", Path(sys.executable)),
)
PEERS: tuple[tuple[Peer, str], ...] = (
    (CELERY_DRAIN, "from celery import Celery"),
    (PROCRASTINATE_DRAIN, "from procrastinate import App"),
    (HUEY_DRAIN, "from huey import SqliteHuey"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument(
        "--peers", action="store_true", help="also celery, procrastinate and huey, installed on first use"
    )
    parser.add_argument("--quick", action="store_true", help="one import each: shows that it works, and nothing else")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; the exit code says whether it could be measured, not whether the target is met."""
    measured = [*OURS, *(peers() if arguments.peers else ())]
    for each in measured:
        each.measure()  # compiles it
    rounds = [[each.measure() for each in measured] for _ in range(1 if arguments.quick else 15)]
    lines = [line(each, [one[nr] for one in rounds]) for nr, each in enumerate(measured)]
    print(grid(HEADER, lines, HEADER[1:-1]))
    return 0


def peers() -> list[Import]:
    """Find the other engines that can be had here; say why another is left out."""
    found = []
    for peer, statements in PEERS:
        try:
            found.append(Import(peer.requirements[0], statements, prepare(peer)))
        except PeerUnavailable as error:
            print(f"{peer.name} is left out: {error}", flush=True)
    return found


def line(what: Import, taken: Sequence[tuple[float, int]]) -> tuple[str, ...]:
    """Write the cells of one import."""
    milliseconds = [each for each, _ in taken]
    middle = median(milliseconds)
    target = "" if what.target is None else f"< {what.target}"
    met = "" if what.target is None else "✓" if middle < what.target else "✗"
    return what.name, f"{middle:.0f}", f"{min(milliseconds):.0f}", str(taken[0][1]), target, met


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": str(CACHE / "bytecode")}
