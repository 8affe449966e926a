"""F-36: files of the database are removed, replaced or made read-only while a worker runs: it says so, then goes on.

That nothing is written into files that nobody will find is tested with the faults of `tests/acceptance`; here it is the
renewal of leases that notices, and the modes of files.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest

from tests.acceptance.hall import Hall, NewHoldfast, until_counts
from tests.disk.running import ROOT
from tests.support.conditions import until
from tests.support.faults.taken_files import take_away
from tests.support.log_lines import name_of
from tests.support.processes import forked

LEASE = 1.5
TAKEN = [("", "replaced"), ("-shm", "removed"), ("", "removed"), ("-wal", "removed"), ("-wal", "replaced")]
ALWAYS = {("", "replaced"), ("-shm", "removed")}


def reasons(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    """Give the reasons that were logged with *event*."""
    return [each.reason for each in caplog.records if name_of(each) == event]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "what"), [pytest.param(*each, marks=[] if each in ALWAYS else pytest.mark.long) for each in TAKEN]
)
async def test_a_renewal_notices_that_a_file_is_another_and_all_goes_on_when_it_is_back(
    name: str, what: str, new_holdfast: NewHoldfast, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    hall = Hall(LEASE)
    hf = new_holdfast("sqlite", tasks=[hall.tasks])
    file = tmp_path / f"jobs.db{name}"
    async with hf, hf.worker(poll=0.1):
        chain = await hf.start(hall.waits())
        await until(lambda: hall.begun == [chain.id], "the handler runs")
        take_away(hf.store, file, tmp_path / "moved", replace=what == "replaced")
        await until(lambda: bool(reasons(caplog, "leases_not_renewed")), "the lease cannot be renewed")

        (tmp_path / "moved").replace(file)
        hall.gate.set()
        await until_counts(hf, completed=1)

    assert f"{file.name} was removed or replaced while in use" in reasons(caplog, "leases_not_renewed")[0]


@pytest.mark.parametrize(
    ("place", "mode", "reason"),
    [
        pytest.param("jobs.db", "400", "may not write to"),
        pytest.param("jobs.db", "000", "may not write to", marks=pytest.mark.long),
        pytest.param(".", "000", "cannot reach", marks=pytest.mark.long),
    ],
)
def test_a_worker_that_may_not_write_for_a_while_blames_no_job_and_leaves_nothing_unwritable(
    place: str, mode: str, reason: str, tmp_path: Path
) -> None:
    """SQLite opened such a file to read, and made a -shm that could not be written when the file could be again."""
    directory = tmp_path / "private"
    directory.mkdir()
    words = [str(directory / "jobs.db"), str(directory / place), mode]

    ran = forked.run(
        [sys.executable, "-m", "tests.disk.read_only", *words], cwd=ROOT, capture_output=True, text=True, timeout=100
    )

    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["refused"].startswith("Unavailable: ")
    assert reason in found["refused"]
    assert found["results"] == [1, 2, 3]
    assert {each.name for each in directory.iterdir()} == {"jobs.db", "jobs.db-holdfast-lock"}
