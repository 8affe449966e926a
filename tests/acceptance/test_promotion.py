"""A replica takes its primary's place: whoever followed the log is told, and begins anew (I-44)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from holdfast import CursorExpired, Holdfast
from holdfast.feed import Follower
from holdfast.testing import PostgresServer, PostgresUnavailable, postgres, temporary_postgres
from tests.conditions import until
from tests.factories import TASKS, greet
from tests.standby import Standby, temporary_standby


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
        await until(lambda: not hf._feed.here.lookout.is_failing, "the feed reads again")
