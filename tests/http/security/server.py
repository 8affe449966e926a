"""`holdfast serve` in a process of its own, which can be killed and started again at the same port."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

from holdfast import Holdfast

SERVING = re.compile(rb"serving http://[^/]*:(\d+)/api")


class Server:
    """A server over the database of a face."""

    def __init__(self, hf: Holdfast, *words: str) -> None:
        settings = hf.settings
        place = ["--schema-name", settings.schema_name] if settings.is_postgres else []
        self._words = ["--database", settings.database, *place, *words]
        self._process: asyncio.subprocess.Process | None = None
        self._draining: asyncio.Task[None] | None = None
        self.log = bytearray()
        """What it has said, in all its lives."""
        self.port = 0

    async def __aenter__(self) -> Server:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self) -> None:
        """Start it, at the port that it had before, and wait until it listens."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "holdfast", "serve", "--port", str(self.port), *self._words),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert self._process.stderr is not None
        while (found := SERVING.search(line := await self._process.stderr.readline())) is None:
            assert line, f"it did not start: {bytes(self.log)!r}"
            self.log += line
        self.port = int(found[1])
        self._draining = asyncio.create_task(self._drain(self._process.stderr))

    async def _drain(self, source: asyncio.StreamReader) -> None:
        while piece := await source.read(65_536):
            self.log += piece

    async def kill(self) -> None:
        """End it by SIGKILL, in the middle of whatever it does."""
        assert self._process is not None
        assert self._draining is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._draining

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def resident_bytes(self) -> int:
        """How much memory it uses."""
        assert self._process is not None
        pages = Path(f"/proc/{self._process.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
