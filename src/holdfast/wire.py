"""How jobs are written for those outside: the same object in SSE, webhooks and the HTTP API, by the words of the code.

Instants are ISO 8601 in UTC with milliseconds; input, output, results and errors are JSON values as they are stored.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from holdfast.models import Event, Job, Phase


def job_object(job: Job) -> dict[str, Any]:
    """Write *job*, as the store has read it: its input and output are still JSON texts."""
    return {
        "id": str(job.id),
        "chain_id": str(job.chain_id),
        "chain_index": job.chain_index,
        "task": job.task,
        "queue": job.queue,
        "lane": job.lane,
        "priority": job.priority,
        "tags": list(job.tags),
        "status": str(job.status),
        "state": str(job.state),
        "outcome": None if job.outcome is None else str(job.outcome),
        "run_at": instant_text(job.run_at),
        "attempt": job.attempt,
        "used": job.used,
        "crashes": job.crashes,
        "interrupted": job.interrupted,
        "worker": job.worker,
        "reason": job.reason,
        "input": json.loads(job.input),
        "output": None if job.output is None else json.loads(job.output),
        "error": job.error,
        "current_phase": job.current_phase,
        "progress": job.progress,
        "message": job.message,
        "phases": [phase_object(each) for each in job.phases],
        "open_blockers": job.open_blockers,
        "webhook_sent": job.webhook_sent,
        "completed_by": job.completed_by,
        "created_at": instant_text(job.created_at),
        "started_at": instant_text(job.started_at),
        "finished_at": instant_text(job.finished_at),
        "stale_at": instant_text(job.stale_at),
        "version": job.version,
    }


def event_object(event: Event) -> dict[str, Any]:
    """Write *event* with its job; `job:deleted` has `deletedJobId` alone, for nothing else is left."""
    told: dict[str, Any] = {"event": event.name, "at": instant_text(event.at)}
    if event.deleted_job_id is not None:
        return told | {"deletedJobId": str(event.deleted_job_id)}
    return told | {
        "status": None if event.status is None else str(event.status),
        "version": event.version,
        "attempt": event.attempt,
        "facts": dict(event.facts),
        "job": None if event.job is None else job_object(event.job),
    }


def phase_object(phase: Phase) -> dict[str, Any]:
    """Write *phase*; results are not among it: they may be large, and belong to the job's own code."""
    return {
        "name": phase.name,
        "status": str(phase.status),
        "progress": phase.progress,
        "message": phase.message,
        "error": phase.error,
        "started_at": instant_text(phase.started_at),
        "finished_at": instant_text(phase.finished_at),
    }


def instant_text(instant: datetime | None) -> str | None:
    """Write an instant, or None."""
    return None if instant is None else instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
