"""The databases that the rule machine runs on; in memory where that can be had, for nobody pulls a plug here."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.worker.upkeep import retention
from tests.store.rules.sides import Side, postgres_side, sqlite_side

IN_MEMORY = Path("/dev/shm")


@pytest.fixture
def sqlite() -> Iterator[Side]:
    """A side on SQLite."""
    folder = tempfile.mkdtemp(dir=IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None, prefix="holdfast-rules-")
    side = sqlite_side(Path(folder))
    yield side
    side.close()
    shutil.rmtree(folder)


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Side]:
    """A side on PostgreSQL."""
    side = postgres_side(postgres_url)
    yield side
    side.close()


@pytest.fixture(autouse=True)
def short_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the log be cut as soon as retention's times are over: the machine does not wait for an hour."""
    monkeypatch.setattr(retention, "LOG_SECONDS", 0.0)
