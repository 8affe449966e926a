"""Scenes of chains: continuing, blocks, completing without a worker; and two of claiming and reaping."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from holdfast.store.jobs import claiming, steering
from holdfast.tasks.calls import Call
from holdfast.worker.attempts.context import Context
from tests.law.changes import BY_HAND
from tests.simulation.handlers import Fate, booking, steady
from tests.simulation.process import Process
from tests.simulation.scenes import WELL, Stage, scene
from tests.simulation.violations import Violation
from tests.simulation.world import PERIOD_SECONDS, POLL_SECONDS

LEASE_OF_BOOKING = 9


def go_on(ctx: Context) -> Call[int]:
    """Continue with a plain job."""
    return steady(n=ctx.job.chain_index + 1, after=ctx.job.attempt)


def go_on_with_booking(ctx: Context) -> Call[int]:
    """Continue with a job that completes in a block."""
    return booking(n=ctx.job.chain_index + 1, after=ctx.job.attempt)


ON, BOOK_ON = Fate("well", 0.2, then=go_on), Fate("well", 0.2, then=go_on_with_booking)
BOOKED = Fate("well", 4, held=0.0)


def begin(stage: Stage, call: Any, *fates: Fate, **options: Any) -> tuple[Process, UUID]:
    """Have one process run a job, and learn nothing of what others do to it."""
    (process,) = stage.give_birth(1)
    job = stage.start(call, *fates, **options)
    stage.wait_until(lambda: stage.runs(job), "the job runs", 10)
    process.denied |= {claiming.renew, claiming.claim_states}
    return process, job


@scene
def a_chain_goes_on_in_its_lane(stage: Stage) -> None:
    """I-28, I-36: step by step, by simple handlers and by blocks, and before those who came later."""
    stage.give_birth(2)
    first = stage.start(steady(n=1), Fate("well", 2, then=go_on), BOOK_ON, BOOKED, lane="a")
    stage.wait_until(lambda: stage.runs(first), "the first step runs", 10)
    later = stage.start(steady(n=9), WELL, lane="a")
    stage.wait_for_end("who came later completes", later)
    if stage.steps(first) != ["completed"] * 3:
        raise Violation(f"I-28: who came later has run, and the chain before it is {stage.steps(first)}")


@scene
def a_job_waits_for_a_chain_of_several_steps(stage: Stage) -> None:
    """I-38: it is let go once, by the end of the last step, whatever the first ones came to."""
    stage.give_birth(3)
    chain = stage.start(steady(n=1), ON, BOOK_ON, Fate("error", 0.1), Fate("well", 1, held=0.0))
    other = stage.start(steady(n=2), Fate("well", 3))
    waiting = stage.start(steady(n=3), WELL, blockers=[chain, other])
    stage.wait_for_end("who waited for both runs", waiting)
    unblocked = (
        "SELECT count(*) FROM holdfast_event JOIN holdfast_job ON holdfast_job.seq = job WHERE id = ? AND name = ?"
    )
    ((times,),) = stage.world.checker.ask(unblocked, str(waiting), "job:unblocked")
    if stage.steps(chain) != ["completed"] * 3 or times != 1:
        raise Violation(f"I-38: it was let go {times} times, and the chain is {stage.steps(chain)}")


@scene
def a_continuation_waits_for_others(stage: Stage) -> None:
    """I-38: blockers that were given by a handler hold its chain up, and only its chain."""
    stage.give_birth(2)
    blocker = stage.start(steady(n=1), Fate("well", 5))
    stage.wait_until(lambda: stage.runs(blocker), "the blocker runs", 10)

    def wait(ctx: Context) -> Call[int]:
        return go_on(ctx).options(blockers=[blocker])

    chain = stage.start(steady(n=2), Fate("well", 0.2, then=wait), WELL, lane="a")
    beside = stage.start(steady(n=3), WELL, lane="a")
    stage.wait_for_end("the lane goes on meanwhile", beside, most=4)
    if stage.steps(chain) != ["completed", "blocked"]:
        raise Violation(f"I-38: the blocker runs, and the chain that waits for it is {stage.steps(chain)}")
    stage.wait_for_end("the blocker completes", blocker)
    stage.wait_until(lambda: stage.steps(chain) == ["completed"] * 2, "the chain goes on", 10)


@scene
def a_job_is_taken_before_its_block_opens(stage: Stage) -> None:
    """I-13, I-66: the store's clock jumps, somebody takes the job, and who still runs it is not told."""
    _, job = begin(stage, booking(n=1), BOOKED, Fate("well", 12, held=0.0))
    stage.world.step_clock(60_000)
    stage.give_birth(1)  # it has no expectations, and so takes what is over
    stage.wait_until(lambda: stage.runs(job, 2), "somebody else runs it", 3)
    stage.wait_for_end("the second attempt completes it", job)


@scene
def a_job_is_completed_before_its_block_opens(stage: Stage) -> None:
    """I-37: whoever commits first has completed it; who still runs it is not told."""
    _, job = begin(stage, booking(n=1), BOOKED)
    stage.ask(stage.world.people.hf.complete(booking, job, BY_HAND, by="operator"))
    stage.wait_until(lambda: not stage.world.runs, "the handler ends", 10)
    if not stage.world.reached["block refused: already_completed"]:
        raise Violation("I-37: the block was not told that its job is completed")


@scene
def a_job_is_to_be_cancelled_before_its_block_opens(stage: Stage) -> None:
    """I-32: a request that was accepted comes first; who still runs the job is not told."""
    _, job = begin(stage, booking(n=1), BOOKED)
    stage.steer(steering.cancel, job)
    stage.wait_until(lambda: stage.status(job) == "cancelled", "the job is cancelled", 30)


@scene
def a_process_dies_in_its_block(stage: Stage) -> None:
    """I-66: nothing of the block remains, and another attempt completes the job."""
    stage.give_birth(1, 1)
    job = stage.start(booking(n=1), Fate("well", 1, held=0.5, mishap="crash"), Fate("well", 1, held=0.5))
    stage.wait_for_end("another attempt completes it", job)


@scene
def a_block_raises_after_it_has_written(stage: Stage) -> None:
    """I-66: what it wrote is rolled back, and the next attempt begins anew."""
    stage.give_birth(1)
    job = stage.start(booking(n=1), Fate("well", 0.1, held=0.1, mishap="error"), Fate("well", 0.1, held=0.0))
    stage.wait_for_end("the next attempt completes it", job)


@scene
def a_block_whose_answer_is_lost_is_read_back(stage: Stage) -> None:
    """I-55: the handler hears that it was committed, for it was."""
    stage.give_birth(1)
    job = stage.start(booking(n=1), Fate("well", 2, block="complete", held=0.5))
    stage.wait_until(lambda: stage.world.disk.holder is not None and stage.runs(job), "the block is open", 10)
    stage.wait(0.2)
    stage.world.disk.weather.lost_answers = 1.0
    stage.wait_until(lambda: stage.status(job) == "completed", "it commits", 10)
    stage.world.disk.weather.lost_answers = 0.0
    stage.wait_until(lambda: not stage.world.runs, "the handler ends", 10)
    if not stage.world.reached["block committed"]:
        raise Violation("I-55: a block was committed, and its handler has not heard of it")


@scene
def people_complete_several_steps(stage: Stage) -> None:
    """I-36, I-37: in one commit, beside the worker that runs the first of them; what they leave, a worker runs."""
    stage.give_birth(1)
    job = stage.start(steady(n=1), Fate("well", 30), WELL, lane="a")
    waiting = stage.start(steady(n=2), WELL, blockers=[job])
    stage.wait_until(lambda: stage.runs(job), "it runs", 10)

    async def complete() -> None:
        async with stage.world.people.hf.completing(steady, job, by="operator") as first:
            second = await first.continue_with(steady(n=2, after=BY_HAND))
            await second.continue_with(steady(n=3, after=BY_HAND))

    stage.ask(complete())
    stage.wait_for_end("a worker runs the last step, and who waited for it", waiting)
    if stage.steps(job) != ["completed"] * 3:
        raise Violation(f"I-36: the chain is {stage.steps(job)}")


@scene
def what_is_urgent_sorts_below_the_floor(stage: Stage) -> None:
    """I-72: as long as there is more than the slots can take, what sorts before it is found within a second."""
    for n in range(60):
        stage.start(steady(n=n), Fate("well", 0.3))
    stage.give_birth(1)
    stage.wait(4)
    urgent = stage.start(steady(n=99), WELL, priority=100)
    stage.wait_until(lambda: stage.runs(urgent), "I-72: the urgent job runs", 2)


@scene
def connections_are_replaced_every_second(stage: Stage) -> None:
    """I-22: that is no outage, and who stands still loses its job in lease and period all the same."""
    (frozen,) = stage.give_birth(1)
    job = stage.start(booking(n=1), Fate("well", 30), Fate("well", 0.1, held=0.0))
    stage.wait_until(lambda: stage.runs(job), "it runs", 10)
    (reaper,) = stage.give_birth(1)
    stage.wait(POLL_SECONDS)
    frozen.freeze(600)
    writer = reaper.store._state.writer
    for _ in range(round(LEASE_OF_BOOKING + PERIOD_SECONDS) + 2):
        if writer._block is None and not writer._thread_lock.locked():  # nobody takes away a connection that is in use
            writer.disconnect()
        stage.wait(1)
    if not stage.runs(job, 2):
        raise Violation(f"I-22: nobody took the job over within {LEASE_OF_BOOKING} s and a round")
