"""A task of a newer release: the worker has it, its children do not."""

from __future__ import annotations

from holdfast import Holdfast, Tasks

tasks = Tasks()
hf: Holdfast | None = None


@tasks.task(run_in="process")
def unknown_there() -> None:
    """Do nothing."""
