"""What tests of children look at: notes that handlers leave, and processes that live or do not."""

from __future__ import annotations

from pathlib import Path

from holdfast import Holdfast
from holdfast.worker.health import ChildrenHealth
from holdfast.worker.worker import Worker
from tests.support.conditions import until

PATIENCE = 30.0
"""How long is waited for what takes a moment; the machine may have other things to do."""


async def noted_pid(note: Path) -> int:
    """Wait for a handler's note, and give the process that it names."""
    await until(lambda: note.exists() and note.read_text() != "", f"a handler has written {note.name}", PATIENCE)
    return int(note.read_text())


async def gone(pid: int) -> None:
    """Wait until a process is dead."""
    await until(lambda: not lives(pid), f"process {pid} is dead", PATIENCE)


def lives(pid: int) -> bool:
    """Tell whether a process is there, and not merely waited for by its parent."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def children_of(worker: Worker) -> ChildrenHealth:
    """Tell how the children of *worker* are."""
    found = worker.health().children
    assert found is not None
    return found


async def has_idle_child(worker: Worker) -> None:
    """Wait until a child of *worker* is ready."""
    await until(lambda: worker.health().children is not None and children_of(worker).idle > 0, "a child is ready", 60)


async def ends_as(hf: Holdfast, chain: object, status: str) -> None:
    """Wait until a job has come to *status*."""

    async def has() -> bool:
        return (await hf.get_job(chain)).status == status  # type: ignore[arg-type]

    await until(has, f"the job is {status}", PATIENCE)
