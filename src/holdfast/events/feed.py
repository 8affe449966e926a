"""Following the log: one reader in a process, however many follow, in loops or in threads.

The feed has a poller: at a hint, and at every poll, it reads what is new, once, and hands it to its followers. Each
has a buffer with a bound. A follower *joins*: it takes its place among those who are handed what is new, and then
reads by itself, behind its own cursor, until nothing more is there; of what it was handed meanwhile it leaves out what
it has seen. A follower that is too slow, so that its buffer is full, loses the buffer and reads by itself again. So
nothing is missed and nothing comes twice, and what a follower costs is bounded.

What the feed reads and hands on is read once for all, so it waits a little for followers that ask for it, have much
to take and are taking it: streams to clients. Else a burst would be too much for all buffers of a crowded process, and
everybody would read it alone: for 50 streams and 4,000 events that took five times as long. Who takes only some is not
waited for, and neither are listeners, so that a slow one delays nobody.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias
from weakref import WeakKeyDictionary

from holdfast.database.hints import Horizon
from holdfast.database.tx import Runner, Store
from holdfast.errors import CursorExpired, HoldfastError, Misuse
from holdfast.events.follower import BlockingStream, Notify, Stream
from holdfast.events.page_cache import Pages
from holdfast.events.poller import Poller
from holdfast.models import Event, EventFilter
from holdfast.runtime import Runtime
from holdfast.store.log import reading
from holdfast.store.log.reading import LoggedEvent
from holdfast.store.rows import Decode
from holdfast.unreadable import readable
from holdfast.wire.cursors import Cursor, read_cursor

BUFFER = 1_000  # events that a follower may be behind before it reads by itself
MOST_PAGES = 20  # in one look
PATIENCE_SECONDS = 0.2  # in which a follower with much to take must take so many, if the feed is to wait for it:
BRISK = 50

ALL = EventFilter()


class Feed:
    """The one reader of the log of a store in this process; its thread is made when first needed."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self.store = store
        self.runtime = runtime
        self._here = _FeedState(store, runtime)

    @property
    def here(self) -> _FeedState:
        """The feed of this process; after a fork a new one: the thread is the parent's, and so are the followers."""
        if self._here.process != os.getpid():
            self._here = _FeedState(self.store, self.runtime)
        return self._here

    def follow(
        self,
        after: str | None = None,
        wanted: EventFilter = ALL,
        decode: Decode | None = None,
        *,
        is_awaited: bool = False,
    ) -> Follower:
        """Follow the log behind the cursor *after*, or from when it is entered or first asked for an event.

        An event carries its job as the store reads it, with JSON texts for input and output, or what *decode* makes of
        these. *is_awaited*: while it briskly takes what it was handed, nobody is handed more. Raises `InvalidCursor` at
        once; `CursorExpired` comes when it is entered or asked.
        """
        cursor = None if after is None else read_cursor(after)
        return Follower(self, cursor, wanted, decode, is_awaited=is_awaited)

    def close(self) -> None:
        """End every follower, and let go of the thread; the next one who follows begins anew."""
        if self._here.process == os.getpid():
            self._here.close()


Entry: TypeAlias = LoggedEvent | Cursor
"""What a follower was handed: an event, or only how far the log was read without one for it."""


class Follower(Stream[Event]):
    """Who follows the log: an async iterator of events, or by `blocking()` a plain one."""

    def __init__(
        self,
        feed: Feed,
        after: Cursor | None,
        wanted: EventFilter,
        decode: Decode | None = None,
        *,
        is_awaited: bool = False,
    ) -> None:
        super().__init__(feed.store, feed.runtime)
        self._here = feed.here
        self._wanted = wanted
        self._decode = decode
        self._reached = after  # how far it has read by itself; what it is handed is new only behind that
        self._cursor = after  # behind the last event that was given
        self._must_read = after is not None
        self._own: deque[Entry] = deque()
        self._change = threading.Lock()  # for what the feed's thread hands over:
        self._handed: deque[Entry] = deque()
        self._has_overflowed = False
        self._is_awaited = is_awaited
        self._taken = 0
        self._awaited: tuple[float, int] | None = None  # since when, and what it had taken then
        self._has_joined = self._is_closed = False
        self._notify: Notify | None = None

    @property
    def cursor(self) -> str:
        """What resumes behind the last event that was given, and behind what came since and was not wanted."""
        if self._has_joined:
            self._next(gives=False)
        return _placed(self._cursor).text

    @property
    def is_behind(self) -> bool:
        """Tell whether it has to read by itself what the feed has handed to others."""
        return self._must_read or self._has_overflowed

    @property
    def has_joined(self) -> bool:
        """Tell whether it has its place in the log."""
        return self._has_joined

    @property
    def is_closed(self) -> bool:
        """Tell whether it gives no more events."""
        return self._is_closed

    def listen(self, notify: Notify | None) -> None:
        """Call *notify*, in any thread, whenever there may be an event to take."""
        self._notify = notify

    def blocking(self) -> BlockingFollower:
        """Give the same as a plain iterator, for blocking code."""
        return BlockingFollower(self)

    def close(self) -> None:
        """Follow no more; whoever waits for an event is told that there are no more."""
        self._is_closed = True
        self._here.leave(self)
        self._ring()

    async def join(self, runner: Runner) -> None:
        """Take its place in the log, by reads of its own."""
        if self._has_joined or self._is_closed:
            return
        self._refuse_elsewhere()
        try:
            await self._here.admit(self, runner)
            if self._reached is None:
                self._reached = self._cursor = await runner.read(reading.now)
            else:
                await self._read_on(runner)  # a cursor that leads nowhere is told at once
        except BaseException:
            self._here.leave(self)
            raise
        self._has_joined = True

    def at_hand(self) -> Event | None:
        """Give the next event, if that needs no read."""
        if not self._has_joined or self._is_closed:
            return None
        self._refuse_elsewhere()
        return self._give()

    async def take(self, runner: Runner) -> Event | None:
        """Give the next event, reading by itself where it must; None if there is none now, or no more at all."""
        await self.join(runner)
        self._refuse_elsewhere()
        while not self._is_closed:
            if (event := self._give()) is not None:
                return event
            if self.error is not None:
                raise self.error
            if not self.is_behind:
                return None
            await self._read_on(runner)
        return None

    def hand(self, page: Sequence[LoggedEvent], end: Cursor) -> None:
        """Take in what the feed has read, up to *end*; in its thread."""
        wanted = self._fitting(page)
        with self._change:
            if self._has_overflowed:
                return
            if len(self._handed) + len(wanted) > BUFFER:
                self._handed.clear()
                self._has_overflowed = True
            else:
                _append(self._handed, wanted, end)
        if wanted:
            self._ring()

    def needs_time(self, now: float) -> bool:
        """Tell whether it has much to take, and is taking it; in the feed's thread."""
        with self._change:
            if not self._is_awaited or len(self._handed) <= BUFFER // 2:
                self._awaited = None
                return False
            if self._awaited is None or self._taken - self._awaited[1] >= BRISK:
                self._awaited = now, self._taken
            return now - self._awaited[0] < PATIENCE_SECONDS

    def fail(self, error: HoldfastError) -> None:
        """Raise *error* to who follows here, behind what was handed over before."""
        self.error = error
        self._ring()

    def _fitting(self, page: Sequence[LoggedEvent]) -> list[LoggedEvent]:
        """Give those of *page* that are wanted; what cannot be read is not."""
        return [each for each, fits in readable(page, lambda each: (each, self._wanted.fits(each))) if fits]

    def _give(self) -> Event | None:
        while (entry := self._next(gives=True)) is not None:
            for event in readable([entry], self._read):
                return event
        return None

    def _read(self, entry: LoggedEvent) -> Event:
        return entry.event if self._decode is None else entry.read(self._decode)

    def _next(self, *, gives: bool) -> LoggedEvent | None:
        """Pass over all up to the next event that is new; give that one, if it *gives* any."""
        with self._change:
            while entries := self._own or (None if self.is_behind else self._handed):
                entry = entries[0] if entries is self._own else _joined(entries[0], _placed(self._reached))
                if not isinstance(entry, LoggedEvent):
                    self._cursor = entry
                    entries.popleft()
                    continue
                if not gives:
                    return None
                self._cursor = entry.cursor
                self._taken += 1
                entries.popleft()
                return entry
        return None

    async def _read_on(self, runner: Runner) -> None:
        """Read a page by itself; what is handed over from before that on counts again."""
        with self._change:
            if self._has_overflowed:
                self._reached, self._must_read, self._has_overflowed = self._cursor, True, False
        try:
            found, entries = await self._here.pages.read(runner, _placed(self._reached))
        except CursorExpired as error:
            self.error = error
            self._here.leave(self)
            raise
        with self._change:
            _append(self._own, self._fitting(entries), found.cursor)
            self._reached, self._must_read = found.cursor, not found.is_last

    def _refuse_elsewhere(self) -> None:
        if self._here.process != os.getpid():
            raise Misuse(
                "this follower belongs to the process that forked this one; call hf.events() again in this process"
            )

    def _ring(self) -> None:
        if (notify := self._notify) is not None:
            notify()


class BlockingFollower(BlockingStream[Event]):
    """Who follows the log in blocking code: an iterator that waits for the next event."""

    def __init__(self, follower: Follower) -> None:
        super().__init__(follower)
        self._follower = follower

    @property
    def cursor(self) -> str:
        """What resumes behind the last event that was given, and behind what came since and was not wanted."""
        return self._follower.cursor

    @property
    def is_behind(self) -> bool:
        """Tell whether it has to read by itself what the feed has handed to others."""
        return self._follower.is_behind


class _FeedState:
    """The feed of one process: its followers, how far it has read for them, and the thread that reads."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self.process = os.getpid()
        self._store = store
        self._change = threading.Lock()
        # weak: an iterator that is dropped without a close is followed by nobody
        self._followers: WeakKeyDictionary[Follower, None] = WeakKeyDictionary()
        self._cursor: Cursor | None = None
        self._monotonic = runtime.monotonic
        self.pages = Pages(runtime.monotonic)
        self.poller = Poller(store, runtime, self, "feed")

    async def admit(self, follower: Follower, runner: Runner) -> None:
        """Hand *follower* whatever is read from now on, and see to it that something is."""
        with self._change:
            if not self._followers:
                self._cursor = None  # what happened while nobody followed is nobody's
            self._followers[follower] = None
            has_place = self._cursor is not None
        if not has_place:
            cursor = await runner.read(reading.now)
            with self._change:
                self._cursor = self._cursor or cursor
        self.poller.wake()

    def leave(self, follower: Follower) -> None:
        """Hand it nothing more; in a forked child it was handed nothing, and whoever had the lock is not there."""
        if self.process != os.getpid():
            return
        with self._change:
            self._followers.pop(follower, None)
            if not self._followers:
                self.pages.drop()
        self.poller.release()

    def close(self) -> None:
        """End every follower, and the thread."""
        self.poller.close()
        for follower in self._all():
            follower.close()

    @property
    def is_wanted(self) -> bool:
        """Tell whether anybody follows."""
        return bool(self._followers)

    def look(self) -> Horizon | None:
        """Read what is new, and hand it on."""
        horizon: Horizon | None = None
        for _ in range(MOST_PAGES):
            cursor = self._cursor
            if cursor is None:
                return horizon
            if any(each.needs_time(self._monotonic()) for each in self._all()):
                break
            try:
                found = self.pages.find(self._store, cursor)
            except CursorExpired as error:  # it failed over, or was restored: everybody begins anew
                self.break_off(error)
                return horizon
            entries = self._store.read_sync(reading.to_events, found) if found.lines else []
            self._hand(cursor, found.cursor, entries)
            horizon = found.horizon
            if found.is_last:
                return horizon
        self.poller.wake()
        return horizon

    def break_off(self, error: HoldfastError) -> None:
        """Tell all who follow that the log cannot be read on; who comes from now on begins anew."""
        with self._change:
            followers = list(self._followers)
            self._followers.clear()
            self._cursor = None
        for follower in followers:
            follower.fail(error)

    def _hand(self, before: Cursor, after: Cursor, entries: Sequence[LoggedEvent]) -> None:
        with self._change:
            if self._cursor is before:  # else all have left meanwhile, and others have come
                self._cursor = after
                for follower in list(self._followers):
                    follower.hand(entries, after)

    def _all(self) -> list[Follower]:
        with self._change:
            return list(self._followers)


def _placed(cursor: Cursor | None) -> Cursor:
    if cursor is None:
        raise Misuse("this follower has no cursor yet; enter its block, or read an event first")
    return cursor


def _joined(entry: Entry, reached: Cursor) -> Entry:
    """Give what was handed over as it looks to who had *reached* so far by itself: of what was seen, only the place."""
    if not isinstance(entry, LoggedEvent):
        return entry.joined(reached)
    cursor = entry.cursor.joined(reached)
    if reached.has_seen(entry.position):
        return cursor
    return entry if cursor is entry.cursor else entry.placed(cursor)


def _append(entries: deque[Entry], page: Sequence[LoggedEvent], end: Cursor) -> None:
    """Append *page*, and a word on how far that is; one such word is enough."""
    if entries and not isinstance(entries[-1], LoggedEvent):
        entries.pop()
    entries.extend(page)
    if not (page and page[-1].cursor == end):
        entries.append(end)
