"""Which statements an event loop runs itself: those that were short the last few times."""

from __future__ import annotations

from holdfast.database.sqlite.statement_times import MOST_TEXTS, SHORT_SECONDS, TIMES, StatementTimes

LONG = SHORT_SECONDS * 2


def test_a_statement_is_short_once_it_was_short_a_few_times_in_a_row() -> None:
    times = StatementTimes()
    for _ in range(TIMES - 1):
        times.note("a", 0.0)
    assert not times.is_short("a")

    times.note("a", 0.0)
    assert times.is_short("a")
    assert not times.is_short("b")


def test_a_statement_that_took_long_has_to_be_short_again_as_often() -> None:
    times = StatementTimes()
    for seconds in [0.0] * 10 * TIMES + [LONG] + [0.0] * (TIMES - 1):
        times.note("a", seconds)
    assert not times.is_short("a")

    times.note("a", 0.0)
    assert times.is_short("a")


def test_texts_that_never_come_again_do_not_add_up() -> None:
    times = StatementTimes()
    for number in range(3 * MOST_TEXTS):
        times.note(f"SELECT {number}", 0.0)

    assert len(times._short) <= MOST_TEXTS
