"""Attempts, as a history tells of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.attempts import AttemptPhase, attempts_of
from holdfast.models import Event

BEGAN = datetime(2026, 5, 4, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def event(seconds: float, name: Any, attempt: int = 0, **facts: Any) -> Event:
    return Event(name=name, at=at(seconds), attempt=attempt, facts=facts)  # type: ignore[arg-type]


def test_an_attempt_has_waited_since_its_job_was_ready() -> None:
    history = [
        event(0, "job:enqueued", run_at="2026-05-04T12:00:10.000Z"),
        event(12, "job:started", 1, worker="w1"),
        event(15, "job:retrying", 1, run_at="2026-05-04T12:00:20.000Z", reason="Boom", error={"type": "Boom"}),
        event(26, "job:started", 2, worker="w2"),
        event(27, "job:completed", 2),
    ]

    first, second = attempts_of(history)

    assert (first.worker, first.wait, first.run, first.outcome, first.error) == (
        "w1",
        2,
        3,
        "retried",
        {"type": "Boom"},
    )
    assert (second.worker, second.wait, second.run, second.outcome) == ("w2", 6, 1, "completed")


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("job:completed", "completed"),
        ("job:failed", "failed"),
        ("job:retrying", "retried"),
        ("job:rescheduled", "rescheduled"),
        ("job:paused", "paused"),
        ("job:cancelled", "cancelled"),
        ("job:reaped", "lost"),
    ],
)
def test_an_attempt_ends_as_its_event_says(name: str, outcome: str) -> None:
    (attempt,) = attempts_of([event(0, "job:started", 1), event(1, name, 1)])

    assert attempt.outcome == outcome


def test_what_people_do_between_two_attempts_is_none() -> None:
    history = [
        event(0, "job:enqueued"),
        event(1, "job:paused", by="ada"),
        event(5, "job:resumed", by="ada"),
        event(6, "job:started", 1),
    ]

    (attempt,) = attempts_of(history)

    assert (attempt.wait, attempt.outcome, attempt.run) == (1, None, None)


def test_an_attempt_has_the_phases_that_it_worked_on() -> None:
    history = [
        event(0, "job:started", 1),
        event(1, "job:progress", 1, phase="pack", progress=0),
        event(2, "job:progress", 1, phase="pack", progress=20),
        event(3, "job:phase:completed", 1, phase="pack"),
        event(4, "job:progress", 1, phase="ship"),
        event(5, "job:failed", 1),
    ]

    (attempt,) = attempts_of(history)

    assert attempt.phases == (AttemptPhase("pack", at(1), at(3)), AttemptPhase("ship", at(4), None))


def test_a_time_that_a_newer_release_writes_otherwise_counts_as_not_said() -> None:
    (attempt,) = attempts_of([event(0, "job:enqueued", run_at="soon"), event(2, "job:started", 1)])

    assert attempt.wait == 2


def test_a_history_without_its_beginning_is_read_as_far_as_it_goes() -> None:
    (attempt,) = attempts_of([event(0, "job:completed", 1), event(2, "job:started", 2)])

    assert (attempt.number, attempt.wait) == (2, None)
