"""How queues, lanes and workers are written for those outside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel

from holdfast.models import LaneInfo
from holdfast.wire.objects import Instant, MaybeInstant, MaybeText, Written, writer_of
from holdfast.wire.redaction import Redaction


def _list(words: Iterable[str]) -> list[str]:
    return list(words)


def _dict(slots: Mapping[str, int]) -> dict[str, int]:
    return dict(slots)


class QueueObject(BaseModel):
    """A queue."""

    name: str
    is_paused: bool
    paused_at: MaybeInstant
    paused_by: str | None
    reason: str | None
    paused_until: MaybeInstant
    served_by: Annotated[list[str], Written(_list)]


class LaneObject(BaseModel):
    """How a lane stands."""

    key: str
    depth: int
    head: MaybeText
    head_status: MaybeText
    halted_by: MaybeText
    halted_because: str | None
    halted_since: MaybeInstant
    paused_at: MaybeInstant
    paused_by: str | None
    reason: str | None
    is_moving: bool


class WorkerObject(BaseModel):
    """A worker process, by what it last said of itself."""

    id: str
    name: str | None
    host: str | None
    pid: int | None
    started_at: Instant
    seen_at: Instant
    is_alive: bool
    queues: Annotated[list[str], Written(_list)]
    tasks: Annotated[list[str], Written(_list)]
    slots: int | None
    running: int
    version: str | None
    hint_mode: str | None
    tenants: Annotated[dict[str, int] | None, Written(_dict)]


queue_object = writer_of(QueueObject)
worker_object = writer_of(WorkerObject)
_write_lane = writer_of(LaneObject)


def lane_object(lane: LaneInfo, redaction: Redaction | None = None) -> dict[str, Any]:
    """Write a lane; why it is halted may be what an error says."""
    written = _write_lane(lane)
    if redaction is not None:
        written["halted_because"] = redaction.reason(lane.halted_because)
    return written
