"""Histograms: percentiles right to 19 %, and addition that loses nothing; which width a range has."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.figures import BINS, BOUNDS, COUNTED_AS, Counts, Histogram, Tallied, nothing_tallied, sum_of, width_for
from holdfast.outcomes import Kind

HOUR = 3600
milliseconds = st.floats(min_value=1, max_value=12 * HOUR * 1000)
some = st.lists(milliseconds, min_size=1, max_size=200)


@given(some)
def test_a_percentile_is_right_to_19_percent(times: list[float]) -> None:
    histogram, ordered = Histogram.of(times), sorted(times)

    for percent, told in zip((50, 95, 99), histogram.percentiles(), strict=True):
        true = ordered[ceil(len(times) * percent / 100) - 1] / 1000
        assert told is not None
        assert 1 / 1.19 <= told / true <= 1.19


@given(some, some)
def test_histograms_of_parts_add_up_to_that_of_the_whole(one: list[float], other: list[float]) -> None:
    parts = [Tallied(Counts(started=len(each)), Histogram.of(each), Histogram()) for each in (one, other)]

    assert sum_of(parts).wait == Histogram.of(one + other)
    assert sum_of(parts).counts.started == len(one) + len(other)
    assert sum_of(parts).less(parts[0]) == parts[1]


@given(some)
def test_a_histogram_comes_back_from_its_text(times: list[float]) -> None:
    histogram = Histogram.of(times)

    assert Histogram.read(histogram.text()) == histogram


def test_what_takes_no_time_or_days_has_a_bin_too() -> None:
    assert Histogram.of([-5, 0, 0.2]) == {0: 3}
    assert Histogram.of([10 * 86_400_000]) == {BINS - 1: 1}
    assert Histogram.of([0]).percentiles().p50 == 0
    assert BOUNDS[-1] / 1000 < 12 * HOUR < BOUNDS[-1] / 1000 * 2**0.5


@pytest.mark.parametrize("text", [None, "", "{}", "[]", "no JSON", '{"x": 1}', '{"1": null}'])
def test_no_histogram_counts_as_nothing(text: str | None) -> None:
    assert Histogram.read(text) == Histogram()
    assert Histogram.read(text).text() is None
    assert Histogram.read(text).percentiles() == (None, None, None)


def test_every_end_of_an_attempt_is_counted_as_one_thing() -> None:
    assert COUNTED_AS.keys() == set(Kind)
    assert set(COUNTED_AS.values()) == set(Counts._fields) - {"started"}


def test_what_ended_is_all_but_what_started() -> None:
    assert Counts(9, 1, 1, 1, 1, 1, 1).ended == 6
    assert nothing_tallied().counts.ended == 0


@pytest.mark.parametrize(
    ("hours", "age_hours", "width"),
    [(1, 1, 10), (2, 2, 10), (1, 3, 60), (24, 24, 60), (34, 34, 3600), (1, 49, 3600), (5000, 9600, 3600)],
)
def test_a_range_has_the_narrowest_width_that_is_kept_for_so_long(hours: int, age_hours: int, width: int) -> None:
    assert width_for(hours * HOUR, age_hours * HOUR) == width
