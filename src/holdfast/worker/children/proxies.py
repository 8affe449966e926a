"""What a child process cannot have itself, and asks its worker for: jobs, their leases, and what it reports."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from itertools import count

from holdfast.store.jobs.claiming import ProgressReport, Token
from holdfast.worker.children.messages import REPORT, Message

CATCH_UP_SECONDS = 0.5


class JobsOfChild:
    """The jobs that the worker has sent and that have not begun, and the lease of the one that runs.

    They come, and are renewed, in the thread that listens, and begin in another. A handler that has held Python's lock
    for long has kept that thread from hearing what it was told meanwhile: so who asks, and is late, waits a moment for
    that. *send* sends the worker a message, and *soon* has the loop call something; both in any thread.
    """

    def __init__(self, send: Callable[..., None], monotonic: Callable[[], float], soon: Callable[..., None]) -> None:
        self._send = send
        self._monotonic = monotonic
        self._soon = soon
        self._lock = threading.Lock()
        self._renewed = threading.Condition(self._lock)
        self._messages: dict[int, Message] = {}
        self._is_awaited = False
        self._arrived = asyncio.Event()
        self.number: int | None = None
        """The job that runs, and has not completed itself: the first, the second, …"""
        self._is_spared = False
        self._late_at = self._fenced_at = float("inf")
        """When its lease may be over soon, and when its handler is to stop for that."""

    def add(self, message: Message) -> None:
        """Keep a job until its number is taken."""
        with self._lock:
            self._messages[message["number"]] = message
            is_awaited = self._is_awaited
        if is_awaited:
            self._soon(self._arrived.set)

    async def wait_for(self, number: int) -> None:
        self._arrived.clear()
        with self._lock:
            self._is_awaited = number not in self._messages
        if self._is_awaited:
            await self._arrived.wait()

    def begin(self, number: int) -> Message | None:
        """Give the job of *number*, whose lease counts from now on; None if it has not arrived, as its number may."""
        with self._lock:
            while (first := next(iter(self._messages), number)) < number:  # the worker has taken it back
                del self._messages[first]
            if (message := self._messages.pop(number, None)) is not None:
                self.number, self._is_spared = number, False
                self._late_at, self._fenced_at = message["lease"] or (0.0, 0.0)  # None: it is not kept any more
        return message

    def renew(self, number: int, until: tuple[float, float]) -> None:
        """Note how long the lease of a job is good for by now, whether it has begun or not."""
        with self._lock:
            if (message := self._messages.get(number)) is not None:
                message["lease"] = until
            elif number == self.number:
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

    @property
    def waiting_seconds(self) -> float | None:
        """How long until a lease is over of the jobs that may have begun by then; None for ever."""
        with self._lock:
            now = self._monotonic()
            ends = [each["lease"][1] - now for each in self._messages.values() if each["lease"] is not None]
        return min((each for each in ends if each > 0), default=None)  # what is over by now does not begin

    def may_complete(self, token: Token) -> bool:
        """Tell whether the lease is surely still ours, by the clock that all processes of a machine share."""
        if self._is_good():
            return True
        with self._renewed:
            return self._renewed.wait_for(self._is_good, CATCH_UP_SECONDS)

    def _is_good(self) -> bool:
        return self._monotonic() < self._late_at

    def drop(self, token: Token) -> None:
        self.end()
        self._send("completed")


class ProgressOfChild:
    """The reports of the one job that runs here: stands in for the `Progress` of the worker, which writes them.

    That writes four times a second at most, so that a chatty handler need not tell it more often than ten times: what
    was said last is said again when the rest is over, by what *later* calls then.
    """

    def __init__(self, send: Callable[..., None], later: Callable[[Callable[[], None]], None]) -> None:
        self._send_message = send
        self._later = later
        self._numbers = count()
        self._lock = threading.Lock()
        self._last: ProgressReport | None = None
        self._is_written = self._is_sent = True
        self._is_resting = False
        self._token: Token | None = None
        """Whose reports are taken: a thread that an earlier handler has left behind may still make some."""
        self._flushing: dict[int, Future[bool]] = {}
        self._holding: dict[int, Future[bool]] = {}

    def begin(self, token: Token) -> None:
        """Take reports of the attempt of *token* from now on, and of no other."""
        with self._lock:
            self._token, self._last, self._is_written, self._is_sent = token, None, True, True

    def take(self, report: ProgressReport, at_once: bool, is_over: Callable[[], bool]) -> Future[bool] | None:
        written: Future[bool] | None = Future() if at_once else None
        with self._lock:
            if self._token != report.token:
                if written is not None:
                    written.set_result(False)
                return written
            self._last, self._is_written, self._is_sent = report, False, False
            if written is not None or not self._is_resting:
                self._send(report, written)
        return written

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

    def end(self, token: Token) -> None:
        """Send what was not sent, for the worker to write with the end of the job; it is over."""
        with self._lock:
            self._send_last()
            self._token = None
        self.give_up(token)

    def unwritten(self, token: Token) -> list[ProgressReport]:
        with self._lock:
            return [] if self._last is None or self._is_written else [self._last]

    def hold(self, token: Token) -> Future[bool]:
        resting: Future[bool] = Future()
        number = next(self._numbers)
        with self._lock:
            self._holding[number] = resting
        self._send_message("hold", number=number)
        return resting

    def release(self, token: Token, *, is_written: bool) -> None:
        if is_written:
            with self._lock:
                self._is_written = self._is_sent = True
        self._send_message("release", is_written=is_written)

    def give_up(self, token: Token) -> None:
        with self._lock:
            waiting, self._flushing = self._flushing, {}
        for future in waiting.values():
            _resolve(future, False)

    def forget(self, tokens: Iterable[Token]) -> None:
        for token in tokens:
            with self._lock:
                self._token = None if self._token == token else self._token
            self.give_up(token)

    def written(self, report: ProgressReport) -> None:
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
