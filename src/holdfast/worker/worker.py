"""The worker: runs the jobs of the tasks it knows; here its parts are put together, and its life is led.

`claiming` settles what has ended and claims for the free slots, in two loops of the `claimer`: `unknown_claims` for
lost answers, `wakeups` for when to look. `dispatcher` begins what was claimed, or gives it back; suspects run apart.
`executor` runs each attempt, and `unsettled` keeps what has ended until it is written down. A `slot_group` beside the
slots of handlers has those of webhooks, of acting on many jobs, or of child processes.

`attempts` has one attempt: its `context`, its blocks, its phases, what it reports; `active` knows all that run.
`leases` are kept by a thread of their own, which also learns what is asked of running jobs. `upkeep` takes over what
other workers have left, makes deliveries of what somebody wants a webhook of, starts the jobs of schedules, and removes
what ended long ago.
`children` are processes whose handlers can be killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from holdfast.client.engine_parts import EngineParts
from holdfast.database.tx import Store
from holdfast.errors import HoldfastError, Misuse
from holdfast.logging import reason_of, say
from holdfast.outcomes import Kind, Outcome
from holdfast.store.jobs.claiming import ClaimState, Token, Want
from holdfast.store.workers import Member, Slots
from holdfast.tasks.registry import Tasks
from holdfast.threads import ThreadPool
from holdfast.version import VERSION
from holdfast.worker.attempts.aborts import ABORTS, AbortReason
from holdfast.worker.attempts.active import Run, Slot
from holdfast.worker.attempts.late_entries import LateEntries
from holdfast.worker.attempts.loop_lag import LoopWatch
from holdfast.worker.attempts.progress import Progress
from holdfast.worker.attempts.services import Keepers, make_services
from holdfast.worker.builtin.bulk import make_bulk
from holdfast.worker.builtin.webhook import DeliveryTask
from holdfast.worker.children.bootstrap import Launch
from holdfast.worker.children.pool import Children, usable_cores
from holdfast.worker.children.remote_attempt import ParentServices
from holdfast.worker.children.suspects import MOST_CHILDREN, SuspectChildren
from holdfast.worker.claiming.claimer import LOOPS, Claimer
from holdfast.worker.claiming.core import WorkerCore
from holdfast.worker.claiming.dispatcher import Dispatcher
from holdfast.worker.claiming.executor import Executor
from holdfast.worker.claiming.slot_group import SlotGroup, bulk_slot, webhook_slots
from holdfast.worker.claiming.slot_share import SlotShare
from holdfast.worker.claiming.unsettled import Unsettled
from holdfast.worker.claiming.wakeups import Wakeups
from holdfast.worker.health import Health, HintMode, wall_time
from holdfast.worker.leases import LeaseKeeper
from holdfast.worker.options import WorkerOptions, wants_of
from holdfast.worker.shutdown import CLEANUP_SECONDS, LAST_SECONDS, SPARED_SECONDS, Shutdown, grace_in_words
from holdfast.worker.tally import Tally
from holdfast.worker.upkeep.folding import keep_figures
from holdfast.worker.upkeep.liveness_lock import LivenessLocks
from holdfast.worker.upkeep.outbox import OutboxMaker
from holdfast.worker.upkeep.reaper import EXTRA_ADVICE, LostLeases, Upkeep
from holdfast.worker.upkeep.retention import RetentionPass, make_passes
from holdfast.worker.upkeep.ticks import Ticker
from holdfast.worker.upkeep.unserved import UnservedJobs

logger = logging.getLogger(__name__)


class Worker:
    """Runs the jobs of the tasks it knows, in one process; made by `hf.worker()`."""

    def __init__(
        self,
        engine: EngineParts,
        lease_store: Store,
        options: WorkerOptions,
        make_liveness_locks: Callable[[str], LivenessLocks | None] = lambda _: None,
        retention: RetentionPass | None = None,
        delivery: DeliveryTask | None = None,
        launch: Launch | None = None,
        slots: SlotShare | None = None,
    ) -> None:
        bulk = make_bulk(engine.store, engine.runtime)
        runtime, tasks = engine.runtime, Tasks()
        tasks.merge(engine.starter.tasks)
        tasks.add(bulk)
        if delivery is not None:
            tasks.add(delivery.task)
        # random per start, never host name or pid, for a restarted process is another worker
        self.id = f"{options.name or 'worker'}-{runtime.chance.getrandbits(48):012x}"
        lost_leases = LostLeases(engine.store, self.id)
        self._core = WorkerCore(
            self.id, engine.store, runtime, options, tasks, Shutdown(runtime.monotonic), lost_leases
        )
        self._level: int | None = None
        """At which level it says that it begins and ends: the worker of a tenant does so all the time."""
        if slots is not None:
            self._core.share, self._level = slots.join(self._core.woken.set), logging.DEBUG
        self._engine = engine
        self._lease_store = lease_store
        wants = wants_of(engine.starter.tasks, options.queues)
        for_children = {name for each in engine.starter.tasks if each.policy.is_in_child for name in each.names}
        self._wants = [each for each in wants if each.task not in for_children]
        self._launch = launch
        self._children: Children | None = None
        self._pools: list[Children | SuspectChildren] = []
        self._child_slots = SlotGroup(
            Slot.CHILD,
            [each for each in wants if each.task in for_children],
            lambda: 0 if self._children is None else self._children.usable,
            runtime.monotonic,
        )
        self._deliveries = webhook_slots(delivery, options.concurrency, runtime.monotonic)
        self._bulk = bulk_slot(bulk, runtime.monotonic)
        self._lacks_extra = options.webhooks and delivery is None
        self._retention = retention
        self._liveness_locks = make_liveness_locks(self.id)
        self._is_waking = False
        self._all_written = asyncio.Event()
        self._upkeep: Upkeep | None = None
        self._main: asyncio.Task[None] | None = None
        self._ended: asyncio.Future[None] | None = None
        self._has_let_go = False
        """Whether it has let go of what it had for its work."""
        self._has_left_to_lease = False
        """Whether a handler was left behind whose job is still ours, until its lease ends."""
        self._executor: Executor | None = None
        self._claimer: Claimer | None = None
        self._since: float | None = None
        self._has_said_stopped = False

    async def run(self) -> None:
        """Work until `stop` is called, or this is cancelled; give back what is not done in the grace time."""
        async with self:
            await asyncio.shield(self.ended)

    async def _run(self) -> None:
        core, options = self._core, self._core.options
        self._loop = asyncio.get_running_loop()
        self._since = core.runtime.monotonic()
        self._loop_watch = LoopWatch(core.runtime)
        self._threads = ThreadPool(options.concurrency, "holdfast-handler")
        core.progress = Progress(core.store, core.runtime)
        self._late_entries = LateEntries(core.store, core.runtime)
        core.leases = LeaseKeeper(
            self._lease_store,
            core.runtime,
            self._on_claim_states,
            self._on_fenced,
            on_step=self._loop_watch.look,
            on_extended=None if self._launch is None else self._send_leases,
        )
        core.tally = Tally(core.store, core.runtime, self.id)
        core.unsettled = Unsettled(core.store, self.id, core.leases, core.progress, core.lost_leases, core.tally)
        queues = sorted({each.queue for each in (*self._wants, *self._child_slots.wants)})
        tasks = sorted({each.task for each in (*self._wants, *self._child_slots.wants)})
        member = Member.here(self.id, options.name, queues=queues, tasks=tasks, version=VERSION, **self._slot_facts)
        self._wakeups = Wakeups(core, member, self._all_wants, self._on_hint)
        if self._launch is not None and self._child_slots.wants:
            self._children = self._make_children(self._launch, options, self._has_free_child)
            self._pools.append(self._children)
        try:
            await self._begin_liveness_locks()
            self._say_started(queues)
            async with asyncio.TaskGroup() as group:
                await self._work(group)
        finally:
            await self._end()
            self._say_stopped(left=0)

    @property
    def _slot_facts(self) -> dict[str, object]:
        """What its row says of its slots, so that others can tell whether all of them are taken."""
        options = self._core.options
        in_children = sorted({each.task for each in self._child_slots.wants})
        children = (options.children or usable_cores()) if in_children else 0
        slots = Slots(options.concurrency, children, self._deliveries.size, self._bulk.size)
        facts = {"concurrency": options.concurrency, "slots": slots._asdict(), "in_children": in_children}
        return facts if options.host is None else facts | {"of_host": options.host}

    def _say_started(self, queues: Sequence[str]) -> None:
        facts: dict[str, Any] = {
            "worker": self.id,
            "pid": os.getpid(),
            "version": VERSION,
            "database": self._engine.starter.settings.shown_database,
            "slots": self._core.options.concurrency,
            "queues": queues,
            "tasks": sorted(each.name for each in self._engine.starter.tasks if not each.is_declared),
        }
        say(logger, "worker_started", level=self._level, **facts)
        if not facts["tasks"]:
            say(logger, "worker_has_no_tasks", worker=self.id)
        if self._engine.starter.settings.tenants and self._engine.starter.tenant.name is None:
            say(logger, "worker_serves_no_tenants", worker=self.id)
        if self._lacks_extra and self._engine.starter.settings.webhook is not None:
            say(logger, "webhooks_need_the_extra", advice=EXTRA_ADVICE)

    def _say_stopped(self, left: int) -> None:
        """Say, once, that nothing is claimed or written any more, and how many handlers did not stop."""
        if not self._has_said_stopped:
            self._has_said_stopped = True
            say(logger, "worker_stopped", level=self._level, worker=self.id, left=left)

    def _make_children(self, launch: Launch, options: WorkerOptions, on_free: Callable[[], None]) -> Children:
        services = ParentServices(self._core.store, self._core.leases, self._core.progress, self._core.tally)
        return Children(launch, self._core.runtime, options, self.id, services, on_free)

    async def _work(self, group: asyncio.TaskGroup) -> None:
        core = self._core
        executor = self._executor = self._make_executor(group)
        groups = [self._deliveries, self._bulk, *([] if self._children is None else [self._child_slots])]
        executor.on_end_of[Slot.BULK] = self._bulk.has_room
        dispatcher = Dispatcher(core, executor, group)
        if self._deliveries.wants:
            core.outbox = OutboxMaker(core.store, core.runtime, self._has_deliveries)
        claimer = self._claimer = Claimer(core, self._wants, groups, executor, dispatcher, self._wakeups)
        ticker = core.ticker = Ticker(core.store, core.runtime, self._engine.starter, claimer.wake)
        upkeep = self._upkeep = Upkeep(
            core.store,
            core.runtime,
            self._all_wants,
            self._liveness_locks,
            claimer.wake,
            self._lacks_extra,
            core.lost_leases,
            UnservedJobs(core.store, self.id, self._all_wants, self._engine.starter.tasks),
            core.tally,
            ticker.note_clock_jump,
        )
        loops = [upkeep.run(), ticker.run(), core.progress.run(), self._late_entries.run(), self._wakeups.run()]
        loops += [core.tally.run(), keep_figures(core.store, core.runtime, core.tally)]
        loops += [] if self._retention is None else [make_passes(self._retention, core.runtime)]
        loops += [] if core.outbox is None else [core.outbox.run()]
        background = [group.create_task(each) for each in loops]
        await asyncio.wait([group.create_task(claimer.run()) for _ in range(LOOPS)])
        if core.unsettled:
            given_back = await core.unsettled.give_back_all(SPARED_SECONDS)
            say(logger, "jobs_not_settled", jobs=len(core.unsettled), given_back=given_back)
        self._all_written.set()
        for each in background:
            each.cancel()
        await core.tally.end()

    def _make_executor(self, group: asyncio.TaskGroup) -> Executor:
        core, engine, suspects = self._core, self._engine, None
        if self._launch is not None:
            options = replace(core.options, children=MOST_CHILDREN)
            make_children = partial(self._make_children, self._launch, options, lambda: None)
            # with *app*, child processes find there all the tasks that are here
            suspects = SuspectChildren(make_children, group, takes_all=options.app is not None)
            self._pools.append(suspects)
        if any(not each.signature.is_async for each in core.tasks):
            self._threads.make_ready()
        keepers = Keepers(core.leases, core.progress, self._late_entries, self._threads)
        services = make_services(engine.store, engine.opener, engine.runtime, engine.starter, keepers, self.id)
        return Executor(core, services, self._children, suspects, group)

    @property
    def _all_wants(self) -> list[Want]:
        """What it serves: the jobs of its handlers, here and in children, and those of built-in tasks."""
        return [*self._wants, *self._child_slots.wants, *self._deliveries.wants, *self._bulk.wants]

    def _has_free_child(self) -> None:
        self._child_slots.has_room()
        self._core.woken.set()

    def _has_deliveries(self) -> None:
        self._deliveries.is_wanted = True
        self._core.woken.set()

    def _send_leases(self) -> None:
        """Send child processes how long their leases are good for; called in either of the leases' threads."""
        for each in self._pools:
            each.send_leases()

    async def _begin_liveness_locks(self) -> None:
        if self._liveness_locks is None:
            return
        try:
            await self._liveness_locks.begin()
        except (HoldfastError, OSError) as error:  # without it the leases decide, as on PostgreSQL
            say(logger, "no_proof_of_life", reason=reason_of(error))
            self._liveness_locks.drop()
            self._liveness_locks = None

    async def _end(self) -> None:
        if self._has_let_go:
            return
        self._has_let_go = True
        if self._core.share is not None:
            self._core.share.close()
        await self._wakeups.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)  # those that still run are left to themselves
        for each in self._pools:
            await each.close()
        await self._core.runtime.threads.call(self._core.leases.stop)
        if self._lease_store is not self._core.store:
            await self._core.runtime.threads.call(self._lease_store.close_sync)
        await self._end_liveness_locks()

    async def _end_liveness_locks(self) -> None:
        # a handler that still runs is alive, and so are we: who had proof that we are dead would not wait for leases
        if self._liveness_locks is None or self._core.active or self._has_left_to_lease:
            return
        try:
            await self._liveness_locks.end()
        except HoldfastError:
            self._liveness_locks.drop()

    def _on_hint(self) -> None:
        """Take a hint; called in any thread."""
        self._core.leases.hint()
        if self._upkeep is not None:
            self._upkeep.hint()
        claimer = self._claimer  # until there is one, nothing was claimed, and all will be looked at
        if claimer is not None and claimer.note_hint() and not self._is_waking:
            self._is_waking = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._is_waking = False
        self._core.woken.set()

    async def stop(self) -> None:
        """Claim nothing more, give handlers the grace time, then interrupt them; return when all is written down.

        A handler that does not stop within some seconds is left behind, and its job given back. If this is cancelled,
        the worker interrupts its handlers at once, and still writes down what they come to.
        """
        self.drain()
        if self._main is None:
            return
        try:
            if not await self.has_ended(self._core.options.grace):
                self.interrupt()
                await self.end_in_time()
            await asyncio.shield(self.ended)  # who awaits this may be a handler that it waits for
        except asyncio.CancelledError:
            self.interrupt()
            raise

    async def end_in_time(self) -> None:
        """Wait for handlers that were told to stop, and leave behind those that do not."""
        if await self.has_ended(CLEANUP_SECONDS):
            return
        left = list(self._core.active)
        is_written = await self._let_go(self._outcome_of_left, LAST_SECONDS - CLEANUP_SECONDS)
        if self._main is not None and not is_written:  # the store is away; what is not written is left to its lease
            self._main.remove_done_callback(self._ended_now)  # it ends here, and nobody has cancelled who awaits that
            self._main.cancel()
        self._threads.leave_behind()
        await self._end()
        self._leave_tasks([each.runs_in for each in left])
        self._ended_now(None)

    def _leave_tasks(self, tasks: Sequence[asyncio.Task[None] | None]) -> None:
        """Have nobody wait for *tasks*, nor for our own, which does: at its end `asyncio.run` would, for ever."""
        for task in (self._main, *tasks):
            if task is not None and not task.done():
                asyncio.tasks._unregister_task(task)
                # the log has said so already
                task._log_destroy_pending = False  # type: ignore[attr-defined]

    def _outcome_of_left(self, attempt: Run) -> Outcome | None:
        """Say what becomes of a job whose handler is left behind and goes on; None leaves it to its lease.

        It may begin elsewhere no sooner than if its lease had ended, and if it may begin twice at all. What was killed
        with its process begins at once.
        """
        outcome = attempt.aborted(attempt.abort_reason or AbortReason.SHUTDOWN)
        policy = self._core.tasks.get(attempt.job.task).policy
        if attempt.is_remote or outcome is None:
            return outcome
        if policy.on_lost != "retry" or outcome.kind not in (Kind.GIVE_BACK, Kind.RETRY, Kind.PAUSE):
            return None
        return replace(outcome, delay_ms=max(outcome.delay_ms, round(policy.lease * 1000)))

    def drain(self) -> None:
        """Claim nothing more and give back what has not begun; what runs goes on."""
        if self._core.shutdown.is_draining:
            return
        self._core.shutdown.is_draining = True
        running, grace = len(self._core.active), grace_in_words(self._core.options.grace)
        say(logger, "worker_drains", level=self._level, worker=self.id, running=running, grace=grace)
        if self._claimer is not None:
            self._claimer.drain()

    def interrupt(self) -> None:
        """Tell every handler to stop; what they come to is written down, unless the store cannot for some seconds."""
        self._core.shutdown.begin_last_moment()
        self._core.active.abort_all(AbortReason.SHUTDOWN)
        self._core.woken.set()

    async def has_ended(self, seconds: float | None) -> bool:
        """Wait for its end, *seconds* at most; tell whether it came."""
        done, _ = await asyncio.wait([self.ended], timeout=seconds)
        return bool(done)

    async def abandon(self, seconds: float) -> bool:
        """Give back also what cannot be stopped, for the process is about to end; tell whether all was written."""
        return await self._let_go(lambda each: each.aborted(each.abort_reason or AbortReason.SHUTDOWN), seconds)

    async def _let_go(self, outcome_of: Callable[[Run], Outcome | None], seconds: float) -> bool:
        """Wait no longer for what runs, which comes to what *outcome_of* says; tell whether that was written."""
        left = list(self._core.active)
        for attempt in left:
            outcome = outcome_of(attempt)
            self._has_left_to_lease |= outcome is None
            attempt.kill()
            say(logger, "handler_left_behind", job=attempt.job.id, task=attempt.job.task)
            if self._executor is not None:
                self._executor.abandon(attempt, outcome)
            self._core.active.remove(attempt)
        self._core.woken.set()
        try:
            async with asyncio.timeout(seconds):
                await self._all_written.wait()
        except TimeoutError:
            return False
        finally:
            self._say_stopped(len(left))
        await self._end_liveness_locks()
        return not self._core.unsettled

    @property
    def ended(self) -> asyncio.Future[None]:
        """Its whole work as a future; what broke it, if anything, is its exception."""
        assert self._ended is not None  # noqa: S101 - a worker that was not started has no end
        return self._ended

    def _ended_now(self, main: asyncio.Task[None] | None) -> None:
        """Note that its work is done: all of it, or all but handlers that were left behind."""
        ended = self.ended
        if ended.done():
            return
        if main is not None and main.cancelled():
            ended.cancel()
        elif main is not None and (error := main.exception()) is not None:
            ended.set_exception(error)
        else:
            ended.set_result(None)

    @property
    def has_unwritten(self) -> bool:
        """Tell whether something ended here that could not be written down."""
        return self._claimer is not None and bool(self._core.unsettled)

    @property
    def has_worked(self) -> bool:
        """Tell whether it has claimed something, or written something down."""
        return self._claimer is not None and self._claimer.worked is not None

    @property
    def quiet_seconds(self) -> float:
        """How long it has had nothing to do."""
        if self._claimer is None or self._since is None or self._claimer.is_at_work:
            return 0.0
        if self._core.share is not None and self._core.share.hunger:  # it waits for a slot that others have
            return 0.0
        return self._core.runtime.monotonic() - (self._claimer.worked or self._since)

    @property
    def stubborn(self) -> list[str]:
        """The jobs whose handlers were told to stop long ago and have not."""
        return self._core.active.stubborn

    def health(self) -> Health:
        """Tell how it is at this moment; asks nobody, so it may be called as often as you like, in any thread."""
        claimer, wall = self._claimer, partial(wall_time, self._core.runtime)
        receivers = self._deliveries.receivers
        return Health(
            id=self.id,
            since=wall(self._since),
            claimed_at=wall(claimer.claimed) if claimer is not None else None,
            hints=self._hints,
            loop_lag=self._loop_watch.lag if claimer is not None else 0.0,
            running=len(self._core.active) - (0 if self._children is None else len(self._children.waiting)),
            stubborn=tuple(self.stubborn),
            trouble_since=wall(claimer.trouble_since) if claimer is not None else None,
            trouble=claimer.trouble if claimer is not None else None,
            is_draining=self._core.shutdown.is_draining,
            children=None if self._children is None else self._children.health(),
            receivers=() if receivers is None else receivers.health(wall),
        )

    @property
    def _hints(self) -> HintMode:
        if self._claimer is None:
            return "watching" if self._core.store.database == "sqlite" else "polling"
        return self._wakeups.hint_mode

    def _on_claim_states(self, states: dict[Token, ClaimState]) -> None:
        """Stop handlers whose claims are lost or asked to end; called in the leases' thread."""
        urgent = {token: ABORTS[state] for token, state in states.items() if state in ABORTS}
        if urgent:
            self._loop.call_soon_threadsafe(self._abort, urgent)
        if self._core.unsettled:
            self._loop.call_soon_threadsafe(self._core.woken.set)

    def _on_fenced(self, tokens: list[Token]) -> None:
        """Stop handlers whose leases may be over soon; called in either of the leases' threads."""
        self._loop.call_soon_threadsafe(self._abort, dict.fromkeys(tokens, AbortReason.ERROR))

    def _abort(self, reasons: dict[Token, AbortReason]) -> None:
        self._core.lost_leases.note(token for token, reason in reasons.items() if reason is AbortReason.TAKEN)
        if self._executor is not None:
            self._executor.abort(reasons)

    async def __aenter__(self) -> Self:
        if self._main is not None:
            raise Misuse("this worker has been started already; make another with hf.worker()")
        self._ended = asyncio.get_running_loop().create_future()
        self._main = asyncio.create_task(self._run())
        self._main.add_done_callback(self._ended_now)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.stop()
        except asyncio.CancelledError:
            try:
                await self.end_in_time()
            except asyncio.CancelledError:  # who cancels this, too, ends the worker and leaves its jobs to their leases
                assert self._main is not None  # noqa: S101 - it was entered
                self._main.cancel()
                raise
            raise
