"""The attempts of a job, as its history tells them: who ran it, how long it had waited and ran, and how that ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from holdfast.models import Event

OUTCOMES: Mapping[str, str] = {
    "job:completed": "completed",
    "job:failed": "failed",
    "job:retrying": "retried",
    "job:rescheduled": "rescheduled",
    "job:paused": "paused",
    "job:cancelled": "cancelled",
    "job:reaped": "lost",
}
"""How an attempt that ran has ended, by the event that ends it."""

READY = frozenset({"job:enqueued", "job:retrying", "job:rescheduled", "job:resumed", "job:unblocked", "job:reaped"})
"""The events after which a job may run: at once, or at the `run_at` that they name."""


class AttemptPhase(NamedTuple):
    """A phase that an attempt has worked on, as far as its history tells."""

    name: str
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAttempt:
    """One run of a job."""

    number: int | None
    worker: str | None
    started_at: datetime
    ended_at: datetime | None = None
    """None while it runs."""
    wait: float | None = None
    """How many seconds it had been ready, as far as its own history tells: its lane and its queue may have waited."""
    outcome: str | None = None
    """`completed`, `failed`, `retried`, `rescheduled`, `paused`, `cancelled` or `lost`; None while it runs."""
    reason: str | None = None
    error: Mapping[str, Any] | None = None
    phases: tuple[AttemptPhase, ...] = ()

    @property
    def run(self) -> float | None:
        """How many seconds it has run; None while it runs."""
        return None if self.ended_at is None else max((self.ended_at - self.started_at).total_seconds(), 0.0)


def attempts_of(events: Iterable[Event]) -> list[PastAttempt]:
    """Give the attempts that the history of one job tells of, from its first event on."""
    found: list[PastAttempt] = []
    ready_at: datetime | None = None
    for event in events:
        running = found[-1] if found and found[-1].ended_at is None else None
        if event.name == "job:started":
            found.append(_begun(event, ready_at))
        elif running is not None and event.name in OUTCOMES:
            found[-1] = _ended(running, event)
        elif running is not None and (phase := event.facts.get("phase")) is not None:
            is_end = event.name == "job:phase:completed"
            found[-1] = replace(running, phases=_phases(running.phases, phase, event.at, is_end=is_end))
        if event.name in READY:
            ready_at = max(_run_at(event) or event.at, event.at)
    return found


def _begun(event: Event, ready_at: datetime | None) -> PastAttempt:
    wait = None if ready_at is None else max((event.at - ready_at).total_seconds(), 0.0)
    return PastAttempt(number=event.attempt, worker=event.facts.get("worker"), started_at=event.at, wait=wait)


def _ended(running: PastAttempt, event: Event) -> PastAttempt:
    said = event.facts
    return replace(
        running,
        ended_at=event.at,
        outcome=OUTCOMES[event.name],
        reason=said.get("reason"),
        error=said.get("error"),
    )


def _phases(known: tuple[AttemptPhase, ...], name: str, at: datetime, *, is_end: bool) -> tuple[AttemptPhase, ...]:
    if not is_end:
        return known if any(each.name == name for each in known) else (*known, AttemptPhase(name, at, None))
    others = tuple(each for each in known if each.name != name)
    began = next((each.started_at for each in known if each.name == name), None)
    return (*others, AttemptPhase(name, began, at))


def _run_at(event: Event) -> datetime | None:
    """Read when the job is to run, if the event says so; what is no time, by a newer release, counts as not said."""
    try:
        return datetime.fromisoformat(event.facts["run_at"])
    except (KeyError, ValueError, TypeError):
        return None
