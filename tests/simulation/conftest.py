"""What the simulation needs: a folder that costs nothing to write to, and the file that every run begins with."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.world import cut_the_log_early, make_template, make_up_for_few

IN_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder in memory, where the machine has one: nobody pulls a real plug here."""
    path = Path(
        tempfile.mkdtemp(dir=IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None, prefix="holdfast-simulation-")
    )
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def template(folder: Path) -> Path:
    """A migrated database with the triggers that keep the history."""
    return make_template(folder)


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """Keep what the simulated workers have to say about their troubles out of the report."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True)
def short_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the log be cut within a run, and a schedule make up for few times."""
    cut_the_log_early(monkeypatch)
    make_up_for_few(monkeypatch)
