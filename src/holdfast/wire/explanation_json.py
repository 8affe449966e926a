"""How it is written for those outside why a job does not run, or a queue does not move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from holdfast.explanations import Ended, LaneHalted, Paused, Reason, Remedy
from holdfast.times import instant_text
from holdfast.wire.redaction import Redaction


class RequestObject(BaseModel):
    """A request of the HTTP API; the path is that below where it is mounted."""

    method: str
    path: str
    body: dict[str, Any]


class RemedyObject(BaseModel):
    """What ends a reason: a verb, the line of Python, and the request, if there is one for it."""

    verb: str
    target: str | None
    arguments: dict[str, Any]
    python: str
    request: RequestObject | None


class ReasonObject(BaseModel):
    """Why a job does not run, and what ends that."""

    code: str
    text: str
    facts: dict[str, Any]
    remedy: RemedyObject | None
    ends_at: str | None
    """When time alone ends it."""


def reason_object(reason: Reason, redaction: Redaction) -> dict[str, Any]:
    """Write *reason*; its text says what its facts say, and so of an error no more than they may."""
    seen = _seen(reason, redaction)
    return {
        "code": seen.code,
        "text": seen.text,
        "facts": {name: _plain(value) for name, value in seen.facts.items()},
        "remedy": None if seen.remedy is None else remedy_object(seen.remedy),
        "ends_at": instant_text(seen.ends_at),
    }


def remedy_object(remedy: Remedy) -> dict[str, Any]:
    """Write the call that ends a reason."""
    request = remedy.request
    return {
        "verb": remedy.verb,
        "target": remedy.target,
        "arguments": dict(remedy.arguments),
        "python": remedy.python,
        "request": None if request is None else request._asdict(),
    }


OF_JOBS = (Paused, LaneHalted, Ended)
"""Why of a job: a handler may have said it, with what only its error should tell."""


def _seen(reason: Reason, redaction: Redaction) -> Reason:
    facts, changed = reason.facts, {}
    match facts.get("error"):
        case Mapping() as error:
            changed["error"] = redaction.error(dict(error))
        case str(text):
            changed["error"] = redaction.text(text)
    if (why := facts.get("why")) is not None:
        changed["why"] = redaction.reason(why) if isinstance(reason, OF_JOBS) else redaction.text(why)
    return replace(reason, **changed) if changed else reason


def _plain(value: object) -> object:
    match value:
        case UUID():
            return str(value)
        case datetime():
            return instant_text(value)
        case Mapping():
            return {str(name): _plain(each) for name, each in value.items()}
        case tuple() if hasattr(value, "_asdict"):
            return _plain(value._asdict())
        case str():
            return str(value)
        case Sequence():
            return [_plain(each) for each in value]
    return value
