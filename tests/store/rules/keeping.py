"""The law of retention, and of reading the log.

What has ended long enough ago is marked, what was marked long enough ago goes, whole chains only. A chain stays as it
is while one of its jobs is open, holds its lane or has left something to admission, or while an open job waits for it.
To go, it must not be a blocker either of one that may be retried and is not marked itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import TypeAlias
from uuid import UUID

from tests.store.rules.admission import free_in_vain
from tests.store.rules.steering import needs_its_blockers, remove
from tests.store.rules.world import Job, Refused, World

Events: TypeAlias = dict[UUID, list[tuple[str, str | None, int | None]]]

STALE_MS, DELETE_MS = 20, 30_000
"""Short, so that a few steps are long enough for a mark, and often so much time passes that it goes."""


def retain(world: World) -> tuple[int, int]:
    """Make a pass; tell how many chains were marked, and how many deleted."""
    firsts = [job for job in world.in_order() if job.index == 0]
    marked = [job for job in firsts if job.stale_at is None and _is_due(world, job, job.closed_at, STALE_MS, _waits)]
    for job in [step for first in marked for step in world.steps(first.id)]:
        job.stale_at = world.now
        world.say(job, "job:stale")
    gone = [job for job in firsts if _is_due(world, job, job.stale_at, DELETE_MS, needs_its_blockers)]
    for job in [step for first in gone for step in reversed(world.steps(first.id))]:
        remove(world, job)
    free_in_vain(world, {job.id for job in gone})
    _trim(world)
    return len(marked), len(gone)


def has_work(world: World) -> bool:
    """Tell whether something is old enough for a pass to look at it."""
    return any(
        world.now - since >= age
        for job in world.jobs.values()
        for since, age in ((job.closed_at, STALE_MS if job.stale_at is None else DELETE_MS),)
        if since is not None
    )


def _trim(world: World) -> None:
    """Forget what the log says of no job that still exists, once it is old."""
    is_old = [said.job is None and world.now - at >= STALE_MS + DELETE_MS for at, said in world.unread]
    world.is_reader_lost |= any(is_old)
    world.unread = [each for each, is_gone in zip(world.unread, is_old, strict=True) if not is_gone]


def read_on(world: World) -> tuple[Events, Counter[tuple[object, ...]]]:
    """Tell a reader of the log what it has not been told, each job's events in their order; or that it has missed some.

    Then it begins anew, behind all that there is.
    """
    unread, is_lost = [said for _, said in world.unread], world.is_reader_lost
    world.unread, world.is_reader_lost = [], False
    if is_lost:
        raise Refused("cursor_expired")
    events: Events = defaultdict(list)
    for said in unread:
        if said.job is not None:
            events[said.job].append((said.name, said.status, said.attempt))
    return dict(events), Counter((said.name, *said.about) for said in unread if said.job is None)


def _is_due(world: World, first: Job, since: int | None, age: int, needs: Callable[[Job], bool]) -> bool:
    is_old = since is not None and world.now - since >= age
    is_waited_for = any(
        first.id in job.blockers and job.chain != first.id and needs(job) for job in world.jobs.values()
    )
    return is_old and not is_waited_for and all(_is_at_rest(world, job) for job in world.steps(first.id))


def _is_at_rest(world: World, job: Job) -> bool:
    return not job.is_open and not world.is_head(job) and job.wake is None


def _waits(job: Job) -> bool:
    return job.is_open
