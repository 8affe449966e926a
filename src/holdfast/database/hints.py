"""Hints: "something grew". They carry nothing, and may be lost, doubled or wrong; whoever is woken reads the tables.

A store has one source of hints in a process, for all who listen there. SQLite looks at its log file; PostgreSQL has a
connection that LISTENs, and there a NOTIFY is sent only if somebody sleeps, for it costs every writer:

*Falling asleep.* Who has nothing to do says so in the `worker` table, commits, and reads once more; whatever commits
after that has seen the mark and sends a hint, or had looked for it before. Of the latter kind are transactions that are
older than the mark, by their number; while one of them is open, the sleeper looks every two seconds. And statements
that were under way when the mark was made: whatever writes and hints by one statement sees the tables as they were when
it began, and has no number by then. Such a statement ends within seconds, so for these the sleeper looks again after
20 ms, and again whenever twice as long has passed, and then makes its mark once more, by which the numbers of all that
had not seen the first are judged. A sleeper that is hinted at more than a hundred times a second is no sleeper: it
takes the mark away and looks for itself, for a second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

OnHint: TypeAlias = Callable[[], None]
"""What is called for a hint, in any thread; it may not block."""


class Notify(Protocol):
    """What a source calls for a hint; *of_log* is one that concerns only those who follow the log."""

    def __call__(self, *, of_log: bool = False) -> None: ...


OFTEN_SECONDS = 2.0
SELDOM_SECONDS = 30.0
AWAKE_SECONDS = 1.0
GLANCE_SECONDS = 0.02
MOST_HINTS = 100  # in AWAKE_SECONDS
STATEMENT_SECONDS = 6.0  # what a statement of ours may take, and a little more


class Source(Protocol):
    """Where the hints of one store come from, while somebody listens."""

    @property
    def is_listening(self) -> bool:
        """Tell whether it has heard itself lately, so that what is sent will arrive."""

    def start(self) -> None:
        """Begin; somebody listens."""

    def stop(self) -> None:
        """End, and leave nothing behind; nobody listens any more."""


class Hints:
    """Those who listen for the hints of one store in this process."""

    def __init__(self, make_source: Callable[[Notify], Source]) -> None:
        self._source = make_source(self.notify)
        self._change = threading.RLock()
        self._listeners: tuple[HintListener, ...] = ()

    @property
    def is_listening(self) -> bool:
        return self._source.is_listening

    @property
    def is_wanted(self) -> bool:
        return bool(self._listeners)

    def watch(self, on_hint: OnHint, *, follows_log: bool = False) -> HintListener:
        """Have *on_hint* called for every hint until the listener is stopped; *follows_log*: also for the log alone."""
        listener = HintListener(self, on_hint, follows_log)
        with self._change:
            self._listeners = (*self._listeners, listener)
            if len(self._listeners) == 1:
                self._source.start()
        return listener

    def remove(self, listener: HintListener) -> None:
        """Call it no more; the last one to leave ends the source."""
        with self._change:
            was_wanted = self.is_wanted
            self._listeners = tuple(each for each in self._listeners if each is not listener)
            if was_wanted and not self.is_wanted:
                self._source.stop()

    def notify(self, *, of_log: bool = False) -> None:
        """Give a hint to all who listen, or to those who follow the log."""
        for listener in self._listeners:
            if listener.follows_log or not of_log:
                listener.on_hint()


@dataclass(frozen=True, slots=True, eq=False)
class HintListener:
    """One who listens."""

    _hints: Hints
    on_hint: OnHint
    follows_log: bool = False

    @property
    def is_listening(self) -> bool:
        """Tell whether hints arrive by a line that is known to work; then one may sleep long, if one says so."""
        return self._hints.is_listening

    def stop(self) -> None:
        """Listen no more."""
        self._hints.remove(self)


class Horizon(NamedTuple):
    """The oldest transaction that was under way at a read, and the next one that had not begun."""

    oldest: int
    newest: int


class SleepMark:
    """What one sleeper knows of its sleep: has it said so, and how long may it go without a look."""

    def __init__(self, listener: HintListener, monotonic: Callable[[], float], poll: float = OFTEN_SECONDS) -> None:
        self._listener = listener
        self._monotonic = monotonic
        self._poll = poll
        self._marked_at: int | None = None
        self._awake_until = 0.0
        self._counted_since = 0.0
        self._hints = 0
        self.is_marked = False
        self._slept_at = 0.0
        self._has_said_again = False
        self._is_sure = False

    def count_hint(self) -> None:
        """Count a hint; too many of them, and it is better to be awake."""
        now = self._monotonic()
        if now - self._counted_since > AWAKE_SECONDS:
            self._counted_since, self._hints = now, 0
        self._hints += 1
        if self.is_marked and self._hints > MOST_HINTS:
            self._awake_until = now + AWAKE_SECONDS

    @property
    def wants_to_sleep(self) -> bool:
        """Tell whether it should say that it sleeps, before the next look; it says so twice.

        The second time comes when every statement that had not seen the first mark has its number: then these numbers
        are below that of the second mark, and the transactions can be waited for.
        """
        has_said = self.is_marked and (self._is_falling_asleep or self._has_said_again)
        return self._listener.is_listening and not has_said and not self._is_awake

    @property
    def wants_to_wake(self) -> bool:
        """Tell whether it should take that back."""
        return self.is_marked and self._is_awake

    @property
    def is_listening(self) -> bool:
        """Tell whether hints arrive at all."""
        return self._listener.is_listening

    def has_marked(self) -> None:
        """Note that the mark is committed; the next look shows which transactions may not have seen it."""
        self._has_said_again = self.is_marked
        if not self.is_marked:
            self._slept_at = self._monotonic()
        self.is_marked, self._is_sure, self._marked_at = True, False, None

    def has_unmarked(self) -> None:
        """Note that the mark is gone."""
        self.is_marked = self._is_sure = self._has_said_again = False

    def has_looked(self, horizon: Horizon) -> None:
        """Note that the tables were read, and with what in progress."""
        if self._marked_at is None:
            self._marked_at = horizon.newest
        self._is_sure = self._has_said_again and horizon.oldest >= self._marked_at

    def seconds(self) -> float:
        """Say how long it may go without a look."""
        if not self._listener.is_listening:
            return self._poll
        if self._is_awake:
            return GLANCE_SECONDS
        if self._is_falling_asleep:
            return min(max(GLANCE_SECONDS, self._monotonic() - self._slept_at), self._poll)
        return SELDOM_SECONDS if self._is_sure else self._poll

    def stop(self) -> None:
        """Listen no more."""
        self._listener.stop()

    @property
    def _is_falling_asleep(self) -> bool:
        """Tell whether a statement may still be under way that began before the mark was made."""
        return self.is_marked and self._monotonic() - self._slept_at < STATEMENT_SECONDS

    @property
    def _is_awake(self) -> bool:
        return self._monotonic() < self._awake_until
