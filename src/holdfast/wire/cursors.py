"""Where a reader of the log stands: what it has seen, as an opaque text that it can come back with.

A row of the log stands for one event, or for two that happened at once, and a reader may stop between these. So the
places are numbered by twice the `seq` of a row: that number is between its two events, and one more is behind it.

On SQLite commits have one order, and `seq` is it. On PostgreSQL a transaction that commits later may have drawn a lower
`seq` and have a lower number, so no number is a place. There a cursor is a *snapshot*: the number of the next
transaction and the numbers of those that were under way. Whatever these had not committed is new, and nobody's open
transaction holds anything up. It ends behind the last transaction that wrote an event: the numbers of those that were
rolled back since may come again after a crash of the server. Snapshots of one server nest, in the order in which they
were taken, so a page of a read that took in more than fits is what its snapshot has seen and the one before had not, up
to a `seq`.
"""

from __future__ import annotations

import base64
import binascii
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from holdfast.errors import InvalidCursor

LONGEST = 64_000
LARGEST = 2**63
URL_SAFE = bytes.maketrans(b"+/", b"-_")


def behind_row(seq: int) -> int:
    """Give the number of the place behind the row *seq*."""
    return 2 * seq + 1


def last_row(place: int) -> int:
    """Give the last row of which who stands at *place* has seen all."""
    return (place - 1) // 2


class Position(NamedTuple):
    """Where an event stands in the log: the transaction that wrote it (0 on SQLite), and the place behind it."""

    xid: int
    place: int


class Snapshot(NamedTuple):
    """The transactions that had ended: all below *xmax*, save those *in_progress*."""

    xmax: int
    in_progress: tuple[int, ...] = ()

    @classmethod
    def read(cls, text: str) -> Snapshot:
        """Read it as PostgreSQL writes it."""
        _, xmax, listed = text.split(":")
        return cls(int(xmax), tuple(int(each) for each in listed.split(",") if each))

    def has_seen(self, xid: int) -> bool:
        """Tell whether the transaction *xid* had ended."""
        return xid < self.xmax and xid not in self.in_progress

    def below(self, xmax: int) -> Snapshot:
        """Give the same without the transactions from *xmax* on, as if these had not begun."""
        return self if xmax >= self.xmax else Snapshot(xmax, tuple(each for each in self.in_progress if each < xmax))

    def includes(self, other: Snapshot) -> bool:
        """Tell whether it was taken when *other* was, or later."""
        return other.xmax <= self.xmax and not any(map(other.has_seen, self.in_progress))


class SeqCursor(NamedTuple):
    """A place in the log of a SQLite file."""

    origin: str
    place: int

    @property
    def text(self) -> str:
        """The cursor as it is handed out."""
        return _wrap(f"s2:{self.origin}:{self.place}")

    def has_seen(self, position: Position) -> bool:
        """Tell whether who stands here has seen the event at *position*."""
        return position.place <= self.place

    def at(self, place: int) -> SeqCursor:
        """Give *place* of the same log."""
        return SeqCursor(self.origin, place)

    def joined(self, reached: Cursor) -> SeqCursor:
        """Give the place of who was here, and had seen all that *reached* has before."""
        is_further = isinstance(reached, SeqCursor) and reached.place <= self.place
        return self if is_further else self.at(reached.place)


class SnapshotCursor(NamedTuple):
    """A place in the log of a PostgreSQL database: behind *seen*, and in *page*, if there is one, at *place*."""

    origin: str
    seen: Snapshot
    page: Snapshot | None = None
    place: int = 0

    @property
    def text(self) -> str:
        """The cursor as it is handed out."""
        if self.page is None:
            return _wrap(f"p2:{self.origin}:{_written(self.seen)}")
        return _wrap(f"p2:{self.origin}:{_written(self.seen)}:{_written(self.page)}:{self.place}")

    def has_seen(self, position: Position) -> bool:
        """Tell whether who stands here has seen the event at *position*."""
        if self.seen.has_seen(position.xid):
            return True
        return self.page is not None and position.place <= self.place and self.page.has_seen(position.xid)

    def at(self, place: int) -> SnapshotCursor:
        """Give *place* of the same page."""
        return SnapshotCursor(self.origin, self.seen, self.page, place)

    def joined(self, reached: Cursor) -> SnapshotCursor:
        """Give the place of who was here, and had seen all that *reached*, the end of a read, has before."""
        if not isinstance(reached, SnapshotCursor) or self.seen.includes(reached.seen):
            return self
        if self.page is None or reached.seen.includes(self.page):
            return reached
        return self._replace(seen=reached.seen)


Cursor: TypeAlias = SeqCursor | SnapshotCursor


def read_cursor(text: object) -> Cursor:
    """Read what `text` of a cursor wrote; or raise `InvalidCursor`."""
    if not isinstance(text, str):
        raise InvalidCursor
    try:
        kind, origin, *parts = _unwrap(text).split(":")
        if not (origin.isascii() and origin.isalnum()):
            raise InvalidCursor
        match kind, parts:
            case "s2", [place]:
                return SeqCursor(origin, _number(place))
            case "p2", [seen]:
                return SnapshotCursor(origin, _snapshot(seen))
            case "p2", [seen, page, place]:
                return SnapshotCursor(origin, _snapshot(seen), _snapshot(page), _number(place))
            # as releases before wrote them, when every event had a row of its own
            case "s", [seq]:
                return SeqCursor(origin, _old_place(seq))
            case "p", [seen]:
                return SnapshotCursor(origin, _snapshot(seen))
            case "p", [seen, page, seq]:
                return SnapshotCursor(origin, _snapshot(seen), _snapshot(page), _old_place(seq))
    except (binascii.Error, ValueError):
        pass
    raise InvalidCursor


@lru_cache(maxsize=16)
def _written(snapshot: Snapshot) -> str:
    """Write a snapshot in few signs: those in progress by how far they are below the next."""
    return ".".join([str(snapshot.xmax), *(str(snapshot.xmax - each) for each in snapshot.in_progress)])


def _snapshot(text: str) -> Snapshot:
    xmax, *distances = map(_number, text.split("."))
    in_progress = tuple(xmax - each for each in distances)
    if any(each < 0 or each >= xmax for each in in_progress):
        raise InvalidCursor
    return Snapshot(xmax, in_progress)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) < LARGEST):
        raise InvalidCursor
    return int(text)


def _old_place(text: str) -> int:
    place = behind_row(_number(text))
    if place >= LARGEST:
        raise InvalidCursor
    return place


def _wrap(text: str) -> str:
    return binascii.b2a_base64(text.encode(), newline=False).translate(URL_SAFE, b"=").decode()


def _unwrap(text: str) -> str:
    if not text.isascii() or len(text) > LONGEST:
        raise InvalidCursor
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode("ascii")
