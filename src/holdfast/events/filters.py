"""The options of a stream of events: which ones; read and checked once for both faces."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, TypedDict, get_args

from holdfast.codec import Words, words_of
from holdfast.errors import InvalidInput
from holdfast.ids import Many, Target, target_id
from holdfast.models import EventFilter, EventName

Names: TypeAlias = EventName | Sequence[EventName]

EVENT_NAMES: tuple[EventName, ...] = get_args(EventName)


class EventOptions(TypedDict, total=False):
    """What a stream of events is narrowed to: each takes one or several; what is left out narrows nothing."""

    jobs: Target | Many[Any]
    chains: Target | Many[Any]
    tasks: Words
    lanes: Words
    names: Names


def event_filter(
    jobs: Target | Many[Any] = (),
    chains: Target | Many[Any] = (),
    tasks: Words = (),
    lanes: Words = (),
    names: Names = (),
) -> EventFilter:
    """Read what a stream of events is narrowed to."""
    return EventFilter(
        names=frozenset(check_names((names,) if isinstance(names, str) else names)),
        jobs=frozenset(target_id(each) for each in _several(jobs)),
        chains=frozenset(target_id(each) for each in _several(chains)),
        tasks=frozenset(words_of(tasks, "tasks")),
        lanes=frozenset(words_of(lanes, "lanes")),
    )


def check_names(names: Iterable[object]) -> tuple[EventName, ...]:
    """Give *names*, if all of them are names of events; or raise `InvalidInput`."""
    for name in names:
        if name not in EVENT_NAMES:
            near = difflib.get_close_matches(str(name), EVENT_NAMES, 2)
            advice = f"did you mean {' or '.join(near)}?" if near else "docs/reference/events.md has all names"
            raise InvalidInput(f"no event is called {str(name)[:60]!r}; {advice}", "names")
    return tuple(names)  # type: ignore[arg-type]  # just checked


def _several(targets: Any) -> Iterable[Target]:
    return targets if isinstance(targets, list | tuple | set | frozenset) else (targets,)
