"""What a task says of its phases: their names, how far a job is by them, and how their results are read.

A job with *n* phases of which the one at *position* is at *p* percent is at `100 * (position + p / 100) / n` percent,
rounded half up, so that three phases at 50, 25 and 80 give 17, 42 and 93:

    >>> [overall(position, 3, percent) for position, percent in enumerate((50, 25, 80))]
    [17, 42, 93]
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Awaitable, Callable, Coroutine
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from holdfast.errors import SHOWN_LENGTH, InvalidInput, InvalidOutput, Misuse, got, shown
from holdfast.models import RUN_PHASE

if TYPE_CHECKING:
    from holdfast.codec import Codec

MOST_PHASES = 1_000
LONGEST_NAME = 100


def check_phases(names: object) -> tuple[str, ...]:
    """Read the names of a task's phases, or raise `InvalidInput` and say what is wrong with them."""
    if isinstance(names, str) or not isinstance(names, list | tuple):
        entry = json.dumps(names[:SHOWN_LENGTH]) if isinstance(names, str) else '"download"'
        raise InvalidInput(f"phases must be a list of names, {got(names)}; write phases=({entry},)", "options.phases")
    if len(names) > MOST_PHASES:
        raise InvalidInput(
            f"phases may be at most {MOST_PHASES}, got {len(names)}; start a job for each part", "options.phases"
        )
    for name in names:
        _check_name(name)
    twice = [name for place, name in enumerate(names) if name in names[:place]]
    if twice:
        raise InvalidInput(f"phases names {shown(twice[0])} twice; give each phase its own name", "options.phases")
    return tuple(names)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.isprintable() or name != name.strip() or not name:
        raise InvalidInput(f"a phase cannot be called {shown(name)}; use a text of one line", "options.phases")
    if len(name) > LONGEST_NAME:
        raise InvalidInput(
            f"the name of a phase has at most {LONGEST_NAME} characters, got {len(name)}", "options.phases"
        )
    if name == RUN_PHASE:
        raise InvalidInput(
            f"a phase cannot be called {RUN_PHASE!r}: Holdfast uses that name; choose another", "options.phases"
        )


def overall(position: int, total: int, percent: float) -> int:
    """Say how far a job is whose phase at *position* of *total* is at *percent*."""
    return half_up((100 * position + percent) / total)


def half_up(number: float) -> int:
    """Round to the nearest whole number, a half to the next higher one.

    >>> [half_up(number) for number in (0.5, 1.5, 2.49)]
    [1, 2, 2]
    """
    floor = math.floor(number)
    return floor + (number - floor >= 0.5)  # adding 0.5 first would round up what is a hair below it


def percent_of(done: object, total: object = None) -> float:
    """Read how far something is, in percent or as *done* of *total*; what is beyond 0 or 100 is taken for these.

    Raises `InvalidInput` for what is no number, which a handler must not store as its progress.
    """
    part = _number(done, "progress.percent" if total is None else "progress.done")
    if total is None:
        return min(max(part, 0.0), 100.0)
    whole = _number(total, "progress.total")
    if whole < 0:
        raise InvalidInput(f"total must not be negative, got {total}; pass how much there is to do", "progress.total")
    return 100.0 if whole == 0 else min(max(100 * part / whole, 0.0), 100.0)


def _number(value: object, path: str) -> float:
    try:
        number = None if isinstance(value, str | bytes | bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or not math.isfinite(number):
        is_long = isinstance(value, int) and abs(value) > 1  # which Python may refuse to write down
        given = "a number without a size" if is_long else shown(str(value))
        raise InvalidInput(f"progress must be a number from 0 to 100, got {given}", path)
    return number


def result_codec(function: Callable[..., object], name: str, task: str) -> Codec[Any]:
    """Say how the results of *function*, which phase *name* runs, are stored: by its return annotation."""
    kind = returned_type(function, name)
    try:
        return _codec(kind, name, task)
    except TypeError:  # an annotation that cannot be a key
        return _codec.__wrapped__(kind, name, task)


@lru_cache(1024)
def _codec(kind: Any, name: str, task: str) -> Codec[Any]:
    from holdfast.codec import make_codec

    return make_codec(kind, f"phase {name}", InvalidOutput, task)


def returned_type(function: Callable[..., object], name: str) -> Any:
    """Read the return annotation, and no other: those of the parameters are nobody's business here."""
    named = _named(function)
    annotation = getattr(named, "__annotations__", {}).get("return", Any)
    if isinstance(annotation, str):
        alone = SimpleNamespace(__annotations__={"return": annotation})
        names = getattr(inspect.unwrap(named), "__globals__", {})
        try:
            annotation = get_type_hints(alone, globalns=names, include_extras=True)["return"]
        except Exception as error:  # noqa: BLE001 - an annotation is an expression of the user's
            raise Misuse(
                f"the return annotation of the function of phase {name!r} cannot be resolved ({error}); define or "
                "import the type above it, and not under `if TYPE_CHECKING`"
            ) from None
    return get_args(annotation)[-1] if get_origin(annotation) in (Awaitable, Coroutine) else annotation


def _named(function: Callable[..., object]) -> Any:
    while isinstance(function, partial):
        function = function.func
    if inspect.isroutine(function) or isinstance(function, type):
        return function
    return type(function).__call__
