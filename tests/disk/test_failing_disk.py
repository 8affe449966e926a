"""F-33, F-34: a disk that is full, or fails, for a while: everybody hears the truth, nothing is lost, work goes on.

Q-04, I-64: a group whose transaction the disk took away is run again, each alone, and each of 64 callers is told what
really became of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.database.sqlite.file_locks import FileLock
from tests.acceptance.jobs_of_tests import gated, quick
from tests.acceptance.processes import until
from tests.acceptance.scene import Scene, scene
from tests.disk.callers import AFTERWARDS, CALLERS
from tests.disk.running import MOUNTING, ROOT, may_mount
from tests.support.faults.strace import Strace
from tests.support.processes import forked

FULL, FAILING = "pwrite64:error=ENOSPC", "fdatasync:error=EIO"

GROUPS = {
    f"{FULL}:when=7": {"done"},  # once, in the middle of the group: each is run again, alone
    f"{FULL}:when=7+": {"refused"},
    f"{FULL}:when=20+9": {"done", "refused"},
    f"{FAILING}:when=1": {"done"},
    f"{FAILING}:when=1+2": {"done", "unknown"},
    FAILING: {"unknown"},
}
EVERY_GROUP = [
    *(f"{FULL}:when={first}{step}" for first in range(1, 23, 2) for step in ("", "+", "+7")),
    *(f"{FAILING}:when={first}{step}" for first in range(1, 4) for step in ("", "+", "+3")),
]


class Callers:
    """The program of 64 callers."""

    def __init__(self, directory: Path) -> None:
        command = [sys.executable, "-m", "tests.disk.callers", str(directory / "jobs.db")]
        self._process = forked.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._hear() == "ready"

    @property
    def id(self) -> int:
        """The number of its process."""
        return self._process.pid

    def go_on(self) -> Any:
        """Let it go on, and hear what it says then."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._hear()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


@pytest.fixture
def callers(tmp_path: Path) -> Iterator[Callers]:
    callers = Callers(tmp_path)
    yield callers
    callers.close()


def hear_everybody(strace: Strace, callers: Callers, fault: str) -> set[str]:
    """Let *fault* happen to a group; give what was told, which is the truth."""
    with strace.injecting(callers.id, fault):
        told = {int(number): kind for number, kind in callers.go_on().items()}
    afterwards = callers.go_on()

    found = {number for number in afterwards["found"] if number < CALLERS}
    assert set(told.values()) <= {"done", "refused", "unknown"}
    assert {number for number, kind in told.items() if kind == "done"} <= found
    assert not found & {number for number, kind in told.items() if kind == "refused"}
    assert AFTERWARDS in afterwards["found"]
    assert afterwards["is_sound"]
    return set(told.values())


@pytest.mark.parametrize("fault", GROUPS)
def test_each_of_64_callers_is_told_what_became_of_its_own(strace: Strace, callers: Callers, fault: str) -> None:
    assert hear_everybody(strace, callers, fault) == GROUPS[fault]


@pytest.mark.long
@pytest.mark.parametrize("fault", EVERY_GROUP)
def test_each_of_64_callers_is_told_so_whenever_it_fails(strace: Strace, callers: Callers, fault: str) -> None:
    hear_everybody(strace, callers, fault)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Scene]:
    """Real workers on a file."""
    with scene(str(tmp_path / "jobs.db"), tmp_path) as made:
        yield made


def let_it_fail(strace: Strace, stage: Scene, fault: str, lasting: str) -> None:
    """Let *fault* happen to a worker until it says *lasting*; then all goes on, in the same process."""
    worker = stage.worker("--poll", "0.1")
    early = stage.start(*[gated() for _ in range(3)])
    stage.until_running(early)

    with strace.injecting(worker.id, fault):
        stage.start(*[quick(n=n) for n in range(5)])
        stage.open()
        until(lambda: "worker_store_trouble" in worker.said, "the worker says that it cannot write")
        until(lambda: lasting in worker.said, lasting)
        meanwhile = stage.statuses()
    stage.until_all("completed")

    assert meanwhile == {"running": 3, "pending": 5}
    assert worker.is_alive
    stage.assert_each_completed_once()


@pytest.mark.parametrize("fault", [FULL, pytest.param(FAILING, marks=pytest.mark.long)])
def test_a_worker_whose_disk_fails_for_a_while_says_so_and_goes_on_without_a_restart(
    strace: Strace, stage: Scene, fault: str
) -> None:
    """Nothing can be claimed, renewed or settled; no job is blamed for that."""
    let_it_fail(strace, stage, fault, "leases_not_renewed")


@pytest.mark.long
@pytest.mark.parametrize("fault", [FULL, FAILING])
def test_a_worker_whose_disk_fails_past_its_leases_goes_on_without_a_restart(
    strace: Strace, stage: Scene, fault: str
) -> None:
    let_it_fail(strace, stage, fault, "leases_given_up")


def test_who_cannot_write_his_name_into_the_lock_file_has_the_lock_and_lets_go_of_it(
    tmp_path: Path,
) -> None:
    """On a full disk the first of all writes failed there: with the lock held, for all others to wait behind it."""
    database, path = str(tmp_path / "jobs.db"), str(tmp_path / "jobs.db-holdfast-lock")
    Path(database).touch()
    Path(path).touch()
    lock, other = FileLock(path, model=database), FileLock(path, model=database)
    # as little can be written by it as on a full disk; a mode would not hold root, and keep out all others
    lock._descriptor = os.open(path, os.O_RDONLY)

    with lock:
        is_nameless = lock.last_holder() is None
        is_ours = not other.take_if_free()
    is_free = other.take_if_free()

    assert (is_nameless, is_ours, is_free) == (True, True, True)
    for each in (lock, other):
        each.close()


@pytest.mark.long
def test_on_a_disk_that_is_really_full_starts_are_refused_and_the_worker_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if not may_mount(disk):
        pytest.skip("nobody may mount a small disk here")
    command = [*MOUNTING, sys.executable, "-m", "tests.disk.small_disk", str(disk), str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=110)

    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert "make room" in found["refused"]
    assert found["completed"] == found["started"]
    assert found["is_alive"]
    assert found["is_sound"]
