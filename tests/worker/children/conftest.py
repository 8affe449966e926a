"""A Holdfast that child processes find again: a name of its module, and its database in the environment."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from tests.worker.children import application


@pytest.fixture
def place() -> Any:
    """The module that children import."""
    return application


@pytest.fixture
async def hf(
    place: Any, tmp_path: Path, migrated_file: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Holdfast]:
    """The application of *place* on a SQLite file of the test's own, open."""
    shutil.copy(migrated_file, tmp_path / "jobs.db")
    monkeypatch.setenv("HOLDFAST_DATABASE", str(tmp_path / "jobs.db"))
    made = Holdfast(tasks=[place.tasks])
    monkeypatch.setattr(place, "hf", made)
    async with made:
        yield made


@pytest.fixture
def note(tmp_path: Path) -> Path:
    """A file by which a handler says something."""
    return tmp_path / "note"


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file that a handler waits for."""
    return tmp_path / "gate"
