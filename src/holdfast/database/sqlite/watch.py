"""Hints on SQLite: our own commits give them directly, those of others show on the log file.

Where the kernel tells when that is written, it is looked at then; elsewhere every 20 ms.
"""

from __future__ import annotations

from holdfast.database.hints import Hear
from holdfast.database.sqlite.alarm import FileAlarm, make_alarm
from holdfast.runtime import Runtime, Stepper

LOOK_SECONDS = 0.02
ALARMED_LOOK_SECONDS = 0.25  # with an alarm set, which may have been for a file that was replaced since
LIVELY_LOOK_SECONDS = 0.005  # a look costs 30 µs, most of it to wake the thread
LIVELY_SECONDS = 1.0
ECHO_SECONDS = 0.02
FIRST_ECHO_SECONDS, LAST_ECHO_SECONDS = 0.005, 1.28


class LogWatch:
    """Looks at the `-wal` file of the database at *path*, while somebody listens; more often while it changes.

    A file's time goes by ticks of up to 10 ms, and the log is written over from its beginning, so two commits may
    leave the same mark. Hence an echo: 20 ms after a commit was seen, later than any tick, there is a second hint.

    Others write to the log before they wait for the disk, and only then can their commit be read. So what others wrote
    has more echoes, the first one soon, each after twice the time: an alarm is nearly always too early, and with a disk
    that took 60 ms every job had waited for the poll.
    """

    is_listening = False  # nobody tells us: the poll stays short, and nobody need be told that we sleep

    def __init__(self, path: str, runtime: Runtime, tell: Hear) -> None:
        self._path = f"{path}-wal"
        self._runtime = runtime
        self._monotonic = runtime.monotonic
        self._tell = tell
        self._seen: object = None
        self._changed_at = self._monotonic() - LIVELY_SECONDS
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
            self._tell()
        if self._is_lively:
            return LIVELY_LOOK_SECONDS
        return ALARMED_LOOK_SECONDS if is_alarmed and self._echo_after is None else LOOK_SECONDS

    @property
    def _is_lively(self) -> bool:
        return self._monotonic() - self._changed_at < LIVELY_SECONDS

    def _note(self, mark: object, first_echo: float, last_echo: float) -> None:
        self._seen, self._changed_at = mark, self._monotonic()
        self._echo_after, self._last_echo = first_echo, last_echo
        self._tell()
