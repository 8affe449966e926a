"""The options of lists: which jobs or chains, which page of them; read and checked once for both faces."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from datetime import datetime
from functools import wraps
from typing import ParamSpec, TypeAlias, TypedDict, TypeVar, Unpack, get_args
from uuid import UUID

from holdfast.errors import InvalidInput, got, near_and_all, shown
from holdfast.filters import MOST_TERMS, fits_nothing, input_path, input_value
from holdfast.ids import Target, target_id
from holdfast.keywords import filters_of, refuse_unknown
from holdfast.models import ChainQuery, JobQuery, Order, Scalar
from holdfast.states import State, Status
from holdfast.store.reads import Paging
from holdfast.texts import Words, words_of

Targets: TypeAlias = Target | Sequence[Target]
"""Names one job or chain, or several."""

C = TypeVar("C", bound=Sized)
E = TypeVar("E", State, Status)
P = ParamSpec("P")
R = TypeVar("R")

MOST_ITEMS = 500
NO_INPUT: Mapping[str, Scalar] = {}


class PageOptions(TypedDict, total=False):
    """Which page of a list: how many items, and where the page before ended."""

    limit: int
    cursor: str | None


class JobFilterOptions(TypedDict, total=False):
    """Which jobs are wanted; *status* also takes the derived words that are shown.

    *parent* is the job that started them. *internal* adds the engine's own jobs, such as deliveries of webhooks.
    """

    id: Targets
    chain: Targets
    chain_task: Words
    task: Words
    status: Words
    queue: Words
    lane: Words
    tag: Words
    worker: Words
    error: Words
    input: Mapping[str, Scalar]
    parent: Target | None
    created_from: datetime | None
    created_to: datetime | None
    internal: bool


class JobListOptions(PageOptions, JobFilterOptions, total=False):
    """What a list of jobs is narrowed to, and which page of it is wanted."""

    order: Order


class ChainListOptions(PageOptions, total=False):
    """What a list of chains is narrowed to; *status* is that of the last job, *roots_only* leaves out blockers."""

    id: Targets
    task: Words
    status: Words
    is_open: bool | None
    roots_only: bool
    created_from: datetime | None
    created_to: datetime | None
    order: Order
    internal: bool


def _refuses_empty(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function that reads filters refuse an empty list: no job fits it, and to drop it would find every job."""

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in kwargs.items():
            if isinstance(value, Collection) and not isinstance(value, str) and not value:
                raise fits_nothing(name)
        return function(*args, **kwargs)

    return checked


@filters_of("list_jobs()", JobListOptions)
@_refuses_empty
def job_list(
    id: Targets = (),  # noqa: A002 - the filter is called so
    chain: Targets = (),
    chain_task: Words = (),
    task: Words = (),
    status: Words = (),
    queue: Words = (),
    lane: Words = (),
    tag: Words = (),
    worker: Words = (),
    error: Words = (),
    input: Mapping[str, Scalar] = NO_INPUT,  # noqa: A002 - the filter is called so
    parent: Target | None = None,
    created_from: datetime | None = None,
    created_to: datetime | None = None,
    order: Order = "newest",
    internal: bool = False,
    **page: Unpack[PageOptions],
) -> tuple[JobQuery, Paging]:
    """Read what a list of jobs is narrowed to."""
    wanted = JobQuery(
        tasks=_words(task, "task"),
        states=_members(State, status),
        queues=_words(queue, "queue"),
        lanes=_words(lane, "lane"),
        ids=_targets(id, "id"),
        chains=_targets(chain, "chain"),
        chain_tasks=_words(chain_task, "chain_task"),
        tags=_words(tag, "tag"),
        workers=_words(worker, "worker"),
        errors=_words(error, "error"),
        inputs=tuple((input_path(path), input_value(path, value)) for path, value in _members_of(input)),
        parent=None if parent is None else target_id(parent),
        created_from=_aware(created_from, "created_from"),
        created_to=_aware(created_to, "created_to"),
        internal=flag(internal, "internal"),
    )
    return wanted, paging(order=order, **page)


@filters_of("list_chains()", ChainListOptions)
@_refuses_empty
def chain_list(
    id: Targets = (),  # noqa: A002 - the filter is called so
    task: Words = (),
    status: Words = (),
    is_open: bool | None = None,
    roots_only: bool = False,
    created_from: datetime | None = None,
    created_to: datetime | None = None,
    order: Order = "newest",
    internal: bool = False,
    **page: Unpack[PageOptions],
) -> tuple[ChainQuery, Paging]:
    """Read what a list of chains is narrowed to."""
    wanted = ChainQuery(
        ids=_targets(id, "id"),
        tasks=_words(task, "task"),
        statuses=_members(Status, status),
        is_open=None if is_open is None else flag(is_open, "is_open"),
        roots_only=flag(roots_only, "roots_only"),
        created_from=_aware(created_from, "created_from"),
        created_to=_aware(created_to, "created_to"),
        internal=flag(internal, "internal"),
    )
    return wanted, paging(order=order, **page)


def page_of(options: PageOptions, verb: str, *others: str) -> Paging:
    """Read which page is wanted from *verb*, which has read its *others* itself."""
    refuse_unknown(options, {*PageOptions.__optional_keys__, *others}, verb)
    return paging(**options)


def flag(value: object, name: str) -> bool:
    """Take True or False; a text such as "no" would count as True."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} must be True or False, {got(value)}", name)
    return value


def paging(
    limit: object = 50, cursor: str | None = None, order: Order = "newest", more: str = "cursor=page.next_cursor"
) -> Paging:
    """Read which page is wanted; *more* is what to pass for the next one."""
    if not isinstance(limit, int) or not 1 <= limit <= MOST_ITEMS:
        raise InvalidInput(f"limit must be 1 to {MOST_ITEMS}, {got(limit)}; for more, pass {more}", "limit")
    if order not in get_args(Order):
        raise InvalidInput(f"order must be 'newest' or 'oldest', {got(order)}", "order")
    return Paging(limit, order, cursor)


def _members(kind: type[E], value: Words) -> tuple[E, ...]:
    words = _words(value, "status")
    if unknown := [each for each in words if each not in list(kind)]:
        near = near_and_all(unknown[0], kind, "the words are")
        raise InvalidInput(f"there is no status {shown(unknown[0])}{near}", "status")
    return tuple(map(kind, words))


def _words(value: Words, name: str) -> tuple[str, ...]:
    """Read one word or several; an iterator, too, which shows only now whether it is empty."""
    words = words_of(value, name)
    if not words and not isinstance(value, Collection):
        raise fits_nothing(name)
    return _refuse_many(words, name)


def _refuse_many(given: C, name: str) -> C:
    if len(given) > MOST_ITEMS:
        raise InvalidInput(f"{name} takes at most {MOST_ITEMS}, got {len(given)}; ask for a part of them", name)
    return given


def _targets(value: Targets, name: str) -> tuple[UUID, ...]:
    """Read one job, chain or id, or several."""
    several = isinstance(value, Collection) and not isinstance(value, str)
    targets: Collection[Target] = value if several else (value,)  # type: ignore[assignment]
    return tuple(dict.fromkeys(map(target_id, _refuse_many(targets, name))))


def _members_of(given: object) -> list[tuple[str, Scalar]]:
    if not isinstance(given, Mapping):
        raise InvalidInput(f'input must be paths with values, {got(given)}; write input={{"user_id": 42}}', "input")
    if len(given) > MOST_TERMS:
        raise InvalidInput(f"input takes at most {MOST_TERMS} paths, got {len(given)}", "input")
    return list(given.items())


def _aware(at: datetime | None, name: str) -> datetime | None:
    if at is None:
        return None
    if not isinstance(at, datetime):
        raise InvalidInput(
            f"{name} must be a timezone-aware datetime, {got(at)}; write {name}=datetime.now(UTC) - timedelta(hours=2)",
            name,
        )
    if at.utcoffset() is None:
        raise InvalidInput(f"{name} must be timezone-aware, {got(at)}; add a tzinfo, or use datetime.now(UTC)", name)
    return at
