"""The children of one worker: started before they are needed, one job at a time each, and replaced when they are worn.

One child is ready from the beginning, and as soon as none is idle another is started, while there is room. What cannot
be started, or finds another database than ours, is tried again later and later; meanwhile no child is free, and so no
job is claimed for one.

*Who runs what.* Jobs that were claimed for idle children are given to these. Those that were claimed ahead are given to
children as well, behind the job that runs there, so that a child is never without work while its worker is busy; a
child that is idle gets half of what waits with another. Nothing waits for long behind a job that takes long: it is
given back, for another worker. Of a child that dies only the job that it had begun is concerned; the next child gets
the others.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.logging import reason_of, say
from holdfast.runtime import Runtime
from holdfast.store.jobs.claiming import Claimed
from holdfast.tasks.task import Task
from holdfast.worker.attempts.aborts import AbortReason
from holdfast.worker.attempts.judging import Judge
from holdfast.worker.children.bootstrap import Launch
from holdfast.worker.children.messages import Message
from holdfast.worker.children.process import ChildProcess, how_it_died
from holdfast.worker.children.remote_attempt import ParentServices, RemoteAttempt
from holdfast.worker.health import ChildrenHealth, wall_time
from holdfast.worker.options import WorkerOptions

HELLO_SECONDS = 60.0
FIND_SECONDS = 10.0
"""How long a job may wait for its turn in a child."""
MOST_GIVEN = 100
"""To one child, that have not ended; it gets more when half of them have."""
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 30.0

logger = logging.getLogger(__name__)


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
        self._loop = asyncio.get_running_loop()
        self._starting: dict[ChildProcess, asyncio.TimerHandle] = {}
        self._crew: dict[ChildProcess, dict[int, RemoteAttempt]] = {}
        """The children that are ready, and what each was given and has not ended, by its number there."""
        self._queue: deque[RemoteAttempt] = deque()
        """What no child was given yet."""
        self._is_filling = False
        self._sweep: asyncio.TimerHandle | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self.unknown: set[str] = set()
        """The tasks that a child turned out to lack."""
        self._failures = 0
        self._failing_since: float | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._is_draining = self._is_closed = False
        self.on_begun: Callable[[Claimed], None] = lambda _: None
        """Is called when a child has begun a job."""
        self._keep_spare()

    @property
    def usable(self) -> int:
        """How many children there are that have work, or could have."""
        return len(self._crew)

    def health(self) -> ChildrenHealth:
        """Tell how they are; in any thread."""
        busy = sum(map(bool, list(self._crew.values())))
        return ChildrenHealth(
            idle=len(self._crew) - busy,
            busy=busy,
            starting=len(self._starting),
            failing_since=wall_time(self._runtime, self._failing_since),
        )

    @property
    def waiting(self) -> Sequence[RemoteAttempt]:
        """What no child has begun, as far as we know; in any thread."""
        given = [each for jobs in list(self._crew.values()) for each in list(jobs.values())]
        return [*self._queue, *(each for each in given if not each.is_taken)]

    def attempt(self, job: Claimed, task: Task[..., Any]) -> RemoteAttempt:
        """Make an attempt of *job*, which is given to a child soon."""
        judge = Judge(job, task, self._worker, self._runtime.chance)
        attempt = RemoteAttempt(judge, self._take_back, self._services)
        if attempt.may_wait:
            self._queue.append(attempt)
        else:  # a child was free for it, so that it comes before those that were claimed ahead
            self._queue.insert(sum(not each.may_wait for each in self._queue), attempt)
        if self._sweep is None:
            self._sweep = self._loop.call_later(FIND_SECONDS, self._give_up_old)
        if not self._is_filling:  # what was claimed together is given together
            self._is_filling = True
            self._loop.call_soon(self._fill)
        return attempt

    # who gets what

    def _fill(self) -> None:
        """Give what waits to those that have least to do."""
        self._is_filling = False
        given: defaultdict[ChildProcess, dict[int, Message]] = defaultdict(dict)
        while self._queue and (child := self._child_for(self._queue[0])) is not None:
            attempt, number = self._queue.popleft(), next(child.numbers)
            self._crew[child][number] = attempt
            attempt.give_to(child, number)
            if not attempt.job.is_suspect:  # which writes down first that it begins
                given[child][number] = attempt.message()
        for child, jobs in given.items():
            child.give(jobs)
        self._keep_spare()

    def _child_for(self, attempt: RemoteAttempt) -> ChildProcess | None:
        """Find a child for *attempt*, if there is one: of those that are idle the last that was not."""
        child = min(reversed(self._crew), key=lambda each: len(self._crew[each]), default=None)
        if child is None:
            return None
        jobs = self._crew[child]
        if jobs and (not attempt.may_wait or next(iter(jobs.values())).job.is_suspect):  # which has it for itself
            return None
        return child if len(jobs) < min(MOST_GIVEN, self._options.child_jobs - child.jobs) else None

    def _make_idle(self, child: ChildProcess) -> None:
        """Have *child* work: it gets half of what waits with the one that has most, if nothing else is there for it."""
        self._crew[child] = {}  # behind the others
        richest = max(self._crew, key=lambda each: len(self._crew[each]))
        if not self._queue and len(self._crew[richest]) > 1:
            numbers = richest.tickets.take_back()
            richest.tickets.give(numbers[: len(numbers) // 2])
            self._retract(richest, numbers[len(numbers) // 2 :])
        self._fill()

    def _retract(self, child: ChildProcess, numbers: Sequence[int]) -> None:
        """Have what *child* will not begin wait for another, before all others."""
        retracted = [self._crew[child].pop(number) for number in numbers]
        for each in reversed(retracted):
            each.give_to(None)
            self._queue.appendleft(each)

    def _take_back(self, attempt: RemoteAttempt) -> bool:
        """Take *attempt* from whoever was to begin it; tell whether that could be done, or it has begun."""
        child = attempt.child
        if child is None:
            if attempt not in self._queue:
                return False
            self._queue.remove(attempt)
            return True
        if attempt.number not in self._crew.get(child, ()):
            return False
        if attempt.is_sent:
            numbers = child.tickets.take_back()
            child.tickets.give([each for each in numbers if each != attempt.number])
            if attempt.number not in numbers:
                return False
        del self._crew[child][attempt.number]
        attempt.give_to(None)
        return True

    def _give_up_old(self) -> None:
        """Give back what has waited for too long; another worker may have a child for it."""
        self._sweep = None
        oldest = self._loop.time()
        for attempt in self.waiting:
            if attempt.asked_at + FIND_SECONDS > self._loop.time():
                oldest = min(oldest, attempt.asked_at)
            elif self._take_back(attempt):
                attempt.give_up()
        if self._queue or any(self._crew.values()):
            self._sweep = self._loop.call_at(oldest + FIND_SECONDS, self._give_up_old)

    def drain(self) -> None:
        """Give back what has not begun, and what comes back later."""
        self._is_draining = True
        for child in self._crew:
            self._retract(child, child.tickets.take_back())
        for attempt in list(self._queue):
            attempt.abort(AbortReason.SHUTDOWN)

    def send_leases(self) -> None:
        """Send the children how long their leases are good for; in any thread."""
        for jobs in list(self._crew.values()):
            for attempt in list(jobs.values()):
                attempt.send_lease()

    # what comes from them

    def _on_message(self, child: ChildProcess, message: Message) -> None:
        match message["say"]:
            case "hello":
                self._on_hello(child, message)
            case "taken":
                child.current = message["number"]
                attempt = self._crew[child][child.current]
                attempt.begin()
                self.on_begun(attempt.job)
            case "ended":
                self._on_ended(child, message)
            case _ if (current := self._crew.get(child, {}).get(child.current)) is not None:
                current.on_message(message)

    def _on_ended(self, child: ChildProcess, message: Message) -> None:
        """Take in the end of a job, and let its child go if that has worked long enough or grown too big."""
        jobs = self._crew[child]
        attempt = jobs.pop(message["number"])
        attempt.end(message)
        task = attempt.task.name
        if message["is_unknown"] and task not in self.unknown:  # its code is another than ours, as during a release
            self.unknown.add(task)
            say(logger, "child_lacks_task", task=task, app=self._launch.app)
        child.jobs += 1
        limit, megabytes = self._options.child_megabytes, message["megabytes"]
        if child.jobs >= self._options.child_jobs or (limit is not None and megabytes > limit):
            say(logger, "child_recycled", pid=child.pid, jobs=child.jobs, megabytes=round(megabytes))
            self._retract(child, child.tickets.take_back())
            del self._crew[child]
            self._let_go(child)
            self._fill()
        elif not jobs:
            del self._crew[child]
            self._make_idle(child)
        elif len(jobs) <= MOST_GIVEN // 2:
            self._fill()
        self._on_free()

    def _on_death(self, child: ChildProcess, code: int) -> None:
        """Handle a death: of a child that works it concerns its job, of one that was starting those to come."""
        if (timer := self._starting.pop(child, None)) is not None:
            timer.cancel()
            self._fail(child, how_it_died(code))
        elif child in self._crew:
            self._retract(child, child.tickets.take_back())
            jobs = self._crew.pop(child)
            for attempt in jobs.values():
                attempt.end(code)
            if not jobs:
                say(logger, "idle_child_died", pid=child.pid, code=code, how=how_it_died(code))
            if not jobs and not child.jobs:  # what its modules have begun takes it down, and would the next one at once
                self._fail(child, how_it_died(code))
            if self._is_draining:
                self.drain()
        self._fill()

    def _on_hello(self, child: ChildProcess, message: Message) -> None:
        timer = self._starting.pop(child, None)
        if timer is None:
            return
        timer.cancel()
        mistake = message["mistake"]
        if mistake is None and message["database"] != self._launch.database:
            mistake = (
                f"{self._launch.app} has another database in the child process than in the worker; take the database "
                "from settings only, and give a SQLite file by its absolute path"
            )
        if mistake is not None:
            self._let_go(child)
            self._fail(child, mistake)
            return
        if self._failing_since is not None:
            say(logger, "children_start_again", failures=self._failures)
        self._failures, self._failing_since = 0, None
        self._make_idle(child)
        self._on_free()

    # how many there are

    def _keep_spare(self) -> None:
        """Start a child if none is idle and none is about to be, and there is room."""
        if self._is_closed or not all(self._crew.values()) or self._starting or self._retry is not None:
            return
        if len(self._crew) < self._most:
            self._start()

    def _start(self) -> None:
        self._retry = None
        if self._is_closed:
            return
        try:
            child = ChildProcess(self._runtime, self._on_message, self._on_death)
        except OSError as error:
            self._fail(None, reason_of(error))
            return
        child.send("begin", **self._launch.first_message(self._worker, self._options.child_megabytes))
        self._starting[child] = self._loop.call_later(HELLO_SECONDS, self._on_hello_timeout, child)

    def _on_hello_timeout(self, child: ChildProcess) -> None:
        say(logger, "child_says_nothing", pid=child.pid, seconds=HELLO_SECONDS)
        child.kill()

    def _fail(self, child: ChildProcess | None, reason: str) -> None:
        """Try again later, and later still each time."""
        seconds = min(LONGEST_PAUSE, SHORTEST_PAUSE * 2 ** min(self._failures, 10))
        self._failures += 1
        if self._failing_since is None:
            self._failing_since = self._runtime.monotonic()
        pid = None if child is None else child.pid
        level = logging.ERROR if self._failures == 1 else logging.INFO  # a lasting trouble is an error once
        say(logger, "child_not_started", level=level, pid=pid, reason=reason, again_in=seconds)
        if self._retry is None and not self._is_closed:
            self._retry = self._loop.call_later(seconds, self._start)

    def _let_go(self, child: ChildProcess) -> None:
        child.leave()
        task = self._loop.create_task(self._runtime.threads.call(child.wait))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Let all children go; those that still work are killed."""
        self._is_closed = True
        for each in (self._retry, self._sweep):
            if each is not None:
                each.cancel()
        for child, timer in self._starting.items():
            timer.cancel()
            child.kill()
        for child, jobs in self._crew.items():
            if jobs:
                child.kill()
        for child in (*self._starting, *self._crew):
            self._let_go(child)
        self._starting, self._crew = {}, {}
        if self._leaving:
            await asyncio.wait(self._leaving)


def usable_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
