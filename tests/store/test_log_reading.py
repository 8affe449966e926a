"""Reading the log: everything once, in commit order per job, from any place; or an error, never a gap (I-43, I-44)."""

from __future__ import annotations

import json
from uuid import UUID, uuid4

import pytest

from holdfast.database.tx import Tx
from holdfast.errors import CursorExpired, JobNotFound, UsageError
from holdfast.models import INTERNAL_QUEUE, JobEvent
from holdfast.states import Status
from holdfast.store.log import events, pruning, reading
from holdfast.store.log.events import NewEvent
from holdfast.store.log.reading import LoggedEvent
from holdfast.wire.cursors import Cursor, SeqCursor, Snapshot, SnapshotCursor, read_cursor
from tests.store.engine import DONE, FAIL, claim_all, run, settle
from tests.store.log_readers import LogReader
from tests.support.conditions import until
from tests.support.factories import counted, greet, make_job, now_ms, seq_of
from tests.support.ways import Way


async def lead_lives(way: Way) -> None:
    """Have three jobs come, run and end, one after the other and crosswise."""
    await way.face.start_many([greet(name="Ada"), greet(name="Bob")])
    claimed = await claim_all(way)
    await settle(way, (claimed[1].token, FAIL), (claimed[0].token, DONE))
    third = await way.face.start(greet(name="Eve"))
    await way.face.cancel(third)


LIVES = [
    "job:enqueued",
    "job:enqueued",
    "job:started",
    "job:started",
    "job:completed",
    "job:failed",
    "job:enqueued",
    "job:cancelled",
]


def in_short(told: list[LoggedEvent]) -> list[tuple[str, int]]:
    return [(each.event.name, each.position.place) for each in told]


async def test_now_is_behind_all_that_is_committed(way: Way) -> None:
    await lead_lives(way)

    reader = await LogReader.from_now(way)

    assert await reader.names() == []


async def test_a_cursor_ends_behind_the_last_event_whatever_else_was_written(way: Way) -> None:
    """Who counted what was rolled back would miss events after a crash of the server, which gives its number again."""
    reader = await LogReader.from_now(way)
    await way.face.start(greet(name="Ada"))
    await reader.names()
    before = end_of(await way.read(reading.now)), end_of(reader.cursor)

    for _ in range(3):
        with pytest.raises(JobNotFound):
            await way.call(write_and_fail)

    assert await reader.names() == []
    assert before == (end_of(await way.read(reading.now)), end_of(reader.cursor))


def end_of(cursor: Cursor) -> int:
    """Give how far *cursor* has come; others may have been writing in other databases of the server."""
    return cursor.seen.xmax if isinstance(cursor, SnapshotCursor) else cursor.place


async def write_and_fail(tx: Tx) -> None:
    """Write something that is rolled back."""
    await tx.execute("UPDATE holdfast_job SET priority = 1")
    raise JobNotFound(uuid4())


async def test_an_empty_log_can_be_read(way: Way) -> None:
    assert await (await LogReader.from_now(way)).names() == []


@pytest.mark.parametrize("most", [1, 3, 100])
async def test_what_is_committed_comes_once_and_in_its_order_in_pages_of_any_size(way: Way, most: int) -> None:
    reader = await LogReader.from_now(way, most)
    await lead_lives(way)

    names = [name for name in await reader.names() if name != "chain:completed"]

    assert sorted(names) == sorted(LIVES)
    assert names[:4] == LIVES[:4]
    assert names[-2:] == LIVES[-2:]
    assert await reader.names() == []


@pytest.mark.parametrize("most", [2, 100])
async def test_who_comes_back_behind_any_event_gets_exactly_the_rest(way: Way, most: int) -> None:
    reader = await LogReader.from_now(way, most)
    await lead_lives(way)
    every = await reader.told()

    for number, each in enumerate(every, 1):
        again = LogReader.behind(way, each.event.cursor, most)
        assert in_short(await again.told()) == in_short(every[number:])


async def test_a_cursor_in_a_page_has_seen_what_stands_before_it_and_nothing_else(way: Way) -> None:
    reader = await LogReader.from_now(way)
    await lead_lives(way)
    every = await reader.told()

    for number, each in enumerate(every, 1):
        cursor = read_cursor(each.event.cursor)
        assert cursor == each.cursor
        assert all(cursor.has_seen(earlier.position) for earlier in every[:number])
        assert not any(cursor.has_seen(later.position) for later in every[number:])


async def test_what_happens_while_pages_are_read_comes_behind_them(way: Way) -> None:
    reader = await LogReader.from_now(way)
    first, second = await way.face.start_many([greet(name="Ada"), greet(name="Bob")])
    page = await way.read(reading.since, reader.cursor, 1)
    third = await way.face.start(greet(name="Eve"))

    rest = LogReader(way, page.cursor, 1)
    jobs = [each.job.id for each in await rest.events() if each.job]

    assert [each.event.job.id for each in await way.read(reading.to_events, page) if each.event.job] == [first.id]
    assert jobs == [second.id, third.id]


@pytest.mark.source("PQ-37")
async def test_an_event_tells_how_the_job_was_and_brings_the_job_as_it_is(way: Way) -> None:
    reader = await LogReader.from_now(way)
    before = now_ms()
    chain = await way.face.start(greet(name="Ada"))
    await run(way)

    first = (await reader.events())[0]

    assert isinstance(first, JobEvent)
    assert (first.name, first.status, first.version, first.attempt) == ("job:enqueued", "pending", 1, 0)
    assert (first.job.id, first.job.status, first.job.input) == (chain.id, "completed", '{"name":"Ada"}')
    assert before - 1 <= first.at.timestamp() * 1000 <= now_ms() + 1


@pytest.mark.source("PQ-34")
async def test_a_job_is_never_older_than_its_event(way: Way) -> None:
    reader = await LogReader.from_now(way)
    await lead_lives(way)

    for event in await reader.events():
        assert event.job is not None
        assert event.version is not None
        assert event.job.version >= event.version


async def test_the_facts_of_an_event_can_be_read(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    reader = await LogReader.from_now(way)

    await way.face.cancel(chain, by="Eve", why="not today")

    (event,) = await reader.events()
    assert event.facts == {"by": "Eve", "reason": "not today"}


async def test_of_a_deleted_job_only_its_end_is_told(way: Way) -> None:
    reader = await LogReader.from_now(way)
    chain = await way.face.start(greet(name="Ada"))
    await way.face.delete(chain)

    (event,) = await reader.events()

    assert (event.name, event.deleted_job_id, event.job) == ("job:deleted", chain.id, None)


async def test_lanes_and_queues_are_told_by_their_names(way: Way) -> None:
    reader = await LogReader.from_now(way)

    await way.call(events.append, [NewEvent(0, "lane:paused", facts='{"lane":"a"}')])
    await way.call(events.append, [NewEvent(0, "queue:paused", facts='{"queue":"sums"}')])

    told = [(each.name, each.lane, each.queue, each.job) for each in await reader.events()]
    assert told == [("lane:paused", "a", None, None), ("queue:paused", None, "sums", None)]


async def test_the_engines_own_jobs_are_left_out(way: Way) -> None:
    reader = await LogReader.from_now(way, 1)
    internal = await seq_of(way, await make_job(way, queue=INTERNAL_QUEUE, task="holdfast.deliver"))
    await way.call(events.append, [NewEvent(internal, "job:enqueued")])
    await way.face.start(greet(name="Ada"))
    await way.call(events.append, [NewEvent(internal, "job:started")])
    await way.call(events.append, [NewEvent(0, "lane:paused", facts='{"lane":"holdfast.webhook.a"}')])
    await way.call(events.append, [NewEvent(0, "queue:paused", facts='{"queue":"holdfast.internal"}')])

    assert await reader.names() == ["job:enqueued"]
    assert await reader.names() == []


@pytest.mark.parametrize(("size", "statements"), [(0, 1), (1, 2), (100, 2)])
async def test_any_number_of_events_takes_two_statements(way: Way, size: int, statements: int) -> None:
    cursor = await way.read(reading.now)
    if size:
        await way.face.start_many([greet(name="Ada")] * size)

    async def read(tx: Tx) -> None:
        found = await reading.since(tx, cursor, 100)
        assert len(await reading.to_events(tx, found)) == size

    assert len(await way.read(counted, read)) == statements


# ---- cursors that lead nowhere


async def test_a_cursor_of_another_database_is_refused(way: Way) -> None:
    cursor = (await way.read(reading.now))._replace(origin="0123456789abcdef")

    with pytest.raises(CursorExpired, match="another database"):
        await way.read(reading.since, cursor, 10)


async def test_a_cursor_of_the_other_kind_of_database_is_refused(way: Way) -> None:
    origin = (await way.read(reading.now)).origin
    foreign = SeqCursor(origin, 1) if way.database == "postgres" else SnapshotCursor(origin, Snapshot(9))

    with pytest.raises(CursorExpired, match="another database"):
        await way.read(reading.since, foreign, 10)


async def test_a_cursor_that_has_seen_what_never_was_is_refused(way: Way) -> None:
    """A backup was restored that is older than the cursor."""
    origin = (await way.read(reading.now)).origin
    later: Cursor = SeqCursor(origin, 10**9)
    if way.database == "postgres":
        later = SnapshotCursor(origin, Snapshot(10**15))

    with pytest.raises(CursorExpired, match="restored"):
        await way.read(reading.since, later, 10)


async def test_a_cursor_before_what_was_removed_for_its_age_has_expired(way: Way) -> None:
    reader = await LogReader.from_now(way)
    await way.call(events.append, [NewEvent(0, "lane:paused", facts='{"lane":"a"}')])
    between = (await LogReader.from_now(way)).cursor
    await way.call(events.append, [NewEvent(0, "lane:resumed", facts='{"lane":"a"}')])
    behind = (await LogReader.from_now(way)).cursor
    if isinstance(behind, SnapshotCursor):  # somebody may have been writing in another database of the server
        behind = behind._replace(seen=behind.seen._replace(in_progress=()))
    await way.call(forget_events)

    for cursor in (reader.cursor, between):
        with pytest.raises(CursorExpired, match="removed for their age") as caught:
            await way.read(reading.since, cursor, 10)
        assert "hf.cursor()" in str(caught.value)
    assert (await way.read(reading.since, behind, 10)).lines == ()


async def test_now_has_not_expired_when_everything_was_removed(way: Way) -> None:
    await way.call(events.append, [NewEvent(0, "lane:paused", facts='{"lane":"a"}')])
    await way.call(forget_events)

    reader = await LogReader.from_now(way)
    await way.face.start(greet(name="Ada"))

    assert await reader.names() == ["job:enqueued"]


async def test_now_has_not_expired_where_nobody_knows_who_removed_what_was_there(way: Way) -> None:
    """A dump that was restored names a transaction of another server, and older releases named none."""
    await way.call(events.append, [NewEvent(0, "lane:paused", facts='{"lane":"a"}')])
    await way.call(forget_events)
    await way.call(forget_who_removed)
    await until(lambda: way.read(has_nobody_older), "who wrote while it was removed is done")  # such as other tests

    reader = await LogReader.from_now(way)
    await way.face.start(greet(name="Ada"))

    assert await reader.names() == ["job:enqueued"]


OLDER = """SELECT $oldest > CAST(value AS bigint) FROM holdfast_meta WHERE key = :key"""


async def has_nobody_older(tx: Tx) -> bool:
    """Tell whether all transactions of the server are over that began before what was removed was written."""
    return tx.database == "sqlite" or (await tx.fetch_all(OLDER, key=pruning.TRIMMED)) == [(True,)]


async def forget_who_removed(tx: Tx) -> None:
    await tx.execute("DELETE FROM holdfast_meta WHERE key = :key", key=pruning.TRIMMED_BY)


async def forget_events(tx: Tx) -> None:
    """Remove what is of no job, as retention does it when it is old."""
    await tx.execute("UPDATE holdfast_event SET at = at - 1000")
    assert await pruning.prune(tx, 500)


# ---- the timeline of one job


async def test_a_timeline_has_the_events_of_one_job_and_no_others(way: Way) -> None:
    await way.face.start(greet(name="another"))
    chain = await way.face.start(greet(name="Ada"))
    await way.face.pause(chain, why="wait")
    await way.face.resume(chain)

    page = await way.face.timeline(chain)

    assert [each.name for each in page] == ["job:enqueued", "job:paused", "job:resumed"]
    assert [each.status for each in page] == ["pending", "paused", "pending"]
    assert {each.job.id for each in page} == {chain.id}
    assert page.items[1].facts == {"reason": "wait"}
    assert page.next_cursor is None


async def test_a_timeline_comes_in_pages(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await way.face.pause(chain)
    await way.face.resume(chain)

    first = await way.face.timeline(chain, limit=2)
    second = await way.face.timeline(chain, limit=2, cursor=first.next_cursor)

    assert [each.name for each in (*first, *second)] == ["job:enqueued", "job:paused", "job:resumed"]
    assert second.next_cursor is None


async def test_there_is_no_timeline_of_a_job_that_is_not_there(way: Way) -> None:
    with pytest.raises(JobNotFound):
        await way.face.timeline(uuid4())


async def test_a_cursor_of_another_list_is_no_page_of_a_timeline(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    cursor = await way.face.cursor()

    with pytest.raises(UsageError, match="cursor"):
        await way.face.timeline(chain, cursor=cursor)


async def test_a_cursor_is_a_short_text_of_harmless_letters(way: Way) -> None:
    reader = await LogReader.from_now(way)
    await lead_lives(way)

    for event in await reader.events():
        assert event.cursor.replace("-", "").replace("_", "").isalnum()
        assert len(event.cursor) < 300
        assert json.dumps(event.cursor) == f'"{event.cursor}"'


async def complete_one(way: Way) -> UUID:
    """Have a job complete its chain: both ends are one row."""
    await way.face.start(greet(name="Ada"))
    job_id = await run(way)
    assert await way.rows("SELECT name FROM holdfast_event WHERE name LIKE '%completed'") == [("job:completed",)]
    return job_id


async def test_the_end_of_a_job_and_of_its_chain_are_two_events_of_one_row(way: Way) -> None:
    reader = await LogReader.from_now(way)
    await complete_one(way)

    *_, job, chain = await reader.told()

    assert (job.event.name, chain.event.name) == ("job:completed", "chain:completed")
    assert job.event.facts == chain.event.facts == {}
    assert isinstance(job.event, JobEvent)
    assert isinstance(chain.event, JobEvent)
    assert (job.event.version, job.event.attempt, job.event.at) == (
        chain.event.version, chain.event.attempt, chain.event.at,
    )  # fmt: skip
    assert job.cursor.has_seen(job.position)
    assert not job.cursor.has_seen(chain.position)


async def test_who_stops_between_the_two_goes_on_with_the_second(way: Way) -> None:
    reader = await LogReader.from_now(way)
    await complete_one(way)
    *_, job, _ = await reader.told()

    again = LogReader(way, read_cursor(job.cursor.text))

    assert await again.names() == ["chain:completed"]
    assert await again.names() == []


@pytest.mark.parametrize("most", [1, 2, 3])
async def test_a_timeline_has_both_in_pages_of_any_size(way: Way, most: int) -> None:
    job_id = await complete_one(way)
    names: list[str] = []
    cursor: str | None = None
    while True:
        page = await way.face.timeline(job_id, limit=most, cursor=cursor)
        assert len(page.items) <= most
        names += [each.name for each in page.items]
        if (cursor := page.next_cursor) is None:
            break

    assert names == ["job:enqueued", "job:started", "job:completed", "chain:completed"]


async def test_facts_of_the_end_of_a_job_are_those_of_its_own_event(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    reader = await LogReader.from_now(way)

    await way.face.complete(greet, chain, "Hello", why='she said "closes"')

    told = {each.event.name: each.event.facts for each in await reader.told()}
    assert told["job:completed"]["reason"] == 'she said "closes"'
    assert "closes" not in told["job:completed"]
    assert told["chain:completed"] == {}


async def test_what_older_code_has_written_in_two_rows_is_read_as_before(way: Way) -> None:
    reader = await LogReader.from_now(way)
    job_id = await make_job(way, "completed")
    seq = await seq_of(way, job_id)
    for name in ("job:completed", "chain:completed"):  # one by one, so that each has its row
        await way.call(events.append, [NewEvent(seq, name, Status.COMPLETED, 3, 1)])

    assert await reader.names() == ["job:completed", "chain:completed"]
