"""The law of states: which change may happen to a job in which status, and where it leads.

A job is *stored* in one of seven statuses. Every UPDATE of a status carries `guard(change)` in its WHERE, made from
the one table below, or `guard_by(…)` if it makes several changes; an UPDATE that the guard lets pass nowhere changes 0
rows, raises a typed error and appends no event. So a rule stands once, here, and the database itself applies it,
whoever comes at the same time.

What people are *shown* has more words (`State`): scheduled, waiting, cancelling, pausing, continued, stale. They are
derived from the row when it is read and never stored, so they cannot contradict it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple
from zlib import crc32


class Status(StrEnum):
    """What is stored of a job's state."""

    BLOCKED = "blocked"
    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class State(StrEnum):
    """What is shown of a job's state: the stored statuses and the words derived from the row."""

    BLOCKED = "blocked"
    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SCHEDULED = "scheduled"
    WAITING = "waiting"
    CANCELLING = "cancelling"
    PAUSING = "pausing"
    CONTINUED = "continued"
    STALE = "stale"


class Gate(StrEnum):
    """Where an unfinished row stands; each value has its partial index, NULL has none."""

    READY = "ready"
    ARRIVAL = "arrival"
    LANE = "lane"


class Change(StrEnum):
    """Everything that can happen to a job's status."""

    CLAIM = "claim"
    COMPLETE = "complete"
    RETRY_LATER = "retry later"
    RESCHEDULE_RUNNING = "reschedule running"
    GIVE_BACK = "give back"
    REAP = "reap"
    FAIL = "fail"
    PAUSE_RUNNING = "pause running"
    CANCEL_RUNNING = "cancel running"
    REQUEST = "request"
    UNBLOCK = "unblock"
    FAIL_BLOCKED = "fail blocked"
    BLOCK_AGAIN = "block again"
    PAUSE = "pause"
    CANCEL = "cancel"
    RESUME = "resume"
    RETRY = "retry"
    RESCHEDULE = "reschedule"
    COMPLETE_OUTSIDE = "complete outside"
    MARK_STALE = "mark stale"
    DELETE = "delete"


BLOCKED, PENDING, RUNNING, PAUSED = Status.BLOCKED, Status.PENDING, Status.RUNNING, Status.PAUSED
COMPLETED, FAILED, CANCELLED = Status.COMPLETED, Status.FAILED, Status.CANCELLED

OPEN = (BLOCKED, PENDING, RUNNING, PAUSED)
TERMINAL = (COMPLETED, FAILED, CANCELLED)


class Move(NamedTuple):
    """One row of the law: from *sources* to *targets*, where *also* holds in SQL.

    The first target is where it leads by itself. A request made meanwhile, or a task's policy, may lead to the others.
    """

    sources: tuple[Status, ...]
    targets: tuple[Status, ...]
    also: tuple[str, ...] = ()


MOVES: dict[Change, Move] = {
    Change.CLAIM: Move((PENDING,), (RUNNING,), also=("coalesce(holdfast_job.gate, '') = 'ready'",)),
    Change.COMPLETE: Move((RUNNING,), (COMPLETED,), also=("holdfast_job.cancel_requested_at IS NULL",)),
    Change.RETRY_LATER: Move((RUNNING,), (PENDING,)),
    Change.RESCHEDULE_RUNNING: Move((RUNNING,), (PENDING,)),
    Change.GIVE_BACK: Move((RUNNING,), (PENDING, PAUSED)),
    Change.REAP: Move((RUNNING,), (PENDING, FAILED, PAUSED, CANCELLED)),
    Change.FAIL: Move((RUNNING,), (FAILED,)),
    Change.PAUSE_RUNNING: Move((RUNNING,), (PAUSED,)),
    Change.CANCEL_RUNNING: Move((RUNNING,), (CANCELLED,)),
    Change.REQUEST: Move((RUNNING,), (RUNNING,)),
    Change.UNBLOCK: Move((BLOCKED,), (PENDING,)),
    Change.FAIL_BLOCKED: Move((BLOCKED,), (FAILED,)),
    Change.BLOCK_AGAIN: Move((FAILED,), (BLOCKED,)),
    Change.PAUSE: Move((PENDING, BLOCKED), (PAUSED,)),
    Change.CANCEL: Move((BLOCKED, PENDING, PAUSED, FAILED), (CANCELLED,)),
    Change.RESUME: Move((PAUSED,), (PENDING, BLOCKED)),
    Change.RETRY: Move((FAILED, CANCELLED), (PENDING, BLOCKED)),
    Change.RESCHEDULE: Move((PENDING,), (PENDING,)),
    Change.COMPLETE_OUTSIDE: Move((BLOCKED, PENDING, RUNNING, PAUSED, FAILED), (COMPLETED,)),
    Change.MARK_STALE: Move(TERMINAL, TERMINAL, also=("holdfast_job.stale_at IS NULL",)),
    Change.DELETE: Move((*OPEN, *TERMINAL), ()),
}


def guard(change: Change) -> str:
    """Say in SQL which jobs *change* may happen to, for the WHERE of the statement that does it."""
    move = MOVES[change]
    sources = ", ".join(f"'{status}'" for status in move.sources)
    # coalesce: a plain `status` or `gate` invites the planner to a partial index, 30k jobs/s became 14k
    return " AND ".join((f"coalesce(holdfast_job.status, '') IN ({sources})", *move.also))


def guard_by(key: str, changes: Mapping[str, Change]) -> str:
    """Say the same for a statement that makes several changes: the value of *key*, in SQL, tells which of *changes*.

    Any other value lets nothing pass.
    """
    cases = "".join(f"\n            WHEN '{value}' THEN {guard(change)}" for value, change in changes.items())
    return f"CASE {key}{cases} END"


STATES = {each: State(each) for each in Status}


def shown(
    status: Status, *, due: bool, held_up: bool, cancelling: bool, pausing: bool, continued: bool, stale: bool
) -> State:
    """Derive the word that people are shown from the facts of a row."""
    if stale:
        return State.STALE
    match status:
        case Status.PENDING if not due:
            return State.SCHEDULED
        case Status.PENDING if held_up:
            return State.WAITING
        case Status.RUNNING if cancelling:
            return State.CANCELLING
        case Status.RUNNING if pausing:
            return State.PAUSING
        case Status.COMPLETED if continued:
            return State.CONTINUED
        case _:
            return STATES[status]


def state_tag(
    status: str, attempt: int, *, cancelling: bool, pausing: bool, run_at: int, stale: bool, input_: str
) -> str:
    """Name the state of a job in a short text: the stored status, the attempt, open requests, and a checksum.

    The checksum is of the time at which it is due, of whether it is stale, and of its input. So every move and every
    edit gives another tag, and neither progress nor a lease does.

    >>> state_tag("running", 3, cancelling=True, pausing=False, run_at=0, stale=False, input_="{}")
    'running/3/cancelling/dc355d85'
    """
    requests = ("/cancelling" if cancelling else "") + ("/pausing" if pausing else "")
    return f"{status}/{attempt}{requests}/{crc32(f'{run_at} {stale} {input_}'.encode()):08x}"
