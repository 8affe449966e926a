"""Every wrong engine is caught; and what catches it finds nothing wrong with ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import MUTANTS, Mutant
from tests.simulation.world import Outcome, play

# processes are killed in the middle of everything, and what they leave behind protests
pytestmark = pytest.mark.filterwarnings("ignore")

MOST_SEEDS = 200
SECONDS = 90.0

# what chance shows only after many seeds
SELDOM = {
    "fenced by worker id only",
    "a job is run beside an earlier attempt of its own",
    "what the other loop has claimed joins a suspect",
    "a blocker is counted off before it was counted",
    "the hint is the only wake-up",
}
CASES = [pytest.param(each, marks=pytest.mark.long) if each.name in SELDOM else pytest.param(each) for each in MUTANTS]


def first_caught(mutant: Mutant, folder: Path, template: Path) -> Outcome | None:
    """Play seeds against *mutant* until one shows that it is wrong."""
    for seed in range(MOST_SEEDS):
        with pytest.MonkeyPatch.context() as patch:
            mutant.apply(patch)
            outcome = play(seed, folder, template, SECONDS, mutant.faults)
        if outcome.violation is not None:
            return outcome
    return None


@pytest.mark.parametrize("mutant", CASES, ids=lambda mutant: mutant.name)
def test_a_wrong_engine_is_caught(mutant: Mutant, folder: Path, template: Path) -> None:
    caught = first_caught(mutant, folder, template)

    assert caught is not None, f"{mutant.name}: silent for {MOST_SEEDS} seeds, although it breaks {mutant.breaks}"
    ours = play(caught.seed, folder, template, SECONDS, mutant.faults)
    assert ours.violation is None, f"{ours.violation}\n  again: python -m tests.simulation {ours.seed} {SECONDS:g}"
