"""An attempt that runs in a child process, as its worker sees it.

What it came to is the child's own answer, which the worker settles like all others. If the child has none, because it
died or had to be killed, that is decided here: a child that was killed because its handler did not stop leaves what the
stop was for, and one that died by itself is a crash of its job alone.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.database.tx import Store
from holdfast.outcomes import Described, Kind, Outcome
from holdfast.store.jobs import claiming
from holdfast.store.jobs.claiming import Claimed, ProgressReport, Token
from holdfast.tasks.task import Task
from holdfast.worker.attempts.aborts import NO_LONGER_OURS, AbortReason
from holdfast.worker.attempts.active import STUBBORN_SECONDS
from holdfast.worker.attempts.blocks import FROM_LEASES
from holdfast.worker.attempts.judging import Judge
from holdfast.worker.attempts.progress import Progress
from holdfast.worker.children.messages import JOB, OUTCOME, REPORT, Message
from holdfast.worker.children.process import ChildProcess, how_it_died
from holdfast.worker.leases import LeaseKeeper

KILL_SECONDS = {AbortReason.TIMEOUT: 2.0, AbortReason.SHUTDOWN: 2.0}
"""How long a handler may take to stop before its child is killed, where it is not the usual `STUBBORN_SECONDS`."""
FIND_SECONDS = 10.0
GIVEN_BACK_MS = 5_000
FENCED = 117
"""The exit code of a child that has ended itself, because its lease was not renewed in time."""

logger = logging.getLogger(__name__)


class ChildDied(Described):
    """A child process ended while a job ran in it."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the child process {how_it_died(code)}", {"code": code})


@dataclass(frozen=True, slots=True)
class ParentServices:
    """What a worker keeps of its jobs, in this process: the rows, the leases, and what handlers report."""

    store: Store
    leases: LeaseKeeper
    progress: Progress


class ChildSource(Protocol):
    """Where an attempt gets its child from: the pool of them."""

    def take(self, attempt: RemoteAttempt) -> ChildProcess | None:
        """Give *attempt* a child that is idle, if there is one."""

    async def wait_for_one(self, attempt: RemoteAttempt, seconds: float) -> ChildProcess | None:
        """Wait for a child to be idle."""

    def give_back(self, child: ChildProcess, megabytes: float = 0.0) -> None:
        """Take back a child whose job has ended."""

    def note_unknown(self, task: str) -> None:
        """Say once that a child does not have *task*."""


class RemoteAttempt:
    """An attempt of *job* in one of *children*."""

    def __init__(
        self, job: Claimed, task: Task[..., Any], judge: Judge, children: ChildSource, services: ParentServices
    ) -> None:
        self.job = job
        self.task = task
        self.is_stubborn = False
        self.warning: str | None = None
        self.abort_reason: AbortReason | None = None
        self.is_completed = False
        """Whether a block in the child has completed the job."""
        self._judge = judge
        self._children = children
        self._services = services
        self._report_progress = services.progress.teller(job.token, self._written)
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Message | int] = self._loop.create_future()
        """What the child said at the end, or how it died."""
        self._is_taken = False
        """Whether the child has acknowledged it."""
        self._is_over = False
        self._killing: asyncio.TimerHandle | None = None
        self._sent_lease: tuple[float, float] | None = None
        self._number: int | None = None
        """Which of the child's jobs it is, once it has begun there."""
        self._child: ChildProcess | None = children.take(self)

    @property
    def token(self) -> Token:
        """The right to run the job."""
        return self.job.token

    async def run(self) -> Outcome | None:
        """Have a child run the handler to its end and say what the attempt came to."""
        try:
            return await self._run()
        finally:
            self._is_over = True
            if self._killing is not None:
                self._killing.cancel()

    async def _run(self) -> Outcome | None:
        if self._child is None:
            self._child = await self._children.wait_for_one(self, FIND_SECONDS)
        if self._child is None:
            return Outcome(Kind.GIVE_BACK, reason="no child process was ready", delay_ms=GIVEN_BACK_MS)
        may_begin = not self.job.is_suspect or await self._mark_begun()
        if self.abort_reason is not None or not may_begin:
            self._children.give_back(self._child)
            return Outcome(Kind.GIVE_BACK) if self.abort_reason is None else self.aborted(self.abort_reason)
        seconds, timer = self.task.policy.timeout, None
        if seconds is not None:  # the child itself tells its handler; this ends one that takes no notice
            timer = self._loop.call_later(seconds, self.abort, AbortReason.TIMEOUT)
        try:
            return await self._run_in(self._child)
        finally:
            if timer is not None:
                timer.cancel()

    async def _mark_begun(self) -> bool:
        """Write down that the handler of a suspect begins: only from then on a crash is its own."""
        try:
            return await self._services.store.run(claiming.begin, self.token)
        except Exception:  # noqa: BLE001 - whatever it is, it is given back, and the worker lives on
            return False

    async def _run_in(self, child: ChildProcess) -> Outcome | None:
        self._number = child.jobs
        self._sent_lease = self._services.leases.good_until(self.token)
        child.send("run", number=self._number, job=JOB.dump_python(self.job, mode="json"), lease=self._sent_lease)
        ended = await self._ended
        if isinstance(ended, int):
            return self._judge_death(ended)
        self._children.give_back(child, ended["megabytes"])
        self.warning = ended["warning"]
        if ended["is_unknown"]:
            self._children.note_unknown(self.task.name)
            return Outcome(Kind.GIVE_BACK, reason="the child process lacks the task", delay_ms=GIVEN_BACK_MS)
        return OUTCOME.validate_python(ended["outcome"])

    def _judge_death(self, code: int) -> Outcome | None:
        """Say what the attempt came to whose child is dead."""
        facts = {"job": self.job.id, "task": self.job.task, "code": code, "reason": self.abort_reason}
        logger.warning("child_died", extra=facts)
        error = ChildDied(code)
        if self.is_completed:
            self.warning = self._judge.describe(error)
            return None
        if self.abort_reason is not None:
            return self.aborted(self.abort_reason)
        if not self._is_taken:  # it was as good as dead when it was given the job, which has nothing to do with that
            return Outcome(Kind.GIVE_BACK, reason="the child process died before it began")
        return self.aborted(AbortReason.ERROR) if code == FENCED else self._judge.crashed(error)

    # what is asked of it

    def abort(self, reason: AbortReason) -> None:
        """Tell the handler to stop, and kill its child if it does not; the first reason counts."""
        if self._is_over or (self.is_completed and reason in FROM_LEASES):
            return
        if self.abort_reason is None:
            self.abort_reason = reason
            if self._child is not None and self._number is not None:
                self._child.send("abort", number=self._number, reason=reason)
        elif reason is not AbortReason.SHUTDOWN:
            return
        kill_at = self._loop.time() + KILL_SECONDS.get(reason, STUBBORN_SECONDS)
        if self._killing is not None:
            kill_at = min(kill_at, self._killing.when())
            self._killing.cancel()
        self._killing = self._loop.call_at(kill_at, self._kill)

    def _kill(self) -> None:
        if self._number is not None and self._child is not None and not self._ended.done():
            facts = {"job": self.job.id, "task": self.job.task, "reason": self.abort_reason, "pid": self._child.pid}
            logger.warning("child_killed", extra=facts)
            self._child.kill()

    def leave_behind(self) -> None:
        """Kill the child: nobody waits for it any longer."""
        self._kill()

    def aborted(self, reason: AbortReason) -> Outcome | None:
        """Say what an attempt comes to that was stopped for *reason*."""
        return self._judge.aborted(reason)

    def judge(self, error: BaseException) -> Outcome:
        """Say what the attempt comes to that ends in *error*."""
        return self._judge.raised(error)

    def send_lease(self) -> None:
        """Send the child how long its lease is good for, if that is new; in any thread."""
        until = self._services.leases.good_until(self.token)
        if self._number is not None and self._child is not None and until is not None and until != self._sent_lease:
            self._sent_lease = until
            self._child.send("lease", number=self._number, until=until)

    # what the child sends

    def on_message(self, message: Message) -> None:
        """Handle a message of the child about this attempt."""
        progress = self._services.progress
        match message["say"]:
            case "taken":
                self._is_taken = True
            case "ended":
                self._end(message)
            case "report":
                report = REPORT.validate_python(message["report"])
                if report.token == self.token:  # what one before it has left behind may just have reported, too
                    self._answer(message, self._report_progress(report, message["at_once"]))
            case "hold":
                self._answer(message, progress.hold(self.token))
            case "release":
                progress.release(self.token, is_written=message["is_written"])
            case "completed":
                self._complete()

    def on_death(self, code: int) -> None:
        """End the attempt of a child that is dead."""
        self._end(code)

    def _end(self, how: Message | int) -> None:
        if not self._ended.done():
            self._ended.set_result(how)

    def _answer(self, message: Message, future: Future[bool] | None) -> None:
        """Send the child what *future* comes to, under the number of its request."""
        child, number = self._child, message["number"]
        if future is not None and child is not None:
            future.add_done_callback(lambda done: child.send("answer", number=number, answer=done.result()))

    def _written(self, report: ProgressReport) -> None:
        if self._child is not None:
            self._child.send("written", report=REPORT.dump_python(report, mode="json"))

    def _complete(self) -> None:
        """Note that a block has completed the job: nothing is to be settled, renewed, or stopped for that."""
        self.is_completed = True
        self._services.leases.drop(self.token)
        self._services.progress.forget([self.token])
        if self.abort_reason in NO_LONGER_OURS:
            self.abort_reason = None
            if self._killing is not None:
                self._killing.cancel()
                self._killing = None
