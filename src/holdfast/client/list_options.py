"""The options of lists: which jobs or chains, which page of them; read and checked once for both faces."""

from __future__ import annotations

from datetime import datetime
from typing import TypedDict, TypeVar, Unpack, get_args

from holdfast.codec import Words, words_of
from holdfast.errors import InvalidInput
from holdfast.models import ChainFilter, JobFilter, Order
from holdfast.states import State, Status
from holdfast.store.reads import Paging

E = TypeVar("E", State, Status)

MOST_ITEMS = 500


class PageOptions(TypedDict, total=False):
    """Which page of a list: how many items, and where the page before ended."""

    limit: int
    cursor: str | None


class JobListOptions(PageOptions, total=False):
    """What a list of jobs is narrowed to; *status* also takes the derived words that are shown.

    *internal* adds the engine's own jobs, such as deliveries of webhooks.
    """

    task: Words
    status: Words
    queue: Words
    lane: Words
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


def job_list(
    task: Words = (),
    status: Words = (),
    queue: Words = (),
    lane: Words = (),
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
        created_from=_aware(created_from, "created_from"),
        created_to=_aware(created_to, "created_to"),
        internal=internal,
    )
    return wanted, paging(order=order, **page)


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


def paging(limit: object = 50, cursor: str | None = None, order: Order = "newest") -> Paging:
    """Read which page is wanted."""
    if not isinstance(limit, int) or not 1 <= limit <= MOST_ITEMS:
        raise InvalidInput(f"a page has 1 to {MOST_ITEMS} items; go on with cursor=page.next_cursor", "limit")
    if order not in get_args(Order):
        raise InvalidInput("a list goes by 'newest' or 'oldest' first", "order")
    return Paging(limit, order, cursor)


def _members(kind: type[E], value: Words) -> tuple[E, ...]:
    try:
        return tuple(kind(word) for word in words_of(value, "status"))
    except ValueError as error:
        raise InvalidInput(f"{error}; there are {', '.join(kind)}", "status") from None


def _aware(at: datetime | None, name: str) -> datetime | None:
    if at is not None and at.utcoffset() is None:
        raise InvalidInput("it is an aware datetime; write datetime.now(UTC), or give it a tzinfo", name)
    return at
