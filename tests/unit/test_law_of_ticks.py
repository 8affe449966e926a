"""The law of ticks refuses what must never be: one look of a worker, edited once for every assertion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.schedule_rules import make_rule, times_in
from tests.law.ticks import Look, ScheduleRow, Tick, times, wrong_look

SECOND, MINUTE = 1_000, 60_000
NOON = 1_777_896_000_000
ROW = ScheduleRow(
    rule='{"every_ms": 60000}', next_at=NOON, paused_at=None, until=None, missed="one", left_out=0, trouble=None,
    changed_at=NOON - MINUTE,
)  # fmt: skip


def ticks(*at: int) -> tuple[Tick, ...]:
    return tuple(Tick(each, f"chain-{each}", "started") for each in at)


GOOD = Look(NOON + SECOND, ROW, ROW._replace(next_at=NOON + MINUTE), ticks(NOON), had={NOON - MINUTE})
LATE = Look(
    NOON + 5 * MINUTE + SECOND,
    ROW,
    ROW._replace(next_at=NOON + 6 * MINUTE, left_out=4),
    ticks(NOON + 4 * MINUTE, NOON + 5 * MINUTE),
    had=(),
)
BACK = replace(GOOD, before=ROW._replace(next_at=NOON - 5 * MINUTE), clock_from=NOON - SECOND)


@pytest.mark.parametrize("look", [GOOD, LATE, BACK])
def test_a_good_look_is_let_pass(look: Look) -> None:
    assert wrong_look(look) is None


@pytest.mark.parametrize(
    ("look", "change", "said"),
    [
        (GOOD, {"had": {NOON}}, "second job"),
        (GOOD, {"before": ROW._replace(paused_at=NOON - MINUTE)}, "while the schedule is paused"),
        (GOOD, {"now": NOON - SECOND}, "before their time"),
        (GOOD, {"ticks": ticks(NOON + SECOND)}, "are no times of"),
        (GOOD, {"ticks": ()}, "should have been started"),
        (LATE, {"ticks": ticks(NOON + 5 * MINUTE)}, "should have been started"),
        (LATE, {"before": ROW._replace(missed="skip")}, "should have been started"),
        (LATE, {"before": ROW._replace(missed="all")}, "should have been started"),
        (LATE, {"after": ROW._replace(left_out=0)}, "4 times were left out, and 0 are counted"),
        (BACK, {"ticks": ticks(NOON - MINUTE), "had": ()}, "came after the clock was put back"),
    ],
)
def test_what_must_never_be_is_refused(look: Look, change: dict[str, Any], said: str) -> None:
    assert said in str(wrong_look(replace(look, **change)))


@pytest.mark.parametrize("cron", ["30 2 * * *", "*/20 1-3 * * *", "15 2 1-7 * 0", "0 0 * * *"])
@pytest.mark.parametrize("zone", ["Europe/Rome", "Australia/Lord_Howe", "America/Santiago", "Pacific/Chatham"])
def test_the_clock_of_the_law_shows_the_times_of_the_rule(cron: str, zone: str) -> None:
    rule = make_rule(cron, timezone=zone)
    spring, autumn = 1_790_380_800_000, 1_775_260_800_000  # two days from then on some zones shift their clocks

    for begin in (spring, autumn):
        end = begin + 2 * 86_400_000
        assert list(times(rule.json, begin, end)) == times_in(rule, begin, end, 10_000).last
