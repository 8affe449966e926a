"""Searching: a page of what fits a filter, found along an index, with a bound to what one request reads.

A list goes by `seq`, in either order; a cursor is the last `seq` that was looked at, so it stays right while rows come
and go, whichever path the next page takes. A *path* leads to the rows that may fit: along all numbers, along an index
that has them in their order, or through a list of numbers that a unique index gave. The filter is tested on the way. If
the bound is reached first, the page is short, or empty, and its cursor goes on behind the last number looked at.

A filter stands inside a CASE, because a planner that takes it for a rare one reads and sorts the whole table: it has no
statistics for a CASE, expects half of the rows to fit, and stays with the order. What SQL cannot test exactly on both
databases it only narrows, and `Query.fits` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from holdfast.database.tx import Row, Tx
from holdfast.errors import Unreadable
from holdfast.models import Order, Page, Searched
from holdfast.store.reads import Paging, read_cursor, write_cursor
from holdfast.unreadable import tell

T = TypeVar("T")

Conditions: TypeAlias = list[tuple[str, dict[str, object]]]

LAST_NUMBER = 2**63 - 1
MOST_ROUNDS = 20
"""How often a request asks again because what SQL let through did not fit."""

LEAST_ROWS = 50
"""How many rows it asks for then."""


class Reach(NamedTuple):
    """How much one request looks at before it gives a short page."""

    numbers: int = 200_000
    """Numbers, along `seq`."""
    slow_numbers: int = 100_000
    """The same where a row takes longer to test."""
    rows: int = 10_000
    """Rows, along any other index."""


REACH = Reach()


class Query(NamedTuple, Generic[T]):
    """What is searched: *sql* up to its WHERE, which has one condition, the number of its rows, and what must fit."""

    sql: str
    seq: str
    seq_at: int
    conditions: Conditions
    read: Callable[[Row], T]
    """Makes an item of a row, or raises `Unreadable`."""
    fits: Callable[[T], bool] = lambda _: True


class Span(NamedTuple):
    """The numbers that are still to be looked at, both ends excluded."""

    low: int
    high: int
    order: Order

    def behind(self, seq: int) -> Span:
        """Give what is left once *seq* has been looked at."""
        return self._replace(high=seq) if self.order == "newest" else self._replace(low=seq)


class Stretch(NamedTuple):
    """Some rows of a path, which one statement tests; from *first* to *last* in the order of the list."""

    condition: str
    values: Mapping[str, object]
    first: int
    last: int
    is_end: bool
    """Whether the path has no rows behind it."""


NOTHING = Stretch("", {}, 0, 0, is_end=True)
"""What a path gives that has no rows left."""


class RowPath(Protocol):
    """Leads to the rows that may fit, for one request."""

    async def stretch(self, tx: Tx, span: Span, most: int) -> Stretch | None:
        """Give the next rows inside *span*, of which *most* are wanted; None if the bound is reached."""


async def search(tx: Tx, query: Query[T], path: RowPath, paging: Paging) -> Page[T]:
    """Give one page of what fits *query*, and say how far it has looked."""
    walk = _Walk(query, paging)
    while walk.wants_more and (stretch := await path.stretch(tx, walk.span, walk.most)) is not None:
        if stretch is NOTHING:
            walk.end()
            break
        sql, values = walk.statement(stretch)
        walk.take(await tx.fetch_all(sql, **values), stretch)
    return walk.page()


class _Walk(Generic[T]):
    """How far one request has come."""

    def __init__(self, query: Query[T], paging: Paging) -> None:
        self._query = query
        self._paging = paging
        self._found: list[tuple[int, T]] = []
        self._first: int | None = None
        self._last = 0
        self._is_end = False
        self._rounds = 0
        self.span = first_span(paging)

    @property
    def wants_more(self) -> bool:
        """Tell whether the page is not full; one item more tells whether another page follows."""
        return len(self._found) <= self._paging.limit and not self._is_end and self._rounds < MOST_ROUNDS

    @property
    def most(self) -> int:
        """How many rows are asked for at once."""
        return max(self._paging.limit + 1 - len(self._found), LEAST_ROWS if self._rounds else 1)

    def statement(self, stretch: Stretch) -> tuple[str, dict[str, object]]:
        """Write the statement that tests *stretch*, with its values."""
        query = self._query
        fits = " AND ".join(condition for condition, _ in query.conditions)
        direction = "DESC" if self._paging.order == "newest" else "ASC"
        sql = f"{query.sql} AND {query.seq} {stretch.condition} AND CASE WHEN {fits} THEN true ELSE false END"
        values: dict[str, object] = {"most": self.most, **stretch.values}
        for _, given in query.conditions:
            values |= given
        return f"{sql} ORDER BY {query.seq} {direction} LIMIT :most", values

    def take(self, rows: Sequence[Row], stretch: Stretch) -> None:
        """Keep those of *rows* that fit, and note how far the search has come."""
        is_whole = len(rows) < self.most
        self._first = stretch.first if self._first is None else self._first
        for row in rows:
            try:
                item = self._query.read(row)
            except Unreadable as error:
                tell(error)
                continue
            if self._query.fits(item):
                self._found.append((row[self._query.seq_at], item))
        self._last = stretch.last if is_whole else rows[-1][self._query.seq_at]
        self._is_end = is_whole and stretch.is_end
        self._rounds += not is_whole
        self.span = self.span.behind(self._last)

    def end(self) -> None:
        """Note that nothing is left."""
        self._is_end = True

    def page(self) -> Page[T]:
        """Give what was found."""
        found = self._found[: self._paging.limit]
        if self._first is None:
            return Page((), None, Searched(0, 0, is_end=True))
        is_full = len(self._found) > len(found)
        last = found[-1][0] if is_full else self._last
        cursor = write_cursor(self._paging.order, last) if is_full or not self._is_end else None
        items = tuple(item for _, item in found)
        return Page(items, cursor, Searched(self._first, last, is_end=cursor is None))


def first_span(paging: Paging) -> Span:
    """Say which numbers a page may have, by its cursor and what it goes up to."""
    upto = LAST_NUMBER if paging.upto is None else paging.upto + 1
    span = Span(0, upto, paging.order)
    if paging.cursor is None:
        return span
    after = read_cursor(paging.cursor, paging.order)
    return span._replace(high=min(after, upto)) if paging.order == "newest" else span._replace(low=after)


# each end is one probe of the primary key, so that a gap of a billion numbers costs nothing
ENDS = """
    SELECT (SELECT newest.seq FROM holdfast_job AS newest
            WHERE newest.seq > :low AND newest.seq < :high ORDER BY newest.seq DESC LIMIT 1),
        (SELECT oldest.seq FROM holdfast_job AS oldest
            WHERE oldest.seq > :low AND oldest.seq < :high ORDER BY oldest.seq LIMIT 1)"""


class AlongNumbers:
    """Every job, in the order of its number; at most *numbers* of them."""

    def __init__(self, numbers: int) -> None:
        self._numbers = numbers
        self._last: int | None = None
        self._is_end = False

    async def stretch(self, tx: Tx, span: Span, most: int) -> Stretch | None:
        """Give all numbers up to the bound at once: they are read one by one, until the page is full."""
        if self._last is None:
            return await self._begin(tx, span)
        first = span.high - 1 if span.order == "newest" else span.low + 1
        if (first < self._last) if span.order == "newest" else (first > self._last):
            return NOTHING if self._is_end else None
        return self._between(first, self._last)

    async def _begin(self, tx: Tx, span: Span) -> Stretch:
        ((newest, oldest),) = await tx.fetch_all(ENDS, low=span.low, high=span.high)
        if newest is None:
            return NOTHING
        if span.order == "newest":
            first, end, last = newest, oldest, max(oldest, newest - self._numbers + 1)
        else:
            first, end, last = oldest, newest, min(newest, oldest + self._numbers - 1)
        self._last, self._is_end = last, last == end
        return self._between(first, last)

    def _between(self, first: int, last: int) -> Stretch:
        values = {"least": min(first, last), "greatest": max(first, last)}
        return Stretch("BETWEEN :least AND :greatest", values, first, last, self._is_end)


class AlongIndex:
    """The rows of an index that has them by number, as *sql* gives them in each order; at most *rows* of them."""

    def __init__(self, sql: Mapping[Order, str], rows: int, **values: object) -> None:
        self._sql = sql
        self._left = rows
        self._values = values
        self._batches = Batches()

    async def stretch(self, tx: Tx, span: Span, most: int) -> Stretch | None:
        """Give as many rows as are wanted, which fill most pages, and then more and more up to the bound."""
        if not self._left:
            return None
        wanted = min(self._batches.next_size(most), self._left)
        rows = await tx.fetch_all(self._sql[span.order], low=span.low, high=span.high, most=wanted, **self._values)
        self._left -= len(rows)
        return _among([seq for (seq,) in rows], is_end=len(rows) < wanted)


class Among:
    """The rows of numbers that are known, in any order."""

    def __init__(self, seqs: Sequence[int]) -> None:
        self._seqs = sorted(seqs)
        self._batches = Batches()

    async def stretch(self, tx: Tx, span: Span, most: int) -> Stretch | None:
        """Give as many as are wanted, and then more and more."""
        inside = [seq for seq in self._seqs if span.low < seq < span.high]
        size = self._batches.next_size(most)
        return _among((inside[::-1] if span.order == "newest" else inside)[:size], is_end=len(inside) <= size)


class Batches:
    """How many rows are tested at once: as many as are wanted, then eight times as many each time.

    Half of what has failed may be of another task; to test 10,000 rows because the first 51 left a page half empty took
    75 ms instead of 7 on PostgreSQL.
    """

    GROWTH = 8

    def __init__(self) -> None:
        self._last = 0

    def next_size(self, most: int) -> int:
        """Say how many are next, if *most* are wanted."""
        self._last = self._last * self.GROWTH or most
        return self._last


def _among(seqs: list[int], *, is_end: bool) -> Stretch:
    return Stretch("$any(seqs: bigint)", {"seqs": seqs}, seqs[0], seqs[-1], is_end) if seqs else NOTHING
