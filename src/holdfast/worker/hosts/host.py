"""A host: one worker for many tenants. It opens an ordinary worker for a tenant that has work, and closes it again.

    registry     every few seconds: who is new, suspended or gone
    signs        every minute a row in the control place, by which `explain` and lists know whom we serve
    lookout      looks at the tenants without a worker, many at once (`glances`, `files`)
    a hint       has its tenant looked at alone, at once
    serving      a worker for each tenant with work; all of them share the host's slots (`claiming.slot_share`)

What goes wrong with one tenant stays there: it is left out for a minute, and the others go on. To whoever has started
it, a host is like a worker.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self

from holdfast.client.tenant_store import not_migrated
from holdfast.database import migrations
from holdfast.database.hints import SleepMark
from holdfast.database.tx import Store
from holdfast.errors import HoldfastError, Misuse, NotMigrated, StoreError
from holdfast.logging import reason_of, say
from holdfast.models import RESERVED
from holdfast.runtime import Runtime
from holdfast.store import glance, schedules, tenants, workers
from holdfast.store.glance import Glimpse, Served
from holdfast.store.workers import Member, Slots
from holdfast.tenancy import TenantInfo
from holdfast.version import VERSION
from holdfast.worker.claiming.slot_share import SlotShare
from holdfast.worker.health import Health, HintMode, wall_time
from holdfast.worker.hosts.lookout import Lookout, LookReports
from holdfast.worker.hosts.serving import HostState, TenantService
from holdfast.worker.hosts.tenant import LEAST_SECONDS, VISIT_SECONDS, HostedTenant
from holdfast.worker.hosts.troubles import TenantTroubles
from holdfast.worker.options import WorkerOptions
from holdfast.worker.shutdown import grace_in_words
from holdfast.worker.worker import Worker

REGISTRY_SECONDS = 4.0
BEAT_SECONDS = 60.0
GOODBYE_SECONDS = 2.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TenantPlace:
    """One tenant's tables, what is written there before it is served, and how a worker for it is made."""

    store: Store
    prepare: Callable[[], Awaitable[object]]
    make_worker: Callable[[WorkerOptions, SlotShare], Worker]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostParts:
    """What a host is made of: the *control* place, and how it gets at the places of tenants.

    *note_row* is told what the registry says of a tenant, and raises if that cannot be right. *resources* are stores of
    its own, which it closes at its end.
    """

    control: Store
    shown_database: str
    runtime: Runtime
    served: Served
    place_of: Callable[[TenantInfo], TenantPlace]
    make_lookout: Callable[[Member, LookReports], Lookout]
    note_row: Callable[[str, TenantInfo], object]
    has_schedules: bool
    """Whether code declares schedules for tenants: then each has them as soon as it is found well."""
    resources: Sequence[Store] = ()
    forget_records: Callable[[], Awaitable[object]] | None = None
    """Forgets what is over in the control place."""


class WorkerHost:
    """Serves tenants, each with as many slots as its options say; made by `hf.worker(tenants=…)`."""

    def __init__(self, parts: HostParts, options: WorkerOptions) -> None:
        runtime = parts.runtime
        self._parts = parts
        self._options = options
        self._caps = dict(options.tenants or {})
        self._monotonic = runtime.monotonic
        number = f"{runtime.chance.getrandbits(48):012x}"
        self.id = f"{options.name or 'worker'}-{number}"
        self._member = Member.here(f"{workers.WATCH}{number}", options.name)
        self._tenants: dict[str, HostedTenant] = {}
        self._ending: dict[HostedTenant, None] = {}
        """Those that are not served any more, while what runs there ends."""
        self._troubles = TenantTroubles(parts.control, self._spawn)
        self._state = HostState()
        self._lookout: Lookout
        self._service: TenantService
        self._group: asyncio.TaskGroup
        self._unknown: frozenset[str] = frozenset()
        self._refused: dict[str, str] = {}
        """Why the row of a tenant is not believed, by its name."""
        self._unprepared: asyncio.Queue[HostedTenant] = asyncio.Queue()
        self._has_said_unserved = False
        self._stopping = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self._ended: asyncio.Future[None] | None = None
        self._since: float | None = None
        self._looked_at: float | None = None
        self._trouble_since: float | None = None
        self._outages: dict[str, str] = {}
        """What keeps it from serving anybody, by the part of it that has the trouble."""

    async def run(self) -> None:
        """Work until `stop` is called, or this is cancelled; give back what is not done in the grace time."""
        async with self:
            await asyncio.shield(self.ended)

    async def stop(self) -> None:
        """Claim nothing more, give handlers the grace time, then interrupt them; return when all is written down."""
        self.drain()
        if self._main is None:
            return
        try:
            await asyncio.gather(*(each.stop() for each in self._workers), return_exceptions=True)
            await asyncio.shield(self.ended)
        except asyncio.CancelledError:
            self.interrupt()
            raise

    def drain(self) -> None:
        """Claim nothing more and give back what has not begun; what runs goes on."""
        if self._state.is_draining:
            return
        self._state.is_draining = True
        running = sum(each.health().running for each in self._workers)
        say(logger, "worker_drains", worker=self.id, running=running, grace=grace_in_words(self._options.grace))
        self._stopping.set()
        for each in self._all:
            each.changed.set()
        for worker in self._workers:
            worker.drain()

    def interrupt(self) -> None:
        """Tell every handler to stop; what they come to is written down, unless the store cannot for some seconds."""
        self._state.is_interrupted = True
        for each in self._workers:
            each.interrupt()

    async def has_ended(self, seconds: float | None) -> bool:
        """Wait for its end, *seconds* at most; tell whether it came."""
        done, _ = await asyncio.wait([self.ended], timeout=seconds)
        return bool(done)

    async def abandon(self, seconds: float) -> bool:
        """Give back also what cannot be stopped, for the process is about to end; tell whether all was written."""
        written = await asyncio.gather(*(each.abandon(seconds) for each in self._workers))
        return all(written) and not self._state.has_unwritten

    @property
    def ended(self) -> asyncio.Future[None]:
        """Its whole work as a future; what broke it, if anything, is its exception."""
        assert self._ended is not None  # noqa: S101 - a host that was not started has no end
        return self._ended

    @property
    def has_unwritten(self) -> bool:
        """Tell whether something ended here that could not be written down."""
        return self._state.has_unwritten or any(each.has_unwritten for each in self._workers)

    @property
    def stubborn(self) -> list[str]:
        """The jobs whose handlers were told to stop long ago and have not."""
        return [job for each in self._workers for job in each.stubborn]

    def health(self) -> Health:
        """Tell how it is at this moment, all its workers together; asks nobody."""
        healths, wall = [each.health() for each in self._workers], partial(wall_time, self._parts.runtime)
        asked = [each.claimed_at for each in healths] + [wall(self._looked_at)]
        return Health(
            id=self.id,
            since=wall(self._since),
            claimed_at=max((each for each in asked if each is not None), default=None),
            hints=self._hints,
            loop_lag=max((each.loop_lag for each in healths), default=0.0),
            running=sum(each.running for each in healths),
            stubborn=tuple(self.stubborn),
            trouble_since=wall(self._trouble_since),
            trouble=next(iter(list(self._outages.values())), None),
            is_draining=self._state.is_draining,
            receivers=tuple(receiver for each in healths for receiver in each.receivers),
            tenants=len(self._tenants),
        )

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
                await asyncio.gather(*(each.end_in_time() for each in self._workers))
                await self.has_ended(GOODBYE_SECONDS)
            finally:
                assert self._main is not None  # noqa: S101 - it was entered
                self._main.cancel()
            raise

    def _ended_now(self, main: asyncio.Task[None]) -> None:
        if main.cancelled():
            self.ended.cancel()
        elif (error := main.exception()) is not None:
            self.ended.set_exception(_only(error))
        else:
            self.ended.set_result(None)

    @property
    def _all(self) -> list[HostedTenant]:
        return [*self._tenants.values(), *self._ending]

    @property
    def _workers(self) -> list[Worker]:
        return [each.worker for each in self._all if each.worker is not None]

    @property
    def _hints(self) -> HintMode:
        if self._parts.control.database == "sqlite":
            return "watching"
        marks = [each.mark for each in self._all if each.mark is not None]
        return "listening" if marks and all(each.is_listening for each in marks) else "polling"

    async def _run(self) -> None:
        self._since = self._monotonic()
        slots = SlotShare(self._options.concurrency, self._monotonic, asyncio.get_running_loop().call_later)
        self._lookout = self._parts.make_lookout(self._member, self)
        shared = self._member.id, self._lookout, self._troubles, self._state, self._parts.served
        self._service = TenantService(self.id, self._options, slots, *shared)
        self._say_started()
        try:
            async with asyncio.TaskGroup() as self._group:
                running = self._follow_registry(), self._lookout.run(), self._prepare_those_found()
                loops = [self._group.create_task(each) for each in running]
                signs = self._group.create_task(self._give_signs())
                await self._stopping.wait()
                for each in loops:
                    each.cancel()
                while serving := [each.serving for each in self._all if each.serving is not None]:
                    await asyncio.wait(serving)
                signs.cancel()
        finally:
            await self._end()
            say(logger, "worker_stopped", worker=self.id, left=0)

    def _say_started(self) -> None:
        facts: dict[str, Any] = {
            "worker": self.id,
            "pid": os.getpid(),
            "version": VERSION,
            "database": self._parts.shown_database,
            "slots": self._options.concurrency,
            "tenants": self._caps,
            "queues": _own(self._parts.served.queues),
        }
        say(logger, "host_started", **facts)

    async def _give_signs(self) -> None:
        """Say in the control place that we live, and whom we serve: the tables of an idle tenant do not tell."""
        served, runtime = self._parts.served, self._parts.runtime
        slots = Slots(self._options.concurrency, webhooks=None if served.posts else 0)
        names = {"queues": _own(served.queues), "tasks": _own(served.tasks)}
        facts = names | {"slots": slots._asdict(), "tenants": self._caps, "version": VERSION}
        member = Member.here(self.id, self._options.name, **facts)
        while True:
            with suppress(Exception):  # that the control place is away is said by who reads the registry
                await self._parts.control.run(workers.give_sign, member.saying(hint_mode=self._hints))
            await runtime.sleep(BEAT_SECONDS * (0.9 + 0.2 * runtime.chance.random()))
            with suppress(Exception):
                await self._look_for_unserved_schedules()
            with suppress(Exception):
                await self._forget_records()

    async def _look_for_unserved_schedules(self) -> None:
        """Say once that a schedule of the control place waits: who forgot tenants=True would wait, too."""
        next_ms = None if self._has_said_unserved else (await self._parts.control.read(schedules.earliest)).next_ms
        if next_ms is not None and next_ms <= -schedules.LATE_MS:
            self._has_said_unserved = True
            say(logger, "schedules_not_served", seconds=round(-next_ms / 1000))

    async def _forget_records(self) -> None:
        if self._parts.forget_records is not None:
            await self._parts.forget_records()

    async def _end(self) -> None:
        await self._lookout.end()
        with suppress(Exception):  # a row that is left behind has no beat, and is forgotten
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self._parts.control.run(workers.forget, [self.id])
        for each in self._all:
            await self._stop_listening(each)
        for store in self._parts.resources:
            with suppress(StoreError):
                await store.close()

    # who there is

    async def _follow_registry(self) -> None:
        while True:
            try:
                self._reconcile(await self._parts.control.read(tenants.list_tenants))
                self.note_outage("registry", None)
            except Exception as error:  # noqa: BLE001 - whatever it is, those that are known are served on
                self.note_outage("registry", error)
            await self._parts.runtime.sleep(REGISTRY_SECONDS)

    def _reconcile(self, rows: Sequence[TenantInfo]) -> None:
        """Serve who is new, and no more who is suspended or gone."""
        served = {each.name: each for each in rows if self._cap(each.name) and self._is_right(each)}
        for tenant in list(self._tenants.values()):
            # one that was dropped and made again since the last look has new tables
            if tenant.name not in served or served[tenant.name].created_at != tenant.created_at:
                self._drop(tenant)
        for name, info in served.items():
            if (known := self._tenants.get(name)) is not None and known.trouble is None:
                known.trouble = info.trouble  # of another host, or a former one: the next good look takes it away
            if name not in self._tenants and (slots := self._slots_left(info)) > 0:
                self._add(info, slots)
        self._say_unknown({each.name for each in rows})

    def _is_right(self, info: TenantInfo) -> bool:
        """Tell whether a tenant is to be served, by its row; one that cannot be right is left out, and said once."""
        if info.state not in ("active", "suspended"):
            return False
        try:
            self._parts.note_row(info.name, info)
        except HoldfastError as error:
            if self._refused.get(info.name) != (reason := reason_of(error)):
                self._refused[info.name] = reason
                say(logger, "tenant_left_out", tenant=info.name, reason=reason)
                self._spawn(self._parts.control.run(tenants.note_trouble, [(info.name, reason)]))
            return False
        self._refused.pop(info.name, None)
        return info.state == "active"

    def _cap(self, name: str) -> int:
        return self._caps.get(name, self._caps.get("*", 0))

    def _slots_left(self, info: TenantInfo) -> int:
        """Say how many slots a tenant may have beside what still runs there since before it was resumed.

        None as long as somebody leaves it whose worker is closed, or who has served other tables.
        """
        before = [each for each in self._ending if each.name == info.name]
        if any(each.worker is None or each.created_at != info.created_at for each in before):
            return 0
        running = sum(each.worker.health().running for each in before if each.worker is not None)
        return self._cap(info.name) - running

    def _say_unknown(self, known: set[str]) -> None:
        unknown = frozenset(each for each in self._caps if each != "*" and each not in known)
        if unknown - self._unknown:
            say(logger, "tenants_unknown", tenants=sorted(unknown - self._unknown))
        self._unknown = unknown

    def _add(self, info: TenantInfo, slots: int) -> None:
        now, chance = self._monotonic(), self._parts.runtime.chance
        place = self._parts.place_of(info)
        tenant = HostedTenant(
            name=info.name,
            place=info.place,
            created_at=info.created_at,
            slots=slots,
            store=place.store,
            prepare=place.prepare,
            make_worker=place.make_worker,
            monotonic=self._monotonic,
            look_at=now,
            visit_at=now + VISIT_SECONDS * chance.random(),
            trouble=info.trouble,
            trouble_since=now - self._seconds_since(info.trouble_at),
            is_said_to_be_out=info.trouble is not None,
        )
        if self._parts.control.database == "postgres":
            tenant.listener = place.store.watch(partial(self._on_hint, tenant, asyncio.get_running_loop()))
            tenant.mark = SleepMark(tenant.listener, self._monotonic, self._lookout.period)
        self._tenants[info.name] = tenant
        self._lookout.add(tenant)

    def _seconds_since(self, at: datetime | None) -> float:
        """Say how long ago *at* was, by this machine's clock."""
        return 0.0 if at is None else max(0.0, self._parts.runtime.wall_ms() / 1000 - at.timestamp())

    def _drop(self, tenant: HostedTenant) -> None:
        """Serve *tenant* no more; what runs there ends."""
        tenant.is_active = False
        del self._tenants[tenant.name]
        self._ending[tenant] = None
        self._lookout.remove(tenant)
        tenant.changed.set()
        if tenant.serving is None:
            self._spawn(self._leave(tenant))

    async def _leave(self, tenant: HostedTenant) -> None:
        successor = self._tenants.get(tenant.name)
        if successor is None:
            await self._service.unmark(tenant)
        await self._stop_listening(tenant)
        if successor is None:
            with suppress(StoreError):
                await tenant.store.close()
        else:  # it was resumed meanwhile: the place and the mark are in use
            successor.slots = self._cap(tenant.name)  # from its next worker on
        self._ending.pop(tenant, None)

    async def _stop_listening(self, tenant: HostedTenant) -> None:
        if tenant.listener is not None:
            listener, tenant.listener = tenant.listener, None
            await self._parts.runtime.threads.call(listener.stop)

    # what looks find

    def note_found(self, tenant: HostedTenant, found: Glimpse) -> None:
        """Take note of what a look has found, and serve the tenant if there is something to do."""
        self._looked_at = self._monotonic()
        try:
            migrations.judge(found.version, migrations.code_number(self._parts.control.database))
        except NotMigrated as error:
            self.note_broken(tenant, not_migrated(error, tenant.name))
            return
        tenant.out_until = None
        if tenant.serving is None:
            self._troubles.is_well(tenant)
        if self._parts.has_schedules and not tenant.is_prepared:
            tenant.is_prepared = True
            self._unprepared.put_nowait(tenant)
        if tenant.note_look(found, self._lookout.period) and not self._state.is_draining:
            tenant.serving = self._group.create_task(self._serve(tenant))

    async def _prepare_those_found(self) -> None:
        """Write the schedules that are declared for tenants into each, one after the other."""
        while True:
            tenant = await self._unprepared.get()
            try:
                await tenant.prepare()
                tenant.look_soon()
                self._lookout.wake()
            except Exception as error:  # noqa: BLE001 - whatever it is, the others get theirs
                tenant.is_prepared = False
                self.note_broken(tenant, error)

    def note_broken(self, tenant: HostedTenant, error: Exception) -> None:
        """Leave *tenant* out of the looks for a while; if it has a worker, that says for itself what is wrong."""
        if tenant.serving is not None:
            tenant.leave_out()
        elif tenant.is_active:
            self._troubles.leave_out(tenant, error)

    def note_outage(self, part: str, error: Exception | None) -> None:
        """Take note that nothing can be done in one *part*, for all tenants; None: that it can be again."""
        had_some = bool(self._outages)
        if error is None:
            self._outages.pop(part, None)
        else:
            self._outages[part] = reason_of(error)
        if self._outages and not had_some:
            self._trouble_since = self._monotonic()
            say(logger, "worker_store_trouble", reason=self._outages[part])
        elif had_some and not self._outages and self._trouble_since is not None:
            seconds = round(self._monotonic() - self._trouble_since, 1)
            self._trouble_since = None
            say(logger, "worker_store_answers", seconds=seconds)

    async def _serve(self, tenant: HostedTenant) -> None:
        await self._service.serve(tenant)
        if not tenant.is_active:
            await self._leave(tenant)

    def _on_hint(self, tenant: HostedTenant, loop: asyncio.AbstractEventLoop) -> None:
        """Take a hint for *tenant*; called in any thread."""
        if tenant.is_idle and not tenant.is_hinted:
            tenant.is_hinted = True
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._heed, tenant)

    def _heed(self, tenant: HostedTenant) -> None:
        """Look at *tenant* alone; if it is not marked, the hint says only that hints can be heard from now on."""
        if tenant.mark is not None and tenant.mark.is_marked:
            self._spawn(self._look_alone(tenant))
        else:
            tenant.is_hinted = False
            tenant.look_soon()
            self._lookout.wake()

    async def _look_alone(self, tenant: HostedTenant) -> None:
        """Look at *tenant* on its own connections: nobody else can delay that."""
        try:
            if (early := tenant.looked_at + LEAST_SECONDS - self._monotonic()) > 0:
                await self._parts.runtime.sleep(early)
        finally:
            tenant.is_hinted = False
        if tenant.is_idle:
            found = await tenant.store.read(glance.look, self._parts.served)
            if tenant.is_idle:
                self.note_found(tenant, found)
                self._lookout.wake()

    def _spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Do *work* beside the rest, unless we end; an error in it harms nobody."""
        if self._state.is_draining:
            work.close()
        else:
            self._group.create_task(_unharmed(work))


def _own(names: Sequence[str]) -> list[str]:
    """Give the *names* of tasks or queues that are not the engine's."""
    return [each for each in names if not each.startswith(RESERVED)]


async def _unharmed(work: Coroutine[Any, Any, object]) -> None:
    with suppress(Exception):
        await work


def _only(error: BaseException) -> BaseException:
    """Give the one error of a group."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
