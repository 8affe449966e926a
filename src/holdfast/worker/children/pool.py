"""The children of one worker: started before they are needed, one job at a time each, and replaced when they are worn.

One child is ready from the beginning, and as soon as none is idle another is started, while there is room. What cannot
be started, or finds another database than ours, is tried again later and later; meanwhile no child is free, and so no
job is claimed for one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.runtime import Runtime
from holdfast.store.jobs.claiming import Claimed
from holdfast.tasks.task import Task
from holdfast.worker.attempts.judging import Judge
from holdfast.worker.children.bootstrap import Launch
from holdfast.worker.children.messages import Message
from holdfast.worker.children.process import ChildProcess, how_it_died
from holdfast.worker.children.remote_attempt import ParentServices, RemoteAttempt
from holdfast.worker.options import WorkerOptions

HELLO_SECONDS = 60.0
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 30.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChildCounts:
    """How many children there are, by what they do; *failing_since* is a monotonic time, None if all is well."""

    starting: int
    idle: int
    busy: int
    failing_since: float | None


class Children:
    """The children of the worker *worker*, by its id; *on_free* is called when there is room for another job."""

    def __init__(
        self,
        launch: Launch,
        runtime: Runtime,
        options: WorkerOptions,
        worker: str,
        services: ParentServices,
        on_free: Callable[[], None],
    ) -> None:
        self._launch = launch
        self._runtime = runtime
        self._options = options
        self._most = options.children or usable_cores()
        self._worker = worker
        self._services = services
        self._on_free = on_free
        self._starting: dict[ChildProcess, asyncio.TimerHandle] = {}
        self._idle: list[ChildProcess] = []
        self._busy: dict[ChildProcess, RemoteAttempt] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._waiting: deque[tuple[RemoteAttempt, asyncio.Future[ChildProcess]]] = deque()
        self._unknown: set[str] = set()
        self._failures = 0
        self._failing_since: float | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._keep_spare()

    @property
    def usable(self) -> int:
        """How many children there are that have work, or could have."""
        return len(self._idle) + len(self._busy)

    @property
    def counts(self) -> ChildCounts:
        """How many there are of each kind."""
        return ChildCounts(len(self._starting), len(self._idle), len(self._busy), self._failing_since)

    def attempt(self, job: Claimed, task: Task[..., Any]) -> RemoteAttempt:
        """Make an attempt of *job*, which takes a child at once."""
        judge = Judge(job, task, self._worker, self._runtime.chance)
        return RemoteAttempt(job, task, judge, self, self._services)

    def take(self, attempt: RemoteAttempt) -> ChildProcess | None:
        """Give *attempt* a child that is idle, if there is one."""
        if not self._idle:
            return None
        child = self._idle.pop()  # the one that worked last, whose memory is warm
        child.jobs += 1
        self._busy[child] = attempt
        self._keep_spare()
        return child

    async def wait_for_one(self, attempt: RemoteAttempt, seconds: float) -> ChildProcess | None:
        """Wait for a child to be idle, for a job that was claimed although none was, as after a lost answer."""
        future: asyncio.Future[ChildProcess] = asyncio.get_running_loop().create_future()
        self._waiting.append((attempt, future))
        self._keep_spare()
        done, _ = await asyncio.wait([future], timeout=seconds)
        if done:
            return future.result()
        future.cancel()
        return None

    def give_back(self, child: ChildProcess, megabytes: float = 0.0) -> None:
        """Take back a child whose job has ended, and let it go if it has worked long enough or grown too big."""
        if self._busy.pop(child, None) is None:
            return
        limit = self._options.child_megabytes
        if child.jobs >= self._options.child_jobs or (limit is not None and megabytes > limit):
            logger.info("child_recycled", extra={"pid": child.pid, "jobs": child.jobs, "megabytes": round(megabytes)})
            self._let_go(child)
            self._keep_spare()
        else:
            self._make_idle(child)

    def note_unknown(self, task: str) -> None:
        """Say once that a child does not have *task*: its code is another than ours, as while a release is put out."""
        if task not in self._unknown:
            self._unknown.add(task)
            logger.error("child_lacks_task", extra={"task": task, "app": self._launch.app})

    def send_leases(self) -> None:
        """Send the children how long their leases are good for; in any thread."""
        for attempt in list(self._busy.values()):
            attempt.send_lease()

    # what comes from them

    def on_message(self, child: ChildProcess, message: Message) -> None:
        """Handle a message."""
        if message["say"] == "hello":
            self._on_hello(child, message)
        elif (attempt := self._busy.get(child)) is not None:
            attempt.on_message(message)

    def on_death(self, child: ChildProcess, code: int) -> None:
        """Handle a death: of a child that works it concerns its job, of one that was starting those to come."""
        if (timer := self._starting.pop(child, None)) is not None:
            timer.cancel()
            self._fail(child, how_it_died(code))
        elif child in self._idle:
            self._idle.remove(child)
            logger.warning("idle_child_died", extra={"pid": child.pid, "code": code})
            if not child.jobs:  # what its modules have begun takes it down, and would the next one at once
                self._fail(child, how_it_died(code))
        elif (attempt := self._busy.pop(child, None)) is not None:
            attempt.on_death(code)
        self._keep_spare()

    def _on_hello(self, child: ChildProcess, message: Message) -> None:
        timer = self._starting.pop(child, None)
        if timer is None:
            return
        timer.cancel()
        mistake = message["mistake"]
        if mistake is None and message["database"] != self._launch.database:
            mistake = (
                f"{self._launch.app} has another database there than here; let it depend on settings alone, and if it "
                "is a file, give its whole path"
            )
        if mistake is not None:
            self._let_go(child)
            self._fail(child, mistake)
            return
        if self._failing_since is not None:
            logger.warning("children_start_again", extra={"failures": self._failures})
        self._failures, self._failing_since = 0, None
        self._make_idle(child)

    # how many there are

    def _make_idle(self, child: ChildProcess) -> None:
        self._idle.append(child)
        while self._waiting and self._idle:
            attempt, future = self._waiting.popleft()
            if not future.done() and (taken := self.take(attempt)) is not None:
                future.set_result(taken)
        self._on_free()

    def _keep_spare(self) -> None:
        """Start a child if none is idle and none is about to be, and there is room."""
        if self._is_closed or self._idle or self._starting or self._retry is not None:
            return
        if len(self._busy) < self._most:
            self._start()

    def _start(self) -> None:
        self._retry = None
        if self._is_closed:
            return
        try:
            child = ChildProcess(self._runtime, self)
        except OSError as error:
            self._fail(None, str(error))
            return
        child.send("begin", **self._launch.first_message(self._worker))
        timer = asyncio.get_running_loop().call_later(HELLO_SECONDS, self._on_hello_timeout, child)
        self._starting[child] = timer

    def _on_hello_timeout(self, child: ChildProcess) -> None:
        logger.error("child_says_nothing", extra={"pid": child.pid, "seconds": HELLO_SECONDS})
        child.kill()

    def _fail(self, child: ChildProcess | None, reason: str) -> None:
        """Try again later, and later still each time."""
        seconds = min(LONGEST_PAUSE, SHORTEST_PAUSE * 2 ** min(self._failures, 10))
        self._failures += 1
        if self._failing_since is None:
            self._failing_since = self._runtime.monotonic()
        pid = None if child is None else child.pid
        level = logging.ERROR if self._failures == 1 else logging.INFO  # a lasting trouble is an error once
        logger.log(level, "child_not_started", extra={"pid": pid, "reason": reason, "again_in": seconds})
        if self._retry is None and not self._is_closed:
            self._retry = asyncio.get_running_loop().call_later(seconds, self._start)

    def _let_go(self, child: ChildProcess) -> None:
        task = asyncio.get_running_loop().create_task(self._runtime.threads.call(child.leave()))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Let all children go; those that still work are killed."""
        self._is_closed = True
        if self._retry is not None:
            self._retry.cancel()
        for child, timer in self._starting.items():
            timer.cancel()
            child.kill()
        for child in self._busy:
            child.kill()
        for child in (*self._starting, *self._busy, *self._idle):
            self._let_go(child)
        self._starting, self._idle, self._busy = {}, [], {}
        if self._leaving:
            await asyncio.wait(self._leaving)


def usable_cores() -> int:
    """Say how many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
