"""Keywords that a function does not have: refused by name, with the nearest one and all that it has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from holdfast.errors import Misuse, near_and_all

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

LATER = {"delay": "write delay=60 for seconds from now, or run_at= for a time"}
TRIES = {
    "retry": "did you mean retry? Write retry=Retry(attempts=3)",
    "attempts": "did you mean attempts? The first run counts: attempts=4 retries three times",
}
WAIT = {"first": "did you mean first? first=10 waits 10 s before the second run, and backoff= says how that grows"}
CONTEXT = {"run_in": "leave it out, and give the function a first parameter `ctx: Context`"}
LIMIT = {"timeout": "did you mean timeout?"}
OWN_ID = {"id": "did you mean id?"}
OTHER_NAMES: dict[str, dict[str, str]] = {
    "acks_late": {"retry": "leave it out: a job ends after its handler, and runs again if its worker dies"},
    "autoretry_for": {"retry": "leave it out: every error is retried; write retry=Retry(retry_on=…) for only some"},
    "bind": CONTEXT,
    "countdown": LATER,
    "depends_on": {"blockers": "did you mean blockers? Write blockers=[chain]"},
    "eta": LATER,
    "interval": WAIT,
    "job_id": OWN_ID,
    "job_timeout": LIMIT,
    "lock": {"lane": "did you mean lane? Jobs of one lane run one at a time, in order"},
    "max": TRIES,
    "max_attempts": TRIES,
    "max_retries": TRIES,
    "pass_context": CONTEXT,
    "queueing_lock": {"unique": "did you mean unique? The key is held until the chain ends"},
    "retries": TRIES,
    "retry": {"attempts": "write attempts=4 for this job; its task has the rest, retry=Retry(…)"},
    "retry_backoff": {"retry": "write retry=Retry(first=10, factor=2): the delay doubles"},
    "soft_time_limit": LIMIT,
    "task_id": OWN_ID,
    "time_limit": LIMIT,
    "wait": WAIT,
}
"""What other libraries call an option, and what to write here, where there is an option of that name."""


def refuse_unknown(given: Mapping[str, object], known: Collection[str], what: str, noun: str = "option") -> None:
    """Raise `Misuse` for the first keyword in *given* that is not *known*, naming the nearest and all that are."""
    if given.keys() <= set(known):
        return
    unknown = min(given.keys() - set(known))
    there = sorted(known)
    if ours := next((text for name, text in OTHER_NAMES.get(unknown, {}).items() if name in known), None):
        end = "" if ours.endswith("?") else "."
        advice = f"; {ours}{end} The {noun}s are: {', '.join(there)}"
    else:
        advice = near_and_all(unknown, there, f"the {noun}s are")
    raise Misuse(f"{what} has no {noun} {unknown!r}{advice}")


def filters_of(verb: str, options: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function that reads the filters of *verb* refuse what is no key of *options*, a TypedDict."""
    known: Collection[str] = options.__optional_keys__  # type: ignore[attr-defined]

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            refuse_unknown(kwargs, known, verb, "filter")
            return function(*args, **kwargs)

        return checked

    return decorate


def known_fields(made: type[T]) -> type[T]:
    """Let *made*, a dataclass, refuse keywords that are no fields of it as the options are refused."""
    plain: Callable[..., None] = made.__init__
    known = [each.name for each in fields(made)]  # type: ignore[arg-type]

    @wraps(plain)
    def checked(self: T, *args: Any, **given: Any) -> None:
        refuse_unknown(given, known, f"{made.__name__}()")
        plain(self, *args, **given)

    made.__init__ = checked  # type: ignore[method-assign, assignment]
    return made
