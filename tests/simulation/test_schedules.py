"""Schedules on many nights: every tick has one job, whatever happens to the processes and to the clock. I-83, F-41."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.scenes import play_scene
from tests.simulation.schedule_scenes import a_zone_shifts_its_clocks_at_night

# processes are killed in the middle of everything, and what they leave behind protests
pytestmark = pytest.mark.filterwarnings("ignore")

SEEDS_TOGETHER = 20

REACHED = {"tick started", "tick met", "tick late", "tick left out", "repaired"}
"""What a batch of nights must have come across, or it would prove little."""


def by_hand(first: int) -> object:
    """Leave a batch to who has the time: each takes half a minute of a core."""
    return pytest.param(first, marks=pytest.mark.by_hand)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", [*range(0, 80, SEEDS_TOGETHER), *map(by_hand, range(80, 240, SEEDS_TOGETHER))])
def test_no_tick_is_doubled_or_lost_on_any_night(first: int, folder: Path, template: Path) -> None:
    reached: Counter[str] = Counter()
    for seed in range(first, first + SEEDS_TOGETHER):
        played = play_scene(a_zone_shifts_its_clocks_at_night, seed, folder, template)
        assert played.violation is None, "\n".join([*played.history[-40:], f"seed {seed}: {played.violation}"])
        reached += played.reached

    assert not REACHED - reached.keys(), f"too tame: {REACHED - reached.keys()} did not come about in {reached}"
