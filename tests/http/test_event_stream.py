"""`hf.event_stream`, four ways: where it begins, what it says, how it is resumed, what it costs, what is left of it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast import Holdfast
from holdfast.client.verbs import asked_by
from holdfast.database.tx import Tx
from holdfast.errors import CursorExpired, InvalidId, InvalidInput, StoreError
from holdfast.events import sse_stream
from holdfast.events.feed import BUFFER, Follower
from holdfast.models import Event
from holdfast.store import lanes
from holdfast.store.chains import creation
from holdfast.store.log import pruning
from holdfast.store.log.reading import LoggedEvent
from holdfast.wire.cursors import SeqCursor, Snapshot, SnapshotCursor
from holdfast.wire.job_json import event_object
from tests.http.listening import Listening, listening
from tests.support.conditions import until
from tests.support.factories import a_start, add, continue_chain, greet, make_job
from tests.support.sse_reader import Message
from tests.support.ways import Way


async def start(way: Way, name: str = "Ada", **options: Any) -> UUID:
    chain = await way.face.start(greet(name=name), **options)
    return UUID(str(chain.id))


def ids_of(messages: list[Message]) -> list[str]:
    return [each.json["job"]["id"] for each in messages]


def follower_of(reader: Listening) -> Follower:
    stream = getattr(reader.stream, "stream", reader.stream)
    follower = stream._follower
    assert isinstance(follower, Follower)
    return follower


def jobs_in(snapshot: Message) -> list[str]:
    assert snapshot.event == "snapshot"
    return [job["id"] for job in snapshot.json["jobs"]]


# where it begins


@pytest.mark.source("PQ-43")
async def test_it_begins_with_the_jobs_and_goes_on_behind_them(way: Way) -> None:
    first = await start(way)

    async with listening(way) as reader:
        snapshot = await reader.next()
        second = await start(way, "Bob")
        enqueued = await reader.next()

    assert jobs_in(snapshot) == [str(first)]
    assert snapshot.last_id
    assert enqueued.event == "job:enqueued"
    assert enqueued.last_id != snapshot.last_id
    job = enqueued.json["job"]
    assert (job["id"], job["task"], job["input"], job["status"]) == (str(second), "greet", {"name": "Bob"}, "pending")


@pytest.mark.source("PQ-43")
async def test_what_commits_between_the_snapshot_and_the_first_look_is_not_missed(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow = way.hf._feed.follow
    between: list[UUID] = []

    def follow_late(*asked: Any, **options: Any) -> Follower:
        between.append(way.hf.sync.start(greet(name="between")).id)
        return follow(*asked, **options)

    monkeypatch.setattr(way.hf._feed, "follow", follow_late)
    async with listening(way) as reader:
        snapshot, event = await reader.take(2)

    assert jobs_in(snapshot) == []
    assert ids_of([event]) == [str(each) for each in between]


async def test_an_event_says_what_happened_and_how_the_job_stands(way: Way) -> None:
    job_id = await start(way)

    async with listening(way, snapshot=False) as reader:
        await reader.begun()
        await way.face.cancel(job_id, by="ada", why="not needed")
        message = await reader.next()

    told = message.json
    assert message.event == told["event"] == "job:cancelled"
    assert (told["status"], told["version"], told["attempt"]) == ("cancelled", told["job"]["version"], 0)
    assert (told["facts"]["by"], told["facts"]["reason"]) == ("ada", "not needed")
    assert told["at"].endswith("Z")
    assert told["omitted"] == []


async def test_without_a_snapshot_it_begins_now_and_can_be_resumed_from_there(way: Way) -> None:
    await start(way)
    async with listening(way, snapshot=False) as reader:
        await reader.begun()
        begun = reader.last_id

    later = await start(way, "Bob")

    async with listening(way, last_event_id=begun) as reader:
        assert ids_of([await reader.next()]) == [str(later)]


async def test_a_deleted_job_is_told_by_its_id_alone(way: Way) -> None:
    job_id = await start(way)
    await way.face.cancel(job_id)

    async with listening(way, snapshot=False) as reader:
        await reader.begun()
        await way.face.delete(job_id)
        message = await reader.next()

    assert message.event == "job:deleted"
    assert message.json.keys() == {"event", "at", "deletedJobId"}
    assert message.json["deletedJobId"] == str(job_id)


async def test_a_lane_that_is_paused_is_told_without_a_job(way: Way) -> None:
    async with listening(way, snapshot=False) as reader:
        await reader.begun()
        await way.call(lanes.pause_lane, "vm-7", asked_by(None, None))
        message = await reader.next()

    assert (message.event, message.json["job"], message.json["facts"]["lane"]) == ("lane:paused", None, "vm-7")


async def test_the_engines_own_jobs_stay_out_of_it(way: Way) -> None:
    await make_job(way, queue="holdfast.internal")
    async with listening(way) as reader:
        snapshot = await reader.next()
        await way.call(_start_internal)
        shown = await start(way)

        assert jobs_in(snapshot) == []
        assert ids_of([await reader.next()]) == [str(shown)]


async def _start_internal(tx: Tx) -> None:
    await creation.start(tx, [a_start(queue="holdfast.internal")])


# resuming


@pytest.mark.source("PQ-44")
async def test_it_is_resumed_behind_any_message_without_a_gap_or_a_double(way: Way) -> None:
    async with listening(way) as reader:
        await reader.next()
        marks = [reader.last_id]
        for name in "abc":
            await start(way, name)
            await reader.next()
            marks.append(reader.last_id)

    for seen, mark in enumerate(marks):
        async with listening(way, last_event_id=mark) as reader:
            rest = await reader.take(3 - seen)
            assert [each.json["job"]["input"]["name"] for each in rest] == list("abc")[seen:]
            last = await start(way, f"after {seen}")
            await reader.close()
        await way.face.cancel(last)
        await way.face.delete(last)


@pytest.mark.source("DF-39")
async def test_what_commits_while_nobody_reads_comes_when_it_is_resumed(way: Way) -> None:
    async with listening(way) as reader:
        await reader.next()
        mark = reader.last_id
    names = [f"job {number}" for number in range(450)]  # more than two pages
    await way.face.start_many([greet(name=name) for name in names])

    async with listening(way, last_event_id=mark) as reader:
        found = await reader.take(len(names))

    assert [each.json["job"]["input"]["name"] for each in found] == names
    assert len({each.last_id for each in found}) == len(names)


async def test_an_id_that_is_none_gives_a_reset_and_a_snapshot(way: Way) -> None:
    job_id = await start(way)

    for mark in ("", "ü", "a\nb", "id: 7\n\ndata: forged", "garbage"):
        async with listening(way, last_event_id=mark, snapshot=False) as reader:
            reset, snapshot = await reader.take(2)
            assert (reset.event, jobs_in(snapshot)) == ("reset", [str(job_id)])
    async with listening(way, last_event_id="garbage") as reader:
        await reader.take(2)
        later = await start(way, "Bob")
        assert ids_of([await reader.next()]) == [str(later)]


@pytest.mark.source("PQ-44")
async def test_an_id_of_another_database_gives_a_reset_and_a_snapshot(way: Way) -> None:
    here = SeqCursor("beef", 1) if way.database == "sqlite" else SnapshotCursor("beef", Snapshot(1_000_000))
    there = SnapshotCursor("beef", Snapshot(1_000_000)) if way.database == "sqlite" else SeqCursor("beef", 1)

    for cursor in (here, there):
        async with listening(way, last_event_id=cursor.text) as reader:
            reset, snapshot = await reader.take(2)

        assert (reset.event, reset.last_id, snapshot.event) == ("reset", "", "snapshot")
        assert snapshot.last_id


async def test_an_id_whose_events_were_removed_gives_a_reset_and_a_snapshot(way: Way) -> None:
    async with listening(way) as reader:
        await reader.next()
        mark = reader.last_id
    gone, job_id = await start(way), await start(way)
    await way.face.cancel(gone)
    await way.face.delete(gone)
    assert await way.call(pruning.prune, 0) > 0

    async with listening(way, last_event_id=mark) as reader:
        reset, snapshot = await reader.take(2)

    assert reset.event == "reset"
    assert jobs_in(snapshot) == [str(job_id)]


async def test_a_stream_whose_log_becomes_another_goes_on_behind_a_reset_and_a_snapshot(way: Way) -> None:
    async with listening(way, snapshot=False) as reader:
        await reader.begun()
        job_id = await start(way)
        way.hf._feed.here.break_off(CursorExpired("a replica was promoted"))
        told = [await reader.next()]
        while told[-1].event != "snapshot":
            told.append(await reader.next())
        later = await start(way, "Bob")

        assert [each.event for each in told][-2:] == ["reset", "snapshot"]
        assert "a replica was promoted" in told[-2].json["reason"]
        assert jobs_in(told[-1]) == [str(job_id)]
        assert ids_of([await reader.next()]) == [str(later)]
    assert len(way.hf._feed.here._followers) == 0


# the ping


@pytest.mark.source("PQ-41")
async def test_silence_is_broken_by_a_ping_with_the_time_and_no_id_of_its_own(way: Way) -> None:
    async with listening(way, ping_seconds=0.02) as reader:
        await reader.begun()
        pieces = [await reader.piece() or b"" for _ in range(3)]

    pings = [piece.split(b"\n\n")[-2] for piece in pieces]
    assert all(each.startswith(b'event: ping\ndata: {"at":"') for each in pings)
    assert all(b"id: " not in each and each.endswith(b'Z"}') for each in pings)


async def test_a_stream_that_hears_of_nothing_moves_on_with_the_log(way: Way) -> None:
    job_id = await start(way)
    async with listening(way, jobs=job_id, snapshot=False, ping_seconds=0.05) as reader:
        await reader.begun()
        begun = reader.last_id
        await start(way, "somebody else")
        await until(_moved(reader, begun), "a ping has moved the place to resume at")
        mark = reader.last_id
        await way.face.cancel(job_id)
        found = await reader.next()

    async with listening(way, jobs=job_id, last_event_id=mark) as reader:
        assert (await reader.next()).data == found.data


def _moved(reader: Any, begun: str) -> Any:
    async def moved() -> bool:
        assert (await reader.any()).event == "ping"
        return bool(reader.last_id != begun)

    return moved


async def test_a_ping_time_that_cannot_be_is_refused_at_once(way: Way) -> None:
    stream = way.hf.event_stream if way.is_async else way.hf.sync.event_stream

    for seconds in (0, -1, 3601, float("nan")):
        with pytest.raises(InvalidInput, match="ping_seconds"):
            stream(ping_seconds=seconds)


# filters


async def test_a_filter_holds_for_the_snapshot_and_for_what_follows(way: Way) -> None:
    ours, other = await start(way, lane="a"), await start(way, "Bob", lane="b")
    sums = await way.face.start(add(a=1, b=2))
    wanted = {
        "jobs": (str(ours), [ours]),
        "chains": ([other], [other]),
        "tasks": (["add"], [sums.id]),
        "lanes": ("b", [other]),
    }

    for field, (value, expected) in wanted.items():
        async with listening(way, **{field: value}) as reader:
            assert jobs_in(await reader.next()) == [str(each) for each in expected]
    async with listening(way, names=["job:cancelled"]) as reader:
        await reader.next()
        await start(way, "Cleo")
        await way.face.cancel(other)
        assert (await reader.next()).event == "job:cancelled"


async def test_a_chain_is_shown_with_all_of_its_jobs(way: Way) -> None:
    chain_id = await make_job(way)
    await make_job(way)
    second = await continue_chain(way, chain_id)

    async with listening(way, chains=chain_id) as reader:
        assert jobs_in(await reader.next()) == [str(second), str(chain_id)]


async def test_a_deleted_job_that_still_has_its_place_in_a_lane_is_not_shown(way: Way) -> None:
    hidden = await make_job(way, "cancelled", lane="a", closed_as="deleted")

    for asked in ({}, {"jobs": hidden}, {"chains": hidden}):
        async with listening(way, **asked) as reader:
            assert jobs_in(await reader.next()) == []


async def test_a_filter_that_cannot_be_is_refused_at_once(way: Way) -> None:
    stream: Any = way.hf.event_stream if way.is_async else way.hf.sync.event_stream

    with pytest.raises(InvalidId):
        stream(jobs="no id")
    with pytest.raises(InvalidInput, match="did you mean job:started"):
        stream(names="job:startd")


async def test_a_job_that_is_not_there_has_an_empty_snapshot(way: Way) -> None:
    async with listening(way, jobs=uuid4()) as reader:
        snapshot = await reader.next()

    assert (snapshot.json["jobs"], snapshot.json["is_whole"]) == ([], True)


# what it costs


async def test_a_snapshot_has_the_newest_jobs_up_to_a_number(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse_stream, "SNAPSHOT_JOBS", 3)
    started = [await start(way) for _ in range(4)]

    async with listening(way) as reader:
        snapshot = await reader.next()

    assert jobs_in(snapshot) == [str(each) for each in started[:0:-1]]
    assert snapshot.json["is_whole"] is False


async def test_a_snapshot_has_room_for_so_many_bytes(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse_stream, "SNAPSHOT_BYTES", 5_000)
    started = [await start(way, "x" * 3_000) for _ in range(4)]

    async with listening(way) as reader:
        snapshot = await reader.next()

    assert jobs_in(snapshot) == [str(each) for each in started[:1:-1]]
    assert snapshot.json["is_whole"] is False


async def test_a_long_input_is_left_out_and_that_is_said(way: Way) -> None:
    long = await start(way, "x" * sse_stream.JOB_BYTES)

    async with listening(way) as reader:
        snapshot = await reader.next()
        await way.face.cancel(long)
        event = await reader.next()

    assert snapshot.json["omitted"] == [str(long)]
    assert snapshot.json["jobs"][0]["input"] is None
    assert event.json["omitted"] == ["input", "output"]
    assert event.json["job"]["input"] is None


async def test_a_piece_is_not_much_longer_than_its_bound(way: Way) -> None:
    async with listening(way, snapshot=False) as reader:
        await reader.begun()
        await way.face.start_many([greet(name="x" * 1_000) for _ in range(150)])
        pieces: list[bytes] = []
        while sum(piece.count(b"event: ") for piece in pieces) < 150:
            pieces.append(await reader.piece() or b"")

    assert max(map(len, pieces)) < sse_stream.PIECE_BYTES + 4_000


async def test_a_reader_that_was_too_slow_for_its_buffer_misses_nothing(way: Way) -> None:
    names = [f"job {number}" for number in range(BUFFER + 250)]
    async with listening(way, snapshot=False) as reader:
        await reader.begun()
        follower = follower_of(reader)
        for begin in range(0, len(names), 250):
            await way.face.start_many([greet(name=name) for name in names[begin : begin + 250]])
        await until(lambda: follower.is_behind, "the buffer has overflowed")
        assert len(follower._handed) <= BUFFER

        found = await reader.take(len(names))

    assert [each.json["job"]["input"]["name"] for each in found] == names


async def test_an_event_is_written_once_for_all_streams(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def write(event: Event, *seen: Any, **options: Any) -> dict[str, Any]:
        written.append(event.name)
        return event_object(event, *seen, **options)

    monkeypatch.setattr(sse_stream, "event_object", write)

    async with listening(way) as one, listening(way) as two, listening(way) as three:
        for reader in (one, two, three):
            await reader.next()
        await start(way)
        found = [await reader.next() for reader in (one, two, three)]

    assert len({each.data for each in found}) == 1
    assert written == ["job:enqueued"]


async def test_a_stream_that_breaks_off_gives_what_it_has_first(way: Way) -> None:
    async with listening(way, snapshot=False) as reader:
        await reader.begun()
        job_id = await start(way)
        handed = follower_of(reader)._handed
        await until(lambda: any(isinstance(each, LoggedEvent) for each in list(handed)), "it was handed the event")
        way.hf._feed.here.break_off(StoreError("the log cannot be read"))

        assert ids_of([await reader.next()]) == [str(job_id)]
        with pytest.raises(StoreError, match="cannot be read"):
            await reader.piece()


# what is left of it


@pytest.mark.source("PQ-45")
async def test_closing_leaves_no_follower(way: Way) -> None:
    followers = way.hf._feed.here._followers
    readers = []
    for _ in range(3):
        async with listening(way) as reader:
            await reader.next()
            readers.append(reader)
            assert len(followers) == 1

    assert len(followers) == 0
    assert await readers[0].piece() is None


async def test_a_stream_that_is_only_dropped_leaves_no_follower(way: Way) -> None:
    followers = way.hf._feed.here._followers
    reader = Listening(way)
    await reader.next()
    gone = weakref.ref(reader.stream)
    assert len(followers) == 1

    del reader
    gc.collect()

    assert gone() is None
    assert len(followers) == 0


async def test_it_ends_when_hf_is_closed(way: Way) -> None:
    async with listening(way, snapshot=False) as reader:
        await reader.begun()

        await way.face.close()

        assert await reader.piece() is None


async def test_a_reader_that_is_cancelled_leaves_no_follower(new_holdfast: Callable[..., Holdfast]) -> None:
    hf = new_holdfast("sqlite")
    begun: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def read() -> None:
        async with hf.event_stream() as stream:
            async for piece in stream:
                begun.set_result(piece)

    async with hf:
        reading = asyncio.create_task(read())
        assert b"event: snapshot" in await begun

        reading.cancel()
        await asyncio.wait([reading])

        assert len(hf._feed.here._followers) == 0
