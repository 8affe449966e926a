"""Joining, step by step: whatever happens between its steps comes once, and resumes where it was (DESIGN §9, I-44).

The feed's thread is stood still: a test says when it looks.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.database.postgres import AsyncPostgresTx
from holdfast.database.tx import Runner, Store
from holdfast.events import feed as feeds
from holdfast.events import page_cache
from holdfast.events.feed import Feed, Follower
from holdfast.models import Event
from holdfast.runtime import Runtime
from holdfast.store.chains import creation
from holdfast.store.log import reading
from tests.support.factories import TASKS, a_start, greet

NewHoldfast = Callable[..., Holdfast]


class StillShell:
    """A thread that never runs."""

    def __init__(self, step: object, name: str) -> None: ...

    def wake(self) -> None: ...

    def stop(self) -> None: ...


class Interrupted:
    """A runner after each of whose reads something happens."""

    def __init__(self, at: Runner, happen: Callable[[], Awaitable[None]]) -> None:
        self._at = at
        self._happen = happen

    async def run(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        """Run *operation* in a write transaction."""
        return await self._at.run(operation, *args, **kwargs)

    async def read(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        """Run *operation*, which only reads; then have something happen."""
        found = await self._at.read(operation, *args, **kwargs)
        await self._happen()
        return found

    async def gather(self, operation: Any, items: Any) -> Any:
        """Run a list operation."""
        return await self._at.gather(operation, items)


@pytest.fixture
async def hf(database: str, new_holdfast: NewHoldfast) -> AsyncIterator[Holdfast]:
    """A face that is open."""
    async with new_holdfast(database, tasks=[TASKS]) as hf:
        yield hf


@pytest.fixture
async def feed(hf: Holdfast) -> AsyncIterator[Feed]:
    """A feed that stands still, and is followed by somebody."""
    feed = Feed(hf.store, Runtime(stepper=StillShell))
    first = feed.follow()
    await first.join(hf.store)
    yield feed
    feed.close()


async def everything(follower: Follower, store: Store) -> list[Event]:
    """Take what there is."""
    taken = []
    while (event := await follower.take(store)) is not None:
        taken.append(event)
    return taken


def names(events: list[Event]) -> list[str]:
    return [event.job.input for event in events if event.job]


async def test_what_happens_while_one_joins_is_not_missed(hf: Holdfast, feed: Feed) -> None:
    cursor = await hf.cursor()
    await hf.start(greet(name="before"))

    async def happen() -> None:
        await hf.start(greet(name="meanwhile"))
        feed.here.look()

    follower = feed.follow(cursor)
    await follower.join(Interrupted(hf.store, happen))
    feed.here.look()

    assert names(await everything(follower, hf.store)) == ['{"name":"before"}', '{"name":"meanwhile"}']


async def test_what_happens_while_one_joins_from_now_on_is_not_missed(hf: Holdfast, feed: Feed) -> None:
    async def happen() -> None:
        await hf.start(greet(name="meanwhile"))
        feed.here.look()

    follower = feed.follow()
    await follower.join(Interrupted(hf.store, happen))

    assert names(await everything(follower, hf.store)) == ['{"name":"meanwhile"}']


async def test_what_happens_while_the_first_one_joins_is_not_missed(hf: Holdfast) -> None:
    feed = Feed(hf.store, Runtime(stepper=StillShell))
    cursor = await hf.cursor()
    started: list[str] = []

    async def happen() -> None:
        started.append(str(len(started)))
        await hf.start(greet(name=started[-1]))
        feed.here.look()

    follower = feed.follow(cursor)
    await follower.join(Interrupted(hf.store, happen))
    feed.here.look()

    assert names(await everything(follower, hf.store)) == [f'{{"name":"{name}"}}' for name in started]
    feed.close()


async def test_what_one_has_read_by_itself_does_not_come_again_from_the_feed(hf: Holdfast, feed: Feed) -> None:
    cursor = await hf.cursor()
    await hf.start(greet(name="before"))
    follower = feed.follow(cursor)
    await follower.join(hf.store)

    feed.here.look()
    await hf.start(greet(name="after"))
    feed.here.look()

    assert names(await everything(follower, hf.store)) == ['{"name":"before"}', '{"name":"after"}']


async def test_a_cursor_from_the_feed_resumes_behind_what_was_read_by_itself(new_holdfast: NewHoldfast) -> None:
    """One that was written first commits last: its number is below that of one that has been seen."""
    hf = new_holdfast("postgres", tasks=[TASKS])
    feed = Feed(hf.store, Runtime(stepper=StillShell))
    async with hf, await psycopg.AsyncConnection.connect(hf.settings.database) as connection:
        first = feed.follow()
        await first.join(hf.store)
        cursor = await hf.cursor()
        await creation.start(AsyncPostgresTx(connection, hf.store.dialect), [a_start(input='"late"')])
        await hf.start_many([greet(name="Ada"), greet(name="Bob")])
        follower = feed.follow(cursor)
        read = names(await everything(follower, hf.store))

        await connection.commit()
        feed.here.look()
        (late,) = await everything(follower, hf.store)
        again = feed.follow(late.cursor)

        assert len(read) == 2
        assert names([late]) == ['"late"']
        assert await everything(again, hf.store) == []
        assert await everything(feed.follow(follower.cursor), hf.store) == []
        feed.close()


async def test_lines_that_were_read_before_one_joined_are_not_taken_for_the_last(
    hf: Holdfast, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "PAGE", 1)
    cursor = await hf.cursor()
    await hf.start_many([greet(name=name) for name in "abc"])
    earlier = feed.follow(cursor)
    event = await earlier.take(hf.store)  # it has read the lines of all three
    await hf.start(greet(name="d"))
    feed.here.look()
    assert event is not None

    follower = feed.follow(event.cursor)

    assert names(await everything(follower, hf.store)) == [f'{{"name":"{name}"}}' for name in "bcd"]
    assert names(await everything(earlier, hf.store)) == [f'{{"name":"{name}"}}' for name in "bcd"]


async def test_who_has_much_to_catch_up_on_reads_its_lines_once(
    hf: Holdfast, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL a read costs as much as all that is new."""
    monkeypatch.setattr(page_cache, "PAGE", 2)
    reads: list[Any] = []
    since = reading.since

    async def counting(tx: Any, cursor: Any, most: int) -> Any:
        reads.append(cursor)
        return await since(tx, cursor, most)

    cursor = await hf.cursor()
    await hf.start_many([greet(name="Ada")] * 40)
    monkeypatch.setattr(reading, "since", counting)
    follower = feed.follow(cursor)

    assert len(await everything(follower, hf.store)) == 40
    assert len(reads) <= 3


@pytest.fixture
def jobs_read(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Small pages, and the rows of jobs that are read for them."""
    rows: list[Any] = []

    class Counted(reading.StoredJob):
        """A row that is counted."""

        def __init__(self, row: Any) -> None:
            super().__init__(row)
            rows.append(row)

    monkeypatch.setattr(page_cache, "PAGE", 1)
    monkeypatch.setattr(reading, "StoredJob", Counted)
    return rows


async def lives(hf: Holdfast) -> str:
    """Have two jobs come and end; give the cursor before that."""
    cursor = await hf.cursor()
    for chain in await hf.start_many([greet(name="Ada"), greet(name="Bob")]):
        await hf.complete(greet, chain, "Hello")
    return cursor


LIVES = ["job:enqueued"] * 2 + ["job:completed", "chain:completed"] * 2


async def test_a_job_is_read_once_for_all_events_that_were_found_with_it(
    hf: Holdfast, feed: Feed, jobs_read: list[Any]
) -> None:
    await everything(feed.follow(await lives(hf)), hf.store)  # the store learns that this needs a transaction
    follower = feed.follow(await lives(hf))
    jobs_read.clear()

    assert [event.name for event in await everything(follower, hf.store)] == LIVES
    assert len(jobs_read) == 2


async def test_a_job_that_was_read_long_ago_is_read_again(hf: Holdfast, jobs_read: list[Any]) -> None:
    clock = Clock()
    feed = Feed(hf.store, Runtime(stepper=StillShell, monotonic=clock))
    follower = feed.follow(await lives(hf))
    names = []

    while (event := await follower.take(hf.store)) is not None:
        names.append(event.name)
        clock.now += page_cache.KEPT_SECONDS

    assert names == LIVES
    assert len(jobs_read) == 4
    feed.close()


@pytest.mark.usefixtures("jobs_read")
async def test_an_event_never_comes_with_its_job_as_it_was_before(hf: Holdfast, feed: Feed) -> None:
    cursor = await hf.cursor()
    ada, bob = await hf.start_many([greet(name="Ada"), greet(name="Bob")])
    follower = feed.follow(cursor)
    await follower.take(hf.store)  # the lines of both, and the job of the first

    await hf.cancel(ada)
    rest = await everything(follower, hf.store)

    assert [(event.name, event.job and event.job.status) for event in rest] == [
        ("job:enqueued", "pending"),
        ("job:cancelled", "cancelled"),
    ]
    assert rest[0].job is not None
    assert rest[0].job.id == bob.id


@pytest.mark.usefixtures("jobs_read")
async def test_who_resumes_inside_lines_that_were_read_before_misses_none(hf: Holdfast, feed: Feed) -> None:
    """Also between the two events of one row."""
    every = await everything(feed.follow(await lives(hf)), hf.store)

    for number, event in enumerate(every, start=1):
        again = await everything(feed.follow(event.cursor), hf.store)

        assert [each.name for each in again] == LIVES[number:]
        assert [each.cursor for each in again] == [each.cursor for each in every[number:]]


async def test_a_job_is_decoded_once_for_all_who_follow(hf: Holdfast, feed: Feed) -> None:
    decoded: list[str] = []

    def decode(task: str, text: str, output: str | None) -> tuple[Any, Any]:
        decoded.append(text)
        return json.loads(text), output

    followers = [feed.follow(decode=decode) for _ in range(3)]
    for each in followers:
        await each.join(hf.store)
    await lives(hf)
    feed.here.look()
    taken = [await everything(each, hf.store) for each in followers]

    assert decoded == ['{"name":"Ada"}', '{"name":"Bob"}']
    assert [[event.job.input["name"] for event in each if event.job] for each in taken] == [
        ["Ada", "Bob", "Ada", "Ada", "Bob", "Bob"]
    ] * 3


# ---- who is waited for


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pages and small buffers."""
    monkeypatch.setattr(page_cache, "PAGE", 4)
    monkeypatch.setattr(page_cache, "HANDED", 4)
    monkeypatch.setattr(feeds, "BUFFER", 10)
    monkeypatch.setattr(feeds, "BRISK", 3)


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def crowded(hf: Holdfast, *, is_awaited: bool) -> tuple[Feed, Follower, Clock]:
    """Have one follow, and more happen than its buffer holds."""
    clock = Clock()
    feed = Feed(hf.store, Runtime(stepper=StillShell, monotonic=clock))
    follower = feed.follow(is_awaited=is_awaited)
    await follower.join(hf.store)
    await hf.start_many([greet(name="Ada")] * 30)
    feed.here.look()
    return feed, follower, clock


@pytest.mark.usefixtures("small")
async def test_one_who_takes_briskly_and_asks_for_it_is_waited_for(hf: Holdfast) -> None:
    feed, follower, clock = await crowded(hf, is_awaited=True)
    taken = 0

    while taken < 30:
        assert not follower.is_behind
        clock.now += feeds.PATIENCE_SECONDS * 0.9
        taken += len([event for _ in range(4) if (event := await follower.take(hf.store)) is not None])
        feed.here.look()

    assert taken == 30
    feed.close()


@pytest.mark.usefixtures("small")
async def test_one_who_takes_only_some_is_not_waited_for_long(hf: Holdfast) -> None:
    feed, follower, clock = await crowded(hf, is_awaited=True)
    assert not follower.is_behind

    await follower.take(hf.store)
    clock.now += feeds.PATIENCE_SECONDS * 1.1
    feed.here.look()

    assert follower.is_behind
    assert len(await everything(follower, hf.store)) == 29
    feed.close()


@pytest.mark.usefixtures("small")
async def test_one_who_did_not_ask_for_it_is_not_waited_for(hf: Holdfast) -> None:
    feed, follower, _ = await crowded(hf, is_awaited=False)

    assert follower.is_behind
    assert len(await everything(follower, hf.store)) == 30
    feed.close()
