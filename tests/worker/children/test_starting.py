"""Children that cannot begin: nothing is claimed for them, they are tried again later, and health says so."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.runtime import Process
from holdfast.worker.children import pool
from tests.support.conditions import until
from tests.support.log_lines import lines, name_of
from tests.worker.children import application
from tests.worker.children.watching import PATIENCE, children_of


@pytest.fixture(autouse=True)
def everything_said(caplog: pytest.LogCaptureFixture) -> None:
    """Hear the second and third try, too."""
    caplog.set_level(logging.INFO)


@pytest.mark.long
async def test_an_application_that_cannot_be_imported_is_tried_again_and_its_jobs_wait(
    hf: Holdfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F-48."""
    flaw = tmp_path / "flaw"
    flaw.touch()
    monkeypatch.setenv("HOLDFAST_BROKEN", str(flaw))
    monkeypatch.setattr(pool, "SHORTEST_PAUSE", 0.05)
    async with hf.worker(children=1, app="tests.worker.children.broken:hf") as worker:
        chain = await hf.start(application.own_pid())
        await until(lambda: lines(caplog).count("child_not_started") >= 2, "it was tried twice", 60)
        failing, waiting = children_of(worker), await hf.get_job(chain)
        flaw.unlink()
        await chain.result(timeout=60)
        mended = children_of(worker)

    assert (waiting.status, waiting.attempt) == ("pending", 0)
    assert failing.failing_since is not None
    assert mended.failing_since is None


async def test_a_child_that_finds_another_database_gets_no_job(
    hf: Holdfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE", str(tmp_path / "another.db"))
    async with hf.worker(children=1):
        chain = await hf.start(application.own_pid())
        await until(lambda: "child_not_started" in lines(caplog), "the worker has said so", 60)

    (said,) = [each.__dict__["reason"] for each in caplog.records if name_of(each) == "child_not_started"]
    assert "has another database in the child process" in said
    assert (await hf.get_job(chain)).attempt == 0
    assert not (tmp_path / "another.db").exists()


async def test_the_pause_between_two_tries_grows(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(module: str, descriptors: Sequence[int]) -> Process:
        raise OSError("no process is left")

    monkeypatch.setattr(pool, "SHORTEST_PAUSE", 0.001)
    monkeypatch.setattr(pool, "LONGEST_PAUSE", 0.008)
    worker = hf.worker(children=1)
    spawn: Callable[[str, Sequence[int]], Process] = refuse
    monkeypatch.setattr(worker._core, "runtime", replace(worker._core.runtime, spawn=spawn))
    async with worker:
        await until(lambda: lines(caplog).count("child_not_started") >= 6, "it was tried often", PATIENCE)

    said = [each.__dict__["again_in"] for each in caplog.records if name_of(each) == "child_not_started"]
    assert said[:6] == [0.001, 0.002, 0.004, 0.008, 0.008, 0.008]


async def test_a_child_that_says_nothing_is_killed(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool, "HELLO_SECONDS", 0.01)
    monkeypatch.setattr(pool, "SHORTEST_PAUSE", 30.0)
    async with hf.worker(children=1):
        await until(lambda: "child_not_started" in lines(caplog), "it was given up", PATIENCE)

    (said,) = [each.__dict__["reason"] for each in caplog.records if name_of(each) == "child_not_started"]
    assert said == "died of SIGKILL"
