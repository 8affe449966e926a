"""Going on in the model: the job that follows one which completes, and what it has from that one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from holdfast.models import BlockerPolicy
from tests.store.rules.admission import in_a_ring
from tests.store.rules.world import MINUTE, Job, Refused, World

INHERITED = "inherited"
"""The lane of what follows, unless one is chosen for it, or none."""


@dataclass(frozen=True)
class Next:
    """What follows, as a handler writes it; of queue, priority and tags None is inherited; *delay* is milliseconds."""

    id: UUID
    task: str
    lane: str | None = INHERITED
    queue: str | None = None
    priority: int | None = None
    tags: tuple[str, ...] | None = None
    delay: int = 0
    paused: bool = False
    blockers: tuple[UUID, ...] = ()
    on_blocker_failure: BlockerPolicy = "fail"
    text: str = ""

    @property
    def waits(self) -> bool:
        """Tell whether it cannot run at once."""
        return self.paused or bool(self.blockers) or self.delay > 0


def refuse(world: World, going_on: Sequence[tuple[Job, Next]]) -> dict[Job, Refused]:
    """Say which jobs cannot go on so: a blocker is not there, or the chain would wait for itself."""
    missing = {job: [each for each in next_.blockers if each not in world.jobs] for job, next_ in going_on}
    mistakes = {job: Refused("chain_not_found", each[0]) for job, each in missing.items() if each}
    rest = {job: _chains(world, next_) for job, next_ in going_on if job not in mistakes}
    return mistakes | {job: Refused("blocker_cycle", job.chain) for job in in_a_ring(world, rest)}


def _chains(world: World, next_: Next) -> set[UUID]:
    return {world.jobs[each].chain for each in next_.blockers}


def is_handed_on(world: World, job: Job, next_: Next) -> bool:
    """Tell whether what follows takes the place of a job in its lane."""
    return world.has_place(job) and next_.lane in (INHERITED, job.lane) and not next_.waits


def follow(world: World, job: Job, next_: Next) -> Job:
    """Insert what follows a job that has just completed: in its place, if that is handed on, or as an arrival."""
    hands_on = is_handed_on(world, job, next_)
    successor = world.jobs[next_.id] = _successor(world, job, next_)
    job.successor = successor.id
    if hands_on:
        _take_place(world, job, successor)
    else:
        world.step_out(job)
        _arrive(world, successor)
    world.say(successor, "job:enqueued")
    return successor


def _successor(world: World, job: Job, next_: Next) -> Job:
    world.count += 1
    return Job(
        id=next_.id,
        number=world.count,
        task=next_.task,
        lane=job.lane if next_.lane == INHERITED else next_.lane,
        priority=job.priority if next_.priority is None else next_.priority,
        input=next_.text,
        status="paused" if next_.paused else "blocked" if next_.blockers else "pending",
        run_at=world.now + next_.delay,
        chain=job.chain,
        queue=job.queue if next_.queue is None else next_.queue,
        index=job.index + 1,
        tags=job.tags if next_.tags is None else next_.tags,
        blockers=tuple(world.jobs[each].chain for each in next_.blockers),
        on_blocker_failure=next_.on_blocker_failure,
    )


def _take_place(world: World, job: Job, successor: Job) -> None:
    lane = world.lanes[job.lane or ""]
    lane.line[lane.line.index(job)] = successor
    lane.head = successor if lane.head is job else lane.head
    successor.order = world.now - MINUTE * successor.priority


def _arrive(world: World, job: Job) -> None:
    if job.status == "blocked":
        job.wake = world.now
    elif job.status == "pending" and (job.lane is not None or job.run_at > world.now):
        job.wake = job.run_at
    elif job.status == "pending":
        world.make_ready(job)
