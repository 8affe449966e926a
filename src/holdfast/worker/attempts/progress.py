"""What handlers say of their progress: kept here, and written in batches, so that a chatty handler costs little.

The first report of an attempt is written at once, later ones at most four times a second, all that are due in one
transaction. The last one goes with the settlement, in its transaction, and so does the last one of a phase with its
end. Nothing is written here of a job whose phase is just being begun or completed: what was said before would come
after it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

from holdfast.database.tx import Store
from holdfast.logging import reason_of, say
from holdfast.runtime import Runtime
from holdfast.store.jobs import claiming
from holdfast.store.jobs.claiming import ProgressReport, Token

INTERVAL_SECONDS = 0.25
TROUBLE_SECONDS = 2.0

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Last:
    """The last report of an attempt, whether it is still to be written, and when that may be."""

    report: ProgressReport | None = None
    is_taken: bool = True
    """It is written, or about to be."""
    is_written: bool = True
    due: float = 0.0
    is_writing: bool = False
    is_held: bool = False
    """Somebody else writes it, or is about to."""
    for_written: list[Future[bool]] = field(default_factory=list)
    """Who waits until the last report is written; told whether it was."""
    for_rest: list[Future[bool]] = field(default_factory=list)
    """Who waits until no write of it is under way."""
    on_written: Callable[[ProgressReport], None] | None = None


class Progress:
    """The reports of one worker's handlers."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._loop = asyncio.get_running_loop()
        self._last: dict[Token, _Last] = {}
        """Of the attempts that have reported something, or are in phases."""
        self._told = asyncio.Event()
        self._lock = threading.Lock()  # handlers in threads report while the loop takes what is due

    def take(self, report: ProgressReport, at_once: bool, is_over: Callable[[], bool]) -> Future[bool] | None:
        """Take in what an attempt reports, in any thread; *at_once*, if it is to be written so.

        What is to be written at once gives a future, which tells when that, or a later report, is written; False means
        that nobody will write it any more, as when *is_over* says so of the attempt.
        """
        written: Future[bool] | None = Future() if at_once else None
        with self._lock:  # and asked within it: who forgets an attempt that is over comes before this, or after
            last = self._last.get(report.token)
            if last is None and is_over():
                _answer([] if written is None else [written], False)
                return written
            last = last or self._last.setdefault(report.token, _Last())
            is_news = at_once or last.is_taken  # else it takes the place of one that is waited for already
            last.report = report
            last.is_written = last.is_taken = False
            if written is not None:
                last.due = 0.0
                last.for_written.append(written)
        if is_news:
            self._loop.call_soon_threadsafe(self._told.set)
        return written

    def listen(self, token: Token, on_written: Callable[[ProgressReport], None]) -> None:
        """Have *on_written* called, in the loop, for each report of the attempt of *token* that is written."""
        with self._lock:
            self._last.setdefault(token, _Last()).on_written = on_written

    def unwritten(self, token: Token) -> list[ProgressReport]:
        """Give what is not written yet of an attempt, for a transaction that completes its job, or rolls back."""
        last = self._last.get(token)
        return [] if last is None or last.report is None or last.is_written else [last.report]

    def rest(self, tokens: Iterable[Token]) -> list[ProgressReport]:
        """Give what may still have to be written of attempts that have ended; `forget` them once that is done."""
        return [report for token in tokens for report in self.unwritten(token)] if self._last else []

    def hold(self, token: Token) -> Future[bool]:
        """Write nothing more of an attempt until `release`; the future tells when no write is under way."""
        resting: Future[bool] = Future()
        with self._lock:
            last = self._last.setdefault(token, _Last())
            last.is_held = True
            last.for_rest.append(resting)
            if not last.is_writing:
                _answer(last.for_rest, True)
        return resting

    def release(self, token: Token, *, is_written: bool) -> None:
        """Go on; *is_written*: all that was said until now is written, or was overtaken."""
        with self._lock:
            if (last := self._last.get(token)) is not None:
                last.is_held = False
                if is_written:
                    last.is_taken = last.is_written = True
                    _answer(last.for_written, True)
        self._loop.call_soon_threadsafe(self._told.set)

    def give_up(self, token: Token) -> None:
        """Have nobody wait any longer for a report of an attempt that is to stop."""
        with self._lock:
            if (last := self._last.get(token)) is not None:
                _answer(last.for_written, False)

    def forget(self, tokens: Iterable[Token]) -> None:
        """Forget attempts whose end is written down, or somebody else's by now."""
        if not self._last:  # as mostly: only who reports is kept here
            return
        with self._lock:
            for token in tokens:
                if (last := self._last.pop(token, None)) is not None:
                    _answer(last.for_written, False)

    async def run(self) -> None:
        """Write what is due, until cancelled; one that has to wait keeps no other waiting."""
        while True:
            self._told.clear()
            now = self._runtime.monotonic()
            with self._lock:
                waiting = {token: last for token, last in self._last.items() if not (last.is_taken or last.is_held)}
                due = {token: last for token, last in waiting.items() if last.due <= now}
                for last in due.values():
                    last.is_taken = last.is_writing = True
                    last.due = now + INTERVAL_SECONDS
            if due:
                await self._write(due, now)
                continue
            seconds = max(0.01, min(last.due for last in waiting.values()) - now) if waiting else None
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._told.wait()

    async def _write(self, due: dict[Token, _Last], now: float) -> None:
        written: set[Token] = set()
        try:
            reports = [last.report for last in due.values() if last.report is not None]
            written = await self._store.run(claiming.progress, reports)
        except Exception as error:  # noqa: BLE001 - it is tried again, and no job depends on it
            say(logger, "progress_not_written", trace=error, jobs=len(due), reason=reason_of(error))
        finally:
            with self._lock:
                for token, last in due.items():
                    self._note(last, token in written, now)

    def _note(self, last: _Last, is_written: bool, now: float) -> None:
        last.is_writing = False
        if not is_written:  # the database is away, or somebody has the row locked
            last.is_taken, last.due = False, now + TROUBLE_SECONDS  # with a lost token until the attempt ends
        elif last.is_taken:  # else something was said meanwhile
            last.is_written = True
            _answer(last.for_written, True)
            if last.on_written is not None and last.report is not None:
                last.on_written(last.report)
        _answer(last.for_rest, True)  # only now: whoever waits for it asks next what is unwritten, in any process


def _answer(waiting: list[Future[bool]], answer: bool) -> None:
    """Answer all of *waiting*, some of whom may have gone."""
    for future in waiting:
        if future.set_running_or_notify_cancel():
            future.set_result(answer)
    waiting.clear()
