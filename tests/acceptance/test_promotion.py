"""A replica takes its primary's place: followers of the log are told, and what it did not know is all that is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast import Chain, CursorExpired, Holdfast
from holdfast.errors import JobNotFound, Unavailable
from holdfast.events.feed import Follower
from holdfast.testing import PostgresServer, PostgresUnavailable, postgres, temporary_postgres
from tests.acceptance.hall import Crowd, Hall, rows, until_counts
from tests.support.conditions import until
from tests.support.databases.standby import Standby, temporary_standby
from tests.support.factories import TASKS, greet


def both(primary: PostgresServer, standby: PostgresServer) -> str:
    """Name both servers in one address; the one that can be written is the one that counts."""
    first, second = urlsplit(primary.url), urlsplit(standby.url)
    return first._replace(netloc=f"{first.netloc},{second.hostname}:{second.port}").geturl()


def take_its_place(primary: PostgresServer, standby: Standby) -> None:
    standby.catch_up()
    primary.stop("immediate")
    standby.promote()


async def follow_on(followed: Follower) -> None:
    while True:
        await anext(followed)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[PostgresServer, Standby]]:
    """A server of our own, and one that follows it."""
    monkeypatch.delenv(postgres.URL_VARIABLE, raising=False)
    try:
        with temporary_postgres() as primary, temporary_standby(primary) as standby:
            yield primary, standby
    except PostgresUnavailable as error:
        pytest.skip(str(error))


async def test_a_promotion_ends_every_stream_and_every_cursor_from_before(
    pair: tuple[PostgresServer, Standby],
) -> None:
    """F-19, I-44, Q-08."""
    primary, standby = pair
    hf = Holdfast(both(primary, standby), tasks=[TASKS])
    await hf.migrate()
    async with hf, hf.events() as followed:
        before = await hf.start(greet(name="Ada"))
        event = await asyncio.wait_for(anext(followed), 10)

        await asyncio.to_thread(take_its_place, primary, standby)
        with pytest.raises(CursorExpired, match="failed over"):
            await asyncio.wait_for(follow_on(followed), 30)

        with pytest.raises(CursorExpired, match="failed over"):
            async with hf.events(event.cursor):
                pass
        async with hf.events() as anew:
            after = await hf.start(greet(name="Bob"))
            told = await asyncio.wait_for(anext(anew), 10)
        assert told.job is not None
        assert told.job.id == after.id
        assert (await hf.get_job(before)).status == "pending"
        await until(lambda: not hf._feed.here.poller.is_failing, "the feed reads again")


def lose_what_was_not_replicated(primary: PostgresServer, standby: Standby) -> None:
    primary.stop("immediate")
    standby.promote()


async def token_of(hf: Holdfast, chain: Chain[Any]) -> tuple[Any, ...]:
    (found,) = await rows(hf, "SELECT attempt, nonce FROM holdfast_job WHERE id = :id", id=str(chain.id))
    return found


@pytest.mark.long
async def test_a_promotion_loses_what_was_not_replicated_and_nothing_else(
    pair: tuple[PostgresServer, Standby],
) -> None:
    """F-19, F-20, P-25, I-10, I-23: a claim that is lost is made again, under another token, and nothing runs twice."""
    primary, standby = pair
    hall, busy = Hall(lease=5.0), Crowd()
    hf = Holdfast(both(primary, standby), tasks=[hall.tasks], deadline_seconds=2)
    alone = Holdfast(standby.url, tasks=[hall.tasks], deadline_seconds=0.5)
    await hf.migrate()
    async with hf:
        claimed = await hf.start(hall.waits())
        standby.catch_up()
        with pytest.raises(Unavailable, match="read-only"):
            await alone.start(hall.waits())
        standby.cut_off()
        lost = await hf.start(hall.waits(), paused=True)
        async with hf.worker(poll=0.2, middleware=[busy]) as worker:
            await until(lambda: hall.begun == [claimed.id], "the handler runs")
            before = await token_of(hf, claimed)

            await asyncio.to_thread(lose_what_was_not_replicated, primary, standby)
            await until(lambda: claimed.id in hall.stopped, "the first run is told that its claim is gone", 20)
            hall.gate.set()
            await until_counts(hf, 30, completed=1)
            after = await token_of(hf, claimed)
            fresh = await hf.start(hall.waits())
            await fresh.result(timeout=10)
            await until(lambda: worker.health().hints == "listening", "hints are heard again", 20)

        with pytest.raises(JobNotFound):
            await hf.get_job(lost)
        assert before[1] != after[1]  # the number of the attempt may well be the same
        assert busy.most == 1
    await alone.close()
