"""A file of a SQLite database is taken away while nobody is just opening it: that race is nobody's to win."""

from __future__ import annotations

from pathlib import Path

from holdfast.database.sqlite.store import SqliteStore
from holdfast.database.tx import Store


def take_away(store: Store, file: Path, moved: Path, *, replace: bool = False) -> None:
    """Rename *file* to *moved*, and leave an empty one in its place if asked to *replace* it."""
    assert isinstance(store, SqliteStore)
    gate = store._usable_state().gate
    is_quiet = gate.shut(60)
    try:
        assert is_quiet, "somebody keeps a connection"
        file.rename(moved)
        if replace:
            file.touch()
    finally:
        gate.open()
