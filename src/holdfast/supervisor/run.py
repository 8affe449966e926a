"""Runs a worker as a process: signals, the grace time, the last act, the exit code, and its heartbeat.

Signal handlers are Python's own, not the event loop's: they run between two instructions of the main thread, also
while a handler keeps the loop from running. If the thread of a handler takes a signal, a socket wakes the loop. And a
timer of the system ends the process in time, whatever hangs.

The heartbeat reports the worker's health every two seconds: to its supervisor, or by a file and systemd. It has a
thread of its own, since it also reports an event loop that stands still.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

from holdfast.app import Holdfast
from holdfast.errors import HoldfastError, StoreError, UsageError
from holdfast.logging import say
from holdfast.runtime import Runtime
from holdfast.supervisor.alarm import allow_alarm, set_alarm
from holdfast.supervisor.health import BEAT_SECONDS, HealthReport, ProcessReport, described, facts_of, instant
from holdfast.supervisor.reporting import Reporting
from holdfast.supervisor.worker_process import SupervisorPipe
from holdfast.worker.hosts.host import WorkerHost
from holdfast.worker.options import WorkerKeywords
from holdfast.worker.shutdown import CLEANUP_SECONDS, LAST_SECONDS
from holdfast.worker.worker import Worker

SPARE_SECONDS = 0.8
LEAVE_SECONDS = LAST_SECONDS + SPARE_SECONDS + 0.2
"""How long after the grace time a process has ended, whatever happens."""
BROKEN = HoldfastError.exit_code
UNUSABLE = UsageError.exit_code
NOT_WRITTEN = StoreError.exit_code

logger = logging.getLogger(__name__)


def serve(hf: Holdfast, options: WorkerKeywords, reporting: Reporting, pipe: SupervisorPipe | None = None) -> int:
    """Work until a signal comes; answer the exit code. *pipe* leads to the supervisor, if there is one."""
    allow_alarm()
    heartbeat = Heartbeat(options["poll"], reporting, pipe, Runtime())
    heartbeat.begin()
    try:
        code = asyncio.run(_Service(hf, options, heartbeat, has_supervisor=pipe is not None).run())
    finally:
        heartbeat.end()
    say(logger, "worker_ended", pid=os.getpid(), code=code)
    if code:
        _leave(code)
    return code


def leave_alone_what_stays() -> None:
    """Have the garbage collector pass over what is there by now: code and schemas, which stay until the end.

    A full collection looked at all of it again: for 30 to 80 ms the event loop stood still, several times a minute.
    """
    gc.collect()
    gc.freeze()


class _Service:
    def __init__(self, hf: Holdfast, options: WorkerKeywords, heartbeat: Heartbeat, *, has_supervisor: bool) -> None:
        self._hf = hf
        self._options = options
        self._heartbeat = heartbeat
        self._has_supervisor = has_supervisor
        self._grace = options["grace"] or 0.0
        self._signals = 0
        self._code = 0

    async def run(self) -> int:
        """Work, drain, and answer the exit code."""
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        with woken_by_signals(self._loop):
            return await self._serve()

    async def _serve(self) -> int:
        async with self._hf:
            worker = self._hf.worker(**self._options)
            async with worker:
                leave_alone_what_stays()
                self._log_health_on_signal(worker)
                with self._heartbeat.of(worker):
                    stop = asyncio.ensure_future(self._stopping.wait())
                    either: list[asyncio.Future[Any]] = [stop, worker.ended]
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                    stop.cancel()
                    if self._signals:
                        await self._drain(worker)
        return self._code

    def _log_health_on_signal(self, worker: Worker | WorkerHost) -> None:
        """Log the health of *worker* at SIGUSR1, unless the application has its own use for that."""
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            log = partial(self._heartbeat.log, worker)
            signal.signal(signal.SIGUSR1, lambda *_: self._loop.call_soon_threadsafe(log))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:
            if self._has_supervisor:  # which kills; others may only have sent both of us the same signal
                return
            self._leave_at_once(128 + number)
        set_alarm(self._grace + LAST_SECONDS + SPARE_SECONDS, lambda: _leave(NOT_WRITTEN))
        self._loop.call_soon_threadsafe(self._stopping.set)

    def _leave_at_once(self, code: int) -> None:
        """Say so and end; a log handler that hangs, maybe in what this signal has interrupted, keeps nobody."""
        set_alarm(SPARE_SECONDS, lambda: os._exit(code))
        say(logger, "worker_leaves", code=code)
        _leave(code)

    async def _drain(self, worker: Worker | WorkerHost) -> None:
        worker.drain()  # first: whoever is told that it stops asks how it is, and should not hear that it works
        self._heartbeat.stop()
        if await worker.has_ended(self._grace):
            self._code = NOT_WRITTEN if worker.has_unwritten else 0
            return
        worker.interrupt()
        if await worker.has_ended(CLEANUP_SECONDS):
            self._code = NOT_WRITTEN if worker.has_unwritten else 0
            return
        is_written = await worker.abandon(LAST_SECONDS - CLEANUP_SECONDS)
        self._heartbeat.end()
        self._code = 0 if is_written else NOT_WRITTEN
        say(logger, "worker_ended", pid=os.getpid(), code=self._code)
        _leave(self._code)  # a thread that does not stop would keep the interpreter


@contextmanager
def woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Wake *loop* at every signal, so that Python runs its handler also if another thread has taken it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        loop.add_reader(ours, _empty, ours)
        before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(ours)


def _empty(ours: socket.socket) -> None:
    with suppress(BlockingIOError):
        ours.recv(4096)


def _leave(code: int) -> None:
    """End the process now, whatever else runs in it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Heartbeat:
    """Reports to the supervisor by *pipe*, if there is one, else to *reporting*; *poll* is the worker's, in seconds."""

    def __init__(self, poll: float, reporting: Reporting, pipe: SupervisorPipe | None, runtime: Runtime) -> None:
        self._poll = poll
        self._reporting = reporting
        self._pipe = pipe
        self._runtime = runtime
        self._is_alone = False

    def begin(self) -> None:
        """Report that the worker is being started; raise `Misuse` if that cannot be written."""
        self._reporting.begin(self._report(None))

    @contextmanager
    def of(self, worker: Worker | WorkerHost) -> Iterator[None]:
        """Report the health of *worker*, until the end of this block."""
        if self._pipe is None and not self._reporting.has_readers:
            yield
            return
        stepper = self._runtime.stepper(lambda: self._beat(worker), "holdfast-beats")
        stepper.wake()
        try:
            yield
        finally:
            stepper.stop()

    def stop(self) -> None:
        """Report that the worker drains."""
        self._reporting.stop()

    def end(self) -> None:
        """Leave nothing behind."""
        self._reporting.end()

    def log(self, worker: Worker | WorkerHost) -> None:
        """Write to the log how *worker* is."""
        report = self._report(worker)
        say(logger, "process_health", health=described(report.processes[0], report.at))

    def _beat(self, worker: Worker | WorkerHost) -> float:
        if self._pipe is None:
            self._reporting.publish(self._report(worker))
            return self._reporting.seconds
        if not self._pipe.write(worker.health(), self._poll) and not self._is_alone:
            self._is_alone = True
            say(logger, "supervisor_gone")
            os.kill(os.getpid(), signal.SIGTERM)  # and so drain; only the main thread can begin that
        return BEAT_SECONDS

    def _report(self, worker: Worker | WorkerHost | None) -> HealthReport:
        now = instant(self._runtime.wall_ms())
        health = None if worker is None else worker.health()
        process = ProcessReport(
            number=1 if self._pipe is None else self._pipe.number,
            state="starting" if health is None else "draining" if health.is_draining else "working",
            pid=os.getpid(),
            heard_at=None if health is None else now,
            poll=self._poll,
            health={} if health is None else facts_of(health),
        )
        return HealthReport(at=now, pid=os.getpid(), processes=[process])
