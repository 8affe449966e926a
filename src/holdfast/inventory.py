"""What there is beside jobs, as lists show it: tasks, queues and workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias, get_args

LaneState: TypeAlias = Literal["halted", "paused", "moving"]
LANE_STATES: tuple[LaneState, ...] = get_args(LaneState)
"""In the order in which lists show them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """A task, as the programs that have its code have written it down."""

    name: str
    queue: str | None
    """The queue of its jobs, unless a start chooses another; None if that cannot be read."""
    policy: Mapping[str, Any]
    """How its jobs are dealt with, as plain JSON: `attempts`, `lease`, `timeout`, `priority` and so on."""
    input_schema: Mapping[str, Any]
    """The JSON schema of its arguments; empty if that cannot be read."""
    output_schema: Mapping[str, Any]
    version: str
    """A short text that changes with the policy or a schema."""
    updated_at: datetime
    served_by: tuple[str, ...]
    """The ids of the living workers that have its code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """A queue: one that has jobs waiting, is paused, is named by a task, or is served by a living worker."""

    name: str
    is_paused: bool
    paused_at: datetime | None
    paused_by: str | None
    reason: str | None
    """Why it was paused."""
    paused_until: datetime | None
    """When it goes on by itself; None means when somebody resumes it."""
    served_by: tuple[str, ...]
    """The ids of the living workers that claim from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker process, by what it last said of itself; one of another release may not have said all of it."""

    id: str
    name: str | None
    host: str | None
    pid: int | None
    started_at: datetime
    seen_at: datetime
    """Its last beat: one comes about every minute."""
    is_alive: bool
    """Whether that is no more than 150 seconds ago."""
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    """The names of the tasks whose code it has."""
    slots: int | None
    """How many jobs it runs at once: handlers, those in child processes, webhooks, and acts on many jobs."""
    running: int
    """How many jobs it runs now, counted among the 10,000 running jobs whose leases end first."""
    version: str | None
    """The release of Holdfast."""
    hint_mode: str | None
    """How it hears of new work: `listening` (PostgreSQL's LISTEN), `watching` (SQLite's log file) or `polling`."""
    tenants: Mapping[str, int] | None = None
    """For a worker of tenants, in the list of `hf` itself: the slots of each tenant, `*` for those that are not named.

    `running` is 0 then: its jobs are counted in the lists of its tenants, for each that has work.
    """
