"""Ending asyncio's servers without leaving a socket open.

A connection is accepted a turn of the loop before its transport is made. If the server is closed in between, Python
3.11 and 3.12 make no transport of it, say nothing, and leave the socket to the collector of garbage: the warning then
comes in some later test.
"""

from __future__ import annotations

import asyncio

from tests.support import garbage

TURNS = 3
"""The transport is made, then the handler's task, then that begins."""


async def stop_listening(server: asyncio.Server) -> None:
    """Accept nobody any more, let the handlers of those that just have been begin, and close *server*."""
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
    for _ in range(TURNS):
        await asyncio.sleep(0)
    server.close()
    garbage.look_after_module()
