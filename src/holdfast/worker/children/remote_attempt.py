"""An attempt that runs in a child process, as its worker sees it.

It waits for its turn, at first here and then in its child, behind others; until the child has begun it, it can be taken
back, and has cost nothing. What it came to is the child's own answer, which the worker settles like all others. If the
child has none, because it died or had to be killed, that is decided here: a child that was killed because its handler
did not stop leaves what the stop was for, and one that died by itself is a crash of its job alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.database.tx import Store
from holdfast.logging import say
from holdfast.outcomes import Described, Kind, Outcome
from holdfast.store.jobs import claiming
from holdfast.store.jobs.claiming import ProgressReport
from holdfast.store.workers import IN_CHILD
from holdfast.worker.attempts.aborts import FROM_LEASES, NO_LONGER_OURS, AbortReason
from holdfast.worker.attempts.active import STUBBORN_SECONDS, Run
from holdfast.worker.attempts.judging import Judge
from holdfast.worker.attempts.progress import Progress
from holdfast.worker.children.messages import JOB, OUTCOME, REPORT, Message
from holdfast.worker.children.process import ChildProcess, how_it_died
from holdfast.worker.leases import LeaseKeeper
from holdfast.worker.tally import Tally

KILL_SECONDS = {AbortReason.TIMEOUT: 2.0, AbortReason.SHUTDOWN: 2.0}
"""How long a handler may take to stop before its child is killed, where it is not the usual `STUBBORN_SECONDS`."""
GIVEN_BACK_MS = 5_000
FENCED = 117
"""The exit code of a child that has ended itself, because its lease was not renewed in time."""
MOST_BEHIND = 10_000
"""The longest input, in characters, of a job that is sent to a child before its turn comes."""

logger = logging.getLogger(__name__)


class ChildDied(Described):
    def __init__(self, code: int) -> None:
        super().__init__(f"the child process {how_it_died(code)}", {"code": code})


@dataclass(frozen=True, slots=True)
class ParentServices:
    """What a worker keeps of its jobs, in this process: the rows, the leases, and what handlers report."""

    store: Store
    leases: LeaseKeeper
    progress: Progress
    tally: Tally


class RemoteAttempt(Run):
    """The attempt that *judge* judges, in a child; *take_back* tells whether none has begun it, and then none will."""

    is_remote: ClassVar[bool] = True
    is_completed = False
    """Whether a block in the child has completed the job."""
    is_taken = False
    """Whether a child has begun it."""
    child: ChildProcess | None = None
    number = 0
    """Which of the child's jobs it is."""
    is_sent = False
    """Whether the child has it, or it only keeps the child for itself."""
    _is_over = False
    _killing: asyncio.TimerHandle | None = None
    _timer: asyncio.TimerHandle | None = None
    _sent_lease: tuple[float, float] | None = None

    def __init__(self, judge: Judge, take_back: Callable[[RemoteAttempt], bool], services: ParentServices) -> None:
        self.job = judge.job
        self.task = judge.task
        self._judge = judge
        self._take_back = take_back
        self._services = services
        self._loop = asyncio.get_running_loop()
        self.asked_at = self._loop.time()
        self._given: asyncio.Future[None] | None = self._loop.create_future() if self.job.is_suspect else None
        self._ended: asyncio.Future[Outcome | Message | int | None] = self._loop.create_future()
        """What it came to, what the child said at the end, or how it died."""

    @property
    def may_wait(self) -> bool:
        """Tell whether it may be sent to a child that has another job: its row says that it has not begun."""
        return not (self.job.is_begun or self.job.is_suspect or len(self.job.input) > MOST_BEHIND)

    async def run(self) -> Outcome | None:
        try:
            if self._given is not None:
                await self._begin_suspect(self._given)
            ended = await self._ended
        finally:
            self._is_over = True
            for timer in (self._killing, self._timer):
                if timer is not None:
                    timer.cancel()
        if isinstance(ended, int):
            return self._judge_death(ended)
        if not isinstance(ended, dict):
            return ended
        self.warning = ended["warning"]
        if ended["is_unknown"]:
            return Outcome(Kind.GIVE_BACK, reason="the child process lacks the task", delay_ms=GIVEN_BACK_MS)
        return OUTCOME.validate_python(ended["outcome"])

    async def _begin_suspect(self, given: asyncio.Future[None]) -> None:
        """Write down that the handler of a suspect begins before it does: only from then on a crash is its own."""
        ends: list[asyncio.Future[Any]] = [given, self._ended]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        may_begin = not self._ended.done() and await self._mark_begun()
        if may_begin and self.abort_reason is None and self.child is not None:
            self.child.give({self.number: self.message()})
        elif self._take_back(self):
            self.end(Outcome(Kind.GIVE_BACK) if self.abort_reason is None else self.aborted(self.abort_reason))

    async def _mark_begun(self) -> bool:
        """Write down that the handler begins, and where: the death of the worker is then no crash of this job."""
        try:
            return await self._services.store.run(claiming.begin, self.job.token, self._judge.worker + IN_CHILD)
        except Exception:  # noqa: BLE001 - whatever it is, it is given back, and the worker lives on
            return False

    def _judge_death(self, code: int) -> Outcome | None:
        facts: dict[str, Any] = {"job": self.job.id, "task": self.job.task, "code": code, "how": how_it_died(code)}
        say(logger, "child_died", **facts)
        error = ChildDied(code)
        if self.is_completed:
            self.warning = self._judge.describe(error)
            return None
        if self.abort_reason is not None:
            return self.aborted(self.abort_reason)
        if not self.is_taken:  # it was as good as dead when it took the job, which has nothing to do with that
            return Outcome(Kind.GIVE_BACK, reason="the child process died before it began")
        return self.aborted(AbortReason.ERROR) if code == FENCED else self._judge.crashed(error)

    # where it is

    def give_to(self, child: ChildProcess | None, number: int = 0) -> None:
        """Note that it is the job *number* of *child*; None if it waits for another."""
        self.child, self.number, self.is_sent = child, number, False
        if self._given is not None and not self._given.done():
            self._given.set_result(None)

    def message(self) -> Message:
        self.is_sent = True
        self._sent_lease = self._services.leases.good_until(self.job.token)
        return {"job": JOB.dump_python(self.job, mode="json"), "lease": self._sent_lease}

    def end(self, how: Outcome | Message | int | None) -> None:
        """End it, by what it came to, by what the child said at the end, or by how that died."""
        if not self._ended.done():
            self._ended.set_result(how)

    def give_up(self) -> None:
        """End it, whose turn does not come: another worker may have a child for it."""
        delay_ms = 0 if self.may_wait else GIVEN_BACK_MS
        self.end(Outcome(Kind.GIVE_BACK, reason="no child process came free", delay_ms=delay_ms))

    # what is asked of it

    def abort(self, reason: AbortReason) -> None:
        """Tell the handler to stop, and kill its child if it does not; the first reason counts."""
        if self._is_over or (self.is_completed and reason in FROM_LEASES):
            return
        if self.abort_reason is None:
            self.abort_reason = reason
            if not self.is_taken and self._take_back(self):
                self.end(self._judge.not_begun(reason))
                return
            if self.child is not None:
                self.child.send("abort", number=self.number, reason=reason)
        elif reason is not AbortReason.SHUTDOWN:
            return
        kill_at = self._loop.time() + KILL_SECONDS.get(reason, STUBBORN_SECONDS)
        if self._killing is not None:
            kill_at = min(kill_at, self._killing.when())
            self._killing.cancel()
        self._killing = self._loop.call_at(kill_at, self.kill)

    def kill(self) -> None:
        if self.child is not None and not self._ended.done():
            facts: dict[str, Any] = {
                "job": self.job.id,
                "task": self.job.task,
                "reason": self.abort_reason,
                "pid": self.child.pid,
            }
            say(logger, "child_killed", **facts)
            self.child.kill()

    def aborted(self, reason: AbortReason) -> Outcome | None:
        return self._judge.aborted(reason)

    def judge(self, error: BaseException) -> Outcome:
        return self._judge.raised(error)

    def send_lease(self) -> None:
        """Send the child how long its lease is good for, if that is new; in any thread."""
        until = self._services.leases.good_until(self.job.token)
        if self.child is not None and until is not None and until != self._sent_lease:
            self._sent_lease = until
            self.child.send("lease", number=self.number, until=until)

    # what the child sends

    def on_message(self, message: Message) -> None:
        progress = self._services.progress
        match message["say"]:
            case "report":
                report = REPORT.validate_python(message["report"])
                if report.token == self.job.token:  # what one before it has left behind may just have reported, too
                    self._answer(message, progress.take(report, message["at_once"], self._has_no_reports))
                    if not self._has_no_reports():
                        progress.listen(self.job.token, self._written)
            case "hold":
                self._answer(message, progress.hold(self.job.token))
            case "release":
                progress.release(self.job.token, is_written=message["is_written"])
            case "completed":
                self._complete()

    def begin(self) -> None:
        self.is_taken = True
        self.began = self._loop.time()
        self._services.tally.started(self.job)
        if (seconds := self.task.policy.timeout) is not None:  # the child tells its handler; this ends one that is deaf
            self._timer = self._loop.call_later(seconds, self.abort, AbortReason.TIMEOUT)

    def _has_no_reports(self) -> bool:
        return self._is_over or self.is_completed

    def _answer(self, message: Message, future: Future[bool] | None) -> None:
        """Send the child what *future* comes to, under the number of its request."""
        child, number = self.child, message["number"]
        if future is not None and child is not None:
            future.add_done_callback(lambda done: child.send("answer", number=number, answer=done.result()))

    def _written(self, report: ProgressReport) -> None:
        if self.child is not None:
            self.child.send("written", report=REPORT.dump_python(report, mode="json"))

    def _complete(self) -> None:
        """Note that a block has completed the job: nothing is to be settled, renewed, or stopped for that."""
        self.is_completed = True
        self._services.leases.drop(self.job.token)
        self._services.progress.forget([self.job.token])
        if self.abort_reason in NO_LONGER_OURS:
            self.abort_reason = None
            if self._killing is not None:
                self._killing.cancel()
                self._killing = None
