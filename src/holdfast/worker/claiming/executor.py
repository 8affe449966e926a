"""Runs what was claimed, in the loop, in threads or in child processes, and takes in what it came to.

*One task for many jobs.* Most handlers are done in their first step, without waiting for anything, and a task for each
costs more than to write down its end. So a runner, which is one task, takes jobs from the queue one after the other and
makes the first step of each itself. A handler that waits keeps the runner's task for its own, and another runner goes
on with the queue. No handler can tell that from a task for each: its `current_task()` is the same one all along, and a
runner that is not as it was is not used for a second handler: one whose context variables have been set, whose task is
asked to cancel, or of whose task somebody has kept a reference, who might cancel it later.

*Claimed ahead.* What was claimed before there was a slot for it waits in the queue until there is one. Its row says
that it has not begun, so that nobody blames it for the death of this process; once it waits for something, that is
written down by the next exchange. Jobs are not always as short as the last ones were: what has waited for longer than a
moment, while all slots are taken, is given back, for another worker may have one.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from holdfast.errors import StoreError
from holdfast.logging import reason_of, say
from holdfast.models import BUILT_IN, INTERNAL_QUEUE
from holdfast.outcomes import Kind, Outcome
from holdfast.store.jobs import settling
from holdfast.store.jobs.claiming import Claimed, Token
from holdfast.store.jobs.settling import Settlement
from holdfast.tasks.task import Task
from holdfast.worker.attempts.aborts import AbortReason
from holdfast.worker.attempts.active import Run, Slot, slot_of
from holdfast.worker.attempts.attempt import Attempt
from holdfast.worker.attempts.failures import in_short, log_failure
from holdfast.worker.attempts.judging import Judge
from holdfast.worker.attempts.services import AttemptServices
from holdfast.worker.children.pool import Children
from holdfast.worker.children.suspects import SuspectChildren
from holdfast.worker.claiming.core import WorkerCore
from holdfast.worker.claiming.unsettled import JudgesError

SLICE_SECONDS = 0.005
"""How long a runner makes first steps before it lets others have the loop."""

logger = logging.getLogger(__name__)


class Executor:
    """Runs attempts, as tasks of *group*; *services* are those of async and of plain handlers."""

    def __init__(
        self,
        core: WorkerCore,
        services: Mapping[bool, AttemptServices],
        children: Children | None,
        suspects: SuspectChildren | None,
        group: asyncio.TaskGroup,
    ) -> None:
        self._core = core
        self._services = services
        self._children = children
        self._suspects = suspects
        self._group = group
        self._time = asyncio.get_running_loop().time
        self._variables = contextvars.copy_context()
        """The context variables that every handler finds, whatever others have set."""
        self._is_running = False
        """Whether a runner is at the queues, or is about to be."""
        self._is_starting = False
        """Whether its task is just being made."""
        self._ready: deque[Claimed] = deque()
        """What has a slot, and is about to begin."""
        self.queue: deque[tuple[float, Claimed]] = deque()
        """What was claimed ahead, and waits for a slot, and since when."""
        self.unmarked: dict[Token, float] = {}
        """What has begun of that since, and when; its rows do not say so yet."""
        self._kept = 0
        """How many slots are kept for what is being claimed to begin."""
        self.ended = Counter[Slot]()
        """How many attempts have ended here so far, by the slots that they took."""
        self.on_end: Callable[[], None] = lambda: None
        """Is called when something has ended, and slots may have come free."""
        self.on_end_of: dict[Slot, Callable[[], None]] = {}
        """Is called when an attempt has ended that took one of these slots."""
        if children is not None:
            children.on_begun = self._note_begun

    @property
    def is_idle(self) -> bool:
        """Tell whether nothing runs here, and nothing waits to."""
        return not (self._core.active or self._is_running or self._ready or self.queue)

    @property
    def waiting(self) -> int:
        """How many have a slot, or are the next to have one, and do not run yet."""
        return len(self._ready) + len(self.queue)

    def keep_slots(self, number: int) -> None:
        """Keep *number* of the slots, which may be below zero, for what is being claimed to begin at once."""
        self._kept += number
        self._run_on()

    def begin(self, job: Claimed) -> None:
        """Begin an attempt of *job*: now, or, if it was claimed ahead, when its turn comes; children know theirs."""
        task = self._core.tasks.get(job.task)
        if not (job.is_begun or job.is_suspect) and self.children_for(job, task) is None:
            self.queue.append((self._core.runtime.monotonic(), job))
        elif self._is_for_runner(task, job):
            self._ready.append(job)
        else:
            self.run_alone(job)
            return
        self._run_on()

    def run_alone(self, job: Claimed) -> None:
        """Begin an attempt of *job*, which is seen to run from this moment on."""
        try:
            self._start(self._make(job))
        except Exception as error:  # noqa: BLE001 - whatever it is, it keeps no other job
            self._refuse(job, error)

    def abort(self, reasons: Mapping[Token, AbortReason]) -> None:
        """Tell attempts to stop; one that has not begun has come to its end."""
        self._core.active.abort(reasons)
        for job in self._take_out(reasons):
            judge = Judge(job, self._core.tasks.get(job.task), self._core.id, self._core.runtime.chance)
            self._end(job, judge.not_begun(reasons[job.token]), judge.raised, has_begun=False)
            self._core.woken.set()

    def _take_out(self, tokens: Collection[Token]) -> list[Claimed]:
        """Take those of *tokens* out of the queues, which then do not begin."""
        taken = [job for job in self._unbegun() if job.token in tokens]
        if taken:
            self._ready = deque(job for job in self._ready if job.token not in tokens)
            self.queue = deque(each for each in self.queue if each[1].token not in tokens)
        return taken

    def _unbegun(self) -> list[Claimed]:
        return [*self._ready, *(job for _, job in self.queue)]

    def forget_earlier(self, claimed: Sequence[Claimed]) -> None:
        """Let nothing begin by an earlier claim of what was *claimed* just now: that one is lost."""
        if self._ready or self.queue:
            new = {each.token.seq for each in claimed}
            self.abort({each.token: AbortReason.TAKEN for each in self._unbegun() if each.token.seq in new})

    def children_for(self, job: Claimed, task: Task[..., Any]) -> Children | SuspectChildren | None:
        """Give the child processes of which one runs *job*; None if it runs in this process."""
        if self._suspects is not None and self._suspects.takes(job, task):
            return self._suspects
        return self._children if task.policy.is_in_child else None

    @property
    def waiting_since(self) -> float | None:
        """Since when the first of the queue waits, while all slots are taken; None if its turn comes now."""
        return self.queue[0][0] if self.queue and not self._has_turn else None

    def give_back_queue(self, reason: str, since: float) -> None:
        """Give back all that waits for its turn *since* then or longer: another worker may have a slot."""
        while self.queue and self.queue[0][0] <= since:
            self._core.unsettled.give_back(self.queue.popleft()[1], reason)

    def drain(self) -> None:
        """Give back what has not begun, also what has a slot by now."""
        for children in (self._children, self._suspects):
            if children is not None:
                children.drain()
        for job in self._take_out([each.token for each in self._unbegun()]):
            self._core.unsettled.give_back(job, AbortReason.SHUTDOWN)

    def _is_for_runner(self, task: Task[..., Any], job: Claimed) -> bool:
        """Tell whether the first step of *job* may be made by a runner: nothing comes before the handler itself."""
        policy = task.policy
        has_own_task = policy.is_in_child or job.is_suspect or job.task in BUILT_IN
        has_steps_before = policy.phases or policy.keep_logs or task.middleware or self._core.options.middleware
        return task.signature.is_async and not (has_own_task or has_steps_before)

    def _make(self, job: Claimed) -> Run:
        task = self._core.tasks.get(job.task)
        if (children := self.children_for(job, task)) is not None:
            return children.attempt(job, task)
        middleware = () if job.task in BUILT_IN else self._core.options.middleware
        return Attempt(job, task, self._services[task.signature.is_async], middleware)

    def _start(self, attempt: Run) -> None:
        self._count_in(attempt)
        running = self._run(attempt)
        try:
            self._group.create_task(running, context=self._variables.copy())
        except BaseException:  # such as of a task factory of the program's
            running.close()
            self._core.active.remove(attempt)
            self.unmarked.pop(attempt.job.token, None)
            raise

    # the runner

    def _run_on(self) -> None:
        """See to it that somebody is at the queues, if there is something that may begin."""
        if self._is_running or not (self._ready or self._has_turn):
            return
        runner = self._run_queues()
        self._is_running = self._is_starting = True
        try:
            self._group.create_task(runner, context=self._variables.copy())
        except Exception as error:  # noqa: BLE001 - such as of a task factory of the program's
            runner.close()
            self._is_running = False
            for job in self._take_out([each.token for each in self._unbegun()]):
                self._refuse(job, error)
        finally:
            self._is_starting = False

    @property
    def _has_turn(self) -> bool:
        taken = self._core.active.taken(Slot.HANDLER) + len(self._ready) + self._kept
        return bool(self.queue) and taken < self._core.options.concurrency

    async def _run_queues(self) -> None:
        """Make first steps; be the task of the first handler that waits."""
        if self._is_starting:  # by an eager task factory: runners would be nested in each other
            await self._core.runtime.sleep(0)
        me, started, now = asyncio.current_task(), self._core.tally.started, self._time()
        as_made, until = _marks_of(me), now + SLICE_SECONDS
        while (attempt := self._next()) is not None:
            attempt.began = now  # the end of the one before it: to read the clock again would cost every job
            started(attempt.job)
            outcome = attempt.begin()
            if outcome is None:
                self._count_in(attempt)
                self._leave_queues()
                await self._run(attempt)
                return
            now = self._time()
            self._note_end(attempt, outcome, now)
            if _marks_of(me) != as_made or not _are_same(contextvars.copy_context(), self._variables):
                break
            if now > until:
                self._core.woken.set()
                await self._core.runtime.sleep(0)
                as_made, now = _marks_of(me), self._time()
                until = now + SLICE_SECONDS
        self._leave_queues()
        self._after_end()

    def _leave_queues(self) -> None:
        """Leave what is in the queues to another runner."""
        self._is_running = False
        self._run_on()

    def _next(self) -> Attempt | None:
        """Make the next attempt whose first step is a runner's to make; start those before it that have own tasks."""
        while True:
            if self._ready:
                job = self._ready.popleft()
            elif self._has_turn:
                _, job = self.queue.popleft()
            else:
                return None
            try:
                attempt = self._make(job)
                if isinstance(attempt, Attempt) and self._is_for_runner(attempt.task, job):
                    return attempt
                self._start(attempt)
            except Exception as error:  # noqa: BLE001 - whatever it is, it keeps no other job
                self._refuse(job, error)

    def _refuse(self, job: Claimed, error: Exception) -> None:
        """Put off a job with which no attempt can be begun: it is for others, and keeps none claimed with it."""
        say(logger, "job_not_begun", trace=error, job=job.id, task=job.task, error=reason_of(error))
        self._core.unsettled.put_off(job, "it could not be begun")

    # ends

    def _count_in(self, attempt: Run) -> None:
        self._core.active.add(attempt)
        if not attempt.is_remote:  # one that is begins when its turn comes
            self._note_begun(attempt.job)

    def _note_begun(self, job: Claimed) -> None:
        if not job.is_begun and not job.is_suspect:
            self.unmarked[job.token] = self._core.runtime.monotonic()

    def _note_started(self, attempt: Run) -> None:
        """Count an attempt whose handler begins; deliveries of webhooks are nobody's jobs."""
        if attempt.job.queue != INTERNAL_QUEUE:
            attempt.began = self._time()
            self._core.tally.started(attempt.job)

    def note_marked(self, asked: Sequence[Token], marked: Collection[Token]) -> None:
        """Learn which rows say by now that they have begun; the others, which somebody had locked, are next time's."""
        now = self._core.runtime.monotonic()
        for token in asked:
            if token in marked:
                self.unmarked.pop(token, None)
            elif token in self.unmarked:
                self.unmarked[token] = now

    async def _run(self, attempt: Run) -> None:
        """Run *attempt* to its end in this task, which is its own, and take in what it came to."""
        attempt.runs_in = asyncio.current_task()
        if attempt.began is None and not attempt.is_remote:
            self._note_started(attempt)
        outcome = await attempt.run()
        if self._core.active.remove(attempt):  # else it was abandoned
            self._note_end(attempt, outcome, self._time())
            self._run_on()
            self._after_end()
        if attempt.warning is None:
            return
        # only now, as the attempt is not told to stop any more, which would stop this
        error = in_short(json.loads(attempt.warning))
        say(logger, "handler_raised_after_completion", job=attempt.job.id, task=attempt.job.task, error=error)
        try:
            await self._core.store.run(settling.append_warning, attempt.job.token, attempt.warning)
        except StoreError as error:
            say(logger, "warning_not_written", trace=error, job=attempt.job.id, reason=reason_of(error))

    def _after_end(self) -> None:
        self.on_end()
        self._core.woken.set()

    def _note_end(self, attempt: Run, outcome: Outcome | None, now: float) -> None:
        slot = slot_of(attempt)
        self.ended[slot] += 1
        if (tell := self.on_end_of.get(slot)) is not None:
            tell()
        if outcome is not None and (outcome.error is not None or outcome.kind is Kind.PAUSE):
            log_failure(attempt.job, outcome, attempt.error)
        attempt.error = None  # its traceback holds the attempt, and all that its handler had
        self._end_of(attempt, outcome, now)

    def abandon(self, attempt: Run, outcome: Outcome | None) -> None:
        """Take in what an attempt is to come to for which nobody waits any longer."""
        self._end_of(attempt, outcome, self._time())

    def _end_of(self, attempt: Run, outcome: Outcome | None, now: float) -> None:
        """Take in what *attempt* came to; None leaves nothing to write."""
        job, ran_ms = attempt.job, None if attempt.began is None else 1000 * (now - attempt.began)
        if outcome is None and ran_ms is not None and attempt.is_completed:
            self._core.tally.ended(job.queue, job.task, Kind.COMPLETE, ran_ms)
        self._end(job, outcome, attempt.judge, ran_ms)

    def _end(
        self,
        job: Claimed,
        outcome: Outcome | None,
        judge: JudgesError,
        ran_ms: float | None = None,
        *,
        has_begun: bool = True,
    ) -> None:
        core = self._core
        core.shutdown.note_end()
        if self.unmarked:
            self.unmarked.pop(job.token, None)
        if outcome is None:
            core.leases.drop(job.token)
            core.progress.forget([job.token])
            return
        if outcome.successor is not None:
            core.unsettled.may_be_refused(job.token, partial(_judge_refused, job, judge))
        is_plain = job.lane is None and job.chain_index == 0
        halts_lane = core.tasks.get(job.task).policy.halts_lane
        settlement = Settlement(job.token, outcome, halts_lane, is_plain, has_begun, job.queue, job.task, ran_ms)
        core.unsettled.add(settlement)


def _judge_refused(job: Claimed, judge: JudgesError, error: BaseException) -> Outcome:
    """Judge an attempt whose continuation cannot be written, and log it: its handler had returned."""
    outcome = judge(error)
    log_failure(job, outcome, error)
    return outcome


def _marks_of(task: Any) -> tuple[object, ...]:
    """Give what tells that a handler has left something on the task that it ran in, or that somebody has kept it."""
    return (
        sys.getrefcount(task),
        weakref.getweakrefcount(task),
        task.cancelling(),
        task._must_cancel,
        len(task._callbacks or ()),
        task.get_name(),
    )


def _are_same(one: contextvars.Context, other: contextvars.Context) -> bool:
    """Tell whether both hold the very same values: an equal one is another, and some cannot be compared."""
    return len(one) == len(other) and all(one.get(variable, _NONE) is value for variable, value in other.items())


_NONE = object()
