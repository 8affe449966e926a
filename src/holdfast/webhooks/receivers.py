"""How many posts a receiver gets at once, so that those that do not answer keep no other waiting.

A post may wait 15 seconds for a stranger's server, and all that time it takes one of the slots that a worker has for
deliveries. So each receiver (host, port and path) has only some *turns*, and so has each host, for addresses may differ
by job. A delivery that finds no turn waits for a moment: where answers come, one comes free soon. If none does, the
receiver is in *trouble*, and from then on its deliveries do not wait here, and are not even claimed: the claim *puts
them off*.

*Crowded* is a receiver that answers too slowly for what there is for it. It keeps its turns, and is rid of its trouble
when half of them are free. *Silent* is one that gave no answer at all in more than a moment, while nobody else had one
from it. It has one turn, the probe, until it answers; the pause between probes grows with its silence, up to a minute.
A host is silent when two of its receivers are, one after the other: else one of them would silence the rest.

There may be more silent receivers than slots. So a receiver begins with one turn, until its first answer, and two lines
are for many at once: all *newcomers*, hosts that have not answered yet, share a half of the slots, and all probes of
silent ones share a quarter. The rest is always there for hosts that answer.

What is put off comes back after at most as long as the trouble has lasted, and never after more than five minutes. So a
short trouble is soon made up for, and a long one costs little, however many wait: 10,000 are 33 rows a second.

All of this is what one worker has seen. It is not stored: another worker learns it by itself, by one post to each
receiver.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter, itemgetter
from random import Random

from holdfast.webhooks.answers import NotPosted

HOST_TURNS, RECEIVER_TURNS = 16, 8
FIRST_HOST_TURNS, FIRST_RECEIVER_TURNS = 2, 1
"""Those before the first answer: by two receivers without one a host is known to be silent."""
NEWCOMER_TURNS, PROBE_TURNS = 64, 32
"""Those that all newcomers share, and all silent ones: together three quarters of the slots that there are at least."""
NEWCOMERS, PROBES = "newcomers/", "probes/"
"""The keys of these two lines; no receiver is called so, for it has a port."""
MOMENT_SECONDS = 1.0
LONGEST_SECONDS = 300.0
PROBE_SECONDS = 60.0
MOST_TROUBLES, MOST_COUNTED, MOST_ANSWERED = 1_000, 1_000, 5_000


class NoTurn(Exception):
    """A receiver has no turn left, for the next *seconds*; *is_silent*: because it does not answer."""

    def __init__(self, seconds: float, is_silent: bool) -> None:
        super().__init__(seconds, is_silent)
        self.seconds = seconds
        self.is_silent = is_silent


@dataclass(frozen=True, slots=True)
class ReceiverTrouble:
    """A receiver, or a host, in trouble: how many turns it has now, and what becomes of deliveries beyond these.

    They are put off by *delay_ms*, and by up to *spread_ms* more; but not those older than *give_up_ms*, if there is
    such an age, which are claimed and fail. The trouble of all newcomers is for none of the hosts in *answered*.
    """

    key: str
    turns: int
    delay_ms: int
    spread_ms: int
    give_up_ms: int | None = None
    answered: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverHealth:
    """A webhook receiver, or a host, that a worker posts less to; *receiver* has the host and port, not the path."""

    receiver: str
    since: datetime | None
    is_silent: bool
    """Whether it gives no answer at all; then it gets one post at a time."""
    under_way: int
    put_off: int
    """How many deliveries this worker has put off since then, 1,000 at most."""


@dataclass(slots=True)
class _Line:
    """What is known of a receiver, of a host, or of many: the turns taken, and its trouble if it has one."""

    key: str
    most: int
    users: int = 0
    """How many are posting, or wait for a turn."""
    under_way: int = 0
    answered_at: float | None = None
    trouble_since: float | None = None
    is_silent: bool = False
    probe_at: float = 0.0
    unanswered: str | None = None
    """The receiver of this host that gave no answer last, if none was given since."""
    seen_at: float = 0.0
    put_off: set[int] = field(default_factory=set)

    def turns(self, now: float) -> int:
        """Say how many more posts may begin."""
        if self.is_silent:
            return int(self.under_way == 0 and now >= self.probe_at)
        return max(0, self.most - self.under_way)

    def is_first_of_host(self, receiver: str) -> bool:
        """Tell whether this is a host of which no receiver but *receiver* has lately given no answer."""
        return self.key != receiver and self.unanswered in (None, receiver)

    def note_trouble(self, since: float, now: float) -> float:
        """Take note of trouble that began at *since*, or earlier if it is in trouble already; say when it began."""
        self.trouble_since = since if self.trouble_since is None else min(self.trouble_since, since)
        self.seen_at = now
        return self.trouble_since

    def note_recovery(self) -> None:
        """Take note that it is well."""
        self.trouble_since, self.is_silent = None, False
        self.put_off.clear()

    def delays(self, now: float) -> tuple[float, float]:
        """Say by how many seconds a delivery is put off, and by how many more at most."""
        if self.trouble_since is None:
            return 0.0, MOMENT_SECONDS
        spread = min(LONGEST_SECONDS, max(MOMENT_SECONDS, now - self.trouble_since))
        return (max(0.0, self.probe_at - now) if self.is_silent else 0.0), spread


class _Latest(dict[str, None]):
    """The keys that were added last; only so many are kept."""

    def add(self, key: str) -> None:
        self.pop(key, None)
        self[key] = None
        if len(self) > MOST_ANSWERED:
            del self[next(iter(self))]


class Receivers:
    """The turns of all receivers that one worker posts to, and which of them are in trouble.

    After *give_up_seconds* a delivery to a silent receiver is not put off any more. *on_change* is called with one that
    has fallen silent, and None, or with one that answers again, and after how many seconds. Touched in the worker's
    loop only.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        chance: Random,
        give_up_seconds: float,
        on_change: Callable[[str, float | None], None] = lambda *_: None,
    ) -> None:
        self._monotonic = monotonic
        self._chance = chance
        self.give_up_ms = round(give_up_seconds * 1000)
        self._on_change = on_change
        self._lines: dict[str, _Line] = {}
        self._newcomers = _Line(NEWCOMERS, NEWCOMER_TURNS)
        self._probes = _Line(PROBES, PROBE_TURNS)
        self._answered = _Latest(), _Latest()
        """The hosts, and the receivers, that have answered and not been silent since."""
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def turn(self, receiver: str) -> AsyncIterator[None]:
        """Have a turn at *receiver* for one post, which raises `NotPosted` if it gets no answer; or raise `NoTurn`."""
        lines = self._join(receiver)
        try:
            await self._wait(lines)
            async with self._taken(lines, receiver):
                yield
        finally:
            self._leave(lines)

    def troubles(self) -> list[ReceiverTrouble]:
        """Name the receivers and hosts in trouble, with the turns that they have now."""
        now = self._monotonic()
        self._forget_old(now)
        lines = [*self._lines.values(), self._newcomers, self._probes]
        return [self._trouble(each, now) for each in lines if each.trouble_since is not None]

    def note_put_off(self, deliveries: Iterable[tuple[int, str]]) -> None:
        """Count deliveries (seq, receiver) that were put off."""
        now = self._monotonic()
        for seq, receiver in deliveries:
            for key in keys_of(receiver):
                if (line := self._lines.get(key)) is not None and line.trouble_since is not None:
                    line.seen_at = now
                    if len(line.put_off) < MOST_COUNTED:
                        line.put_off.add(seq)

    def health(self, wall_time: Callable[[float], datetime | None]) -> tuple[ReceiverHealth, ...]:
        """Tell of those in trouble, the longest first; in any thread. *wall_time* converts a monotonic instant."""
        found = [(each.trouble_since, each) for each in list(self._lines.values()) if each.trouble_since is not None]
        return tuple(
            ReceiverHealth(
                receiver=_shown(each.key),
                since=wall_time(since),
                is_silent=each.is_silent,
                under_way=each.under_way,
                put_off=len(each.put_off),
            )
            for since, each in sorted(found, key=itemgetter(0))
        )

    def _join(self, receiver: str) -> list[_Line]:
        lines = []
        for key, answered in zip(keys_of(receiver), self._answered, strict=True):
            line = self._lines.setdefault(key, _Line(key, _most(key, has_answered=key in answered)))
            line.users += 1
            line.seen_at = self._monotonic()
            lines.append(line)
        return lines

    def _leave(self, lines: Sequence[_Line]) -> None:
        for each in lines:
            each.users -= 1
            if each.users == 0 and each.trouble_since is None and each.unanswered is None:
                del self._lines[each.key]

    async def _wait(self, lines: Sequence[_Line]) -> None:
        """Return when each of *lines* has a turn, or raise `NoTurn`."""
        try:
            async with asyncio.timeout(MOMENT_SECONDS):
                while full := self._full(lines):
                    if any(each.trouble_since is not None for each in full):
                        raise self._no_turn(lines)
                    await self._freed.wait()
        except TimeoutError:
            now = self._monotonic()
            for each in self._full(lines):
                each.note_trouble(now, now)
            raise self._no_turn(lines) from None

    def _with_shared(self, lines: Sequence[_Line]) -> list[_Line]:
        """Add to the *lines* of a receiver the one that it shares with others of its kind, if there is one."""
        if any(each.is_silent for each in lines):
            return [*lines, self._probes]
        return [*lines] if lines[0].key in self._answered[0] else [*lines, self._newcomers]

    def _full(self, lines: Sequence[_Line]) -> list[_Line]:
        """Give those without a turn, of *lines* and the one that they share with others."""
        now = self._monotonic()
        return [each for each in self._with_shared(lines) if not each.turns(now)]

    def _no_turn(self, lines: Sequence[_Line]) -> NoTurn:
        now = self._monotonic()
        delay, spread = max((each.delays(now) for each in self._full(lines)), default=(0.0, MOMENT_SECONDS))
        return NoTurn(delay + spread * self._chance.random(), any(each.is_silent for each in lines))

    @asynccontextmanager
    async def _taken(self, lines: Sequence[_Line], receiver: str) -> AsyncIterator[None]:
        """Take a turn of each of *lines*, and learn from what the post comes to."""
        began = self._monotonic()
        taken = self._with_shared(lines)
        for each in taken:
            each.under_way += 1
        try:
            yield
        except NotPosted:
            self._note_silence(lines, receiver, began)
            raise
        else:
            self._note_answer(lines)
        finally:
            for each in taken:
                each.under_way -= 1
                if not each.is_silent and each.trouble_since is not None and each.under_way <= each.most // 2:
                    each.note_recovery()
            self._freed.set()
            self._freed = asyncio.Event()

    def _note_answer(self, lines: Sequence[_Line]) -> None:
        for each, answered in zip(lines, self._answered, strict=True):
            each.answered_at = self._monotonic()
            each.unanswered = None
            each.most = _most(each.key, has_answered=True)
            answered.add(each.key)
            if each.is_silent and each.trouble_since is not None:
                self._on_change(_shown(each.key), self._monotonic() - each.trouble_since)
                each.note_recovery()

    def _note_silence(self, lines: Sequence[_Line], receiver: str, began: float) -> None:
        now = self._monotonic()
        for each, answered in zip(lines, self._answered, strict=True):
            was_short = now - began < MOMENT_SECONDS and not each.is_silent
            if was_short or (each.answered_at is not None and each.answered_at >= began):
                continue
            is_alone = each.is_first_of_host(receiver)
            each.unanswered = receiver
            if is_alone and not each.is_silent:
                continue
            if not each.is_silent:
                self._on_change(_shown(each.key), None)
            silent_since = each.note_trouble(began, now)
            each.is_silent = True
            answered.pop(each.key, None)
            each.probe_at = now + min(PROBE_SECONDS, now - silent_since)

    def _trouble(self, line: _Line, now: float) -> ReceiverTrouble:
        delay, spread = line.delays(now)
        give_up_ms = self.give_up_ms if line.is_silent else None
        answered = frozenset(self._answered[0]) if line is self._newcomers else frozenset[str]()
        return ReceiverTrouble(
            line.key, line.turns(now), round(delay * 1000), round(spread * 1000), give_up_ms, answered
        )

    def _forget_old(self, now: float) -> None:
        """Forget receivers for which nothing has come in longer than anything is put off, and some of too many."""
        idle = [each for each in self._lines.values() if not each.users]
        gone = [each for each in idle if now - each.seen_at > 2 * LONGEST_SECONDS]
        if not gone and (too_many := len(self._lines) - MOST_TROUBLES) > 0:
            gone = sorted(idle, key=attrgetter("seen_at"))[:too_many]
        for each in gone:
            del self._lines[each.key]


def keys_of(receiver: str) -> tuple[str, str]:
    """Give the two names under which turns are counted: that of the host, and that of the receiver itself."""
    return receiver.partition("/")[0], receiver


def troubles_of(receiver: str, troubles: Mapping[str, ReceiverTrouble]) -> list[ReceiverTrouble]:
    """Choose of *troubles*, which go by their keys, those that are about *receiver*."""
    found = [troubles[key] for key in keys_of(receiver) if key in troubles]
    shared = troubles.get(PROBES if any(each.give_up_ms is not None for each in found) else NEWCOMERS)
    if shared is not None and keys_of(receiver)[0] not in shared.answered:
        found.append(shared)
    return found


def _most(key: str, *, has_answered: bool) -> int:
    """Say how many turns a host, or a receiver, has."""
    if "/" in key:
        return RECEIVER_TURNS if has_answered else FIRST_RECEIVER_TURNS
    return HOST_TURNS if has_answered else FIRST_HOST_TURNS


def _shown(key: str) -> str:
    """Write a key for people, without a path, which may hold what only the receiver may know."""
    host, slash, _ = key.partition("/")
    return f"{host}/…" if slash else host
