"""The options of lists: which jobs or chains, which page of them; read and checked once for both faces."""

from __future__ import annotations

from datetime import datetime
from typing import TypedDict, TypeVar, Unpack, get_args

from holdfast.errors import InvalidInput, got, near_and_all, shown
from holdfast.ids import Target, target_id
from holdfast.keywords import filters_of, refuse_unknown
from holdfast.models import ChainFilter, JobFilter, Order
from holdfast.states import State, Status
from holdfast.store.reads import Paging
from holdfast.texts import Words, words_of

E = TypeVar("E", State, Status)

MOST_ITEMS = 500


class PageOptions(TypedDict, total=False):
    """Which page of a list: how many items, and where the page before ended."""

    limit: int
    cursor: str | None


class JobListOptions(PageOptions, total=False):
    """What a list of jobs is narrowed to; *status* also takes the derived words that are shown.

    *parent* is the job that started them. *internal* adds the engine's own jobs, such as deliveries of webhooks.
    """

    task: Words
    status: Words
    queue: Words
    lane: Words
    parent: Target | None
    created_from: datetime | None
    created_to: datetime | None
    order: Order
    internal: bool


class ChainListOptions(PageOptions, total=False):
    """What a list of chains is narrowed to; *status* is that of the last job, *roots_only* leaves out blockers."""

    task: Words
    status: Words
    is_open: bool | None
    roots_only: bool
    created_from: datetime | None
    created_to: datetime | None
    order: Order
    internal: bool


@filters_of("list_jobs()", JobListOptions)
def job_list(
    task: Words = (),
    status: Words = (),
    queue: Words = (),
    lane: Words = (),
    parent: Target | None = None,
    created_from: datetime | None = None,
    created_to: datetime | None = None,
    order: Order = "newest",
    internal: bool = False,
    **page: Unpack[PageOptions],
) -> tuple[JobFilter, Paging]:
    """Read what a list of jobs is narrowed to."""
    wanted = JobFilter(
        tasks=words_of(task, "task"),
        states=_members(State, status),
        queues=words_of(queue, "queue"),
        lanes=words_of(lane, "lane"),
        parent=None if parent is None else target_id(parent),
        created_from=_aware(created_from, "created_from"),
        created_to=_aware(created_to, "created_to"),
        internal=internal,
    )
    return wanted, paging(order=order, **page)


@filters_of("list_chains()", ChainListOptions)
def chain_list(
    task: Words = (),
    status: Words = (),
    is_open: bool | None = None,
    roots_only: bool = False,
    created_from: datetime | None = None,
    created_to: datetime | None = None,
    order: Order = "newest",
    internal: bool = False,
    **page: Unpack[PageOptions],
) -> tuple[ChainFilter, Paging]:
    """Read what a list of chains is narrowed to."""
    wanted = ChainFilter(
        tasks=words_of(task, "task"),
        statuses=_members(Status, status),
        is_open=is_open,
        roots_only=roots_only,
        created_from=_aware(created_from, "created_from"),
        created_to=_aware(created_to, "created_to"),
        internal=internal,
    )
    return wanted, paging(order=order, **page)


def page_of(options: PageOptions, verb: str) -> Paging:
    """Read which page is wanted from *verb*, which takes nothing else."""
    refuse_unknown(options, PageOptions.__optional_keys__, verb)
    return paging(**options)


def paging(limit: object = 50, cursor: str | None = None, order: Order = "newest") -> Paging:
    """Read which page is wanted."""
    if not isinstance(limit, int) or not 1 <= limit <= MOST_ITEMS:
        raise InvalidInput(
            f"limit must be 1 to {MOST_ITEMS}, {got(limit)}; for more, pass cursor=page.next_cursor", "limit"
        )
    if order not in get_args(Order):
        raise InvalidInput(f"order must be 'newest' or 'oldest', {got(order)}", "order")
    return Paging(limit, order, cursor)


def _members(kind: type[E], value: Words) -> tuple[E, ...]:
    words = words_of(value, "status")
    if unknown := [each for each in words if each not in list(kind)]:
        near = near_and_all(unknown[0], kind, "the words are")
        raise InvalidInput(f"there is no status {shown(unknown[0])}{near}", "status")
    return tuple(map(kind, words))


def _aware(at: datetime | None, name: str) -> datetime | None:
    if at is not None and at.utcoffset() is None:
        raise InvalidInput(f"{name} must be timezone-aware, {got(at)}; add a tzinfo, or use datetime.now(UTC)", name)
    return at
