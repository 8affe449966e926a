"""What the processes of a run write down as they go: a line of JSON for each thing, whole or not at all.

A line is one write at the end of a file, so a process that is killed leaves no half of one, and several may share a
file. Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
PLACE = "HOLDFAST_TEST_TORTURE"
"""Names the directory of the run, in the environment of its processes."""


def end_with_parent() -> None:
    """Have Linux end this process with the one that leads the run, however that ends."""
    if sys.platform == "linux" and PLACE in os.environ:
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def place() -> Path:
    """The directory of the run that this process belongs to."""
    return Path(os.environ[PLACE])


class Notes:
    """A file that lines are added to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def write(self, **facts: object) -> None:
        """Add a line, with the time."""
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, 0o644)
        line = json.dumps({"at": time.monotonic(), **facts}, separators=(",", ":"))
        os.write(self._descriptor, f"{line}\n".encode())

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Read the lines of a file, if there is one; the first ones first."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def is_set(flag: str) -> bool:
    """Tell whether the run has come so far: `stop` for producers, `calm` for handlers, `over` for everybody."""
    return (place() / flag).exists()
