"""One child process as its worker sees it: the socket to it, and its death.

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
from collections.abc import Callable
from contextlib import suppress
from subprocess import TimeoutExpired
from typing import Protocol

from holdfast.runtime import Process, Runtime
from holdfast.worker.children.messages import CHUNK, Message, MessageReader, encode

MODULE = "holdfast.worker.children.child"
LEAVE_SECONDS = 2.0
LOOK_SECONDS = 0.5

logger = logging.getLogger(__name__)


class Owner(Protocol):
    """Receives the messages and the death of a child; called in the loop."""

    def on_message(self, child: ChildProcess, message: Message) -> None:
        """Handle a message."""

    def on_death(self, child: ChildProcess, code: int) -> None:
        """Handle its death; *code* is its exit code, or minus the signal that ended it."""


class ChildProcess:
    """A child that was just started; *owner* receives what comes of it."""

    def __init__(self, runtime: Runtime, owner: Owner) -> None:
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        # in this thread, which lives as long as the worker: the system ends a child with the *thread* that began it
        self._process, self._socket = _spawn(runtime)
        self._reader = MessageReader()
        self._unsent = bytearray()
        self._sending = threading.Lock()
        self._is_open = True
        self.pid = self._process.pid
        self.jobs = 0
        """How many it was given."""
        self._pidfd = _pidfd(self.pid)
        if self._pidfd is not None:
            self._loop.add_reader(self._pidfd, self._check_death)
        self._loop.add_reader(self._socket, self._read)

    def send(self, message: str, **facts: object) -> None:
        """Send a message; in any thread."""
        with self._sending:
            if not self._is_open:
                return
            had_unsent = bool(self._unsent)
            self._unsent += encode(message, **facts)
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
        if not piece:
            self._loop.remove_reader(self._socket)
            self._on_closed()
            return
        self._on_bytes(piece)

    def _on_bytes(self, piece: bytes) -> None:
        """Read *piece*; what cannot be understood, as when a handler writes to every file, ends the child.

        Its answer may have been lost with it, and its job would run for ever.
        """
        try:
            for message in self._reader.feed(piece):
                self._owner.on_message(self, message)
        except Exception:
            logger.exception("child_not_understood", extra={"pid": self.pid})
            self.kill()

    def _on_closed(self) -> None:
        """See whether it is dead; a child that has closed its socket and lives on is of no use to anybody."""
        if self._is_open and self._process.poll() is None:
            self._loop.call_later(LOOK_SECONDS, self._kill_mute)
        self._check_death()

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
        self._owner.on_death(self, code)

    def _let_be(self) -> None:
        """Read and send nothing any more."""
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
        """End it, whatever it does; its owner is called when it is dead."""
        with suppress(OSError):
            self._process.kill()

    def leave(self) -> Callable[[], None]:
        """Let it go, without telling its owner any more; gives what waits for its end, in a thread."""
        self.send("end")
        if self._is_open:
            self._let_be()
        return self._wait

    def _wait(self) -> None:
        try:
            self._process.wait(LEAVE_SECONDS)
        except TimeoutExpired:
            self.kill()
            self._process.wait()
        self._socket.close()  # not before: it would take that for our death


def _spawn(runtime: Runtime) -> tuple[Process, socket.socket]:
    """Start a child; give it and our end of the socket pair."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    try:
        return runtime.spawn(MODULE, theirs.fileno()), ours
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()


def _pidfd(pid: int) -> int | None:
    """Give a descriptor that can be read once the process is dead; None where the system has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def how_it_died(code: int) -> str:
    """Say how a process ended, by its code."""
    if code >= 0:
        return f"ended by itself, with exit code {code}"
    try:
        return f"died of {signal.Signals(-code).name}"
    except ValueError:
        return f"died of signal {-code}"
