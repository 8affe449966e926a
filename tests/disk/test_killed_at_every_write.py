"""F-02, I-01: a program that is killed at any of its writes loses nothing that it was told, and leaves nothing half."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.disk.running import DATABASE, Left, finish, look, run_until_write
from tests.support.faults.strace import Strace

PARTS = 8
FEWEST_POINTS = 40  # of each part; all in all there are some 460

SMOKE = (1, 37, 171, 333)


async def kill_and_look(strace: Strace, migrated_file: Path, directory: Path, number: int) -> bool:
    """Kill the program at its write *number* and look at what it leaves; tell whether there was such a write."""
    directory.mkdir()
    shutil.copy(migrated_file, directory / DATABASE)
    was_killed = run_until_write(strace, directory, number)

    assert_nothing_is_lost_or_half(look(directory))
    await finish(directory)
    assert_all_is_done_once(look(directory))
    shutil.rmtree(directory)
    return was_killed


def assert_nothing_is_lost_or_half(left: Left) -> None:
    """What was told is there, whole; what was not told is there whole or not at all."""
    assert left.is_sound
    assert {job for job in left.told_of("started") if job not in left.status} <= left.told_of("completed")
    assert {left.status.get(job, "completed") for job in left.told_of("completed")} <= {"completed"}
    assert left.unannounced == []
    assert {job for job, status in left.status.items() if status == "completed"} == set(left.completions)
    assert all(jobs == left.completed("pay") for jobs in left.rows.values())
    of_one_call = [task for task in left.tasks.values() if task in ("build", "hesitant")]
    assert len(of_one_call) in (0, 2)


def assert_all_is_done_once(left: Left) -> None:
    """Everything that was begun has come to its one end."""
    assert left.is_sound
    assert set(left.status.values()) <= {"completed"}
    assert set(left.completions.values()) <= {1}
    assert all(jobs == left.completed("pay") for jobs in left.rows.values())
    assert left.told_of("started") <= set(left.status) | left.told_of("completed")


@pytest.mark.parametrize("number", SMOKE)
async def test_a_kill_at_some_writes(strace: Strace, migrated_file: Path, tmp_path: Path, number: int) -> None:
    assert await kill_and_look(strace, migrated_file, tmp_path / "here", number)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
async def test_a_kill_at_every_write(strace: Strace, migrated_file: Path, tmp_path: Path, part: int) -> None:
    number = part + 1
    while await kill_and_look(strace, migrated_file, tmp_path / "here", number):
        number += PARTS

    assert number // PARTS >= FEWEST_POINTS
