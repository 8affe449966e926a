"""A process slot of the supervisor: a worker process runs in it, or will again when its time has come.

A process that has ended is started again soon at first, then ever later, and never twice in a second.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from random import Random

from holdfast.logging import reason_of, say
from holdfast.runtime import Runtime
from holdfast.supervisor.health import ProcessReport, instant
from holdfast.supervisor.worker_process import WorkerProcess, how_it_ended

FIRST_SECONDS, MOST_SECONDS = 1.0, 30.0
HEALTHY_SECONDS = 60.0
SHORTEST_SECONDS = 1.0
JITTER = 0.25

logger = logging.getLogger(__name__)


class ProcessSlot:
    """Slot *number*, where *command* runs; a process that was told to end has *exit_seconds* to do so."""

    def __init__(self, number: int, command: Sequence[str], exit_seconds: float, runtime: Runtime) -> None:
        self.number = number
        self._command = command
        self._exit_seconds = exit_seconds
        self._runtime = runtime
        self._backoff = Backoff(runtime.chance)
        self._process: WorkerProcess | None = None
        self._last_end: str | None = None
        self._was_retired = False
        self.starts = 0
        self.due_at = runtime.monotonic()
        self.kill_at: float | None = None

    @property
    def pid(self) -> int | None:
        """The number of the process that runs here, if one does."""
        return None if self._process is None else self._process.pid

    @property
    def pipe(self) -> int | None:
        """The reading end of its pipe, as long as something may come."""
        return None if self._process is None or self._process.is_silent else self._process.pipe

    @property
    def is_working(self) -> bool:
        """Tell whether a process is here that has begun to work, and was not told to end."""
        return self._process is not None and self._process.has_worked and self.kill_at is None

    def start(self) -> None:
        """Start a process here."""
        self.starts += 1
        self._was_retired = False
        self._backoff.started(self._runtime.monotonic())
        try:
            self._process = WorkerProcess(self._command, self.number)
        except OSError as error:  # no memory or no numbers left: later, perhaps
            self._last_end = f"could not be started: {reason_of(error)}"
            say(logger, "process_not_started", number=self.number, reason=reason_of(error))
            self.plan_restart()
            return
        say(logger, "process_started", number=self.number, pid=self.pid)

    def read_pipe(self) -> None:
        """Read what the process has written."""
        if self._process is None:
            return
        had_worked, now = self._process.has_worked, self._runtime.monotonic()
        self._process.read_pipe(now)
        if self._process.has_worked and not had_worked:
            self._backoff.worked(now)

    def retire(self) -> None:
        """Tell the process to drain; of more than one call the first counts."""
        if self._process is None or self.kill_at is not None:
            return
        self.kill_at = self._runtime.monotonic() + self._exit_seconds
        self._process.terminate()

    def kill(self) -> None:
        """End the process now."""
        if self._process is not None:
            self._process.kill()

    def kill_if_late(self) -> None:
        """End the process if its last seconds are over."""
        if self._process is None or self.kill_at is None or self._runtime.monotonic() < self.kill_at:
            return
        say(logger, "process_does_not_end", number=self.number, pid=self.pid)
        self.kill_at = self._runtime.monotonic() + self._exit_seconds
        self.kill()

    def vacate(self, code: int) -> bool:
        """Take the process out, which has ended with *code*; tell whether it had ever worked."""
        assert self._process is not None  # noqa: S101 - who calls has looked for its number
        self.read_pipe()  # its last words
        process, self._was_retired = self._process, self.kill_at is not None
        process.close(code)
        self._process = self.kill_at = None
        self._last_end = how_it_ended(code)
        is_as_told = self._was_retired and code in (0, -signal.SIGTERM)
        level = logging.INFO if is_as_told else logging.WARNING
        say(logger, "process_ended", level=level, number=self.number, pid=process.pid, how=self._last_end)
        return process.has_worked

    def plan_restart(self) -> None:
        """Decide when the next process is started here."""
        now = self._runtime.monotonic()
        self.due_at = self._backoff.soonest(now) if self._was_retired else self._backoff.after_end(now)
        seconds = round(self.due_at - now, 1)
        say(logger, "process_starts_again", number=self.number, seconds=seconds)

    def report(self, is_over: bool) -> ProcessReport:
        """Report its health; if *is_over*, an empty slot stays empty."""
        process, now, wall = self._process, self._runtime.monotonic(), instant(self._runtime.wall_ms())
        known = ProcessReport(number=self.number, state="ended", starts=self.starts, last_end=self._last_end)
        if process is None and is_over:
            return known
        if process is None and self.starts == 0:
            return replace(known, state="starting")
        if process is None:
            return replace(known, state="down", again_at=wall + timedelta(seconds=max(0.0, self.due_at - now)))
        is_draining = self.kill_at is not None or process.health.get("is_draining")
        return replace(
            known,
            state="draining" if is_draining else "working" if process.has_worked else "starting",
            pid=process.pid,
            heard_at=None if process.heard_at is None else wall - timedelta(seconds=now - process.heard_at),
            poll=process.poll,
            health=process.health,
        )


class Backoff:
    """The starts of one process after another in the same slot; instants are of a monotonic clock."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._started = float("-inf")
        self._worked: float | None = None
        self._failures = 0

    def started(self, now: float) -> None:
        """Note that a process was started."""
        self._started, self._worked = now, None

    def worked(self, now: float) -> None:
        """Note that it has begun to work."""
        self._worked = now

    def soonest(self, now: float) -> float:
        """Say when the next one may start after a process that ended because it was told to."""
        self._failures = 0
        return max(now, self._started + SHORTEST_SECONDS)

    def after_end(self, now: float) -> float:
        """Say when the next one may start after a process that ended by itself, or was killed."""
        if self._worked is not None and now - self._worked >= HEALTHY_SECONDS:
            self._failures = 0
        seconds = min(FIRST_SECONDS * 2.0 ** min(self._failures, 10), MOST_SECONDS)
        self._failures += 1
        return now + seconds * (1 + JITTER * self._chance.random())  # so that all do not come at once
