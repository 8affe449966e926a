"""The media pipeline, and whatever may happen to its worker at every boundary of a phase (F-01, F-03, F-15, I-40)."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from examples.media_pipeline import transcode
from tests.acceptance.crash_cases import PHASED, cases, places
from tests.acceptance.play import REACHED, let_leases_be_over, rob, trapped
from tests.acceptance.processes import until
from tests.acceptance.scene import Scene
from tests.support.processes.lines import whole_lines

APP = "examples.media_pipeline:hf"
PHASES = ("download", "encode", "upload")
# what takes part in every run, not only in the long one
ALWAYS = {("sqlite", "phases.complete.after_commit", 1, "kill")}
# what runs once more, for its end was not committed
REPEATED = {
    ("sqlite", "phases.complete.before_commit", "kill"),
    ("postgres", "phases.complete.before_commit", "kill"),
    ("sqlite", "phases.complete.before_commit", "raise"),
    ("postgres", "phases.complete.before_commit", "raise"),
    ("postgres", "phases.complete.before_commit", "stop"),
}
CASES = [
    (database, point, number, mode)
    for database, point, mode in cases(PHASED)
    for number in ((1, 2, 3) if point.startswith("phases.complete.") and mode in ("kill", "cut") else (2,))
]
"""Database, point, number of the phase, mode."""


@pytest.mark.parametrize(
    ("stage_database", "point", "number", "mode"), places(CASES, ALWAYS), indirect=["stage_database"]
)
def test_a_phase_that_was_committed_has_done_its_work_once(stage: Scene, point: str, number: int, mode: str) -> None:
    ledger = stage.directory / "ledger"
    stage.environment["MEDIA_LEDGER"] = str(ledger)
    stage.hf.tasks.add(transcode)
    (film,) = stage.start(transcode(url="https://example.com/film.mov"))

    worker = stage.worker(app=APP, waits=False, **trapped(f"{point}:{number}:{mode}"))
    until(
        lambda: not worker.is_alive or worker.is_stopped or stage.are_all("completed"),
        "the worker dies, or stands still, or the film is done",
        60,
    )
    stored = results(stage)
    if not worker.is_alive:
        assert (worker.exit_code(), mode) == (-signal.SIGKILL, "kill")
        let_leases_be_over(stage)
        stage.worker(app=APP, waits=False)
    elif worker.is_stopped:
        rob(worker, stage, app=APP)
    stage.until_all("completed", 60)

    assert REACHED in stage.logs()
    job = stage.face.get_job(film)
    assert job.output == "film.mov: 4 of 4 frames"
    assert [str(phase.status) for phase in job.phases] == ["completed"] * 3
    database = stage.hf.store.database
    repeated = {PHASES[number - 1]} if (database, point, mode) in REPEATED else set()
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
    return Counter(json.loads(line)["phase"] for line in whole_lines(ledger))
