"""How the entries of the inbox are written for those outside, each with the calls that fit."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, assert_never
from urllib.parse import quote

from pydantic import BaseModel, Field

from holdfast.models import Job
from holdfast.questions import Ask, DeadLetter, Failure, Halt, InboxEntry, PausedJob
from holdfast.states import Status
from holdfast.times import instant_text
from holdfast.wire.job_json import JobObject, job_object
from holdfast.wire.redaction import Redaction


class VerbObject(BaseModel):
    """A call that fits: a request to this API, whose body is filled in as far as it is known."""

    verb: str
    method: str
    path: str
    body: dict[str, Any]


class AskObject(BaseModel):
    """A question that waits for its answer."""

    kind: Literal["asked"]
    job: JobObject
    title: str
    help: str | None
    output_schema: dict[str, Any]
    since: str
    verbs: list[VerbObject]


class FailureObject(BaseModel):
    """Failed jobs of one task with the same error; *example* is the newest of them."""

    kind: Literal["failed"]
    task: str
    error_type: str | None
    message: str | None
    count: int
    is_exact: bool
    example: str
    since: str
    verbs: list[VerbObject]


class PausedObject(BaseModel):
    """A paused job, in no lane that it halts."""

    kind: Literal["paused"]
    job: JobObject
    since: str
    verbs: list[VerbObject]


class HaltObject(BaseModel):
    """A lane that a failed or paused job halts."""

    kind: Literal["halted"]
    lane: str
    job: JobObject
    behind: int
    since: str
    verbs: list[VerbObject]


class DeadLetterObject(BaseModel):
    """Webhook deliveries to one receiver that were given up; *example* is the newest of them."""

    kind: Literal["dead_letter"]
    receiver: str | None
    subscription: str | None
    message: str | None
    count: int
    is_exact: bool
    example: str
    since: str
    verbs: list[VerbObject]


InboxObject: TypeAlias = Annotated[
    AskObject | FailureObject | PausedObject | HaltObject | DeadLetterObject, Field(discriminator="kind")
]


def inbox_object(entry: InboxEntry, redaction: Redaction | None = None, *, masked: bool = False) -> dict[str, Any]:
    """Write an entry, with *redaction* as for its task; *masked* for who may see hosts of receivers alone."""
    facts = _facts(entry, redaction or Redaction(), masked=masked)
    return {"kind": entry.kind, **facts, "since": instant_text(entry.since), "verbs": _verbs(entry)}


def task_of(entry: InboxEntry) -> str:
    """Name the task that an entry is about; empty for deliveries."""
    match entry:
        case Failure():
            return entry.task
        case DeadLetter():
            return ""
        case _:
            return entry.job.task


def _facts(entry: InboxEntry, redaction: Redaction, *, masked: bool) -> dict[str, Any]:
    match entry:
        case Ask():
            asked = {"title": entry.title, "help": entry.help, "output_schema": entry.output_schema}
            return {"job": job_object(entry.job, redaction), **asked}
        case PausedJob():
            return {"job": job_object(entry.job, redaction)}
        case Halt():
            return {"lane": entry.lane, "job": job_object(entry.job, redaction), "behind": entry.behind}
        case Failure():
            return {"task": entry.task, "error_type": entry.error_type, **_counted(entry, redaction)}
        case DeadLetter():
            host = entry.receiver and entry.receiver.partition("/")[0]
            subscription = None if entry.subscription is None else str(entry.subscription)
            receiver = host if masked else entry.receiver
            return {"receiver": receiver, "subscription": subscription, **_counted(entry, redaction)}
        case _:
            assert_never(entry)


def _counted(entry: Failure | DeadLetter, redaction: Redaction) -> dict[str, Any]:
    return {
        "message": redaction.text(entry.message) if redaction.payloads else None,
        "count": entry.count,
        "is_exact": entry.is_exact,
        "example": str(entry.example),
    }


def _verbs(entry: InboxEntry) -> list[dict[str, Any]]:
    match entry:
        case Ask():
            return [_of_job("complete", entry.job), _of_job("cancel", entry.job)]
        case PausedJob():
            return [_of_job("resume", entry.job), _of_job("cancel", entry.job)]
        case Failure():
            return [_verb("retry", f"/api/jobs/{entry.example}/retry")]
        case Halt():
            first = "retry" if entry.job.status is Status.FAILED else "resume"
            skip = _verb("skip", f"/api/lane/skip?key={quote(entry.lane, safe='')}", if_head=str(entry.job.id))
            return [_of_job(first, entry.job), skip]
        case DeadLetter():
            again = _verb("redeliver", f"/api/deliveries/{entry.example}/redeliver")
            enable = [_verb("enable", f"/api/webhooks/{entry.subscription}/enable")] if entry.subscription else []
            return [again, *enable]
        case _:
            assert_never(entry)


def _of_job(verb: str, job: Job) -> dict[str, Any]:
    state = {} if verb == "complete" else {"if_state": job.state_tag}
    return _verb(verb, f"/api/jobs/{job.id}/{verb}", **state)


def _verb(verb: str, path: str, **body: object) -> dict[str, Any]:
    return {"verb": verb, "method": "POST", "path": path, "body": body}
