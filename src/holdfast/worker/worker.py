"""The worker: runs the jobs of the tasks it knows; here its parts are put together, and its life is led.

`claiming` settles what has ended and claims for the free slots, in two loops: `claimer` from its `scan_position`,
`unknown_claims` for lost answers, `wakeups` for when to look. `dispatcher` begins what was claimed, or gives it back;
suspects run alone. `executor` runs each attempt, and `unsettled` keeps what has ended until it is written down. A
`slot_group` beside the slots of handlers has those of webhooks, or of child processes.

`attempts` has one attempt: its `context`, its blocks, its phases, what it reports; `active` knows all that run.
`leases` are kept by a thread of their own, which also learns what is asked of running jobs. `upkeep` takes over what
other workers have left, and removes what ended long ago. `children` are processes whose handlers can be killed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
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
from holdfast.worker.health import ChildrenHealth, Health, HintMode, wall_time
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
        starter: Starter,
        runtime: Runtime,
        options: WorkerOptions,
        make_liveness_locks: Callable[[str], LivenessLocks | None] = lambda _: None,
        retention: RetentionPass | None = None,
        delivery: Task[..., Any] | None = None,
        launch: Launch | None = None,
    ) -> None:
        self._store = store
        self._lease_store = lease_store
        self._opener = opener
        self._starter = starter
        self._runtime = runtime
        self._options = options
        self.id = new_worker_id(options.name, runtime)
        wants = wants_of(starter.tasks, options.queues)
        for_children = {name for each in starter.tasks if each.policy.is_in_child for name in each.names}
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
        self._tasks.merge(starter.tasks)
        if delivery is not None:
            self._tasks.add(delivery)
        self._deliveries = Deliveries(delivery, options.concurrency, runtime.monotonic)
        self._undelivered = Undelivered(store) if options.webhooks and delivery is None else None
        self._running = Running()
        self._ended = Ended()
        self._shutdown = Shutdown(runtime.monotonic)
        self._woken = asyncio.Event()
        self._is_waking = False
        self._all_written = asyncio.Event()
        self._upkeep: Upkeep | None = None
        self._main: asyncio.Task[None] | None = None
        self._claimer: Claimer | None = None
        self._since: float | None = None
        self._liveness_locks = make_liveness_locks(self.id)

    async def run(self) -> None:
        """Work until `stop` is called, or this is cancelled; give back what is not done in the grace time."""
        async with self:
            await asyncio.shield(self.ended)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._since = self._runtime.monotonic()
        self._loop_watch = LoopWatch(self._runtime)
        self._progress = Progress(self._store, self._runtime)
        on_extended = self._send_leases if self._launch is not None else None
        self._leases = LeaseKeeper(self._lease_store, self._runtime, self, on_extended)
        queues = sorted({each.queue for each in (*self._wants, *self._child_slots.wants)})
        member = Member.here(self.id, self._options.name, queues=queues, concurrency=self._options.concurrency)
        self._hearing = Hearing(self._store, self._runtime, member, self._all_wants, self._options.poll, self._on_hint)
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
            await self._begin_liveness_locks()
            async with asyncio.TaskGroup() as group:
                await self._work(group)
        finally:
            await self._end()

    async def _work(self, group: asyncio.TaskGroup) -> None:
        self._claimer = claimer = self._make_claimer(group)
        upkeep = self._upkeep = Upkeep(
            self._store, self._runtime, self._all_wants, self._liveness_locks, claimer.wake, self._undelivered
        )
        loops = [upkeep.run(), self._progress.run(), self._hearing.run()]
        loops += [] if self._retention is None else [self._retention.run()]
        background = [group.create_task(each) for each in loops]
        await asyncio.wait([group.create_task(claimer.run()) for _ in range(LOOPS)])
        if self._ended:  # their leases will end
            logger.error("jobs_not_settled", extra={"jobs": len(self._ended)})
        self._all_written.set()
        for each in background:
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
            ending=self._shutdown,
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
            ending=self._shutdown,
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

    def _send_leases(self) -> None:
        """Send child processes how long their leases are good for; called in either of the leases' threads."""
        if self._children is not None:
            self._children.send_leases()

    async def _begin_liveness_locks(self) -> None:
        if self._liveness_locks is None:
            return
        try:
            await self._liveness_locks.begin()
        except (HoldfastError, OSError) as error:  # without it the leases decide, as on PostgreSQL
            logger.warning("no_proof_of_life", extra={"reason": str(error)})
            self._liveness_locks.drop()
            self._liveness_locks = None

    async def _end(self) -> None:
        await self._hearing.stop()
        self._handlers.close()
        if self._children is not None:
            await self._children.close()
        await self._runtime.threads.call(self._leases.stop)
        if self._lease_store is not self._store:
            await self._runtime.threads.call(self._lease_store.close_sync)
        await self._end_liveness_locks()

    async def _end_liveness_locks(self) -> None:
        if self._liveness_locks is None or self._running:  # a handler that still runs is alive, and so are we
            return
        try:
            await self._liveness_locks.end()
        except HoldfastError:
            self._liveness_locks.drop()

    def _on_hint(self) -> None:
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
        if self._shutdown.is_draining:
            return
        self._shutdown.is_draining = True
        if self._claimer is not None:
            self._claimer.drain()

    def interrupt(self) -> None:
        """Tell every handler to stop; what they come to is written down, unless the store cannot for some seconds."""
        self._shutdown.begin_last_moment()
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
        await self._end_liveness_locks()
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
        claimer, wall = self._claimer, partial(wall_time, self._runtime)
        return Health(
            id=self.id,
            since=wall(self._since),
            claimed_at=wall(claimer.claimed) if claimer is not None else None,
            hints=self._hints,
            loop_lag=self._loop_watch.lag if claimer is not None else 0.0,
            running=len(self._running),
            stubborn=tuple(self.stubborn),
            trouble_since=wall(claimer.trouble_since) if claimer is not None else None,
            trouble=claimer.trouble if claimer is not None else None,
            is_draining=self._shutdown.is_draining,
            children=self._children_health(),
        )

    def _children_health(self) -> ChildrenHealth | None:
        if self._children is None:
            return None
        counts = self._children.counts
        return ChildrenHealth(
            idle=counts.idle,
            busy=counts.busy,
            starting=counts.starting,
            failing_since=wall_time(self._runtime, counts.failing_since),
        )

    @property
    def _hints(self) -> HintMode:
        if self._store.database == "sqlite":
            return "watching"
        return "listening" if self._claimer is not None and self._hearing.is_listening else "polling"

    def on_claim_states(self, states: dict[Token, ClaimState]) -> None:
        """Stop handlers whose claims are lost or asked to end; called in the leases' thread."""
        urgent = {token: ABORTS[state] for token, state in states.items() if state in ABORTS}
        if urgent:
            self._loop.call_soon_threadsafe(self._running.abort, urgent)
        if self._ended:
            self._loop.call_soon_threadsafe(self._woken.set)

    def on_fenced(self, tokens: list[Token]) -> None:
        """Stop handlers whose leases may be over soon; called in either of the leases' threads."""
        self._loop.call_soon_threadsafe(self._running.abort, dict.fromkeys(tokens, AbortReason.ERROR))

    def on_step(self) -> None:
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
