"""How a host is put together, for either database."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from holdfast.client.engine_parts import EngineParts
from holdfast.database import make_glance_store
from holdfast.database.tx import Store
from holdfast.models import BULK, BULK_QUEUE, DELIVER, INTERNAL_QUEUE
from holdfast.store.glance import Served
from holdfast.tenancy import TenantInfo
from holdfast.worker.builtin.webhook import has_extra
from holdfast.worker.hosts.files import FileLookout
from holdfast.worker.hosts.glances import Glances
from holdfast.worker.hosts.host import HostParts, TenantPlace, WorkerHost
from holdfast.worker.options import WorkerOptions, wants_of
from holdfast.worker.upkeep.retention import forget_records

LEASE_CONNECTIONS = 4
"""What renews the leases of all tenants; one whose tables are locked keeps one of them for some seconds."""


def make_host(
    engine: EngineParts,
    options: WorkerOptions,
    make_lease_store: Callable[[int], Store],
    place_of: Callable[[str, Store | None], TenantPlace],
    note_row: Callable[[str, TenantInfo], object],
) -> WorkerHost:
    """Make the host of the tenants that *options* name, whose control place is that of *engine*.

    *place_of* gives the place of a tenant by its name, with the store that renews its leases; None: its own. *note_row*
    is told what the registry says of one, and raises if it cannot be right.
    """
    settings, runtime, served = engine.starter.settings, engine.runtime, served_by(engine, options)
    has_schedules = any(each.for_tenants for each in engine.starter.tasks.schedules.values())
    age = settings.delete_audit_after_seconds
    forget = partial(forget_records, engine.store, age) if settings.retention else None
    if not settings.is_postgres:
        parts = HostParts(
            control=engine.store,
            shown_database=settings.shown_database,
            runtime=runtime,
            served=served,
            place_of=lambda info: place_of(info.name, None),
            make_lookout=lambda _, reports: FileLookout(runtime, served, reports),
            note_row=note_row,
            has_schedules=has_schedules,
            forget_records=forget,
        )
        return WorkerHost(parts, options)
    lease_store, glance_store = make_lease_store(LEASE_CONNECTIONS), make_glance_store(settings, runtime)
    parts = HostParts(
        control=engine.store,
        shown_database=settings.shown_database,
        runtime=runtime,
        served=served,
        place_of=lambda info: place_of(info.name, lease_store.for_schema(info.place)),  # type: ignore[attr-defined]
        make_lookout=lambda member, reports: Glances(glance_store, runtime, served, member, reports),
        note_row=note_row,
        has_schedules=has_schedules,
        resources=[glance_store, lease_store],
        forget_records=forget,
    )
    return WorkerHost(parts, options)


def served_by(engine: EngineParts, options: WorkerOptions) -> Served:
    """Say what the workers of a host serve: the jobs of its handlers, and those of built-in tasks."""
    wants = wants_of(engine.starter.tasks, options.queues)
    posts = options.webhooks and has_extra()
    queues = {each.queue for each in wants} | {BULK_QUEUE} | ({INTERNAL_QUEUE} if posts else set())
    tasks = {each.task for each in wants} | {BULK} | ({DELIVER} if posts else set())
    return Served(sorted(queues), sorted(tasks), posts=posts)
