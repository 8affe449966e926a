"""Jobs that wait in a child behind the one that runs there: each hears of everything, and costs nothing until it runs.

The handler that runs may hold Python's lock, so that its child hears nothing: that must keep nobody.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.worker.attempts.aborts import AbortReason
from holdfast.worker.children import pool, remote_attempt
from holdfast.worker.claiming.claim_ahead import ClaimAhead
from holdfast.worker.worker import Worker
from tests.conftest import SCHEMA
from tests.support.conditions import until
from tests.worker.children import application
from tests.worker.children.watching import PATIENCE, ends_as, has_idle_child, lives, noted_pid

BEHIND = 12


@pytest.fixture(params=["sqlite", "postgres"])
def stack(request: pytest.FixtureRequest) -> str:
    """Name the database; by default a test has its turn on one of them (`tests/support/turns.py`)."""
    return str(request.param)


@pytest.fixture
async def hf(
    stack: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Holdfast]:
    """The application on each database, whose worker takes every job for a short one."""
    if stack == "postgres":
        monkeypatch.setenv("HOLDFAST_DATABASE", request.getfixturevalue("empty_url"))
        monkeypatch.setenv("HOLDFAST_SCHEMA_NAME", SCHEMA)
    else:
        shutil.copy(request.getfixturevalue("migrated_file"), tmp_path / "jobs.db")
        monkeypatch.setenv("HOLDFAST_DATABASE", str(tmp_path / "jobs.db"))
    monkeypatch.setattr(ClaimAhead, "most", 100)
    monkeypatch.setattr(pool, "FIND_SECONDS", 3_600.0)
    made = Holdfast(tasks=[application.tasks])
    monkeypatch.setattr(application, "hf", made)
    async with made:
        yield made


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have children killed soon whose handlers do not stop."""
    monkeypatch.setattr(remote_attempt, "STUBBORN_SECONDS", 0.3)
    monkeypatch.setattr(remote_attempt, "KILL_SECONDS", {AbortReason.TIMEOUT: 0.3, AbortReason.SHUTDOWN: 0.3})


def quick() -> Any:
    """Call a task that is done at once."""
    return application.wait_unless_told(note="", gate="")


async def behind(hf: Holdfast, worker: Worker, first: Any, note: Path, count: int = BEHIND) -> tuple[Any, list[Any]]:
    """Start *first*, which runs until it is told otherwise, and *count* others that wait behind it."""
    chain, *others = await hf.start_many([first, *(quick() for _ in range(count))])
    await noted_pid(note)
    await until(lambda: waiting(worker) == count, f"{count} wait behind it", PATIENCE)
    return chain, others


def waiting(worker: Worker) -> int:
    """Tell how many wait for their turn in a child."""
    return 0 if worker._children is None else len(worker._children.waiting)


async def jobs_of(hf: Holdfast, chains: list[Any]) -> list[Any]:
    return [await hf.get_job(chain) for chain in chains]


async def are(hf: Holdfast, chains: list[Any], status: str) -> None:
    """Wait until all of *chains* have come to *status*."""
    for chain in chains:
        await ends_as(hf, chain, status)


def first_of(note: Path, gate: Path) -> Any:
    """Call what waits for the file *gate*."""
    return application.wait_unless_told(note=str(note), gate=str(gate))


def stuck(note: Path, gate: Path) -> Any:
    """Call what holds Python's lock."""
    return application.hold_the_lock_and_be_tried_again(note=str(note), gate=str(gate))


async def test_what_waits_in_a_child_runs_there_in_its_turn(hf: Holdfast, note: Path, gate: Path) -> None:
    async with hf.worker(children=1) as worker:
        chain, others = await behind(hf, worker, first_of(note, gate), note)
        rows = await jobs_of(hf, others)
        running = worker.health().running
        gate.touch()
        pids = {await each.result(timeout=PATIENCE) for each in (chain, *others)}

    assert {(job.status, job.started_at) for job in rows} == {("running", None)}
    assert running == 1
    assert len(pids) == 1
    ended = await jobs_of(hf, [chain, *others])
    assert all(job.started_at is not None and (job.attempt, job.interrupted) == (1, 0) for job in ended)


@pytest.mark.parametrize("first", [first_of, stuck], ids=["it waits", "it holds the lock"])
async def test_a_drain_gives_it_back_at_no_cost_whatever_runs_before_it(
    hf: Holdfast, note: Path, gate: Path, first: Any, short_grace: None
) -> None:
    async with hf.worker(children=1, grace=0.5) as worker:
        chain, others = await behind(hf, worker, first(note, gate), note)
        worker.drain()
        await are(hf, others, "pending")
        assert (await hf.get_job(chain)).status == "running"

    assert {(job.used, job.crashes) for job in await jobs_of(hf, others)} == {(0, 0)}


@pytest.mark.long
async def test_a_cancel_and_a_pause_reach_it_behind_a_handler_that_holds_the_lock(
    hf: Holdfast, note: Path, gate: Path
) -> None:
    async with hf.worker(children=1, grace=0) as worker:
        chain, others = await behind(hf, worker, stuck(note, gate), note)
        pid = int(note.read_text())
        await hf.cancel(others[3])
        await hf.pause(others[5])
        await ends_as(hf, others[3], "cancelled")
        await ends_as(hf, others[5], "paused")
        assert waiting(worker) == BEHIND - 2
        assert lives(pid)
        assert (await hf.get_job(chain)).status == "running"


async def test_a_child_that_dies_is_blamed_on_the_job_that_ran_there_alone(
    hf: Holdfast, note: Path, gate: Path
) -> None:
    async with hf.worker(children=1) as worker:
        chain, others = await behind(hf, worker, first_of(note, gate), note)
        pid = int(note.read_text())
        os.kill(pid, signal.SIGKILL)
        gate.touch()
        pids = {await each.result(timeout=PATIENCE) for each in (chain, *others)}

    assert pid not in pids
    assert (await hf.get_job(chain)).crashes == 1
    assert {(job.crashes, job.attempt, job.interrupted) for job in await jobs_of(hf, others)} == {(0, 1, 0)}


@pytest.mark.long
async def test_what_takes_its_child_down_takes_nothing_else_down(hf: Holdfast, note: Path, gate: Path) -> None:
    async with hf.worker(children=1) as worker:
        chain = await hf.start(first_of(note, gate))
        await noted_pid(note)
        culprit, *others = await hf.start_many([application.take_down(how="exit"), *(quick() for _ in range(BEHIND))])
        await until(lambda: waiting(worker) == BEHIND + 1, "they wait behind the first", PATIENCE)
        gate.touch()
        for each in (chain, *others):
            await each.result(timeout=PATIENCE)
        await ends_as(hf, culprit, "failed")

    assert {(job.crashes, job.attempt, job.interrupted) for job in await jobs_of(hf, others)} == {(0, 1, 0)}
    job = await hf.get_job(culprit)
    assert (job.crashes, job.attempt, job.interrupted) == (3, 3, 0)


@pytest.mark.long
async def test_a_time_out_that_kills_a_child_ends_its_own_job_alone(
    hf: Holdfast, note: Path, short_grace: None
) -> None:
    async with hf.worker(children=1):
        late = await hf.start(application.hold_the_lock_for_too_long(note=str(note)))
        pid = await noted_pid(note)
        others = await hf.start_many([quick() for _ in range(BEHIND)])
        await are(hf, [late], "failed")
        pids = {await each.result(timeout=PATIENCE) for each in others}

    assert pid not in pids
    assert {(job.crashes, job.interrupted) for job in await jobs_of(hf, others)} == {(0, 0)}


@pytest.mark.long
async def test_another_child_gets_its_share_of_what_waits_behind_a_handler_that_holds_the_lock(
    hf: Holdfast, note: Path, gate: Path
) -> None:
    async with hf.worker(children=2, grace=0) as worker:
        chain, *others = await hf.start_many([stuck(note, gate), *(quick() for _ in range(BEHIND))])
        await noted_pid(note)
        for each in others:
            await each.result(timeout=PATIENCE)
        assert (await hf.get_job(chain)).status == "running"
        assert waiting(worker) == 0

    assert {job.attempt for job in await jobs_of(hf, others)} == {1}


@pytest.mark.long
async def test_what_waits_for_too_long_is_given_back(
    hf: Holdfast, note: Path, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "FIND_SECONDS", 0.5)
    async with hf.worker(children=1, grace=0) as worker:
        _, others = await behind(hf, worker, stuck(note, gate), note)
        await are(hf, others, "pending")

    jobs = await jobs_of(hf, others)
    assert {(job.used, job.crashes, job.reason) for job in jobs} == {(0, 0, "no child process came free")}


async def test_what_has_begun_in_its_turn_is_marked_so(hf: Holdfast, note: Path, gate: Path, tmp_path: Path) -> None:
    second, later = tmp_path / "second", tmp_path / "later"
    async with hf.worker(children=1) as worker:
        chains = await hf.start_many([first_of(note, gate), first_of(second, later), quick()])
        await until(lambda: waiting(worker) == 2, "two wait", PATIENCE)
        gate.touch()
        await noted_pid(second)

        async def is_marked() -> bool:
            return (await hf.get_job(chains[1])).started_at is not None

        await until(is_marked, "its row says that it has begun", PATIENCE)
        assert (await hf.get_job(chains[2])).started_at is None
        later.touch()
        for each in chains:
            await each.result(timeout=PATIENCE)


@pytest.mark.parametrize(
    "options",
    [{"child_jobs": 3}, pytest.param({"child_megabytes": 1}, marks=pytest.mark.long)],
    ids=["jobs", "megabytes"],
)
async def test_a_worn_child_leaves_what_waits_there_to_the_next(
    hf: Holdfast, note: Path, gate: Path, options: dict[str, Any]
) -> None:
    most = options.get("child_jobs", 1)
    async with hf.worker(children=1, **options):
        chains = await hf.start_many([quick() for _ in range(2 * most + 1)])
        pids = Counter([await each.result(timeout=60) for each in chains])

    assert sorted(pids.values()) == sorted([most, most, 1])
    assert {job.attempt for job in await jobs_of(hf, chains)} == {1}


async def test_what_must_not_begin_twice_or_is_large_waits_behind_nobody(
    hf: Holdfast, note: Path, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_attempt, "MOST_BEHIND", 1_000)
    async with hf.worker(children=1) as worker:
        chain = await hf.start(first_of(note, gate))
        await noted_pid(note)
        once = await hf.start(application.own_pid())  # it is tried once
        large = await hf.start(application.take_down(how="x", note=str(gate) + "/" * 1_000))
        await until(lambda: waiting(worker) == 1, "the large one is claimed ahead", PATIENCE)
        assert worker._children is not None
        assert [each.job.id for each in worker._children._queue] == [str(large.id)]
        assert (await hf.get_job(once)).status == "pending"
        gate.touch()
        for each in (chain, once, large):
            await each.result(timeout=PATIENCE)


async def test_an_idle_child_does_not_wait_for_the_poll_while_all_slots_are_taken(hf: Holdfast) -> None:
    async with hf.worker(concurrency=1, children=1, poll=3600, grace=0) as worker:
        await has_idle_child(worker)
        blocking = await hf.start_many([application.wait_here() for _ in range(2)])
        await ends_as(hf, blocking[0], "running")
        for _ in range(3):
            chain = await hf.start(application.own_pid())
            assert await chain.result(timeout=PATIENCE) != os.getpid()
        assert [job.started_at is not None for job in await jobs_of(hf, blocking)] == [True, False]


async def test_a_copy_that_comes_back_from_a_handler_takes_nothing_of_what_waits(
    hf: Holdfast, note: Path, gate: Path
) -> None:
    """F-11."""
    async with hf.worker(children=1) as worker:
        chain, others = await behind(hf, worker, application.wait_and_fork(note=str(note), gate=str(gate)), note)
        gate.touch()
        pids = {await each.result(timeout=PATIENCE) for each in (chain, *others)}

    assert pids == {int(note.read_text())}
    assert {(job.attempt, job.crashes) for job in await jobs_of(hf, others)} == {(1, 0)}


async def test_plain_handlers_that_follow_each_other_in_a_thread_have_nothing_from_each_other(
    hf: Holdfast, note: Path, gate: Path
) -> None:
    async with hf.worker(children=1) as worker:
        chain = await hf.start(first_of(note, gate))
        await noted_pid(note)
        others = await hf.start_many([application.say_what_was_said(word=f"{n}") for n in range(BEHIND)])
        await until(lambda: waiting(worker) == BEHIND, "they wait behind the first", PATIENCE)
        gate.touch()
        said = {await each.result(timeout=PATIENCE) for each in others}
        await chain.result(timeout=PATIENCE)

    assert said == {"nothing"}


async def test_plain_handlers_that_follow_each_other_in_a_thread_end_as_they_would_alone(
    hf: Holdfast, note: Path, gate: Path
) -> None:
    ways = ["raise", "return", "fail", "return", "complete", "return", "continue", "return"]
    async with hf.worker(children=1) as worker:
        chain = await hf.start(first_of(note, gate))
        await noted_pid(note)
        others = await hf.start_many([application.raise_or_continue(how=each) for each in ways])
        await until(lambda: waiting(worker) == len(ways), "they wait behind the first", PATIENCE)
        gate.touch()
        for each in (chain, *(others[n] for n in (1, 3, 4, 5, 6, 7))):
            await each.result(timeout=PATIENCE)
        await ends_as(hf, others[2], "failed")
        await ends_as(hf, others[0], "pending")

    raised, *_ = jobs = await jobs_of(hf, others)
    assert raised.error is not None
    assert (raised.error["type"], raised.used) == ("ValueError", 1)
    assert [job.status for job in jobs] == ["pending", "completed", "failed", *["completed"] * 5]


async def test_a_cancel_reaches_a_plain_handler_that_follows_others(
    hf: Holdfast, note: Path, gate: Path, tmp_path: Path
) -> None:
    said, begun = tmp_path / "said", tmp_path / "begun"
    async with hf.worker(children=1) as worker:
        chain = await hf.start(first_of(note, gate))
        await noted_pid(note)
        quick_one, stopped = await hf.start_many(
            [quick(), application.tell_why_it_stops(note=str(begun), said=str(said))]
        )
        await until(lambda: waiting(worker) == 2, "they wait behind the first", PATIENCE)
        gate.touch()
        await noted_pid(begun)
        await hf.cancel(stopped)
        await ends_as(hf, stopped, "cancelled")
        assert said.read_text() == "cancelled"
        for each in (chain, quick_one):
            await each.result(timeout=PATIENCE)
