"""Handlers that write where they should not, fork and come back, or want a worker: each harms itself at most."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.worker.children.messages import CHUNK, Message
from holdfast.worker.children.process import ChildProcess
from tests.support.conditions import until
from tests.support.log_lines import lines, name_of
from tests.worker.children import hostile
from tests.worker.children.watching import PATIENCE, children_of, gone, has_idle_child, lives, noted_pid


@pytest.fixture
def place() -> Any:
    """The module of such handlers."""
    return hostile


async def test_a_child_that_cannot_be_understood_has_crashed(
    hf: Holdfast, note: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with hf.worker(children=1):
        chain = await hf.start(hostile.write_to_every_socket(note=str(note)))
        assert await chain.result(timeout=PATIENCE) == "not again"

    job = await hf.get_job(chain)
    assert (job.attempt, job.crashes) == (2, 1)
    assert "child_not_understood" in lines(caplog)


async def test_a_child_has_crashed_also_if_all_that_it_said_arrives_at_once(
    hf: Holdfast, note: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the child had begun the job was lost with what it said later, and the job was given back instead."""
    give = ChildProcess.give

    def give_and_wait(child: ChildProcess, jobs: Mapping[int, Message]) -> None:
        give(child, jobs)
        if not note.exists():
            _wait_for_all_it_says(child)

    monkeypatch.setattr(ChildProcess, "give", give_and_wait)
    async with hf.worker(children=1):
        chain = await hf.start(hostile.write_to_every_socket(note=str(note)))
        assert await chain.result(timeout=PATIENCE) == "not again"

    job = await hf.get_job(chain)
    assert (job.attempt, job.crashes) == (2, 1)


def _wait_for_all_it_says(child: ChildProcess) -> None:
    """Keep the event loop from reading before the child has said that it took the job, and how the job ended."""
    deadline, said = time.monotonic() + PATIENCE, b""
    while b"what nobody hears" not in said:
        assert time.monotonic() < deadline, f"the child has said only {said!r}"
        select.select([child._socket], [], [], 1)
        with suppress(BlockingIOError):
            said = child._socket.recv(CHUNK, socket.MSG_PEEK)


@pytest.mark.parametrize("task", [hostile.fork, pytest.param(hostile.fork_in_the_loop, marks=pytest.mark.long)])
async def test_a_copy_of_a_child_that_comes_back_from_its_handler_ends(hf: Holdfast, note: Path, task: Any) -> None:
    """F-11."""
    async with hf.worker(children=1):
        original = await (await hf.start(task(note=str(note)))).result(timeout=PATIENCE)
        await gone(await noted_pid(note))
        assert await (await hf.start(hostile.own_pid())).result(timeout=PATIENCE) == original


async def test_a_child_that_finds_another_file_by_the_same_name_gets_no_job(
    tmp_path: Path, migrated_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copy(migrated_file, tmp_path / "jobs.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("HOLDFAST_DATABASE", "jobs.db")
    monkeypatch.chdir(tmp_path)
    made = Holdfast(tasks=[hostile.tasks])
    monkeypatch.chdir(tmp_path / "elsewhere")

    async with made, made.worker(children=1, app=f"{hostile.__name__}:hf"):
        await until(lambda: "child_not_started" in lines(caplog), "the worker has said so", 60)

    (said,) = [each.__dict__["reason"] for each in caplog.records if name_of(each) == "child_not_started"]
    assert "has another database in the child process" in said


@pytest.mark.long
async def test_children_that_die_as_soon_as_they_are_ready_are_started_later(
    hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    others = set(_children_here())
    async with hf.worker(children=1) as worker:
        first = await (await hf.start(hostile.own_pid())).result(timeout=PATIENCE)
        os.kill(first, signal.SIGKILL)
        await until(lambda: "idle_child_died" in lines(caplog), "the worker knows it", PATIENCE)
        assert children_of(worker).failing_since is None  # it had worked, so the next one may
        await has_idle_child(worker)
        (second,) = set(_children_here()) - others
        os.kill(second, signal.SIGKILL)
        await until(lambda: lines(caplog).count("idle_child_died") == 2, "the worker knows it", PATIENCE)
        assert children_of(worker).failing_since is not None
        await has_idle_child(worker)


def _children_here() -> list[int]:
    """Tell which processes this one has started that are alive; other tests may have some."""
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
    return [int(each) for each in children if lives(int(each))]


async def test_a_child_has_no_worker(hf: Holdfast) -> None:
    async with hf.worker(children=1):
        said = await (await hf.start(hostile.have_a_worker())).result(timeout=PATIENCE)

    assert "cannot run a worker itself" in said
