"""Pages of the log, read once for all who want them at about the same time.

Followers that read by themselves often come in crowds, behind the same place, such as the clients of a server that was
restarted: the last whole pages are kept for them, for a while. Pages end at round numbers, so that all soon read the
same ones. And on PostgreSQL a page costs as much as all that is new, for that has to be sorted: with 300,000 events to
catch up on, 130 ms for each 200 of them. So many lines are read at once, and kept; their jobs, which may be large, are
read a page at a time. A job that was read lately, behind all of these lines, is not read again for the next page.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from holdfast.database.tx import Runner, Store, Tx
from holdfast.store.log import reading
from holdfast.store.log.reading import LoggedEvent, LogRows
from holdfast.wire.cursors import Cursor

PAGE = 500  # rows of the log whose jobs are read at once
HANDED = 200  # rows that are handed to all followers at once: two such pages fit into what one may be behind
LINES = 5_000  # events of the log that are read at once
KEPT_PAGES = 2
KEPT_SECONDS = 2.0  # for the jobs in them grow old
KEPT_BLOCKS = 2

Page: TypeAlias = tuple[LogRows, Sequence[LoggedEvent]]


class Pages:
    """The last pages that were read behind a cursor, and lines that are still to be told, whoever read them."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._change = threading.Lock()  # loops and threads follow, each reads for all
        self._kept: OrderedDict[Cursor, tuple[float, Page]] = OrderedDict()
        self._blocks: deque[tuple[float, LogRows]] = deque(maxlen=KEPT_BLOCKS)

    async def read(self, runner: Runner, cursor: Cursor) -> Page:
        """Read the page behind *cursor*; or raise `CursorExpired`."""
        kept = self.kept(cursor)
        return await runner.read(_read_page, self, cursor) if kept is None else kept

    def find(self, store: Store, cursor: Cursor) -> LogRows:
        """Read only the next lines behind *cursor*, blocking; or raise `CursorExpired`."""
        block = self.block(cursor) or store.read_sync(reading.since, cursor, LINES)
        return self.cut(block, HANDED)

    def kept(self, cursor: Cursor) -> Page | None:
        """Give the page behind *cursor*, if it was read lately."""
        with self._change:
            return self._lately(cursor)

    def keep(self, cursor: Cursor, page: Page) -> Page:
        """Keep the *page* behind *cursor* for the next who asks; give the one that all of them will have."""
        with self._change:
            if (kept := self._lately(cursor)) is not None:  # several have read it at once
                return kept
            self._kept[cursor] = self._monotonic(), page
            while len(self._kept) > KEPT_PAGES:
                self._kept.popitem(last=False)
            return page

    def block(self, cursor: Cursor) -> LogRows | None:
        """Give lines right behind *cursor* that were read and not told."""
        with self._change:
            blocks = tuple(self._blocks)
        for read_at, block in blocks:
            if (found := block.behind(cursor)) is not None:
                return found if self._is_new(read_at) else replace(found, jobs={})
        return None

    def cut(self, block: LogRows, rows: int) -> LogRows:
        """Give the first of the lines, up to a multiple of *rows*, and keep the rest for who goes on behind them."""
        found = block.first(rows)
        if found is block:  # its lines are used up, so keep no jobs for the next
            found = replace(block, jobs=dict(block.jobs))
            block.jobs.clear()
            return found
        with self._change:
            if not any(each.page == block.page for _, each in self._blocks):
                self._blocks.append((self._monotonic(), block))
        return found

    def drop(self) -> None:
        """Keep none: nobody follows."""
        with self._change:
            self._kept.clear()
            self._blocks.clear()

    def _lately(self, cursor: Cursor) -> Page | None:
        read_at, page = self._kept.get(cursor, (0.0, None))
        return page if self._is_new(read_at) else None

    def _is_new(self, read_at: float) -> bool:
        return read_at > self._monotonic() - KEPT_SECONDS


async def _read_page(tx: Tx, pages: Pages, cursor: Cursor) -> Page:
    if (kept := pages.kept(cursor)) is not None:
        return kept  # a crowd waits for a connection, and by then somebody has read it
    block = pages.block(cursor) or await reading.since(tx, cursor, LINES)
    found = pages.cut(block, PAGE)
    page = found, await reading.to_events(tx, found) if found.lines else ()
    # what a last one lacks may have come when the next one asks
    return page if found.is_last else pages.keep(cursor, page)
