"""The law of phases: one after the other, each once, and what has not completed ends with its job."""

from __future__ import annotations

from tests.store.rules.world import Job

NAMES = ("download", "encode", "upload")
PERCENT = (0, 33, 67, 100)


def next_phase(phases: list[str]) -> int | None:
    """Find the first phase that has not completed; None if all have."""
    statuses = phases or ["pending"] * len(NAMES)
    return next((place for place, status in enumerate(statuses) if status != "completed"), None)


def result(attempt: int) -> str:
    """Make what a phase gives that this attempt has completed."""
    return f'"attempt {attempt}"'


def report(job: Job) -> None:
    """Let the one phase of a job that has no others be under way, for it has said how far it is."""
    if not job.phases or job.has_run_phase:
        job.phases, job.has_run_phase = ["running"], True


def cancel(job: Job) -> None:
    """Cancel what has not completed."""
    job.phases = ["completed" if phase == "completed" else "cancelled" for phase in job.phases]


def end(job: Job, how: str) -> None:
    """Move the phases with a run that has ended."""
    if how in ("retry", "fail", "poison"):
        job.phases = ["failed" if phase == "running" else phase for phase in job.phases]
    elif how == "complete" and job.has_run_phase:
        job.phases = ["completed"]
    elif how in ("complete", "cancel"):
        cancel(job)
