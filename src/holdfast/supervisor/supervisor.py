"""Supervises several worker processes: starts them, starts them again, and ends them all in time.

The supervisor imports no application and opens no database, so that nothing of either can take it down. It is one
thread in one loop, which is woken by signals (also by the one that a process has ended), by what the processes write
about themselves, and when something is due.

A process that ends by itself is started again, see `Backoff`. But if one cannot be used or breaks at its very first
start, before it has ever worked, all end with its code: what is wrong there is in the call or in the application, and
is not mended by trying.

As the first process of a container it also collects the orphans that end there.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from holdfast.logging import say
from holdfast.runtime import Runtime
from holdfast.supervisor.health import HealthReport, ProcessState, described, instant
from holdfast.supervisor.process_slot import ProcessSlot
from holdfast.supervisor.reporting import Reporting
from holdfast.supervisor.run import BROKEN, LEAVE_SECONDS, NOT_WRITTEN, UNUSABLE

ENDING = (signal.SIGTERM, signal.SIGINT)
SEVERITY = (0, NOT_WRITTEN, BROKEN, UNUSABLE)

logger = logging.getLogger(__name__)


def supervise(processes: int, grace: float, reporting: Reporting) -> int:
    """Run the command that was given to us in several *processes*, until a signal comes; answer the exit code."""
    command = [sys.executable, *sys.orig_argv[1:]]  # the options of the interpreter among them
    return Supervisor(command, processes, grace, reporting, Runtime()).run()


class Supervisor:
    """Runs *command* in several processes at once."""

    def __init__(
        self, command: Sequence[str], processes: int, grace: float, reporting: Reporting, runtime: Runtime
    ) -> None:
        self._grace = grace
        self._reporting = reporting
        self._runtime = runtime
        self._slots = [ProcessSlot(each, command, grace + LEAVE_SECONDS, runtime) for each in range(1, processes + 1)]
        self._outdated: deque[tuple[ProcessSlot, int]] = deque()
        self._signals: deque[int] = deque()
        self._endings = 0
        self._has_terminal = os.isatty(0)
        self._is_stopping = False
        self._code = 0
        self._report_at = runtime.monotonic()
        self._reported_states: list[ProcessState] = []

    def run(self) -> int:
        """Supervise until all have ended; answer the exit code."""
        say(logger, "supervisor_started", pid=os.getpid(), processes=len(self._slots))
        with self._wakeup_socket() as wakeup:
            self._reporting.begin(self._report())
            self._step()
            while not self._is_stopping or any(each.pid is not None for each in self._slots):
                self._wait(wakeup)
                self._step()
        self._reporting.end()
        say(logger, "supervisor_ended", code=self._code)
        return self._code

    def _step(self) -> None:
        """Do whatever is to be done by now."""
        while self._signals:
            self._on_signal(self._signals.popleft())
        for each in self._slots:
            each.read_pipe()
        self._reap()
        self._start_due()
        self._replace_outdated()
        for each in self._slots:
            each.kill_if_late()
        self._report_if_due()

    def _report_if_due(self) -> None:
        """Publish the health of all, when it is due or a state has changed."""
        report, now = self._report(), self._runtime.monotonic()
        states = [each.state for each in report.processes]
        if now >= self._report_at or states != self._reported_states:
            self._reported_states, self._report_at = states, now + self._reporting.seconds
            self._reporting.publish(report)

    def _on_signal(self, number: int) -> None:
        if number in ENDING:
            self._endings += 1
            if self._endings > 1:
                self._exit_now(number)
            self._stop()
        elif number == signal.SIGHUP and self._has_terminal:  # it is closed, as shells and the kernel both tell us
            self._stop()
        elif number == signal.SIGHUP:
            self._outdated = deque((each, each.pid) for each in self._slots if each.pid is not None)
            say(logger, "supervisor_replaces", processes=len(self._outdated))
        elif number == signal.SIGUSR1:
            for each in self._report().processes:
                say(logger, "process_health", health=described(each, instant(self._runtime.wall_ms())))

    def _stop(self, code: int = 0) -> None:
        """Have every process drain, and start none any more."""
        if self._is_stopping:
            return
        self._is_stopping, self._code = True, code
        say(logger, "supervisor_drains", grace=self._grace)
        self._reporting.stop()
        for each in self._slots:
            each.retire()

    def _exit_now(self, number: int) -> None:
        """End all now."""
        for each in self._slots:
            each.kill()
        self._reporting.end()
        say(logger, "supervisor_leaves", code=128 + number)
        raise SystemExit(128 + number)

    def _reap(self) -> None:
        """Collect every process that has ended."""
        while (ended := _reap_one()) is not None:
            pid, code = ended
            for slot in self._slots:
                if slot.pid == pid:
                    self._on_exit(slot, code)

    def _on_exit(self, slot: ProcessSlot, code: int) -> None:
        had_worked = slot.vacate(code)
        if self._is_stopping:  # one that had not begun to work has died of our SIGTERM, and lost nothing
            self._code = worst(self._code, code if had_worked or code != -signal.SIGTERM else 0)
        elif code in (BROKEN, UNUSABLE) and slot.starts == 1 and not had_worked:
            self._stop(code)
        else:
            slot.plan_restart()

    def _start_due(self) -> None:
        now = self._runtime.monotonic()
        for each in self._slots:
            if not self._is_stopping and each.pid is None and each.due_at <= now:
                each.start()

    def _replace_outdated(self) -> None:
        """Replace one process after the other: the next one only when the last one's heir works."""
        while self._outdated and not self._is_stopping:
            slot, pid = self._outdated[0]
            if slot.pid == pid:
                slot.retire()
                return
            if not slot.is_working:
                return
            self._outdated.popleft()

    def _report(self) -> HealthReport:
        now = instant(self._runtime.wall_ms())
        return HealthReport(at=now, pid=os.getpid(), processes=[each.report(self._is_stopping) for each in self._slots])

    def _wait(self, wakeup: socket.socket) -> None:
        """Wait until something comes or is due."""
        pipes = [each.pipe for each in self._slots if each.pipe is not None]
        instants = [self._report_at, *(each.kill_at for each in self._slots if each.kill_at is not None)]
        if not self._is_stopping:
            instants += [each.due_at for each in self._slots if each.pid is None]
        seconds = max(0.0, min(instants) - self._runtime.monotonic())
        select.select([wakeup.fileno(), *pipes], [], [], seconds)
        with suppress(BlockingIOError):
            wakeup.recv(4096)

    @contextmanager
    def _wakeup_socket(self) -> Iterator[socket.socket]:
        """Have signals noted, and make a socket readable that is given."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.setblocking(False)
            before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
            for number in (*ENDING, *self._further_signals()):
                signal.signal(number, lambda number, _: self._signals.append(number))
            try:
                yield ours
            finally:
                signal.set_wakeup_fd(before)
                for number in self._further_signals():  # what comes now comes too late, and must not change how we end
                    signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.SIG_IGN)

    def _further_signals(self) -> list[signal.Signals]:
        """Name the signals that are heeded beside those that end us; `nohup` takes one away."""
        found = [signal.SIGCHLD, signal.SIGUSR1]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            found.append(signal.SIGHUP)
        return found


def worst(one: int, other: int) -> int:
    """Give the worse of two exit codes; what had to be killed, or was by somebody, counts as broken."""
    known = [each if each in SEVERITY else BROKEN for each in (one, other)]
    return max(known, key=SEVERITY.index)


def _reap_one() -> tuple[int, int] | None:
    """Collect a process that has ended, whosever it was; give its number and how it ended."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, os.waitstatus_to_exitcode(status)) if pid else None
