"""Completing without a worker in the model: look at the current job of a chain, then finish it, or go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from tests.law.moves import sources
from tests.store.rules import phases
from tests.store.rules.admission import admit_named
from tests.store.rules.continuing import Next, follow, is_handed_on, refuse
from tests.store.rules.steering import leave_to_admission, say_freed, take_keys
from tests.store.rules.world import Job, Refused, World


@dataclass(frozen=True)
class Step:
    """What is done to the job in the hand: it is finished with *output*, or followed by *next*."""

    output: str | None = None
    next: Next | None = None


def complete(world: World, job_id: UUID, task: str, steps: Sequence[Step], *, at_once: bool) -> list[str]:
    """Take the current job of a chain in the hand, and do *steps*; tell how each job stood that was in the hand."""
    (job,) = world.named([job_id])
    if job.task != task:
        raise Refused("wrong_task", job.id)
    seen, touched = [job.status], [job.id]
    for step in steps:
        _complete(world, job, step)
        job = world.current(job.id)
        touched.append(job.id)
        seen += [job.status] if step.next is not None else []
    if at_once and steps:
        admit_named(world, touched)
    return seen


def _complete(world: World, job: Job, step: Step) -> None:
    _refuse(world, job, step.next)
    was = job.status
    if was == "failed":
        take_keys(world, [job], reopens=step.next is not None)
    say_freed(world, job, was)
    job.status, job.output, job.is_ready, job.waits_for = "completed", step.output, False, []
    job.worker = job.lease_until = None
    phases.cancel(job)
    if step.next is None:
        _end(world, job)
    else:
        _go_on(world, job, step.next, reopens=was == "failed")


def _refuse(world: World, job: Job, next_: Next | None) -> None:
    if job.status not in sources("complete outside"):
        raise Refused("status_conflict", job.id)
    for mistake in refuse(world, [] if next_ is None else [(job, next_)]).values():
        raise mistake


def _end(world: World, job: Job) -> None:
    world.step_out(job)
    world.close(job)
    leave_to_admission(world, job)
    world.say(job, "job:completed")
    world.say(job, "chain:completed")


def _go_on(world: World, job: Job, next_: Next, *, reopens: bool) -> None:
    hands_on = is_handed_on(world, job, next_)
    job.successor = next_.id
    world.say(job, "job:completed")
    successor = follow(world, job, next_)
    if hands_on and world.is_head(successor):
        successor.wake = world.now
    if reopens:
        world.first(job).closed_as = world.first(job).closed_at = None
        world.unmark(job)
    leave_to_admission(world, job, concerns_chain=reopens)
