"""Holdfast for blocking code: the methods of the async face, one line each, over the same verbs."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property, partial
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Never, Self, TypeVar, Unpack, overload
from uuid import UUID

from holdfast import current_block
from holdfast.client import insight
from holdfast.client.chain_handle import BlockingChain as Chain
from holdfast.client.chain_handle import Handles, Seconds
from holdfast.client.handles import BlockingLaneHandle, BlockingQueueHandle, BlockingWebhooksHandle
from holdfast.client.list_options import ChainListOptions, JobListOptions, PageOptions
from holdfast.client.providers import Opener
from holdfast.client.starter import Starter, with_options
from holdfast.client.tenant_faces import TenantFaces
from holdfast.client.transactions import BlockingTransaction as Transaction
from holdfast.client.transactions import BlockTransaction
from holdfast.client.verbs import NOW, Verbs, asked_by, only_one, when_of
from holdfast.client.waiter import Until, Waiter
from holdfast.client.wrong_calls import no_attribute
from holdfast.database import make_places, migrations
from holdfast.database.borrowed import Borrower
from holdfast.database.tx import Blocking, Runner, Store, drive
from holdfast.events.feed import BlockingFollower, Feed
from holdfast.events.filters import EventOptions, event_filter
from holdfast.events.follower import BlockingStream
from holdfast.events.job_watch import JobWatch
from holdfast.events.listeners import Listeners
from holdfast.ids import Target, target_id
from holdfast.journals import JournalEntry
from holdfast.models import CancelAnswer, Event, EventPage, Job, LaneInfo, Page, PauseAnswer
from holdfast.runtime import Runtime
from holdfast.tasks.calls import Call, StartOptions, check_any
from holdfast.tasks.task import Task

if TYPE_CHECKING:
    from holdfast.access import Actor, AuditEntry
    from holdfast.bulks import BulkResult, BulkVerb
    from holdfast.client.access import BlockingLinksHandle, BlockingTokensHandle
    from holdfast.client.bulk import BulkOptions
    from holdfast.client.completion import BlockingBlock
    from holdfast.client.outside_completion import BlockingCompleting as Completing
    from holdfast.client.schedules import BlockingSchedulesHandle
    from holdfast.client.tenants import BlockingTenantsHandle
    from holdfast.explanations import Explanation, QueueExplanation
    from holdfast.figures import Overview, Series
    from holdfast.inventory import LaneState, QueueInfo, TaskInfo, WorkerInfo
    from holdfast.questions import Ask, DeadLetter, Failure, Halt, InboxEntry, InboxKind, PausedJob
    from holdfast.retention import Retained
    from holdfast.wire.redaction import Redaction
    from holdfast.worker.attempts.attempt import in_thread as middleware
    from holdfast.worker.attempts.blocks import BlockingCompletingTransaction as CompletingTransaction
    from holdfast.worker.attempts.context import BlockingContext as Context
    from holdfast.worker.upkeep.retention import RetentionPass

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

LATER = {
    "Completing": ("holdfast.client.outside_completion", "BlockingCompleting"),
    "CompletingTransaction": ("holdfast.worker.attempts.blocks", "BlockingCompletingTransaction"),
    "Context": ("holdfast.worker.attempts.context", "BlockingContext"),
    "middleware": ("holdfast.worker.attempts.attempt", "in_thread"),
}
"""Where the names are that are imported when somebody asks for them: a program that starts jobs need not."""


def __getattr__(name: str) -> object:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, there = LATER[name]
    globals()[name] = getattr(import_module(module), there)
    return globals()[name]


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
        tenant_faces: TenantFaces[Any],
    ) -> None:
        self._actor: Actor | None = None
        self.store = store
        self._tenant_faces = tenant_faces
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
        starter.get_result[Chain] = partial(verbs.result, self._blocking, waiter.blocking)
        self._handle: Handles[Chain[Any]] = Handles(Chain, starter.get_result[Chain])
        self._runtime = runtime
        self.webhooks = BlockingWebhooksHandle(self._blocking, starter)
        """The webhook subscriptions and their deliveries."""
        followers = weakref.ref(feed), weakref.ref(listeners)
        atexit.register(_close_at_exit, weakref.ref(store), weakref.ref(waiter), *followers)

    @cached_property
    def schedules(self) -> BlockingSchedulesHandle:
        """The schedules: calls that workers start at the times of a rule."""
        from holdfast.client.schedules import BlockingSchedulesHandle  # few programs change them

        return BlockingSchedulesHandle(self._blocking, self._starter, self._handle)

    @cached_property
    def tokens(self) -> BlockingTokensHandle:
        """The tokens for the HTTP API, without their secrets."""
        from holdfast.client.access import BlockingTokensHandle, control_of  # few programs make them

        return BlockingTokensHandle(Blocking(control_of(self.store)), self._starter, self._runtime.chance)

    @cached_property
    def links(self) -> BlockingLinksHandle:
        """The links for outsiders, each of which shows one chain."""
        from holdfast.client.access import BlockingLinksHandle, control_of

        return BlockingLinksHandle(
            Blocking(control_of(self.store)), self._blocking, self._starter, self._runtime.chance
        )

    def open(self) -> Self:
        """Connect, check the schema (on SQLite: migrate it) and record the tasks of this process in the database."""
        self.store.open_sync()
        drive(self._starter.record(self._blocking))
        drive(self._listeners.open(self._blocking, None))
        return self

    def close(self) -> None:
        """Close all connections and threads; the next use opens them again."""
        for face in self._tenant_faces.all():
            face.sync.close()
        self._tenant_faces.forget()
        self._listeners.close()
        self._feed.close()
        self._waiter.close()
        self._starter.forget()
        self.store.close_sync()

    def migrate(self) -> list[str]:
        """Migrate the schema to this release; return the names of the applied steps."""
        self._starter.forget()
        if self._starter.settings.migrations_url is not None and self._starter.tenant.name is None:
            with make_places(self.store, self._starter.settings, self._runtime).maker() as maker:
                return maker.migrate_control()
        return self.store.migrate_sync()

    @property
    def database(self) -> str:
        """Where the jobs are: the path of the SQLite file, a tenant's own, or the address of the server."""
        return self._starter.settings.database

    def tenant(self, name: str) -> BlockingHoldfast:
        """Get the face of a tenant: the same methods, on that tenant's jobs; the call itself reads and changes nothing.

        It needs `Holdfast(…, tenants=True)`. The tasks are those of this object. The first use raises `TenantNotFound`
        if there is no such tenant; a start in a suspended one raises `TenantSuspended`.
        """
        face: BlockingHoldfast = self._tenant_faces.face(name).sync
        return face if self._actor is None else face._acting(self._actor)

    def acting(self, *, by: str, why: str | None = None, request: str | None = None) -> BlockingHoldfast:
        """Get this face for what somebody does: every act leaves a row in the audit, in the commit of the act.

        *by* says who, *why* the reason and *request* for which HTTP request, unless a call says it with its own `by=`
        and `why=`; the history of jobs says so, too. A call that changes nothing leaves no row, and neither does one
        that raises. It costs nothing to make. It does not work: `worker`, `completing`, `open`, `close`, `migrate` and
        `retain` raise `Misuse`. `hf.audit()` lists the rows.
        """
        from holdfast.client.acting import make_actor

        return self._acting(make_actor(by, why, request))

    def _acting(self, actor: Actor) -> BlockingHoldfast:
        from holdfast.client.acting import acting_store, copied

        face = copied(self)
        face._actor, face.store = actor, acting_store(self.store, actor, self._starter.new_id)
        face._blocking = Blocking(face.store)
        face.webhooks = BlockingWebhooksHandle(face._blocking, self._starter)
        return face

    def audit(
        self,
        *,
        who: str | None = None,
        action: str | None = None,
        subject: Target | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[AuditEntry]:
        """List what was done by `hf.acting(…)`, newest first: who, when, what, to what and why.

        *subject* is an id or a name, *action* a word such as `cancel` or `lane.skip`; *since* and *until* are aware
        datetimes. A request looks at a bounded number of entries: a page may be short, or empty, and have a
        `next_cursor`. They are kept for 400 days unless the setting `delete_audit_after_seconds` says otherwise.
        """
        from holdfast.client.acting import list_audit

        return drive(list_audit(self._blocking, who, action, subject, since, until, limit, cursor))

    @cached_property
    def tenants(self) -> BlockingTenantsHandle:
        """The tenants themselves: `create`, `suspend`, `resume`, `drop`, `list`, `get` and `migrate` them."""
        from holdfast.client.tenants import BlockingTenantsHandle

        return BlockingTenantsHandle(self._tenant_faces, self.store)

    def start(
        self, call: Call[R], *more: Never, connection: object = None, **options: Unpack[StartOptions]
    ) -> Chain[R]:
        """Start a chain with *call*; it exists when this returns, or when the transaction of *connection* commits.

        The keywords are those of `Call.options`. If another chain holds the `unique` key or the id, `start`
        returns that chain, with `deduplicated` set.
        """
        return self.start_many([with_options(call, options, more)], connection=connection)[0]

    def start_many(self, calls: Sequence[Call[R]], *, connection: object = None) -> list[Chain[R]]:
        """Start a chain for each of *calls*, in order, all or none, in a constant number of statements."""
        taken = self._starter.take(calls, connection)
        self._starter.tenant.admit_sync()
        if connection is None:
            drive(self._starter.record(self._blocking))
        return drive(self._starter.start(self._runner(connection), taken, self._handle))

    def call(self, name: str, arguments: Mapping[str, Any]) -> Call[Any]:
        """Build a call by the task's name, for a task that this process does not import."""
        return self._starter.tasks.call(name, arguments)

    def retain(self, *, dry_run: bool = False) -> Retained:
        """Run one pass of retention: mark old chains as stale and delete stale ones; return the counts.

        Workers do this by themselves, unless the setting `retention` is off. With *dry_run* the pass changes nothing
        and returns what it would do. It calls the hooks of tasks known here, and leaves chains with other hooks alone.
        """
        current_block.refuse_alone("hf.retain")
        drive(self._starter.record(self._blocking))
        return drive(self._retention.run(dry_run=dry_run))

    @cached_property
    def _retention(self) -> RetentionPass:
        from holdfast.worker.upkeep.hooks import BlockingHooks
        from holdfast.worker.upkeep.retention import RetentionPass, usual_times

        settings = self._starter.settings
        usual, hooks = usual_times(settings), BlockingHooks(self._runtime)
        ages = settings.delete_journal_after_seconds, settings.delete_audit_after_seconds
        return RetentionPass(self._blocking, self._starter.tasks, usual, hooks, *ages)

    def get_job(self, job: Target, *, connection: object = None) -> Job:
        """Read a job, or raise `JobNotFound`."""
        return drive(self._verbs.get_job(self._runner(connection), job))

    @overload
    def get_chain(self, chain: Target, *, task: Task[..., R], connection: object = None) -> Chain[R]: ...
    @overload
    def get_chain(self, chain: Chain[R], *, connection: object = None) -> Chain[R]: ...
    @overload
    def get_chain(self, chain: Target, *, connection: object = None) -> Chain[Any]: ...
    def get_chain(self, chain: Target, *, task: Task[..., Any] | None = None, connection: object = None) -> Chain[Any]:
        """Read a chain by its id, or by the id of any of its jobs; or raise `ChainNotFound`.

        *task* is the one that it was started with: its result has that task's type, and the chain of another raises
        `WrongTask`.
        """
        return self._handle(drive(self._verbs.get_chain(self._runner(connection), chain, task)))

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
        """Wait until all (or any) of *chains* have closed, in whatever way; return all of them, in order, as they are.

        Raises `WaitTimeout` after *timeout* (seconds or a timedelta; None waits for ever), and `ChainNotFound` if one
        does not exist or is deleted meanwhile.
        """
        found = drive(self._verbs.wait(self._blocking, self._waiter.blocking, chains, until, timeout))
        return list(map(self._handle, found))

    def explain(self, job: Target, *, connection: object = None) -> Explanation:
        """Say why a job does not run: every reason that holds, each with the call that ends it, if there is one.

        For a chain, or a job that has continued, that is the chain's current job. An id that is not in the database
        raises nothing: then the reason is `not_committed`.
        """
        tenant = self._starter.tenant.view_sync()
        return drive(insight.explain(self._runner(connection), self._starter.decoder, job, tenant))

    def explain_queue(self, queue: str) -> QueueExplanation:
        """Say why the jobs of a queue do not run: it is paused, nobody serves it or knows their tasks, or all are busy.

        It looks at the first 20 tasks whose jobs could be claimed there.
        """
        return drive(insight.explain_queue(self._blocking, check_any("queue", queue), self._starter.tenant.view_sync()))

    def list_jobs(self, **wanted: Unpack[JobListOptions]) -> Page[Job]:
        """List jobs a page at a time, newest first unless `order="oldest"`.

        `task`, `status`, `queue`, `lane`, `tag`, `worker`, `error` (the type of the last one) and `chain_task` (that of
        the chain's first job) take one word or several; `status` also the derived words (`scheduled`, `waiting`, …).
        `id` and `chain` take jobs, chains or ids; `input={"order.id": 7}` values of the input; `created_from` and
        `created_to` aware datetimes; `cursor` the `next_cursor` of the page before. A request looks at a bounded number
        of jobs: a page may be short, or empty, and have a `next_cursor`; `page.searched` says how far it has looked.
        """
        return drive(self._verbs.list_jobs(self._blocking, wanted))

    def list_chains(self, **wanted: Unpack[ChainListOptions]) -> Page[Chain[Any]]:
        """List chains a page at a time, newest first unless `order="oldest"`.

        `status` is that of the last job, `id` takes the id of any job of a chain, `is_open=True` leaves out closed
        chains, `roots_only=True` those that are blockers; the rest as in `list_jobs`.
        """
        return drive(self._verbs.list_chains(self._blocking, wanted)).map(self._handle)

    def list_chain_jobs(self, chain: Target, **page: Unpack[PageOptions]) -> Page[Job]:
        """List the jobs of a chain, its first one first; or raise `ChainNotFound`."""
        return drive(self._verbs.list_chain_jobs(self._blocking, chain, page))

    def delete(self, chain: Target, *, cascade: bool = False, connection: object = None) -> list[UUID]:
        """Delete a whole chain, with *cascade* also its blockers; return the ids of the deleted chains.

        Raises `ChainNotFound`, and `StillReferenced` while a job of another chain waits for it, or
        would if it was retried.
        """
        return drive(self._verbs.delete(self._runner(connection), chain, cascade))

    def delete_many(self, chains: Sequence[Target], *, cascade: bool = False, connection: object = None) -> list[UUID]:
        """Delete whole chains, all or none; ids that do not exist are skipped."""
        return drive(self._verbs.delete_many(self._runner(connection), chains, cascade))

    def cancel(
        self,
        job: Target,
        *,
        by: str | None = None,
        why: str | None = None,
        if_state: str | None = None,
        connection: object = None,
    ) -> CancelAnswer:
        """Cancel a job: at once if it does not run, by request if it does.

        A completed or cancelled job stays as it is, and the answer says so. Once a request is committed, the running
        attempt can no longer complete the job. The job's history keeps *by* and *why*. With *if_state*, the `state_tag`
        of the job as you have read it, this verb and the others raise `StateConflict` if the job has changed since.
        """
        return self.cancel_many(only_one(job, "cancel", if_state), by=by, why=why, connection=connection)[0]

    def cancel_many(
        self, jobs: Sequence[Target], *, by: str | None = None, why: str | None = None, connection: object = None
    ) -> list[CancelAnswer]:
        """Cancel jobs as `cancel` does, all or none; the answers come in the order of *jobs*."""
        return drive(self._verbs.cancel(self._runner(connection), jobs, asked_by(by, why)))

    def pause(
        self,
        job: Target,
        *,
        by: str | None = None,
        why: str | None = None,
        if_state: str | None = None,
        connection: object = None,
    ) -> PauseAnswer:
        """Pause a job until it is resumed: at once if it waits, by request if it runs.

        A job in a lane keeps its place, and halts the lane when its turn comes. Raises `StatusConflict` for a job that
        is already paused or has ended.
        """
        return self.pause_many(only_one(job, "pause", if_state), by=by, why=why, connection=connection)[0]

    def pause_many(
        self, jobs: Sequence[Target], *, by: str | None = None, why: str | None = None, connection: object = None
    ) -> list[PauseAnswer]:
        """Pause jobs as `pause` does, all or none; the answers come in the order of *jobs*."""
        return drive(self._verbs.pause(self._runner(connection), jobs, asked_by(by, why)))

    def resume(
        self,
        job: Target,
        *,
        arguments: Mapping[str, Any] | None = None,
        by: str | None = None,
        why: str | None = None,
        if_state: str | None = None,
        connection: object = None,
    ) -> Job:
        """Resume a paused job; it keeps its place and its used attempts.

        *arguments* change its input first, as in `retry`. Raises `StatusConflict` for a job that is not paused.
        """
        job_, asked = only_one(job, "resume", if_state), asked_by(by, why)
        return drive(self._verbs.resume(self._runner(connection), job_, asked, arguments))[0]

    def resume_many(
        self, jobs: Sequence[Target], *, by: str | None = None, why: str | None = None, connection: object = None
    ) -> list[Job]:
        """Resume paused jobs as `resume` does, all or none; return them in the order of *jobs*."""
        return drive(self._verbs.resume(self._runner(connection), jobs, asked_by(by, why)))

    def retry(
        self,
        job: Target,
        *,
        arguments: Mapping[str, Any] | None = None,
        by: str | None = None,
        why: str | None = None,
        if_state: str | None = None,
        connection: object = None,
    ) -> Job:
        """Run a failed or cancelled job again, with a new budget of attempts.

        Jobs that failed because this job failed are blocked again. *arguments* change its input first: a dict of what
        is to be different, merged into what is stored (None removes), and checked by the task's types; the journal
        keeps the former input. Raises `StatusConflict`, `UniqueConflict` if another chain holds its key now, and
        `InvalidInput`.
        """
        job_, asked = only_one(job, "retry", if_state), asked_by(by, why)
        return drive(self._verbs.retry(self._runner(connection), job_, asked, arguments))[0]

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
        if_state: str | None = None,
        connection: object = None,
    ) -> Job:
        """Reschedule a pending job: *at* a timezone-aware datetime, or *after* seconds or a timedelta.

        A time in the past means now. Raises `StatusConflict` for a job that is not pending.
        """
        return self.reschedule_many(
            only_one(job, "reschedule", if_state), at=at, after=after, by=by, why=why, connection=connection
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

    def trigger(
        self,
        job: Target,
        *,
        by: str | None = None,
        why: str | None = None,
        if_state: str | None = None,
        connection: object = None,
    ) -> Job:
        """Run a pending job now: this ends its delay or its backoff."""
        return self.trigger_many(only_one(job, "trigger", if_state), by=by, why=why, connection=connection)[0]

    def trigger_many(
        self, jobs: Sequence[Target], *, by: str | None = None, why: str | None = None, connection: object = None
    ) -> list[Job]:
        """Trigger pending jobs as `trigger` does, all or none; return them in the order of *jobs*."""
        return drive(self._verbs.reschedule(self._runner(connection), jobs, NOW, asked_by(by, why)))

    @overload
    def start_again(
        self,
        job: Chain[R],
        *,
        by: str | None = None,
        why: str | None = None,
        if_state: str | None = None,
        connection: object = None,
    ) -> Chain[R]: ...
    @overload
    def start_again(
        self,
        job: Target,
        *,
        by: str | None = None,
        why: str | None = None,
        if_state: str | None = None,
        connection: object = None,
    ) -> Chain[Any]: ...
    def start_again(
        self,
        job: Target,
        *,
        by: str | None = None,
        why: str | None = None,
        if_state: str | None = None,
        connection: object = None,
    ) -> Chain[Any]:
        """Start a new chain like this one, or like the chain of this job: same task, input, queue, lane and key.

        The old chain stays as it is. If a chain still holds the unique key, the call returns that chain, with
        `deduplicated` set.
        """
        return self.start_again_many(only_one(job, "start_again", if_state), by=by, why=why, connection=connection)[0]

    def start_again_many(
        self, jobs: Sequence[Target], *, by: str | None = None, why: str | None = None, connection: object = None
    ) -> list[Chain[Any]]:
        """Start new chains as `start_again` does, all or none; return them in the order of *jobs*."""
        self._starter.tenant.admit_sync()
        again = drive(self._verbs.start_again(self._runner(connection), jobs, asked_by(by, why)))
        return list(map(self._handle, again))

    def bulk(self, verb: BulkVerb, **options: Unpack[BulkOptions]) -> BulkResult:
        """Act on all jobs that fit a filter: `cancel`, `pause`, `resume`, `retry`, `reschedule` or `delete` them.

        The filters are those of `list_jobs`, and one is needed, unless `everything=True`. It looks at the current job
        of each chain, oldest first, up to the newest at its start, or up to `upto`, that of a dry run. It acts on 500
        at a time, each in a transaction of its own, and rests between them. Jobs that are locked, have changed or do
        not allow the verb are passed over and counted. `dry_run=True` only counts. `reschedule` needs `at` or `after`,
        and `cascade` is for `delete`; the history of each job keeps `by` and `why`. Raises `FilterRequired`, and
        `BulkInterrupted` if the database fails: then `cursor` goes on.
        """
        from holdfast.client import bulk

        return drive(bulk.bulk(self._blocking, bulk.Clock.of(self._runtime, is_async=False), verb, options))

    def start_bulk(self, verb: BulkVerb, **options: Unpack[BulkOptions]) -> Chain[BulkResult]:
        """Act on all jobs that fit a filter, as `bulk` does, by a job of its own, which any worker runs.

        Each page is one commit with the step that acts on it, so that after a crash no page is lost or done twice. The
        chain is listed, paused and cancelled like any other, and its result is what `bulk` returns.
        """
        from holdfast.client import bulk

        self._starter.tenant.admit_sync()
        call = drive(bulk.first_call(self._blocking, verb, options, self._actor))
        return drive(self._starter.start(self._blocking, [call], self._handle))[0]

    @overload
    def complete(
        self,
        task: Task[..., None],
        job: Target,
        output: None = None,
        *,
        by: str | None = None,
        why: str | None = None,
        if_state: str | None = None,
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
        if_state: str | None = None,
        connection: object = None,
    ) -> Job: ...
    @overload
    def complete(
        self,
        task: str,
        job: Target,
        output: Any = None,
        *,
        by: str | None = None,
        why: str | None = None,
        if_state: str | None = None,
        connection: object = None,
    ) -> Job: ...
    def complete(
        self,
        task: Task[..., Any] | str,
        job: Target,
        output: Any = None,
        *,
        by: str | None = None,
        why: str | None = None,
        if_state: str | None = None,
        connection: object = None,
    ) -> Job:
        """Complete the current job of a chain, a job of *task*, with *output* and without a worker.

        *task* may be its name, for a program without its code: *output* is then as JSON gives it, and judged by the
        types that its owner has written down. Works in every state but completed and cancelled; a running handler is
        asked to stop. Raises `JobNotFound`, `WrongTask`, `StatusConflict`, `InvalidOutput` and, for a name that nobody
        knows, `UnknownTask`.
        """
        return drive(self._verbs.complete(self._runner(connection), task, job, output, asked_by(by, why), if_state))

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
        """Open the current job of a chain in a block: read it, then finish or continue it there, in one transaction.

        Without *connection* the block has its own transaction, `job.tx`, which commits at the end of the block; an
        error inside rolls everything back. Reading alone changes nothing. Entering the block raises `JobNotFound` and
        `WrongTask`. With *using*, that transaction is one of your own library, as in `ctx.complete`.
        """
        from holdfast.client.completion import BlockingBlock  # few programs complete jobs without a worker
        from holdfast.client.outside_completion import BlockingCompleting, RowLockFence

        fence = RowLockFence(
            task,
            target_id(job),
            starter=self._starter,
            asked=asked_by(by, why),
            begin=self._opener.begin_blocking,
            borrow=None if connection is None else partial(self._borrow, connection),
            using=using,
        )
        return BlockingBlock(fence, BlockingCompleting)

    def get_blockers(self, job: Target, *, connection: object = None) -> list[Chain[Any]]:
        """Read the blockers of a job, open or closed, in the order in which they were given."""
        found = drive(self._verbs.get_blockers(self._runner(connection), job))
        return list(map(self._handle, found))

    def list_blocked_by(self, chain: Target, **page: Unpack[PageOptions]) -> Page[Job]:
        """List the jobs that have this chain as a blocker, newest first; or raise `ChainNotFound`."""
        return drive(self._verbs.list_blocked_by(self._blocking, chain, page))

    def events(self, after: str | None = None, **wanted: Unpack[EventOptions]) -> BlockingFollower:
        """Follow the event log from now on, or from the cursor *after*: every event once, without gaps.

        `jobs`, `chains`, `tasks`, `lanes`, `parents` and `names` filter it; each takes one or several. `event.cursor`
        resumes after that event, `events.cursor` after all events seen so far. Call `close()` to end it, or use it in a
        block, `async with` or on `hf.sync` `with`: then nothing after the start of the block is missed. Raises
        `InvalidCursor`, and `CursorExpired` if events after *after* are gone, or the database was restored or failed
        over: then read the jobs again, and continue from `hf.cursor()`.
        """
        return self._feed.follow(after, event_filter(**wanted), self._starter.decoder.values).blocking()

    def event_stream(
        self,
        *,
        snapshot: bool = True,
        last_event_id: str | None = None,
        ping_seconds: float = 15.0,
        brief: bool = False,
        merge_ms: int = 0,
        redaction: Redaction | None = None,
        **wanted: Unpack[EventOptions],
    ) -> BlockingStream[bytes]:
        """Give the event log as server-sent events, in chunks: a `snapshot` of the newest jobs, then events.

        With *last_event_id*, the last id that the client got, the stream resumes after it; if that is impossible,
        the client gets `reset` and a new `snapshot`. After *ping_seconds* without a message it sends a `ping`.
        `jobs`, `chains`, `tasks`, `lanes`, `parents` and `names` filter it as in `events`, and it ends like that.
        `holdfast.http.Events` serves it. *brief* leaves out input, output and tracebacks. With *merge_ms*, 50 to 60000,
        events wait that long, and only the newest of each job is sent. With a *redaction* it shows what that allows.
        """
        from holdfast.events.sse_stream import EventStream, StreamRequest

        asked = StreamRequest(event_filter(**wanted), snapshot, last_event_id, ping_seconds, brief, merge_ms, redaction)
        return EventStream(self._feed, asked, self._starter.redactions).blocking()

    def list_events(self, after: str | None = None, *, limit: int = 100, **wanted: Unpack[EventOptions]) -> EventPage:
        """Read the event log a page at a time, without holding a connection: the events behind the cursor *after*.

        Without *after* the page is empty, and its `cursor` is the current position. It always leads on: a call looks at
        a bounded number of events, so a page may be short, or empty. The filters and errors are those of `events`.
        """
        return drive(self._verbs.list_events(self._blocking, after, limit, event_filter(**wanted)))

    def cursor(self) -> str:
        """Get the current position in the log; `hf.events(after=cursor)` then gives every event committed after it."""
        return drive(self._verbs.cursor(self._blocking))

    def watch(self, job: Target) -> BlockingStream[Job]:
        """Iterate over a job as it is now and after each of its events, until it has ended or is deleted.

        It follows this one job, not its continuations. Events that come close together may give one item. Raises
        `JobNotFound`.
        """
        return JobWatch(self._feed, target_id(job), self._starter.decoder.job).blocking()

    def timeline(self, job: Target, **page: Unpack[PageOptions]) -> Page[Event]:
        """List the events of a job, oldest first; each event shows the job as it is now. Raises `JobNotFound`."""
        return drive(self._verbs.timeline(self._blocking, job, page))

    def list_tasks(self) -> list[TaskInfo]:
        """List the tasks that some program has recorded, by name: policy, schemas, and who runs them; at most 1,000."""
        return drive(insight.list_tasks(self._blocking, self._starter.tenant.view_sync()))

    def list_queues(self) -> list[QueueInfo]:
        """List the queues by name, whether they are paused, and who serves them; at most 1,000.

        A queue is listed if jobs wait in it, if it is paused, if a task names it, or if a living worker serves it.
        """
        return drive(insight.list_queues(self._blocking, self._starter.tenant.view_sync()))

    def list_workers(self) -> list[WorkerInfo]:
        """List the workers, those seen last first: what they serve, and how much they run; at most 1,000.

        A worker that stops goes from the list at once; a killed one stays for some minutes, with `is_alive` False.
        """
        return drive(insight.list_workers(self._blocking))

    def list_lanes(
        self, *, state: LaneState | None = None, prefix: str = "", **page: Unpack[PageOptions]
    ) -> Page[LaneInfo]:
        """List lanes: halted ones first, with the error that halts them, then paused ones, then the rest by key.

        *state* is `halted`, `paused` or `moving`; None means all. *prefix* is what the key begins with. A page may be
        shorter than *limit* although another follows.
        """
        return drive(insight.list_lanes(self._blocking, state, prefix, page))

    @overload
    def inbox(self, kind: Literal["asked"], **page: Unpack[PageOptions]) -> Page[Ask]: ...
    @overload
    def inbox(self, kind: Literal["failed"], **page: Unpack[PageOptions]) -> Page[Failure]: ...
    @overload
    def inbox(self, kind: Literal["paused"], **page: Unpack[PageOptions]) -> Page[PausedJob]: ...
    @overload
    def inbox(self, kind: Literal["halted"], **page: Unpack[PageOptions]) -> Page[Halt]: ...
    @overload
    def inbox(self, kind: Literal["dead_letter"], **page: Unpack[PageOptions]) -> Page[DeadLetter]: ...
    @overload
    def inbox(self, kind: InboxKind | None = None, **page: Unpack[PageOptions]) -> Page[InboxEntry]: ...
    def inbox(self, kind: InboxKind | None = None, **page: Unpack[PageOptions]) -> Page[Any]:
        """List what waits for a person: `Ask`, `Failure`, `PausedJob`, `Halt` and `DeadLetter`, in this order.

        *kind* is `asked`, `failed`, `paused`, `halted` or `dead_letter`; None means all. In each kind the oldest comes
        first. A page may be shorter than *limit* although another follows.
        """
        return drive(insight.inbox(self._blocking, self._starter.decoder, kind, page))

    def journal(
        self, job: Target, *, kind: str | None = None, after: int | str = 0, limit: int = 50
    ) -> Page[JournalEntry]:
        """List the journal of a job, oldest entry first; *kind* narrows it. Raises `JobNotFound`.

        *after* is the number of the last entry that you have, or the `next_cursor` of the page before.
        """
        return drive(self._verbs.journal(self._blocking, job, kind, after, limit))

    def overview(self) -> Overview:
        """Say how everything stands now: what waits, runs and is stuck, by queue and in all; see `Overview`.

        Processes share one sample, which is at most 10 s old, or older where counting takes long. No count reads more
        than 100,000 rows.
        """
        return drive(insight.overview(self._blocking))

    def stats(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        width: int | None = None,
    ) -> Series:
        """Count the attempts of workers over time, and say how long jobs waited and attempts ran; see `Series`.

        *since* and *until* are timezone-aware; the last hour by default. *width* is that of an interval in seconds: 10
        (kept for 2 hours), 60 (48 hours) or 3600 (400 days); None chooses. Raises `TooMany` above 2,000 intervals.
        """
        return drive(insight.stats(self._blocking, queue, task, since, until, width))

    def lane(self, key: str) -> BlockingLaneHandle:
        """Get a handle to pause, resume, skip or inspect a lane; the call itself reads and changes nothing."""
        return BlockingLaneHandle(check_any("lane", key), self._blocking, self._starter.decoder)

    def queue(self, name: str) -> BlockingQueueHandle:
        """Get a handle to pause or resume a queue; the call itself reads and changes nothing."""
        return BlockingQueueHandle(check_any("queue", name), self._blocking)

    def _runner(self, connection: object) -> Runner:
        if connection is None:
            return self._blocking
        runner: Runner
        if isinstance(connection, BlockTransaction):
            runner = connection.runner_for(self._starter, is_async=False)
        else:
            runner = drive(self._lender.borrow(connection, is_async=False, identity=self._identity))
        if self._actor is None:
            return runner
        from holdfast.client.acting import ActingRunner

        return ActingRunner(runner, self._actor, self._starter.new_id)

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

    if not TYPE_CHECKING:  # so that type checkers still refuse what it does not have

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name)


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
