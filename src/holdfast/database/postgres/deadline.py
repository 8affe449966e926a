"""The end of waiting, enforced outside the driver.

`asyncio.wait_for` around psycopg took 18 s to end an 8 s wait on a server that acknowledges and never answers,
since the driver first tries to cancel. So when a deadline passes we shut the connection's socket: the driver
sees the end at once, whatever it was doing, and fails by itself. Such a connection is thrown away.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import psycopg

from holdfast.runtime import Runtime, Stepper
from holdfast.threads import in_slices

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn


class Deadline:
    """A point in time, *seconds* from now, by which the caller is given an answer."""

    __slots__ = ("_at", "_monotonic", "seconds")

    def __init__(self, monotonic: Callable[[], float], seconds: float) -> None:
        self.seconds = seconds
        self._monotonic = monotonic
        self._at = monotonic() + seconds

    def remaining(self) -> float:
        """Count the seconds that are left; 0 once it has passed."""
        return max(0.0, self._at - self._monotonic())

    def again(self) -> Deadline:
        """Make one with as many seconds, from now."""
        return Deadline(self._monotonic, self.seconds)

    def share(self, number: int) -> Deadline:
        """Make the deadline of the first of *number* who divide what is left."""
        return Deadline(self._monotonic, self.remaining() / number)

    @property
    def has_passed(self) -> bool:
        """Tell whether nothing is left."""
        return self._at <= self._monotonic()


class Alarm:
    """Shuts one connection's socket when it rings; *disarm* it before the connection goes elsewhere."""

    __slots__ = ("_pgconn", "disarm", "has_rung")

    def __init__(self, pgconn: PGconn) -> None:
        self._pgconn = pgconn
        self.has_rung = False
        self.disarm: Callable[[], object] = lambda: None

    def ring(self) -> None:
        """End whatever the driver waits for on this connection."""
        self.has_rung = True
        with suppress(OSError, psycopg.OperationalError):
            # a copy of the descriptor, for the driver's own is the driver's to close
            with socket.socket(fileno=os.dup(self._pgconn.socket)) as line:
                line.shutdown(socket.SHUT_RDWR)


class LoopAlarms:
    """Rings the alarms of one event *loop*, by one timer; like `AlarmThread`, it does not look when one is disarmed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._armed: dict[Alarm, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def arm(self, alarm: Alarm, seconds: float) -> None:
        """Have *alarm* ring in *seconds*, unless it is disarmed before."""
        at = self._armed[alarm] = self._loop.time() + seconds
        if self._timer is None or at < self._timer.when():
            self._look_at(at)
        alarm.disarm = partial(self._armed.pop, alarm, None)

    def _look_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        for alarm in [alarm for alarm, at in self._armed.items() if at <= now]:
            del self._armed[alarm]
            alarm.ring()
        if self._armed:
            self._look_at(min(self._armed.values()))


class AlarmThread:
    """Rings the alarms of blocking code, from one thread that lives while there is something to watch.

    It looks when the earliest deadline it knows has come, not when an alarm is disarmed: a busy store wakes it
    once a deadline, and to arm costs a lock and a dictionary entry.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._monotonic = runtime.monotonic
        self._make_shell = runtime.stepper
        self._shell: Stepper | None = None
        self._changed = threading.Condition()
        self._armed: dict[Alarm, float] = {}
        self._looks_at: float | None = None
        self._is_closed = False

    def arm(self, alarm: Alarm, seconds: float) -> None:
        """Have *alarm* ring in *seconds*, unless it is disarmed before."""
        at = self._monotonic() + seconds
        with self._changed:
            shell = self._start()  # first, for it may fail, as at the interpreter's end
            self._armed[alarm] = at
            if self._looks_at is None or self._is_closed:
                shell.wake()
            if self._looks_at is None or at < self._looks_at:
                self._looks_at = at
                self._changed.notify_all()
        alarm.disarm = lambda: self._disarm(alarm)

    def stop(self) -> None:
        """Wait for what is armed, which has its deadlines, and let go of the thread.

        A block may end later; what that arms has a thread which ends with it.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            in_slices(lambda seconds: self._changed.wait_for(lambda: not self._armed, seconds), None)
            shell, self._shell = self._shell, None
        if shell is not None:
            shell.stop()

    def _start(self) -> Stepper:
        if self._shell is None:
            self._shell = self._make_shell(self._look_late if self._is_closed else self._look, "holdfast-deadlines")
        return self._shell

    def _disarm(self, alarm: Alarm) -> None:
        with self._changed:  # so that no alarm rings, on a descriptor that was given away, after this
            self._armed.pop(alarm, None)
            if self._is_closed:
                self._changed.notify_all()

    def _look(self) -> None:
        with self._changed:
            while self._armed:
                self._ring_due()
                if self._armed:
                    self._looks_at = min(self._armed.values())
                    self._changed.wait(max(0.0, self._looks_at - self._monotonic()))
            self._looks_at = None

    def _look_late(self) -> None:
        """Look, and end the thread that does so once nothing is armed: nobody else will."""
        self._look()
        with self._changed:
            if not self._armed and self._shell is not None:
                self._shell.stop()
                self._shell = None

    def _ring_due(self) -> None:
        now = self._monotonic()
        for alarm in [alarm for alarm, at in self._armed.items() if at <= now]:
            alarm.ring()
            del self._armed[alarm]
            self._changed.notify_all()
