"""A real worker on a disk that fills up: `unshare --mount python -m tests.disk.small_disk DISK DIRECTORY`.

The disk is mounted at DISK, for nobody else to see; what the worker writes down and logs goes to DIRECTORY. It says in
JSON what became of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.errors import Unavailable
from tests.acceptance.jobs_of_tests import gated, quick
from tests.acceptance.processes import until
from tests.acceptance.scene import Scene, scene
from tests.store.notes import is_sound

SIZE = "6m"
MOST_STARTS = 20_000


def fill(filler: Path) -> None:
    """Leave no room."""
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def start_until_refused(stage: Scene) -> tuple[int, str]:
    """Start jobs until that is refused; tell how many there were, and why."""
    for number in range(MOST_STARTS):
        try:
            stage.start(quick(n=number))
        except Unavailable as error:
            return number, str(error)
    return MOST_STARTS, "never"


def run(stage: Scene, filler: Path) -> dict[str, Any]:
    """Fill the disk while jobs run, and make room again."""
    worker = stage.worker("--poll", "0.1")
    early = stage.start(*[gated() for _ in range(3)])
    stage.until_running(early)

    fill(filler)
    started, refused = start_until_refused(stage)
    stage.open()
    until(lambda: "worker_store_trouble" in worker.said, "the worker cannot write either")
    filler.unlink()
    stage.until_all("completed")

    stage.assert_each_completed_once()
    return {
        "started": started + len(early),
        "refused": refused,
        "completed": stage.statuses()["completed"],
        "is_alive": worker.is_alive,
        "is_sound": stage.hf.store.read_sync(is_sound),
    }


def main(disk: Path, directory: Path) -> None:
    """Mount the disk, and say what became of the worker on it."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", disk], check=True)
    with scene(str(disk / "jobs.db"), directory) as stage:
        print(json.dumps(run(stage, disk / "filler")))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
