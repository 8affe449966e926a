"""The worker: runs the jobs of the tasks it knows; here its parts are put together, and its life is led.

`claimer` has two loops that settle what has ended and claim for the free slots, from its `floor`; `doubts` are its lost
answers. `intake` begins what was claimed, or gives it back; suspects run alone. `handlers` runs each `attempt`, and
`running` knows them all. A handler sees its `context` and opens `blocks`, each of them `fenced`. `settle` keeps what
has ended until it is written down. `leases` are kept by a thread of their own, which also hears what is asked of
running jobs. `hearing` says when to look, `progress` what handlers report, `upkeep` and `proof` what others have left;
`retention` takes away what ended long ago. `beside` the slots of handlers are those of `deliveries`, for webhooks, and
of `children`, the processes that run handlers which can be killed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from holdfast.client.providers import Opener
from holdfast.client.starter import Starter
from holdfast.database.tx import Store
from holdfast.errors import HoldfastError, Misuse
from holdfast.runtime import Runtime
from holdfast.store.jobs.claiming import ClaimState, Token, Want
from holdfast.store.workers import Member
from holdfast.tasks.registry import Tasks
from holdfast.tasks.task import Task
from holdfast.worker.attempts.aborts import ABORTS, AbortReason
from holdfast.worker.attempts.active import Running, Slot
from holdfast.worker.attempts.loop_lag import LoopWatch
from holdfast.worker.attempts.progress import Progress
from holdfast.worker.children.bootstrap import Launch
from holdfast.worker.children.pool import Children
from holdfast.worker.children.remote_attempt import ParentServices
from holdfast.worker.claiming.claimer import LOOPS, Claimer
from holdfast.worker.claiming.dispatcher import Intake
from holdfast.worker.claiming.executor import Handlers
from holdfast.worker.claiming.slot_group import Beside
from holdfast.worker.claiming.unsettled import Ended
from holdfast.worker.claiming.wakeups import Hearing
from holdfast.worker.claiming.webhook_slots import Deliveries
from holdfast.worker.health import ChildrenHealth, Health, HintMode, Instants
from holdfast.worker.leases import LeaseKeeper
from holdfast.worker.options import WorkerOptions, new_worker_id, wants_of
from holdfast.worker.shutdown import Shutdown
from holdfast.worker.upkeep.liveness_lock import LivenessLocks
from holdfast.worker.upkeep.reaper import Undelivered, Upkeep
from holdfast.worker.upkeep.retention import RetentionPass, RetentionUpkeep

logger = logging.getLogger(__name__)


class Worker:
    """Runs the jobs of the tasks it knows, in one process; made by `hf.worker()`."""

    def __init__(
        self,
        store: Store,
        lease_store: Store,
        opener: Opener,
        starting: Starter,
        runtime: Runtime,
        options: WorkerOptions,
        make_proof: Callable[[str], LivenessLocks | None] = lambda _: None,
        retention: RetentionPass | None = None,
        delivery: Task[..., Any] | None = None,
        launch: Launch | None = None,
    ) -> None:
        self._store = store
        self._lease_store = lease_store
        self._opener = opener
        self._starter = starting
        self._runtime = runtime
        self._options = options
        self.id = new_worker_id(options.name, runtime)
        wants = wants_of(starting.tasks, options.queues)
        for_children = {name for each in starting.tasks if each.policy.is_in_child for name in each.names}
        self._wants = [each for each in wants if each.task not in for_children]
        self._launch = launch
        self._children: Children | None = None
        self._child_slots = Beside(
            Slot.CHILD,
            [each for each in wants if each.task in for_children],
            lambda: 0 if self._children is None else self._children.usable,
            runtime.monotonic,
        )
        self._retention = None if retention is None else RetentionUpkeep(retention, runtime)
        self._tasks = Tasks()
        self._tasks.merge(starting.tasks)
        if delivery is not None:
            self._tasks.add(delivery)
        self._deliveries = Deliveries(delivery, options.concurrency, runtime.monotonic)
        self._undelivered = Undelivered(store) if options.webhooks and delivery is None else None
        self._running = Running()
        self._ended = Ended()
        self._ending = Shutdown(runtime.monotonic)
        self._woken = asyncio.Event()
        self._is_waking = False
        self._all_written = asyncio.Event()
        self._upkeep: Upkeep | None = None
        self._main: asyncio.Task[None] | None = None
        self._claimer: Claimer | None = None
        self._since: float | None = None
        self._proof = make_proof(self.id)

    async def run(self) -> None:
        """Work until `stop` is called, or this is cancelled; give back what is not done in the grace time."""
        async with self:
            await asyncio.shield(self.ended)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._since = self._runtime.monotonic()
        self._loop_watch = LoopWatch(self._runtime)
        self._progress = Progress(self._store, self._runtime)
        kept = self._tell_children if self._launch is not None else None
        self._leases = LeaseKeeper(self._lease_store, self._runtime, self, kept)
        self._hearing = Hearing(
            self._store, self._runtime, self._member(), self._all_wants, self._options.poll, self._hear
        )
        if self._launch is not None and self._child_slots.wants:
            self._children = Children(
                self._launch,
                self._runtime,
                self._options,
                self.id,
                ParentServices(self._store, self._leases, self._progress),
                self._has_free_child,
            )
        self._handlers = Handlers(
            self._store,
            self._opener,
            self._starter,
            self._runtime,
            self._options,
            self.id,
            self._tasks,
            running=self._running,
            ended=self._ended,
            leases=self._leases,
            progress=self._progress,
            children=self._children,
        )
        try:
            await self._begin_proof()
            async with asyncio.TaskGroup() as group:
                await self._work(group)
        finally:
            await self._end()

    async def _work(self, group: asyncio.TaskGroup) -> None:
        self._claimer = claimer = self._make_claimer(group)
        upkeep = self._upkeep = Upkeep(
            self._store, self._runtime, self._all_wants, self._proof, claimer.wake, self._undelivered
        )
        loops = [upkeep.run(), self._progress.run(), self._hearing.run()]
        loops += [] if self._retention is None else [self._retention.run()]
        beside = [group.create_task(each) for each in loops]
        await asyncio.wait([group.create_task(claimer.run()) for _ in range(LOOPS)])
        if self._ended:  # their leases will end
            logger.error("jobs_not_settled", extra={"jobs": len(self._ended)})
        self._all_written.set()
        for each in beside:
            each.cancel()

    def _make_claimer(self, group: asyncio.TaskGroup) -> Claimer:
        intake = Intake(
            self._store,
            self._handlers,
            group,
            self._woken.set,
            self._runtime.monotonic,
            running=self._running,
            ended=self._ended,
            ending=self._ending,
        )
        return Claimer(
            self._store,
            self._tasks,
            self._runtime,
            self._options,
            self.id,
            self._wants,
            intake=intake,
            running=self._running,
            ended=self._ended,
            ending=self._ending,
            leases=self._leases,
            progress=self._progress,
            hearing=self._hearing,
            beside=[self._deliveries] if self._children is None else [self._deliveries, self._child_slots],
            woken=self._woken,
        )

    @property
    def _all_wants(self) -> list[Want]:
        """What it serves: the jobs of its handlers, here and in children, and deliveries."""
        return [*self._wants, *self._child_slots.wants, *self._deliveries.wants]

    def _has_free_child(self) -> None:
        self._child_slots.has_room()
        self._woken.set()

    def _tell_children(self) -> None:
        """Tell child processes how long their leases are good for; called in either of the leases' threads."""
        if self._children is not None:
            self._children.tell_leases()

    async def _begin_proof(self) -> None:
        if self._proof is None:
            return
        try:
            await self._proof.begin()
        except (HoldfastError, OSError) as error:  # without it the leases decide, as on PostgreSQL
            logger.warning("no_proof_of_life", extra={"reason": str(error)})
            self._proof.drop()
            self._proof = None

    def _member(self) -> Member:
        served = sorted({each.queue for each in (*self._wants, *self._child_slots.wants)})
        return Member.here(self.id, self._options.name, queues=served, concurrency=self._options.concurrency)

    async def _end(self) -> None:
        await self._hearing.stop()
        self._handlers.close()
        if self._children is not None:
            await self._children.close()
        await self._runtime.threads.call(self._leases.stop)
        if self._lease_store is not self._store:
            await self._runtime.threads.call(self._lease_store.close_sync)
        await self._end_proof()

    async def _end_proof(self) -> None:
        if self._proof is None or self._running:  # a handler that still runs is alive, and so are we
            return
        try:
            await self._proof.end()
        except HoldfastError:
            self._proof.drop()

    def _hear(self) -> None:
        """Take a hint; called in any thread."""
        self._leases.hint()
        if self._upkeep is not None:
            self._upkeep.hint()
        claimer = self._claimer  # until there is one, nothing was claimed, and all will be looked at
        if claimer is not None and claimer.note_hint() and not self._is_waking:
            self._is_waking = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._is_waking = False
        self._woken.set()

    async def stop(self) -> None:
        """Claim nothing more, give handlers the grace time, then interrupt them; return when all is written down."""
        self.drain()
        if self._main is None:
            return
        if not await self.has_ended(self._options.grace):
            self.interrupt()
        await self._main

    def drain(self) -> None:
        """Claim nothing more and give back what has not begun; what runs goes on."""
        if self._ending.is_draining:
            return
        self._ending.is_draining = True
        if self._claimer is not None:
            self._claimer.drain()

    def interrupt(self) -> None:
        """Tell every handler to stop; what they come to is written down, unless the store cannot for some seconds."""
        self._ending.begin_last_moment()
        self._running.abort_all(AbortReason.SHUTDOWN)
        self._woken.set()

    async def has_ended(self, seconds: float | None) -> bool:
        """Wait for its end, *seconds* at most; tell whether it came."""
        assert self._main is not None  # noqa: S101 - a worker that was not started is not waited for
        done, _ = await asyncio.wait([self._main], timeout=seconds)
        return bool(done)

    async def abandon(self, seconds: float) -> bool:
        """Give back also what cannot be stopped, for the process is about to end; tell whether all was written."""
        for attempt in list(self._running):
            outcome = attempt.aborted(attempt.abort_reason or AbortReason.SHUTDOWN)
            attempt.leave_behind()
            logger.warning("handler_left_behind", extra={"job": attempt.job.id, "task": attempt.job.task})
            self._handlers.end(attempt, outcome)
            self._running.remove(attempt)
        self._woken.set()
        try:
            async with asyncio.timeout(seconds):
                await self._all_written.wait()
        except TimeoutError:
            return False
        await self._end_proof()
        return not self._ended

    @property
    def ended(self) -> asyncio.Future[None]:
        """Its whole work as a future; what broke it, if anything, is its exception."""
        assert self._main is not None  # noqa: S101 - a worker that was not started has no end
        return self._main

    @property
    def has_unwritten(self) -> bool:
        """Tell whether something ended here that could not be written down."""
        return bool(self._ended)

    @property
    def stubborn(self) -> list[str]:
        """The jobs whose handlers were told to stop long ago and have not."""
        return self._running.stubborn

    def health(self) -> Health:
        """Tell how it is at this moment; asks nobody, so it may be called as often as you like, in any thread."""
        claimer, at = self._claimer, Instants(self._runtime).at
        return Health(
            id=self.id,
            since=at(self._since),
            claimed_at=at(claimer.claimed) if claimer is not None else None,
            hints=self._hints,
            loop_lag=self._loop_watch.lag if claimer is not None else 0.0,
            running=len(self._running),
            stubborn=tuple(self.stubborn),
            trouble_since=at(claimer.trouble_since) if claimer is not None else None,
            trouble=claimer.trouble if claimer is not None else None,
            is_draining=self._ending.is_draining,
            children=self._children_health(at),
        )

    def _children_health(self, at: Callable[[float | None], datetime | None]) -> ChildrenHealth | None:
        if self._children is None:
            return None
        counts = self._children.counts
        return ChildrenHealth(
            idle=counts.idle, busy=counts.busy, starting=counts.starting, failing_since=at(counts.failing_since)
        )

    @property
    def _hints(self) -> HintMode:
        if self._store.database == "sqlite":
            return "watching"
        return "listening" if self._claimer is not None and self._hearing.is_listening else "polling"

    def holds(self, holds: dict[Token, ClaimState]) -> None:
        """Take in how the claims stand; called in the leases' thread."""
        urgent = {token: ABORTS[hold] for token, hold in holds.items() if hold in ABORTS}
        if urgent:
            self._loop.call_soon_threadsafe(self._running.abort, urgent)
        if self._ended:
            self._loop.call_soon_threadsafe(self._woken.set)

    def fenced(self, tokens: list[Token]) -> None:
        """Stop handlers whose leases may be over soon; called in either of the leases' threads."""
        self._loop.call_soon_threadsafe(self._running.abort, dict.fromkeys(tokens, AbortReason.ERROR))

    def looked(self) -> None:
        """See whether the event loop answers; called in the leases' thread."""
        self._loop_watch.look()

    async def __aenter__(self) -> Self:
        if self._main is not None:
            raise Misuse("this worker has been started already; make another with hf.worker()")
        self._main = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
