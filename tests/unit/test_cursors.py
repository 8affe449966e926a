"""Cursors: what they have seen, how they are written, and what is no cursor at all."""

from __future__ import annotations

import base64
import itertools
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidCursor, UsageError
from holdfast.wire.cursors import (
    Cursor,
    Position,
    SeqCursor,
    Snapshot,
    SnapshotCursor,
    behind_row,
    last_row,
    read_cursor,
)

ORIGIN = "0123456789abcdef"


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    xmax = draw(st.integers(1, 2**62))
    in_progress = draw(st.sets(st.integers(max(0, xmax - 500), xmax - 1), max_size=20))
    return Snapshot(xmax, tuple(sorted(in_progress)))


NUMBERS = st.integers(0, 2**63 - 1)
CURSORS = st.one_of(
    st.builds(SeqCursor, st.just(ORIGIN), NUMBERS),
    snapshots().map(partial(SnapshotCursor, ORIGIN)),
    st.builds(SnapshotCursor, st.just(ORIGIN), snapshots(), snapshots(), NUMBERS),
)


@given(CURSORS)
def test_a_cursor_is_read_as_it_was_written(cursor: Cursor) -> None:
    assert read_cursor(cursor.text) == cursor


@given(st.one_of(st.text(), st.binary().map(lambda some: base64.urlsafe_b64encode(some).decode())))
def test_what_is_no_cursor_is_told_so_and_nothing_else_happens(text: str) -> None:
    try:
        cursor = read_cursor(text)
    except InvalidCursor:
        return
    assert read_cursor(cursor.text) == cursor


@pytest.mark.parametrize(
    "words",
    [
        "",
        "s",
        "s:",
        f"s:{ORIGIN}",
        f"s:{ORIGIN}:",
        f"s:{ORIGIN}:-1",
        f"s:{ORIGIN}:1:2",
        f"s:{ORIGIN}:{2**63}",
        f"s:{ORIGIN}:\u0661",
        f"s:{'x' * 40}!:1",
        f"x:{ORIGIN}:1",
        f"p:{ORIGIN}:",
        f"p:{ORIGIN}:5.",
        f"p:{ORIGIN}:5.0",
        f"p:{ORIGIN}:5.6",
        f"p:{ORIGIN}:5:6",
        f"p:{ORIGIN}:5:6:x",
        f"p:{ORIGIN}:5:6:7:8",
    ],
)
def test_words_of_another_kind_are_refused(words: str) -> None:
    text = base64.urlsafe_b64encode(words.encode()).decode().rstrip("=")

    with pytest.raises(InvalidCursor) as caught:
        read_cursor(text)

    assert isinstance(caught.value, UsageError)


@pytest.mark.parametrize("value", [None, 7, b"czphOjE", ["x"]])
def test_what_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(InvalidCursor):
        read_cursor(value)


def test_a_snapshot_has_seen_what_had_ended() -> None:
    snapshot = Snapshot.read("10:20:10,15")

    assert snapshot == Snapshot(20, (10, 15))
    assert [xid for xid in range(25) if snapshot.has_seen(xid)] == [*range(10), 11, 12, 13, 14, 16, 17, 18, 19]
    assert Snapshot.read("7:7:") == Snapshot(7)


def test_a_later_snapshot_includes_an_earlier_one_and_not_the_other_way_round() -> None:
    """Transactions 1 to 5 begin in their order; they end in every other order."""
    for order in itertools.permutations(range(1, 6)):
        taken = [Snapshot(6, tuple(sorted(set(range(1, 6)) - set(order[:ended])))) for ended in range(6)]
        for (number, one), (other_number, other) in itertools.combinations_with_replacement(enumerate(taken), 2):
            assert other.includes(one)
            assert one.includes(other) == (number == other_number)


def test_a_page_has_seen_its_lines_up_to_a_number() -> None:
    cursor = SnapshotCursor(ORIGIN, Snapshot(10, (8,)), Snapshot(20, (15,)), 100)

    assert cursor.has_seen(Position(9, 999))
    assert cursor.has_seen(Position(8, 100))
    assert not cursor.has_seen(Position(8, 101))
    assert cursor.has_seen(Position(12, 7))
    assert not cursor.has_seen(Position(15, 7))
    assert not cursor.has_seen(Position(20, 7))


def test_who_has_read_further_by_itself_keeps_that_when_it_joins() -> None:
    reached = SnapshotCursor(ORIGIN, Snapshot(15, (12,)))
    page = SnapshotCursor(ORIGIN, Snapshot(10), Snapshot(20), 7)

    joined = page.joined(reached)

    assert joined == SnapshotCursor(ORIGIN, Snapshot(15, (12,)), Snapshot(20), 7)
    assert joined.has_seen(Position(14, 99))
    assert not joined.has_seen(Position(12, 99))
    assert joined.has_seen(Position(12, 7))


def test_a_page_behind_what_was_reached_is_as_it_was() -> None:
    reached = SnapshotCursor(ORIGIN, Snapshot(10))
    page = SnapshotCursor(ORIGIN, Snapshot(15), Snapshot(20), 7)

    assert page.joined(reached) is page


def test_a_page_before_what_was_reached_leads_no_way_back() -> None:
    reached = SnapshotCursor(ORIGIN, Snapshot(30))

    assert SnapshotCursor(ORIGIN, Snapshot(15), Snapshot(20), 7).joined(reached) == reached
    assert SnapshotCursor(ORIGIN, Snapshot(20)).joined(reached) == reached
    assert SeqCursor(ORIGIN, 5).joined(SeqCursor(ORIGIN, 9)) == SeqCursor(ORIGIN, 9)
    assert SeqCursor(ORIGIN, 9).joined(SeqCursor(ORIGIN, 5)) == SeqCursor(ORIGIN, 9)


def test_a_cursor_of_a_busy_server_is_not_long() -> None:
    busy = Snapshot(10**9, tuple(range(10**9 - 400, 10**9, 4)))

    assert len(SnapshotCursor(ORIGIN, busy, busy, 10**9).text) < 1_500


def wrapped(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def test_a_cursor_of_an_older_release_is_behind_the_whole_row_that_it_names() -> None:
    assert read_cursor(wrapped(f"s:{ORIGIN}:7")) == SeqCursor(ORIGIN, behind_row(7))
    assert read_cursor(wrapped(f"p:{ORIGIN}:9")) == SnapshotCursor(ORIGIN, Snapshot(9))
    page = SnapshotCursor(ORIGIN, Snapshot(9), Snapshot(12), behind_row(7))
    assert read_cursor(wrapped(f"p:{ORIGIN}:9:12:7")) == page


@pytest.mark.parametrize("seq", [0, 1, 7, 2**40])
def test_between_the_two_events_of_a_row_only_the_rows_before_it_are_seen(seq: int) -> None:
    assert last_row(behind_row(seq)) == seq
    assert last_row(behind_row(seq) - 1) == seq - 1
    assert last_row(behind_row(seq) + 1) == seq
