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
from typing import TYPE_CHECKING

import psycopg
from psycopg.pq import PollingStatus

from holdfast.store.postgres.connecting import EVENTS, wait
from holdfast.store.postgres.deadline import Alarm, Deadline
from holdfast.surroundings import Shell, Surroundings

if TYPE_CHECKING:
    from psycopg.pq.abc import PGcancelConn, PGconn

MOST_WAITING = 100  # the server is out of reach, and a lost connection ends its statements sooner or later


class Cancels:
    """The requests, each of which has *seconds*; the thread is made when there is a first one."""

    def __init__(self, surroundings: Surroundings, seconds: float) -> None:
        self._make_shell = surroundings.shell
        self._monotonic = surroundings.monotonic
        self._seconds = seconds
        self._shell: Shell | None = None
        self._change = threading.Lock()
        self._asked: deque[Callable[[], None]] = deque(maxlen=MOST_WAITING)

    def ask(self, pgconn: PGconn) -> None:
        """Have what runs on *pgconn* ended; that one may be closed right after."""
        with suppress(psycopg.Error, RuntimeError):  # it is closed already; or no thread can be made
            self._asked.append(self._request(pgconn))
            with self._change:
                if self._shell is None:
                    self._shell = self._make_shell(self._step, "holdfast-cancels")
                self._shell.wake()

    def stop(self) -> None:
        """Ask no more; a request under way has its time."""
        self._asked.clear()
        with self._change:
            shell, self._shell = self._shell, None
        if shell is not None:
            shell.stop()

    def _step(self) -> None:
        with suppress(IndexError):
            while True:
                ask = self._asked.popleft()
                with suppress(psycopg.Error):
                    ask()

    def _request(self, pgconn: PGconn) -> Callable[[], None]:
        """Prepare a request; libpq before 17 sends it without encryption, and knows no time-out for it."""
        try:
            return partial(self._send, pgconn.cancel_conn())
        except psycopg.NotSupportedError:
            return pgconn.get_cancel().cancel

    def _send(self, request: PGcancelConn) -> None:
        """Send *request* step by step: libpq's own way to wait for it would stop every thread of the program."""
        deadline = Deadline(self._monotonic, self._seconds)
        request.start()
        while (step := request.poll()) != PollingStatus.OK:
            if step == PollingStatus.FAILED:
                return
            wait(request.socket, EVENTS[PollingStatus(step)], deadline)


class Cut(Alarm):
    """An alarm that has the server end what runs on the connection, too."""

    __slots__ = ("_cancels",)

    def __init__(self, pgconn: PGconn, cancels: Cancels) -> None:
        super().__init__(pgconn)
        self._cancels = cancels

    def ring(self) -> None:
        """End whatever the driver waits for on this connection, here and there."""
        self._cancels.ask(self._pgconn)
        super().ring()
