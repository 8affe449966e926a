"""F-37: SQLite's log is kept short, whoever reads; and if somebody will not let go of it, that is said."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import pytest

from holdfast import Busy, Holdfast
from holdfast.database.sqlite import wal
from holdfast.database.sqlite.file_locks import FileLock
from holdfast.database.sqlite.store import SqliteStore
from holdfast.database.tx import Tx
from holdfast.worker.upkeep import reaper
from tests.acceptance.processes import until as wait_until
from tests.store.notes import add, is_sound, new_store, numbers
from tests.support.conditions import until
from tests.support.log_lines import lines

NewHoldfast: TypeAlias = Callable[..., Holdfast]

LONG, TOO_LONG = 600_000, 900_000  # the tables alone make a log of 430 kB


@pytest.fixture(autouse=True)
def _short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal, "LONG_BYTES", LONG)
    monkeypatch.setattr(wal, "TOO_LONG_BYTES", TOO_LONG)
    monkeypatch.setattr(wal, "AGAIN_SECONDS", 0.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = new_store(tmp_path / "jobs.db")
    yield store
    store.close_sync()


@pytest.fixture
def reader(store: SqliteStore) -> Iterator[sqlite3.Connection]:
    """A program beside us that reads in a transaction which it does not end."""
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT * FROM note").fetchall()
        yield connection


def length(store: SqliteStore) -> int:
    return Path(f"{store.path}-wal").stat().st_size


def grow(store: SqliteStore, at_least: int = TOO_LONG) -> list[int]:
    """Write until the log is so long; give the numbers of the notes."""
    written: list[int] = []
    while length(store) < at_least:
        written.append(store.run_sync(add, len(written), "x" * 10_000))
    return written


def is_emptied(store: SqliteStore) -> bool:
    """Look once more, and tell whether the log is empty."""
    store.tidy()
    return length(store) == 0


def test_a_log_that_has_grown_long_is_emptied_and_nothing_is_missing(store: SqliteStore) -> None:
    written = grow(store)

    wait_until(lambda: is_emptied(store), "the log is emptied")

    assert store.read_sync(numbers) == written
    assert store.read_sync(is_sound)
    assert store.run_sync(add, 1000) == 1000


def test_a_short_log_is_left_alone(store: SqliteStore) -> None:
    store.run_sync(add, 1)
    before = length(store)

    store.tidy()
    store.run_sync(add, 2)

    assert 0 < before < LONG
    assert length(store) > before


def test_a_log_that_a_stuck_reader_keeps_is_said_once_and_emptied_once_he_is_gone(
    store: SqliteStore, reader: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    grow(store)
    for number in range(1000, 1003):
        store.tidy()
        store.run_sync(add, number)  # who writes is not kept waiting for long
    kept = length(store)

    reader.execute("ROLLBACK")
    wait_until(lambda: is_emptied(store), "the log is emptied")
    store.tidy()

    assert kept >= TOO_LONG
    assert lines(caplog) == ["sqlite_log_too_long", "sqlite_log_short_again"]
    assert caplog.records[0].bytes >= TOO_LONG  # type: ignore[attr-defined]


def test_the_log_is_emptied_by_who_has_the_right_to_write(tmp_path: Path) -> None:
    """M6: while anybody writes, in any process, nobody else may write the log back."""
    store = new_store(tmp_path / "jobs.db", deadline_seconds=0.3)
    grow(store)
    other = FileLock(f"{store.path}-holdfast-lock", model=store.path)
    with other:
        store.tidy()
        with pytest.raises(Busy):
            store.run_sync(add, 1000)
        while_held = length(store)
    other.close()

    wait_until(lambda: length(store) == 0, "the log is emptied")

    assert while_held >= TOO_LONG
    store.close_sync()


def test_a_log_that_cannot_be_emptied_harms_nobody(store: SqliteStore, tmp_path: Path) -> None:
    grow(store)
    moved = Path(store.path).rename(tmp_path / "moved.db")

    store.tidy()
    wait_until(lambda: not store._state.writer._is_log_to_be_emptied, "it is tried")
    moved.rename(store.path)

    assert store.run_sync(add, 1000) == 1000


def test_a_store_that_is_closed_does_not_come_back_for_its_log(store: SqliteStore) -> None:
    grow(store)
    writer = store._state.writer
    writer._is_log_to_be_emptied = True  # asked for, and not taken up yet

    store.close_sync()

    assert writer._shell is None
    assert not writer.is_connected


async def test_a_worker_looks_after_it(new_holdfast: NewHoldfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "PERIOD_SECONDS", 0.05)
    hf = new_holdfast("sqlite")
    log = Path(f"{hf.settings.database}-wal")

    async with hf:
        await hf.store.run(_write_much)
        before = log.stat().st_size
        async with hf.worker():
            await until(lambda: log.stat().st_size < LONG, "the worker has it emptied")

    assert before >= LONG


async def _write_much(tx: Tx) -> None:
    await tx.execute("CREATE TABLE much AS SELECT randomblob(1000)")
    for _ in range(10):
        await tx.execute("INSERT INTO much SELECT * FROM much")
