"""Judges what SQLite finds after a crash: a state that was once committed, and none older than what was told."""

from __future__ import annotations

import hashlib
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal, TypeAlias

from tests.disk.power import Disk, Fate, put
from tests.disk.recording import Event, Sync, SyncDirectory, Told, Write

EMPTY = "empty"
DAMAGED = "damaged"
FRAME_HEADER = 24
Verdict: TypeAlias = Literal["good", "lost", "half", "damaged"]
"""`lost` is what was told, `half` of a transaction is there, or the file is `damaged`."""


def state_of(database: Path) -> str:
    """Open *database*, as after a crash, and give a fingerprint of all that is in it."""
    if not database.exists():
        return EMPTY
    try:
        with closing(sqlite3.connect(database, isolation_level=None)) as connection:
            if connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                return DAMAGED
            return _fingerprint(connection)
    except sqlite3.DatabaseError:
        return DAMAGED


def _fingerprint(connection: sqlite3.Connection) -> str:
    found = hashlib.sha256()
    tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall()
    for (name,) in tables:
        found.update(repr((name, connection.execute(f'SELECT * FROM "{name}"').fetchall())).encode())
    return found.hexdigest() if tables else EMPTY


@dataclass(frozen=True, slots=True)
class History:
    """A recording, and the state that was committed last after each of its events."""

    events: Sequence[Event]
    states: Sequence[str]
    told: Sequence[int]
    """The number of the event with which somebody was told last, before each event and with it."""

    def judge(self, at: int, found: str) -> Verdict:
        """Judge the state that was *found* after a crash behind the event of number *at*."""
        if found == DAMAGED:
            return "damaged"
        if found in self.states[self.told[at] : at + 1]:
            return "good"
        return "lost" if found in self.states[: at + 1] else "half"


def make_history(events: Sequence[Event], name: str, place: Path) -> History:
    """Find the state after each event: what another process would read if this one were killed then."""
    disk = Disk()
    states: list[str] = []
    told: list[int] = []
    for number, event in enumerate(events):
        disk.do(event)
        if states and not _may_commit(events, number):
            states.append(states[-1])
        else:
            put(disk.after_kill(), place)
            states.append(state_of(place / name))
        told.append(number if isinstance(event, Told) else told[-1] if told else 0)
    return History(events, states, told)


def _may_commit(events: Sequence[Event], number: int) -> bool:
    """Tell whether an event may change what others read; most writes into a log are no end of a transaction.

    In the header of a frame, the length of the database after the commit is 0 unless the frame is the last of one. To
    look after each write would show the same, and takes five times as long.
    """
    event, before = events[number], events[number - 1]
    if not isinstance(event, Write) or not event.name.endswith("-wal"):
        return not isinstance(event, Sync | SyncDirectory | Told)
    if not isinstance(before, Write) or before.name != event.name or len(before.data) != FRAME_HEADER:
        return False
    return any(before.data[4:8])


def cut_power(
    history: History, crashes: Iterable[tuple[int, Fate]], name: str, place: Path, chance: Random
) -> Counter[Verdict]:
    """Cut the power behind events, with a fate each, in their order; count what that came to."""
    verdicts: Counter[Verdict] = Counter()
    disk = Disk()
    done = -1
    for at, fate in sorted(crashes):
        while done < at:
            done += 1
            disk.do(history.events[done])
        put(disk.after_cut(fate, chance), place)
        verdicts[history.judge(at, state_of(place / name))] += 1
    return verdicts
