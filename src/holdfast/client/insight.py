"""What both faces tell about the whole, written once: each function takes a `Runner` first, as the verbs do."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from holdfast import current_block
from holdfast.client.list_options import PageOptions, page_of
from holdfast.client.verbs import is_callers
from holdfast.database.tx import Runner
from holdfast.errors import InvalidInput, StoreError, got
from holdfast.ids import Target, target_id
from holdfast.models import Job, LaneInfo, Page
from holdfast.tasks.decoder import Decoder
from holdfast.texts import word_of
from holdfast.times import milliseconds_of

if TYPE_CHECKING:
    from holdfast.explanations import Explanation, QueueExplanation
    from holdfast.figures import Overview, Series
    from holdfast.inventory import LaneState, QueueInfo, TaskInfo, WorkerInfo
    from holdfast.questions import InboxEntry, InboxKind
    from holdfast.store.insight.gauges import Sample

LOOKED_MS = 10_000
"""How old a sample may be for who looks."""


async def list_tasks(runner: Runner) -> list[TaskInfo]:
    """List tasks."""
    from holdfast.store.insight import inventory  # few programs ask

    return await runner.read(inventory.list_tasks)


async def list_queues(runner: Runner) -> list[QueueInfo]:
    """List queues."""
    from holdfast.store.insight import inventory

    return await runner.read(inventory.list_queues)


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


async def explain(runner: Runner, decoder: Decoder, target: Target) -> Explanation:
    """Say why a job does not run; also, if nothing else does, that a stranger's transaction holds its row."""
    from holdfast.store.insight import explain as reasons

    found, is_in_doubt = await runner.read(reasons.explain_or_doubt, target_id(target))
    job = found.job
    if job is None:
        return found
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


async def explain_queue(runner: Runner, name: str) -> QueueExplanation:
    """Say why the jobs of a queue do not run."""
    from holdfast.store.insight import explain as reasons

    return await runner.read(reasons.explain_queue, name)


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
