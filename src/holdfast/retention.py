"""Retention: how long what has ended is kept, and what is called before it goes.

A chain that has ended is *stale* after a while: still there and shown as such, it can be retried, and retention's two
stages leave time to notice. A while after that it is deleted. Times come from the narrowest place that gives one: the
outcome's, the task's, then the settings'.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from holdfast.errors import InvalidInput
from holdfast.models import DELIVER, Job
from holdfast.states import TERMINAL, Status

Stage: TypeAlias = Literal["stale", "delete"]
STAGES: tuple[Stage, ...] = ("stale", "delete")
Hook: TypeAlias = Callable[[Job], object]
"""What is called with a job; an async one gives a coroutine, and any other value is thrown away."""

DAY = 86_400.0
LONGEST = 36_525 * DAY


class Usual(Enum):
    """The mark of a time that is left to the wider place."""

    USUAL = "usual"


USUAL = Usual.USUAL
Age: TypeAlias = float | timedelta | Usual | None


class Times(NamedTuple):
    """Seconds from a chain's end to being stale, and from that to being deleted; None: never."""

    stale: float | None
    delete: float | None


DEFAULTS = Times(7 * DAY, 30 * DAY)
INTERNAL = Times(1 * DAY, 1 * DAY)
"""For the engine's own jobs, such as deliveries of webhooks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long the ended chains of a task are kept; what is not given here is as the settings say: 7 days, then 30.

    *stale_after* counts from the end of a chain, *delete_after* from the time when it was marked stale; both are
    seconds or a timedelta, and None means never. *completed*, *failed* and *cancelled* are a `Retention` for that
    outcome alone. *on_stale* and *on_delete* are called with each job of a chain before it is marked or deleted, at
    least once; they may be plain functions, which run in a thread, or async. If one raises, the chain stays as it is,
    and the next pass tries again.

    >>> Retention(stale_after=3600, failed=Retention.never()).times(Status.FAILED, DEFAULTS)
    Times(stale=None, delete=None)
    """

    stale_after: Age = USUAL
    delete_after: Age = USUAL
    completed: Retention | None = None
    failed: Retention | None = None
    cancelled: Retention | None = None
    on_stale: Hook | None = field(default=None, compare=False)
    on_delete: Hook | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in ("stale_after", "delete_after"):
            object.__setattr__(self, name, _seconds(name, getattr(self, name)))
        for outcome in TERMINAL:
            _check_outcome(outcome, getattr(self, outcome))
        for stage in STAGES:
            if (hook := self.hook(stage)) is not None and not callable(hook):
                raise InvalidInput(f"on_{stage} must be a function that takes a job, or None", f"retention.on_{stage}")

    @classmethod
    def never(cls) -> Retention:
        """Keep everything for ever, until somebody deletes it."""
        return cls(stale_after=None, delete_after=None)

    def times(self, outcome: Status, usual: Times) -> Times:
        """Say how long chains that ended as *outcome* are kept, where *usual* fills what is not given."""
        own = Times(_or(self.stale_after, usual.stale), _or(self.delete_after, usual.delete))
        narrower: Retention | None = getattr(self, outcome)
        return own if narrower is None else narrower.times(Status.COMPLETED, own)

    def hook(self, stage: Stage) -> Hook | None:
        """Give what is called before a chain goes through *stage*."""
        return self.on_stale if stage == "stale" else self.on_delete

    def record(self) -> dict[str, object]:
        """Tell what those must know who do not have the code: the times, and which stages have a hook."""
        told: dict[str, object] = {
            name: value
            for name in ("stale_after", "delete_after")
            if not isinstance(value := getattr(self, name), Usual)
        }
        told |= {str(each): own.record() for each in TERMINAL if (own := getattr(self, each)) is not None}
        hooks = [stage for stage in STAGES if self.hook(stage) is not None]
        return told | ({"hooks": hooks} if hooks else {})

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Retention:
        """Read the times of what `record` told; hooks cannot be read."""
        given: dict[str, Any] = {name: record[name] for name in ("stale_after", "delete_after") if name in record}
        given |= {str(each): cls.from_record(record[each]) for each in TERMINAL if each in record}
        return cls(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionCount:
    """What a pass did with the chains of one task that ended one way; a dry run tells what it would do."""

    task: str
    outcome: Status
    stale: int = 0
    """Marked stale."""
    deleted: int = 0
    kept: int = 0
    """Due, but still needed: they hold a lane, an open job waits for them, a webhook is undelivered, or are busy."""
    postponed: int = 0
    """Due, but a hook of theirs failed, or hangs, or is known only to another process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """What one pass of retention has done, or would do; *counts* has the tasks of which something was due."""

    counts: tuple[RetentionCount, ...] = ()
    trimmed: int = 0
    """Entries of the log about what is long gone that were removed."""
    journals: int = 0
    """Journals that were deleted before their jobs."""
    is_done: bool = True
    """Whether everything that was due has been looked at."""

    @property
    def stale(self) -> int:
        """How many chains were marked stale."""
        return sum(each.stale for each in self.counts)

    @property
    def deleted(self) -> int:
        """How many chains were deleted."""
        return sum(each.deleted for each in self.counts)


def is_internal(task: str) -> bool:
    """Tell whether the jobs of *task* are the engine's own affair, and not shown with the user's."""
    return task == DELIVER


def _seconds(name: str, value: object) -> float | Usual | None:
    if value is None or isinstance(value, Usual):
        return value
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool) and math.isfinite(seconds)
    if not is_number or not 0 <= cast("float", seconds) <= LONGEST:
        raise InvalidInput(
            f"{name} must be seconds or a timedelta, up to 100 years, or None for never", f"retention.{name}"
        )
    return float(cast("float", seconds))


def _check_outcome(outcome: Status, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, Retention):
        raise InvalidInput(
            f"{outcome} must be a Retention; write {outcome}=Retention(stale_after=…)", f"retention.{outcome}"
        )
    if any(value.hook(stage) for stage in STAGES) or any(getattr(value, each) for each in TERMINAL):
        raise InvalidInput(
            f"{outcome} takes times only; give hooks to the Retention of the task", f"retention.{outcome}"
        )


def _or(value: Age, usual: float | None) -> float | None:
    return usual if isinstance(value, Usual) else cast("float | None", value)
