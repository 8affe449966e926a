"""The media pipeline under kill -9, and with its connections cut, at every boundary of a phase (F-01, F-15, I-40)."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from examples.media_pipeline import transcode
from holdfast.crashpoints import VARIABLE
from tests.acceptance.processes import until
from tests.acceptance.scene import Scene

APP = "examples.media_pipeline:hf"
PHASES = ("download", "encode", "upload")
# what takes part in every run, not only in the long one
ALWAYS = {("sqlite", "phase.after_commit", 1, "kill")}


def boundaries() -> list[object]:
    """Name every (database, point, number of the phase, mode); SQLite has no connection that could be cut."""
    ways = [("sqlite", "kill"), ("postgres", "kill"), ("postgres", "cut")]
    cases = [
        (database, point, number, mode)
        for point in ("phase.before_commit", "phase.after_commit")
        for number in (1, 2, 3)
        for database, mode in ways
    ]
    return [pytest.param(*case, marks=[] if case in ALWAYS else pytest.mark.long) for case in cases]


@pytest.mark.parametrize(("stage_database", "point", "number", "mode"), boundaries(), indirect=["stage_database"])
def test_a_phase_that_was_committed_has_done_its_work_once(stage: Scene, point: str, number: int, mode: str) -> None:
    ledger = stage.directory / "ledger"
    stage.environment["MEDIA_LEDGER"] = str(ledger)
    stage.hf.tasks.add(transcode)
    (film,) = stage.start(transcode(url="https://example.com/film.mov"))

    worker = stage.worker(app=APP, waits=False, **{VARIABLE: f"{point}:{number}:{mode}"})
    until(lambda: not worker.is_alive or stage.are_all("completed"), "the worker dies, or the film is done", 40)
    stored = results(stage)
    if not worker.is_alive:
        assert worker.exit_code() == -signal.SIGKILL
        stage.worker(app=APP, waits=False)
    stage.until_all("completed", 40)

    assert "crash_point_reached" in stage.logs()
    job = stage.face.get_job(film)
    assert job.output == "film.mov: 4 of 4 frames"
    assert [str(phase.status) for phase in job.phases] == ["completed"] * 3
    was_lost = point == "phase.before_commit" and mode == "kill"
    repeated = {PHASES[number - 1]} if was_lost else set()
    assert effects(ledger) == {phase: 2 if phase in repeated else 1 for phase in PHASES}
    assert {name: text for name, text in results(stage).items() if name in stored} == stored
    told = stage.rows("SELECT facts FROM holdfast_event WHERE name = 'job:phase:completed' ORDER BY seq")
    assert [json.loads(facts)["phase"] for (facts,) in told] == list(PHASES)
    stage.assert_each_completed_once()


def results(stage: Scene) -> dict[str, str]:
    """Give the stored texts of the phases that have completed."""
    return dict(stage.rows("SELECT name, result FROM holdfast_phase WHERE status = 'completed'"))


def effects(ledger: Path) -> Counter[str]:
    """Count how often each phase has done its work."""
    return Counter(json.loads(line)["phase"] for line in ledger.read_text().splitlines())
