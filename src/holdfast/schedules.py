"""Schedules as people see them: a rule in time with a call, and its ticks, the times that have had their job."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, get_args
from uuid import UUID

from holdfast.errors import InvalidInput, got
from holdfast.schedule_rules import ScheduleRule

Missed: TypeAlias = Literal["one", "skip", "all"]
"""What becomes of ticks that are found more than a minute late: the last of them starts its job, none, or each."""

TickOutcome: TypeAlias = Literal["started", "met"]
"""A tick started a chain, or met the one that holds the call's unique key."""

MOST_SCHEDULES = 10_000


class ScheduleOptions(TypedDict, total=False):
    """When a schedule starts its call: *cron* in a *timezone* (UTC unless given), or *every* so many seconds.

    *jitter* delays each job by its own share of so many seconds; *missed* says what becomes of late ticks.
    """

    cron: str | None
    timezone: str | None
    every: float | timedelta | None
    jitter: float | timedelta
    missed: Missed


class StoredCall(NamedTuple):
    """The call of a schedule, as its row has it: *input* and *options* are JSON."""

    task: str
    input: str
    options: str


class NewSchedule(NamedTuple):
    """A schedule as it is put: everything checked; *declared* is its fingerprint if code declares it."""

    name: str
    call: StoredCall
    rule: ScheduleRule
    missed: Missed = "one"
    jitter_ms: int = 0
    declared: str | None = None
    trouble: str | None = None

    @property
    def fingerprint(self) -> str:
        """A short text that changes with what is declared."""
        said = [*self.call, self.rule.json, self.missed, self.jitter_ms]
        return sha256(json.dumps(said).encode()).hexdigest()[:12]


def check_missed(value: object) -> Missed:
    """Take one of the three words."""
    for word in get_args(Missed):
        if value == word:
            return word  # type: ignore[no-any-return]
    raise InvalidInput(f"missed must be 'one', 'skip' or 'all', {got(value)}", "missed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """A schedule, as it was when it was read."""

    name: str
    task: str
    input: Any
    """The arguments of its call, as plain JSON."""
    options: dict[str, Any]
    """What its call says beyond its task: `queue`, `unique`, `lane` and so on, as they are stored."""
    rule: ScheduleRule
    words: str
    """The rule in English."""
    next_at: datetime | None
    """The tick that comes next; None while it is paused, or if none ever comes."""
    is_late: bool
    """Whether that has been due for more than a minute, so that no worker seems to serve this database."""
    next_times: tuple[datetime, ...]
    """The next five times of its rule, whether it is paused or not."""
    missed: Missed
    jitter: float
    """By how many seconds its jobs are delayed at most, each by its own share."""
    paused_at: datetime | None
    paused_by: str | None
    reason: str | None
    """Why it was paused."""
    paused_until: datetime | None
    """When it goes on by itself; None means when somebody resumes it."""
    is_declared: bool
    """Whether a program declares it in its code: the next change of that declaration goes over edits by hand."""
    trouble: str | None
    """Why the last tick could not start its job; None if it could."""
    left_out: int
    """How many late ticks have started nothing, in all."""
    left_out_at: datetime | None
    """When that happened last."""
    created_at: datetime
    changed_at: datetime | None
    changed_by: str | None

    @property
    def is_paused(self) -> bool:
        """Tell whether it is paused."""
        return self.paused_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A time of a schedule that has had its job."""

    schedule: str
    at: datetime
    """The time of the rule; the job may have started later."""
    outcome: TickOutcome
    chain_id: UUID
    """The chain that was started, or met."""
    done_at: datetime | None
