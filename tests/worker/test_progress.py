"""The order in which those who wait for a report hear of it: a child process asks next what is unwritten."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.runtime import Runtime
from holdfast.store.jobs.claiming import ProgressReport, Token
from holdfast.worker.attempts.progress import Progress
from tests.support.factories import make_job, seq_of
from tests.support.ways import Way
from tests.worker.colours import let_others_run


@pytest.mark.parametrize("way", ["sqlite-async", "postgres-async"], indirect=True)
async def test_a_report_is_told_as_written_before_whoever_waits_for_rest_goes_on(way: Way) -> None:
    progress = Progress(way.hf.store, Runtime())
    job = await make_job(way, "running")
    token = Token(await seq_of(way, job), 1, "nonce-1")
    told: list[str] = []
    progress.listen(token, lambda report: told.append(f"written: {report.message}"))
    progress.take(ProgressReport(token, 50, "half"), False, lambda: False)

    running = asyncio.create_task(progress.run())
    await let_others_run()
    resting = progress.hold(token)
    resting.add_done_callback(lambda _: told.append("rests"))
    await asyncio.wrap_future(resting)
    running.cancel()

    assert told == ["written: half", "rests"]
