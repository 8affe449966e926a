"""F-35, I-01: the power is cut, and what was not synced is gone, in part or whole; with FULL nothing that was told is.

What the program does to its files is recorded once; then the power is cut behind each of its writes, in many ways. Each
time SQLite must find a state that was once committed, and none older than what had been told by then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeAlias

import pytest

from tests.disk.judging import DAMAGED, History, Verdict, cut_power, make_history, state_of
from tests.disk.power import FATES, Disk, Fate, put
from tests.disk.program import new_holdfast, plain
from tests.disk.recording import Event, Sync, Told
from tests.disk.running import DATABASE, record
from tests.support.faults.strace import Strace

SMOKE = 150
SEEDS = range(3)

Recorded: TypeAlias = Callable[..., list[Event]]


@pytest.fixture
def recorded(strace: Strace, tmp_path: Path) -> Recorded:
    """Run the program anew, from no file at all, and give what it did."""

    def run(synchronous: str, rounds: int = 1) -> list[Event]:
        directory = tmp_path / synchronous
        directory.mkdir()
        events = record(strace, directory, synchronous, rounds)
        assert_recorded_whole(events, directory)
        return events

    return run


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where files are put as a crash leaves them."""
    place = tmp_path / "place"
    place.mkdir()
    return place


def assert_recorded_whole(events: list[Event], directory: Path) -> None:
    """Nothing was missed: done again, it makes the files that the program has left."""
    disk = Disk()
    for event in events:
        disk.do(event)
    assert {name: (directory / name).read_bytes() for name in disk.after_kill()} == disk.after_kill()
    assert sum(isinstance(event, Told) for event in events) > 10


def some(history: History, chance: Random) -> list[tuple[int, Fate]]:
    """Choose some crashes."""
    return [(chance.randrange(len(history.events)), chance.choice(FATES)) for _ in range(SMOKE)]


def every(history: History) -> list[tuple[int, Fate]]:
    """Crash behind every event, with every fate."""
    return [(number, fate) for number in range(len(history.events)) for fate in FATES]


def said(verdicts: Counter[Verdict]) -> str:
    """Put a count into words, for whoever reads of a failure."""
    return ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))


def test_with_full_a_power_cut_takes_nothing_that_was_told(recorded: Recorded, place: Path, seed: int) -> None:
    chance = Random(seed)
    history = make_history(recorded("full"), DATABASE, place)

    verdicts = cut_power(history, some(history, chance), DATABASE, place, chance)

    assert set(verdicts) == {"good"}, said(verdicts)


@pytest.mark.long
def test_with_normal_a_power_cut_takes_the_last_commits_and_never_half_of_one(recorded: Recorded, place: Path) -> None:
    """The mutant of FULL, and the promise of NORMAL: this test's neighbour can fail."""
    chance = Random(1)
    history = make_history(recorded("normal"), DATABASE, place)

    verdicts = cut_power(history, some(history, chance), DATABASE, place, chance)

    assert set(verdicts) == {"good", "lost"}, said(verdicts)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_with_full_a_power_cut_behind_any_write_takes_nothing(recorded: Recorded, place: Path, seed: int) -> None:
    chance = Random(seed)
    history = make_history(recorded("full", rounds=2), DATABASE, place)

    verdicts = cut_power(history, every(history), DATABASE, place, chance)

    assert set(verdicts) == {"good"}, said(verdicts)
    assert verdicts["good"] > 1000


@pytest.mark.long
@pytest.mark.parametrize("fate", FATES)
def test_a_database_whose_making_was_cut_short_is_made_by_who_opens_it_next(
    recorded: Recorded, place: Path, fate: Fate
) -> None:
    events, chance, disk = recorded("full"), Random(1), Disk()
    first_told = next(number for number, event in enumerate(events) if isinstance(event, Told))
    for event in events[:first_told]:
        disk.do(event)
        put(disk.after_cut(fate, chance), place)
        face = new_holdfast(str(place / DATABASE)).sync

        chain = face.start(plain(n=1))

        assert face.get_job(chain).status == "pending"
        face.close()
        assert state_of(place / DATABASE) != DAMAGED
    assert first_told > 50


@pytest.mark.long
def test_a_disk_that_lies_about_its_syncs_is_seen_to_damage_the_file(recorded: Recorded, place: Path) -> None:
    """As `synchronous=OFF` would, which is not offered: the judge can tell damage."""
    events = [each for each in recorded("full") if not isinstance(each, Sync)]
    chance = Random(1)
    history = make_history(events, DATABASE, place)

    verdicts = cut_power(history, some(history, chance), DATABASE, place, chance)

    assert verdicts["lost"] > 0
    assert verdicts["damaged"] > 0
