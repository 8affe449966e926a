"""What the numbers were measured on: the machine, and above all its disk."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from datetime import UTC, datetime
from pathlib import Path

import psycopg

PAGE = b"x" * 8192
PAGES = 128  # a megabyte that exists before it is measured, as a write-ahead log does


class Unsuited(Exception):
    """What is to be measured cannot be measured here; the message says what to change."""


def describe(place: Path, postgres: str, seconds: float) -> str:
    """Say in a few lines where and when this was measured; try the disk for so many *seconds*."""
    load = os.getloadavg()[0]
    versions = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, psycopg {psycopg.__version__}"
    commits = commits_per_second(place, seconds)
    return "\n".join(
        (
            f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores of {processor()}, load {load:.1f}",
            f"{versions}, {postgres}",
            f"disk: {commits:,.0f} commits per second (8 KiB and fdatasync, on {file_system(place)})",
        )
    )


def processor() -> str:
    """Name the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def commits_per_second(place: Path, seconds: float) -> float:
    """Count how often a second the disk below *place* takes a page and says that it has it."""
    sync = getattr(os, "fdatasync", os.fsync)
    probe = place / "probe"
    with probe.open("wb", buffering=0) as file:
        file.write(PAGE * PAGES)
        os.fsync(file.fileno())
        commits, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            os.pwrite(file.fileno(), PAGE, commits % PAGES * len(PAGE))
            sync(file.fileno())
            commits += 1
        rate = commits / (time.perf_counter() - started)
    probe.unlink()
    return rate


def require_disk(place: Path) -> None:
    """Raise unless *place* is on a disk: in memory, durability costs nothing and every ratio is wrong."""
    if file_system(place) in ("tmpfs", "ramfs"):
        raise Unsuited(f"{place} is in memory; set TMPDIR to a directory on a disk")


def require_durable(url: str) -> None:
    """Raise unless the server at *url* waits for its disk."""
    with psycopg.connect(url) as connection:
        for setting in ("fsync", "synchronous_commit"):
            row = connection.execute(f"SHOW {setting}").fetchone()
            if row != ("on",):
                raise Unsuited(f"the server has {setting} = {row[0] if row else None}; set it to on")


def file_system(place: Path) -> str:
    """Name the kind of file system that *place* is on, as Linux does; "unknown" elsewhere."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return "unknown"
    above = [(point, kind) for _, point, kind, *_ in mounts if place.resolve().is_relative_to(point)]
    return max(above, key=lambda mount: len(mount[0]), default=("", "unknown"))[1]
