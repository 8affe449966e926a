"""Hints on SQLite: our own commits give them directly, those of others show on the log file, every 20 ms."""

from __future__ import annotations

from holdfast.store.hints import Hear
from holdfast.surroundings import Shell, Surroundings

LOOK_SECONDS = 0.02
LIVELY_LOOK_SECONDS = 0.005  # a look costs 30 µs, most of it to wake the thread
LIVELY_SECONDS = 1.0
ECHO_SECONDS = 0.02
LAST_ECHO_SECONDS = 1.28


class LogWatch:
    """Looks at the `-wal` file of the database at *path*, while somebody listens; more often while it changes.

    A file's time goes by ticks of up to 10 ms, and the log is written over from its beginning, so two commits may
    leave the same mark. Hence an echo: 20 ms after a commit was seen, later than any tick, there is a second hint.

    Others write to the log before they wait for the disk, and only then can their commit be read. So what others wrote
    has more echoes, each after twice the time: with a disk that took 60 ms, every job had waited for the poll.
    """

    is_listening = False  # nobody tells us: the poll stays short, and nobody need be told that we sleep

    def __init__(self, path: str, surroundings: Surroundings, tell: Hear) -> None:
        self._path = f"{path}-wal"
        self._surroundings = surroundings
        self._monotonic = surroundings.monotonic
        self._tell = tell
        self._seen: object = None
        self._changed_at = self._monotonic() - LIVELY_SECONDS
        self._echo_after: float | None = None
        self._last_echo = ECHO_SECONDS
        self._shell: Shell | None = None

    def start(self) -> None:
        """Begin to look."""
        self._seen = self._surroundings.file_mark(self._path)
        self._shell = self._surroundings.shell(self._look, "holdfast-hints")
        self._shell.wake()

    def stop(self) -> None:
        """Look no more."""
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.stop()

    def note_commit(self) -> None:
        """Give a hint for a commit of our own, before anybody else can write."""
        self._note(self._surroundings.file_mark(self._path), last_echo=ECHO_SECONDS)

    def _look(self) -> float:
        mark = self._surroundings.file_mark(self._path)
        now = self._monotonic()
        if mark != self._seen:
            self._note(mark, last_echo=LAST_ECHO_SECONDS)
        elif self._echo_after is not None and now - self._changed_at >= self._echo_after:
            self._echo_after = self._echo_after * 2 if self._echo_after < self._last_echo else None
            self._tell()
        return LIVELY_LOOK_SECONDS if now - self._changed_at < LIVELY_SECONDS else LOOK_SECONDS

    def _note(self, mark: object, last_echo: float) -> None:
        self._seen, self._changed_at = mark, self._monotonic()
        self._echo_after, self._last_echo = ECHO_SECONDS, last_echo
        self._tell()
