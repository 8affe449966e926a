"""The right engine plays every scene to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

import tests.simulation.chain_scenes
import tests.simulation.schedule_scenes  # noqa: F401 - both name more of them
from tests.simulation.scenes import MOST_SEEDS, SCENES, play_scene

# processes are killed in the middle of everything, and what they leave behind protests
pytestmark = pytest.mark.filterwarnings("ignore")


BY_DEFAULT = 1
SEEDS = [seed if seed < BY_DEFAULT else pytest.param(seed, marks=pytest.mark.long) for seed in range(MOST_SEEDS)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SCENES)
def test_a_scene_ends_well(name: str, seed: int, folder: Path, template: Path) -> None:
    played = play_scene(SCENES[name], seed, folder, template)

    assert played.violation is None, "\n".join([*played.history[-40:], f"{played.violation}"])
