"""A crowd of clients, one of which never reads, and a server that is restarted under them."""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, closing

import pytest

from holdfast import Holdfast
from holdfast.http import events_app
from tests.http.clients import connected, stalled
from tests.http.crowd import Crowd
from tests.http.serving import Process, served
from tests.support.conditions import until
from tests.support.factories import TASKS, greet

BATCH = 50
MOST_BYTES = 20_000_000


class Emitter:
    """Starts jobs that are numbered from 0 on, and runs at most so many ahead of the slowest client."""

    def __init__(self, hf: Holdfast, ahead: int) -> None:
        self._hf = hf
        self._ahead = ahead
        self.count = 0

    async def emit(self) -> None:
        """Start some more, in one transaction."""
        numbers = range(self.count, self.count + BATCH)
        await self._hf.start_many([greet(name=str(number)) for number in numbers])
        self.count += BATCH

    async def emit_ahead(self) -> None:
        """Start as many as it may be ahead, however far the clients are."""
        for _ in range(self._ahead // BATCH):
            await self.emit()

    async def emit_for(self, seconds: float, crowd: Crowd) -> None:
        """Start jobs for a while, as fast as *crowd* follows."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await self.emit()
            await until(lambda: self.count - crowd.seen < self._ahead, "the clients keep up", 60)


@pytest.mark.source("DF-39")
@pytest.mark.parametrize(
    ("database", "clients", "ahead", "seconds"),
    [
        ("sqlite", 20, 400, 0.2),
        # more than a buffer holds
        pytest.param("sqlite", 200, 1_500, 25, marks=[pytest.mark.long, pytest.mark.timeout(400)]),
        pytest.param("postgres", 200, 1_500, 25, marks=[pytest.mark.long, pytest.mark.timeout(400)]),
    ],
)
async def test_nobody_misses_anything_while_one_stalls_and_the_server_is_restarted(
    new_holdfast: Callable[..., Holdfast], database: str, clients: int, ahead: int, seconds: float
) -> None:
    """F-44, I-44, I-46."""
    hf = new_holdfast(database, tasks=[TASKS])
    emitter = Emitter(hf, ahead)
    grown: list[int] = []

    async def start(port: int = 0) -> Process:
        server = await Process.start(hf.settings.database, port, TEST_SCHEMA=hf.settings.schema_name)
        stack.push_async_callback(server.kill)
        return server

    async def emit_beside_a_stalled_client(server: Process) -> None:
        with closing(stalled(server.port)):
            await emitter.emit_ahead()
            await until(lambda: crowd.seen == emitter.count, "all are told of the first ones", 120)
            before = server.resident_bytes
            await emitter.emit_for(seconds, crowd)
            grown.append(server.resident_bytes - before)

    async with AsyncExitStack() as stack:
        server = await start()
        crowd = await stack.enter_async_context(Crowd(server.port, clients))
        await until(lambda: crowd.have_begun, "all clients have their place", 60)
        await emit_beside_a_stalled_client(server)

        stopping = asyncio.create_task(server.stop())
        await emitter.emit_ahead()
        assert await stopping == -signal.SIGTERM
        await emitter.emit()
        server = await start(server.port)

        await emit_beside_a_stalled_client(server)
        await until(lambda: crowd.seen == emitter.count, "all are told of everything", 120)

    assert {each.streams for each in crowd.listeners} == {2}
    assert {each.resets for each in crowd.listeners} == {0}
    assert max(grown) < MOST_BYTES, f"grew by {grown} bytes with {emitter.count} events"
    print(f"{emitter.count} events to {clients} clients on {database}, grew by {grown} bytes")


async def come_and_go(port: int, number: int) -> None:
    """Be *number* clients, twenty at a time, of which every other one reads nothing before it leaves."""

    async def be_one(reads: bool) -> None:
        async with connected(port) as client:
            if reads:
                await client.next()

    for _ in range(number // 20):
        await asyncio.gather(*(be_one(reads=bool(each % 2)) for each in range(20)))


async def test_clients_that_come_and_go_leave_nothing(new_holdfast: Callable[..., Holdfast]) -> None:
    """F-44, I-46."""
    hf = new_holdfast("sqlite", tasks=[TASKS])

    async with served(events_app(hf, ping_seconds=0.1)) as server:
        await come_and_go(server.port, 60)
        await until(lambda: server.connections == 0, "the server has forgotten them")
        await until(lambda: len(server.server.server_state.tasks) == 0, "nothing runs for them")

        gc.collect()
        assert len(hf._feed.here._followers) == 0


@pytest.mark.long
async def test_five_hundred_clients_that_come_and_go_cost_no_memory(new_holdfast: Callable[..., Holdfast]) -> None:
    """F-44, P-30, I-46."""
    hf = new_holdfast("sqlite", tasks=[TASKS])
    await hf.start_many([greet(name=str(number)) for number in range(200)])

    async with AsyncExitStack() as stack:
        server = await Process.start(hf.settings.database)
        stack.push_async_callback(server.kill)
        await come_and_go(server.port, 100)
        before, files = server.resident_bytes, server.open_files
        await come_and_go(server.port, 500)
        await until(lambda: server.open_files <= files, "the server has forgotten them")

        assert server.resident_bytes - before < MOST_BYTES
