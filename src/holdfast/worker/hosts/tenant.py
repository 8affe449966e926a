"""What a host knows of one tenant, and when it looks at it.

*Idle*, it is looked at every now and then (`period`), when the next arrival, lease or tick there is due, and when a
hint comes. *Busy*, it has a worker of its own, which looks for itself; after a quiet minute that is closed.

*Asleep.* On PostgreSQL writers send a hint only if somebody sleeps there (`database.hints`). So a tenant without a
worker has a row of its host, marked as asleep. It is written while its worker is still there, and asleep as well: what
has not seen the host's mark has seen the worker's. Once the mark is sure, a look now and then is enough.

*In vain.* If its worker has found nothing to do and a look still finds what it was opened for, such as a lease that
nobody may take over yet, it is not opened for the same again for some minutes.

*Left out.* A tenant that cannot be looked at, or whose worker broke, is left alone for a minute. It is said once, and
once when it is over, and stands in the registry meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from holdfast.database.hints import SELDOM_SECONDS, HintListener, SleepMark
from holdfast.database.tx import Store
from holdfast.store.glance import Glimpse

if TYPE_CHECKING:
    from holdfast.worker.claiming.slot_share import SlotShare
    from holdfast.worker.options import WorkerOptions
    from holdfast.worker.worker import Worker

QUIET_SECONDS = 60.0
"""After how long without a job a worker is closed."""
MARK_SECONDS = 10.0
"""How long before that its host makes its own mark: more than it takes until that is sure (`hints`)."""
LONGEST_QUIET_SECONDS = 90.0
"""A worker is closed after so long, also if its host's mark is not sure yet."""
LEFT_OUT_SECONDS = 60.0
IN_VAIN_SECONDS = 600.0
SURE_SECONDS = 25.0
"""Between two looks where hints surely come; less than the time after which an idle connection is closed."""
AGAIN_SECONDS = 1.0
"""Until a mark is looked at again that is not sure yet, while its worker is about to be closed."""
LEAST_SECONDS = 0.25
"""The least between two looks at one tenant."""
VISIT_SECONDS = 86_400.0
"""How often a tenant without work has a worker for a minute, which removes what is old."""

Finding: TypeAlias = tuple[object, ...]


def period(statements: int) -> float:
    """Say how often each tenant is looked at without hints, by so many statements: these stay below two a second."""
    return max(4.0, 0.75 * statements)


@dataclass(eq=False, kw_only=True)
class HostedTenant:
    """One tenant; *store* is its place, where it may take up to *slots* of its host's."""

    name: str
    place: str
    created_at: datetime
    """When it was made: one of the same name that was made later is another one."""
    slots: int
    store: Store
    prepare: Callable[[], Awaitable[object]]
    make_worker: Callable[[WorkerOptions, SlotShare], Worker]
    monotonic: Callable[[], float]
    look_at: float = 0.0
    """When it is to be looked at next, if it has no worker."""
    looked_at: float = -inf
    visit_at: float = inf
    is_active: bool = True
    """Whether it is to be served: neither suspended nor gone."""
    is_prepared: bool = False
    """Whether the schedules that are declared for tenants are there, or about to be."""
    out_until: float | None = None
    """Until when it is left out; then it is looked at alone."""
    trouble: str | None = None
    """What its registry row says."""
    trouble_since: float = 0.0
    is_said_to_be_out: bool = False
    """Whether the log says that it is left out, and nothing since."""
    examined_at: float = -inf
    """When it was last looked at because its worker was in trouble."""
    worker: Worker | None = None
    serving: asyncio.Task[None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when who serves it is to look whether it still should."""
    listener: HintListener | None = None
    mark: SleepMark | None = None
    """None where nobody need be told that somebody sleeps."""
    is_leaving: bool = False
    """Whether its worker is about to be closed, and the host to make its mark."""
    is_hinted: bool = False
    """Whether a look is under way, or planned, because a hint has come."""
    opened_for: Finding = ()
    in_vain: Finding = ()
    in_vain_until: float = -inf

    @property
    def is_idle(self) -> bool:
        """Tell whether it is the host that looks at it."""
        return self.is_active and self.serving is None and self.out_until is None

    @property
    def wants_mark(self) -> bool:
        """Tell whether it should be marked as asleep before the next look."""
        return self.mark is not None and (self.is_idle or self.is_leaving) and self.mark.wants_to_sleep

    @property
    def is_sure(self) -> bool:
        """Tell whether whoever writes there surely sends a hint."""
        return self.mark is not None and self.mark.is_marked and self.mark.seconds() >= SELDOM_SECONDS

    @property
    def is_ready_to_leave(self) -> bool:
        """Tell whether no hint is lost if its worker is closed: none is sent there, or all are for the host, too."""
        return self.mark is None or not self.mark.is_listening or self.is_sure

    def due_at(self) -> float:
        """Say when it is to be looked at."""
        if self.out_until is not None:  # then it is looked at alone
            return inf
        if self.wants_mark:
            return self.looked_at + LEAST_SECONDS
        if self.is_leaving:
            return inf if self.is_sure else self.looked_at + AGAIN_SECONDS
        return max(self.look_at, self.looked_at + LEAST_SECONDS) if self.is_idle else inf

    def look_soon(self) -> None:
        self.look_at = min(self.look_at, self.monotonic())

    def note_look(self, found: Glimpse, period_seconds: float) -> bool:
        """Take note of what a look has *found*, and plan the next one; tell whether it should have a worker."""
        now = self.looked_at = self.monotonic()
        if self.mark is not None:
            self.mark.has_looked(found.horizon)
        seconds = SURE_SECONDS if self.is_sure else period_seconds
        if self.mark is not None and self.mark.is_marked:  # while it falls asleep, more often
            seconds = min(seconds, max(self.mark.seconds(), LEAST_SECONDS))
        if found.next_ms is not None and found.next_ms > 0:
            seconds = min(seconds, found.next_ms / 1000)
        self.look_at = now + seconds
        finding = _finding(found)
        is_in_vain = finding == self.in_vain and now < self.in_vain_until
        if not self.is_idle or not ((found.has_work and not is_in_vain) or now >= self.visit_at):
            return False
        self.opened_for = finding
        return True

    def note_closed(self, *, has_worked: bool) -> None:
        """Take note that its worker was closed, and whether that had anything to do."""
        now = self.monotonic()
        self.is_leaving = False
        self.in_vain, self.in_vain_until = (), -inf
        if not has_worked:
            self.in_vain, self.in_vain_until = self.opened_for, now + IN_VAIN_SECONDS
        self.visit_at = now + VISIT_SECONDS
        self.look_at = now

    def leave_out(self) -> None:
        """Look at it no more for a while."""
        self.out_until = self.monotonic() + LEFT_OUT_SECONDS


def _finding(found: Glimpse) -> Finding:
    """Give what is the same as long as nothing has moved: another arrival, lease or tick was due at another time."""
    due = (found.now_ms + each if each is not None and each <= 0 else None for each in found.due)
    return (found.ready, found.outbox, *due)
