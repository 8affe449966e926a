"""The right engine keeps every rule, whatever happens to it; and enough happens to it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.world import SAFETY_SECONDS, Outcome, play

# processes are killed in the middle of everything, and what they leave behind protests
pytestmark = pytest.mark.filterwarnings("ignore")

SHORT_SECONDS = 45.0
SEEDS_BY_DEFAULT = 4
SEEDS_TOGETHER = 20

# what a batch of seeds must have come across, or it would prove little
REACHED = {
    "reaped", "fenced", "zombie refused", "cancel while running", "pause while running", "unknown commit",
    "lane halted", "admitted late", "hold-off used", "batch redone alone", "suspect alone", "poison", "key conflict",
    "given back",
    "unblocked", "failed by a blocker", "waited for a stranger", "stopped with the right to write", "skipped",
    "continued", "continued in its place", "completed outside", "completed outside while it ran", "prepared",
    "block committed", "block rolled back", "block too long", "block in doubt",
    "phase completed", "phase not run again", "moved without history", "event read", "reader came back",
    "reader was reset", "posted", "posted again", "delivery failed", "delivery without history", "subscriber told",
    "marked stale", "deleted",
    "explained: paused", "explained: blocked", "explained: not_due", "explained: backing_off", "explained: lane_behind",
    "explained: lane_halted", "explained: lane_paused", "explained: queue_paused", "explained: arriving",
}  # fmt: skip


def told(outcome: Outcome, seconds: float) -> str:
    """Say what went wrong, and how to see it again."""
    return f"{outcome.violation}\n  again: python -m tests.simulation {outcome.seed} {seconds:g}"


def play_all(seeds: range, folder: Path, template: Path, seconds: float) -> Counter[str]:
    """Play a batch of seeds; give what they came across."""
    reached: Counter[str] = Counter()
    for seed in seeds:
        outcome = play(seed, folder, template, seconds)
        assert outcome.violation is None, told(outcome, seconds)
        reached += outcome.reached
    return reached


def test_no_rule_is_broken_and_every_job_ends(folder: Path, template: Path) -> None:
    reached = play_all(range(SEEDS_BY_DEFAULT), folder, template, SHORT_SECONDS)

    assert reached["completed outside"]
    assert reached["reaped"]
    assert reached["explained: blocked"]


@pytest.mark.long
def test_short_runs_come_across_everything(folder: Path, template: Path) -> None:
    reached = play_all(range(SEEDS_TOGETHER), folder, template, 2 * SHORT_SECONDS)

    assert not REACHED - reached.keys(), f"too tame: {REACHED - reached.keys()} did not come about in {reached}"


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(1000, 4500, SEEDS_TOGETHER))
def test_no_rule_is_broken_in_a_long_time(first: int, folder: Path, template: Path) -> None:
    reached = play_all(range(first, first + SEEDS_TOGETHER), folder, template, SAFETY_SECONDS)

    assert not REACHED - reached.keys(), f"too tame: {REACHED - reached.keys()} did not come about in {reached}"


def test_a_seed_gives_the_same_history_each_time(folder: Path, template: Path) -> None:
    first = play(3, folder, template, SHORT_SECONDS)
    second = play(3, folder, template, SHORT_SECONDS)

    assert first.history == second.history
    assert first.turns == second.turns
