"""The processes of a run: started, watched, and started again when they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.processes import forked
from tests.torture.notes import PLACE, Notes

ROOT = Path(__file__).parents[2]
HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
APP = "tests.torture.application:hf"
PRODUCERS = ("plain", "borrowed")
ENDING_SECONDS = 30.0


@dataclass(slots=True)
class Member:
    """A process, or the place of one that is to be started."""

    role: str
    command: list[str]
    process: subprocess.Popen[bytes] | None = None
    is_stopped: bool = False
    starts_at: float = 0.0
    """When it is to be started again, by the monotonic clock."""

    @property
    def is_alive(self) -> bool:
        """Tell whether it runs, or is stopped in the middle of it."""
        return self.process is not None

    @property
    def pid(self) -> int:
        """The number of its process."""
        if self.process is None:
            raise LookupError(f"{self.role} does not run")
        return self.process.pid


@dataclass
class Crew:
    """All processes of a run; what happens to them is written down."""

    place: Path
    environment: dict[str, str]
    notes: Notes
    members: list[Member] = field(default_factory=list)
    is_ending: bool = False

    def add_worker(self, *options: str) -> None:
        """Have a worker run."""
        number = sum(each.role.startswith("worker") for each in self.members)
        self.members.append(Member(f"worker-{number}", [HOLDFAST, "worker", APP, *options]))

    def add(self, role: str, module: str, *words: str) -> None:
        """Have a program of this folder run."""
        self.members.append(Member(role, [sys.executable, "-m", f"tests.torture.{module}", *words]))

    @property
    def workers(self) -> list[Member]:
        """The workers that run, stopped or not."""
        return [each for each in self.members if each.role.startswith("worker") and each.is_alive]

    @property
    def others(self) -> list[Member]:
        """Who else runs."""
        return [each for each in self.members if not each.role.startswith("worker") and each.is_alive]

    def tend(self) -> None:
        """Collect who has ended, and start who is to run."""
        for each in self.members:
            if each.process is not None and (code := each.process.poll()) is not None:
                self.notes.write(what="exit", role=each.role, process=each.pid, code=code)
                each.process, each.is_stopped = None, False
            if each.process is None and not self._has_done(each) and time.monotonic() >= each.starts_at:
                self._start(each)

    def _has_done(self, member: Member) -> bool:
        """Tell whether it is not wanted any more."""
        return self.is_ending or (member.role in PRODUCERS and (self.place / "stop").exists())

    def _start(self, member: Member) -> None:
        path = os.pathsep.join([str(ROOT), *(each for each in sys.path if each)])
        environment = {**os.environ, **self.environment, PLACE: str(self.place), "PYTHONPATH": path}
        with (self.place / f"{member.role}.log").open("ab") as log:
            member.process = forked.Popen(member.command, cwd=ROOT, stdout=log, stderr=log, env=environment)
        self.notes.write(what="start", role=member.role, process=member.pid)

    def send(self, member: Member, number: signal.Signals) -> None:
        """Send a signal to one that runs; written down first, so that nothing it brings about is earlier."""
        if member.process is None:
            return
        self.notes.write(what=number.name, role=member.role, process=member.pid)
        member.is_stopped = number is signal.SIGSTOP
        os.kill(member.pid, number)

    def end(self) -> None:
        """Tell everybody to end, and see that all do; the last resort is written down."""
        self.is_ending = True
        for each in self.members:
            if each.is_stopped:
                self.send(each, signal.SIGCONT)
        for each in self.workers:
            self.send(each, signal.SIGTERM)
        deadline = time.monotonic() + ENDING_SECONDS
        while any(each.is_alive for each in self.members) and time.monotonic() < deadline:
            self.tend()
            time.sleep(0.02)
        self.kill()

    def kill(self) -> None:
        """End who is left, at once."""
        self.is_ending = True
        for each in self.members:
            if each.process is not None:
                self.notes.write(what="left", role=each.role, process=each.pid)
                each.process.kill()
                each.process.wait()
        self.tend()
