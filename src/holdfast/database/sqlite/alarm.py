"""The kernel's own word that a file was written: by inotify, which only Linux has.

A look at the file fifty times a second is 0.5 % of a CPU, nearly all of it to wake the thread; this is nothing, until
somebody writes, and then it is heard at once.
"""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import Callable
from contextlib import suppress

from holdfast.runtime import Runtime, Stepper

IN_MODIFY = 0x2
ENOUGH = 4096  # bytes, for all the events that we leave unread


class FileAlarm:
    """Calls *ring*, in a thread of its own, once the file at *path* was written after the alarm was set.

    Raises `OSError` where there is no inotify, where too many use it already, or where no thread can be started.
    """

    def __init__(self, path: str, runtime: Runtime, ring: Callable[[], None]) -> None:
        self._path = os.fsencode(path)
        self._ring = ring
        self._library = ctypes.CDLL(None, use_errno=True)
        self._file = self._ask("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
        self._goodbye = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._file, select.POLLIN)
        self._poll.register(self._goodbye, select.POLLIN)
        self._is_waiting = False
        try:
            self._shell: Stepper = runtime.stepper(self._wait, "holdfast-alarm")
        except RuntimeError as error:
            self._close_files()
            raise OSError("no thread can be started") from error

    def set(self) -> bool:
        """Have it ring for whatever is written from now on; tell whether that can be: the file must be there."""
        try:
            self._ask("inotify_add_watch", self._file, self._path, IN_MODIFY)  # a file that took its place included
        except OSError:
            return False
        with suppress(BlockingIOError):
            os.read(self._file, ENOUGH)
        if not self._is_waiting:
            self._is_waiting = True
            self._shell.wake()
        return True

    def stop(self) -> None:
        """Ring no more."""
        os.eventfd_write(self._goodbye, 1)
        self._shell.stop()
        self._close_files()

    def _wait(self) -> None:
        """Wait, in the alarm's thread, until there is something to ring for; it is set anew by whoever has heard it."""
        if not self._is_waiting:
            return
        ready = [descriptor for descriptor, _ in self._poll.poll()]
        self._is_waiting = False
        if self._goodbye not in ready:
            self._ring()

    def _close_files(self) -> None:
        os.close(self._file)
        os.close(self._goodbye)

    def _ask(self, function: str, *arguments: object) -> int:
        answer = int(getattr(self._library, function)(*arguments))
        if answer < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return answer


def make_alarm(path: str, runtime: Runtime, ring: Callable[[], None]) -> FileAlarm | None:
    """Make an alarm, if the kernel has them."""
    if not runtime.has_file_alarms:
        return None
    try:
        return FileAlarm(path, runtime, ring)
    except (OSError, AttributeError):  # too many in use; or neither in the C library nor in Python
        return None
