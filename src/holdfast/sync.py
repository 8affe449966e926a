"""Holdfast for blocking code: the methods of the async face, one line each, over the same verbs."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload
from uuid import UUID

from holdfast import current_block
from holdfast.client.chain_handle import BlockingChain as Chain
from holdfast.client.chain_handle import Handles, Seconds
from holdfast.client.completion import BlockingBlock
from holdfast.client.handles import BlockingLaneHandle, BlockingQueueHandle, BlockingWebhooksHandle
from holdfast.client.list_options import ChainListOptions, JobListOptions, PageOptions
from holdfast.client.outside_completion import BlockingCompleting as Completing
from holdfast.client.outside_completion import RowLockFence
from holdfast.client.providers import Opener
from holdfast.client.starter import Starter
from holdfast.client.transactions import BlockingTransaction as Transaction
from holdfast.client.transactions import BlockTransaction
from holdfast.client.verbs import NOW, Verbs, asked_by, only_one, when_of
from holdfast.client.waiter import Until, Waiter
from holdfast.database import migrations
from holdfast.database.borrowed import Borrower
from holdfast.database.tx import Blocking, Runner, Store, drive
from holdfast.events.feed import BlockingFollower, Feed
from holdfast.events.filters import EventOptions, event_filter
from holdfast.events.follower import BlockingStream
from holdfast.events.job_watch import JobWatch
from holdfast.events.listeners import Listeners
from holdfast.events.sse_stream import EventStream, StreamRequest
from holdfast.ids import Target, target_id
from holdfast.models import CancelAnswer, Event, Job, Page, PauseAnswer
from holdfast.retention import Retained
from holdfast.runtime import Runtime
from holdfast.tasks.calls import Call, StartOptions, check_any
from holdfast.tasks.task import Task
from holdfast.worker.attempts.attempt import in_thread as middleware
from holdfast.worker.attempts.blocks import BlockingCompletingTransaction as CompletingTransaction
from holdfast.worker.attempts.context import BlockingContext as Context
from holdfast.worker.upkeep.hooks import BlockingHooks
from holdfast.worker.upkeep.retention import RetentionPass, usual_times

__all__ = [
    "BlockingHoldfast",
    "Chain",
    "Completing",
    "CompletingTransaction",
    "Context",
    "Transaction",
    "middleware",
]

R = TypeVar("R")


class BlockingHoldfast:
    """The blocking face of a `Holdfast`, as `hf.sync`: opens itself when first used, closes at exit."""

    def __init__(
        self,
        store: Store,
        lender: Borrower,
        opener: Opener,
        starter: Starter,
        verbs: Verbs,
        waiter: Waiter,
        feed: Feed,
        listeners: Listeners,
        runtime: Runtime,
    ) -> None:
        self.store = store
        self._blocking = Blocking(store)
        self._lender = lender
        self._opener = opener
        self._starter = starter
        self._verbs = verbs
        self._waiter = waiter
        self._feed = feed
        self._listeners = listeners
        self.on = listeners.on
        self.off = listeners.off
        self._handle: Handles[Chain[Any]] = Handles(Chain, partial(verbs.result, self._blocking, waiter.blocking))
        self._retention = RetentionPass(
            self._blocking, starter.tasks, usual_times(starter.settings), BlockingHooks(runtime)
        )
        self.webhooks = BlockingWebhooksHandle(self._blocking, starter)
        """Who is told of events by webhooks, and what came of it."""
        followers = weakref.ref(feed), weakref.ref(listeners)
        atexit.register(_close_at_exit, weakref.ref(store), weakref.ref(waiter), *followers)

    def open(self) -> Self:
        """Connect, check the schema (a SQLite file is brought up to date) and write down the tasks known here."""
        self.store.open_sync()
        drive(self._starter.record_tasks(self._blocking))
        drive(self._listeners.open(self._blocking, None))
        return self

    def close(self) -> None:
        """Let go of all connections and threads; the next use opens it again."""
        self._listeners.close()
        self._feed.close()
        self._waiter.close()
        self._starter.forget()
        self.store.close_sync()

    def migrate(self) -> list[str]:
        """Bring the schema up to date; return the names of the steps that were taken."""
        self._starter.forget()
        return self.store.migrate_sync()

    def start(self, call: Call[R], *, connection: object = None, **options: Unpack[StartOptions]) -> Chain[R]:
        """Start a chain with *call*; it exists when this returns, or when the transaction of *connection* commits.

        The keywords are those of `Call.options`. A start that meets its `unique` key or its id gives the chain that
        has it, with `deduplicated` set.
        """
        return self.start_many([call.options(**options) if options else call], connection=connection)[0]

    def start_many(self, calls: Sequence[Call[R]], *, connection: object = None) -> list[Chain[R]]:
        """Start a chain for each of *calls*, in order, all or none, in a constant number of statements."""
        taken = self._starter.take(calls, connection)
        if connection is None:
            drive(self._starter.record_tasks(self._blocking))
        return drive(self._starter.start(self._runner(connection), taken, self._handle))

    def call(self, name: str, arguments: Mapping[str, Any]) -> Call[Any]:
        """Build a call by the task's name, for a task that this process does not import."""
        return self._starter.tasks.call(name, arguments)

    def retain(self, *, dry_run: bool = False) -> Retained:
        """Mark what has ended long enough ago as stale, delete what has been stale long enough; tell how much that was.

        Workers do this by themselves, unless the setting `retention` is off. With *dry_run* nothing is changed: it
        tells what a pass would do. Hooks of tasks that are known here are called; chains with others are left alone.
        """
        current_block.refuse_alone("hf.retain")
        drive(self._starter.record_tasks(self._blocking))
        return drive(self._retention.run(dry_run=dry_run))

    def get_job(self, job: Target, *, connection: object = None) -> Job:
        """Read a job, or raise `JobNotFound`."""
        return drive(self._verbs.get_job(self._runner(connection), job))

    @overload
    def get_chain(self, chain: Chain[R], *, connection: object = None) -> Chain[R]: ...
    @overload
    def get_chain(self, chain: Target, *, connection: object = None) -> Chain[Any]: ...
    def get_chain(self, chain: Target, *, connection: object = None) -> Chain[Any]:
        """Read the chain of this id, or the one that the job of this id belongs to; or raise `ChainNotFound`."""
        return self._handle(drive(self._verbs.get_chain(self._runner(connection), chain)))

    @overload
    def wait(
        self, chains: Sequence[Chain[R]], *, until: Until = "all", timeout: Seconds | None = None
    ) -> list[Chain[R]]: ...
    @overload
    def wait(
        self, chains: Sequence[Target], *, until: Until = "all", timeout: Seconds | None = None
    ) -> list[Chain[Any]]: ...
    def wait(
        self, chains: Sequence[Target], *, until: Until = "all", timeout: Seconds | None = None
    ) -> list[Chain[Any]]:
        """Wait until all, or any, of *chains* have closed, however they ended; give all of them, in order, as they are.

        Raises `WaitTimeout` after *timeout* (seconds or a timedelta; None waits for ever), and `ChainNotFound` for one
        that is not there or is deleted meanwhile.
        """
        found = drive(self._verbs.wait(self._blocking, self._waiter.blocking, chains, until, timeout))
        return list(map(self._handle, found))

    def list_jobs(self, **wanted: Unpack[JobListOptions]) -> Page[Job]:
        """List jobs a page at a time, newest first unless `order="oldest"`.

        `task`, `status`, `queue` and `lane` take one word or several; `status` also the derived words (`scheduled`,
        `waiting`, …); `created_from` and `created_to` aware datetimes; `cursor` the `next_cursor` of the page before.
        """
        return drive(self._verbs.list_jobs(self._blocking, wanted))

    def list_chains(self, **wanted: Unpack[ChainListOptions]) -> Page[Chain[Any]]:
        """List chains a page at a time, newest first unless `order="oldest"`.

        `status` is that of the last job, `is_open=True` leaves out closed chains, `roots_only=True` those that are
        blockers; the rest as in `list_jobs`.
        """
        return drive(self._verbs.list_chains(self._blocking, wanted)).map(self._handle)

    def list_chain_jobs(self, chain: Target, **page: Unpack[PageOptions]) -> Page[Job]:
        """List the jobs of a chain, its first one first; or raise `ChainNotFound`."""
        return drive(self._verbs.list_chain_jobs(self._blocking, chain, page))

    def delete(self, chain: Target, *, cascade: bool = False, connection: object = None) -> list[UUID]:
        """Delete a whole chain, with *cascade* also all it waits for; return the ids of the deleted chains.

        Raises `ChainNotFound`, and `StillReferenced` while an open job of another chain waits for it.
        """
        return drive(self._verbs.delete(self._runner(connection), chain, cascade))

    def delete_many(self, chains: Sequence[Target], *, cascade: bool = False, connection: object = None) -> list[UUID]:
        """Delete whole chains, all or none; ids that are not there are passed over."""
        return drive(self._verbs.delete_many(self._runner(connection), chains, cascade))

    def cancel(
        self, job: Target, *, by: str | None = None, why: str | None = None, connection: object = None
    ) -> CancelAnswer:
        """Cancel a job: at once if it does not run, by request if it does.

        A job that has completed or been cancelled is left as it is; the answer says so. Once a request is committed,
        that run can no longer complete the job. *by* and *why* are kept in the job's history.
        """
        return self.cancel_many(only_one(job, "cancel"), by=by, why=why, connection=connection)[0]

    def cancel_many(
        self, jobs: Sequence[Target], *, by: str | None = None, why: str | None = None, connection: object = None
    ) -> list[CancelAnswer]:
        """Cancel jobs as `cancel` does, all or none; the answers come in the order of *jobs*."""
        return drive(self._verbs.cancel(self._runner(connection), jobs, asked_by(by, why)))

    def pause(
        self, job: Target, *, by: str | None = None, why: str | None = None, connection: object = None
    ) -> PauseAnswer:
        """Pause a job until it is resumed: at once if it waits, by request if it runs.

        A job that has a place in its lane keeps it, and halts the lane when its turn comes. Raises `StatusConflict`
        for a job that is paused already or has ended.
        """
        return self.pause_many(only_one(job, "pause"), by=by, why=why, connection=connection)[0]

    def pause_many(
        self, jobs: Sequence[Target], *, by: str | None = None, why: str | None = None, connection: object = None
    ) -> list[PauseAnswer]:
        """Pause jobs as `pause` does, all or none; the answers come in the order of *jobs*."""
        return drive(self._verbs.pause(self._runner(connection), jobs, asked_by(by, why)))

    def resume(self, job: Target, *, by: str | None = None, why: str | None = None, connection: object = None) -> Job:
        """Let a paused job go on: in its place, with the attempts that it has used.

        Raises `StatusConflict` for a job that is not paused.
        """
        return self.resume_many(only_one(job, "resume"), by=by, why=why, connection=connection)[0]

    def resume_many(
        self, jobs: Sequence[Target], *, by: str | None = None, why: str | None = None, connection: object = None
    ) -> list[Job]:
        """Resume paused jobs as `resume` does, all or none; return them in the order of *jobs*."""
        return drive(self._verbs.resume(self._runner(connection), jobs, asked_by(by, why)))

    def retry(self, job: Target, *, by: str | None = None, why: str | None = None, connection: object = None) -> Job:
        """Run a failed or cancelled job again, with a new budget of attempts.

        Jobs that failed because it did are blocked again. Raises `StatusConflict`, and `UniqueConflict` if another
        chain holds its key by now.
        """
        return self.retry_many(only_one(job, "retry"), by=by, why=why, connection=connection)[0]

    def retry_many(
        self, jobs: Sequence[Target], *, by: str | None = None, why: str | None = None, connection: object = None
    ) -> list[Job]:
        """Retry failed or cancelled jobs as `retry` does, all or none; return them in the order of *jobs*."""
        return drive(self._verbs.retry(self._runner(connection), jobs, asked_by(by, why)))

    def reschedule(
        self,
        job: Target,
        *,
        at: datetime | None = None,
        after: float | timedelta | None = None,
        by: str | None = None,
        why: str | None = None,
        connection: object = None,
    ) -> Job:
        """Have a pending job run *at* an aware datetime or *after* seconds or a timedelta.

        A time that is past means now. Raises `StatusConflict` for a job that is not pending.
        """
        return self.reschedule_many(
            only_one(job, "reschedule"), at=at, after=after, by=by, why=why, connection=connection
        )[0]

    def reschedule_many(
        self,
        jobs: Sequence[Target],
        *,
        at: datetime | None = None,
        after: float | timedelta | None = None,
        by: str | None = None,
        why: str | None = None,
        connection: object = None,
    ) -> list[Job]:
        """Reschedule pending jobs as `reschedule` does, all or none; return them in the order of *jobs*."""
        when, asked = when_of(at, after), asked_by(by, why)
        return drive(self._verbs.reschedule(self._runner(connection), jobs, when, asked))

    def trigger(self, job: Target, *, by: str | None = None, why: str | None = None, connection: object = None) -> Job:
        """Have a pending job run now instead of later: a backoff or a delay is over."""
        return self.trigger_many(only_one(job, "trigger"), by=by, why=why, connection=connection)[0]

    def trigger_many(
        self, jobs: Sequence[Target], *, by: str | None = None, why: str | None = None, connection: object = None
    ) -> list[Job]:
        """Trigger pending jobs as `trigger` does, all or none; return them in the order of *jobs*."""
        return drive(self._verbs.reschedule(self._runner(connection), jobs, NOW, asked_by(by, why)))

    @overload
    def start_again(
        self, job: Chain[R], *, by: str | None = None, why: str | None = None, connection: object = None
    ) -> Chain[R]: ...
    @overload
    def start_again(
        self, job: Target, *, by: str | None = None, why: str | None = None, connection: object = None
    ) -> Chain[Any]: ...
    def start_again(
        self, job: Target, *, by: str | None = None, why: str | None = None, connection: object = None
    ) -> Chain[Any]:
        """Start a new chain as this one, or the one of this job, began: the same task, input, queue, lane and key.

        The old one is left as it is. If it, or another, still holds the unique key, that chain is given, with
        `deduplicated` set.
        """
        return self.start_again_many(only_one(job, "start_again"), by=by, why=why, connection=connection)[0]

    def start_again_many(
        self, jobs: Sequence[Target], *, by: str | None = None, why: str | None = None, connection: object = None
    ) -> list[Chain[Any]]:
        """Start new chains as `start_again` does, all or none; return them in the order of *jobs*."""
        again = drive(self._verbs.start_again(self._runner(connection), jobs, connection, asked_by(by, why)))
        return list(map(self._handle, again))

    @overload
    def complete(
        self,
        task: Task[..., None],
        job: Target,
        output: None = None,
        *,
        by: str | None = None,
        why: str | None = None,
        connection: object = None,
    ) -> Job: ...
    @overload
    def complete(
        self,
        task: Task[..., R],
        job: Target,
        output: R,
        *,
        by: str | None = None,
        why: str | None = None,
        connection: object = None,
    ) -> Job: ...
    def complete(
        self,
        task: Task[..., Any],
        job: Target,
        output: Any = None,
        *,
        by: str | None = None,
        why: str | None = None,
        connection: object = None,
    ) -> Job:
        """Complete the current job of a chain with *output*, without a worker; *task* is the one that it is of.

        From every state but completed and cancelled; the handler of a running job is told. Raises `JobNotFound`,
        `WrongTask`, `StatusConflict` and `InvalidOutput`.
        """
        return drive(self._verbs.complete(self._runner(connection), task, job, output, asked_by(by, why)))

    def completing(
        self,
        task: Task[..., R],
        job: Target,
        *,
        by: str | None = None,
        why: str | None = None,
        connection: object = None,
        using: object = None,
    ) -> BlockingBlock[Completing[R]]:
        """Take the current job of a chain in the hand: look at it, then finish it, or go on, in several steps.

        Without *connection* it has a transaction of its own, `job.tx`, that commits when the block is left; an error
        inside undoes all of it. Looking alone changes nothing. Raises `JobNotFound` and `WrongTask` when it is entered.
        *using* has that transaction be one of your own library's, as in `ctx.complete`.
        """
        fence = RowLockFence(
            task,
            target_id(job),
            starter=self._starter,
            asked=asked_by(by, why),
            begin=self._opener.begin_blocking,
            borrow=None if connection is None else partial(self._borrow, connection),
            using=using,
        )
        return BlockingBlock(fence, Completing)

    def get_blockers(self, job: Target, *, connection: object = None) -> list[Chain[Any]]:
        """Read the chains that a job waits or has waited for, in the order in which they were given."""
        found = drive(self._verbs.get_blockers(self._runner(connection), job))
        return list(map(self._handle, found))

    def list_blocked_by(self, chain: Target, **page: Unpack[PageOptions]) -> Page[Job]:
        """List the jobs that wait or have waited for a chain, newest first; or raise `ChainNotFound`."""
        return drive(self._verbs.list_blocked_by(self._blocking, chain, page))

    def events(self, after: str | None = None, **wanted: Unpack[EventOptions]) -> BlockingFollower:
        """Follow the log from now on, or behind the cursor *after*, so that no event is missed and none comes twice.

        `jobs`, `chains`, `tasks`, `lanes` and `names` narrow it; each takes one or several. `event.cursor` resumes
        behind an event, `events.cursor` behind all that was seen. End it by `close()`, or have it in a block, `async
        with` or on `hf.sync` `with`, from whose beginning on nothing is missed. Raises `InvalidCursor`, and
        `CursorExpired` if events behind *after* are gone, or the database was restored or failed over: then read the
        jobs anew, and go on from `hf.cursor()`.
        """
        return self._feed.follow(after, event_filter(**wanted), self._starter.decoder.values).blocking()

    def event_stream(
        self,
        *,
        snapshot: bool = True,
        last_event_id: str | None = None,
        ping_seconds: float = 15.0,
        **wanted: Unpack[EventOptions],
    ) -> BlockingStream[bytes]:
        """Give the log as server-sent events, in pieces of bytes: a `snapshot` of the newest jobs, then every event.

        With *last_event_id*, the last id that a reader was sent, it goes on behind that; what leads nowhere, or can no
        longer be resumed, gives `reset` and a `snapshot`. After *ping_seconds* without a message a `ping` is sent.
        `jobs`, `chains`, `tasks`, `lanes` and `names` narrow it as in `events`, and it ends as that does.
        `holdfast.http.Events` serves it.
        """
        asked = StreamRequest(event_filter(**wanted), snapshot, last_event_id, ping_seconds)
        return EventStream(self._feed, asked).blocking()

    def cursor(self) -> str:
        """Give the cursor of now: `hf.events(after=cursor)` gives what is committed from now on."""
        return drive(self._verbs.cursor(self._blocking))

    def watch(self, job: Target) -> BlockingStream[Job]:
        """Give a job as it is, and again whenever something is told of it, until it has ended or is deleted.

        It is this one job, not what continues it. What follows closely may come as one. Raises `JobNotFound`.
        """
        return JobWatch(self._feed, target_id(job), self._starter.decoder.job).blocking()

    def timeline(self, job: Target, **page: Unpack[PageOptions]) -> Page[Event]:
        """List the events of a job, its first one first; their job is as it stands now. Raises `JobNotFound`."""
        return drive(self._verbs.timeline(self._blocking, job, page))

    def lane(self, key: str) -> BlockingLaneHandle:
        """Take hold of a lane, to pause, resume or skip, or to ask how it stands; reads and changes nothing."""
        return BlockingLaneHandle(check_any("lane", key), self._blocking)

    def queue(self, name: str) -> BlockingQueueHandle:
        """Take hold of a queue, to pause or resume it; reads and changes nothing."""
        return BlockingQueueHandle(check_any("queue", name), self._blocking)

    def _runner(self, connection: object) -> Runner:
        if connection is None:
            return self._blocking
        if isinstance(connection, BlockTransaction):
            return connection.runner(is_async=False)
        return drive(self._lender.borrow(connection, is_async=False, identity=self._identity))

    async def _borrow(self, connection: object) -> Runner:
        return self._runner(connection)

    async def _identity(self) -> str | None:
        return self.store.read_sync(migrations.identity, self.store.database)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _close_at_exit(
    store: weakref.ref[Store],
    waiter: weakref.ref[Waiter],
    feed: weakref.ref[Feed],
    listeners: weakref.ref[Listeners],
) -> None:
    for each in (listeners(), feed(), waiter()):
        if each is not None:
            each.close()
    if (opened := store()) is not None:
        opened.close_sync()
