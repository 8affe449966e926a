"""Asks the server to end statements whose connection we have cut, so that nothing runs on, and keeps locks, for nobody.

A server sees that a client is gone only when it has something to say to it. To ask it means to connect, which may take
long, and nobody shall wait for it: so it is done in a thread of its own, one request after the other.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import psycopg
from psycopg.pq import PollingStatus

from holdfast.database.postgres.connecting import EVENTS, wait
from holdfast.database.postgres.deadline import Alarm, Deadline
from holdfast.runtime import Runtime, Stepper

if TYPE_CHECKING:
    from psycopg.pq.abc import PGcancelConn, PGconn

Request: TypeAlias = Callable[[Deadline], None]

MOST_WAITING = 100  # the server is out of reach, and a lost connection ends its statements sooner or later


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
