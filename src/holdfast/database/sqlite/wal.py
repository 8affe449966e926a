"""SQLite's own log, the `-wal` file: the hints that its changes give, and its length.

Our own commits give hints directly; those of others show on the log file. Where the kernel tells when that is written
(by inotify, which only Linux has), it is looked at then; elsewhere every 20 ms. A look at the file fifty times a second
is 0.5 % of a CPU, nearly all of it to wake the thread; inotify costs nothing until somebody writes, and then it is
heard at once.

SQLite writes its log back as it goes and then begins it anew, but only once nobody reads from it. Readers that overlap
all the time, or one that is stuck, let it grow without end, and the file stays as long as it once was. So it is looked
at now and then; if it is long, it is written back and emptied, for which those who read now are waited for, a moment.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from holdfast.database.hints import OnHint
from holdfast.logging import say
from holdfast.runtime import Runtime, Stepper

LOOK_SECONDS = 0.02
ALARMED_LOOK_SECONDS = 0.25  # with an alarm set, which may have been for a file that was replaced since
LIVELY_LOOK_SECONDS = 0.005  # a look costs 30 µs, most of it to wake the thread
LIVELY_SECONDS = 1.0
LIVELY_CHANGES = 20  # in that time; to be told of so many would cost more than to look
ECHO_SECONDS = 0.02
FIRST_ECHO_SECONDS, LAST_ECHO_SECONDS = 0.005, 1.28

IN_MODIFY = 0x2
ENOUGH = 4096  # bytes, for all the events that we leave unread

LONG_BYTES = 16 * 2**20  # four times what SQLite lets it grow to before it writes back
TOO_LONG_BYTES = 64 * 2**20
AGAIN_SECONDS = 30.0  # after a try, which holds up all who write for as long as readers are waited for

logger = logging.getLogger(__name__)


class LogWatch:
    """Looks at the `-wal` file of the database at *path*, while somebody listens; more often while it changes a lot.

    One that changes now and then is looked at when the kernel tells of it. (It was once looked at 200 times a second
    for a second after each change: the threads of 50 tenants with a job a second each had no time for anything else,
    and a job began 260 ms after its start in place of 5.)

    A file's time goes by ticks of up to 10 ms, and the log is written over from its beginning, so two commits may
    leave the same mark. Hence an echo: 20 ms after a commit was seen, later than any tick, there is a second hint.

    Others write to the log before they wait for the disk, and only then can their commit be read. So what others wrote
    has more echoes, the first one soon, each after twice the time: an alarm is nearly always too early, and with a disk
    that took 60 ms every job had waited for the poll.
    """

    is_listening = False  # nobody tells us: the poll stays short, and nobody need be told that we sleep

    def __init__(self, path: str, runtime: Runtime, notify: OnHint) -> None:
        self._path = f"{path}-wal"
        self._runtime = runtime
        self._monotonic = runtime.monotonic
        self._notify = notify
        self._seen: object = None
        self._changed_at = self._counted_since = self._monotonic() - LIVELY_SECONDS
        self._changes = 0
        """How many were seen since then."""
        self._lively_until = self._changed_at
        self._echo_after: float | None = None
        self._last_echo = ECHO_SECONDS
        self._shell: Stepper | None = None
        self._alarm: FileAlarm | None = None

    def start(self) -> None:
        """Begin to look."""
        self._seen = self._runtime.file_mark(self._path)
        self._shell = self._runtime.stepper(self._look, "holdfast-hints")
        self._alarm = make_alarm(self._path, self._runtime, self._shell.wake)
        self._shell.wake()

    def stop(self) -> None:
        """Look no more."""
        alarm, self._alarm = self._alarm, None
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.stop()
        if alarm is not None:
            alarm.stop()

    def note_commit(self) -> None:
        """Give a hint for a commit of our own, before anybody else can write."""
        self._note(self._runtime.file_mark(self._path), ECHO_SECONDS, ECHO_SECONDS)

    def _look(self) -> float:
        alarm = None if self._is_lively else self._alarm
        is_alarmed = alarm is not None and alarm.set()  # before the look: it rings for whatever comes after that
        mark = self._runtime.file_mark(self._path)
        now = self._monotonic()
        if mark != self._seen:
            self._note(mark, FIRST_ECHO_SECONDS, LAST_ECHO_SECONDS)
        elif self._echo_after is not None and now - self._changed_at >= self._echo_after:
            self._echo_after = self._echo_after * 2 if self._echo_after < self._last_echo else None
            self._notify()
        if self._is_lively:
            return LIVELY_LOOK_SECONDS
        seconds = ALARMED_LOOK_SECONDS if is_alarmed else LOOK_SECONDS
        return seconds if self._echo_after is None else min(seconds, self._echo_after)

    @property
    def _is_lively(self) -> bool:
        return self._monotonic() < self._lively_until

    def _note(self, mark: object, first_echo: float, last_echo: float) -> None:
        now = self._monotonic()
        self._seen, self._changed_at = mark, now
        self._echo_after, self._last_echo = first_echo, last_echo
        self._count_change(now)
        self._notify()

    def _count_change(self, now: float) -> None:
        if now - self._counted_since > LIVELY_SECONDS:
            self._counted_since, self._changes = now, 0
        self._changes += 1
        if self._changes >= LIVELY_CHANGES:
            self._lively_until = now + LIVELY_SECONDS


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


class LogLength:
    """Looks at the log at *path*; *empty* has it written back and emptied, soon."""

    def __init__(self, path: str, monotonic: Callable[[], float], empty: Callable[[], None]) -> None:
        self._path = Path(path)
        self._monotonic = monotonic
        self._empty = empty
        self._tried_at: float | None = None
        self._is_too_long = False

    def look(self) -> None:
        """Have the log emptied if it is long; say so once if that does not help, and once when it has."""
        try:
            length = self._path.stat().st_size
        except OSError:  # nobody has the database open, or the file was removed: whoever writes next says so
            length = 0
        if length < LONG_BYTES:
            self._tried_at = None
            if self._is_too_long:
                self._is_too_long = False
                say(logger, "sqlite_log_short_again", path=str(self._path))
            return
        if length >= TOO_LONG_BYTES and self._tried_at is not None and not self._is_too_long:
            self._is_too_long = True
            say(logger, "sqlite_log_too_long", path=str(self._path), bytes=length)
        now = self._monotonic()
        if self._tried_at is None or now - self._tried_at >= AGAIN_SECONDS:
            self._tried_at = now
            self._empty()
