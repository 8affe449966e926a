"""`hf.list_events`, four ways: pages of the log that together are what a stream gives, each at a bounded price."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import CursorExpired, InvalidCursor, InvalidInput, Misuse
from holdfast.models import Event
from holdfast.store.log import reading
from tests.feed.streams import become_another, events
from tests.support.factories import add, greet
from tests.support.ways import Way


async def lead_lives(way: Way) -> None:
    """Have some jobs come, change and go, and a lane between them."""
    first, second, third = await way.face.start_many([greet(name="Ada"), greet(name="Bob"), add(a=1, b=2)])
    await way.face.pause(first)
    way.hf.sync.lane("vm-7").pause()
    await way.face.resume(first)
    await way.face.cancel(second)
    await way.face.delete(second)
    await way.face.cancel(third)


async def pages(way: Way, after: str, **asked: Any) -> tuple[list[Event], str]:
    """Read on behind *after* until a page leads no further."""
    found: list[Event] = []
    while (page := await way.face.list_events(after, **asked)).cursor != after:
        found += page
        after = page.cursor
    return found, after


def in_short(found: list[Event]) -> list[tuple[str, object, str]]:
    return [(each.name, each.job.input if each.job else each.deleted_job_id, str(each.at)) for each in found]


async def test_without_a_cursor_a_page_is_empty_and_tells_where_the_log_stands(way: Way) -> None:
    await way.face.start(greet(name="before"))

    page = await way.face.list_events()
    chain = await way.face.start(greet(name="Ada"))
    (event,) = await way.face.list_events(page.cursor)

    assert len(page) == 0
    assert (event.name, event.job.id, event.job.input.name) == ("job:enqueued", chain.id, "Ada")


@pytest.mark.parametrize("limit", [1, 3, 500])
async def test_all_pages_are_what_a_stream_gives(way: Way, limit: int) -> None:
    begin = await way.face.cursor()
    await lead_lives(way)

    found, end = await pages(way, begin, limit=limit)

    async with events(way, begin) as stream:
        streamed = await stream.take(len(found))
    assert in_short(found) == in_short(streamed)
    assert found[-1].name == "job:cancelled"
    assert len(await way.face.list_events(end)) == 0


async def test_a_page_leads_on_behind_each_of_its_events(way: Way) -> None:
    begin = await way.face.cursor()
    await lead_lives(way)
    every = tuple(await way.face.list_events(begin))

    for number, each in enumerate(every, 1):
        assert in_short(list(await way.face.list_events(each.cursor))) == in_short(list(every[number:]))


async def test_a_filter_narrows_a_page_and_its_cursor_goes_on_nevertheless(way: Way) -> None:
    begin = await way.face.cursor()
    await lead_lives(way)

    found, _ = await pages(way, begin, tasks="add", limit=1)
    none = await way.face.list_events(begin, names="job:failed")

    assert [each.name for each in found] == ["job:enqueued", "job:cancelled"]
    assert (none.items, none.cursor != begin) == ((), True)


async def test_a_call_looks_at_so_many_events_and_no_more(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LOOKED_AT", 4)
    monkeypatch.setattr(reading, "LOOKED_AT_ONCE", 3)
    begin = await way.face.cursor()
    await way.face.start_many([greet(name=str(number)) for number in range(10)])
    await way.face.start(add(a=1, b=2))

    page = await way.face.list_events(begin, tasks="add")
    found, _ = await pages(way, page.cursor, tasks="add")
    every, _ = await pages(way, begin, limit=2)

    assert (page.items, page.cursor != begin) == ((), True)
    assert [each.job.task for each in found if each.job] == ["add"]
    assert [each.job.task for each in every if each.job] == ["greet"] * 10 + ["add"]


async def test_a_cursor_of_another_database_is_refused(way: Way) -> None:
    begin = await way.face.cursor()
    await become_another(way.hf)

    with pytest.raises(CursorExpired):
        await way.face.list_events(begin)


async def test_what_cannot_be_asked_is_refused(way: Way) -> None:
    with pytest.raises(InvalidCursor):
        await way.face.list_events("no cursor")
    with pytest.raises(InvalidInput, match=r"limit must be 1 to 500, got 0; for more, pass after=page\.cursor"):
        await way.face.list_events(limit=0)
    with pytest.raises(Misuse, match="task"):
        await way.face.list_events(task="add")
