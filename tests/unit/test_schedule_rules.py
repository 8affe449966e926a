"""Rules of schedules: what is refused, and which times they have, on the nights too on which clocks are shifted."""

from __future__ import annotations

import json
import sys
import zoneinfo
from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidRule
from holdfast.schedule_rules import (
    ScheduleRule,
    _known_zones,
    jitter_of,
    make_rule,
    next_after,
    next_times,
    read_rule,
    times_in,
    zone_of,
)
from holdfast.times import EPOCH

NIGHTS = {
    "Europe/Rome": ((2026, 3, 29), (2026, 10, 25)),
    "America/New_York": ((2026, 3, 8), (2026, 11, 1)),
    "Australia/Lord_Howe": ((2026, 10, 4), (2026, 4, 5)),
    "America/Havana": ((2026, 3, 8), (2026, 11, 1)),
    "Asia/Kathmandu": ((2026, 3, 29), (2026, 10, 25)),
}
"""Zones with the days of 2026 on which each goes forward and back: by an hour, by half of one, at midnight, never."""


def milliseconds(*at: int, zone: str = "UTC", fold: int = 0) -> int:
    return round(datetime(*at, tzinfo=ZoneInfo(zone), fold=fold).timestamp() * 1000)  # type: ignore[arg-type, misc]


def texts(times: list[int], zone: str) -> list[str]:
    return [(EPOCH + timedelta(milliseconds=at)).astimezone(ZoneInfo(zone)).strftime("%d %H:%M%z") for at in times]


def times_on(rule: ScheduleRule, year: int, month: int, day: int) -> list[str]:
    """Give the times of one local day."""
    first = milliseconds(year, month, day, zone=rule.timezone)
    after = datetime(year, month, day, tzinfo=UTC) + timedelta(days=1)
    end = milliseconds(after.year, after.month, after.day, zone=rule.timezone)
    return [each[3:] for each in texts(times_in(rule, first, end, 2_000).last, rule.timezone)]


def field(low: int, high: int) -> st.SearchStrategy[str]:
    numbers = st.integers(low, high)
    ranges = st.tuples(numbers, numbers).map(lambda pair: f"{min(pair)}-{max(pair)}")
    steps = st.integers(1, high).map(lambda step: f"*/{step}")
    lists = st.lists(numbers, min_size=1, max_size=4, unique=True).map(lambda many: ",".join(map(str, many)))
    return st.one_of(st.just("*"), numbers.map(str), ranges, steps, lists)


crons = st.tuples(field(0, 59), field(0, 23), st.sampled_from(["*", "*/2", "1-15"]), st.just("*"), field(0, 7)).map(
    " ".join
)
nights = st.sampled_from([(zone, day) for zone, days in NIGHTS.items() for day in days])


def walked(rule: ScheduleRule, begin: datetime, end: datetime) -> list[int]:
    """Give the times of cronsim's own walk from *begin* on, before *end*."""
    zone = ZoneInfo(rule.timezone)
    own: Iterator[datetime] = CronSim(rule.cron or "", begin.astimezone(zone))
    found = takewhile(lambda at: at < end, (at.astimezone(UTC) for at in own))
    return [round(at.timestamp() * 1000) for at in found]


def shown_by_the_clock(rule: ScheduleRule, begin: datetime, end: datetime) -> list[int]:
    """Give each minute at which the clock of the zone shows what fits, looked up minute by minute."""
    zone, fields, found = ZoneInfo(rule.timezone), CronSim(rule.cron or "", datetime(2026, 1, 1, tzinfo=UTC)), []
    at = begin.replace(second=0) + timedelta(minutes=1)
    while at < end:
        local = at.astimezone(zone)
        if local.hour in fields.hours and local.minute in fields.minutes and fields.match_day(local.date()):
            found.append(round(at.timestamp() * 1000))
        at += timedelta(minutes=1)
    return found


@settings(max_examples=200, deadline=None)
@given(crons, nights, st.integers(0, 72 * 60 - 1))
@example("30 2 * * *", ("Europe/Rome", (2026, 3, 29)), 25 * 60)
@example("0,30 2,3 * * *", ("America/New_York", (2026, 3, 8)), 0)
@example("*/20 2 * * *", ("Europe/Rome", (2026, 10, 25)), 26 * 60)
@example("0 0 * * *", ("America/Havana", (2026, 3, 8)), 0)
@example("* */2 * * 0", ("America/Havana", (2026, 3, 8)), 0)
@example("15 2 * * *", ("Australia/Lord_Howe", (2026, 10, 4)), 0)
@example("*/15 3 * * *", ("Australia/Lord_Howe", (2026, 10, 4)), 15 * 60)
def test_the_times_are_those_of_cronsims_own_walk(
    cron: str, night: tuple[str, tuple[int, int, int]], minute: int
) -> None:
    zone, day = night
    rule = make_rule(cron, timezone=zone)
    begin = datetime(*day, tzinfo=UTC) - timedelta(days=1, seconds=1)
    end = begin + timedelta(days=3)
    # there cronsim's own walk is wrong: the next two tests
    looked_up = zone in ("Australia/Lord_Howe", "America/Havana") and "*" in " ".join(cron.split()[:2])
    wanted = shown_by_the_clock(rule, begin, end) if looked_up else walked(rule, begin, end)
    after = milliseconds_of(begin) + minute * 60_000

    found = times_in(rule, milliseconds_of(begin), milliseconds_of(end), 10_000)

    assert found.last == wanted
    assert found.many == len(wanted)
    if (place := bisect_right(wanted, after)) < len(wanted):
        assert next_after(rule, after) == wanted[place]


def milliseconds_of(at: datetime) -> int:
    return (at - EPOCH) // timedelta(milliseconds=1)


def test_a_shift_by_half_an_hour_hides_nothing_that_the_clock_shows() -> None:
    """One of two differences: cronsim goes on by whole hours, from 01:00 to 02:30 and 03:30 on this night."""
    rule = make_rule("*/15 3 * * *", timezone="Australia/Lord_Howe")
    begin = datetime(2026, 10, 3, 12, tzinfo=UTC)

    theirs = texts(walked(rule, begin, begin + timedelta(days=1)), rule.timezone)

    assert theirs == ["04 03:30+1100", "04 03:45+1100"]
    assert times_on(rule, 2026, 10, 4) == ["03:00+1100", "03:15+1100", "03:30+1100", "03:45+1100"]


def test_a_rule_that_follows_the_clock_has_no_time_in_a_midnight_that_is_skipped() -> None:
    """The other difference: cronsim has 01:00 for 00:00 here, though 01:00 is in no even hour."""
    rule = make_rule("*/30 */2 * * 0", timezone="America/Havana")
    begin = datetime(2026, 3, 8, tzinfo=UTC)

    assert texts(walked(rule, begin, begin + timedelta(hours=7)), rule.timezone)[0] == "08 01:00-0400"
    assert times_on(rule, 2026, 3, 8)[:2] == ["02:00-0400", "02:30-0400"]


@pytest.mark.parametrize(
    ("cron", "day", "expected"),
    [
        ("30 2 * * *", (2026, 3, 29), ["03:00+0200"]),
        ("0,30 2,3 * * *", (2026, 3, 29), ["03:00+0200", "03:30+0200"]),
        ("30 2 * * *", (2026, 10, 25), ["02:30+0200"]),
        ("30 * * * *", (2026, 3, 29), [f"{hour:02}:30" for hour in range(24) if hour != 2]),
        ("0 0/2 * * *", (2026, 3, 29), [f"{hour:02}:00" for hour in range(0, 24, 2) if hour != 2]),
        ("*/30 2 * * *", (2026, 10, 25), ["02:00+0200", "02:30+0200", "02:00+0100", "02:30+0100"]),
        ("0 1-3/2 * * *", (2026, 10, 25), ["01:00+0200", "03:00+0100"]),
    ],
)
def test_fixed_times_come_once_and_others_follow_the_clock(
    cron: str, day: tuple[int, int, int], expected: list[str]
) -> None:
    found = times_on(make_rule(cron, timezone="Europe/Rome"), *day)

    assert [each[: len(expected[0])] for each in found] == expected


def test_a_midnight_that_the_clock_skips_is_one_oclock() -> None:
    assert times_on(make_rule("0 0 * * *", timezone="America/Havana"), 2026, 3, 8) == ["01:00-0400"]


def test_the_next_time_is_later_in_the_hour_that_comes_twice() -> None:
    rule = make_rule("30 2 * * *", timezone="Europe/Rome")
    second = milliseconds(2026, 10, 25, 2, 15, zone="Europe/Rome", fold=1)

    assert texts([next_after(rule, second) or 0], "Europe/Rome") == ["26 02:30+0100"]


@given(st.integers(1, 10**6), st.integers(0, 10**13), st.integers(0, 10**10), st.integers(0, 5))
def test_every_is_counted_from_1970(every: int, begin: int, length: int, most: int) -> None:
    rule = make_rule(every=every)
    period = every * 1000

    due = times_in(rule, begin, begin + length, most)

    assert due.many == (begin + length - 1) // period - (begin - 1) // period
    assert all(at % period == 0 and begin <= at < begin + length for at in due.last)
    assert len(due.last) == min(most, due.many)
    assert due.last == sorted(due.last)
    assert not due.last or begin + length - due.last[-1] <= period
    assert next_after(rule, begin) == (begin // period + 1) * period


def test_what_is_before_the_last_ones_is_counted_and_not_visited() -> None:
    rule = make_rule("*/5 * * * *", timezone="Europe/Rome")
    begin, end = milliseconds(2026, 1, 1), milliseconds(2031, 1, 1)

    due = times_in(rule, begin, end, 3)

    assert texts(due.last, "UTC") == ["31 23:45+0000", "31 23:50+0000", "31 23:55+0000"]
    assert due.many == (end - begin) // 300_000
    assert times_in(rule, begin, end, 0) == ([], due.many)


@pytest.mark.parametrize(
    ("cron", "zone", "begin", "end", "many"),
    [
        ("0 0,23 * * *", "America/Nuuk", (2026, 3, 28, 12), (2026, 3, 29, 12), 1),
        ("0 0 * * *", "Pacific/Apia", (2011, 12, 29, 12), (2011, 12, 31, 12), 1),
    ],
)
def test_a_time_that_a_gap_carries_over_to_another_one_counts_once(
    cron: str, zone: str, begin: tuple[int, ...], end: tuple[int, ...], many: int
) -> None:
    rule = make_rule(cron, timezone=zone)
    from_ms, upto_ms = milliseconds(*begin, zone=zone), milliseconds(*end, zone=zone)

    due = times_in(rule, from_ms, upto_ms, 9)

    assert (len(due.last), due.many) == (many, many)
    assert times_in(rule, from_ms, upto_ms, 0).many == many
    assert next_after(rule, from_ms) == due.last[0]


def test_a_range_takes_its_begin_and_leaves_its_end() -> None:
    rule = make_rule("0 3 * * *")
    first, second = milliseconds(2026, 5, 1, 3), milliseconds(2026, 5, 2, 3)

    assert times_in(rule, first, second, 9) == ([first], 1)
    assert times_in(rule, first + 1, second + 1, 9) == ([second], 1)
    assert next_after(rule, first) == second
    assert next_after(rule, first - 1) == first


def test_the_next_five_times_and_the_words_are_what_people_are_shown() -> None:
    rule = make_rule("0 8 * * 1-5", timezone="Asia/Tokyo")

    assert texts(next_times(rule, milliseconds(2026, 11, 19)), "Asia/Tokyo") == [
        f"{day} 08:00+0900" for day in (20, 23, 24, 25, 26)
    ]
    assert rule.words == "At 08:00 on Monday through Friday (Asia/Tokyo)"
    assert make_rule(every=300).words == "Every 5 minutes"
    assert make_rule(every=86_400).words == "Every day"
    assert make_rule(every=timedelta(seconds=90)).words == "Every 90 seconds"


@pytest.mark.parametrize("rule", [make_rule("0 8 * * MON", timezone="Asia/Tokyo"), make_rule(every=7)])
def test_a_rule_is_read_back_as_it_was_stored(rule: ScheduleRule) -> None:
    assert read_rule(rule.json) == rule
    assert set(json.loads(rule.json)) in ({"cron", "timezone"}, {"every_ms"})


@pytest.mark.parametrize(
    ("cron", "column", "words"),
    [
        ("* * * * * *", 1, "no seconds: write cron='* * * * *', or every=10"),
        ("@daily", 1, "write cron='0 0 * * *'"),
        ("@reboot", 1, "hf.start(…)"),
        ("@whenever", 1, "every=300"),
        ("61 * * * *", 1, "'61' is no minute; write 0-59"),
        ("0  25 * * *", 4, "'25' is no hour; write 0-23"),
        ("0 0 32 * *", 5, "is no day-of-month"),
        ("0 0 1 FEBRUARY *", 7, "is no month; write 1-12 or JAN-DEC"),
        ("0 0 * * 1,,2", 9, "is no day-of-week"),
        (f"{'9' * 100} 0 * * *", 1, "is no minute"),
        ("0 3 * *", 8, "has 4 fields and needs five"),
        ("", 1, "has 0 fields and needs five"),
        ("*/90 * * * *", 1, "would not mean every 90; write every=5400 for 90 minutes"),
        ("0 0-23/24 * * *", 3, "the step of '0-23/24' is larger than any hour"),
        ("0 0 31 2 *", 5, "never comes"),
        ("0 0 30 2 *", 5, "never comes"),
    ],
)
def test_a_wrong_cron_text_is_refused_with_its_column_and_what_to_write(cron: str, column: int, words: str) -> None:
    with pytest.raises(InvalidRule) as refused:
        make_rule(cron)

    assert refused.value.column == column
    assert words in str(refused.value)
    assert f"column {column}: " in str(refused.value)
    assert refused.value.code == "invalid_rule"


def test_a_leap_day_comes() -> None:
    assert texts(next_times(make_rule("0 0 29 2 *"), milliseconds(2026, 1, 1), 1), "UTC") == ["29 00:00+0000"]
    assert next_after(make_rule("0 0 29 2 */7"), milliseconds(2033, 1, 1)) == milliseconds(2060, 2, 29)


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        ({}, "give cron= or every="),
        ({"cron": "* * * * *", "every": 5}, "only one of them"),
        ({"every": 5, "timezone": "UTC"}, "timezone= goes with cron="),
        ({"every": 0.5}, "a whole number of seconds"),
        ({"every": True}, "a whole number of seconds"),
        ({"every": "5"}, "a whole number of seconds"),
        ({"every": float("nan")}, "a whole number of seconds"),
        ({"every": timedelta(milliseconds=1500)}, "got a timedelta of 1.5 s"),
        ({"every": 0}, "1 second to 100 years"),
        ({"every": -3}, "1 second to 100 years"),
        ({"every": float("inf")}, "a whole number of seconds"),
        ({"cron": 5}, "must be a text of five fields"),
        ({"cron": "* " * 101}, "at most 200"),
        ({"cron": "* * * * *", "timezone": "Europe/Roma"}, "there is no time zone 'Europe/Roma'; did you mean"),
        ({"cron": "* * * * *", "timezone": "../../etc/passwd"}, "there is no time zone"),
        ({"cron": "* * * * *", "timezone": ""}, "write a name such as Europe/Rome"),
        ({"cron": "* * * * *", "timezone": 5}, "must be the name of a time zone"),
        ({"cron": "* * * * *", "timezone": "localtime"}, "there is no time zone 'localtime'; "),
        ({"cron": "* * * * *", "timezone": "Factory"}, "there is no time zone 'Factory'; "),
        ({"cron": "* * * * *", "timezone": "posixrules"}, "there is no time zone"),
        ({"cron": "* * * * *", "timezone": "right/Europe/Rome"}, "did you mean"),
        ({"cron": "* * * * *", "timezone": "posix/Europe/Rome"}, "did you mean"),
    ],
)
def test_what_is_no_rule_is_refused(given_: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRule) as refused:
        make_rule(**given_)

    assert words in str(refused.value)


def test_a_machine_without_time_zones_is_told_about_tzdata(monkeypatch: pytest.MonkeyPatch) -> None:
    before = zoneinfo.TZPATH
    zoneinfo.reset_tzpath([])
    ZoneInfo.clear_cache()
    forget_zones()
    monkeypatch.setitem(sys.modules, "tzdata", None)
    try:
        with pytest.raises(InvalidRule, match="pip install 'tzdata'"):
            make_rule("0 3 * * *", timezone="Europe/Rome")
        assert make_rule("0 3 * * *").timezone == "UTC"
    finally:
        zoneinfo.reset_tzpath(before)
        forget_zones()


def forget_zones() -> None:
    zone_of.cache_clear()
    _known_zones.cache_clear()


def test_jitter_is_the_same_for_everybody_and_below_its_bound() -> None:
    found = [jitter_of("sync", at, 30_000) for at in range(0, 3_000_000, 300_000)]

    assert found == [jitter_of("sync", at, 30_000) for at in range(0, 3_000_000, 300_000)]
    assert all(0 <= each < 30_000 for each in found)
    assert len(set(found)) > 5
    assert found[0] == 1_307
    assert jitter_of("sync", 5, 0) == 0
