"""Following the log by `hf.events()`, on both databases and faces; one reader, however many follow (I-44, I-71)."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pytest

from holdfast import CursorExpired, Holdfast, InvalidCursor, InvalidInput, Misuse
from holdfast.database.dialect import READERS_ONLY, channel
from holdfast.database.hints import Hints, SleepMark
from holdfast.database.postgres.listener import NoListener
from holdfast.errors import StoreError, Unavailable
from holdfast.events import feed as feeds
from holdfast.events import page_cache
from holdfast.models import JobEvent
from holdfast.runtime import Runtime
from holdfast.store.log import reading
from holdfast.wire.cursors import Position, behind_row, read_cursor
from tests.feed.streams import InColour, become_another, events, is_at_rest
from tests.store import engine
from tests.store.log_readers import writer_elsewhere
from tests.support.conditions import until
from tests.support.factories import TASKS, add, greet
from tests.support.log_lines import name_of
from tests.support.ways import Way

NewHoldfast = Callable[..., Holdfast]
IN_THE_LOOP = pytest.mark.parametrize("way", ["sqlite-async", "postgres-async"], indirect=True)
"""For what is the same in either colour."""


async def test_what_happens_comes_from_now_on_with_the_job_by_its_types(way: Way) -> None:
    await way.face.start(greet(name="before"))

    async with events(way) as followed:
        chain = await way.face.start(add(a=1, b=2))
        event = await followed.next()

    assert isinstance(event, JobEvent)
    assert (event.name, event.status, event.version) == ("job:enqueued", "pending", 1)
    assert (event.job.id, event.job.input.a) == (chain.id, 1)


@pytest.mark.source("TQ-38")
async def test_behind_a_cursor_nothing_is_missed_and_nothing_comes_twice(way: Way) -> None:
    cursor = await way.face.cursor()
    await way.face.start(greet(name="Ada"))
    await engine.run(way)

    async with events(way, cursor) as followed:
        every = await followed.take(4)
        await way.face.start(greet(name="Bob"))
        every.append(await followed.next())

    names = ["job:enqueued", "job:started", "job:completed", "chain:completed", "job:enqueued"]
    assert [each.name for each in every] == names
    for number, each in enumerate(every[:-1], 1):
        async with events(way, each.cursor) as again:
            assert await again.names(len(names) - number) == names[number:]


async def test_a_stream_can_be_narrowed(way: Way) -> None:
    cursor = await way.face.cursor()
    first = await way.face.start(greet(name="Ada"), lane="a")
    second = await way.face.start(add(a=1, b=2), lane="z")
    await way.face.cancel(first)
    await way.face.cancel(second)
    await way.face.delete(second)

    async def narrowed(number: int, **wanted: Any) -> list[tuple[str, Any]]:
        async with events(way, cursor, **wanted) as followed:
            taken = await followed.take(number)
            await way.face.start(greet(name="end"), lane="end")
            return [(each.name, each.job and each.job.id) for each in taken]

    mine = [("job:enqueued", first.id), ("job:cancelled", first.id)]
    assert await narrowed(2, jobs=first.id) == mine
    assert await narrowed(2, chains=[first]) == mine
    assert (await narrowed(2, tasks="greet"))[:2] == mine
    assert await narrowed(2, lanes=["a", "b"]) == mine
    assert (await narrowed(1, names="job:cancelled")) == mine[1:]
    gone: dict[str, Any] = {"jobs": [second], "chains": second, "tasks": "add", "lanes": "z"}
    for option, value in gone.items():
        assert await narrowed(1, **{option: value}) == [("job:deleted", None)]


async def test_what_nobody_can_have_meant_is_refused_at_once(way: Way) -> None:
    with pytest.raises(InvalidInput, match="did you mean job:completed"):
        events(way, names="job:complete")
    for nonsense in ("", "nonsense", "äöü", "a" * 100_000, 7):
        with pytest.raises(InvalidCursor, match=r"hf\.cursor"):
            events(way, nonsense)  # type: ignore[arg-type]


async def test_a_cursor_that_leads_nowhere_is_told_where_it_is_entered(way: Way) -> None:
    cursor = await way.face.cursor()
    await become_another(way.hf)

    with pytest.raises(CursorExpired, match="another database") as caught:
        async with events(way, cursor):
            pass

    assert "after=cursor" in str(caught.value)
    assert not way.hf._feed.here.is_wanted


async def test_a_database_that_fails_over_ends_every_stream(way: Way) -> None:
    """F-19."""
    async with events(way) as followed:
        await until(lambda: is_at_rest(way.hf), "the feed is at rest")

        await become_another(way.hf)
        await way.face.start(greet(name="Ada"))

        with pytest.raises(CursorExpired, match="failed over"):
            await followed.next()
        with pytest.raises(CursorExpired, match="failed over"):
            await followed.next()
    async with events(way) as anew:
        await way.face.start(greet(name="Bob"))
        assert await anew.names(1) == ["job:enqueued"]


async def test_a_stream_knows_how_far_it_has_come_also_past_what_it_did_not_want(way: Way) -> None:
    async with events(way, names="job:cancelled") as followed:
        await way.face.start(greet(name="Ada"))
        xid = "xid" if way.hf.store.database == "postgres" else "0"
        ((*place,),) = await way.rows(f"SELECT {xid}, seq FROM holdfast_event")
        passed = Position(place[0], behind_row(place[1]))
        await until(lambda: read_cursor(followed.stream.cursor).has_seen(passed), "it has passed the event")

        async with events(way, followed.stream.cursor) as again:
            chain = await way.face.start(greet(name="Bob"))
            assert (await again.next()).job.id == chain.id


@IN_THE_LOOP
async def test_a_stream_that_was_not_entered_has_no_place_yet(way: Way) -> None:
    with pytest.raises(Misuse, match="has no cursor yet"):
        events(way).stream.cursor  # noqa: B018 - the look is what is tested


async def test_streams_that_join_while_much_happens_miss_nothing_and_double_nothing(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "PAGE", 7)
    monkeypatch.setattr(page_cache, "HANDED", 7)
    monkeypatch.setattr(feeds, "BUFFER", 10)
    cursor = await way.face.cursor()
    stop = asyncio.Event()
    started: list[Any] = []

    async def produce() -> None:
        while not stop.is_set():
            started.extend(await way.hf.start_many([greet(name="Ada")] * 3))

    async def follow(number: int) -> list[Any]:
        seen: list[Any] = []
        after = cursor
        while True:  # come, stay for some, come back, until the last has come
            async with events(way, after) as followed:
                for _ in range(number * 5):
                    event = await followed.next()
                    seen.append(event.job.id)
                    after = event.cursor
                    if event.job.input.name == "last":
                        return seen

    producing = [asyncio.create_task(produce()) for _ in range(2)]
    following = [asyncio.create_task(follow(number)) for number in range(1, 5)]
    await until(lambda: len(started) >= 120, "much has happened", timeout=60)
    stop.set()
    await asyncio.gather(*producing)
    started.append(await way.hf.start(greet(name="last")))

    for seen in await asyncio.wait_for(asyncio.gather(*following), 60):
        assert len(seen) == len(set(seen))
        assert set(seen) == {each.id for each in started}


@IN_THE_LOOP
async def test_a_stream_that_is_too_slow_reads_by_itself_what_it_has_missed(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "PAGE", 4)
    monkeypatch.setattr(page_cache, "HANDED", 4)
    monkeypatch.setattr(feeds, "BUFFER", 5)
    follower = way.hf._feed.follow()
    async with follower:
        first = await way.hf.start(greet(name="Ada"))
        assert (await anext(follower)).job.id == first.id  # type: ignore[union-attr]

        chains = await way.hf.start_many([greet(name="Ada")] * 30)
        await until(lambda: follower.is_behind, "its buffer is full")
        held = len(follower._handed) + len(follower._own)
        seen = [(await asyncio.wait_for(anext(follower), 10)).job.id for _ in chains]  # type: ignore[union-attr]
        last = await way.hf.start(greet(name="Bob"))

        assert held <= 6
        assert seen == [each.id for each in chains]
        assert (await asyncio.wait_for(anext(follower), 10)).job.id == last.id  # type: ignore[union-attr]


@IN_THE_LOOP
async def test_however_many_follow_the_log_is_read_once(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    followers = [way.hf._feed.follow() for _ in range(50)]
    for each in followers:
        await each.join(way.hf.store)
    await until(lambda: is_at_rest(way.hf), "the feed is at rest")
    reads: list[int] = []
    since, tell = reading.since, reading.to_events

    async def counting_since(tx: Any, cursor: Any, most: int) -> Any:
        reads.append(most)
        return await since(tx, cursor, most)

    async def counting_tell(tx: Any, found: Any) -> Any:
        reads.append(len(found.lines))
        return await tell(tx, found)

    monkeypatch.setattr(reading, "since", counting_since)
    monkeypatch.setattr(reading, "to_events", counting_tell)
    await way.face.start(greet(name="Ada"))

    for each in followers:
        assert (await asyncio.wait_for(anext(each), 10)).name == "job:enqueued"
    assert 2 <= len(reads) <= 8
    for each in followers:
        each.close()


async def test_to_close_ends_every_stream_and_leaves_nothing_behind(
    new_threads: Callable[[], set[str]], way: Way
) -> None:
    async with events(way) as followed:
        await until(lambda: is_at_rest(way.hf), "the feed is at rest")
        rest = asyncio.create_task(followed.rest())
        await asyncio.sleep(0)
        await way.face.close()

        assert await asyncio.wait_for(rest, 10) == []
    assert not {"holdfast-feed", "holdfast-hints"} & new_threads()
    assert await way.rows("SELECT id FROM holdfast_worker") == []
    async with events(way) as again:
        await way.face.start(greet(name="Ada"))
        assert await again.names(1) == ["job:enqueued"]


@IN_THE_LOOP
async def test_a_feed_that_nobody_follows_any_more_strikes_itself_off(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.events.poller.LINGER_SECONDS", 0.05)
    async with events(way):
        await until(lambda: is_at_rest(way.hf), "the feed is at rest")

    await until(lambda: way.hf._feed.here.poller.sleep_mark is None, "the feed listens no more")

    async def is_empty() -> bool:
        return await way.rows("SELECT id FROM holdfast_worker") == []

    await until(is_empty, "its row is gone")


@IN_THE_LOOP
async def test_a_stream_that_is_dropped_is_followed_by_nobody(way: Way) -> None:
    followed = events(way)
    await followed.__aenter__()
    await way.face.start(greet(name="Ada"))
    await followed.next()
    assert way.hf._feed.here.is_wanted

    del followed

    await until(lambda: gc.collect() >= 0 and not way.hf._feed.here.is_wanted, "nobody follows")


@IN_THE_LOOP
async def test_one_who_stops_waiting_misses_nothing(way: Way) -> None:
    async with way.hf.events() as followed:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(followed), 0.05)
        await way.face.start(greet(name="Ada"))

        assert (await asyncio.wait_for(anext(followed), 10)).name == "job:enqueued"


@IN_THE_LOOP
async def test_a_store_that_is_away_for_a_while_is_told_once_and_ends_no_stream(
    way: Way, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F-18."""
    since = reading.since
    is_away = False
    tries: list[int] = []

    async def sometimes(tx: Any, cursor: Any, most: int) -> Any:
        if is_away:
            tries.append(1)
            raise Unavailable("the database cannot be reached; try again")
        return await since(tx, cursor, most)

    monkeypatch.setattr(reading, "since", sometimes)
    monkeypatch.setattr("holdfast.events.poller.TROUBLE_SECONDS", 0.02)
    with caplog.at_level(logging.WARNING, "holdfast"):
        async with events(way) as followed:
            is_away = True
            await until(partial(has_noticed, way), "the feed has noticed")
            await until(lambda: len(tries) > 3, "it was tried again")
            is_away = False

            assert await followed.names(1) == ["job:enqueued"]
            await until(lambda: said(caplog)[-1:] == ["reader_works_again"], "the feed reads again")
    assert said(caplog) == ["reader_fails", "reader_works_again"]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [name_of(each) for each in caplog.records if each.name == "holdfast.events.poller"]


async def has_noticed(way: Way) -> bool:
    """Have something happen, for a look that was under way is not turned away; tell whether the feed reads no more."""
    await way.face.start(greet(name="Ada"))
    return way.hf._feed.here.poller.is_failing


@IN_THE_LOOP
async def test_a_log_that_cannot_be_read_at_all_is_told_to_who_follows(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(tx: Any, cursor: Any, most: int) -> Any:
        raise ZeroDivisionError

    async with events(way) as followed:
        await until(lambda: is_at_rest(way.hf), "the feed is at rest")
        monkeypatch.setattr(reading, "since", broken)

        with pytest.raises(StoreError, match="broke off: ZeroDivisionError"):
            await follow_on(way, followed)


async def follow_on(way: Way, followed: InColour) -> None:
    """Have something happen, and take it, for ever: a look that was under way still gives what it found."""
    while True:
        await way.face.start(greet(name="Ada"))
        await followed.next()


async def test_a_feed_that_sleeps_hears_at_once_of_all_that_another_process_does(
    database: str, new_holdfast: NewHoldfast
) -> None:
    """Also of what wakes no worker: a claim, and progress."""
    here, there = new_holdfast(database, tasks=[TASKS]), new_holdfast(database, tasks=[TASKS])
    async with here, there:
        async with here.events() as followed:
            await there.start(greet(name="Ada"))
            assert (await asyncio.wait_for(anext(followed), 10)).name == "job:enqueued"
            await until(lambda: is_at_rest(here), "the feed is at rest", timeout=20)

            await engine.claim(Way(there, is_async=True))

            assert (await asyncio.wait_for(anext(followed), 1.5)).name == "job:started"


@pytest.mark.source("JC-65")
async def test_without_a_hint_the_poll_finds_what_happened(
    database: str, new_holdfast: NewHoldfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.events.poller.SleepMark", partial(SleepMark, poll=0.2))
    deaf = Runtime(file_mark=lambda path: None, has_file_alarms=False)
    follows = new_holdfast(database, tasks=[TASKS], runtime=deaf, transaction_pooler=True)
    works = new_holdfast(database, tasks=[TASKS])
    async with follows, works:
        async with follows.events() as followed:
            await works.start(greet(name="Ada"))

            assert (await asyncio.wait_for(anext(followed), 10)).name == "job:enqueued"


async def test_a_writer_open_elsewhere_holds_up_no_stream(new_holdfast: NewHoldfast, empty_url: str) -> None:
    """F-52, Q-08."""
    hf = new_holdfast("postgres", tasks=[TASKS])
    async with hf, writer_elsewhere(empty_url), hf.events() as followed:
        for _ in range(5):
            chain = await hf.start(greet(name="Ada"))
            event = await asyncio.wait_for(anext(followed), 2.5)
            assert event.job is not None
            assert event.job.id == chain.id


async def test_a_claim_hints_nobody_but_who_follows_the_log(new_holdfast: NewHoldfast, empty_url: str) -> None:
    hf = new_holdfast("postgres", tasks=[TASKS])
    async with hf, await psycopg.AsyncConnection.connect(empty_url, autocommit=True) as connection:
        await connection.execute(f'LISTEN "{channel(hf.settings.schema_name)}"')
        async with hf.events():
            await until(lambda: is_at_rest(hf), "the feed is at rest", timeout=20)
            await hf.start(greet(name="Ada"))
            await engine.claim(Way(hf, is_async=True))

            words = [each.payload async for each in connection.notifies(timeout=10, stop_after=2)]
    assert words == ["", READERS_ONLY]


def test_a_hint_of_the_log_is_for_those_who_follow_it() -> None:
    hints = Hints(lambda tell: NoListener())
    heard: list[str] = []
    hints.watch(lambda: heard.append("plain"))
    hints.watch(lambda: heard.append("follows"), follows_log=True)

    hints.notify(of_log=True)
    assert heard == ["follows"]
    hints.notify()
    assert heard == ["follows", "plain", "follows"]


async def test_an_idle_feed_issues_less_than_one_statement_a_second(
    database: str, new_holdfast: NewHoldfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-59: on SQLite it looks every two seconds, on PostgreSQL every thirty."""
    hf = new_holdfast(database, tasks=[TASKS])
    statements: list[str] = []
    async with hf:
        async with hf.events():
            await until(lambda: is_at_rest(hf), "the feed is at rest", timeout=20)
            monkeypatch.setattr(hf.store, "read_sync", counting(hf.store.read_sync, statements))
            monkeypatch.setattr(hf.store, "run_sync", counting(hf.store.run_sync, statements))

            await asyncio.sleep(1.5)  # what is tested is that nothing happens

            assert len(statements) < 2


def counting(call: Any, statements: list[str]) -> Any:
    def counted(operation: Any, *args: Any, **kwargs: Any) -> Any:
        statements.append(operation.__name__)
        return call(operation, *args, **kwargs)

    return counted


async def test_a_stream_can_be_closed_while_a_thread_waits_in_it(database: str, new_holdfast: NewHoldfast) -> None:
    hf = new_holdfast(database, tasks=[TASKS])
    followed = hf.sync.events()
    with followed:
        waiting = asyncio.create_task(asyncio.to_thread(list, followed))
        await until(lambda: followed.stream._notify is not None, "a thread waits")  # type: ignore[attr-defined]

        followed.close()

        assert await asyncio.wait_for(waiting, 10) == []
