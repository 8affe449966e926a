"""What needs a server of its own: a standby that does not answer, a server that is full, and one that crashes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from uuid import UUID

import psycopg
import pytest

from holdfast import Context, Event, Holdfast
from holdfast.database.postgres import pool
from holdfast.events.feed import Follower
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

    @contextmanager
    def wanting_standby(self) -> Iterator[None]:
        """Have every COMMIT wait for a standby that is not there, until the end of the block."""
        self._ask("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        self._ask("SELECT pg_reload_conf()")
        try:
            self._await_standby_wanted()
            yield
        finally:  # also where the test has failed: what waits would wait for ever
            self._ask("ALTER SYSTEM RESET synchronous_standby_names")
            self._ask("SELECT pg_reload_conf()")

    def _await_standby_wanted(self) -> None:
        """Commit until one COMMIT waits: `pg_reload_conf` is back before the server has heeded the new settings."""
        connect = partial(psycopg.connect, self.url, autocommit=True)
        with connect() as probe, connect() as looker, ThreadPoolExecutor(1) as threads:
            stuck = threads.submit(_commit_until_terminated, probe)
            pid, is_waiting = probe.info.backend_pid, False
            while not is_waiting:
                assert not stuck.done(), "the probe has ended by itself"
                ((is_waiting,),) = looker.execute(
                    "SELECT coalesce(wait_event = 'SyncRep', false) FROM pg_stat_activity WHERE pid = %s", (pid,)
                )
            looker.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))

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
        """Kill the process that writes the log: the server ends all others and recovers from its files.

        It serves a little longer, until it has seen that death; this waits until it ends a connection.
        """
        with psycopg.connect(self.url, autocommit=True) as witness, suppress(psycopg.OperationalError):
            os.kill(self._wal_writer(), signal.SIGKILL)
            witness.execute("SELECT pg_sleep(60)")

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


def _commit_until_terminated(probe: psycopg.Connection[Any]) -> None:
    with suppress(psycopg.OperationalError):
        while True:
            probe.execute("SELECT pg_logical_emit_message(true, 'probe', '')")


@contextmanager
def own_server(max_connections: int = 100) -> Iterator[PostgresServer]:
    """Start a server that is ours to configure, also where tests are given one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(URL_VARIABLE, raising=False)
        with temporary_postgres(max_connections=max_connections) as server:
            yield server


@pytest.fixture(scope="module")
def primary(postgres_server: str) -> Iterator[Primary]:
    """A server with room: while COMMITs wait for a standby, each keeps its connection, and who looks takes another."""
    with own_server() as server:
        yield Primary(server)


async def test_a_repeated_start_is_not_acknowledged_before_the_standby_has_it(primary: Primary) -> None:
    """A11."""
    hf = Holdfast(primary.url, tasks=[TASKS], deadline_seconds=60)
    hf.sync.migrate()
    hf.sync.start(greet(name="Ada"))  # writes the tasks down
    async with hf:
        with primary.wanting_standby():
            starting = asyncio.create_task(hf.start(greet(name="Bob")))
            await until(lambda: bool(primary.waiting()), "the COMMIT waits for the standby")
            first = primary.waiting()

            primary.terminate(first)

            await until(lambda: bool(primary.waiting() - first), "the repeat waits for the standby, too")
            assert not starting.done()
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
        with primary.wanting_standby():
            may_end.set()
            await until(lambda: bool(primary.waiting()), "the COMMIT of the block waits for the standby")
            first = primary.waiting()

            primary.terminate(first)

            await until(lambda: bool(primary.waiting() - first), "whoever looks what became of it waits, too")
            assert not is_done.is_set()
        await is_done.wait()
        await chain.result(timeout=20)
    hf.sync.close()


@pytest.mark.usefixtures("postgres_server")
async def test_a_full_server_has_room_again_when_idle_programs_have_closed_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A10."""
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.5)
    with own_server(max_connections=MOST) as server:
        idle, busy = (Holdfast(server.url, tasks=[TASKS], deadline_seconds=60, pool_size=MOST) for _ in range(2))
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
        cursors = await cursors_before_a_crash_that_forgets(primary, hf, follower)

        chains = [(await hf.start(greet(name="Bob"))).id for _ in range(jobs)]

        assert await told(follower, jobs) == chains
        for cursor in cursors:
            async with hf.events(after=cursor) as events:
                assert await told(events, jobs) == chains
    hf.sync.close()


async def cursors_before_a_crash_that_forgets(primary: Primary, hf: Holdfast, follower: Follower) -> set[str]:
    """Take cursors, and crash the server so that it gives numbers of transactions anew that were there before.

    It forgets those that it has not written to the disk. Any COMMIT writes them, too, so that it may take a few.
    """
    async with asyncio.timeout(60):
        while True:
            primary.roll_back_unwritten(20)
            cursors, before = {follower.cursor, await hf.cursor()}, primary.next_transaction()
            primary.crash()
            await until(primary.is_up, "the server has recovered")
            if primary.next_transaction() < before:
                return cursors


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
