"""What handlers say of their progress: kept here, and written in batches, so that a chatty handler costs little.

The first report of an attempt is written at once, later ones at most four times a second, all that are due in one
transaction. The last one goes with the settlement, in its transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from holdfast.crashpoints import reach
from holdfast.store import jobs
from holdfast.store.jobs import Report, Token
from holdfast.store.tx import Store
from holdfast.surroundings import Surroundings

INTERVAL_SECONDS = 0.25
TROUBLE_SECONDS = 2.0

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Last:
    """The last report of an attempt, whether it is still to be written, and when that may be."""

    report: Report | None = None
    is_taken: bool = True
    """It is written, or about to be."""
    is_written: bool = True
    due: float = 0.0


class Progress:
    """The reports of one worker's handlers."""

    def __init__(self, store: Store, surroundings: Surroundings) -> None:
        self._store = store
        self._surroundings = surroundings
        self._loop = asyncio.get_running_loop()
        self._last: dict[Token, _Last] = {}
        self._told = asyncio.Event()

    def teller(self, token: Token) -> Callable[[int, str | None, bool], None]:
        """Make what the attempt of *token* reports by; it may be called in any thread."""
        last = self._last[token] = _Last()

        def tell(percent: int, message: str | None, at_once: bool) -> None:
            last.report = Report(token, percent, message)
            if at_once:
                last.due = 0.0
            last.is_written = last.is_taken = False  # last of all: the loop may look at any moment
            self._loop.call_soon_threadsafe(self._told.set)

        return tell

    def unwritten(self, token: Token) -> list[Report]:
        """Give what is not written yet of an attempt, for a transaction that completes its job, or rolls back."""
        last = self._last.get(token)
        return [] if last is None or last.report is None or last.is_written else [last.report]

    def rest(self, tokens: Iterable[Token]) -> list[Report]:
        """Give what may still have to be written of attempts that have ended; `forget` them once that is done."""
        return [report for token in tokens for report in self.unwritten(token)]

    def forget(self, tokens: Iterable[Token]) -> None:
        """Forget attempts whose end is written down, or somebody else's by now."""
        for token in tokens:
            self._last.pop(token, None)

    async def run(self) -> None:
        """Write what is due, until cancelled."""
        while True:
            await self._told.wait()
            now = self._surroundings.monotonic()
            waiting = [last for last in list(self._last.values()) if not last.is_taken]  # a thread may end an attempt
            if due := [last for last in waiting if last.due <= now]:
                await self._write(due, now)
            elif waiting:
                await self._surroundings.sleep(max(0.01, min(last.due for last in waiting) - now))
            else:
                self._told.clear()

    async def _write(self, due: list[_Last], now: float) -> None:
        for last in due:
            last.is_taken, last.due = True, now + INTERVAL_SECONDS
        written: set[Token] = set()
        reports = [last.report for last in due if last.report is not None]
        try:
            written = await self._store.run(jobs.progress, reports)
            reach("progress.after_commit")
        except Exception:
            logger.debug("progress_not_written", exc_info=True)
        for last in due:
            if last.report is not None and last.report.token in written:
                last.is_written = last.is_taken
            else:  # the database is away, or somebody has the row locked; with a lost token this ends with the attempt
                last.is_taken, last.due = False, now + TROUBLE_SECONDS
