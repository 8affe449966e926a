"""How jobs are written for those outside: the same object in SSE, webhooks and the HTTP API, by the words of the code.

`JobObject` describes it, once: its fields, their types and their order. What the JSON says of a field differently than
`Job` does, stands with its type. Instants are ISO 8601 in UTC with milliseconds; input, output, results and errors are
JSON values as they are stored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel

from holdfast.models import Event, Job, Phase
from holdfast.times import instant_text


@dataclass(frozen=True, slots=True)
class Written:
    """How a value that is not None is written; what has no such way is written as it is."""

    by: Callable[[Any], object]


_decode = json.JSONDecoder().decode  # json.loads, without the look at its arguments: half a µs for each job


def _from_json(text: str) -> object:
    """Read a stored value; what is no JSON is written as the text that it is."""
    try:
        return _decode(text)
    except ValueError:
        return text


def _phases(phases: Iterable[Phase]) -> list[dict[str, Any]]:
    return [phase_object(each) for each in phases]


Text: TypeAlias = Annotated[str, Written(str)]
MaybeText: TypeAlias = Annotated[str | None, Written(str)]
Instant: TypeAlias = Annotated[str, Written(instant_text)]
MaybeInstant: TypeAlias = Annotated[str | None, Written(instant_text)]
Json: TypeAlias = Annotated[Any, Written(_from_json)]


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


def _writer(kind: type[BaseModel]) -> Callable[[object], dict[str, Any]]:
    """Make the function that writes a value as *kind* describes it."""
    fields = kind.model_fields
    names, read = tuple(fields), attrgetter(*fields)
    ways = [(at, way.by) for at, name in enumerate(names) for way in fields[name].metadata if isinstance(way, Written)]

    def write(value: object) -> dict[str, Any]:
        values = [*read(value)]
        for at, by in ways:
            if (given := values[at]) is not None:
                values[at] = by(given)
        return dict(zip(names, values, strict=True))

    return write


_write_job, _write_phase = _writer(JobObject), _writer(PhaseObject)


def job_object(job: Job) -> dict[str, Any]:
    """Write *job*, as the store has read it: its input and output are still JSON texts."""
    return _write_job(job)


def phase_object(phase: Phase) -> dict[str, Any]:
    """Write *phase*; results are not among it: they may be large, and belong to the job's own code."""
    return _write_phase(phase)


def event_object(event: Event) -> dict[str, Any]:
    """Write *event* with its job; `job:deleted` has `deletedJobId` alone, for nothing else is left."""
    head: dict[str, Any] = {"event": event.name, "at": instant_text(event.at)}
    if event.deleted_job_id is not None:
        return head | {"deletedJobId": str(event.deleted_job_id)}
    return head | {
        "status": None if event.status is None else str(event.status),
        "version": event.version,
        "attempt": event.attempt,
        "facts": dict(event.facts),
        "job": None if event.job is None else job_object(event.job),
    }
