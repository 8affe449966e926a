"""A pytest plugin: faults of the disk and of the kernel, put into the system calls of a program of ours by strace.

Programs are attached to while they run and left alone again, so that a fault has a beginning and an end, and a program
that is not at fault pays nothing. Where there is no strace, or nobody may trace, the tests are left out, loudly.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.debian import Package, Program, ProgramUnavailable, find

STRACE = Package("strace", "strace", "usr/bin/strace", "-V", r"version (\d[\w.]*)")
ATTACHED = "attached"


class MayNotTrace(RuntimeError):
    """This machine lets nobody trace, as many a container does."""


@dataclass(frozen=True, slots=True)
class Strace:
    """A strace that can be run here."""

    program: Program

    @contextmanager
    def attached(self, process: int, *options: str, output: Path | None = None) -> Iterator[None]:
        """Trace *process* and all of its threads; *options* say what is done to which calls."""
        command = [self.program.path, "-f", "-o", output or "/dev/null", *options, "-p", str(process)]
        with subprocess.Popen(
            command, env=self.program.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as tracer:
            try:
                _await_attached(tracer)
                yield
            finally:
                tracer.send_signal(signal.SIGINT)  # it lets go of who is still alive, and ends
                tracer.communicate()

    def injecting(self, process: int, *faults: str) -> Any:
        """Let *faults* such as `pwrite64:error=ENOSPC` happen to *process*, for as long as the block lasts."""
        return self.attached(process, *(word for fault in faults for word in ("-e", f"inject={fault}")))


def _await_attached(tracer: subprocess.Popen[str]) -> None:
    """Wait until strace says that it has stopped every thread: what they do from now on is traced."""
    assert tracer.stderr is not None
    said = tracer.stderr.readline()
    if ATTACHED not in said:
        raise MayNotTrace(f"strace cannot trace here: {said.strip()}")


@cache
def find_strace() -> Strace:
    """Find a strace that works here; raise `ProgramUnavailable`, or `MayNotTrace`."""
    strace = Strace(find(STRACE))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as sitter:
        with strace.attached(sitter.pid):
            pass
        sitter.communicate(b"\n")
    return strace


@cache
def why_not() -> str | None:
    """Say why no strace can be used; None if one can."""
    try:
        find_strace()
    except (ProgramUnavailable, MayNotTrace) as error:
        return str(error)
    return None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Have it fetched before an xdist worker starts, so that no test waits for that."""
    why_not()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly if there is a strace, and nobody may trace; `tests.support.processes.debian` tells the rest."""
    if why_not.cache_info().currsize and why_not() is not None:
        terminalreporter.write_line(f"what strace does to programs was left out: {why_not()}")


@pytest.fixture(scope="session")
def strace() -> Strace:
    """Answer a strace that can be used, or skip."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    return find_strace()
