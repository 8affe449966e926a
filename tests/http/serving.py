"""Real uvicorn around our endpoint: in the test's own loop, or as a process that can be told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp


@dataclass(frozen=True, slots=True)
class Served:
    """A server, and where it listens."""

    server: uvicorn.Server
    port: int

    @property
    def connections(self) -> int:
        """How many connections it has."""
        return len(self.server.server_state.connections)


@asynccontextmanager
async def served(app: ASGIApp, port: int = 0, **config: Any) -> AsyncIterator[Served]:
    """Serve *app* during the block; its stop takes no longer than a few looks."""
    listening = listen(port)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, **config))
    serving = asyncio.create_task(server.serve([listening]))
    try:
        while not server.started:
            await asyncio.sleep(0.005)
        yield Served(server, listening.getsockname()[1])
    finally:
        server.should_exit = True
        async with asyncio.timeout(10):
            await serving


def listen(port: int = 0) -> socket.socket:
    """Listen on a port of this machine; a client that comes before its server waits in the queue."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen(1024)
    return listening


class Process:
    """A server in a process of its own, on a SQLite file or a postgresql:// address."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process = process
        self.port = port

    @classmethod
    async def start(cls, database: str, port: int = 0, **environment: str) -> Process:
        """Start it, and wait until it listens."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.http.serving",
            database,
            str(port),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **environment},
        )
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 30)
        return cls(process, int(line))

    @property
    def resident_bytes(self) -> int:
        """How much memory it uses."""
        pages = Path(f"/proc/{self._process.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    @property
    def open_files(self) -> int:
        """How many files and sockets it has open."""
        return len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))

    async def stop(self, timeout: float = 10) -> int | None:
        """Tell it to stop; give its exit code, or fail if that takes longer than *timeout*."""
        if self._process.returncode is None:
            self._process.terminate()
        await asyncio.wait_for(self._process.wait(), timeout)
        return self._process.returncode

    async def kill(self) -> None:
        """End it, whatever it does."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


async def main(database: str, port: int) -> None:
    """Serve the events of *database* until a signal comes."""
    from holdfast import Holdfast
    from holdfast.http import events_app

    logging.disable(logging.INFO)
    listening = listen(port)
    hf = Holdfast(database, schema_name=os.environ.get("TEST_SCHEMA", "public"))
    app = events_app(hf, send_seconds=float(os.environ.get("TEST_SEND_SECONDS", "30")))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    print(listening.getsockname()[1], flush=True)
    await server.serve([listening])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
