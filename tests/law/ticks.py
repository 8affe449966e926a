"""The ticks of a schedule: when a rule has its times, and what one look of a worker may make of those that have come.

The times come from the clock of the zone, minute by minute: nothing here imports `holdfast.schedule_rules`. A *look* is
one commit in which a worker has started the due ticks of a schedule. The simulation judges each look as it is made, and
tests of real processes judge the rows that are left.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

LATE_MS = 60_000
"""A time that is found later than this is missed."""
MOST_MISSED = 1_000
"""So many of the missed times are started at most."""
MINUTE_MS = 60_000
LONGEST_WALK_MS = 2 * 86_400_000
"""How far a rule is followed minute by minute; a visit to another year is not."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


class Tick(NamedTuple):
    """One time of a schedule that has had its job."""

    at: int
    chain_id: str
    outcome: str


class ScheduleRow(NamedTuple):
    """What the law asks of the row of a schedule."""

    rule: str
    next_at: int | None
    paused_at: int | None
    until: int | None
    missed: str
    left_out: int
    trouble: str | None
    changed_at: int | None

    def is_paused(self, now: int) -> bool:
        """Tell whether it has no ticks just now."""
        return self.paused_at is not None and (self.until is None or self.until > now)


@dataclass(frozen=True, slots=True)
class Look:
    """One commit of a worker at *now*: the row of a schedule before and after it, and the ticks that it has written."""

    now: int
    before: ScheduleRow
    after: ScheduleRow
    ticks: tuple[Tick, ...]
    had: Collection[int]
    """The times that had their tick before."""
    clock_from: int | None = None
    """What the clock showed when it was put back since the last look; None if it was not."""


def wrong_look(look: Look) -> str | None:
    """Say what is wrong with a look; None if nothing is. I-83."""
    written = [each.at for each in look.ticks]
    if again := sorted(set(written) & set(look.had)):
        return f"the ticks {again} have their second job"
    if look.ticks and look.before.is_paused(look.now):
        return f"{written} were started while the schedule is paused"
    if early := [at for at in written if at > look.now]:
        return f"{early} were started before their time, at {look.now}"
    if strange := [at for at in written if not has_time(look.before.rule, at)]:
        return f"{strange} are no times of {look.before.rule}"
    if look.after.trouble is not None or look.before.next_at is None or look.before.paused_at is not None:
        return None
    if look.clock_from is not None:
        return _late_after_step(look, look.clock_from, written)
    return _wrong_choice(look, look.before.next_at, written)


def _late_after_step(look: Look, clock_from: int, written: list[int]) -> str | None:
    """See that a look leaves nothing of what has come since the clock was put back, if it starts anything at all."""
    on_time = set(times(look.before.rule, max(clock_from, look.now - LATE_MS), look.now + 1))
    if written and (left := on_time - {*written, *look.had}):
        return f"{sorted(left)} came after the clock was put back, and were not started"
    return None


def _wrong_choice(look: Look, first: int, written: list[int]) -> str | None:
    """See that the look has dealt with every time that has come: started, left out and counted, or had before."""
    if look.now - first > LONGEST_WALK_MS:
        return None
    due = list(times(look.before.rule, first, look.now + 1))
    missed = [at for at in due if at < look.now - LATE_MS]
    wanted = {*due[len(missed) :], *chosen(look.before.missed, missed)} - set(look.had)
    if wanted != set(written):
        return f"of {due} (missed={look.before.missed}) {sorted(wanted)} should have been started, and {written} were"
    counted = look.after.left_out - look.before.left_out
    fewest, most = len(set(missed) - {*look.had, *written}), len(set(missed) - {*written})
    if not fewest <= counted <= most:  # a late time that had its job early may be counted
        return f"{fewest} times were left out, and {counted} are counted"
    return None


def chosen(missed: str, late: list[int]) -> list[int]:
    """Give those of the *late* times that start a job."""
    return {"one": late[-1:], "skip": [], "all": late[-MOST_MISSED:]}[missed]


# the times of a rule


def has_time(rule: str, at: int) -> bool:
    """Tell whether *at* is a time of *rule*."""
    return next(times(rule, at, at + 1), None) == at


def times(rule: str, from_ms: int, upto_ms: int) -> Iterator[int]:
    """Give the times of *rule* from *from_ms* on, before *upto_ms*."""
    stored: dict[str, Any] = json.loads(rule)
    if "every_ms" in stored:
        every = stored["every_ms"]
        yield from range(-(-from_ms // every) * every, upto_ms, every)
        return
    clock = _Clock(stored["cron"], stored["timezone"])
    first = -(-from_ms // MINUTE_MS) * MINUTE_MS
    yield from (at for at in range(first, upto_ms, MINUTE_MS) if clock.strikes(at))


class _Clock:
    """The clock of a zone, looked at each minute, as cron of old does."""

    def __init__(self, cron: str, zone: str) -> None:
        minute, hour, *days = cron.split()
        self._zone = ZoneInfo(zone)
        self._is_fixed = not set("*/") & set(minute + hour)
        self._minutes, self._hours = _numbers(minute, 0), _numbers(hour, 1)
        self._days = [_numbers(field, place + 2) for place, field in enumerate(days)]
        self._takes_either_day = not (days[0].startswith("*") or days[2].startswith("*"))

    def strikes(self, at: int) -> bool:
        """Tell whether a tick is due at this minute."""
        shown = self._shown(at)
        if not self._is_fixed:
            return self._fits(shown)
        if self._fits(shown) and not shown.fold:
            return True
        return any(map(self._fits, self._skipped(at, shown)))

    def _skipped(self, at: int, shown: datetime) -> Iterator[datetime]:
        """Give the minutes that the clock has skipped to show what it does."""
        skipped = self._shown(at - MINUTE_MS).replace(tzinfo=None) + timedelta(minutes=1)
        while skipped < shown.replace(tzinfo=None):
            yield skipped
            skipped += timedelta(minutes=1)

    def _shown(self, at: int) -> datetime:
        return (EPOCH + timedelta(milliseconds=at)).astimezone(self._zone)

    def _fits(self, shown: datetime) -> bool:
        return shown.minute in self._minutes and shown.hour in self._hours and self._fits_day(shown.date())

    def _fits_day(self, day: date) -> bool:
        days, months, weekdays = self._days
        fits = day.day in days, day.isoweekday() % 7 in weekdays
        return day.month in months and (any(fits) if self._takes_either_day else all(fits))


def _numbers(field: str, place: int) -> set[int]:
    low, high = RANGES[place]
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        begin = low if first == "*" else int(first)
        end = high if first == "*" or (step and not last) else int(last or first)
        found |= set(range(begin, end + 1, int(step or 1)))
    return found
