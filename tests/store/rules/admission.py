"""Admission in the model: it does what was left to it when a queue is admitted, or at once with a verb of our own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from tests.law.moves import OPEN
from tests.store.rules.world import Grave, Job, World


def admit(world: World, queue: str) -> None:
    """Take up everything of *queue* whose time has come."""
    jobs = [job for job in world.in_order() if job.queue == queue and job.wake is not None and job.wake <= world.now]
    graves = [each for each in world.graves if each.queue == queue]
    take_up(world, jobs, graves)


def admit_named(world: World, ids: Sequence[UUID]) -> None:
    """Take up what a verb on our own connection has left on the jobs that it named."""
    wanted = {id_ for job in world.named(ids) for id_ in (job.id, job.chain)} | set(ids)
    named = [job for job in world.in_order() if job.id in wanted]
    take_up(world, [job for job in named if job.wake is not None and job.wake <= world.now])


def take_up(world: World, jobs: Sequence[Job], graves: Sequence[Grave] = ()) -> None:
    """Let jobs go where they belong; chains that are open again block who failed by them once what ended is done."""
    opened = [job for job in jobs if job.index == 0 and job.closed_as is None and is_to_put_back(world, job)]
    ended = [job for job in jobs if job.status not in ("blocked", "pending") and job not in opened]
    let_go(world, ended, graves)
    for job in opened:
        block_again(world, job.id)
    let_go(world, [job for job in jobs if job not in ended])


def is_to_put_back(world: World, job: Job) -> bool:
    """Tell whether others failed by the chain of a job and are to be blocked again, once it is open."""
    return any(job.chain in each.failed_by for each in world.jobs.values())


def let_go(world: World, jobs: Sequence[Job], graves: Sequence[Grave] = ()) -> None:
    """Count the blockers of blocked jobs, let pending ones run or join, pass on what ended ones have left."""
    found = {job: job.status for job in jobs}
    lanes = {job.lane for job in jobs if job.lane is not None and (job.owes_turn or is_at_its_lane(world, job))}
    ends = {
        job: {chain: end_of(world, chain) for chain in job.blockers} for job in jobs
    }  # as they are before any moves
    turning = in_a_ring(world, {job: set(job.blockers) for job, status in found.items() if status == "blocked"})
    for job, status in found.items():
        job.wake = None
        if job in turning:
            fail_by(world, job, set())
            job.watching, job.let_off = set(), set(job.blockers)
        elif status == "blocked":
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
    over = {chain for chain, end in ends.items() if end == "completed"}
    over |= unhappy if job.on_blocker_failure == "ignore" else set()
    failed = unhappy if job.on_blocker_failure == "fail" else set()
    job.let_off, job.watching = over, ends.keys() - over - failed
    for chain in (job.watching | failed) & world.jobs.keys():
        world.jobs[chain].is_watched = True
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
    free_in_vain(world, {chain for chain, end in closed.items() if end != "completed"})
    for chain in sorted(chain for chain, end in closed.items() if end == "completed"):
        block_again(world, chain)
    for job in world.in_order():
        note_ends(job, closed)
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


def note_ends(job: Job, closed: Mapping[UUID, str]) -> None:
    """Let a job off from chains that it was to be told of, also while it does not wait: it will count again."""
    for chain in job.watching & closed.keys():
        if closed[chain] == "completed" or job.on_blocker_failure != "wait":
            job.watching.discard(chain)
            job.let_off.add(chain)


def in_a_ring(world: World, given: Mapping[Job, set[UUID]]) -> list[Job]:
    """Tell whose chain would wait for itself if each of these jobs waited for the chains *given* with it."""
    ahead = {chain: waits_for(world.current(chain)) for chain in world.chains()}
    for job, chains in given.items():
        ahead[job.chain] = ahead[job.chain] | chains
    return [job for job in given if job.chain in reached(ahead, job.chain)]


def waits_for(job: Job) -> set[UUID]:
    """Name the chains that a job is not let off from while it waits, or would wait if it were not paused."""
    return set(job.blockers) - job.let_off - job.failed_by if job.status in ("blocked", "paused") else set()


def reached(ahead: Mapping[UUID, set[UUID]], start: UUID) -> set[UUID]:
    """Follow what waits for what from *start* on."""
    seen: set[UUID] = set()
    newest = {start}
    while newest := {chain for each in newest for chain in ahead.get(each, ())} - seen:
        seen |= newest
    return seen


def free_in_vain(world: World, chains: set[UUID]) -> None:
    """Let go of the keys that were taken for those who failed by chains, which do not open again, and are still failed.

    Who failed by others as well keeps its key if one of these is still to put it back, and so does who failed by it.
    """
    failed = behind(world, chains)
    wanted = {job.chain for job in failed if any(is_coming_back(world, chain) for chain in job.failed_by - chains)}
    kept = [world.current(each) for each in wanted] + behind(world, wanted)
    for job in failed:
        if job not in kept:
            world.free_key(job, "open")


def behind(world: World, chains: set[UUID]) -> list[Job]:
    """Give those who failed by chains, by one of these, and so on, and have not been cancelled since."""
    found: list[Job] = []
    while newest := [
        job
        for job in world.in_order()
        if job.status == "failed" and job not in found and job.failed_by & (chains | {each.chain for each in found})
    ]:
        found += newest
    return found


def is_coming_back(world: World, chain: UUID) -> bool:
    """Tell whether a chain is open, or has completed, and may so put back who failed by it."""
    return end_of(world, chain) in (None, "completed")


def unblock(world: World, job: Job) -> None:
    """Let a job wait for nobody any more; it has still to come due, and to join its lane."""
    job.status, job.wake, job.waits_for = "pending", job.run_at, []
    world.say(job, "job:unblocked")


def fail_by(world: World, job: Job, blockers: set[UUID]) -> None:
    """Fail a blocked job by its blockers: its chain closes, and who waits for that is left to admission."""
    job.status, job.failed_by, job.waits_for, job.wake = "failed", blockers, [], world.now
    job.watching, job.let_off = job.watching - blockers, job.let_off - blockers
    world.close(job)
    if world.first(job).is_watched:
        world.first(job).wake = world.now
    world.say(job, "job:failed")


def block_again(world: World, chain: UUID) -> None:
    """Put the jobs that failed by a chain, which is open again, back to blocked, unless another has their key."""
    for job in world.in_order():
        if chain not in job.failed_by:
            continue
        job.failed_by.discard(chain)
        if job.status != "failed" or not world.has_its_key(job):
            job.let_off.add(chain)
            continue
        world.open_again(job)
        job.wake = world.now
        if world.first(job).is_watched:
            world.first(job).wake = world.now
        world.say(job, "job:resumed")
