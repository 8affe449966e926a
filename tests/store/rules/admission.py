"""Admission in the model: it does what was left to it when a queue is admitted, or at once with a verb of our own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from tests.store.rules.world import OPEN, UNMENDED, Grave, Job, World


def admit(world: World, queue: str) -> None:
    """Take up everything of *queue* whose time has come."""
    jobs = [job for job in world.in_order() if job.queue == queue and job.wake is not None and job.wake <= world.now]
    graves = [each for each in world.graves if each.queue == queue]
    take_up(world, jobs, graves)


def admit_named(world: World, ids: Sequence[UUID]) -> None:
    """Take up what a verb on our own connection has left on the jobs that it named."""
    named = [job for job in world.in_order() if job.id in ids]
    take_up(world, [job for job in named if job.wake is not None and job.wake <= world.now])


def take_up(world: World, jobs: Sequence[Job], graves: Sequence[Grave] = ()) -> None:
    """Let jobs go where they belong; chains that are open again block who failed by them once all others are done."""
    failed_by = {chain for job in world.jobs.values() for chain in job.failed_by}
    if "a blocker is overtaken" in UNMENDED:
        failed_by |= {job.id for job in jobs if job.is_watched}
    opened = [job for job in jobs if job.is_open and job.id in failed_by]
    let_go(world, [job for job in jobs if job not in opened], graves)
    for job in opened:
        block_again(world, job.id)
    let_go(world, opened)


def let_go(world: World, jobs: Sequence[Job], graves: Sequence[Grave] = ()) -> None:
    """Count the blockers of blocked jobs, let pending ones run or join, pass on what ended ones have left."""
    found = {job: job.status for job in jobs}
    lanes = {job.lane for job in jobs if job.lane is not None and (job.owes_turn or is_at_its_lane(world, job))}
    ends = {
        job: {chain: end_of(world, chain) for chain in job.blockers} for job in jobs
    }  # as they are before any moves
    for job, status in found.items():
        job.wake = None
        if status == "blocked":
            count_blockers(world, job, ends[job])
        elif status == "pending" and job.run_at > world.now:
            job.wake = job.run_at
        elif status == "pending" and job.lane is None:
            world.make_ready(job)
        elif status == "pending" and not world.has_place(job):
            world.join(job)
    for lane in sorted(lanes):
        come_back(world, lane, jobs)
    for lane in sorted({each.lane for each in graves}):
        world.pass_on(lane)
    world.graves = [each for each in world.graves if each not in graves]
    ended = [job for job, status in found.items() if status not in OPEN]
    tell(world, {job.id: job.closed_as for job in ended if job.closed_as is not None})


def is_at_its_lane(world: World, job: Job) -> bool:
    """Tell whether a job has to do with its lane now: it comes to it, or may have left it."""
    return job.status != "blocked" and (job.status != "pending" or job.run_at <= world.now)


def come_back(world: World, key: str, jobs: Sequence[Job]) -> None:
    """Let the head of a lane, if its time has come, and the next one, if there is none, have their turn."""
    lane = world.lanes.get(key)
    if lane is not None and lane.head in jobs:
        world.wake_head(lane)
    world.pass_on(key)


def end_of(world: World, chain: UUID) -> str | None:
    """Tell how a chain ended, None while it is open; one that is gone counts as cancelled."""
    return world.jobs[chain].closed_as if chain in world.jobs else "cancelled"


def count_blockers(world: World, job: Job, ends: Mapping[UUID, str | None]) -> None:
    """Let a blocked job wait, run or fail, by how all its blockers stand."""
    unhappy = {chain for chain, end in ends.items() if end not in (None, "completed")}
    job.is_counted = True
    for chain in ends.keys() & world.jobs.keys():
        is_over = ends[chain] == "completed" or (chain in unhappy and job.on_blocker_failure == "ignore")
        world.jobs[chain].is_watched |= not is_over
    if unhappy and job.on_blocker_failure == "fail":
        fail_by(world, job, unhappy)
        return
    job.failed_by = set()
    still = {chain for chain, end in ends.items() if end is None}
    still |= unhappy if job.on_blocker_failure == "wait" else set()
    job.waits_for = [chain for chain in job.blockers if chain in still]
    if job.waits_for:
        world.say(job, "job:blocked")
    else:
        unblock(world, job)


def tell(world: World, closed: Mapping[UUID, str]) -> None:
    """Tell those who wait for chains that these have closed; who has not counted yet will see for itself."""
    for job in world.in_order():
        heard = {chain: end for chain, end in closed.items() if chain in job.waits_for}
        if job.status != "blocked" or not job.is_counted or not heard:
            continue
        unhappy = {chain for chain, end in heard.items() if end != "completed"}
        if unhappy and job.on_blocker_failure == "fail":
            fail_by(world, job, unhappy)
            continue
        kept = unhappy if job.on_blocker_failure == "wait" else set()
        job.waits_for = [chain for chain in job.waits_for if chain not in heard or chain in kept]
        if not job.waits_for:
            unblock(world, job)


def unblock(world: World, job: Job) -> None:
    """Let a job wait for nobody any more; it has still to come due, and to join its lane."""
    job.status, job.wake, job.waits_for = "pending", job.run_at, []
    world.say(job, "job:unblocked")


def fail_by(world: World, job: Job, blockers: set[UUID]) -> None:
    """Fail a blocked job by its blockers: its chain closes, and who waits for that is left to admission."""
    job.status, job.failed_by, job.waits_for, job.wake = "failed", blockers, [], world.now
    world.close(job)
    world.say(job, "job:failed")


def block_again(world: World, chain: UUID) -> None:
    """Put the jobs that failed by a chain, which is open again, back to blocked, unless another has their key."""
    for job in world.in_order():
        if chain not in job.failed_by:
            continue
        job.failed_by.discard(chain)
        if job.status != "failed" or (job.key is not None and world.holder(job.task, job.key) != job.id):
            continue
        world.open_again(job)
        job.wake = world.now
        world.say(job, "job:resumed")
