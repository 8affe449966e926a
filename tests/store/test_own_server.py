"""What needs a server of its own: a standby that does not answer, a server that is full, and one that crashes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from holdfast import Context, Event, Holdfast
from holdfast.database.postgres import pool
from holdfast.testing import PostgresServer, temporary_postgres
from holdfast.testing.postgres import URL_VARIABLE
from tests.support.conditions import until
from tests.support.factories import TASKS, greet

pytestmark = pytest.mark.long

MOST = 12


class Primary:
    """A server of its own, and somebody who looks after it and waits for no standby."""

    def __init__(self, server: PostgresServer) -> None:
        self.url = server.url
        self._server = server

    def begin_to_want_standby(self) -> None:
        """Have every COMMIT wait for a standby that is not there; once it is started again, that is sure."""
        self._ask("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        self._server.restart()

    def begin_to_want_standby_at_once(self) -> None:
        """Do the same for every COMMIT that begins from now on, without a restart."""
        self._ask("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        self._ask("SELECT pg_reload_conf()")

    def want_none(self) -> None:
        """Let all go on that wait for it."""
        self._ask("ALTER SYSTEM RESET synchronous_standby_names")
        self._ask("SELECT pg_reload_conf()")

    def waiting(self) -> set[int]:
        """Give the server's processes that wait for a standby."""
        return {pid for (pid,) in self._ask("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")}

    def terminate(self, pids: set[int]) -> None:
        """End these processes; what they have committed stays."""
        for pid in pids:
            self._ask(f"SELECT pg_terminate_backend({pid}, 10000)")

    def roll_back_unwritten(self, transactions: int) -> None:
        """Roll back transactions that the server remembers in memory only: a crash gives their numbers anew."""
        os.kill(self._wal_writer(), signal.SIGSTOP)
        with psycopg.connect(self.url) as connection:
            for _ in range(transactions):
                connection.execute("SELECT pg_current_xact_id()")
                connection.rollback()

    def crash(self) -> None:
        """Kill the process that writes the log: the server ends all others and recovers from its files."""
        os.kill(self._wal_writer(), signal.SIGKILL)

    def next_transaction(self) -> int:
        """Give the number behind all transactions that have ended."""
        ((number,),) = self._ask("SELECT CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint)")
        return int(number)

    def is_up(self) -> bool:
        """Tell whether it accepts connections."""
        try:
            self._ask("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def _wal_writer(self) -> int:
        ((pid,),) = self._ask("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
        return int(pid)

    def inputs(self) -> list[Any]:
        """Give the inputs of all jobs."""
        return [text for (text,) in self._ask("SELECT input FROM holdfast_job")]

    def _ask(self, sql: str) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True, options="-c synchronous_commit=local") as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="module")
def primary(postgres_server: str) -> Iterator[Primary]:
    """A server that is ours to configure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(URL_VARIABLE, raising=False)
        with temporary_postgres(max_connections=MOST) as server:
            yield Primary(server)


async def test_a_repeated_start_is_not_acknowledged_before_the_standby_has_it(primary: Primary) -> None:
    """A11."""
    hf = Holdfast(primary.url, tasks=[TASKS], deadline_seconds=60)
    hf.sync.migrate()
    hf.sync.start(greet(name="Ada"))  # writes the tasks down
    primary.begin_to_want_standby()
    async with hf:
        starting = asyncio.create_task(hf.start(greet(name="Bob")))
        await until(lambda: bool(primary.waiting()), "the COMMIT waits for the standby")
        first = primary.waiting()

        primary.terminate(first)

        await until(lambda: bool(primary.waiting() - first), "the repeat waits for the standby, too")
        assert not starting.done()
        primary.want_none()
        await starting
    hf.sync.close()
    assert primary.inputs().count('{"name":"Bob"}') == 1


async def test_a_completion_that_is_in_doubt_is_not_taken_for_done_before_the_standby_has_it(primary: Primary) -> None:
    """A11, for the other COMMIT that matters: that of a handler's own writes."""
    hf = Holdfast(primary.url, deadline_seconds=60)
    inside, may_end, is_done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @hf.task
    async def sits(ctx: Context) -> None:
        async with ctx.complete():
            inside.set()
            await may_end.wait()
        is_done.set()

    hf.sync.migrate()
    async with hf, hf.worker():
        chain = await hf.start(sits())
        await inside.wait()
        primary.begin_to_want_standby_at_once()
        may_end.set()
        await until(lambda: bool(primary.waiting()), "the COMMIT of the block waits for the standby")
        first = primary.waiting()

        primary.terminate(first)

        await until(lambda: bool(primary.waiting() - first), "whoever looks what became of it waits, too")
        assert not is_done.is_set()
        primary.want_none()
        await is_done.wait()
        await chain.result(timeout=20)
    hf.sync.close()


async def test_a_full_server_has_room_again_when_idle_programs_have_closed_theirs(
    primary: Primary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A10."""
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.5)
    idle, busy = (Holdfast(primary.url, tasks=[TASKS], deadline_seconds=60, pool_size=MOST) for _ in range(2))
    idle.sync.migrate()
    await take_and_give_back(idle, MOST - 2)  # one has migrated

    await take_and_give_back(busy, MOST // 2)

    for each in (idle, busy):
        await each.close()
        each.sync.close()


@pytest.mark.parametrize("jobs", [1, 30], ids=["at once", "when their numbers are given again"])
async def test_readers_of_events_miss_none_after_a_crash_of_the_server(primary: Primary, jobs: int) -> None:
    """I-44: a crash forgets the last transactions that were rolled back, and gives their numbers to others."""
    hf = Holdfast(primary.url, tasks=[TASKS], deadline_seconds=60)
    hf.sync.migrate()
    async with hf, hf.events() as follower:
        await hf.start(greet(name="Ada"))
        await anext(follower)
        primary.roll_back_unwritten(20)
        cursors = follower.cursor, await hf.cursor()
        before = primary.next_transaction()

        primary.crash()
        await until(primary.is_up, "the server has recovered")
        assert primary.next_transaction() < before
        chains = [(await hf.start(greet(name="Bob"))).id for _ in range(jobs)]

        assert await told(follower, jobs) == chains
        for cursor in cursors:
            async with hf.events(after=cursor) as events:
                assert await told(events, jobs) == chains
    hf.sync.close()


async def told(events: AsyncIterator[Event], count: int) -> list[UUID]:
    """Read the next *count* events; give the jobs that they are about."""
    async with asyncio.timeout(20):
        read = [await anext(events) for _ in range(count)]
    return [event.job.id for event in read if event.job is not None]


async def take_and_give_back(hf: Holdfast, count: int) -> None:
    """Have *count* blocks open at once, each on a connection of its own."""
    blocks = await asyncio.gather(*(hf.store.begin(30) for _ in range(count)))
    for block in blocks:
        await block.roll_back()
