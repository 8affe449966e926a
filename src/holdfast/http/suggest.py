"""`/api/suggest`: words for the bar of filters: what a field may be, or what fits where somebody types."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel

from holdfast.app import Holdfast
from holdfast.errors import InvalidFilter, InvalidInput, near_and_all, shown
from holdfast.filters import INPUT, NAMES, parse
from holdfast.http.endpoint import Inquiry, NoBody, Taken
from holdfast.models import Order
from holdfast.states import State
from holdfast.times import EPOCH

MOST_SUGGESTED = 50
MOST_JOBS = 200
"""How many of the newest jobs are looked at for tags, and of the newest failed ones for errors."""
MOST_STEPS = 4
"""How deep the paths of an input go that are suggested."""


class SuggestQuery(Taken):
    """A *field* and what its word begins with; or a whole filter *q*, and where in it somebody types."""

    field: str | None = None
    prefix: str = ""
    q: str | None = None
    at: int | None = None


class FilterProblem(BaseModel):
    """What is wrong with a filter, and in which column, from 1 on."""

    column: int
    message: str


class SuggestAnswer(BaseModel):
    """At most 50 words that fit; each takes the place of the characters *begin* to *end* of the filter."""

    field: str | None
    """The name of the filter that they are for; null if they are such names themselves."""
    prefix: str
    begin: int
    end: int
    items: list[str]
    problem: FilterProblem | None


class Typed(NamedTuple):
    """What somebody types at a place of a filter."""

    field: str | None
    prefix: str
    begin: int
    end: int


async def read(ask: Inquiry[SuggestQuery, NoBody]) -> dict[str, Any]:
    """Suggest words for a field of a filter, or for where somebody types in one."""
    wanted = ask.query
    if (wanted.field is None) == (wanted.q is None):
        raise InvalidInput("give either field= and prefix=, or q= and at=", "field")
    if wanted.q is None:
        typed = Typed(wanted.field, wanted.prefix, 0, len(wanted.prefix))
    else:
        typed = typed_at(wanted.q, len(wanted.q) if wanted.at is None else wanted.at)
    known = typed.field is None or typed.field in WORDS
    if wanted.q is None and not known:
        names = [name for name in WORDS if name is not None]
        raise InvalidInput(
            f"there are no words for {shown(typed.field)}{near_and_all(typed.field or '', names, 'the fields are')}",
            "field",
        )
    words = (await WORDS[typed.field](ask.hf, typed.prefix)) if known else ()
    start = typed.prefix.casefold()
    items = sorted({each for each in words if each.casefold().startswith(start)})[:MOST_SUGGESTED]
    return {**typed._asdict(), "items": items, "problem": _problem(ask, wanted.q)}


def typed_at(text: str, at: int) -> Typed:
    """Tell what is typed at a place of *text*.

    >>> typed_at("status:failed task:cha", 22)
    Typed(field='task', prefix='cha', begin=19, end=22)
    >>> typed_at("status:failed ta", 16)
    Typed(field=None, prefix='ta', begin=14, end=16)
    """
    at = min(max(at, 0), len(text))
    begin, field, quoted = 0, None, False
    for place, sign in enumerate(text[:at]):
        if sign == '"':
            quoted = not quoted
        elif not quoted and sign.isspace():
            begin, field = place + 1, None
        elif not quoted and sign == ":" and field is None:
            begin, field = place + 1, text[begin:place].strip('"')
        elif not quoted and sign == "," and field is not None:
            begin = place + 1
    return Typed(field, text[begin:at].removeprefix('"'), begin, at)


def _problem(ask: Inquiry[Any, Any], text: str | None) -> dict[str, Any] | None:
    try:
        parse(text or "", EPOCH + timedelta(milliseconds=ask.hf._runtime.wall_ms()))
    except InvalidFilter as error:
        return {"column": error.column, "message": str(error)}
    return None


async def _tasks(hf: Holdfast, _: str) -> Iterable[str]:
    return [each.name for each in await hf.list_tasks()]


async def _queues(hf: Holdfast, _: str) -> Iterable[str]:
    return [each.name for each in await hf.list_queues()]


async def _lanes(hf: Holdfast, prefix: str) -> Iterable[str]:
    return [each.key for each in await hf.list_lanes(prefix=prefix, limit=MOST_SUGGESTED)]


async def _workers(hf: Holdfast, _: str) -> Iterable[str]:
    return [each.id for each in await hf.list_workers()]


async def _tags(hf: Holdfast, _: str) -> Iterable[str]:
    return [tag for each in await hf.list_jobs(limit=MOST_JOBS) for tag in each.tags]


async def _errors(hf: Holdfast, _: str) -> Iterable[str]:
    failed = await hf.list_jobs(status="failed", limit=MOST_JOBS)
    return [str(each.error["type"]) for each in failed if each.error and each.error.get("type")]


async def _names(hf: Holdfast, prefix: str) -> Iterable[str]:
    plain = [each for each in NAMES if not each.startswith(INPUT)]
    if not prefix.startswith(INPUT):
        return [*plain, INPUT]
    return [f"{INPUT}{path}" for each in await hf.list_tasks() for path in paths_of(each.input_schema)]


def _of(words: Iterable[str]) -> Callable[[Holdfast, str], Awaitable[Iterable[str]]]:
    found = tuple(map(str, words))

    async def give(hf: Holdfast, prefix: str) -> Iterable[str]:
        return found

    return give


WORDS: Mapping[str | None, Callable[[Holdfast, str], Awaitable[Iterable[str]]]] = {
    "task": _tasks,
    "chain_task": _tasks,
    "queue": _queues,
    "lane": _lanes,
    "worker": _workers,
    "tag": _tags,
    "error": _errors,
    "status": _of(State),
    "order": _of(get_args(Order)),
    "internal": _of(("true", "false")),
    None: _names,
}
"""Where the words of each field come from; each looks at a bounded number of rows."""


def paths_of(schema: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[str]:
    """Give the paths that lead to values of an input, by its JSON Schema.

    >>> list(paths_of({"properties": {"order": {"properties": {"id": {}}}, "fast": {}}}))
    ['order', 'order.id', 'fast']
    """
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or len(above) >= MOST_STEPS:
        return
    for name, each in properties.items():
        path = (*above, str(name))
        yield ".".join(path)
        if isinstance(each, Mapping):
            yield from paths_of(each, path)
