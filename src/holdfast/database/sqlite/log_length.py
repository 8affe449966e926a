"""How long SQLite's own log is: kept short, and warned about where that cannot be done.

SQLite writes its log back as it goes and then begins it anew, but only once nobody reads from it. Readers that overlap
all the time, or one that is stuck, let it grow without end, and the file stays as long as it once was. So it is looked
at now and then; if it is long, it is written back and emptied, for which those who read now are waited for, a moment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

LONG_BYTES = 16 * 2**20  # four times what SQLite lets it grow to before it writes back
TOO_LONG_BYTES = 64 * 2**20
AGAIN_SECONDS = 30.0  # after a try, which holds up all who write for as long as readers are waited for

logger = logging.getLogger(__name__)


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
        length = self._length()
        if length < LONG_BYTES:
            self._note_short()
            return
        if length >= TOO_LONG_BYTES and self._tried_at is not None and not self._is_too_long:
            self._is_too_long = True
            reason = "somebody reads in a transaction that stays open; end it, or the file grows until the disk is full"
            logger.warning("sqlite_log_too_long", extra={"path": str(self._path), "bytes": length, "reason": reason})
        now = self._monotonic()
        if self._tried_at is None or now - self._tried_at >= AGAIN_SECONDS:
            self._tried_at = now
            self._empty()

    def _note_short(self) -> None:
        self._tried_at = None
        if self._is_too_long:
            self._is_too_long = False
            logger.warning("sqlite_log_short_again", extra={"path": str(self._path)})

    def _length(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:  # nobody has the database open, or the file was removed: whoever writes next says so
            return 0
