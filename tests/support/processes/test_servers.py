"""A server of the tests that ends just as somebody comes leaves no socket open."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings

import pytest

from tests.support.processes.servers import stop_listening
from tests.webhooks.receivers import hangs, receiver

pytestmark = pytest.mark.parametrize("turns", range(6))


async def come(port: int, turns: int) -> socket.socket:
    """Connect, and give the loop some turns: in the second it accepts, in the third it makes the transport."""
    client = socket.create_connection(("127.0.0.1", port))
    for _ in range(turns):
        await asyncio.sleep(0)
    return client


def left_open() -> list[str]:
    """Collect garbage, and tell what had been left open."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        gc.collect()
    return [str(each.message) for each in told]


async def test_who_comes_as_a_server_ends_leaves_nothing_open(turns: int) -> None:
    served: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = await come(server.sockets[0].getsockname()[1], turns)

    await stop_listening(server)
    for writer in served:
        writer.transport.abort()
    await asyncio.sleep(0)

    client.close()
    assert left_open() == []


async def test_who_comes_as_a_receiver_of_webhooks_ends_leaves_nothing_open(turns: int) -> None:
    async with receiver(hangs) as server:
        client = await come(server.port, turns)

    client.close()
    assert left_open() == []
