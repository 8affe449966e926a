"""A tenant with work: its worker is opened, and closed when it has been quiet for a minute, or at the tenant's end."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.errors import Busy
from holdfast.logging import RUNNING_TENANT, say
from holdfast.store import glance, workers
from holdfast.worker.claiming import exhaustion
from holdfast.worker.hosts.tenant import LONGEST_QUIET_SECONDS, MARK_SECONDS, QUIET_SECONDS, HostedTenant

if TYPE_CHECKING:
    from holdfast.store.glance import Served
    from holdfast.worker.claiming.slot_share import SlotShare
    from holdfast.worker.hosts.lookout import Lookout
    from holdfast.worker.hosts.troubles import TenantTroubles
    from holdfast.worker.options import WorkerOptions
    from holdfast.worker.worker import Worker

logger = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""How often it is seen whether a worker has become quiet."""
BROKEN_SECONDS = 5.0
"""How often the place of a worker in trouble is looked at: is it this one that is broken, or the database?"""


@dataclass(slots=True)
class HostState:
    """How far the end of a host has come."""

    is_draining: bool = False
    is_interrupted: bool = False
    has_unwritten: bool = False
    """Whether a worker has ended that could not write all down."""


class TenantService:
    """Serves the tenants of a host, as *options* say, with slots of *slots*; it sleeps there by the id *member*."""

    def __init__(
        self,
        host_id: str,
        options: WorkerOptions,
        slots: SlotShare,
        member: str,
        lookout: Lookout,
        troubles: TenantTroubles,
        host: HostState,
        served: Served,
    ) -> None:
        self._host_id = host_id
        self._options = options
        self._slots = slots
        self._member = member
        self._lookout = lookout
        self._troubles = troubles
        self._host = host
        self._served = served

    async def serve(self, tenant: HostedTenant) -> None:
        """Have a worker for *tenant*, as long as there is something to do; what breaks it is left to the tenant."""
        RUNNING_TENANT.set(tenant.name)  # for what is logged in this task and in those that it makes
        has_worked = False
        try:
            await tenant.prepare()
            worker = self._make_worker(tenant)
            await self.unmark(tenant)
            async with worker:
                tenant.worker = worker
                say(logger, "tenant_served", tenant=tenant.name, worker=worker.id)
                if self._host.is_interrupted:
                    worker.interrupt()
                await self._until_quiet(tenant, worker)
                has_worked = worker.has_worked
            self._host.has_unwritten |= worker.has_unwritten
            worker.ended.result()
        except Exception as error:
            if exhaustion.is_exhausted(error):  # that is for all of them: a new process may have more
                raise
            self._troubles.leave_out(tenant, error)
        finally:
            tenant.worker = tenant.serving = None
            tenant.note_closed(has_worked=has_worked)
            self._lookout.wake()

    async def unmark(self, tenant: HostedTenant) -> None:
        """Take the mark away: hints are not wanted where a worker is awake."""
        if tenant.mark is not None and tenant.mark.is_marked:
            tenant.mark.has_unmarked()
            with suppress(Exception):  # it is forgotten later
                await tenant.store.run(workers.forget, [self._member])

    def _make_worker(self, tenant: HostedTenant) -> Worker:
        slots = min(tenant.slots, self._options.concurrency)
        children = min(slots, self._options.children or slots)
        options = replace(self._options, concurrency=slots, children=children, tenants=None, host=self._host_id)
        return tenant.make_worker(options, self._slots)

    async def _until_quiet(self, tenant: HostedTenant, worker: Worker) -> None:
        """Wait until the worker has had nothing to do for a while, has ended, or is to end."""
        while not worker.ended.done():
            tenant.changed.clear()
            if not tenant.is_active or self._host.is_draining:
                worker.drain()
                await asyncio.wait([worker.ended])
                return
            quiet = worker.quiet_seconds
            if quiet >= QUIET_SECONDS and (tenant.is_ready_to_leave or quiet >= LONGEST_QUIET_SECONDS):
                return
            await self._leave_or_stay(tenant, quiet)
            await self._look_at_trouble(tenant, worker)
            await _first_of(worker.ended, tenant.changed)

    async def _look_at_trouble(self, tenant: HostedTenant, worker: Worker) -> None:
        """Take note of a worker's trouble; raise what is wrong if its place alone is broken, and nothing runs there.

        A lock may end soon, and an outage is for all of them: the worker goes on trying.
        """
        health, now = worker.health(), tenant.monotonic()
        self._troubles.note_of_worker(tenant, health.trouble)
        if health.trouble is None or health.running or now < tenant.examined_at + BROKEN_SECONDS:
            return
        tenant.examined_at = now
        try:
            await tenant.store.read(glance.look, self._served)
        except Busy:
            return
        except Exception:
            if await self._troubles.is_control_well():
                raise

    async def _leave_or_stay(self, tenant: HostedTenant, quiet: float) -> None:
        """Have the host's own mark made before the worker is closed; take it away if there is work after all."""
        is_leaving = quiet >= QUIET_SECONDS - MARK_SECONDS
        if is_leaving and not tenant.is_leaving:
            tenant.is_leaving = True
            self._lookout.wake()
        elif tenant.is_leaving and not is_leaving:
            tenant.is_leaving = False
            await self.unmark(tenant)


async def _first_of(ended: asyncio.Future[None], changed: asyncio.Event) -> None:
    """Wait until either has come, a moment at most."""
    waiting = asyncio.ensure_future(changed.wait())
    try:
        await asyncio.wait((ended, waiting), timeout=CHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
