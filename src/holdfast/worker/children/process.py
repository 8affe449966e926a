"""One child process as its worker sees it: the socket to it, the jobs that it may begin, and its death.

Its end is seen by what the system says of it and not by the socket alone: what a handler has forked may keep the other
end of that open. Messages are sent in any thread and wait for nobody; all else happens in the worker's loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from subprocess import TimeoutExpired

from holdfast.logging import reason_of, say
from holdfast.runtime import Runtime
from holdfast.worker.children.messages import CHUNK, Message, MessageReader, encode
from holdfast.worker.children.tickets import END, TicketQueue

MODULE = "holdfast.worker.children.child"
LEAVE_SECONDS = 2.0
LOOK_SECONDS = 0.5

logger = logging.getLogger(__name__)


class ChildProcess:
    """A child that was just started; *on_death* gets its exit code, or minus the signal that ended it."""

    def __init__(
        self,
        runtime: Runtime,
        on_message: Callable[[ChildProcess, Message], None],
        on_death: Callable[[ChildProcess, int], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._on_death = on_death
        self.tickets = TicketQueue()
        """What it may begin, of the jobs that it was given."""
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        try:  # in this thread, which lives as long as the worker: the system ends a child with the *thread* it is of
            self._process = runtime.spawn(MODULE, (theirs.fileno(), self.tickets.descriptor))
        except BaseException:
            self._socket.close()
            self.tickets.close()
            raise
        finally:
            theirs.close()
        self._reader = MessageReader()
        self._unsent = bytearray()
        self._sending = threading.Lock()
        self._is_open = True
        self.pid = self._process.pid
        self.jobs = 0
        """How many it has done."""
        self.current = END
        """The job that it has begun last, by its number."""
        self.numbers = count(END + 1)
        """For the jobs that it is to be given."""
        self._pidfd: int | None = None
        with suppress(AttributeError, OSError):  # where the system has none
            self._pidfd = os.pidfd_open(self.pid)  # can be read once it is dead
        if self._pidfd is not None:
            self._loop.add_reader(self._pidfd, self._check_death)
        self._loop.add_reader(self._socket, self._read)

    def give(self, jobs: Mapping[int, Message]) -> None:
        """Send jobs by their numbers, all at once, and let it begin them one after the other."""
        self._send_bytes(b"".join([encode("run", number=number, **facts) for number, facts in jobs.items()]))
        self.tickets.give(jobs)

    def send(self, message: str, **facts: object) -> None:
        self._send_bytes(encode(message, **facts))

    def _send_bytes(self, messages: bytes) -> None:
        with self._sending:
            if not self._is_open:
                return
            had_unsent = bool(self._unsent)
            self._unsent += messages
            if not had_unsent and self._send():
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._send_later)

    def _send(self) -> bool:
        """Send what can be sent; tell whether something is left."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent[:CHUNK])]
        except BlockingIOError:
            return True
        except OSError:  # it is dying, as we shall see
            self._unsent.clear()
        return False

    def _send_later(self) -> None:
        with self._sending:
            if self._is_open:
                self._loop.add_writer(self._socket, self._send_rest)

    def _send_rest(self) -> None:
        with self._sending:
            if self._is_open and not self._send():
                self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        try:
            piece = self._socket.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if piece:
            self._on_bytes(piece)
            return
        self._loop.remove_reader(self._socket)
        if self._process.poll() is None:  # one that has closed its socket and lives on is of no use to anybody
            self._loop.call_later(LOOK_SECONDS, self._kill_mute)
        self._check_death()

    def _on_bytes(self, piece: bytes) -> None:
        """Read *piece*; what cannot be understood, as when a handler writes to every file, ends the child.

        Its answer may have been lost with it, and its job would run for ever.
        """
        try:
            for message in self._reader.feed(piece):
                self._on_message(self, message)
        except Exception as error:  # noqa: BLE001 - whatever a handler has written there
            say(logger, "child_not_understood", trace=error, pid=self.pid, reason=reason_of(error))
            self.kill()

    def _kill_mute(self) -> None:
        self.kill()
        self._check_death()
        if self._is_open:
            self._loop.call_later(LOOK_SECONDS, self._check_death)

    def _check_death(self) -> None:
        code = self._process.poll()
        if code is None or not self._is_open:
            return
        with suppress(OSError):  # what it said before it died
            while piece := self._socket.recv(CHUNK):
                self._on_bytes(piece)
        self._let_be()
        self._socket.close()
        self._on_death(self, code)
        self.tickets.close()

    def _let_be(self) -> None:
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        with self._sending:
            self._is_open = False
            self._unsent.clear()

    def kill(self) -> None:
        """End it, whatever it does; *on_death* is called when it is dead."""
        with suppress(OSError):
            self._process.kill()

    def leave(self) -> None:
        """Let it go, and report nothing of it any more."""
        self.tickets.give([END])
        if self._is_open:
            self._let_be()

    def wait(self) -> None:
        """Wait for the end of a child that was let go; in a thread."""
        try:
            self._process.wait(LEAVE_SECONDS)
        except TimeoutExpired:
            self.kill()
            self._process.wait()
        self._socket.close()  # not before: it would take that for our death
        self.tickets.close()


def how_it_died(code: int) -> str:
    if code >= 0:
        return f"ended by itself, with exit code {code}"
    try:
        return f"died of {signal.Signals(-code).name}"
    except ValueError:
        return f"died of signal {-code}"
