"""What both faces tell about the whole, written once: each function takes a `Runner` first, as the verbs do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast import current_block
from holdfast.client.list_options import PageOptions, page_of
from holdfast.client.transactions import is_callers
from holdfast.database.tx import Runner
from holdfast.errors import HoldfastError, InvalidInput, StoreError, got
from holdfast.ids import Target, target_id
from holdfast.logging import reason_of
from holdfast.models import Job, LaneInfo, Page
from holdfast.states import TERMINAL, Status
from holdfast.tasks.decoder import Decoder
from holdfast.texts import word_of
from holdfast.times import milliseconds_of

if TYPE_CHECKING:
    from holdfast.explanations import Explanation, QueueExplanation, Reason
    from holdfast.figures import Overview, Series
    from holdfast.inventory import LaneState, QueueInfo, TaskInfo, WorkerInfo
    from holdfast.questions import InboxEntry, InboxKind
    from holdfast.store.insight.gauges import Sample
    from holdfast.store.tenants import TenantView
    from holdfast.store.workers import LivingWorker
    from holdfast.tenancy import TenantInfo

LOOKED_MS = 10_000
"""How old a sample may be for who looks."""


async def list_tasks(runner: Runner, tenant: TenantView | None) -> list[TaskInfo]:
    """List tasks."""
    from holdfast.store.insight import inventory  # few programs ask

    return await runner.read(inventory.list_tasks, _hosts(tenant))


async def list_queues(runner: Runner, tenant: TenantView | None) -> list[QueueInfo]:
    """List queues."""
    from holdfast.store.insight import inventory

    return await runner.read(inventory.list_queues, _hosts(tenant))


async def list_workers(runner: Runner) -> list[WorkerInfo]:
    """List workers."""
    from holdfast.store.insight import inventory

    return await runner.read(inventory.list_workers)


async def list_lanes(runner: Runner, state: LaneState | None, prefix: str, options: PageOptions) -> Page[LaneInfo]:
    """List lanes."""
    from holdfast.inventory import LANE_STATES
    from holdfast.store.insight import lane_lists

    if state is not None and state not in LANE_STATES:
        raise InvalidInput(f"state must be {', '.join(map(repr, LANE_STATES))} or None, {got(state)}", "state")
    beginning = word_of(prefix, "prefix")
    return await runner.read(
        lane_lists.list_lanes, state, beginning, page_of(options, "list_lanes()", "state", "prefix")
    )


async def list_lane_jobs(runner: Runner, decoder: Decoder, key: str, options: PageOptions) -> Page[Job]:
    """List the jobs that stand in a lane."""
    from holdfast.store.insight import lane_lists

    page = await runner.read(lane_lists.list_lane_jobs, key, page_of(options, "jobs()"))
    return page.map(decoder.job)


async def inbox(runner: Runner, decoder: Decoder, kind: InboxKind | None, options: PageOptions) -> Page[InboxEntry]:
    """List what waits for a person."""
    from holdfast.questions import KINDS, Ask, Halt, PausedJob  # few programs ask
    from holdfast.store.insight import inbox as entries

    if kind is not None and kind not in KINDS:
        raise InvalidInput(f"kind must be {', '.join(map(repr, KINDS))} or None for all, {got(kind)}", "kind")
    wanted = page_of(options, "inbox()", "kind")
    page = await runner.read(entries.inbox, kind, wanted.limit, wanted.cursor)
    return page.map(
        lambda each: replace(each, job=decoder.job(each.job)) if isinstance(each, Ask | Halt | PausedJob) else each
    )


async def explain(runner: Runner, decoder: Decoder, target: Target, tenant: TenantView | None = None) -> Explanation:
    """Say why a job does not run; also, if nothing else does, that a stranger's transaction holds its row.

    It may be the *tenant* that does not let it run; if its tables cannot be read, that is all there is to say.
    """
    from holdfast.explanations import Explanation
    from holdfast.store.insight import explain as reasons

    job_id = target_id(target)
    try:
        found, is_in_doubt = await runner.read(reasons.explain_or_doubt, job_id, _hosts(tenant))
    except Exception as error:
        if tenant is None or is_callers(runner):
            raise
        return Explanation(None, _of_broken(tenant.info, error))
    job = found.job
    if job is None:
        return found
    if tenant is not None:
        told = within_tenant(found, tenant)
        found, is_in_doubt = told, is_in_doubt and told.reasons == found.reasons
    if is_in_doubt and not is_callers(runner):
        found = await _with_lock(runner, found, job.seq, job.version)
    return replace(found, job=decoder.job(job))


async def _with_lock(runner: Runner, found: Explanation, seq: int, version: int) -> Explanation:
    """Put the lock that holds a job, if there is one, in the place of the look that it waits for."""
    from holdfast.explanations import Arriving, Explanation
    from holdfast.store.insight import explain as reasons

    try:
        await runner.run(reasons.find_lock, seq, version)
    except reasons.LockLook as look:
        if look.lock is not None:
            others = [each for each in found.reasons if not isinstance(each, Arriving)]
            return Explanation(found.job, (*others, look.lock))
    except StoreError:  # who may only read may not try a lock either; what was read is true without it
        pass
    return found


async def explain_many(runner: Runner, job_ids: Sequence[UUID], tenant: TenantView | None) -> list[Explanation]:
    """Explain a few jobs of one snapshot, for who has waited for them."""
    from holdfast.store.insight import explain as reasons

    found = await runner.read(reasons.explain_many, job_ids, _hosts(tenant))
    return found if tenant is None else [within_tenant(each, tenant) for each in found]


def _hosts(tenant: TenantView | None) -> Sequence[LivingWorker]:
    return () if tenant is None else tenant.hosts


def within_tenant(found: Explanation, tenant: TenantView) -> Explanation:
    """Add to the reasons of a job that waits those that its *tenant* gives."""
    if found.job is None or found.job.status in (*TERMINAL, Status.RUNNING):
        return found
    return replace(found, reasons=_with_tenant(found.reasons, tenant.info))


async def explain_queue(runner: Runner, name: str, tenant: TenantView | None = None) -> QueueExplanation:
    """Say why the jobs of a queue do not run."""
    from holdfast.explanations import QueueExplanation
    from holdfast.store.insight import explain as reasons

    try:
        found = await runner.read(reasons.explain_queue, name, _hosts(tenant))
    except Exception as error:
        if tenant is None:
            raise
        return QueueExplanation(name, _of_broken(tenant.info, error))
    return found if tenant is None else replace(found, reasons=_with_tenant(found.reasons, tenant.info))


def _with_tenant(reasons: Sequence[Reason], found: TenantInfo) -> tuple[Reason, ...]:
    """Add to the reasons of what waits those that its tenant gives; they are why nobody takes it up, if they hold."""
    from holdfast.explanations import CODES, Arriving, Moving, NoWorker, Suspended, TenantBroken, in_tenant

    reasons = in_tenant(reasons, found.name)
    own: list[Reason] = []
    if found.state == "suspended":  # that is why no worker serves it: to start one would not help
        reasons = tuple(each for each in reasons if not isinstance(each, NoWorker))
        own.append(Suspended(found.name, found.changed_by, found.reason, found.changed_at))
    if found.trouble is not None:
        own.append(TenantBroken(found.name, found.trouble, found.trouble_at))
    if not own:
        return reasons
    order = list(CODES)
    others = (each for each in reasons if not isinstance(each, Arriving | Moving))
    return tuple(sorted((*others, *own), key=lambda each: order.index(each.code)))


def _of_broken(tenant: TenantInfo, error: Exception) -> tuple[Reason, ...]:
    """Say that the tables of a tenant cannot be read, as workers have found, or as *error* says."""
    if isinstance(error, HoldfastError) and not isinstance(error, StoreError):
        raise error
    return _with_tenant((), tenant if tenant.trouble is not None else replace(tenant, trouble=reason_of(error)))


async def overview(runner: Runner) -> Overview:
    """Say how everything stands, by a sample that others share."""
    from holdfast.store.insight import gauges  # few programs ask

    taken = await sampled(runner, LOOKED_MS)
    if taken is None:  # who may not write, and finds none that others have taken, takes one for himself
        taken = await runner.read(gauges.sample)
    return gauges.overview_of(taken, await runner.read(gauges.staff))


async def sampled(runner: Runner, after_ms: int) -> Sample | None:
    """Give the last sample; take a new one if that is *after_ms* old, and nobody else does.

    Whoever may not write gets the last one, also a handler in its block: on SQLite nobody can write beside that.
    """
    from holdfast.store.insight import gauges

    last, is_due = await runner.read(gauges.latest, after_ms)
    if current_block.is_inside() or not is_due:
        return last
    try:
        at = await runner.run(gauges.own)
        if at is None:
            return last
        taken = await runner.read(gauges.sample)
        await runner.run(gauges.keep, at, taken)
    except StoreError:
        return last
    return taken


async def stats(
    runner: Runner,
    queue: str | None,
    task: str | None,
    since: datetime | None,
    until: datetime | None,
    width: int | None,
) -> Series:
    """Say what happened over time."""
    from holdfast.figures import KEPT_SECONDS
    from holdfast.store.insight import tallies

    if width is not None and not (type(width) is int and width in KEPT_SECONDS):
        raise InvalidInput(
            f"width must be 10, 60 or 3600 seconds, {got(width)}; leave it out to have it chosen", "width"
        )
    queue = None if queue is None else word_of(queue, "queue")
    task = None if task is None else word_of(task, "task")
    since_ms = None if since is None else milliseconds_of(since, "since")
    until_ms = None if until is None else milliseconds_of(until, "until")
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise InvalidInput(f"since must be before until, got {since} and {until}", "since")
    wanted = tallies.Wanted(queue, task, since_ms, until_ms, width)
    return await runner.read(tallies.series, wanted)
