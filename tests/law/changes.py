"""A write to a job's row, as triggers record it: the row as it became, and what it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

WATCHED = (
    "status", "attempt", "nonce", "worker", "lease_until", "cancel_requested_at", "pause_requested_at", "version",
    "head", "place", "crashes", "used", "closed_as", "open_blockers", "stale_at",
)  # fmt: skip
"""The columns that are recorded as they were, too."""
CONSTANT = (
    "seq", "id", "chain_id", "chain_index", "task", "lane", "unique_key", "on_blocker_failure", "run_at", "reason",
    "output", "error", "lease_ms", "completed_by", "history",
)  # fmt: skip

BY_HAND = -1
"""The output of a job that somebody completes without a worker."""
SPARED = "lost before it began"
"""Why a job is given back that waited for its turn at a worker that is gone, as far as its row says."""
LOST = ("lost", SPARED)
"""Why a job is given back whose worker is gone, if the job is not blamed for it."""


@dataclass(frozen=True, slots=True)
class Change:
    """One write to a job's row; `old_status` None is its insert."""

    n: int
    at: int
    seq: int
    id: str
    chain_id: str
    chain_index: int
    task: str
    lane: str | None
    unique_key: str | None
    on_blocker_failure: str
    run_at: int
    reason: str | None
    output: str | None
    error: str | None
    lease_ms: int | None
    completed_by: str | None
    history: int
    status: str
    attempt: int
    nonce: str | None
    worker: str | None
    lease_until: int | None
    cancel_requested_at: int | None
    pause_requested_at: int | None
    version: int
    head: int
    place: int | None
    crashes: int
    used: int
    closed_as: str | None
    open_blockers: int
    stale_at: int | None
    old_status: str | None
    old_attempt: int
    old_nonce: str | None
    old_worker: str | None
    old_lease_until: int | None
    old_cancel_requested_at: int | None
    old_pause_requested_at: int | None
    old_version: int
    old_head: int
    old_place: int | None
    old_crashes: int
    old_used: int
    old_closed_as: str | None
    old_open_blockers: int
    old_stale_at: int | None

    @property
    def completes(self) -> bool:
        """Tell whether the job is completed by it."""
        return self.status == "completed" and self.old_status != "completed"

    @property
    def is_move(self) -> bool:
        """Tell whether the job comes to another status."""
        return self.status != self.old_status


assert tuple(each.name for each in fields(Change))[2:] == (*CONSTANT, *WATCHED, *(f"old_{name}" for name in WATCHED))


def fields_of_change(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[Any]:
    """Give the fields of a change behind its number and time, of the row as it became and, if there was one, was."""
    return [new[name] for name in (*CONSTANT, *WATCHED)] + [old.get(name) for name in WATCHED]


def is_claim(each: Change) -> bool:
    """Tell whether an attempt begins with it."""
    return each.status == "running" and each.old_status != "running"


def is_end(each: Change) -> bool:
    """Tell whether an attempt ends with it."""
    return each.old_status == "running" and each.status != "running"


def is_by_hand(each: Change) -> bool:
    """Tell whether somebody has completed the job without a worker."""
    return each.completes and each.completed_by is None


def is_opened(each: Change) -> bool:
    """Tell whether a job that had stopped goes on: it was resumed or retried."""
    return each.old_status in ("paused", "failed", "cancelled") and each.status in ("pending", "blocked")


def is_reap(each: Change) -> bool:
    """Tell whether a job was taken from a worker that was thought to be gone."""
    return (each.crashes > each.old_crashes or each.reason in LOST) and not is_death_of_child(each)


def is_death_of_child(each: Change) -> bool:
    """Tell whether a worker says that the job took down the child process that it ran in."""
    is_crash = each.crashes > each.old_crashes  # an error stays with the job for as long as no other is written
    return is_crash and each.error is not None and bool(json.loads(each.error)["type"] == "ChildDied")


def is_left_behind(each: Change) -> bool:
    """Tell whether a job was given back whose handler could not be stopped, by a process about to end."""
    return each.status == "pending" and each.reason == "shutdown"


def show(each: Change) -> str:
    """Write a change in one line."""
    return f"job {each.seq} ({each.task}, attempt {each.attempt}) {each.old_status} -> {each.status} ({each.reason})"
