"""Two releases on one database: the next one's step is taken under load, and this one goes on and starts anew on it."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from holdfast.database import migrations
from holdfast.database.migrations import MigrationStep, code_number
from tests.acceptance.jobs_of_tests import TASKS, gated, goes_on, in_blocks, lane_step, quick
from tests.acceptance.processes import until
from tests.acceptance.scene import Scene

on_both = pytest.mark.parametrize("stage_database", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def next_step(stage: Scene, monkeypatch: pytest.MonkeyPatch) -> MigrationStep:
    """A step that the release after this one might have, known to this process and to no worker."""
    database = stage.hf.store.database
    number = code_number(database) + 1
    table = '"holdfast_job"' if database == "sqlite" else "holdfast_job"  # SQLite wants no schema in front of it there
    statements = (
        "ALTER TABLE holdfast_job ADD COLUMN of_next_release bigint NOT NULL DEFAULT 0",
        f"CREATE INDEX holdfast_job_of_next_release ON {table} (of_next_release, seq)",
        "ALTER TABLE holdfast_event ADD COLUMN of_next_release text",
    )
    step = MigrationStep(number, f"{number:04}_next_release", number - 1, statements)
    known = [*migrations.steps(database), step]
    monkeypatch.setattr(migrations, "steps", lambda _: known)
    return step


@pytest.mark.long
@on_both
def test_a_migration_under_load_disturbs_no_worker_of_the_release_before(
    stage: Scene, stage_database: tuple[str, dict[str, str]], next_step: MigrationStep
) -> None:
    """F-50, F-39, I-74: those that work go on, and one that is started anew works too."""
    database, settings = stage_database
    old = stage.worker("--concurrency", "5", "--poll", "0.2")
    stage.until_running(stage.start(gated(), gated()))
    for number in range(4):
        calls = [lane_step().options(lane=f"{number}-{n % 5}") for n in range(40)]
        stage.start(*calls, *[quick(n=n) for n in range(20)], *[in_blocks() for _ in range(10)], goes_on())
    until(lambda: stage.completions().total() > 20, "the load runs")

    newer = Holdfast(database, tasks=[TASKS], **settings)  # type: ignore[arg-type]
    taken = newer.sync.migrate()
    under_load = stage.statuses()
    newer.sync.start(quick(n=1))
    newer.sync.close()
    again = stage.worker("--concurrency", "5", "--poll", "0.2")
    stage.start(*[quick(n=n) for n in range(20)], in_blocks(), goes_on())
    stage.open()
    stage.until_all("completed", 60)

    assert taken == [next_step.name]
    assert under_load["running"] >= 2
    assert old.is_alive
    assert again.is_alive
    stage.assert_each_completed_once()
    assert stage.rows("SELECT max(used), max(crashes), count(error) FROM holdfast_job") == [(1, 0, 0)]
    assert stage.rows("SELECT DISTINCT of_next_release FROM holdfast_job") == [(0,)]
