"""The law of states as data: complete, closed and honest about what is terminal."""

from __future__ import annotations

import pytest

from holdfast.outcomes import Kind
from holdfast.states import MOVES, OPEN, TERMINAL, Change, State, Status, guard, guard_by, shown
from holdfast.store.jobs import settling


def test_every_change_has_its_row_in_the_law() -> None:
    assert MOVES.keys() == set(Change)


@pytest.mark.source("TQ-5")
def test_every_status_is_either_open_or_terminal() -> None:
    assert set(OPEN) | set(TERMINAL) == set(Status)
    assert not set(OPEN) & set(TERMINAL)


def test_completed_is_left_by_retention_and_delete_only() -> None:
    leaving = {change for change, move in MOVES.items() if Status.COMPLETED in move.sources}

    assert leaving == {Change.MARK_STALE, Change.DELETE}


def test_cancelled_is_left_by_retry_only() -> None:
    leaving = {change for change, move in MOVES.items() if Status.CANCELLED in move.sources}

    assert leaving == {Change.RETRY, Change.MARK_STALE, Change.DELETE}


def test_only_a_claim_makes_a_job_running() -> None:
    starting = {change for change, move in MOVES.items() if Status.RUNNING in move.targets}

    assert starting == {Change.CLAIM, Change.REQUEST}
    assert MOVES[Change.REQUEST].sources == (Status.RUNNING,)


def test_a_completion_by_the_worker_needs_that_no_cancel_was_requested() -> None:
    assert "cancel_requested_at IS NULL" in guard(Change.COMPLETE)


@pytest.mark.parametrize("change", Change)
def test_a_guard_hides_the_status_from_the_planner(change: Change) -> None:
    assert guard(change).startswith("coalesce(holdfast_job.status, '') IN (")


FACTS = {"due": True, "held_up": False, "cancelling": False, "pausing": False, "continued": False, "stale": False}


@pytest.mark.parametrize(
    ("status", "fact", "state"),
    [
        (Status.PENDING, {}, State.PENDING),
        (Status.PENDING, {"due": False}, State.SCHEDULED),
        (Status.PENDING, {"held_up": True}, State.WAITING),
        (Status.RUNNING, {"cancelling": True}, State.CANCELLING),
        (Status.RUNNING, {"pausing": True}, State.PAUSING),
        (Status.RUNNING, {"cancelling": True, "pausing": True}, State.CANCELLING),
        (Status.COMPLETED, {"continued": True}, State.CONTINUED),
        (Status.FAILED, {"stale": True}, State.STALE),
        (Status.BLOCKED, {"due": False, "held_up": True}, State.BLOCKED),
    ],
)
def test_what_is_shown_is_derived_from_the_row(status: Status, fact: dict[str, bool], state: State) -> None:
    assert shown(status, **(FACTS | fact)) is state


def test_every_outcome_is_a_change_of_its_own_that_a_running_job_may_make() -> None:
    changes = [change for change, _ in settling.CHANGES.values()]

    assert settling.CHANGES.keys() == set(Kind)
    assert len(set(changes)) == len(changes)
    assert all(MOVES[change].sources == (Status.RUNNING,) for change in changes)


def test_a_guard_by_a_key_knows_each_change_by_its_value() -> None:
    both = guard_by("given.what", {"a": Change.COMPLETE, "b": Change.UNBLOCK})

    assert both.startswith("CASE given.what")
    assert f"WHEN 'a' THEN {guard(Change.COMPLETE)}\n" in both
    assert f"WHEN 'b' THEN {guard(Change.UNBLOCK)} END" in both
