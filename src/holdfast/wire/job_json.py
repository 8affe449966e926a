"""How jobs are written for those outside: the same object in SSE, webhooks and the HTTP API, by the words of the code.

`JobObject` describes it, once: its fields, their types and their order. What the JSON says of a field differently than
`Job` does, stands with its type. Instants are ISO 8601 in UTC with milliseconds; input, output, results and errors are
JSON values as they are stored, or as a `Redaction` shows them to a reader. A *brief* job lacks its input and output,
and the tracebacks and attributes of its errors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel

from holdfast.models import Event, Job, Phase
from holdfast.times import instant_text
from holdfast.wire.objects import Instant, Json, MaybeInstant, MaybeText, Text, Written, writer_of
from holdfast.wire.redaction import BRIEF_ERROR, REDACTED, Redaction


def _phases(phases: Iterable[Phase]) -> list[dict[str, Any]]:
    return [phase_object(each) for each in phases]


class PhaseObject(BaseModel):
    """A phase of a job."""

    name: str
    status: Text
    progress: int
    message: str | None
    error: Any
    started_at: MaybeInstant
    finished_at: MaybeInstant


class JobObject(BaseModel):
    """A job, by the words of the code; instants are ISO 8601 in UTC."""

    id: Text
    chain_id: Text
    chain_index: int
    parent: MaybeText
    task: str
    queue: str
    lane: str | None
    priority: int
    tags: Annotated[list[str], Written(list)]
    status: Text
    state: Text
    outcome: MaybeText
    run_at: Instant
    scheduled_at: MaybeInstant
    attempt: int
    used: int
    attempts: int | None
    crashes: int
    interrupted: int
    worker: str | None
    reason: str | None
    input: Json
    output: Json
    error: Any
    current_phase: str | None
    progress: int | None
    message: str | None
    phases: Annotated[list[PhaseObject], Written(_phases)]
    open_blockers: int
    webhook_sent: bool | None
    completed_by: str | None
    created_at: Instant
    started_at: MaybeInstant
    finished_at: MaybeInstant
    stale_at: MaybeInstant
    version: int
    state_tag: str


PAYLOADS = ("input", "output")
_write_job, _write_phase = writer_of(JobObject), writer_of(PhaseObject)
_write_without_payloads = writer_of(JobObject, PAYLOADS)


def job_object(job: Job, redaction: Redaction | None = None, *, brief: bool = False) -> dict[str, Any]:
    """Write *job*, as the store has read it: its input and output are still JSON texts."""
    has_payloads = not brief and (redaction is None or redaction.payloads)
    written = (_write_job if has_payloads else _write_without_payloads)(job)
    if redaction is not None:
        if has_payloads:
            for name in PAYLOADS:
                is_readable = written[name] is None or written[name] is not getattr(job, name)
                written[name] = redaction.value(written[name]) if is_readable else REDACTED
        written["reason"], written["message"] = redaction.reason(job.reason), redaction.text(job.message)
    if redaction is not None or brief:
        written["error"] = _shown_error(job.error, redaction, brief=brief)
        for phase in written["phases"]:
            _show_phase(phase, redaction, brief=brief)
    return written


def phase_object(phase: Phase, redaction: Redaction | None = None, *, brief: bool = False) -> dict[str, Any]:
    """Write *phase*; results are not among it: they may be large, and belong to the job's own code."""
    written = _write_phase(phase)
    if redaction is not None or brief:
        _show_phase(written, redaction, brief=brief)
    return written


def _show_phase(written: dict[str, Any], redaction: Redaction | None, *, brief: bool) -> None:
    written["error"] = _shown_error(written["error"], redaction, brief=brief)
    if redaction is not None:
        written["message"] = redaction.text(written["message"])


def _shown_error(error: Any, redaction: Redaction | None, *, brief: bool) -> Any:
    if error is None:
        return None
    if brief and isinstance(error, dict):
        error = {name: each for name, each in error.items() if name not in BRIEF_ERROR}
    return error if redaction is None else redaction.error(error)


def event_object(event: Event, redaction: Redaction | None = None, *, brief: bool = False) -> dict[str, Any]:
    """Write *event* with its job; `job:deleted` has `deletedJobId` alone, for nothing else is left."""
    head: dict[str, Any] = {"event": event.name, "at": instant_text(event.at)}
    if event.deleted_job_id is not None:
        return head | {"deletedJobId": str(event.deleted_job_id)}
    return head | {
        "status": None if event.status is None else str(event.status),
        "version": event.version,
        "attempt": event.attempt,
        "facts": _facts(event, redaction, brief=brief),
        "job": None if event.job is None else job_object(event.job, redaction, brief=brief),
    }


def _facts(event: Event, redaction: Redaction | None, *, brief: bool) -> dict[str, Any]:
    facts: dict[str, Any] = dict(event.facts)
    if brief and (error := facts.get("error")) is not None:
        facts["error"] = _shown_error(error, None, brief=True)
    return facts if redaction is None else redaction.facts(facts)
