"""The legal moves of a job, by hand from DESIGN §3: each change, where it may start, where it leads, and its event."""

from __future__ import annotations

from typing import NamedTuple

STATUSES = ("blocked", "pending", "running", "paused", "completed", "failed", "cancelled")
OPEN = ("blocked", "pending", "running", "paused")
TERMINAL = ("completed", "failed", "cancelled")
HALTING = ("failed", "paused")
"""The statuses in which the first job of a lane holds the others up."""

OUTSIDE = "job:completed without a worker"
BLOCKED_AGAIN = "job:resumed by its blocker"
"""These two events have no name of their own in the log; `named` tells them apart."""


class Move(NamedTuple):
    """One change: the statuses that it may happen to, and the event for each status that it leads to."""

    sources: tuple[str, ...]
    leads_to: dict[str, str]
    keeps: tuple[str, ...] = ()
    """The events of a change that leaves the status as it is."""

    @property
    def targets(self) -> set[str]:
        """The statuses in which a job may be after it."""
        return {*self.leads_to, *(self.sources if self.keeps else ())}


def move(sources: str, *keeps: str, **leads_to: str) -> Move:
    """Write a row of the law."""
    return Move(tuple(sources.split()), leads_to, keeps)


LAW = {
    "claim": move("pending", running="job:started"),
    "complete": move("running", completed="job:completed"),
    "retry later": move("running", pending="job:retrying"),
    "reschedule running": move("running", pending="job:rescheduled"),
    "give back": move("running", pending="job:rescheduled", paused="job:paused"),
    "reap": move("running", pending="job:reaped", failed="job:failed", paused="job:paused", cancelled="job:cancelled"),
    "fail": move("running", failed="job:failed"),
    "pause running": move("running", paused="job:paused"),
    "cancel running": move("running", cancelled="job:cancelled"),
    "request": move("running", "job:cancelling", "job:pausing"),
    "unblock": move("blocked", pending="job:unblocked"),
    "fail blocked": move("blocked", failed="job:failed"),
    "block again": move("failed", blocked=BLOCKED_AGAIN),
    "pause": move("blocked pending", paused="job:paused"),
    "cancel": move("blocked pending paused failed", cancelled="job:cancelled"),
    "resume": move("paused", pending="job:resumed", blocked="job:resumed"),
    "retry": move("failed cancelled", pending="job:resumed", blocked="job:resumed"),
    "reschedule": move("pending", "job:rescheduled"),
    "complete outside": move("blocked pending running paused failed", completed=OUTSIDE),
    "mark stale": move("completed failed cancelled", "job:stale"),
    "delete": move("blocked pending running paused completed failed cancelled"),
}
PAIRS = {(change, status): status in row.sources for change, row in LAW.items() for status in STATUSES}
"""Whether a change may happen to a job in a status."""

LEGAL: dict[str, set[tuple[str | None, str]]] = {
    "job:enqueued": {(None, "pending"), (None, "blocked"), (None, "paused")},
    "job:progress": {("running", "running")},
    "job:phase:completed": {("running", "running")},
    "job:blocked": {("blocked", "blocked"), ("failed", "blocked")},
}
"""The moves that each event may tell of. These four belong to no change; the others come from the law."""
for _row in LAW.values():
    for _old in _row.sources:
        for _new, _event in _row.leads_to.items():
            LEGAL.setdefault(_event, set()).add((_old, _new))
        for _event in _row.keeps:
            LEGAL.setdefault(_event, set()).add((_old, _old))

MOVES = {each for moves in LEGAL.values() for each in moves}
"""All of them, for a job that keeps no history."""


def sources(*changes: str) -> tuple[str, ...]:
    """Name the statuses that one of *changes* may happen to."""
    return tuple(status for status in STATUSES if any(PAIRS[change, status] for change in changes))


def outcome(change: str, target: str | None = None) -> tuple[str, str]:
    """Give the status that *change* leads to, and its event; *target* is needed if there are several."""
    leads_to = LAW[change].leads_to
    (found,) = [target] if target is not None else leads_to
    return found, leads_to[found]


def named(event: str, facts: str | None) -> str:
    """Give the name of an event in the law: a person may cause it, or a blocker, under a name that others have."""
    is_asked = '"by"' in (facts or "")
    if event == "job:resumed" and not is_asked:
        return BLOCKED_AGAIN
    return OUTSIDE if event == "job:completed" and is_asked else event


def moves_told_by(event: str) -> set[tuple[str | None, str]]:
    """Give the moves that an event may tell of if nobody says who asked for it."""
    return LEGAL[event].union(*(LEGAL[each] for each in (OUTSIDE, BLOCKED_AGAIN) if each.startswith(f"{event} ")))
