"""Writes what journals leave for a moment later: log lines that no other commit took along, and merged events.

A worker has one of these, and so has each child process. Nothing here belongs to a job that never appends or logs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from typing import Protocol

from holdfast.database.tx import Runner, Store
from holdfast.logging import reason_of, say
from holdfast.runtime import Runtime

TROUBLE_SECONDS = 2.0

logger = logging.getLogger(__name__)


class WritesLate(Protocol):
    """A journal of which something is to be written later."""

    async def write_late(self, runner: Runner) -> None: ...


class LateEntries:
    """The journals of one process of which something waits, and until when."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self.monotonic = runtime.monotonic
        self._loop = asyncio.get_running_loop()
        self._due: dict[WritesLate, float] = {}
        self._lock = threading.RLock()  # a finalizer or a signal handler that logs may come in at any line
        self._added = asyncio.Event()

    def add(self, journal: WritesLate, seconds: float) -> None:
        """Write what waits of *journal* in *seconds*, or before if that was asked for; in any thread."""
        due = self.monotonic() + seconds
        with self._lock:
            if self._due.get(journal, float("inf")) <= due:
                return
            self._due[journal] = due
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._added.set)

    async def run(self) -> None:
        """Write what is due, until cancelled."""
        while True:
            self._added.clear()
            now = self.monotonic()
            with self._lock:
                due = [journal for journal, at in self._due.copy().items() if at <= now]
                for journal in due:
                    del self._due[journal]
                next_at = min(self._due.values(), default=None)
            for journal in due:
                await self._write(journal)
            if due:
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(None if next_at is None else max(0.01, next_at - now)):
                    await self._added.wait()

    async def _write(self, journal: WritesLate) -> None:
        try:
            await journal.write_late(self._store)
        except Exception as error:  # noqa: BLE001 - it is tried again, and no job depends on it
            say(logger, "journal_not_written", trace=error, reason=reason_of(error))
            self.add(journal, TROUBLE_SECONDS)
