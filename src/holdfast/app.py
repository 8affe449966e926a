"""Holdfast for async code: one line a method; `hf.sync` is the same face, blocking."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from datetime import datetime, timedelta
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Never, Self, TypeVar, Unpack, overload
from uuid import UUID

from holdfast import current_block
from holdfast.client import insight
from holdfast.client.chain_handle import Chain, Handles, Seconds
from holdfast.client.engine_parts import EngineParts
from holdfast.client.handles import LaneHandle, QueueHandle, WebhooksHandle
from holdfast.client.list_options import ChainListOptions, JobListOptions, PageOptions
from holdfast.client.providers import HasUrl, Opener, Provider, address_of, as_provider
from holdfast.client.starter import NO_TENANT, Starter, Tenant, with_options
from holdfast.client.tenant_faces import TenantFaces
from holdfast.client.transactions import BlockTransaction
from holdfast.client.verbs import NOW, Verbs, asked_by, only_one, when_of
from holdfast.client.waiter import Until, Waiter
from holdfast.client.wrong_calls import no_attribute
from holdfast.database import make_lease_store, make_store, migrations
from holdfast.database.borrowed import Borrower
from holdfast.database.tx import Runner, Store
from holdfast.errors import Misuse
from holdfast.events.feed import Feed, Follower
from holdfast.events.filters import EventOptions, event_filter
from holdfast.events.job_watch import JobWatch
from holdfast.events.listeners import Listeners
from holdfast.ids import Target, target_id
from holdfast.journals import JournalEntry
from holdfast.models import CancelAnswer, Event, EventPage, Job, LaneInfo, Page, PauseAnswer
from holdfast.outcomes import Retry
from holdfast.runtime import Runtime
from holdfast.sync import BlockingHoldfast
from holdfast.tasks.calls import Call, StartOptions, check_any
from holdfast.tasks.registry import Tasks
from holdfast.tasks.task import Task

# the worker, event streams and the settings (pydantic) would triple the time that `import holdfast` takes
if TYPE_CHECKING:
    from holdfast.access import Actor, AuditEntry
    from holdfast.bulks import BulkResult, BulkVerb
    from holdfast.client.access import LinksHandle, TokensHandle
    from holdfast.client.bulk import BulkOptions
    from holdfast.client.completion import AsyncBlock
    from holdfast.client.outside_completion import Completing
    from holdfast.client.schedules import SchedulesHandle
    from holdfast.client.tenant_store import TenantStore
    from holdfast.client.tenants import TenantsHandle
    from holdfast.events.sse_stream import EventStream
    from holdfast.explanations import Explanation, QueueExplanation
    from holdfast.figures import Overview, Series
    from holdfast.inventory import LaneState, QueueInfo, TaskInfo, WorkerInfo
    from holdfast.questions import Ask, DeadLetter, Failure, Halt, InboxEntry, InboxKind, PausedJob
    from holdfast.retention import Retained
    from holdfast.settings import Settings, SettingsOptions
    from holdfast.webhooks.answers import Posts
    from holdfast.wire.redaction import Redaction
    from holdfast.worker.claiming.slot_share import SlotShare
    from holdfast.worker.hosts.host import TenantPlace, WorkerHost
    from holdfast.worker.options import WorkerKeywords, WorkerOptions
    from holdfast.worker.upkeep.retention import RetentionPass
    from holdfast.worker.worker import Worker

R = TypeVar("R")


class Holdfast:
    """Durable jobs in your own database: a SQLite file, or PostgreSQL. No I/O until it is first used.

    *retry* and *lease* are for all tasks that choose none, and whose `Tasks` choose none.

    >>> hf = Holdfast("jobs.db")
    >>> @hf.task(name="greet")
    ... async def greet(name: str) -> str:
    ...     return f"Hello, {name}"
    >>> hf
    <Holdfast on SQLite, 1 task>
    """

    def __init__(
        self,
        database: str | HasUrl | None = None,
        *,
        tasks: Iterable[Tasks] = (),
        settings: Settings | None = None,
        transactions: object = None,
        retry: Retry | None = None,
        lease: float | None = None,
        store: Store | None = None,
        runtime: Runtime | None = None,
        poster: Posts | None = None,
        **options: Unpack[SettingsOptions],
    ) -> None:
        if not (database is None or isinstance(database, str)):
            database, transactions = address_of(database), transactions or database
        self.tasks = Tasks(retry=retry, lease=lease)
        self.tasks.merge(*tasks)
        self._runtime = runtime or Runtime()
        self._poster = poster
        self._origin: weakref.ref[Holdfast] = weakref.ref(self)
        provider = None if transactions is None else as_provider(transactions)
        chosen = _settings(database, settings, options)
        self._assemble(chosen, store or make_store(chosen, self._runtime), provider, NO_TENANT)

    def _assemble(self, settings: Settings, store: Store, provider: Provider | None, tenant: Tenant) -> None:
        """Make all that belongs to one place; tasks, runtime and poster are there."""
        self._actor: Actor | None = None
        self.settings = settings
        self.task = self.tasks.task
        self.pipeline = self.tasks.pipeline
        self.declare = self.tasks.declare
        self.schedule = self.tasks.schedule
        self.store = store
        self._lender = Borrower(self.store, None if settings.is_postgres else settings.shown_database)
        self._opener = Opener(
            self.store, self._lender, self._runtime.monotonic, self.settings.transaction_seconds, provider
        )
        self._starter = Starter(self.tasks, self.settings, self._runtime, tenant)
        self.__holdfast_engine__ = EngineParts(self.store, self._opener, self._starter, self._runtime)
        self._verbs = Verbs(self._starter)
        self._waiter = Waiter(self.store, self._runtime)
        self._feed = Feed(self.store, self._runtime)
        self._listeners = Listeners(self._feed, self._runtime, self._starter.decoder.values)
        self.on = self._listeners.on
        self.off = self._listeners.off
        self._starter.get_result[Chain] = partial(self._verbs.result, self.store, self._waiter)
        self._handle: Handles[Chain[Any]] = Handles(Chain, self._starter.get_result[Chain])
        self.webhooks = WebhooksHandle(self.store, self._starter)
        """The webhook subscriptions and their deliveries."""
        make_face = partial(_face_of_tenant, self.tasks, self._runtime, self._poster, self._origin, provider)
        self._tenant_faces: TenantFaces[Holdfast] = TenantFaces(self.store, settings, self._runtime, make_face)
        self.sync = BlockingHoldfast(
            self.store,
            self._lender,
            self._opener,
            self._starter,
            self._verbs,
            self._waiter,
            self._feed,
            self._listeners,
            self._runtime,
            self._tenant_faces,
        )
        """The same face for blocking code; it opens itself and closes at exit."""

    @cached_property
    def schedules(self) -> SchedulesHandle:
        """The schedules: calls that workers start at the times of a rule."""
        from holdfast.client.schedules import SchedulesHandle  # few programs change them

        return SchedulesHandle(self.store, self._starter, self._handle)

    @cached_property
    def tokens(self) -> TokensHandle:
        """The tokens for the HTTP API, without their secrets."""
        from holdfast.client.access import TokensHandle, control_of  # few programs make them

        return TokensHandle(control_of(self.store), self._starter, self._runtime.chance)

    @cached_property
    def links(self) -> LinksHandle:
        """The links for outsiders, each of which shows one chain."""
        from holdfast.client.access import LinksHandle, control_of

        return LinksHandle(control_of(self.store), self.store, self._starter, self._runtime.chance)

    async def open(self) -> Self:
        """Connect, check the schema (on SQLite: migrate it) and record the tasks of this process in the database."""
        await self.store.open()
        await self._starter.record(self.store)
        await self._listeners.open(self.store, asyncio.get_running_loop())
        return self

    async def close(self) -> None:
        """Close all connections and threads; the next use opens them again."""
        for face in self._tenant_faces.all():
            await face._close()
        self._tenant_faces.forget()
        await self._close()
        self._runtime.threads.close()

    async def _close(self) -> None:
        await self._listeners.aclose()
        await self._runtime.threads.call(self._feed.close)
        await self._runtime.threads.call(self._waiter.close)
        self._starter.forget()
        await self.store.close()

    async def migrate(self) -> list[str]:
        """Migrate the schema to this release; return the names of the applied steps."""
        self._starter.forget()
        if self.settings.migrations_url is not None and self._starter.tenant.name is None:
            return await self._runtime.threads.call(self.sync.migrate)
        return await self.store.migrate()

    @property
    def database(self) -> str:
        """Where the jobs are: the path of the SQLite file, a tenant's own, or the address of the server."""
        return self.settings.database

    def tenant(self, name: str) -> Holdfast:
        """Get the face of a tenant: the same methods, on that tenant's jobs; the call itself reads and changes nothing.

        It needs `Holdfast(…, tenants=True)`. The tasks are those of this object. The first use raises `TenantNotFound`
        if there is no such tenant; a start in a suspended one raises `TenantSuspended`.
        """
        face = self._tenant_faces.face(name)
        return face if self._actor is None else face._acting(self._actor)

    def acting(self, *, by: str, why: str | None = None, request: str | None = None) -> Holdfast:
        """Get this face for what somebody does: every act leaves a row in the audit, in the commit of the act.

        *by* says who, *why* the reason and *request* for which HTTP request, unless a call says it with its own `by=`
        and `why=`; the history of jobs says so, too. A call that changes nothing leaves no row, and neither does one
        that raises. It costs nothing to make. It does not work: `worker`, `completing`, `open`, `close`, `migrate` and
        `retain` raise `Misuse`. `hf.audit()` lists the rows.
        """
        from holdfast.client.acting import make_actor

        return self._acting(make_actor(by, why, request))

    def _acting(self, actor: Actor) -> Holdfast:
        from holdfast.client.acting import acting_store, copied

        face = copied(self)
        face._actor, face.store = actor, acting_store(self.store, actor, self._starter.new_id)
        face.webhooks = WebhooksHandle(face.store, self._starter)
        face.sync = self.sync._acting(actor)
        return face

    def _as_stored(self, hidden_keys: tuple[str, ...] = ()) -> Holdfast:
        """Get this face with inputs and outputs as the JSON texts that they are, for those who only hand them on.

        *hidden_keys* are what they show to nobody besides: an edit may repeat the marks that stand there.
        """
        from holdfast.client.acting import copied
        from holdfast.tasks.decoder import AsStored

        face = copied(self)
        face._starter = copy(self._starter)
        face._starter.decoder, face._starter.hidden_keys = AsStored(self.tasks), hidden_keys
        face._verbs = Verbs(face._starter)
        face.webhooks = WebhooksHandle(face.store, face._starter)
        return face

    async def audit(
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

        return await list_audit(self.store, who, action, subject, since, until, limit, cursor)

    @cached_property
    def tenants(self) -> TenantsHandle:
        """The tenants themselves: `create`, `suspend`, `resume`, `drop`, `list`, `get` and `migrate` them."""
        from holdfast.client.tenants import TenantsHandle

        return TenantsHandle(self._tenant_faces, self.store, self._runtime)

    async def start(
        self, call: Call[R], *more: Never, connection: object = None, **options: Unpack[StartOptions]
    ) -> Chain[R]:
        """Start a chain with *call*; it exists when this returns, or when the transaction of *connection* commits.

        The keywords are those of `Call.options`. If another chain holds the `unique` key or the id, `start`
        returns that chain, with `deduplicated` set.
        """
        return (await self.start_many([with_options(call, options, more)], connection=connection))[0]

    async def start_many(self, calls: Sequence[Call[R]], *, connection: object = None) -> list[Chain[R]]:
        """Start a chain for each of *calls*, in order, all or none, in a constant number of statements."""
        taken = self._starter.take(calls, connection)
        await self._starter.tenant.admit()
        if connection is None:
            await self._starter.record(self.store)
        return await self._starter.start(await self._runner(connection), taken, self._handle)

    def call(self, name: str, arguments: Mapping[str, Any]) -> Call[Any]:
        """Build a call by the task's name, for a task that this process does not import."""
        return self.tasks.call(name, arguments)

    def worker(self, **options: Unpack[WorkerKeywords]) -> Worker | WorkerHost:
        """Make a worker for the tasks known here: `async with hf, hf.worker(concurrency=20): …`.

        `queues` it serves (by default `default` and those that its tasks name), `concurrency` slots, a `name`, `grace`
        seconds for running handlers when it stops (None waits for them), `poll` seconds, and `middleware`.
        `webhooks=False` leaves webhooks to other workers. Tasks with `run_in="process"` run in up to `children` child
        processes, each replaced after `child_jobs` jobs or above `child_megabytes`; they import this object, from `app`
        if it is no name of a module. With `app`, other jobs that have crashed twice run in child processes as well.

        `tenants={"acme": 4, "*": 1}` serves tenants instead: how many of the slots each may have, `*` all others.
        """
        from holdfast.worker.options import WorkerOptions

        chosen = WorkerOptions.of(options)
        if chosen.tenants is not None:
            return self._make_host(chosen)
        return self._make_worker(chosen, self._make_lease_store())

    def _make_lease_store(self, size: int = 1) -> Store:
        from holdfast.worker.leases import MARGIN_SECONDS, margin

        seconds = min((margin(task.policy.lease) for task in self.tasks), default=MARGIN_SECONDS)
        return make_lease_store(self.store, self.settings, self._runtime, seconds, size)

    def _make_worker(self, chosen: WorkerOptions, lease_store: Store, slots: SlotShare | None = None) -> Worker:
        from holdfast.worker.builtin.webhook import has_extra, make_delivery
        from holdfast.worker.children.bootstrap import Launch
        from holdfast.worker.upkeep.liveness_lock import make_liveness_locks
        from holdfast.worker.worker import Worker

        make_locks = partial(make_liveness_locks, getattr(self.store, "place", self.store))
        in_children = [task for task in self.tasks if task.policy.is_in_child]
        has_children = bool(in_children) or chosen.app is not None
        return Worker(
            self.__holdfast_engine__,
            lease_store,
            chosen,
            make_locks,
            self._make_retention() if self.settings.retention else None,
            make_delivery(self.store, self.settings, self._runtime, self._poster)
            if chosen.webhooks and has_extra()
            else None,
            Launch.of(
                self._origin(),
                chosen.app,
                self.settings,
                self.store,
                in_children,
                chosen.middleware,
                self._starter.tenant.name,
            )
            if has_children
            else None,
            slots,
        )

    def _make_host(self, chosen: WorkerOptions) -> WorkerHost:
        from holdfast.worker.hosts.making import make_host

        registry = self._tenant_faces.registry
        return make_host(self.__holdfast_engine__, chosen, self._make_lease_store, self._tenant_place, registry.note)

    def _tenant_place(self, name: str, lease_store: Store | None) -> TenantPlace:
        from holdfast.worker.hosts.host import TenantPlace

        face, place = self.tenant(name), self._tenant_faces.store(name).place

        def make_worker(options: WorkerOptions, slots: SlotShare) -> Worker:
            return face._make_worker(options, lease_store or face.store, slots)

        return TenantPlace(place, lambda: face._starter.record(face.store), make_worker)

    async def retain(self, *, dry_run: bool = False) -> Retained:
        """Run one pass of retention: mark old chains as stale and delete stale ones; return the counts.

        Workers do this by themselves, unless the setting `retention` is off. With *dry_run* the pass changes nothing
        and returns what it would do. It calls the hooks of tasks known here, and leaves chains with other hooks alone.
        """
        current_block.refuse_alone("hf.retain")
        await self._starter.record(self.store)
        return await self._retention.run(dry_run=dry_run)

    @cached_property
    def _retention(self) -> RetentionPass:
        return self._make_retention()

    def _make_retention(self) -> RetentionPass:
        from holdfast.worker.upkeep.hooks import AsyncHooks
        from holdfast.worker.upkeep.retention import RetentionPass, usual_times

        usual, hooks = usual_times(self.settings), AsyncHooks(self._runtime)
        ages = self.settings.delete_journal_after_seconds, self.settings.delete_audit_after_seconds
        return RetentionPass(self.store, self.tasks, usual, hooks, *ages)

    async def get_job(self, job: Target, *, connection: object = None) -> Job:
        """Read a job, or raise `JobNotFound`."""
        return await self._verbs.get_job(await self._runner(connection), job)

    @overload
    async def get_chain(self, chain: Target, *, task: Task[..., R], connection: object = None) -> Chain[R]: ...
    @overload
    async def get_chain(self, chain: Chain[R], *, connection: object = None) -> Chain[R]: ...
    @overload
    async def get_chain(self, chain: Target, *, connection: object = None) -> Chain[Any]: ...
    async def get_chain(
        self, chain: Target, *, task: Task[..., Any] | None = None, connection: object = None
    ) -> Chain[Any]:
        """Read a chain by its id, or by the id of any of its jobs; or raise `ChainNotFound`.

        *task* is the one that it was started with: its result has that task's type, and the chain of another raises
        `WrongTask`.
        """
        return self._handle(await self._verbs.get_chain(await self._runner(connection), chain, task))

    @overload
    async def wait(
        self, chains: Sequence[Chain[R]], *, until: Until = "all", timeout: Seconds | None = None
    ) -> list[Chain[R]]: ...
    @overload
    async def wait(
        self, chains: Sequence[Target], *, until: Until = "all", timeout: Seconds | None = None
    ) -> list[Chain[Any]]: ...
    async def wait(
        self, chains: Sequence[Target], *, until: Until = "all", timeout: Seconds | None = None
    ) -> list[Chain[Any]]:
        """Wait until all (or any) of *chains* have closed, in whatever way; return all of them, in order, as they are.

        Raises `WaitTimeout` after *timeout* (seconds or a timedelta; None waits for ever), and `ChainNotFound` if one
        does not exist or is deleted meanwhile.
        """
        found = await self._verbs.wait(self.store, self._waiter, chains, until, timeout)
        return list(map(self._handle, found))

    async def explain(self, job: Target, *, connection: object = None) -> Explanation:
        """Say why a job does not run: every reason that holds, each with the call that ends it, if there is one.

        For a chain, or a job that has continued, that is the chain's current job. An id that is not in the database
        raises nothing: then the reason is `not_committed`.
        """
        tenant = await self._starter.tenant.view()
        return await insight.explain(await self._runner(connection), self._starter.decoder, job, tenant)

    async def explain_queue(self, queue: str) -> QueueExplanation:
        """Say why the jobs of a queue do not run: it is paused, nobody serves it or knows their tasks, or all are busy.

        It looks at the first 20 tasks whose jobs could be claimed there.
        """
        return await insight.explain_queue(self.store, check_any("queue", queue), await self._starter.tenant.view())

    async def list_jobs(self, **wanted: Unpack[JobListOptions]) -> Page[Job]:
        """List jobs a page at a time, newest first unless `order="oldest"`.

        `task`, `status`, `queue`, `lane`, `tag`, `worker`, `error` (the type of the last one) and `chain_task` (that of
        the chain's first job) take one word or several; `status` also the derived words (`scheduled`, `waiting`, …).
        `id` and `chain` take jobs, chains or ids; `input={"order.id": 7}` values of the input; `created_from` and
        `created_to` aware datetimes; `cursor` the `next_cursor` of the page before. A request looks at a bounded number
        of jobs: a page may be short, or empty, and have a `next_cursor`; `page.searched` says how far it has looked.
        """
        return await self._verbs.list_jobs(self.store, wanted)

    async def list_chains(self, **wanted: Unpack[ChainListOptions]) -> Page[Chain[Any]]:
        """List chains a page at a time, newest first unless `order="oldest"`.

        `status` is that of the last job, `id` takes the id of any job of a chain, `is_open=True` leaves out closed
        chains, `roots_only=True` those that are blockers; the rest as in `list_jobs`.
        """
        return (await self._verbs.list_chains(self.store, wanted)).map(self._handle)

    async def list_chain_jobs(self, chain: Target, **page: Unpack[PageOptions]) -> Page[Job]:
        """List the jobs of a chain, its first one first; or raise `ChainNotFound`."""
        return await self._verbs.list_chain_jobs(self.store, chain, page)

    async def delete(self, chain: Target, *, cascade: bool = False, connection: object = None) -> list[UUID]:
        """Delete a whole chain, with *cascade* also its blockers; return the ids of the deleted chains.

        Raises `ChainNotFound`, and `StillReferenced` while a job of another chain waits for it, or
        would if it was retried.
        """
        return await self._verbs.delete(await self._runner(connection), chain, cascade)

    async def delete_many(
        self, chains: Sequence[Target], *, cascade: bool = False, connection: object = None
    ) -> list[UUID]:
        """Delete whole chains, all or none; ids that do not exist are skipped."""
        return await self._verbs.delete_many(await self._runner(connection), chains, cascade)

    async def cancel(
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
        return (await self.cancel_many(only_one(job, "cancel", if_state), by=by, why=why, connection=connection))[0]

    async def cancel_many(
        self, jobs: Sequence[Target], *, by: str | None = None, why: str | None = None, connection: object = None
    ) -> list[CancelAnswer]:
        """Cancel jobs as `cancel` does, all or none; the answers come in the order of *jobs*."""
        return await self._verbs.cancel(await self._runner(connection), jobs, asked_by(by, why))

    async def pause(
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
        return (await self.pause_many(only_one(job, "pause", if_state), by=by, why=why, connection=connection))[0]

    async def pause_many(
        self, jobs: Sequence[Target], *, by: str | None = None, why: str | None = None, connection: object = None
    ) -> list[PauseAnswer]:
        """Pause jobs as `pause` does, all or none; the answers come in the order of *jobs*."""
        return await self._verbs.pause(await self._runner(connection), jobs, asked_by(by, why))

    async def resume(
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
        return (await self._verbs.resume(await self._runner(connection), job_, asked, arguments))[0]

    async def resume_many(
        self, jobs: Sequence[Target], *, by: str | None = None, why: str | None = None, connection: object = None
    ) -> list[Job]:
        """Resume paused jobs as `resume` does, all or none; return them in the order of *jobs*."""
        return await self._verbs.resume(await self._runner(connection), jobs, asked_by(by, why))

    async def retry(
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
        return (await self._verbs.retry(await self._runner(connection), job_, asked, arguments))[0]

    async def retry_many(
        self, jobs: Sequence[Target], *, by: str | None = None, why: str | None = None, connection: object = None
    ) -> list[Job]:
        """Retry failed or cancelled jobs as `retry` does, all or none; return them in the order of *jobs*."""
        return await self._verbs.retry(await self._runner(connection), jobs, asked_by(by, why))

    async def reschedule(
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
        return (
            await self.reschedule_many(
                only_one(job, "reschedule", if_state), at=at, after=after, by=by, why=why, connection=connection
            )
        )[0]

    async def reschedule_many(
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
        return await self._verbs.reschedule(await self._runner(connection), jobs, when, asked)

    async def trigger(
        self,
        job: Target,
        *,
        by: str | None = None,
        why: str | None = None,
        if_state: str | None = None,
        connection: object = None,
    ) -> Job:
        """Run a pending job now: this ends its delay or its backoff."""
        return (await self.trigger_many(only_one(job, "trigger", if_state), by=by, why=why, connection=connection))[0]

    async def trigger_many(
        self, jobs: Sequence[Target], *, by: str | None = None, why: str | None = None, connection: object = None
    ) -> list[Job]:
        """Trigger pending jobs as `trigger` does, all or none; return them in the order of *jobs*."""
        return await self._verbs.reschedule(await self._runner(connection), jobs, NOW, asked_by(by, why))

    @overload
    async def start_again(
        self,
        job: Chain[R],
        *,
        by: str | None = None,
        why: str | None = None,
        if_state: str | None = None,
        connection: object = None,
    ) -> Chain[R]: ...
    @overload
    async def start_again(
        self,
        job: Target,
        *,
        by: str | None = None,
        why: str | None = None,
        if_state: str | None = None,
        connection: object = None,
    ) -> Chain[Any]: ...
    async def start_again(
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
        return (
            await self.start_again_many(only_one(job, "start_again", if_state), by=by, why=why, connection=connection)
        )[0]

    async def start_again_many(
        self, jobs: Sequence[Target], *, by: str | None = None, why: str | None = None, connection: object = None
    ) -> list[Chain[Any]]:
        """Start new chains as `start_again` does, all or none; return them in the order of *jobs*."""
        await self._starter.tenant.admit()
        again = await self._verbs.start_again(await self._runner(connection), jobs, asked_by(by, why))
        return list(map(self._handle, again))

    async def bulk(self, verb: BulkVerb, **options: Unpack[BulkOptions]) -> BulkResult:
        """Act on all jobs that fit a filter: `cancel`, `pause`, `resume`, `retry`, `reschedule` or `delete` them.

        The filters are those of `list_jobs`, and one is needed, unless `everything=True`. It looks at the current job
        of each chain, oldest first, up to the newest at its start, or up to `upto`, that of a dry run. It acts on 500
        at a time, each in a transaction of its own, and rests between them. Jobs that are locked, have changed or do
        not allow the verb are passed over and counted. `dry_run=True` only counts. `reschedule` needs `at` or `after`,
        and `cascade` is for `delete`; the history of each job keeps `by` and `why`. Raises `FilterRequired`, and
        `BulkInterrupted` if the database fails: then `cursor` goes on.
        """
        from holdfast.client import bulk

        return await bulk.bulk(self.store, bulk.Clock.of(self._runtime, is_async=True), verb, options)

    async def start_bulk(self, verb: BulkVerb, **options: Unpack[BulkOptions]) -> Chain[BulkResult]:
        """Act on all jobs that fit a filter, as `bulk` does, by a job of its own, which any worker runs.

        Each page is one commit with the step that acts on it, so that after a crash no page is lost or done twice. The
        chain is listed, paused and cancelled like any other, and its result is what `bulk` returns.
        """
        from holdfast.client import bulk

        await self._starter.tenant.admit()
        call = await bulk.first_call(self.store, verb, options, self._actor)
        return (await self._starter.start(self.store, [call], self._handle))[0]

    @overload
    async def complete(
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
    async def complete(
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
    async def complete(
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
    async def complete(
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
        return await self._verbs.complete(
            await self._runner(connection), task, job, output, asked_by(by, why), if_state
        )

    def completing(
        self,
        task: Task[..., R],
        job: Target,
        *,
        by: str | None = None,
        why: str | None = None,
        connection: object = None,
        using: object = None,
    ) -> AsyncBlock[Completing[R]]:
        """Open the current job of a chain in a block: read it, then finish or continue it there, in one transaction.

        Without *connection* the block has its own transaction, `job.tx`, which commits at the end of the block; an
        error inside rolls everything back. Reading alone changes nothing. Entering the block raises `JobNotFound` and
        `WrongTask`. With *using*, that transaction is one of your own library, as in `ctx.complete`.
        """
        from holdfast.client.completion import AsyncBlock  # few programs complete jobs without a worker
        from holdfast.client.outside_completion import Completing, RowLockFence

        fence = RowLockFence(
            task,
            target_id(job),
            starter=self._starter,
            asked=asked_by(by, why),
            begin=self._opener.begin,
            borrow=None if connection is None else partial(self._runner, connection),
            using=using,
        )
        return AsyncBlock(fence, Completing)

    async def get_blockers(self, job: Target, *, connection: object = None) -> list[Chain[Any]]:
        """Read the blockers of a job, open or closed, in the order in which they were given."""
        found = await self._verbs.get_blockers(await self._runner(connection), job)
        return list(map(self._handle, found))

    async def list_blocked_by(self, chain: Target, **page: Unpack[PageOptions]) -> Page[Job]:
        """List the jobs that have this chain as a blocker, newest first; or raise `ChainNotFound`."""
        return await self._verbs.list_blocked_by(self.store, chain, page)

    def events(self, after: str | None = None, **wanted: Unpack[EventOptions]) -> Follower:
        """Follow the event log from now on, or from the cursor *after*: every event once, without gaps.

        `jobs`, `chains`, `tasks`, `lanes`, `parents` and `names` filter it; each takes one or several. `event.cursor`
        resumes after that event, `events.cursor` after all events seen so far. Call `close()` to end it, or use it in a
        block, `async with` or on `hf.sync` `with`: then nothing after the start of the block is missed. Raises
        `InvalidCursor`, and `CursorExpired` if events after *after* are gone, or the database was restored or failed
        over: then read the jobs again, and continue from `hf.cursor()`.
        """
        return self._feed.follow(after, event_filter(**wanted), self._starter.decoder.values)

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
    ) -> EventStream:
        """Give the event log as server-sent events, in chunks: a `snapshot` of the newest jobs, then events.

        With *last_event_id*, the last id that the client got, the stream resumes after it; if that is impossible,
        the client gets `reset` and a new `snapshot`. After *ping_seconds* without a message it sends a `ping`.
        `jobs`, `chains`, `tasks`, `lanes`, `parents` and `names` filter it as in `events`, and it ends like that.
        `holdfast.http.Events` serves it. *brief* leaves out input, output and tracebacks. With *merge_ms*, 50 to 60000,
        events wait that long, and only the newest of each job is sent. With a *redaction* it shows what that allows.
        """
        from holdfast.events.sse_stream import EventStream, StreamRequest

        asked = StreamRequest(event_filter(**wanted), snapshot, last_event_id, ping_seconds, brief, merge_ms, redaction)
        return EventStream(self._feed, asked, self._starter.redactions)

    async def list_events(
        self, after: str | None = None, *, limit: int = 100, **wanted: Unpack[EventOptions]
    ) -> EventPage:
        """Read the event log a page at a time, without holding a connection: the events behind the cursor *after*.

        Without *after* the page is empty, and its `cursor` is the current position. It always leads on: a call looks at
        a bounded number of events, so a page may be short, or empty. The filters and errors are those of `events`.
        """
        return await self._verbs.list_events(self.store, after, limit, event_filter(**wanted))

    async def cursor(self) -> str:
        """Get the current position in the log; `hf.events(after=cursor)` then gives every event committed after it."""
        return await self._verbs.cursor(self.store)

    def watch(self, job: Target) -> JobWatch:
        """Iterate over a job as it is now and after each of its events, until it has ended or is deleted.

        It follows this one job, not its continuations. Events that come close together may give one item. Raises
        `JobNotFound`.
        """
        return JobWatch(self._feed, target_id(job), self._starter.decoder.job)

    async def timeline(self, job: Target, **page: Unpack[PageOptions]) -> Page[Event]:
        """List the events of a job, oldest first; each event shows the job as it is now. Raises `JobNotFound`."""
        return await self._verbs.timeline(self.store, job, page)

    async def list_tasks(self) -> list[TaskInfo]:
        """List the tasks that some program has recorded, by name: policy, schemas, and who runs them; at most 1,000."""
        return await insight.list_tasks(self.store, await self._starter.tenant.view())

    async def list_queues(self) -> list[QueueInfo]:
        """List the queues by name, whether they are paused, and who serves them; at most 1,000.

        A queue is listed if jobs wait in it, if it is paused, if a task names it, or if a living worker serves it.
        """
        return await insight.list_queues(self.store, await self._starter.tenant.view())

    async def list_workers(self) -> list[WorkerInfo]:
        """List the workers, those seen last first: what they serve, and how much they run; at most 1,000.

        A worker that stops goes from the list at once; a killed one stays for some minutes, with `is_alive` False.
        """
        return await insight.list_workers(self.store)

    async def list_lanes(
        self, *, state: LaneState | None = None, prefix: str = "", **page: Unpack[PageOptions]
    ) -> Page[LaneInfo]:
        """List lanes: halted ones first, with the error that halts them, then paused ones, then the rest by key.

        *state* is `halted`, `paused` or `moving`; None means all. *prefix* is what the key begins with. A page may be
        shorter than *limit* although another follows.
        """
        return await insight.list_lanes(self.store, state, prefix, page)

    @overload
    async def inbox(self, kind: Literal["asked"], **page: Unpack[PageOptions]) -> Page[Ask]: ...
    @overload
    async def inbox(self, kind: Literal["failed"], **page: Unpack[PageOptions]) -> Page[Failure]: ...
    @overload
    async def inbox(self, kind: Literal["paused"], **page: Unpack[PageOptions]) -> Page[PausedJob]: ...
    @overload
    async def inbox(self, kind: Literal["halted"], **page: Unpack[PageOptions]) -> Page[Halt]: ...
    @overload
    async def inbox(self, kind: Literal["dead_letter"], **page: Unpack[PageOptions]) -> Page[DeadLetter]: ...
    @overload
    async def inbox(self, kind: InboxKind | None = None, **page: Unpack[PageOptions]) -> Page[InboxEntry]: ...
    async def inbox(self, kind: InboxKind | None = None, **page: Unpack[PageOptions]) -> Page[Any]:
        """List what waits for a person: `Ask`, `Failure`, `PausedJob`, `Halt` and `DeadLetter`, in this order.

        *kind* is `asked`, `failed`, `paused`, `halted` or `dead_letter`; None means all. In each kind the oldest comes
        first. A page may be shorter than *limit* although another follows.
        """
        return await insight.inbox(self.store, self._starter.decoder, kind, page)

    async def journal(
        self, job: Target, *, kind: str | None = None, after: int | str = 0, limit: int = 50
    ) -> Page[JournalEntry]:
        """List the journal of a job, oldest entry first; *kind* narrows it. Raises `JobNotFound`.

        *after* is the number of the last entry that you have, or the `next_cursor` of the page before.
        """
        return await self._verbs.journal(self.store, job, kind, after, limit)

    async def overview(self) -> Overview:
        """Say how everything stands now: what waits, runs and is stuck, by queue and in all; see `Overview`.

        Processes share one sample, which is at most 10 s old, or older where counting takes long. No count reads more
        than 100,000 rows.
        """
        return await insight.overview(self.store)

    async def stats(
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
        return await insight.stats(self.store, queue, task, since, until, width)

    def lane(self, key: str) -> LaneHandle:
        """Get a handle to pause, resume, skip or inspect a lane; the call itself reads and changes nothing."""
        return LaneHandle(check_any("lane", key), self.store, self._starter.decoder)

    def queue(self, name: str) -> QueueHandle:
        """Get a handle to pause or resume a queue; the call itself reads and changes nothing."""
        return QueueHandle(check_any("queue", name), self.store)

    async def _runner(self, connection: object) -> Runner:
        if connection is None:
            return self.store
        runner: Runner
        if isinstance(connection, BlockTransaction):
            runner = connection.runner_for(self._starter, is_async=True)
        else:
            runner = await self._lender.borrow(connection, is_async=True, identity=self._identity)
        if self._actor is None:
            return runner
        from holdfast.client.acting import ActingRunner

        return ActingRunner(runner, self._actor, self._starter.new_id)

    async def _identity(self) -> str | None:
        return await self.store.read(migrations.identity, self.store.database)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __enter__(self) -> None:
        raise Misuse("hf is async; write `async with hf:`, or `with hf.sync:` in blocking code")

    def __exit__(self, *_: object) -> None:
        raise Misuse("hf is async; write `async with hf:`")

    if not TYPE_CHECKING:  # so that type checkers still refuse what it does not have

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name)

    def __repr__(self) -> str:
        kind = "PostgreSQL" if self.settings.is_postgres else "SQLite"
        kind = kind if self._starter.tenant.name is None else f"{kind}, tenant {self._starter.tenant.name}"
        return f"<Holdfast on {kind}, {len(self.tasks)} task{'' if len(self.tasks) == 1 else 's'}>"


def _face_of_tenant(
    tasks: Tasks,
    runtime: Runtime,
    poster: Posts | None,
    origin: weakref.ref[Holdfast],
    provider: Provider | None,
    store: TenantStore,
    settings: Settings,
) -> Holdfast:
    """Make the face of a tenant, whose store *store* is; all else it has from the one that it comes from."""
    face = Holdfast.__new__(Holdfast)
    face.tasks, face._runtime, face._poster, face._origin = tasks, runtime, poster, origin
    # on SQLite a provider leads to the file of the control place, and a tenant has another
    face._assemble(settings, store, provider if settings.is_postgres else None, store)
    return face


def _settings(database: str | None, settings: Settings | None, options: SettingsOptions) -> Settings:
    if settings is not None:
        if database is not None or options:
            raise Misuse("settings= cannot be combined with a database or single settings; give only one of them")
        return settings
    from holdfast.settings import Settings

    given: dict[str, object] = dict(options)
    return Settings.from_environment(**given if database is None else given | {"database": database})
