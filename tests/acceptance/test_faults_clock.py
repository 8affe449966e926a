"""Clocks that are wrong, or jump: PostgreSQL's own decides for everybody, and a jump of that costs no work."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.store.jobs import claiming
from holdfast.store.jobs.claiming import Want
from holdfast.testing import PostgresUnavailable
from holdfast.worker.upkeep import reaper
from tests.acceptance.hall import Hall, messages, rows, until_counts, until_past
from tests.acceptance.jobs_of_tests import LEASE, gated, quick
from tests.acceptance.processes import until as wait_until
from tests.acceptance.scene import APP, ROOT, Scene, WorkerProcess
from tests.support.conditions import until
from tests.support.faults.faketime import ClockedServer, find_library, server_with_a_clock
from tests.support.processes.debian import ProgramUnavailable

# what a busy machine may add to a promised time
NOISE = 20.0


@pytest.fixture
def clocked_server() -> Iterator[ClockedServer]:
    """A PostgreSQL whose clock the test may put forward and back; skipped where libfaketime cannot be had."""
    try:
        with server_with_a_clock() as made:
            yield made
    except (ProgramUnavailable, PostgresUnavailable) as error:
        pytest.skip(f"F-28 is not shown: {error}")


async def claim_as_dead(hf: Holdfast) -> None:
    """Claim what there is for a worker that does not exist, with a lease of a second."""
    claims = await hf.store.run(claiming.admit_and_claim, [Want("lost", "waits", 1000)], 1, "dead", "nonce")
    assert len(claims.jobs) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "jumps", [["-2h"], ["+1d"], ["+1500d", "+0"]], ids=["back", "forward", "for a moment years ahead"]
)
async def test_a_database_whose_clock_jumps_loses_and_doubles_nothing(
    jumps: list[str],
    clocked_server: ClockedServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """F-28, I-18: what runs completes once, what comes later is due as ever, the dead are reaped; and it is told.

    What stood in a lane when the clock was put back is due when that time has come again, or when it is triggered.
    """
    monkeypatch.setattr(reaper, "PERIOD_SECONDS", 0.5)
    hall = Hall(lease=6.0)
    faces = [Holdfast(clocked_server.url, tasks=[hall.tasks], retention=False) for _ in range(2)]
    await faces[0].migrate()
    async with faces[0] as hf, faces[1], hf.worker(poll=0.1, queues=["default"]) as first:
        async with faces[1].worker(poll=0.1, queues=["default"]):
            chains = await hf.start_many([hall.waits().options(lane=f"lane-{n % 2}") for n in range(4)])
            await until(lambda: len(hall.begun) == 2, "the lanes run")
            await until_past(2 * reaper.PERIOD_SECONDS)  # who has not looked at the clock yet, sees no jump
            for jump in jumps:
                told = messages(caplog).count("database_clock_jumped")
                clocked_server.set_clock(jump)
                await until(
                    lambda: messages(caplog).count("database_clock_jumped") > told,  # noqa: B023 - called at once
                    "it is told that the clock has jumped",
                    20,
                )
            hall.gate.set()
            if jumps == ["-2h"]:
                await until_counts(hf, 20, completed=2, pending=2)
                await hf.trigger_many(chains[2:])
            await until_counts(hf, 20, completed=4)
            ran = list(hall.begun)

            late = await hf.start(hall.waits(), delay=0.5)
            await late.result(timeout=10)
            await hf.start(hall.waits(), queue="lost")
            await claim_as_dead(hf)
            lost = "SELECT count(*) FROM holdfast_job WHERE queue = 'lost' AND coalesce(status, '') = 'pending'"

            async def is_reaped() -> bool:
                return await rows(hf, lost) == [(1,)]

            await until(is_reaped, "the job of the dead worker is taken back", 1 + 5 + NOISE)
            assert first.health().trouble_since is None

    completions = "SELECT count(*), count(DISTINCT job) FROM holdfast_event WHERE name = 'job:completed'"
    assert await rows(faces[0], completions) == [(5, 5)]
    assert await rows(faces[0], "SELECT max(crashes) FROM holdfast_job WHERE queue = 'default'") == [(0,)]
    assert sorted(set(ran)) == sorted(ran)
    for face in faces:
        await face.close()


def worker_whose_clock_is_wrong(stage: Scene, library: Path, offset: str) -> WorkerProcess:
    """Start a worker on a machine, as it were, whose clock is wrong by *offset*."""
    log = stage.directory / f"wrong-{offset}.log"
    faked: dict[str, Any] = {"LD_PRELOAD": str(library), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    command = [str(Path(sys.executable).with_name("holdfast")), "worker", APP, "--concurrency", "2", "--poll", "0.2"]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=stream, stderr=stream, env={**os.environ, **stage.environment, **faked}
        )
    stage.workers.append(WorkerProcess(process, log))
    wait_until(lambda: "worker_started" in stage.workers[-1].said, "the worker starts", 30)
    return stage.workers[-1]


@pytest.mark.source("DF-25")
@pytest.mark.long
def test_workers_whose_clocks_are_wrong_by_hours_do_as_the_others_do(stage: Scene) -> None:
    """F-40, I-17: no lease, no backoff and no due time is judged by them."""
    try:
        library = find_library()
    except ProgramUnavailable as error:
        pytest.skip(f"F-40 is not shown: {error}")
    ahead = worker_whose_clock_is_wrong(stage, library, "+3h")
    lost = stage.start(gated(), gated())
    stage.until_running(lost)
    worker_whose_clock_is_wrong(stage, library, "-1d")
    beside = stage.start(gated(gate="other"), gated(gate="other"))
    stage.until_running(beside)

    stage.worker("--concurrency", "10", "--poll", "0.2")
    (delayed,) = stage.start(quick().options(delay=2.0))
    wait_until(lambda: stage.completions().total() == 1, "the delayed job completes", 2 + NOISE)
    ((waited,),) = stage.rows("SELECT started_at - created_at FROM holdfast_job WHERE id = :id", id=str(delayed))
    ahead.kill()
    wait_until(lambda: {str(each) for each in lost} <= again(stage), "the lost jobs run again", LEASE + 5 + NOISE)
    stage.open()
    stage.open("other")
    stage.until_all("completed")

    assert 2000 <= waited < 2000 + 1000 * NOISE
    stage.assert_each_completed_once()
    # a busy machine may cost a short lease; by a wrong clock one would be taken at every look
    assert stage.rows("SELECT max(crashes) FROM holdfast_job") == [(1,)]


def again(stage: Scene) -> set[str]:
    """Name the jobs that began more than once."""
    return {each["job"] for each in stage.notes("begin") if each["attempt"] > 1}
