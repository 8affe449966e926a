"""What tests of real processes ask the system, and how they wait for an answer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def until(condition: Callable[[], object], what: str, seconds: float = 15.0) -> None:
    """Wait until *condition* holds, or fail with *what* did not happen."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.01)


def is_running(process: int) -> bool:
    """Say whether there is a process of this id that has not ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    # an orphan that has ended stays in the list where nobody collects it, as in some containers
    return not is_zombie(Path(f"/proc/{process}/stat"))


def is_zombie(status: Path) -> bool:
    """Read from a *status* of Linux whether a process has ended and is only still listed."""
    return _state(status) == "Z"


def state_of(process: int) -> str:
    """Give the letter by which Linux calls the state of a process: `T` if it stands still; none if it is gone."""
    return _state(Path(f"/proc/{process}/stat"))


def _state(status: Path) -> str:
    try:
        return status.read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def processes_naming(text: str) -> list[int]:
    """List the processes that have *text* in their command line; Linux only."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            command = (directory / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if text.encode() in command:
            found.append(int(directory.name))
    return found


def owner_of(process: int) -> int:
    """Answer the user id that the kernel knows a process by; Linux only."""
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("Uid:"))


def listening_addresses(port: int) -> set[str]:
    """List the addresses, as the kernel writes them, at which somebody listens on *port*; Linux only."""
    tables = [Path("/proc/net") / name for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    listening = [line[1].split(":") for line in lines if line[3] == "0A"]
    return {address for address, number in listening if int(number, 16) == port}
