"""The same steps on SQLite, on PostgreSQL and on both come to what the law says, whatever is done in whatever order.

The default run draws the same steps each time, and the long one more of the same. The one by hand draws others each
time, for an hour, and prints what repeats a failure.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.mutants import DRAWN, Mutant, load
from tests.store.rules.machine import JobsMachine
from tests.store.rules.sides import Side

QUICK = settings(
    stateful_step_count=40,
    deadline=None,
    database=None,
    derandomize=True,
    report_multiple_bugs=False,
    phases=(Phase.generate, Phase.shrink),  # to explain a failure takes minutes here
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, derandomize=False, print_blob=True)
CATCHING = settings(QUICK, phases=(Phase.generate,))

long = [pytest.mark.long, pytest.mark.timeout(600)]
by_hand = [pytest.mark.long, pytest.mark.by_hand, pytest.mark.timeout(3600)]


def sizes(by_default: int, long_run: int, drawn: int) -> pytest.MarkDecorator:
    """Say how many examples a test plays in the default run, in the long one, and in the one by hand."""
    return pytest.mark.parametrize(
        ("chosen", "examples"),
        [
            pytest.param(QUICK, by_default, id="quick"),
            pytest.param(QUICK, long_run, id="long", marks=long),
            pytest.param(LONG, drawn, id="by hand", marks=by_hand),
        ],
    )


def play(chosen: settings, examples: int, *sides: Side) -> None:
    """Play examples on *sides*; raise the shortest one that goes wrong."""
    make: Any = partial(JobsMachine, sides)
    run_state_machine_as_test(make, settings=settings(chosen, max_examples=examples))


@sizes(12, 100, 5_000)
def test_sqlite_keeps_the_law(sqlite: Side, chosen: settings, examples: int) -> None:
    """I-05, I-09, I-26, I-36."""
    play(chosen, examples, sqlite)


@sizes(5, 40, 2_000)
def test_postgres_keeps_the_law(postgres: Side, chosen: settings, examples: int) -> None:
    """I-05, I-09, I-26, I-36."""
    play(chosen, examples, postgres)


@pytest.mark.source("JC-104")
@sizes(3, 20, 500)
def test_both_databases_come_to_the_same(sqlite: Side, postgres: Side, chosen: settings, examples: int) -> None:
    """I-54."""
    play(chosen, examples, sqlite, postgres)


# what shows within a second or two; the others are drawn by hand
SOON = {
    "guard of resume",
    "a chain that closes keeps its key",
    "attempt number does not grow",
    "an event is appended twice",
    "double successor",
    "the id of an earlier job means that job",
    "a reader is given an event again when it comes back",
    "retention ignores blockers",
    "guard of completing without a worker",
    "a chain is not closed by its last job",
    "a run that ends leaves its phase under way",
    "a phase begins without the token",
    "delete leaves the later steps of a chain",
    "completion without a worker leaves the lane halted",
}
MOST_EXAMPLES = 1_500
load()
CASES = [pytest.param(each, id=each.name, marks=long if each.name in SOON else by_hand) for each in DRAWN]


@pytest.mark.parametrize("mutant", CASES)
def test_a_wrong_engine_is_caught(mutant: Mutant, sqlite: Side) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant.apply(patch)

        with pytest.raises(AssertionError, match="by the law"):
            play(CATCHING, MOST_EXAMPLES, sqlite)


def test_the_mutants_that_show_soon_are_mutants() -> None:
    assert {each.name for each in DRAWN} >= SOON
