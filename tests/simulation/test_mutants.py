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

# what chance shows only after several seeds, or after many: minutes, and so in the long part
SELDOM = {
    "no token in the WHERE",
    "fenced by worker id only",
    "reaper reads, then writes in a second transaction",
    "no self-fence",
    "renewal stops when a cancel arrives",
    "reaper without hold-off",
    "reaper does not write while no lease is over",
    "a job is run beside an earlier attempt of its own",
    "what the other loop has claimed joins a suspect",
    "reap forgets a requested cancel",
    "cancel of a failed job leaves its lane halted",
    "claim from a paused lane",
    "an error forgets the cancel request, and the claim clears it",
    "a blocker is counted off before it was counted",
    "retry of a blocker leaves dependents failed",
    "the hint is the only wake-up",
    "lost COMMIT answer counted as failure",
    "an answer that cannot be read back forgets what has ended",
    "missing lock file taken for a dead worker",
    "guard of resume",
    "guard of retry",
    "guard of reschedule",
    "guard of settling, and the look before it",
    "guard of unblocking and failing by a blocker, and the look before it",
    "guard of blocking again, and the look before it",
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
