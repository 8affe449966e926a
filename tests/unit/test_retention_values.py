"""Retention as a value: which time holds for which outcome, and what others are told of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import InvalidInput, InvalidSettings, Job, Retention, Settings, Tasks
from holdfast.retention import DAY, DEFAULTS, Times
from holdfast.states import TERMINAL, Status


def hook(_: Job) -> None:
    """Do nothing."""


@pytest.mark.parametrize("outcome", TERMINAL)
def test_what_is_not_given_is_as_usual(outcome: Status) -> None:
    assert Retention().times(outcome, DEFAULTS) == Times(7 * DAY, 30 * DAY)


def test_an_outcome_goes_before_the_task_and_the_task_before_the_settings() -> None:
    kept = Retention(stale_after=timedelta(hours=1), failed=Retention(stale_after=60), cancelled=Retention.never())

    assert kept.times(Status.COMPLETED, DEFAULTS) == Times(3600, 30 * DAY)
    assert kept.times(Status.FAILED, DEFAULTS) == Times(60, 30 * DAY)
    assert kept.times(Status.CANCELLED, DEFAULTS) == Times(None, None)


def test_none_means_never_and_is_not_filled_by_what_is_wider() -> None:
    assert Retention(delete_after=None).times(Status.FAILED, Times(1, 2)) == Times(1, None)


@pytest.mark.parametrize(
    "kept",
    [
        Retention(),
        Retention.never(),
        Retention(stale_after=0, delete_after=1.5),
        Retention(stale_after=5, completed=Retention(delete_after=None), failed=Retention(stale_after=7)),
    ],
)
def test_whoever_reads_the_record_knows_the_same_times(kept: Retention) -> None:
    assert Retention.from_record(kept.record()) == kept


def test_the_record_says_which_stages_have_a_hook() -> None:
    assert Retention(on_delete=hook).record() == {"hooks": ["delete"]}
    assert "hooks" not in Retention(stale_after=1).record()


@pytest.mark.parametrize(
    ("given", "at"),
    [
        ({"stale_after": -1}, "retention.stale_after"),
        ({"stale_after": "a week"}, "retention.stale_after"),
        ({"stale_after": float("nan")}, "retention.stale_after"),
        ({"delete_after": True}, "retention.delete_after"),
        ({"delete_after": timedelta(days=40_000)}, "retention.delete_after"),
        ({"failed": 60}, "retention.failed"),
        ({"failed": Retention(on_stale=hook)}, "retention.failed"),
        ({"failed": Retention(failed=Retention())}, "retention.failed"),
        ({"on_stale": "clean_up"}, "retention.on_stale"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], at: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Retention(**given)

    assert refused.value.path == at


def test_a_task_takes_a_retention_and_tells_it_to_those_without_the_code() -> None:
    tasks = Tasks()

    @tasks.task(name="kept", retention=Retention(stale_after=60))
    def kept() -> None:
        """Is kept for a minute."""

    assert '"retention":{"stale_after":60.0}' in kept.record().policy
    with pytest.raises(InvalidInput, match="retention must be a Retention"):
        tasks.task(name="other", retention=60)(hook)  # type: ignore[call-overload]


def test_in_the_environment_never_is_a_word() -> None:
    found = Settings.from_environment({"HOLDFAST_STALE_AFTER_SECONDS": "60", "HOLDFAST_DELETE_AFTER_SECONDS": "never"})

    assert (found.retention, found.stale_after_seconds, found.delete_after_seconds) == (True, 60.0, None)
    with pytest.raises(InvalidSettings, match="stale_after_seconds"):
        Settings.of(stale_after_seconds=-1)
