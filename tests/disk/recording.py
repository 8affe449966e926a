"""What a program does to the files of one directory, read from the output of strace: writes, syncs, names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

# whole data, in hexadecimal; the names of descriptors; every call that changes a file or makes it durable
OPTIONS = (
    *("-xx", "-y", "-s", "1000000", "-e", "signal=none"),
    *("-e", "trace=openat,pwrite64,write,pwritev,pwritev2,writev,ftruncate,fallocate,fdatasync,fsync,unlink,rename"),
)

LINE = re.compile(r"^\d+ +(?P<call>\w+)\((?P<rest>.*)\) += (?P<result>-?\d+)(?:<(?P<opened>[^>]*)>)?")
DESCRIPTOR = re.compile(r"^\d+<(?P<path>[^>]*)>(?P<deleted>\(deleted\))?(?:, )?")
TEXT = re.compile(r'"(?P<text>[^"]*)"(?P<cut>\.\.\.)?')


@dataclass(frozen=True, slots=True)
class Create:
    """A file got a name that was free."""

    name: str


@dataclass(frozen=True, slots=True)
class Unlink:
    """A name was taken away."""

    name: str


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes were written into a file."""

    name: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    """A file was cut, or made longer."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """A file is durable as it is."""

    name: str


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    """The names in the directory are durable as they are."""


@dataclass(frozen=True, slots=True)
class Told:
    """The program told somebody that something is done."""

    text: str


Event: TypeAlias = Create | Unlink | Write | Truncate | Sync | SyncDirectory | Told


def read_recording(output: Path, directory: Path, acks: str, known: Iterable[str] = ()) -> list[Event]:
    """Read what was done to the files of *directory*, of which those of names *known* were there before.

    What was written to the one called *acks* is what the program has told; `-shm` files are left out, for nobody reads
    them after a crash.
    """
    there = set(known)
    events: list[Event] = []
    for line in output.read_text().splitlines():
        found = LINE.match(line)
        if found is None or int(found["result"]) < 0:
            continue
        for event in _events(found["call"], found["rest"], found["opened"], directory, there):
            events += [Told(event.data.decode())] if isinstance(event, Write) and event.name == acks else [event]
    return [each for each in events if not getattr(each, "name", "").endswith(("-shm", acks))]


def _events(call: str, rest: str, opened: str | None, directory: Path, there: set[str]) -> Iterator[Event]:
    """Make of one call what it did to *directory*; *there* are the names in it."""
    if call == "openat":
        name = _name(opened, directory)
        if name and "O_CREAT" in rest and name not in there:
            there.add(name)
            yield Create(name)
        return
    if call in ("unlink", "rename"):
        name = _name(_only_text(rest), directory)
        assert not (name and call == "rename"), "nothing of ours renames the files of a database"
        if name:
            there.discard(name)
            yield Unlink(name)
        return
    about = DESCRIPTOR.match(rest)
    if about is None or about["deleted"]:
        return
    if _path(about["path"]) == directory:
        assert call in ("fdatasync", "fsync")
        yield SyncDirectory()
        return
    name = _name(about["path"], directory)
    if name:
        yield _on_file(call, name, rest[about.end() :])


def _on_file(call: str, name: str, rest: str) -> Event:
    match call:
        case "pwrite64":
            return Write(name, int(rest.rpartition(", ")[2]), _only_data(rest))
        case "write":  # only to a file that is written at its end
            return Write(name, -1, _only_data(rest))
        case "ftruncate":
            return Truncate(name, int(rest))
        case "fdatasync" | "fsync":
            return Sync(name)
        case _:
            raise AssertionError(f"{call} on {name} is not understood")


def _only_data(rest: str) -> bytes:
    found = TEXT.search(rest)
    assert found is not None
    assert not found["cut"], "strace was told to keep too little"
    return bytes.fromhex(found["text"].replace(r"\x", ""))


def _only_text(rest: str) -> str:
    found = TEXT.search(rest)
    return found["text"] if found else ""


def _path(text: str) -> Path:
    return Path(bytes.fromhex(text.replace(r"\x", "")).decode())


def _name(text: str | None, directory: Path) -> str | None:
    path = _path(text) if text else None
    return path.name if path is not None and path.parent == directory else None
