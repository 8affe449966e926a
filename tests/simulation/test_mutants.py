"""Every wrong engine is caught; and what catches it finds nothing wrong with ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mutants import RACES, SIMULATED, Mutant, Race, load
from tests.simulation.scenes import MOST_SEEDS as MOST_SEEDS_OF_A_SCENE
from tests.simulation.scenes import SCENES, play_scene
from tests.simulation.world import FAULTS, Outcome, play

# processes are killed in the middle of everything, and what they leave behind protests
pytestmark = pytest.mark.filterwarnings("ignore")

MOST_SEEDS = 200
SECONDS = 90.0

# a mutant that no longer fits the engine fails, too, but proves nothing
OUT_OF_DATE = ("TypeError", "ValueError", "AttributeError", "NameError", "KeyError", "IndexError")

# what the table names a test of the store for, and chance shows within a few seeds, too
KEPT = {
    "finished phase run again on retry",
    "a finished phase leaves the crash count",
    "retention ignores blockers",
    "retention ignores the lane",
    "retention ignores undelivered webhooks",
    "outbox row in its own transaction",
    "deliveries fanned out again",
}
load()
ALSO_BY_CHANCE = [each for each in RACES if each.name in KEPT]
STAGED = [each for each in SIMULATED if each.scene is not None]
BY_CHANCE = [each for each in SIMULATED if each.scene is None]


def test_every_scene_catches_somebody() -> None:
    assert {each.scene.name for each in STAGED if each.scene is not None} == SCENES.keys()


@pytest.mark.long
@pytest.mark.parametrize("mutant", STAGED, ids=lambda mutant: mutant.name)
def test_a_scene_catches_a_wrong_engine(
    mutant: Mutant, folder: Path, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mutant.scene is not None
    mutant.apply(monkeypatch)

    played = (play_scene(mutant.scene, seed, folder, template) for seed in range(MOST_SEEDS_OF_A_SCENE))

    violation = next((each.violation for each in played if each.violation is not None), None)
    assert violation is not None, f"{mutant.name}: the scene ends well, although it breaks {mutant.breaks}"
    assert not any(word in violation for word in OUT_OF_DATE), violation


@pytest.mark.long
@pytest.mark.parametrize("mutant", BY_CHANCE, ids=lambda mutant: mutant.name)
def test_a_wrong_engine_is_caught(mutant: Mutant, folder: Path, template: Path) -> None:
    caught = first_caught(mutant, folder, template)

    assert caught is not None, f"{mutant.name}: silent for {MOST_SEEDS} seeds, although it breaks {mutant.breaks}"
    assert not any(word in str(caught.violation) for word in OUT_OF_DATE), caught.violation
    ours = violation_of_ours(caught.seed, mutant.faults or FAULTS, folder, template)
    assert ours is None, f"{ours}\n  again: python -m tests.simulation {caught.seed} {SECONDS:g}"


@pytest.mark.long
@pytest.mark.parametrize("race", ALSO_BY_CHANCE, ids=lambda race: race.name)
def test_a_wrong_keeper_is_caught(race: Race, folder: Path, template: Path) -> None:
    test_a_wrong_engine_is_caught(Mutant(race.name, race.breaks, race.apply), folder, template)


def test_every_wrong_keeper_has_a_name_of_the_table() -> None:
    assert {each.name for each in ALSO_BY_CHANCE} == KEPT


def first_caught(mutant: Mutant, folder: Path, template: Path) -> Outcome | None:
    """Play seeds against *mutant* until one shows that it is wrong."""
    for seed in range(MOST_SEEDS):
        with pytest.MonkeyPatch.context() as patch:
            mutant.apply(patch)
            outcome = play(seed, folder, template, SECONDS, mutant.faults or FAULTS)
        if outcome.violation is not None:
            return outcome
    return None


def violation_of_ours(seed: int, faults: Sequence[str], folder: Path, template: Path) -> str | None:
    """Play a seed against the right engine, once for all the mutants that it catches."""
    key = seed, tuple(faults)
    if key not in PLAYED:
        PLAYED[key] = play(seed, folder, template, SECONDS, faults).violation
    return PLAYED[key]


PLAYED: dict[tuple[int, tuple[str, ...]], str | None] = {}
