"""What an attempt came to: values, and the one pure function that makes them.

A handler steers by what it returns or raises: an output, an error, `Fail`, `Reschedule`, `Pause`. `judge` alone reads
either and says what is to become of the job; the store then writes it under the token. So the rules of retrying stand
here, can be tested without a database, and are the same for every runner.
"""

from __future__ import annotations

import inspect
import json
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum, StrEnum
from random import Random
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from holdfast.errors import InvalidSettings, got
from holdfast.keywords import known_fields
from holdfast.models import Continuation, RunningJob
from holdfast.texts import clean_text
from holdfast.times import milliseconds_of

Growth: TypeAlias = Literal["fixed", "linear", "exponential"]
Backoff: TypeAlias = Growth | Callable[[int, BaseException], float] | Callable[[int, BaseException, RunningJob], float]
Verdict: TypeAlias = Literal["retry", "fail", "pause"]
Match: TypeAlias = type[BaseException] | Callable[[BaseException], bool] | Callable[[BaseException, RunningJob], bool]

LONGEST_DELAY = 366 * 86400.0
MESSAGE_LENGTH, TRACE_LENGTH = 2_000, 8_000
MOST_ATTRIBUTES, ATTRIBUTES_LENGTH = 20, 2_000
PLAIN_TYPES = (str, int, float, bool, type(None))


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
    """Raise it to run the job again later; uses up no attempt. `raise Reschedule(…) from error` keeps that error.

    *after* is seconds or a timedelta, *at* a timezone-aware datetime; a time that is past means now.

    >>> Reschedule(after=60).after
    60
    """

    def __init__(self, *, after: float | timedelta | None = None, at: datetime | None = None) -> None:
        if (after is None) == (at is None):
            raise InvalidSettings("Reschedule takes after= or at=, and only one of them")
        super().__init__(f"after {after}" if after is not None else f"at {at}")
        self.after = after
        self.at = at
        self.at_ms = None if at is None else milliseconds_of(at, "Reschedule.at", "use after=")


@known_fields
@dataclass(frozen=True, slots=True)
class Retry:
    """When and how often a job that raised is run again; the first run counts as an attempt.

    *attempts* None means for ever. The second run comes *first* seconds after the first, later ones as *backoff* says:
    `"exponential"` (times *factor*), `"linear"`, `"fixed"`, or a function of (attempt, error) that gives seconds; at
    most *maximum*. *jitter* spreads each delay by that share either way, inside *first* and *maximum*: if these are
    equal, there is nothing to spread. *fail_on*, *pause_on* and *retry_on* take exception types
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
            raise InvalidSettings(
                f"attempts must be at least 1, {got(self.attempts)}; the first run counts: write Retry.never() to run "
                "a job once, or attempts=None for no limit"
            )
        if not callable(self.backoff) and self.backoff not in get_args(Growth):
            raise InvalidSettings(
                "backoff must be 'fixed', 'linear', 'exponential' or a function of (attempt, error), "
                f"{got(self.backoff)}"
            )
        if not all(map(is_number, (self.first, self.factor, self.maximum, self.jitter))):
            raise InvalidSettings("first, factor, maximum and jitter of a Retry must be numbers, times in seconds")
        if not (0 <= self.first <= self.maximum and self.factor >= 1 and 0 <= self.jitter <= 1):
            raise InvalidSettings("a Retry needs 0 <= first <= maximum, a factor of at least 1 and a jitter of 0 to 1")
        for patterns in (self.retry_on or (), self.fail_on, self.pause_on):
            if not all(map(_is_match, _several(patterns))):
                raise InvalidSettings(
                    "retry_on, fail_on and pause_on must be an exception type, a function of an error, or a list of "
                    "these"
                )

    @classmethod
    def never(cls) -> Retry:
        """Run once; people decide what happens to a job that raised."""
        return cls(attempts=1)

    def delay(self, attempt: int, error: BaseException, chance: Random, job: RunningJob | None = None) -> float:
        """Give the seconds between the end of *attempt* (1, 2, …) of *job* and the next one."""
        if callable(self.backoff):
            return min(max(float(_ask(self.backoff, attempt, error, job=job)), 0.0), LONGEST_DELAY)
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
        # the window is moved inside the bounds, not cut off there: else half of all first retries would come together
        width = min(2 * self.jitter * delay, self.maximum - self.first)
        earliest = min(max(delay - width / 2, self.first), self.maximum - width)
        return min(earliest + width * chance.random(), self.maximum)

    def verdict(self, error: BaseException, job: RunningJob | None = None) -> Verdict:
        """Say what an error of *job* is to lead to, attempts left aside."""
        if _matches(self.pause_on, error, job):
            return "pause"
        if _matches(self.fail_on, error, job):
            return "fail"
        if self.retry_on is not None and not _matches(self.retry_on, error, job):
            return "fail"
        return "retry"


def is_number(value: object, kind: type[int | float] = float) -> bool:
    """Tell whether *value* is a number, of whole ones only if *kind* is int; True and False are none."""
    return isinstance(value, int | kind) and not isinstance(value, bool)


def _matches(patterns: Match | Sequence[Match], error: BaseException, job: RunningJob | None) -> bool:
    return any(
        isinstance(error, each) if isinstance(each, type) else _ask(each, error, job=job) for each in _several(patterns)
    )


def _ask(function: Callable[..., Any], *known: object, job: RunningJob | None) -> Any:
    """Call a function of the user's with what is *known*, and with the job if it has one parameter more.

    Only one without a default: `(error, codes=(429,))` wants no job.
    """
    return function(*known, job) if _required(function) > len(known) else function(*known)


def _required(function: Callable[..., Any]) -> int:
    """Say how many arguments by position *function* must have."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # one of C's, which does not tell
        return 0
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in by_position and each.default is inspect.Parameter.empty for each in parameters)


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


USED_UP = "attempts used up"
"""Why a job has failed that raised in its last attempt."""
FATAL = "fatal error"
"""Why a job has failed that raised what is not to be retried."""


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
            return Outcome(Kind.FAIL, error=error, reason=USED_UP, is_crash=True)
        case _:
            return Outcome(Kind.LOST, error=error, reason="lost", is_crash=True)


class Facts(NamedTuple):
    """What `judge` must know of an attempt beside how it ended."""

    attempt: int
    used: int
    worker: str
    job: RunningJob | None = None
    """For the functions of a retry policy that want it."""


def judge(error: BaseException, facts: Facts, retry: Retry, chance: Random) -> Outcome:
    """Say what an attempt that raised *error* came to."""
    match error:
        case Fail():
            return Outcome(Kind.FAIL, error=describe(error, facts), reason=clean_text(error.reason, MESSAGE_LENGTH))
        case Pause():
            return Outcome(Kind.PAUSE, reason=clean_text(error.reason, MESSAGE_LENGTH))
        case Reschedule():
            return _rescheduled(error, facts)
        case _:
            return _raised(error, facts, retry, chance)


def _rescheduled(error: Reschedule, facts: Facts) -> Outcome:
    text = None if error.__cause__ is None else describe(error.__cause__, facts)
    if error.at_ms is not None:
        return Outcome(Kind.RESCHEDULE, error=text, run_at_ms=error.at_ms)
    after = error.after.total_seconds() if isinstance(error.after, timedelta) else error.after or 0
    return Outcome(Kind.RESCHEDULE, error=text, delay_ms=round(min(max(after, 0), LONGEST_DELAY) * 1000))


def _raised(error: BaseException, facts: Facts, retry: Retry, chance: Random) -> Outcome:
    text = describe(error, facts)
    try:
        verdict = retry.verdict(error, facts.job)
        if verdict == "retry" and (retry.attempts is None or facts.used < retry.attempts):
            seconds = retry.delay(facts.used, error, chance, facts.job)
            return Outcome(Kind.RETRY, error=text, delay_ms=round(seconds * 1000))
    except BaseException as mistake:  # noqa: BLE001 - a predicate or backoff function of the user's
        return Outcome(Kind.FAIL, error=describe(mistake, facts), reason="the retry policy itself raised")
    if verdict == "pause":
        return Outcome(Kind.PAUSE, error=text, reason=_message(error)[:200])
    return Outcome(Kind.FAIL, error=text, reason=USED_UP if verdict == "retry" else FATAL)


def why_it_halts(reason: str | None, error: Mapping[str, Any] | None) -> str | None:
    """Say why a job halts its lane: where its *reason* only says that it raised, by what it raised."""
    if not error or reason not in (USED_UP, FATAL):
        return reason
    return ": ".join(str(error[key]) for key in ("type", "message") if error.get(key)) or reason


class Described(Exception):
    """An error of the engine's own tasks, which says its facts itself, and is no mistake in anybody's code."""

    def __init__(self, message: str, facts: Mapping[str, str | float | None]) -> None:
        super().__init__(message)
        self.facts = facts


def describe(error: BaseException, facts: Facts) -> str:
    """Write an error down for the history: type, message, traceback, its own attributes, attempt and worker.

    Whatever the error does, this never raises.
    """
    more = error.facts if isinstance(error, Described) else {"traceback": _traceback(error), **_attributes(error)}
    return json.dumps(
        {
            "type": clean_text(type(error).__qualname__, 200),
            "message": _message(error),
            **more,
            "attempt": facts.attempt,
            "worker": facts.worker,
        }
    )


def _attributes(error: BaseException) -> dict[str, dict[str, Any]]:
    """Give what an error says beside its text, such as a status code: its own plain values, as far as they are short.

    Private ones are left out, and whatever is no text, number, truth value or None: it may be anything, and large.
    """
    kept: dict[str, Any] = {}
    room = ATTRIBUTES_LENGTH
    try:
        for name, value in list(vars(error).items()):
            plain = _plain_attribute(name, value)
            if plain and len(kept) < MOST_ATTRIBUTES and (size := len(json.dumps(plain))) <= room:
                kept |= plain
                room -= size
    except BaseException:  # noqa: BLE001 - __dict__ is the user's
        return {}
    return {"attributes": kept} if kept else {}


def _plain_attribute(name: object, value: object) -> dict[str, Any]:
    """Give an attribute in a form that JSON and databases keep, or nothing."""
    plain = value.value if isinstance(value, Enum) else value
    if type(name) is not str or name.startswith("_") or type(plain) not in PLAIN_TYPES:
        return {}
    if isinstance(plain, float) and not math.isfinite(plain):
        return {}
    if isinstance(plain, int) and plain.bit_length() > 64:  # to write a very long one down raises, or takes seconds
        return {}
    return {clean_text(name, 200): clean_text(plain, MESSAGE_LENGTH) if isinstance(plain, str) else plain}


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
