"""The encoder of server-sent events: what is written is read back, and nothing in a value forges anything."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidInput
from holdfast.wire import sse_frames
from tests.support.sse_reader import Message, Reader, read

# what is of meaning on the wire, often, and everything else now and then
NASTY = st.lists(
    st.sampled_from(["\n", "\r", "\r\n", "\n\n", ":", " ", "data: x", "event: x", "id: 7", "retry: 1", "\0", "\ufeff"])
    | st.text(max_size=5)
    | st.sampled_from(["\u2028", "\x0b", "\x0c", "\x1c", "\x85", "\ud800"]),
    max_size=12,
).map("".join)
FIELD = NASTY.map(lambda text: re.sub("[\r\n\0\ud800-\udfff]", "", text))


def as_read(data: str) -> str:
    """What a reader has of *data*: it knows one end of a line, and no lone surrogate."""
    return re.sub("\r\n|\r", "\n", data).encode("utf-8", "replace").decode()


@given(data=NASTY, event=FIELD, id_=FIELD)
def test_a_message_is_read_back_as_one_whatever_its_data_holds(data: str, event: str, id_: str) -> None:
    found = read([sse_frames.message(data, event=event, id=id_), sse_frames.message("after")])

    assert found == [Message(event or "message", as_read(data), id_), Message("message", "after", id_)]


@given(data=NASTY, cuts=st.lists(st.integers(0, 200), max_size=6))
def test_messages_may_be_cut_anywhere_on_the_way(data: str, cuts: list[int]) -> None:
    wire = sse_frames.message(data, event="e", id="1") + sse_frames.message("after")
    places = sorted({0, len(wire), *(min(cut, len(wire)) for cut in cuts)})

    found = read([wire[start:end] for start, end in pairwise(places)])

    assert [each.data for each in found] == [as_read(data), "after"]


@given(before=NASTY, after=NASTY, forging=st.sampled_from("\r\n\0"), field=st.sampled_from(["event", "id"]))
def test_a_name_or_an_id_with_a_lines_end_or_nul_is_refused(before: str, after: str, forging: str, field: str) -> None:
    with pytest.raises(InvalidInput, match=f"{field} must"):
        sse_frames.message("data", **{field: before + forging + after})


def test_a_forged_message_in_the_data_stays_data() -> None:
    (found,) = read([sse_frames.message("1\n\nevent: x\nid: 9\ndata: forged\n\n", event="job:started", id="5")])

    assert found == Message("job:started", "1\n\nevent: x\nid: 9\ndata: forged\n\n", "5")


def test_a_resume_point_is_remembered_and_shows_no_message() -> None:
    reader = Reader()

    assert reader.feed(sse_frames.resume_point("c7")) == []
    assert reader.last_id == "c7"
    with pytest.raises(InvalidInput):
        sse_frames.resume_point("c7\n\ndata: forged")


def test_a_retry_hint_is_remembered_and_shows_no_message() -> None:
    reader = Reader()

    assert reader.feed(sse_frames.retry(1500)) == []
    assert reader.retry_ms == 1500


def test_a_message_without_an_id_leaves_the_last_one_as_it_is() -> None:
    found = read(
        [sse_frames.message("1", id="a"), sse_frames.message("2", event="ping"), sse_frames.message("3", id="b")]
    )

    assert [each.last_id for each in found] == ["a", "a", "b"]


def test_empty_data_is_a_message_too() -> None:
    assert read([sse_frames.message("", event="ping")]) == [Message("ping", "", "")]
