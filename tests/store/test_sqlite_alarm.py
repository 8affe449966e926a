"""The alarm of a file: it rings for what is written after it was set; hints on SQLite come by it, or without it."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.database.sqlite import wal
from holdfast.database.sqlite.wal import LIVELY_CHANGES, LIVELY_LOOK_SECONDS, FileAlarm, LogWatch, make_alarm
from holdfast.runtime import Runtime
from tests.support.conditions import until

only_on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has inotify")


class Bell:
    """An alarm for a file, and how often it has rung."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rung = 0
        self.alarm = FileAlarm(str(path), Runtime(), self._ring)

    def _ring(self) -> None:
        self.rung += 1

    def write(self) -> None:
        """Write to the file, as SQLite does to its log: over what is there."""
        with self.path.open("r+b") as file:
            file.write(b"again")


@pytest.fixture
def bell(tmp_path: Path) -> Iterator[Bell]:
    """An alarm for a file that is there."""
    (tmp_path / "log").write_bytes(b"something")
    bell = Bell(tmp_path / "log")
    yield bell
    bell.alarm.stop()


@only_on_linux
async def test_it_rings_once_for_what_is_written_after_it_was_set(bell: Bell) -> None:
    bell.write()
    assert bell.alarm.set()
    assert bell.rung == 0

    bell.write()
    await until(lambda: bell.rung == 1, "it rings")
    bell.write()
    assert bell.alarm.set()  # what was written before is for whoever sets it to look at
    bell.write()

    await until(lambda: bell.rung == 2, "it rings again")


@only_on_linux
async def test_it_cannot_be_set_for_a_file_that_is_not_there_and_follows_one_that_is_replaced(bell: Bell) -> None:
    assert bell.alarm.set()
    bell.path.unlink()
    assert not bell.alarm.set()
    bell.path.write_bytes(b"another")

    assert bell.alarm.set()
    before = bell.rung  # for the end of the first
    assert bell.alarm.set()
    bell.write()

    await until(lambda: bell.rung > before, "it rings for the new one")


@only_on_linux
def test_it_leaves_neither_thread_nor_descriptor_behind(new_threads: Callable[[], set[str]], tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    open_before = descriptors()

    for is_set in (False, True):
        bell = Bell(tmp_path / "log")
        if is_set:
            bell.alarm.set()
        bell.alarm.stop()

    assert "holdfast-alarm" not in new_threads()
    assert descriptors() == open_before


def descriptors() -> int:
    """Count what this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_where_the_kernel_has_none_left_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("too many")

    monkeypatch.setattr(wal, "FileAlarm", refuse)

    assert make_alarm(str(tmp_path), Runtime(), lambda: None) is None


@pytest.mark.parametrize("has_alarms", [pytest.param(True, marks=only_on_linux), False])
async def test_a_commit_of_another_program_is_heard_at_rest(
    new_holdfast: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch, has_alarms: bool
) -> None:
    monkeypatch.setattr(wal, "LIVELY_SECONDS", 0.05)
    monkeypatch.setattr(wal, "LAST_ECHO_SECONDS", wal.ECHO_SECONDS)
    monkeypatch.setattr(wal, "LOOK_SECONDS" if has_alarms else "ALARMED_LOOK_SECONDS", 0.02)
    if has_alarms:
        monkeypatch.setattr(wal, "ALARMED_LOOK_SECONDS", 60)
    hf = new_holdfast("sqlite", runtime=Runtime(has_file_alarms=has_alarms))
    heard = threading.Event()
    await hf.open()
    with closing(sqlite3.connect(hf.settings.database)) as other:
        other.execute("CREATE TABLE note (n)")
        listening = hf.store.watch(heard.set)
        source = hf.store._state.hints._source  # type: ignore[attr-defined]
        await until(lambda: not source._is_lively and source._echo_after is None, "the watch is at rest")
        for n in range(3):
            heard.clear()
            other.execute("INSERT INTO note VALUES (?)", [n])
            other.commit()
            await until(heard.is_set, "the commit is heard", timeout=5)
            await until(lambda: not source._is_lively and source._echo_after is None, "the watch is at rest again")
        listening.stop()
    await hf.close()


class Watched:
    """A log that is looked at by hand, at times that the test says."""

    def __init__(self) -> None:
        self.now = 100.0
        self.mark = 0
        self.heard = 0
        runtime = Runtime(monotonic=lambda: self.now, file_mark=lambda _: self.mark, has_file_alarms=False)
        self._watch = LogWatch("jobs.db", runtime, self._hear)

    def _hear(self) -> None:
        self.heard += 1

    def look(self, after: float = 0.0) -> float:
        """Look *after* so many seconds; say in how many seconds the next look comes."""
        self.now += after
        return self._watch._look()

    def change(self, after: float) -> float:
        """Look at a log that has changed."""
        self.mark += 1
        return self.look(after)


def test_a_log_that_changes_now_and_then_is_not_looked_at_all_the_time() -> None:
    log = Watched()
    log.change(5.0)

    looks, second = 0, log.now + 1
    while log.now < second:
        log.look(log.look())
        looks += 1

    assert looks < 60, "fifty tenants with a job a second each would leave no time for anything else"


def test_a_log_that_changes_a_lot_is_looked_at_often_until_it_is_quiet() -> None:
    log = Watched()
    log.change(5.0)

    assert [log.change(0.01) for _ in range(LIVELY_CHANGES)][-1] == LIVELY_LOOK_SECONDS
    assert log.look(0.9) == LIVELY_LOOK_SECONDS
    assert log.look(0.2) > LIVELY_LOOK_SECONDS


def test_a_change_is_told_again_before_a_slow_disk_would_make_it_late() -> None:
    log = Watched()
    seconds = log.change(5.0)
    heard, changed_at = log.heard, log.now

    while log.heard == heard:
        seconds = log.look(seconds)

    assert log.now - changed_at < 0.02
