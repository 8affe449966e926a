"""How a worker is, for whoever watches it: a load balancer, a page, a person."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias

from holdfast.runtime import Runtime
from holdfast.webhooks.receivers import ReceiverHealth

HintMode: TypeAlias = Literal["listening", "watching", "polling"]
"""How a worker learns of new work: by LISTEN on PostgreSQL, by SQLite's log file, or by its poll alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How a worker is at this moment; times by this machine's clock."""

    id: str
    since: datetime | None
    """When it began; None if it has not."""
    claimed_at: datetime | None
    """When it last asked for work and was answered; an idle worker asks only when it is hinted at."""
    hints: HintMode
    loop_lag: float
    """How many seconds its event loop took, or takes, to answer; some handler blocks it if that is much."""
    running: int
    stubborn: tuple[str, ...]
    """The jobs whose handlers were told to stop long ago and have not."""
    trouble_since: datetime | None
    """Since when the store has not answered as it should; None if it does."""
    trouble: str | None = None
    """What the trouble was when it was last asked; on SQLite that names the process which had the right to write."""
    is_draining: bool
    children: ChildrenHealth | None = None
    """How its child processes are; None if no task of its runs in them."""
    receivers: tuple[ReceiverHealth, ...] = ()
    """The webhook receivers that do not answer, or too slowly, the longest first."""
    tenants: int | None = None
    """How many tenants it serves, all of which the rest sums up; None for a worker of one place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildrenHealth:
    """How many child processes a worker has, by what they do."""

    idle: int
    busy: int
    starting: int
    failing_since: datetime | None
    """Since when none could be started; None if they can."""


def wall_time(runtime: Runtime, then: float | None) -> datetime | None:
    """Convert *then*, an instant of the monotonic clock, to the time of this machine's clock."""
    if then is None:
        return None
    now = datetime.fromtimestamp(runtime.wall_ms() / 1000, UTC)
    return now - timedelta(seconds=runtime.monotonic() - then)
