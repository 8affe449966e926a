"""What a child process cannot have itself, and asks its worker for: the lease of its job, and what it reports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from itertools import count
from typing import Protocol

from holdfast.store.jobs.claiming import ProgressReport, Token
from holdfast.worker.children.messages import REPORT


class Send(Protocol):
    """Sends a message to the worker; in any thread."""

    def __call__(self, message: str, **facts: object) -> None: ...


CATCH_UP_SECONDS = 0.5


class LeaseOfChild:
    """The lease of the one job that runs here, as far as the worker has said.

    A handler that has held Python's lock for long has kept the thread from hearing what it was told meanwhile: so who
    asks, and is late, waits a moment for that.
    """

    def __init__(self, send: Send, monotonic: Callable[[], float], patience: float = CATCH_UP_SECONDS) -> None:
        self._send_message = send
        self._monotonic = monotonic
        self._patience = patience
        self._renewed = threading.Condition()
        self.number: int | None = None
        """The job that runs, and has not completed itself: the first, the second, …"""
        self._is_spared = False
        self._late_at = self._fenced_at = float("inf")

    def begin(self, number: int, until: tuple[float, float] | None) -> None:
        """Begin the lease of the *number*-th job, which is good *until* then; None: it is not kept any more.

        First when it may be over soon, then when its handler is to stop for that.
        """
        self.number, self._is_spared = number, False
        self._late_at, self._fenced_at = (0.0, 0.0) if until is None else until

    def renew(self, number: int, until: tuple[float, float]) -> None:
        """Note how long it is good for by now."""
        with self._renewed:
            if number == self.number:
                self._late_at, self._fenced_at = until
                self._is_spared = False
            self._renewed.notify_all()

    def spare(self, seconds: float) -> bool:
        """Leave the worker *seconds* to say something, once: a process that stood still may not have read it yet."""
        if self._is_spared:
            return False
        self._is_spared, self._fenced_at = True, self._monotonic() + seconds
        return True

    def end(self) -> None:
        """Note that no job runs, or that what runs has completed its job."""
        self.number = None
        self._late_at = self._fenced_at = float("inf")

    @property
    def seconds(self) -> float | None:
        """How long until the handler is to be stopped; None for ever."""
        return None if self._fenced_at == float("inf") else self._fenced_at - self._monotonic()

    def may_complete(self, token: Token) -> bool:
        """Tell whether the lease is surely still ours, by the clock that all processes of a machine share."""
        if self._is_good():
            return True
        with self._renewed:
            return self._renewed.wait_for(self._is_good, self._patience)

    def _is_good(self) -> bool:
        return self._monotonic() < self._late_at

    def drop(self, token: Token) -> None:
        """Tell the worker that a block has completed the job."""
        self.end()
        self._send_message("completed")


class ProgressOfChild:
    """The reports of the one job that runs here; the worker writes them.

    It does so four times a second at most, so that a chatty handler need not tell it more often than ten times: what
    was said last is said again when the rest is over, by what *later* calls then.
    """

    def __init__(self, send: Send, later: Callable[[Callable[[], None]], None]) -> None:
        self._send_message = send
        self._later = later
        self._numbers = count()
        self._lock = threading.Lock()
        self._last: ProgressReport | None = None
        self._is_written = True
        self._is_sent = True
        self._is_resting = False
        self._token: Token | None = None
        """Whose reports are taken: a thread that an earlier handler has left behind may still make some."""
        self._flushing: dict[int, Future[bool]] = {}
        self._holding: dict[int, Future[bool]] = {}

    def teller(self, token: Token) -> Callable[[ProgressReport, bool], Future[bool] | None]:
        """Make what the attempt of *token* reports by, in any thread; as `Progress.teller`."""
        with self._lock:
            self._token, self._last, self._is_written, self._is_sent = token, None, True, True

        def report_progress(report: ProgressReport, at_once: bool) -> Future[bool] | None:
            written: Future[bool] | None = Future() if at_once else None
            with self._lock:
                if self._token != token:
                    if written is not None:
                        written.set_result(False)
                    return written
                self._last, self._is_written, self._is_sent = report, False, False
                if written is not None or not self._is_resting:
                    self._send(report, written)
            return written

        return report_progress

    def _send(self, report: ProgressReport, written: Future[bool] | None = None) -> None:
        """Send the worker the last report; under the lock, or an older report may come after it."""
        number = next(self._numbers)
        if written is not None:
            self._flushing[number] = written
        dumped = REPORT.dump_python(report, mode="json")
        self._send_message("report", number=number, report=dumped, at_once=written is not None)
        self._is_sent = True
        if not self._is_resting:
            self._is_resting = True
            self._later(self._on_rest_over)

    def _on_rest_over(self) -> None:
        with self._lock:
            self._is_resting = False
            self._send_last()

    def _send_last(self) -> None:
        if self._token is not None and self._last is not None and not self._is_sent:
            self._send(self._last)

    def end(self) -> None:
        """Send what was not sent, for the worker to write with the end of the job; it is over."""
        with self._lock:
            self._send_last()
            self._token = None

    def unwritten(self, token: Token) -> list[ProgressReport]:
        """Give what is not written yet, for a transaction that completes the job, or rolls back."""
        with self._lock:
            return [] if self._last is None or self._is_written else [self._last]

    def hold(self, token: Token) -> Future[bool]:
        """Have nothing more written until `release`; the future resolves when no write is under way."""
        resting: Future[bool] = Future()
        number = next(self._numbers)
        with self._lock:
            self._holding[number] = resting
        self._send_message("hold", number=number)
        return resting

    def release(self, token: Token, *, is_written: bool) -> None:
        """Go on; *is_written*: all that was reported until now is written, or was overtaken."""
        if is_written:
            with self._lock:
                self._is_written = self._is_sent = True
        self._send_message("release", is_written=is_written)

    def give_up(self, token: Token) -> None:
        """Have nobody wait any longer for a report of an attempt that is to stop."""
        with self._lock:
            waiting, self._flushing = self._flushing, {}
        for future in waiting.values():
            _resolve(future, False)

    def forget(self, tokens: Iterable[Token]) -> None:
        """Forget the attempt, whose end is written down or is about to be."""
        for token in tokens:
            with self._lock:
                self._token = None if self._token == token else self._token
            self.give_up(token)

    def written(self, report: ProgressReport) -> None:
        """Note that *report* is written."""
        with self._lock:
            if report == self._last:
                self._is_written = True

    def answered(self, number: int, answer: bool) -> None:
        """Resolve the request *number* by the worker's *answer*."""
        with self._lock:
            future = self._flushing.pop(number, None) or self._holding.pop(number, None)
        if future is not None:
            _resolve(future, answer)


def _resolve(future: Future[bool], answer: bool) -> None:
    if future.set_running_or_notify_cancel():
        future.set_result(answer)
