"""How schedules and their ticks are written for those outside."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel

from holdfast.schedule_rules import ScheduleRule
from holdfast.schedules import ScheduleInfo
from holdfast.times import instant_text
from holdfast.wire.objects import Instant, MaybeInstant, Written, writer_of
from holdfast.wire.redaction import Redaction
from holdfast.wire.webhook_json import host_alone


def _rule(rule: ScheduleRule) -> object:
    return json.loads(rule.json)


def _instants(instants: Iterable[datetime]) -> list[str | None]:
    return [instant_text(each) for each in instants]


class ScheduleObject(BaseModel):
    """A schedule: a call that workers start at the times of a rule."""

    name: str
    task: str
    arguments: Annotated[Any, Written(lambda each: each, of="input")]
    options: dict[str, Any]
    rule: Annotated[dict[str, Any], Written(_rule)]
    words: str
    next_at: MaybeInstant
    is_late: bool
    next_times: Annotated[list[str], Written(_instants)]
    missed: str
    jitter: float
    paused_at: MaybeInstant
    paused_by: str | None
    paused_until: MaybeInstant
    reason: str | None
    is_declared: bool
    trouble: str | None
    left_out: int
    left_out_at: MaybeInstant
    created_at: Instant
    changed_at: MaybeInstant
    changed_by: str | None


class TickObject(BaseModel):
    """A time of a schedule that has had its job."""

    at: Instant
    outcome: str
    chain: Annotated[str, Written(str, of="chain_id")]
    done_at: MaybeInstant


class PreviewObject(BaseModel):
    """A rule in words, and its next times."""

    words: str
    next_times: list[str]


_write = writer_of(ScheduleObject)
tick_object = writer_of(TickObject)


def schedule_object(
    schedule: ScheduleInfo, redaction: Redaction | None = None, *, masked: bool = False
) -> dict[str, Any]:
    """Write a schedule, its arguments as those of a job of its task; *masked* for who sees a webhook's host alone."""
    written = _write(schedule)
    if redaction is not None:
        written["arguments"] = redaction.value(schedule.input)
        written["trouble"] = redaction.text(schedule.trouble)
    if masked and schedule.options.get("webhook"):
        written["options"] = {**schedule.options, "webhook": host_alone(str(schedule.options["webhook"]))}
    return written


def preview_object(rule: ScheduleRule, times: Iterable[datetime]) -> dict[str, Any]:
    """Write what a rule means."""
    return {"words": rule.words, "next_times": _instants(times)}
