"""Runs handlers: begins attempts, each a task of its own, and hands on what they come to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from holdfast.client.providers import Opener
from holdfast.client.starter import Starter
from holdfast.database.tx import Store
from holdfast.errors import StoreError
from holdfast.models import INTERNAL_QUEUE
from holdfast.outcomes import Outcome
from holdfast.runtime import Runtime
from holdfast.store.jobs import settling
from holdfast.store.jobs.claiming import Claimed
from holdfast.store.jobs.settling import Settlement
from holdfast.tasks.registry import Tasks
from holdfast.threads import ThreadPool
from holdfast.worker.attempts.active import Run, Running
from holdfast.worker.attempts.attempt import Attempt
from holdfast.worker.attempts.blocks import make_desks
from holdfast.worker.attempts.progress import Progress
from holdfast.worker.children.pool import Children
from holdfast.worker.claiming.unsettled import Ended
from holdfast.worker.leases import LeaseKeeper
from holdfast.worker.options import WorkerOptions

logger = logging.getLogger(__name__)


class Handlers:
    """The handlers of *tasks* in one worker, *worker* by its id; plain functions run in threads of its own."""

    def __init__(
        self,
        store: Store,
        opener: Opener,
        starting: Starter,
        runtime: Runtime,
        options: WorkerOptions,
        worker: str,
        tasks: Tasks,
        *,
        running: Running,
        ended: Ended,
        leases: LeaseKeeper,
        progress: Progress,
        children: Children | None,
    ) -> None:
        self._store = store
        self._children = children
        self._tasks = tasks
        self._runtime = runtime
        self._options = options
        self._running = running
        self._ended = ended
        self._leases = leases
        self._progress = progress
        self._threads = ThreadPool(options.concurrency, "holdfast-handler")
        if any(not each.signature.is_async for each in tasks):
            self._threads.make_ready()
        self._desks = make_desks(store, opener, runtime, starting, leases, progress, worker)

    def start(self, job: Claimed, group: asyncio.TaskGroup, then: Callable[[], None]) -> None:
        """Begin an attempt of *job*; *then* is called when it has ended."""
        attempt = self._make(job)
        self._running.add(attempt)
        group.create_task(self._run(attempt, then))

    def runs_in_child(self, job: Claimed) -> bool:
        """Tell whether the handler of *job* has a process for itself."""
        return self._tasks.get(job.task).policy.is_in_child

    def _make(self, job: Claimed) -> Run:
        task = self._tasks.get(job.task)
        if task.policy.is_in_child and self._children is not None:
            return self._children.attempt(job, task)
        tell, chance = self._progress.teller(job.token), self._runtime.chance
        desk = self._desks[task.signature.is_async]
        middleware = () if job.queue == INTERNAL_QUEUE else self._options.middleware
        return Attempt(job, task, desk, middleware, self._threads, chance, tell)

    async def _run(self, attempt: Run, then: Callable[[], None]) -> None:
        outcome = await attempt.run()
        if self._running.remove(attempt):  # else it was abandoned
            self.end(attempt, outcome)
            then()
        if attempt.warning is not None:  # now that the attempt is not told to stop any more, which would stop this
            await self._warn(attempt, attempt.warning)

    def end(self, attempt: Run, outcome: Outcome | None) -> None:
        """Take in what an attempt came to; None leaves nothing to write."""
        token = attempt.job.token
        if outcome is None:
            self._leases.drop(token)
            self._progress.forget([token])
        else:
            if outcome.successor is not None:
                self._ended.may_be_refused(token, attempt.judge)
            is_plain = attempt.job.lane is None and attempt.job.chain_index == 0
            self._ended.add(Settlement(token, outcome, attempt.task.policy.halts_lane, is_plain))

    async def _warn(self, attempt: Run, error: str) -> None:
        """Write down what was raised after the job was completed, if that can be done."""
        logger.warning("handler_raised_after_completion", extra={"job": attempt.job.id, "task": attempt.job.task})
        try:
            await self._store.run(settling.append_warning, attempt.job.token, error)
        except StoreError:
            logger.warning("warning_not_written", extra={"job": attempt.job.id}, exc_info=True)

    def close(self) -> None:
        """Begin nothing more; threads that still run are left to themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)
