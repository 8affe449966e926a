"""What an attempt came to: values, and the one pure function that makes them.

A handler steers by what it returns or raises: an output, an error, `Fail`, `Reschedule`, `Pause`. `judge` alone reads
either and says what is to become of the job; the store then writes it under the token. So the rules of retrying stand
here, can be tested without a database, and are the same for every runner.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from random import Random
from typing import Literal, TypeAlias, get_args

from holdfast.codec import clean_text
from holdfast.errors import InvalidSettings
from holdfast.models import Continuation

Growth: TypeAlias = Literal["fixed", "linear", "exponential"]
Backoff: TypeAlias = Growth | Callable[[int, BaseException], float]
Verdict: TypeAlias = Literal["retry", "fail", "pause"]
Match: TypeAlias = type[BaseException] | Callable[[BaseException], bool]

LONGEST_DELAY = 366 * 86400.0
MESSAGE_LENGTH, TRACE_LENGTH = 2_000, 8_000


class Steering(Exception):
    """What a handler raises to say what is to become of its job."""


class Fail(Steering):
    """Raise it to fail the job for good, whatever attempts are left."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Pause(Steering):
    """Raise it to pause the job until somebody resumes it; its lane waits with it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Reschedule(Steering):
    """Raise it to run the job again later; uses up no attempt.

    >>> Reschedule(after=60).after
    60
    """

    def __init__(self, *, after: float | timedelta | None = None, at: datetime | None = None) -> None:
        if (after is None) == (at is None):
            raise InvalidSettings("Reschedule takes after= or at=, and just one of them")
        super().__init__(f"after {after}" if after is not None else f"at {at}")
        self.after = after
        self.at = at


@dataclass(frozen=True, slots=True)
class Retry:
    """When and how often a job that raised is run again; the first run counts as an attempt.

    *attempts* None means for ever. The second run comes *first* seconds after the first, later ones as *backoff* says:
    `"exponential"` (times *factor*), `"linear"`, `"fixed"`, or a function of (attempt, error) that gives seconds; at
    most *maximum*. *jitter* spreads each delay by that share. *fail_on*, *pause_on* and *retry_on* take exception types
    or predicates; what none of them knows is retried, unless *retry_on* is given: then it fails.

    >>> [Retry(jitter=0).delay(n, OSError(), Random(1)) for n in (1, 2, 3, 6, 7)]
    [10.0, 20.0, 40.0, 300.0, 300.0]
    """

    attempts: int | None = 20
    backoff: Backoff = "exponential"
    first: float = 10.0
    factor: float = 2.0
    maximum: float = 300.0
    jitter: float = 0.1
    retry_on: Match | Sequence[Match] | None = None
    fail_on: Match | Sequence[Match] = ()
    pause_on: Match | Sequence[Match] = ()

    def __post_init__(self) -> None:
        if self.attempts is not None and not (is_number(self.attempts, int) and self.attempts >= 1):
            raise InvalidSettings("Retry takes attempts of at least 1 (the first run counts), or None for no limit")
        if not callable(self.backoff) and self.backoff not in get_args(Growth):
            raise InvalidSettings(
                "Retry takes a backoff of 'fixed', 'linear' or 'exponential', or a function of (attempt, error)"
            )
        if not all(map(is_number, (self.first, self.factor, self.maximum, self.jitter))):
            raise InvalidSettings("Retry takes first, factor, maximum and jitter as numbers, times in seconds")
        if not (0 <= self.first <= self.maximum and self.factor >= 1 and 0 <= self.jitter <= 1):
            raise InvalidSettings("Retry takes 0 <= first <= maximum, a factor of at least 1 and a jitter of 0 to 1")
        for patterns in (self.retry_on or (), self.fail_on, self.pause_on):
            if not all(map(_is_match, _several(patterns))):
                raise InvalidSettings(
                    "retry_on, fail_on and pause_on take exception types or functions of an error, one or a list"
                )

    @classmethod
    def never(cls) -> Retry:
        """Run once; people decide what happens to a job that raised."""
        return cls(attempts=1)

    def delay(self, attempt: int, error: BaseException, chance: Random) -> float:
        """Give the seconds between the end of *attempt* (1, 2, …) and the next one."""
        if callable(self.backoff):
            return min(max(float(self.backoff(attempt, error)), 0.0), LONGEST_DELAY)
        steps = attempt - 1
        match self.backoff:
            case "fixed":
                delay = self.first
            case "linear":
                delay = self.first * (steps + 1)
            case _:
                # 2.0 ** 1024 is no number any more; no delay needs more than 64 doublings
                delay = self.first * self.factor ** min(steps, 64)
        delay = min(delay, self.maximum)
        spread = delay * self.jitter * (2 * chance.random() - 1)
        return min(max(delay + spread, self.first), self.maximum)

    def verdict(self, error: BaseException) -> Verdict:
        """Say what an error is to lead to, attempts left aside."""
        if _matches(self.pause_on, error):
            return "pause"
        if _matches(self.fail_on, error):
            return "fail"
        if self.retry_on is not None and not _matches(self.retry_on, error):
            return "fail"
        return "retry"


def is_number(value: object, kind: type[int | float] = float) -> bool:
    """Tell whether *value* is a number, of whole ones only if *kind* is int; True and False are none."""
    return isinstance(value, int | kind) and not isinstance(value, bool)


def _matches(patterns: Match | Sequence[Match], error: BaseException) -> bool:
    return any(isinstance(error, each) if isinstance(each, type) else each(error) for each in _several(patterns))


def _several(patterns: Match | Sequence[Match]) -> Sequence[Match]:
    return patterns if isinstance(patterns, Sequence) else (patterns,)


def _is_match(pattern: object) -> bool:
    return issubclass(pattern, BaseException) if isinstance(pattern, type) else callable(pattern)


class Kind(StrEnum):
    """What is to become of a job when an attempt ends."""

    COMPLETE = "complete"
    RETRY = "retry"
    RESCHEDULE = "reschedule"
    GIVE_BACK = "give back"
    FAIL = "fail"
    PAUSE = "pause"
    CANCEL = "cancel"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an attempt came to, ready to be written; *output* and *error* are JSON texts."""

    kind: Kind
    output: str | None = None
    error: str | None = None
    reason: str | None = None
    delay_ms: int = 0
    run_at_ms: int | None = None
    is_crash: bool = False
    successor: Continuation | None = None
    """What goes on with the chain; only a completion has one."""


COMPLETED_WITH_NOTHING = Outcome(Kind.COMPLETE, output="null")


def completed(output: str) -> Outcome:
    """Make the outcome of a handler that has returned *output*, a JSON text; most return None, and share one."""
    return COMPLETED_WITH_NOTHING if output == COMPLETED_WITH_NOTHING.output else Outcome(Kind.COMPLETE, output=output)


MOST_CRASHES = 3
"""The crash that convicts a job; one fewer makes it a suspect, which runs alone."""


POISON = "poison"
"""Why a job that took its worker down too often has failed."""


LOST = "Lost"
"""The type of the error of a job whose worker was gone."""


def lost(
    crashes: int, on_lost: str, message: str, facts: Facts, *, has_attempts: bool = True, is_blamed: bool = True
) -> Outcome:
    """Say what is to become of a job whose worker is gone, after *crashes* earlier ones.

    One that is not blamed, because the worker cannot have died of it, is as lost, but has not crashed.
    """
    error = json.dumps({"type": LOST, "message": message, "attempt": facts.attempt, "worker": facts.worker})
    outcome = crashed(crashes if is_blamed else 0, on_lost, error, has_attempts=has_attempts)
    return outcome if is_blamed else replace(outcome, is_crash=False)


def crashed(crashes: int, on_lost: str, error: str, *, has_attempts: bool = True) -> Outcome:
    """Say what is to become of a job that may have taken its process down, after *crashes* earlier ones."""
    if crashes + 1 >= MOST_CRASHES:
        return Outcome(Kind.FAIL, error=error, reason=POISON, is_crash=True)
    match on_lost:
        case "fail":
            return Outcome(Kind.FAIL, error=error, reason="lost", is_crash=True)
        case "pause":
            return Outcome(Kind.PAUSE, error=error, reason="lost", is_crash=True)
        case _ if not has_attempts:
            return Outcome(Kind.FAIL, error=error, reason="attempts used up", is_crash=True)
        case _:
            return Outcome(Kind.LOST, error=error, reason="lost", is_crash=True)


@dataclass(frozen=True, slots=True)
class Facts:
    """What `judge` must know of an attempt beside how it ended."""

    attempt: int
    used: int
    worker: str


def judge(error: BaseException, facts: Facts, retry: Retry, chance: Random) -> Outcome:
    """Say what an attempt that raised *error* came to."""
    match error:
        case Fail():
            return Outcome(Kind.FAIL, error=describe(error, facts), reason=clean_text(error.reason, MESSAGE_LENGTH))
        case Pause():
            return Outcome(Kind.PAUSE, reason=clean_text(error.reason, MESSAGE_LENGTH))
        case Reschedule():
            return _rescheduled(error)
        case _:
            return _raised(error, facts, retry, chance)


def _rescheduled(error: Reschedule) -> Outcome:
    if error.at is not None:
        return Outcome(Kind.RESCHEDULE, run_at_ms=round(error.at.timestamp() * 1000))
    after = error.after.total_seconds() if isinstance(error.after, timedelta) else error.after or 0
    return Outcome(Kind.RESCHEDULE, delay_ms=round(min(max(after, 0), LONGEST_DELAY) * 1000))


def _raised(error: BaseException, facts: Facts, retry: Retry, chance: Random) -> Outcome:
    text = describe(error, facts)
    try:
        verdict = retry.verdict(error)
        if verdict == "retry" and (retry.attempts is None or facts.used < retry.attempts):
            return Outcome(Kind.RETRY, error=text, delay_ms=round(retry.delay(facts.used, error, chance) * 1000))
    except BaseException as mistake:  # noqa: BLE001 - a predicate or backoff function of the user's
        return Outcome(Kind.FAIL, error=describe(mistake, facts), reason="the retry policy itself raised")
    if verdict == "pause":
        return Outcome(Kind.PAUSE, error=text, reason=_message(error)[:200])
    return Outcome(Kind.FAIL, error=text, reason="attempts used up" if verdict == "retry" else "fatal error")


class Described(Exception):
    """An error of the engine's own tasks, which says its facts itself, and is no mistake in anybody's code."""

    def __init__(self, message: str, facts: Mapping[str, str | float | None]) -> None:
        super().__init__(message)
        self.facts = facts


def describe(error: BaseException, facts: Facts) -> str:
    """Write an error down for the history: type, message, traceback, attempt, worker; whatever it does, never raise."""
    more = error.facts if isinstance(error, Described) else {"traceback": _traceback(error)}
    return json.dumps(
        {
            "type": clean_text(type(error).__qualname__, 200),
            "message": _message(error),
            **more,
            "attempt": facts.attempt,
            "worker": facts.worker,
        }
    )


def _message(error: BaseException) -> str:
    try:
        return clean_text(str(error), MESSAGE_LENGTH)
    except BaseException:  # noqa: BLE001 - __str__ is the user's
        return "(its text cannot be had)"


def _traceback(error: BaseException) -> str:
    try:
        return clean_text("".join(traceback.format_exception(error, limit=-20)), TRACE_LENGTH)
    except BaseException:  # noqa: BLE001 - __str__ and __repr__ are the user's
        return ""
