"""Phases and progress are the same in every runner: a finished phase never runs again, and all is told (Q-09, I-40)."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from holdfast import Misuse
from tests.support.conditions import GLANCE_SECONDS, until
from tests.worker.runners.behaviours import LONGEST_SECONDS, SOON, behaviour, flush_progress, stopped
from tests.worker.runners.notes import gate_of, note, noting_errors, pass_gate, read_notes, wait_until
from tests.worker.runners.stage import Runner

pytestmark = pytest.mark.asyncio(loop_scope="package")


@dataclass
class Film:
    """What the phases hand to each other."""

    name: str
    frames: int = 0


def download(ctx: Any, name: str) -> Film:
    """Get a film."""
    note(ctx, "download")
    ctx.progress(50, "half of it is here")
    return Film(name)


def encode(ctx: Any, film: Film, *, frames: int) -> Film:
    """Make another one of it, but not the first time."""
    note(ctx, "encode")
    ctx.progress(25, "a quarter is done")
    if ctx.job.attempt == 1:
        raise OSError("the disk is full")
    return Film(film.name, frames)


def upload(ctx: Any, film: Film) -> str:
    """Put it somewhere."""
    note(ctx, "upload")
    ctx.progress(80, "nearly there")
    return f"{film.name}: {film.frames} frames"


@behaviour(phases=("download", "encode", "upload"), retry=SOON)
async def transcode(ctx: Any, name: str) -> str:
    """Run three phases, one of which fails at first."""
    film = await ctx.phase("download", download, ctx, name)
    film = await ctx.phase("encode", encode, ctx, film, frames=24)
    said = await ctx.phase("upload", upload, ctx, film)
    note(ctx, ctx.phase_result("encode").frames, [str(each) for each in ctx.phase_results()])
    return str(said)


@pytest.mark.source("PQ-25")
async def test_a_finished_phase_never_runs_again_and_its_result_is_there(runner: Runner) -> None:
    chain = await runner.start(transcode, name="M")

    assert await runner.output(chain) == "M: 24 frames"

    job = await runner.hf.get_job(chain)
    ran = [words[0] for words in runner.notes(chain)[:-1]]
    assert ran == ["download", "encode", "encode", "upload"]
    assert runner.notes(chain)[-1] == [24, ["download", "encode", "upload"]]
    assert [(each.name, each.status, each.result) for each in job.phases] == [
        ("download", "completed", {"name": "M", "frames": 0}),
        ("encode", "completed", {"name": "M", "frames": 24}),
        ("upload", "completed", "M: 24 frames"),
    ]
    assert (job.attempt, job.progress, job.current_phase) == (2, 100, "upload")


@behaviour(phases=("download", "encode", "upload"))
async def report(ctx: Any) -> None:
    """Report from within each phase, and stop there."""
    for phase, percent in (("download", 50), ("encode", 25), ("upload", 80)):
        note(ctx, phase)
        await ctx.phase(phase, _reported, ctx, percent)


def _reported(ctx: Any, percent: int) -> None:
    ctx.progress(percent, f"at {percent}")


async def test_the_progress_of_a_phase_is_part_of_the_jobs(runner: Runner) -> None:
    chain = await runner.start(report)
    await runner.output(chain)

    told = [(each.facts["progress"], each.facts.get("message")) for each in await runner.history(chain, "job:progress")]

    assert [each for each in told if each[1]] == [(17, "at 50"), (42, "at 25"), (93, "at 80")]


WRONG = {
    "undeclared": "task 'RUNNER.misuse' has no phase 'unpack'",
    "out of order": "phase 'encode' comes after phase 'download', which has not finished",
    "no result yet": "phase 'download' has not finished",
}


def nothing() -> None:
    """Do nothing."""


@behaviour(phases=("download", "encode"))
async def misuse(ctx: Any) -> None:
    """Ask for phases that are not to be had, and tell what is said."""
    for act in (_undeclared, _out_of_order, _no_result):
        try:
            await act(ctx)
        except Misuse as error:
            note(ctx, str(error))


async def _undeclared(ctx: Any) -> None:
    await ctx.phase("unpack", nothing)


async def _out_of_order(ctx: Any) -> None:
    await ctx.phase("encode", nothing)


async def _no_result(ctx: Any) -> None:
    ctx.phase_result("download")


async def test_a_phase_that_is_not_to_be_had_is_refused(runner: Runner) -> None:
    ended = await runner.end(misuse)

    said = [words[0] for words in runner.notes(ended)]
    expected = [text.replace("RUNNER", runner.name) for text in WRONG.values()]
    assert [text[: len(part)] for text, part in zip(said, expected, strict=True)] == expected


@behaviour()
async def chatter(ctx: Any) -> None:
    """Report once, and when the test has seen that, very often."""
    ctx.progress(1, "first\x00")
    await pass_gate(ctx)
    for n in range(1000):
        ctx.progress(n / 10, f"step {n}")
    ctx.progress(250, "last")


@pytest.mark.source("PQ-27")
async def test_progress_is_written_at_once_then_seldom_and_last_with_the_end(runner: Runner) -> None:
    chain = await runner.start(chatter)

    async def is_told() -> bool:
        return (await runner.hf.get_job(chain)).progress == 1

    await until(is_told, "the first report is written while the handler runs", LONGEST_SECONDS)
    runner.open_gate(chain)
    await runner.output(chain)

    job = await runner.hf.get_job(chain)
    assert (job.progress, job.message) == (100, "last")
    assert 2 <= len(await runner.history(chain, "job:progress")) <= 10


@behaviour()
async def report_durably(ctx: Any) -> None:
    """Report, and go on when that is durable; again at once, when usually a report would wait."""
    for percent in (10, 20, 30):
        await flush_progress(ctx, percent, f"at {percent}")
    note(ctx, "durable")
    await pass_gate(ctx)


@pytest.mark.source("PQ-27")
async def test_progress_that_is_flushed_is_durable_when_the_handler_goes_on(runner: Runner) -> None:
    chain = await runner.start(report_durably)
    await runner.until_noted(chain, "durable")

    job = await runner.hf.get_job(chain)
    told = [each.facts["progress"] for each in await runner.history(chain, "job:progress")]
    runner.open_gate(chain)
    await runner.output(chain)

    assert (job.status, job.progress, job.message) == ("running", 30, "at 30")
    assert told == [10, 20, 30]


@behaviour()
async def report_in_block(ctx: Any) -> None:
    """Report last inside the block that completes the job."""
    ctx.progress(10, "begun")
    async with ctx.complete():
        ctx.progress(90, "nearly")


async def test_the_last_progress_is_written_with_the_block(runner: Runner) -> None:
    job = await runner.end(report_in_block)

    assert (job.status, job.progress, job.message) == ("completed", 90, "nearly")


@behaviour()
async def leave_a_talker(ctx: Any) -> None:
    """Return, and leave a thread behind that goes on reporting until the test says so."""
    gate, glance = gate_of(ctx), threading.Event()

    def talk() -> None:
        while not gate.exists():
            ctx.progress(99, "of a job that has ended")
            note(ctx, "talks")
            glance.wait(GLANCE_SECONDS)
        note(ctx, "is silent")

    threading.Thread(target=talk, daemon=True).start()


@behaviour()
async def report_beside(ctx: Any, talker: UUID) -> None:
    """Report, and end when the talker has said something since."""
    ctx.progress(10, "mine")
    before = len(read_notes(talker))
    await wait_until(ctx, lambda: len(read_notes(talker)) > before + 3, "the talker goes on")


async def test_what_a_handler_left_behind_reports_is_not_taken_for_another_jobs(runner: Runner) -> None:
    talker = await runner.start(leave_a_talker)
    await runner.output(talker)

    job = await runner.end(report_beside, talker=talker.id)
    runner.open_gate(talker)
    await runner.until_noted(talker, "is silent")

    assert (job.progress, job.message) == (10, "mine")


@behaviour()
async def flush_too_late(ctx: Any) -> None:
    """Flush a report although it is to stop."""
    note(ctx, "listens")
    with suppress(asyncio.CancelledError):
        await stopped(ctx)
    async with noting_errors(ctx):
        await flush_progress(ctx, 50, "too late")


async def test_a_handler_that_is_to_stop_is_told_so_instead_of_waiting_for_its_report(runner: Runner) -> None:
    chain = await runner.start(flush_too_late)
    await runner.until_noted(chain, "listens")

    await runner.hf.cancel(chain)
    job = await runner.ended(chain)

    assert (job.status, runner.notes(chain)[1:]) == ("cancelled", [["raised", "Aborted", "cancelled"]])
