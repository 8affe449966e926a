"""Journals: what a handler writes down while it runs, entry by entry, kept in order over all attempts of its job."""

from __future__ import annotations

import re
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import InvalidInput, JournalFull, got, shown
from holdfast.models import RESERVED

if TYPE_CHECKING:
    from holdfast.codec import Codec

MOST_ENTRY_BYTES = 64 * 1024
MOST_ENTRIES = 10_000
MOST_BYTES = 64 * 1024 * 1024
MOST_LOGS = 1_000
KIND = re.compile(r"[a-z][a-z0-9_.]{0,63}")

LOG = "log"
"""The kind of the log lines that `keep_logs=` keeps; they are not counted with the entries of the handler."""
INPUT = f"{RESERVED}input"
"""The kind of an entry that holds an input as it was before somebody changed it."""


class JournalEntry(NamedTuple):
    """An entry of a job's journal."""

    number: int
    """Its place: it grows, and may leave out some, where log lines have gone."""
    attempt: int
    """The attempt that wrote it; 0 if a person did, as `holdfast.input`."""
    kind: str
    at: datetime
    body: Any


class JournalMark(NamedTuple):
    """How far a journal has come: its last *number*, the bytes of its entries, and how many of them were log lines.

    *total* has no log lines in it, and so `number - logs` is the number of all other entries.
    """

    number: int = 0
    total: int = 0
    logs: int = 0

    def after_entry(self, body: str) -> JournalMark:
        """Give the mark behind one more entry, or raise `JournalFull`."""
        if self.number - self.logs >= MOST_ENTRIES:
            raise JournalFull("entries", MOST_ENTRIES)
        total = self.total + len(body.encode())
        if total > MOST_BYTES:
            raise JournalFull("bytes", MOST_BYTES)
        return JournalMark(self.number + 1, total, self.logs)

    def after_log(self) -> JournalMark:
        """Give the mark behind one more log line: of these the oldest go, and so there is always room."""
        return JournalMark(self.number + 1, self.total, self.logs + 1)


BEGINNING = JournalMark()


class NewEntry(NamedTuple):
    """An entry to be written, by whoever knows where the journal stands: *mark* is what it leaves behind it."""

    mark: JournalMark
    kind: str
    body: str
    """Canonical JSON."""

    @property
    def size(self) -> int:
        """About how many bytes are sent for it."""
        return len(self.body)


def check_kind(kind: object) -> str:
    """Take a word for an entry that is not one of the engine's own."""
    if not isinstance(kind, str) or not KIND.fullmatch(kind):
        raise InvalidInput(
            f"kind must be 1 to 64 lower-case letters, digits, _ and ., and begin with a letter; got {shown(kind)}",
            "kind",
        )
    if kind == LOG:
        raise InvalidInput("kind cannot be 'log': keep_logs= of the task writes these; choose another", "kind")
    if kind.startswith(RESERVED):
        raise InvalidInput(
            f"kind cannot be {shown(kind)}: Holdfast keeps {RESERVED!r} for itself; choose another", "kind"
        )
    return kind


def check_wanted_kind(kind: object) -> str | None:
    """Take the kind of entry that somebody wants to read, also one of the engine's own; None stands for all."""
    if kind is None or (isinstance(kind, str) and KIND.fullmatch(kind)):
        return kind
    raise InvalidInput(f"kind must be that of an entry, or None for all, {got(kind)}", "kind")


def encode_body(body: object) -> str:
    """Write *body* as canonical JSON; raise `InvalidInput` for what does not come back equal, or `JournalFull`."""
    text = _bodies().encode(body)
    if len(text.encode()) > MOST_ENTRY_BYTES:
        raise JournalFull("entry", MOST_ENTRY_BYTES)
    return text


@cache
def _bodies() -> Codec[Any]:
    from holdfast.codec import Codec, ValueLimits  # pydantic: only who writes a journal needs it here

    # `encode_body` has its own limit
    return Codec(Any, "body", InvalidInput, limits=ValueLimits(size_bytes=MOST_BYTES))
