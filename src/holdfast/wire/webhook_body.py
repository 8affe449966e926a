"""What a webhook says: the JSON text that is posted, made once and never changed, and its JSON Schema.

The envelope is that of Standard Webhooks: `type`, `timestamp` and `data`. The job in it is written as SSE and the HTTP
API write it. Its status, state, attempt, version and error are those of the event; the rest is as it stood when the
delivery was made, a moment later.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from holdfast.models import EventName, Job, Trigger
from holdfast.wire.job_json import JobObject, job_object

MOST_BYTES = 65_536
"""How long a body may be before the job's input and output, and then its phases, are left out of it."""

LEFT_OUT = ("input", "output")

OMITTED_OF_DELETED = (*LEFT_OUT, "phases")
"""What nobody knows any more of a job that was deleted before its delivery was made."""


class WebhookData(BaseModel):
    """What happened, and to which job."""

    event: Trigger
    status: str | None
    attempt: int | None
    version: int | None
    facts: dict[str, Any]
    """What the event itself says, such as the phase that was completed or the error of the attempt."""
    omitted: list[str]
    """What was left out of the job: the body would have been too long, or the job was deleted before it was made."""
    job: JobObject


class WebhookBody(BaseModel):
    """The body of a webhook; `WebhookBody.model_validate_json(text)` reads one."""

    type: Trigger
    timestamp: str
    data: WebhookData


@cache
def webhook_schema() -> dict[str, Any]:
    """Give the JSON Schema of what a webhook posts; what later releases add to it, receivers are to pass over.

    >>> sorted(webhook_schema()["properties"])
    ['data', 'timestamp', 'type']
    """
    return WebhookBody.model_json_schema(schema_generator=_Untitled)


class _Untitled(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        """Leave out titles, which would only repeat the names."""
        return False


def body(
    name: EventName,
    at: str,
    job: Job,
    *,
    status: str | None,
    attempt: int | None,
    version: int | None,
    facts: str | None = None,
    omitted: Sequence[str] = (),
) -> str:
    """Write what is posted for the event *name* of *job*, whose input and output are still JSON texts.

    *omitted* is what *job* itself lacks.
    """
    data: dict[str, Any] = {
        "event": name,
        "status": status,
        "attempt": attempt,
        "version": version,
        "facts": json.loads(facts) if facts else {},
        "omitted": list(omitted),
        "job": job_object(job),
    }
    whole = {"type": name, "timestamp": at, "data": data}
    text = _text(whole)
    if len(text.encode()) <= MOST_BYTES:
        return text
    data["omitted"] = list(LEFT_OUT)
    data["job"] |= dict.fromkeys(LEFT_OUT)
    text = _text(whole)
    if len(text.encode()) <= MOST_BYTES:
        return text
    data["omitted"].append("phases")  # a thousand of them, with their messages, are megabytes
    data["job"]["phases"] = []
    return _text(whole)


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
