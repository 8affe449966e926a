"""How many connections a worker has on a PostgreSQL server: few, and fewer when it has nothing to do (C20)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import psycopg
import pytest

from holdfast import Context, Holdfast, sync
from holdfast.database.postgres import pool
from tests.support.conditions import until

OURS = """
    SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast' AND datname = current_database()
        AND query <> 'DISCARD ALL'  -- what was closed, and the tests keep for who connects next"""
LISTENS, FOR_ITS_LOOP, FOR_ITS_LEASES = 1, 1, 1


@pytest.fixture
async def hf(new_holdfast: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Holdfast]:
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.2)  # before the first connection, whose time begins at once
    made = new_holdfast("postgres")
    await made.open()
    yield made
    await made.close()


def connections_of(hf: Holdfast) -> int:
    """Count them, from outside."""
    with psycopg.connect(hf.settings.database) as connection:
        ((number,),) = connection.execute(OURS).fetchall()
    return int(number)


async def test_an_idle_worker_keeps_three(hf: Holdfast) -> None:
    inside, may_end = [], asyncio.Event()

    @hf.task
    async def sits(ctx: Context, n: int) -> None:
        async with ctx.complete():
            inside.append(n)
            await may_end.wait()

    async with hf.worker(poll=0.5):
        await hf.start_many([sits(n=n) for n in range(4)])
        await until(lambda: len(inside) == 4, "four are in their blocks")
        at_work = connections_of(hf)
        may_end.set()
        few = LISTENS + FOR_ITS_LOOP + FOR_ITS_LEASES
        await until(lambda: connections_of(hf) <= few, "what nobody uses is closed, that of blocks too")

    assert at_work >= 4 + LISTENS + FOR_ITS_LOOP


async def test_an_idle_worker_keeps_none_of_its_plain_handlers(hf: Holdfast) -> None:
    inside, may_end = [], threading.Event()

    @hf.task
    def sits(ctx: sync.Context, n: int) -> None:
        with ctx.complete():
            inside.append(n)
            may_end.wait(20)

    async with hf.worker(poll=0.5):
        await hf.start_many([sits(n=n) for n in range(4)])
        await until(lambda: len(inside) == 4, "four are in their blocks")
        may_end.set()
        few = LISTENS + FOR_ITS_LOOP + FOR_ITS_LEASES
        await until(lambda: connections_of(hf) <= few, "what nobody uses is closed")
