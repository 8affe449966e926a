"""Tells every two seconds how the worker of this process is: its supervisor, or by a file and systemd.

It has a thread of its own, for it is to be told, too, that the event loop stands still.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.runtime import Runtime
from holdfast.supervisor.health import BEAT_SECONDS, HealthReport, ProcessReport, described, facts_of
from holdfast.supervisor.health_file import Reporting, instant
from holdfast.supervisor.worker_process import SupervisorPipe
from holdfast.worker.worker import Worker

logger = logging.getLogger(__name__)


class Heartbeat:
    """Tells at *line*, if a supervisor is there, else to *reporting*; the worker polls every *poll* seconds."""

    def __init__(self, poll: float, reporting: Reporting, line: SupervisorPipe | None, runtime: Runtime) -> None:
        self._poll = poll
        self._reporting = reporting
        self._line = line
        self._runtime = runtime
        self._is_alone = False

    def begin(self) -> None:
        """Tell that the worker is being started; raise `Misuse` if that cannot be told."""
        self._reporting.begin(self._report(None))

    @contextmanager
    def of(self, worker: Worker) -> Iterator[None]:
        """Tell of *worker*, until the end of this block."""
        if self._line is None and not self._reporting.has_readers:
            yield
            return
        shell = self._runtime.shell(lambda: self._beat(worker), "holdfast-beats")
        shell.wake()
        try:
            yield
        finally:
            shell.stop()

    def stop(self) -> None:
        """Tell that the worker drains."""
        self._reporting.stop()

    def end(self) -> None:
        """Leave nothing behind."""
        self._reporting.end()

    def log(self, worker: Worker) -> None:
        """Write to the log how *worker* is."""
        report = self._report(worker)
        logger.info("process_health", extra={"is": described(report.processes[0], report.at)})

    def _beat(self, worker: Worker) -> float:
        if self._line is None:
            self._reporting.tell(self._report(worker))
            return self._reporting.seconds
        if not self._line.write(worker.health(), self._poll) and not self._is_alone:
            self._is_alone = True
            logger.warning("supervisor_gone")
            os.kill(os.getpid(), signal.SIGTERM)  # and so drain; only the main thread can begin that
        return BEAT_SECONDS

    def _report(self, worker: Worker | None) -> HealthReport:
        now = instant(self._runtime.wall_ms())
        health = None if worker is None else worker.health()
        process = ProcessReport(
            number=1 if self._line is None else self._line.number,
            state="starting" if health is None else "draining" if health.is_draining else "working",
            pid=os.getpid(),
            heard_at=None if health is None else now,
            poll=self._poll,
            health={} if health is None else facts_of(health),
        )
        return HealthReport(at=now, pid=os.getpid(), processes=[process])
