"""What needs a server of its own: a synchronous standby that does not answer, and a server that is full."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
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


async def take_and_give_back(hf: Holdfast, count: int) -> None:
    """Have *count* blocks open at once, each on a connection of its own."""
    blocks = await asyncio.gather(*(hf.store.begin(30) for _ in range(count)))
    for block in blocks:
        await block.roll_back()
