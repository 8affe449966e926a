"""The end of waiting, enforced outside the driver.

`asyncio.wait_for` around psycopg took 18 s to end an 8 s wait on a server that acknowledges and never answers,
since the driver first tries to cancel. So when a deadline passes we shut the connection's socket: the driver
sees the end at once, whatever it was doing, and fails by itself. Such a connection is thrown away.

Then the server is asked to end the statements of that connection, so that nothing runs on, and keeps locks, for nobody:
a server sees that a client is gone only when it has something to say to it. To ask it means to connect, which may take
long, and nobody shall wait for it: so it is done in a thread of its own, one request after the other.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import psycopg
from psycopg.pq import PollingStatus

from holdfast.runtime import Runtime, Stepper
from holdfast.threads import in_slices

if TYPE_CHECKING:
    from psycopg.pq.abc import PGcancelConn, PGconn

EVENTS = {PollingStatus.READING: selectors.EVENT_READ, PollingStatus.WRITING: selectors.EVENT_WRITE}
MOST_WAITING = 100  # the server is out of reach, and a lost connection ends its statements sooner or later


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
        return self._at <= self._monotonic()


def wait(descriptor: int, event: int, deadline: Deadline) -> None:
    """Wait until the socket is ready."""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, event)
        if not selector.select(deadline.remaining()):
            raise psycopg.errors.ConnectionTimeout("the connection was not made in time")


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


class Reminder:
    """Calls *function* when it rings."""

    __slots__ = ("disarm", "ring")

    def __init__(self, function: Callable[[], None]) -> None:
        self.ring = function
        self.disarm: Callable[[], object] = lambda: None


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
        self._armed: dict[Alarm | Reminder, float] = {}
        self._looks_at: float | None = None
        self._is_closed = False

    def arm(self, alarm: Alarm | Reminder, seconds: float) -> None:
        """Have *alarm* ring in *seconds*, unless it is disarmed before."""
        at = self._monotonic() + seconds
        with self._changed:
            if self._shell is None:  # first, for it may fail, as at the interpreter's end
                look = self._look_late if self._is_closed else self._look
                self._shell = self._make_shell(look, "holdfast-deadlines")
            self._armed[alarm] = at
            if self._looks_at is None or self._is_closed:
                self._shell.wake()
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

    def _disarm(self, alarm: Alarm | Reminder) -> None:
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


Request: TypeAlias = Callable[[Deadline], None]


class Cancels:
    """The requests, each of which has *seconds*; the thread is made when there is a first one."""

    def __init__(self, runtime: Runtime, seconds: float) -> None:
        self._make_shell = runtime.stepper
        self._monotonic = runtime.monotonic
        self._seconds = seconds
        self._shell: Stepper | None = None
        self._change = threading.Lock()
        self._asked: deque[Request] = deque(maxlen=MOST_WAITING)

    def ask(self, pgconn: PGconn) -> None:
        """Have what runs on *pgconn* ended; that one may be closed right after."""
        with suppress(psycopg.Error, RuntimeError):  # it is closed already; or no thread can be made
            self._asked.append(self._request(pgconn))
            with self._change:
                if self._shell is None:
                    self._shell = self._make_shell(self._step, "holdfast-cancels")
                self._shell.wake()

    def stop(self) -> None:
        """Let go of the thread; a request under way has its time, and those that wait have as much together."""
        with self._change:
            shell, self._shell = self._shell, None
        if shell is None:
            return
        waiting = self._take()
        shell.stop()
        deadline = self._deadline()
        for ask in (*waiting, *self._take()):
            if not deadline.has_passed:
                self._try(ask, deadline)

    def _step(self) -> None:
        with suppress(IndexError):
            while True:
                self._try(self._asked.popleft(), self._deadline())

    def _take(self) -> list[Request]:
        """Take what waits from the thread."""
        taken: list[Request] = []
        with suppress(IndexError):
            while True:
                taken.append(self._asked.popleft())
        return taken

    def _try(self, ask: Request, deadline: Deadline) -> None:
        with suppress(psycopg.Error):
            ask(deadline)

    def _deadline(self) -> Deadline:
        return Deadline(self._monotonic, self._seconds)

    def _request(self, pgconn: PGconn) -> Request:
        """Prepare a request; libpq before 17 sends it without encryption, and knows no time-out for it."""
        try:
            return partial(_send, pgconn.cancel_conn())
        except psycopg.NotSupportedError:
            request = pgconn.get_cancel()
            return lambda _: request.cancel()


class CancellingAlarm(Alarm):
    """An alarm that has the server end what runs on the connection, too."""

    __slots__ = ("_cancels",)

    def __init__(self, pgconn: PGconn, cancels: Cancels) -> None:
        super().__init__(pgconn)
        self._cancels = cancels

    def ring(self) -> None:
        """End whatever the driver waits for on this connection, here and there."""
        self._cancels.ask(self._pgconn)
        super().ring()


def _send(request: PGcancelConn, deadline: Deadline) -> None:
    """Send *request* step by step: libpq's own way to wait for it would stop every thread of the program."""
    request.start()
    while (step := request.poll()) != PollingStatus.OK:
        if step == PollingStatus.FAILED:
            return
        wait(request.socket, EVENTS[PollingStatus(step)], deadline)
