"""The options of a stream of events: which ones; read and checked once for both faces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, TypedDict, get_args

from holdfast.errors import InvalidInput, did_you_mean, shown
from holdfast.ids import Many, Target, target_id
from holdfast.keywords import filters_of
from holdfast.models import EventFilter, EventName
from holdfast.texts import Words, words_of

Names: TypeAlias = EventName | Sequence[EventName]

EVENT_NAMES: tuple[EventName, ...] = get_args(EventName)


class EventOptions(TypedDict, total=False):
    """What a stream of events is narrowed to: each takes one or several; what is left out narrows nothing."""

    jobs: Target | Many[Any]
    chains: Target | Many[Any]
    tasks: Words
    lanes: Words
    parents: Target | Many[Any]
    names: Names


@filters_of("events()", EventOptions)
def event_filter(
    jobs: Target | Many[Any] = (),
    chains: Target | Many[Any] = (),
    tasks: Words = (),
    lanes: Words = (),
    parents: Target | Many[Any] = (),
    names: Names = (),
) -> EventFilter:
    """Read what a stream of events is narrowed to."""
    return EventFilter(
        names=frozenset(check_names((names,) if isinstance(names, str) else names)),
        jobs=frozenset(target_id(each) for each in _several(jobs)),
        chains=frozenset(target_id(each) for each in _several(chains)),
        tasks=frozenset(words_of(tasks, "tasks")),
        lanes=frozenset(words_of(lanes, "lanes")),
        parents=frozenset(target_id(each) for each in _several(parents)),
    )


def check_names(names: Iterable[object]) -> tuple[EventName, ...]:
    """Give *names*, if all of them are names of events; or raise `InvalidInput`."""
    for name in names:
        if name not in EVENT_NAMES:
            near = did_you_mean(str(name), EVENT_NAMES) or f"; the events are: {', '.join(EVENT_NAMES)}"
            raise InvalidInput(f"no event is called {shown(name)}{near}", "names")
    return tuple(names)  # type: ignore[arg-type]  # just checked


def _several(targets: Any) -> Iterable[Target]:
    return targets if isinstance(targets, list | tuple | set | frozenset) else (targets,)
