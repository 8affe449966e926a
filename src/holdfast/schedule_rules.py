"""The rule of a schedule: at which times it has a tick. Pure: whoever asks brings the time.

A rule is five-field cron in a time zone, or *every* so many seconds, counted from 1970, so that a restart moves
nothing. All times are milliseconds since 1970.

*Nights on which a zone shifts its clocks.* A fixed time (no `*` and no `/` in minute and hour) has one tick on each: if
the clock skips it, the tick is at the first minute behind the gap, and if the clock shows it twice, at the first of
both. Any other rule follows the clock: it has a tick whenever the clock shows a minute that fits, so none for skipped
ones and two for those shown twice.

cronsim reads the five fields and says which days fit. The walk over the days is ours: it is the same from wherever it
begins, counts a year of minutes without visiting them, and is right where a zone shifts by half an hour or skips a
midnight. (cronsim's own goes in steps of an hour, which pass over what lies between, and begins days at midnights that
are not there.)
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import InvalidRule, did_you_mean, got, pip_install, shown
from holdfast.times import EPOCH

if TYPE_CHECKING:
    from cronsim import CronSim

FIELDS = ("minute", "hour", "day-of-month", "month", "day-of-week")
RANGES = ("0-59", "0-23", "1-31", "1-12 or JAN-DEC", "0-7 or SUN-SAT")
MOST_STEPS = (59, 23, 31, 12, 7)
"""The largest step that means something in each field."""
NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
CRON_LENGTH = 200
LONGEST_SECONDS = 36_525 * 86_400
SHOWN_TIMES = 5
MINUTE_MS = 60_000
DAY = timedelta(days=1)
OF_ONE_MACHINE = {"localtime", "Factory"}
"""Files among the time zones that say how a machine is set up."""
YEARS = 50
"""How far ahead a time is looked for: leap days on a given weekday are up to 40 years apart."""
SAMPLE_DAY = date(2000, 1, 1)
"""From which on a new rule must have a time; the calendar of those years comes again and again."""


@dataclass(frozen=True, slots=True)
class ScheduleRule:
    """When a schedule has its ticks: *cron* in a *timezone*, or *every* so many seconds since 1970."""

    cron: str | None = None
    timezone: str = "UTC"
    every: int | None = None
    """Whole seconds; None for a rule that is cron."""

    @property
    def json(self) -> str:
        """The rule as it is stored."""
        if self.every is not None:
            return json.dumps({"every_ms": self.every * 1000})
        return json.dumps({"cron": self.cron, "timezone": self.timezone})

    @property
    def words(self) -> str:
        """The rule in English."""
        if self.every is not None:
            return f"Every {_duration(self.every)}"
        return f"{_fields(self.cron or '').explain()} ({self.timezone})"

    def __str__(self) -> str:
        return f"every {self.every} s" if self.every is not None else f"{self.cron} {self.timezone}"


def make_rule(cron: object = None, every: object = None, timezone: object = None) -> ScheduleRule:
    """Check what a person gives, and make a rule of it; raise `InvalidRule`."""
    if (cron is None) == (every is None):
        raise InvalidRule("give cron= or every=, and only one of them: cron='0 3 * * *', or every=300 for seconds")
    if cron is None:
        if timezone is not None:
            raise InvalidRule("timezone= goes with cron=; every= counts seconds since 1970, the same in all time zones")
        return ScheduleRule(every=_check_every(every))
    rule = ScheduleRule(_check_cron(cron), _check_timezone("UTC" if timezone is None else timezone))
    if next_after(rule, _milliseconds(datetime.combine(SAMPLE_DAY, time(), UTC))) is None:
        raise InvalidRule(f"{rule.cron!r} never comes: no such day is in the calendar", _column(rule.cron or "", 2))
    return rule


@lru_cache(maxsize=4096)
def read_rule(text: str) -> ScheduleRule:
    """Read a stored rule; raise `InvalidRule`, or what unreadable rows raise."""
    stored: dict[str, Any] = json.loads(text)
    if "every_ms" in stored:
        return ScheduleRule(every=_check_every(stored["every_ms"] // 1000))
    return ScheduleRule(_check_cron(stored["cron"]), _check_timezone(stored["timezone"]))


def next_after(rule: ScheduleRule, after_ms: int) -> int | None:
    """Give the first time of *rule* after *after_ms*; None if there is none in 50 years."""
    if rule.every is not None:
        every_ms = rule.every * 1000
        return (after_ms // every_ms + 1) * every_ms
    walk = _walk(rule)
    days = walk.days_from(walk.day_of(after_ms) - DAY)  # the day before: a gap may carry its last times over
    found = (walk.first_after(day, after_ms) for day in days)
    return next((at for at in found if at is not None), None)


def next_times(rule: ScheduleRule, after_ms: int, most: int = SHOWN_TIMES) -> list[int]:
    """Give the next *most* times of *rule*, as people are shown them."""
    found: list[int] = []
    while len(found) < most and (at := next_after(rule, found[-1] if found else after_ms)) is not None:
        found.append(at)
    return found


class Due(NamedTuple):
    """The *last* times of a rule in a range, in their order, and how *many* there are in all."""

    last: list[int]
    many: int


def times_in(rule: ScheduleRule, from_ms: int, upto_ms: int, most: int) -> Due:
    """Give the last *most* times of *rule* that are at *from_ms* or later and before *upto_ms*, and count them all."""
    if rule.every is not None:
        every_ms = rule.every * 1000
        first, end = -(-from_ms // every_ms), -(-upto_ms // every_ms)
        return Due([at * every_ms for at in range(max(first, end - most), end)], max(0, end - first))
    walk, newest, many = _walk(rule), list[int](), 0
    day = walk.day_of(upto_ms)
    oldest_whole, newest_whole = walk.day_of(from_ms) + DAY, day - 2 * DAY  # a gap may carry times over to the next day
    while day >= oldest_whole - 2 * DAY:
        if walk.fits(day):
            if len(newest) >= most and oldest_whole <= day <= newest_whole:
                many += walk.count_of(day)
            else:
                inside = [at for at in walk.times_of(day) if from_ms <= at < upto_ms]
                many += len(inside)
                newest += reversed(inside)
        day -= DAY
    return Due(newest[:most][::-1], many)


def jitter_of(name: str, at_ms: int, jitter_ms: int) -> int:
    """Say by how much the job of the tick *at_ms* is delayed: by less than *jitter_ms*, the same for everybody."""
    if not jitter_ms:
        return 0
    return int.from_bytes(sha256(f"{name}\n{at_ms}".encode()).digest()[:8], "big") % jitter_ms


class _Walk:
    """The days and times of one cron text in one zone."""

    def __init__(self, cron: str, timezone: str) -> None:
        fields = _fields(cron)
        minute, hour, *_ = cron.split()
        self._fits = fields.match_day
        self._months = fields.months
        self._zone = zone_of(timezone)
        self._is_fixed = not set("*/") & {*minute, *hour}
        self._minutes, self._hours = fields.minutes, fields.hours
        self._offsets = [60_000 * (60 * h + m) for h in sorted(fields.hours) for m in sorted(fields.minutes)]

    def day_of(self, at_ms: int) -> date:
        """Say which day it is there."""
        return _instant(at_ms).astimezone(self._zone).date()

    def fits(self, day: date) -> bool:
        """Tell whether it may have times on *day*."""
        return day.month in self._months and self._fits(day)

    def days_from(self, day: date) -> Iterator[date]:
        """Give the days that fit, from *day* on."""
        last = day.year + YEARS
        while day.year <= last and day.year < 9999:
            if day.month not in self._months:
                day = (day.replace(day=1) + 32 * DAY).replace(day=1)
                continue
            if self._fits(day):
                yield day
            day += DAY

    def first_after(self, day: date, after_ms: int) -> int | None:
        """Give the first of its times on *day*, which fits, that is after *after_ms*."""
        begin = self._begin_of_plain(day)
        if begin is None:
            return next((at for at in _odd_times(self, day) if at > after_ms), None)
        place = bisect_right(self._offsets, after_ms - begin)
        return begin + self._offsets[place] if place < len(self._offsets) else None

    def count_of(self, day: date) -> int:
        """Count its times on *day*, which fits."""
        return len(self._offsets) if self._begin_of_plain(day) is not None else len(self.times_of(day))

    def times_of(self, day: date) -> list[int]:
        """Give its times on *day*, which fits, in their order."""
        begin = self._begin_of_plain(day)
        if begin is not None:
            return [begin + offset for offset in self._offsets]
        return _odd_times(self, day)

    def odd_times_of(self, day: date) -> list[int]:
        """Give its times on a *day* through which the clock does not go evenly."""
        return self._fixed_times(day) if self._is_fixed else self._times_by_the_clock(day)

    def _begin_of_plain(self, day: date) -> int | None:
        """Give the midnight at which *day* begins, if the clock goes through it evenly."""
        begin, end = self._at(day), self._at(day + DAY)
        return _milliseconds(begin) if begin.utcoffset() == end.utcoffset() and _is_real(begin) else None

    def _at(self, day: date) -> datetime:
        """Give its midnight."""
        return datetime.combine(day, time(), self._zone)

    def _fixed_times(self, day: date) -> list[int]:
        """Give one time for each that is written down, at the end of the gap for those that the clock skips."""
        midnight = datetime.combine(day, time())
        wanted = [(midnight + timedelta(milliseconds=each)).replace(tzinfo=self._zone) for each in self._offsets]
        times = sorted({_milliseconds(each if _is_real(each) else _end_of_gap(each)) for each in wanted})
        return [at for at in times if not self._is_of_next_day(day, at)]

    def _is_of_next_day(self, day: date, at: int) -> bool:
        """Tell whether a gap carries a time of *day* over to one that the next day has too, and counts."""
        then = self.day_of(at)
        return then != day and self.fits(then) and at in self.times_of(then)

    def _times_by_the_clock(self, day: date) -> list[int]:
        """Give each minute of *day* at which the clock shows what fits."""
        begin, end = self._at(day) - timedelta(hours=3), self._at(day + DAY) + timedelta(hours=3)
        minutes = range(_milliseconds(begin), _milliseconds(end), MINUTE_MS)
        shown_ = ((at, _instant(at).astimezone(self._zone)) for at in minutes)
        return [
            at
            for at, local in shown_
            if local.date() == day and local.hour in self._hours and local.minute in self._minutes
        ]


@lru_cache(maxsize=1024)  # it looks at every minute, for some milliseconds
def _odd_times(walk: _Walk, day: date) -> list[int]:
    return walk.odd_times_of(day)


@lru_cache(maxsize=1024)
def _walk_of(cron: str, timezone: str) -> _Walk:
    return _Walk(cron, timezone)


def _walk(rule: ScheduleRule) -> _Walk:
    return _walk_of(rule.cron or "", rule.timezone)


def _instant(at_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=at_ms)


def _milliseconds(at: datetime) -> int:
    return (at - EPOCH) // timedelta(milliseconds=1)


def _is_real(local: datetime) -> bool:
    """Tell whether the clock ever shows it: what it skips comes back as another time."""
    return local.astimezone(UTC).astimezone(local.tzinfo).replace(tzinfo=None) == local.replace(tzinfo=None)


def _end_of_gap(local: datetime) -> datetime:
    """Give the first minute that the clock shows after *local*, which it skips."""
    while not _is_real(local):
        local += timedelta(minutes=1)
    return local


def _fields(cron: str) -> CronSim:
    from cronsim import CronSim  # only a program with schedules needs it

    return CronSim(cron, datetime.combine(SAMPLE_DAY, time()))


def _check_cron(cron: object) -> str:
    """Take five fields, written with one space between them; say which is wrong, and what to write."""
    if not isinstance(cron, str):
        raise InvalidRule(f"cron must be a text of five fields, {got(cron)}; write cron='0 3 * * *'")
    fields = cron.split()
    if len(cron) > CRON_LENGTH:
        raise InvalidRule(f"cron has {len(cron):,} characters, and at most {CRON_LENGTH} are taken; use two schedules")
    if fields and fields[0].startswith("@"):
        raise InvalidRule(_about_nickname(fields[0]), _column(cron, 0))
    if len(fields) == len(FIELDS) + 1:
        five = " ".join(fields[1:])
        raise InvalidRule(
            f"cron has five fields, and no seconds: write cron={five!r}, or every=10 for every ten seconds",
            _column(cron, 0),
        )
    if len(fields) != len(FIELDS):
        raise InvalidRule(
            f"cron has {len(fields)} fields and needs five ({', '.join(FIELDS)}); write cron='0 3 * * *' for 03:00",
            _column(cron, min(len(fields), len(FIELDS))),
        )
    for place, field in enumerate(fields):
        _check_field(cron, place, field)
    text = " ".join(fields)
    if not _is_read(text):  # each field alone is right
        raise InvalidRule(f"{text!r} never comes: no such day is in the calendar", _column(cron, 2))
    return text


def _check_field(cron: str, place: int, field: str) -> None:
    alone = ["*"] * len(FIELDS)
    alone[place] = field
    if not _is_read(" ".join(alone)):
        raise InvalidRule(
            f"{shown(field)} is no {FIELDS[place]}; write {RANGES[place]}, *, */5, 1-5 or a list such as 1,3",
            _column(cron, place),
        )
    for step in map(int, re.findall(r"/(\d+)", field)):
        if step > MOST_STEPS[place]:
            meant = f"every={60 * step} for {step} minutes" if place == 0 else f"{RANGES[place]}, or every= in seconds"
            raise InvalidRule(
                f"the step of {shown(field)} is larger than any {FIELDS[place]}, so it would not mean every {step}; "
                f"write {meant}",
                _column(cron, place),
            )


def _is_read(cron: str) -> bool:
    from cronsim import CronSimError

    try:
        _fields(cron)
    except (CronSimError, ValueError, AssertionError):
        return False
    return True


def _about_nickname(word: str) -> str:
    if (meant := NICKNAMES.get(word.lower())) is not None:
        return f"cron takes five fields, and no {word}; write cron={meant!r}"
    if word.lower() == "@reboot":
        return "cron takes five fields, and no @reboot; start the job from your program as it begins: hf.start(…)"
    return f"cron takes five fields, and no {shown(word)}; write cron='0 3 * * *', or every=300 for seconds"


def _column(cron: str, place: int) -> int:
    """Say where the field *place* begins, from 1 on; behind the end, if there are fewer."""
    begins = [each.start() + 1 for each in re.finditer(r"\S+", cron)]
    return begins[place] if place < len(begins) else len(cron) + 1


def _check_every(every: object) -> int:
    seconds = every.total_seconds() if isinstance(every, timedelta) else every
    given = f"got a timedelta of {seconds:g} s" if isinstance(every, timedelta) else got(every)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds != seconds // 1:
        raise InvalidRule(f"every must be a whole number of seconds, {given}; write every=300 for five minutes")
    if not 1 <= seconds <= LONGEST_SECONDS:
        raise InvalidRule(f"every must be 1 second to 100 years, {given}; write every=300 for five minutes")
    return int(seconds)


def _check_timezone(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidRule(f"timezone must be the name of a time zone, {got(name)}; write timezone='Europe/Rome'")
    zone_of(name)
    return name


@lru_cache(maxsize=256)
def zone_of(name: str) -> tzinfo:
    """Find a time zone by its IANA name, or raise `InvalidRule`."""
    if name == "UTC":
        return UTC  # is there without a database of zones
    from zoneinfo import ZoneInfo

    known = _known_zones()
    if name in known:  # a file of another name may be there, but not on each machine
        try:
            return ZoneInfo(name)
        except (LookupError, ValueError, OSError):
            pass
    if not known:
        raise InvalidRule(
            f"the time zone {shown(name)} cannot be found, because this machine has no database of time zones; "
            f"{pip_install('tzdata')}, or use UTC"
        )
    near = did_you_mean(name, known, "'")
    raise InvalidRule(f"there is no time zone {shown(name)}{near or '; write a name such as Europe/Rome, or UTC'}")


@lru_cache(maxsize=1)  # it looks into each file, for some 10 milliseconds
def _known_zones() -> frozenset[str]:
    """Name the time zones that are the same on each machine."""
    from zoneinfo import available_timezones

    return frozenset(available_timezones() - OF_ONE_MACHINE)


UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


def _duration(seconds: int) -> str:
    """Write *seconds* in the largest unit that has a whole number of them."""
    size, unit = next((size, unit) for size, unit in UNITS if seconds % size == 0)
    count = seconds // size
    return unit if count == 1 else f"{count} {unit}s"
