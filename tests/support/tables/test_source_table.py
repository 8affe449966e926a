"""Every line of the systems that Holdfast unites is shown by a test, or says why not."""

from __future__ import annotations

from tests.support.tables.sources import NOT_SHOWN, SOURCES, find_marked, lines

COUNTS = {"PQ": 71, "JC": 115, "TQ": 44, "DF": 44}


def test_the_table_has_every_line_of_the_sources_once() -> None:
    expected = [f"{family}-{number}" for family, last in COUNTS.items() for number in range(1, last + 1)]

    assert list(SOURCES) == expected


def test_a_line_of_the_sources_has_a_test_or_a_reason_and_never_both() -> None:
    assert [line.id for line in lines() if bool(line.tests) is bool(line.reason)] == []


def test_every_line_that_a_test_is_marked_with_is_known() -> None:
    assert (find_marked().keys() | NOT_SHOWN.keys()) - SOURCES.keys() == set()
