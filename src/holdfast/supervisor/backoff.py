"""When a process that has ended is started again: soon at first, then ever later, and never twice in a second."""

from __future__ import annotations

from random import Random

FIRST_SECONDS, MOST_SECONDS = 1.0, 30.0
HEALTHY_SECONDS = 60.0
SHORTEST_SECONDS = 1.0
JITTER = 0.25


class Backoff:
    """The starts of one process after another in the same place; instants are of a monotonic clock."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._started = float("-inf")
        self._worked: float | None = None
        self._failures = 0

    def started(self, now: float) -> None:
        """Note that a process was started."""
        self._started, self._worked = now, None

    def worked(self, now: float) -> None:
        """Note that it has begun to work."""
        self._worked = now

    def soonest(self, now: float) -> float:
        """Say when one may start in the place of a process that ended because it was told to."""
        self._failures = 0
        return max(now, self._started + SHORTEST_SECONDS)

    def after_end(self, now: float) -> float:
        """Say when one may start in the place of a process that ended by itself, or was ended by somebody."""
        if self._worked is not None and now - self._worked >= HEALTHY_SECONDS:
            self._failures = 0
        seconds = min(FIRST_SECONDS * 2.0 ** min(self._failures, 10), MOST_SECONDS)
        self._failures += 1
        return now + seconds * (1 + JITTER * self._chance.random())  # so that all do not come at once
