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
    runtime = Runtime()
    progress = Progress(way.hf.store, runtime)
    job = await make_job(way, "running")
    token = Token(await seq_of(way, job), 1, "nonce-1")
    told: list[str] = []
    tell = progress.teller(token, lambda report: told.append(f"written: {report.message}"))
    tell(ProgressReport(token, 50, "half"), False)

    writing = asyncio.create_task(progress._write(runtime.monotonic()))
    await let_others_run()
    progress.hold(token).add_done_callback(lambda _: told.append("rests"))
    await writing

    assert told == ["written: half", "rests"]
