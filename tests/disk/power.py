"""A disk whose power is cut: what may be left of the writes of a recording, and what must be.

What was synced is there. Of what was written since, any part may be: all of it, nothing, some writes without those
before them, a write in some of its sectors only, the length of a file without its bytes. The names in a directory come
and go in their order, but those changed last may be as they were. A crash of the process alone leaves everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal, TypeAlias

from tests.disk.recording import Create, Event, Sync, SyncDirectory, Told, Truncate, Unlink, Write

SECTOR = 512

Fate: TypeAlias = Literal["all", "none", "some", "torn"]
FATES: tuple[Fate, ...] = ("all", "none", "some", "torn")
"""What becomes of the writes that were not synced."""


@dataclass(slots=True)
class File:
    """A file: what is durable of it, and what was done to it since."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Write | Truncate] = field(default_factory=list)

    def sync(self) -> None:
        """Make it durable as it is."""
        for each in self.pending:
            _apply(self.durable, each)
        self.pending.clear()

    def after_cut(self, fate: Fate, chance: Random) -> bytes:
        """Give what is left of it."""
        left = bytearray(self.durable)
        for each in self._kept(fate, chance):
            _apply(left, each)
        return bytes(left)

    def _kept(self, fate: Fate, chance: Random) -> Iterable[Write | Truncate]:
        if fate == "all":
            return self.pending
        if fate == "none" or not self.pending:
            return ()
        kept = [each for each in self.pending if chance.random() < 0.5]
        if fate == "some":
            return kept
        return [part for each in kept for part in _torn(each, chance)]


class Disk:
    """A directory: its files by name, as the program sees it and as it is durable."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self._names = {name: File(bytearray(data)) for name, data in (files or {}).items()}
        self._durable_names = dict(self._names)
        self._changes: list[tuple[str, File | None]] = []

    def do(self, event: Event) -> None:
        """Let *event* happen."""
        match event:
            case Create(name):
                self._name(name, File())
            case Unlink(name):
                self._name(name, None)
            case Write(name) | Truncate(name):
                self._names[name].pending.append(event)
            case Sync(name):
                self._names[name].sync()
            case SyncDirectory():
                self._durable_names = dict(self._names)
                self._changes.clear()
            case Told():
                pass

    def _name(self, name: str, file: File | None) -> None:
        _rename(self._names, name, file)
        self._changes.append((name, file))

    def after_kill(self) -> dict[str, bytes]:
        """Give the files as the next process finds them if this one was killed."""
        return {name: file.after_cut("all", Random(0)) for name, file in self._names.items()}

    def after_cut(self, fate: Fate, chance: Random) -> dict[str, bytes]:
        """Give the files as they are found when the power is back."""
        names = dict(self._durable_names)
        kept = {"all": len(self._changes), "none": 0}.get(fate, chance.randint(0, len(self._changes)))
        for name, file in self._changes[:kept]:
            _rename(names, name, file)
        return {name: file.after_cut(fate, chance) for name, file in names.items()}


def put(files: dict[str, bytes], directory: Path) -> None:
    """Write *files* into *directory*, in place of all that was there."""
    for each in directory.iterdir():
        each.unlink()
    for name, data in files.items():
        (directory / name).write_bytes(data)


def _rename(names: dict[str, File], name: str, file: File | None) -> None:
    if file is None:
        names.pop(name, None)
    else:
        names[name] = file


def _apply(data: bytearray, change: Write | Truncate) -> None:
    if isinstance(change, Truncate):
        del data[change.size :]
        data.extend(bytes(change.size - len(data)))
        return
    end = change.offset + len(change.data)
    data.extend(bytes(max(0, end - len(data))))
    data[change.offset : end] = change.data


def _torn(change: Write | Truncate, chance: Random) -> list[Write | Truncate]:
    """Give a part of *change*: some of its sectors, or the length that it gave the file and nothing else."""
    if isinstance(change, Truncate):
        return [change]
    at, end = change.offset, change.offset + len(change.data)
    sectors: list[Write | Truncate] = []
    while at < end:
        until = min(end, (at // SECTOR + 1) * SECTOR)
        if chance.random() < 0.5:
            sectors.append(Write(change.name, at, change.data[at - change.offset : until - change.offset]))
        at = until
    return sectors or [Write(change.name, end, b"")]
