"""The async connection of ours: one reader that stays, no task for a statement, and a user's own way to wait."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from holdfast.database.postgres import PostgresStore
from holdfast.database.postgres.async_connection import WRITABLE, AsyncConnection
from holdfast.database.postgres.deadline import Alarm
from holdfast.database.tx import OpenTx
from holdfast.errors import TransactionBroken
from tests.store.conftest import MakeStore
from tests.store.open_blocks import LEASE
from tests.support.conditions import until

ACTIVE = """
    SELECT count(*) FROM pg_stat_activity
    WHERE query LIKE '%pg_sleep%' AND state = 'active' AND pid <> pg_backend_pid() AND datname = current_database()"""


@pytest.fixture
def store(make_store: MakeStore) -> PostgresStore:
    return make_store(pool_size=1)


def line_of(block: OpenTx) -> AsyncConnection:
    """Give the connection of a block without asking for it, which would change how it waits."""
    line = block._lent.tx.connection  # type: ignore[attr-defined]
    assert isinstance(line, AsyncConnection)
    return line


async def sleeps(url: str) -> bool:
    """Tell whether a statement sleeps on the server."""
    async with await psycopg.AsyncConnection.connect(url) as other:
        ((number,),) = await (await other.execute(ACTIVE)).fetchall()
    return bool(number)


class Spy:
    """Counts the calls of a function, and calls it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.calls = 0
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Count and call."""
        self.calls += 1
        return self._function(*args, **kwargs)


async def test_statements_of_a_block_need_neither_a_reader_nor_a_task_each(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await store.begin(LEASE)).commit()
    block = await store.begin(LEASE)
    readers, tasks = Spy(asyncio.get_running_loop().add_reader), Spy(store._async_side().spawn)
    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", readers)
    monkeypatch.setattr(store._async_side(), "spawn", tasks)

    for n in range(5):
        assert await block.query("SELECT :n + 1 AS n", {"n": n}) == [(n + 1,)]
    await block.commit()

    assert (readers.calls, tasks.calls) == (0, 0)


async def test_a_long_answer_and_a_long_question_pass_whole(store: PostgresStore) -> None:
    block = await store.begin(LEASE)
    text = "x" * 20_000_000  # more than the sockets hold: the driver must wait until it can write

    ((length, answer),) = await block.query("SELECT length(:text) AS length, repeat('y', 5000000)", {"text": text})

    assert (length, len(answer)) == (len(text), 5_000_000)
    await block.commit()


async def test_a_connection_that_the_server_ends_while_nobody_uses_it_is_watched_no_more(
    store: PostgresStore, samples_url: str
) -> None:
    block = await store.begin(LEASE)
    line, ((pid,),) = line_of(block), await block.query("SELECT pg_backend_pid()", {})
    await block.commit()
    assert line._descriptor is not None

    async with await psycopg.AsyncConnection.connect(samples_url, autocommit=True) as other:
        await other.execute("SELECT pg_terminate_backend(%s)", [pid])
    await until(lambda: line._descriptor is None, "the loop looks at it no more")

    again = await store.begin(LEASE)
    assert await again.query("SELECT 1", {}) == [(1,)]
    await again.roll_back()


async def test_who_is_writing_when_the_connection_breaks_is_told_so(postgres_url: str) -> None:
    class Cut(AsyncConnection):
        def _watch(self, wanted: int) -> None:
            super()._watch(wanted)
            if wanted & WRITABLE:  # as a deadline does that passes while a long question is sent
                Alarm(self.pgconn).ring()

    line = await Cut.connect(postgres_url)
    with socket.socket(fileno=os.dup(line.fileno())) as same:  # so that it has to wait, however fast the server reads
        same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    loop = asyncio.get_running_loop()
    complaints: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, about: complaints.append(about))

    async with asyncio.timeout(20):
        with pytest.raises(psycopg.OperationalError):
            await line.execute("SELECT length(%s)", ["x" * 20_000_000])

    assert (line.closed, complaints) == (True, [])


async def test_a_statement_under_way_ends_though_its_connection_is_given_to_the_user_meanwhile(
    store: PostgresStore, samples_url: str
) -> None:
    block = await store.begin(LEASE)
    statement = asyncio.create_task(block.query("SELECT 7 FROM pg_sleep(0.5)", {}))
    await until(lambda: sleeps(samples_url), "the statement runs")

    assert isinstance(block.connection, AsyncConnection)

    assert await statement == [(7,)]
    await block.roll_back()


async def test_a_user_who_cancels_his_own_statement_keeps_his_connection(store: PostgresStore) -> None:
    block = await store.begin(LEASE)
    connection = block.connection

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await connection.execute("SELECT pg_sleep(60)")

    assert connection.pgconn.transaction_status == TransactionStatus.INERROR
    await block.roll_back()


async def test_of_two_statements_the_one_that_is_cancelled_while_it_waits_breaks_the_block_off(
    store: PostgresStore, samples_url: str
) -> None:
    block = await store.begin(LEASE)
    first = asyncio.create_task(block.query("SELECT pg_sleep(60)", {}))
    await until(lambda: sleeps(samples_url), "the first statement runs")
    second = asyncio.create_task(block.query("SELECT 1", {}))
    await until(lambda: bool(line_of(block).lock._waiters), "the second waits for it")

    second.cancel()

    with pytest.raises(asyncio.CancelledError):
        await second
    with pytest.raises(TransactionBroken):
        await first
    with pytest.raises(TransactionBroken):
        await block.commit()
    await until(lambda: has_ended(samples_url), "the server does not go on with it either")


async def has_ended(url: str) -> bool:
    """Tell whether no statement sleeps on the server."""
    return not await sleeps(url)
