"""One LISTEN connection for many channels: each hears its own hints, from when it is told so, also after a cut."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from holdfast.database.hints import Hints
from holdfast.database.postgres.address import Address
from holdfast.database.postgres.listener import MOST_CHANNELS, HintChannel, SharedListener
from holdfast.runtime import Runtime
from holdfast.settings import Settings
from tests.support.conditions import until


class Heard:
    """Counts the hints of one channel."""

    def __init__(self, listener: SharedListener, channel: str) -> None:
        self.channel = channel
        self.count = 0
        self.hints = Hints(lambda notify: HintChannel(listener, channel, notify))
        self.watch = self.hints.watch(self._hear)

    def _hear(self) -> None:
        self.count += 1

    @property
    def is_listening(self) -> bool:
        return self.watch.is_listening


@pytest.fixture
def address(postgres_url: str) -> Address:
    return Address.of(Settings(database=postgres_url))


@pytest.fixture
def listener(address: Address) -> SharedListener:
    return SharedListener(address, Runtime())


@asynccontextmanager
async def listening(listener: SharedListener, *channels: str) -> AsyncIterator[list[Heard]]:
    heard = [Heard(listener, each) for each in channels]
    try:
        await until(lambda: all(each.is_listening for each in heard), "every channel is heard")
        yield heard
    finally:
        for each in heard:
            each.watch.stop()


def notify(url: str, channel: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'NOTIFY "{channel}"')


async def test_each_channel_hears_its_own_hints_over_one_connection(
    postgres_url: str, listener: SharedListener
) -> None:
    async with listening(listener, "holdfast_a", "holdfast_b") as (a, b):
        before = b.count

        notify(postgres_url, "holdfast_a")

        await until(lambda: a.count >= 2, "the hint of its channel comes, behind that of the LISTEN")
        assert b.count == before


async def test_a_channel_that_is_heard_anew_is_given_a_hint(listener: SharedListener) -> None:
    async with listening(listener, "holdfast_a") as (a,), listening(listener, "holdfast_b") as (b,):
        await until(lambda: b.count >= 1 and a.count >= 1, "both read once more after their LISTEN")


async def test_a_channel_that_nobody_wants_is_heard_no_more(postgres_url: str, listener: SharedListener) -> None:
    async with listening(listener, "holdfast_a") as (a,):
        async with listening(listener, "holdfast_b") as (b,):
            pass
        await until(lambda: not listener.hears("holdfast_b"), "the server is told")
        before = b.count

        notify(postgres_url, "holdfast_b")
        seen = a.count
        notify(postgres_url, "holdfast_a")

        await until(lambda: a.count > seen, "what is sent afterwards has come")
        assert b.count == before


async def test_more_channels_than_one_statement_takes_are_all_heard(listener: SharedListener) -> None:
    names = [f"holdfast_many_{number}" for number in range(2 * MOST_CHANNELS + 1)]

    async with listening(listener, *names) as heard:
        assert all(each.is_listening for each in heard)


async def test_all_channels_are_heard_again_after_the_connection_was_cut(
    postgres_url: str, listener: SharedListener
) -> None:
    async with listening(listener, "holdfast_cut_a", "holdfast_cut_b") as (a, b):
        line = listener._line
        assert line is not None
        before = a.count, b.count

        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s)", (line.pgconn.backend_pid,))

        await until(lambda: listener._line not in (None, line), "it has connected anew")
        await until(lambda: a.is_listening and b.is_listening, "both are heard again")
        assert a.count > before[0]
        assert b.count > before[1]
