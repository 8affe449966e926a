"""Files of lines that other processes are writing while they are read."""

from __future__ import annotations

from pathlib import Path


def whole_lines(path: Path) -> list[str]:
    """Read the lines of a file, if it is there, as far as they are written: the last one may be half there."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return text.rpartition("\n")[0].splitlines()
