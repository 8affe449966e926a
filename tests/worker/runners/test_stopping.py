"""A handler that is to stop learns it, and why, in every runner; what becomes of its job is the same (Q-09)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast
from tests.worker.runners.behaviours import behaviour, stopped
from tests.worker.runners.notes import note
from tests.worker.runners.stage import Runner, until_ready

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def listen(ctx: Any) -> None:
    """Work until told to stop, and tell why."""
    note(ctx, "listens")
    try:
        await stopped(ctx)
    finally:
        note(ctx, ctx.abort_reason)
    ctx.raise_if_aborted()


@behaviour()
async def patient(ctx: Any) -> str:
    """Stop in the first attempt when told to, and finish in the second."""
    if ctx.job.attempt == 1:
        await listen(ctx)
    return f"attempt {ctx.job.attempt}"


@pytest.mark.source("PQ-17", "JC-110")
async def test_a_cancel_is_told_and_the_job_is_cancelled(runner: Runner) -> None:
    chain = await runner.start(patient)
    await runner.until_noted(chain, "listens")

    answer = await runner.hf.cancel(chain)
    job = await runner.ended(chain)

    assert (answer, job.status, job.attempt) == ("requested", "cancelled", 1)
    assert runner.notes(chain) == [["listens"], ["cancelled"]]


@pytest.mark.source("TQ-19")
async def test_a_pause_is_told_and_a_resumed_job_goes_on(runner: Runner) -> None:
    chain = await runner.start(patient)
    await runner.until_noted(chain, "listens")

    await runner.hf.pause(chain)
    await runner.until_state(chain, "paused")
    await runner.hf.resume(chain)

    assert await runner.output(chain) == "attempt 2"
    assert runner.notes(chain) == [["listens"], ["paused"]]


@behaviour(timeout=0.1)
async def slow(ctx: Any) -> None:
    """Work longer than it may."""
    await listen(ctx)


@pytest.mark.source("JC-25")
async def test_a_time_out_is_told_and_in_the_history(runner: Runner) -> None:
    job = await runner.end(slow)

    assert (job.status, job.error["type"], job.error["message"]) == ("failed", "TimeoutError", "not done within 0.1 s")
    assert runner.notes(job) == [["listens"], ["timeout"]]
    assert job.crashes == 0


@pytest.mark.source("JC-26")
async def test_a_job_that_was_completed_elsewhere_is_let_go(runner: Runner) -> None:
    """I-37."""
    chain = await runner.start(patient)
    await runner.until_noted(chain, "listens")

    await runner.hf.complete(patient.on(runner.name), chain, output="by hand")
    await runner.until_noted(chain, "already_completed")

    assert await runner.output(chain) == "by hand"


@pytest.mark.source("PQ-61")
@pytest.mark.parametrize(
    ("hf", "child"),
    [
        ("sqlite", "child-plain"),
        ("postgres", "child-async"),
        pytest.param("sqlite", "child-async", marks=pytest.mark.long),
        pytest.param("postgres", "child-plain", marks=pytest.mark.long),
    ],
    indirect=["hf"],
    scope="package",
)
async def test_what_a_shutdown_interrupts_is_given_back_with_its_attempt(hf: Holdfast, child: str) -> None:
    """One worker of its own for three runners: to begin and to end one takes longer than all the rest."""
    runners = [Runner(hf, name) for name in ("loop", "thread", child)]
    async with hf.worker(queues=["ending"], grace=0, children=1) as worker:
        await until_ready(worker)
        chains = [await hf.start(each.call(patient), queue="ending") for each in runners]
        for each, chain in zip(runners, chains, strict=True):
            await each.until_noted(chain, "listens")

    jobs = [await hf.get_job(chain) for chain in chains]
    assert [(job.status, job.used, job.attempt, job.interrupted) for job in jobs] == [("pending", 0, 1, 1)] * 3
    assert [runners[0].notes(chain) for chain in chains] == [[["listens"], ["shutdown"]]] * 3
