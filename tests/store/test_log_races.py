"""Reading the log while transactions overlap: nothing missed, doubled, out of order or held up (I-44, I-71; M9, M17).

On PostgreSQL a transaction that commits later may have a lower number, and may have drawn a lower `seq`. On SQLite one
transaction writes at a time.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from holdfast.errors import CursorExpired
from holdfast.states import Status
from holdfast.store.chains import creation
from holdfast.store.jobs import claiming, settling
from holdfast.store.jobs.settling import Settlement
from holdfast.store.log import events, pruning
from holdfast.store.log import reading as log
from holdfast.store.log.events import NewEvent
from holdfast.store.log.reading import LoggedEvent
from tests.store.engine import DONE, WANTS
from tests.store.half import Half
from tests.store.log_readers import LogReader, writer_elsewhere
from tests.support.factories import a_start, greet, seq_of
from tests.support.ways import Way

DRAW = "SELECT pg_current_xact_id()"


async def test_what_commits_late_with_a_low_number_is_not_missed(way_pg: Way, begin: Any) -> None:
    reader = await LogReader.from_now(way_pg)
    late, early = await begin(), await begin()

    await late.run(creation.start, [a_start(task="late")])
    await early.run(creation.start, [a_start(task="early")])
    await early.commit()
    first = [each.job.task for each in await reader.events() if each.job]
    await late.commit()
    second = [each.job.task for each in await reader.events() if each.job]

    assert (first, second) == (["early"], ["late"])
    assert await reader.names() == []


@pytest.mark.parametrize("most", [1, 2, 100])
async def test_events_of_a_job_come_in_commit_order_against_the_order_of_xids(
    way_pg: Way,
    begin: Any,
    most: int,
) -> None:
    """F-52, Q-08."""
    reader = await LogReader.from_now(way_pg, most)
    await way_pg.face.start(greet(name="Ada"))
    finisher, claimer = await begin(), await begin()
    await finisher.connection.execute(DRAW)  # it has the lower number, and commits last

    (job,) = await claimer.run(claiming.claim, WANTS, 1, "worker-1", "one")
    await claimer.commit()
    await finisher.run(settling.settle, [Settlement(job.token, DONE)])
    await finisher.commit()

    assert await reader.names() == ["job:enqueued", "job:started", "job:completed", "chain:completed"]


async def test_who_reads_in_between_gets_each_once_and_can_come_back_anywhere(way_pg: Way, begin: Any) -> None:
    reader = await LogReader.from_now(way_pg, 2)
    open_ones = [await begin() for _ in range(4)]
    for number, each in enumerate(open_ones):
        await each.run(creation.start, [a_start(task=f"task-{number}-{twin}") for twin in range(3)])
    every = []

    for number in (3, 0, 2, 1):
        await open_ones[number].commit()
        every += await reader.told()

    tasks = [each.event.job.task for each in every if each.event.job]
    assert tasks == [f"task-{number}-{twin}" for number in (3, 0, 2, 1) for twin in range(3)]
    for number, each in enumerate(every, 1):
        again = await LogReader.behind(way_pg, each.event.cursor, 2).told()
        assert sorted(rest.position for rest in again) == sorted(rest.position for rest in every[number:])


async def test_a_page_that_was_begun_is_finished_as_it_was_seen(way_pg: Way, begin: Any) -> None:
    reader = await LogReader.from_now(way_pg)
    late = await begin()
    await late.run(creation.start, [a_start(task="late")])
    await way_pg.face.start_many([greet(name="Ada"), greet(name="Bob")])
    page = await way_pg.read(log.since, reader.cursor, 1)

    await late.commit()  # its seq is below all that was read
    rest = [each.job.task for each in await LogReader(way_pg, page.cursor, 1).events() if each.job]

    assert rest == ["greet", "late"]


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_writer_that_stays_open_holds_nothing_up(way_pg: Way, begin: Any, where: str) -> None:
    """F-52, Q-08."""
    async with writer_elsewhere(way_pg.hf.settings.database):
        if where == "here":
            await (await begin()).connection.execute(DRAW)
        reader = await LogReader.from_now(way_pg)

        for _ in range(3):
            await way_pg.face.start(greet(name="Ada"))
            assert await reader.names() == ["job:enqueued"]


async def test_a_transaction_that_rolls_back_tells_nothing(way_pg: Way, begin: Any) -> None:
    reader = await LogReader.from_now(way_pg)
    undone = await begin()
    await undone.run(creation.start, [a_start()])
    assert await reader.names() == []

    await undone.connection.rollback()
    await way_pg.face.start(greet(name="Ada"))

    assert await reader.names() == ["job:enqueued"]


async def test_a_writer_that_is_older_than_what_was_removed_ends_no_reader(way_pg: Way) -> None:
    async with writer_elsewhere(way_pg.hf.settings.database):
        await way_pg.call(old_event)
        assert await way_pg.call(pruning.prune, 500)
        reader = await LogReader.from_now(way_pg)

        await way_pg.face.start(greet(name="Ada"))

        assert await reader.names() == ["job:enqueued"]


async def test_an_older_writer_that_ends_ends_no_reader_who_came_after_a_removal(way_pg: Way, begin: Any) -> None:
    older = await begin()
    await older.connection.execute(DRAW)
    await way_pg.call(old_event)
    assert await way_pg.call(pruning.prune, 500)
    reader = await LogReader.from_now(way_pg)

    await older.run(creation.start, [a_start(task="late")])
    await older.commit()

    assert await reader.names() == ["job:enqueued"]


async def test_who_came_before_the_last_removal_is_told(way_pg: Way) -> None:
    await way_pg.call(old_event)
    assert await way_pg.call(pruning.prune, 500)
    reader = await LogReader.from_now(way_pg)
    await way_pg.call(old_event)
    assert await way_pg.call(pruning.prune, 500)

    with pytest.raises(CursorExpired, match="removed for their age"):
        await reader.names()


@pytest.fixture
async def from_a_dump(way_pg: Way) -> None:
    """A job and a log from which something was removed, by transactions whose numbers are still to come here."""
    await way_pg.face.start(greet(name="Ada"))
    await way_pg.call(old_event)
    assert await way_pg.call(pruning.prune, 500)
    await way_pg.call(old_event)
    await way_pg.call(count_further)


async def count_further(tx: Any) -> None:
    further = "CAST(CAST(value AS bigint) + 1000000000 AS text)"
    await tx.execute("UPDATE holdfast_event SET xid = xid + 1000000000")
    await tx.execute(f"UPDATE holdfast_meta SET value = {further} WHERE key LIKE 'log_trimmed%'")


@pytest.mark.usefixtures("from_a_dump")
async def test_what_came_by_a_dump_from_a_server_that_had_counted_further_is_not_new(way_pg: Way) -> None:
    reader = await LogReader.from_now(way_pg)

    await way_pg.face.start(greet(name="Bob"))

    async with asyncio.timeout(10):
        assert await reader.names() == ["job:enqueued"]
        assert await reader.names() == []


@pytest.mark.usefixtures("from_a_dump")
async def test_who_misses_something_that_was_removed_after_a_dump_is_told(way_pg: Way) -> None:
    reader = await LogReader.from_now(way_pg)
    await way_pg.call(old_event)

    assert await way_pg.call(pruning.prune, 500) == 2

    with pytest.raises(CursorExpired, match="removed for their age"):
        await reader.names()


async def old_event(tx: Any) -> None:
    await tx.execute("INSERT INTO holdfast_event (job, name, at, facts) VALUES (0, 'lane:paused', $now - 1000, '{}')")


async def test_every_role_that_may_read_the_log_may_ask_for_the_place_in_it(way_pg: Way, begin: Any) -> None:
    half = await begin()
    await half.connection.execute("CREATE ROLE holdfast_plain")
    await half.connection.execute("GRANT USAGE ON SCHEMA contract TO holdfast_plain")
    await half.connection.execute("GRANT SELECT ON contract.holdfast_meta, contract.holdfast_event TO holdfast_plain")
    await half.connection.execute("SET LOCAL ROLE holdfast_plain")

    found = await half.run(log.now)

    assert found.origin == (await way_pg.read(log.now)).origin
    await half.connection.rollback()


@pytest.mark.parametrize("rounds", [15, pytest.param(400, marks=pytest.mark.long)], ids=["for a moment", "for long"])
async def test_a_crowd_whose_transactions_overlap_is_told_completely_and_in_order(
    way_pg: Way, begin: Any, rounds: int
) -> None:
    """F-52: everybody draws a number at once, writes about some job when its row is free, and commits when it likes."""
    started = await way_pg.face.start_many([greet(name="Ada")] * 4)
    seqs = [await seq_of(way_pg, chain.id) for chain in started]
    reader = await LogReader.from_now(way_pg)
    chance = random.Random(7)
    crowd = [await begin() for _ in range(6)]
    is_over = asyncio.Event()

    async def write(half: Half) -> None:
        for _ in range(rounds):
            await half.connection.execute(DRAW)
            await asyncio.sleep(chance.random() / 200)
            await touch(half.tx, chance.choice(seqs))
            await asyncio.sleep(chance.random() / 500)
            await half.connection.commit()

    async def read() -> list[LoggedEvent]:
        every: list[LoggedEvent] = []
        while True:
            has_ended = is_over.is_set()
            again = LogReader.behind(way_pg, reader.cursor.text, chance.randint(1, 9))
            every += await again.told()
            reader.cursor = again.cursor
            if has_ended:
                return every

    reading = asyncio.create_task(read())
    async with writer_elsewhere(way_pg.hf.settings.database):
        await asyncio.gather(*map(write, crowd))
    is_over.set()
    told = await reading

    assert len(told) == len({each.position for each in told}) == rounds * len(crowd)
    for chain in started:
        versions = [each.event.version for each in told if each.event.job and each.event.job.id == chain.id]
        assert versions == sorted(versions, key=lambda version: version or 0)


TOUCH = "UPDATE holdfast_job SET version = version + 1 WHERE seq = :seq RETURNING version"


async def touch(tx: Any, seq: int) -> None:
    """Change a job, and say so."""
    ((version,),) = await tx.fetch_all(TOUCH, seq=seq)
    await events.append(tx, [NewEvent(seq, "job:progress", Status.PENDING, version, 0)])
