"""Figures: how many attempts began and ended, how long they waited and ran, and how many jobs stand where now.

A histogram has two bins for each doubling, from 1 ms to 12 h: bin 0 is below a millisecond, and each later one goes up
to 1.41 times of where it begins. A percentile is the middle of the bin that it falls into, so it is right to 19 %. All
histograms have the same bins, so those of several queues, workers or hours add up.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from math import ceil
from types import MappingProxyType
from typing import NamedTuple

from holdfast.outcomes import Kind

BINS = 52
BOUNDS: Sequence[float] = tuple(2 ** (step / 2) for step in range(BINS - 1))
"""Where the bins after the first begin, in milliseconds; the last one is for all that is longer."""

OPEN_SECONDS = 10
"""How long the interval is in which a worker counts."""
KEPT_SECONDS: Mapping[int, int] = MappingProxyType({10: 2 * 3600, 60: 48 * 3600, 3600: 400 * 86_400})
"""How long the figures of intervals of each width (in seconds) are kept."""

MOST_POINTS = 2_000


class Percentiles(NamedTuple):
    """How long it took, in seconds, half of the time, 95 and 99 times of 100 at most; None if it never happened.

    Right to 19 %, between a millisecond and 12 hours; 0 is less than a millisecond.
    """

    p50: float | None
    p95: float | None
    p99: float | None


class Histogram(Counter[int]):
    """How often something took how long, by the numbers of bins.

    >>> round(Histogram.of([1, 2, 500]).percentiles().p99, 2)
    0.43
    """

    @classmethod
    def of(cls, milliseconds: Iterable[float]) -> Histogram:
        """Count *milliseconds*."""
        return cls(bisect_right(BOUNDS, each) for each in milliseconds)

    @classmethod
    def read(cls, text: str | None) -> Histogram:
        """Read what `text` has written; what is none of it, by somebody's own SQL, counts as nothing."""
        try:
            return cls({int(number): int(count) for number, count in json.loads(text or "{}").items()})
        except (ValueError, TypeError, AttributeError):
            return cls()

    def text(self) -> str | None:
        """Write it down; None if nothing was counted."""
        counted = {number: count for number, count in sorted(self.items()) if count}
        return json.dumps(counted, separators=(",", ":")) if counted else None

    def percentiles(self) -> Percentiles:
        return Percentiles(self._percentile(50), self._percentile(95), self._percentile(99))

    def _percentile(self, percent: int) -> float | None:
        rank, counted = ceil(self.total() * percent / 100), 0
        for number, count in sorted(self.items()):
            counted += count
            if counted >= rank > 0:
                return 2 ** ((number - 0.5) / 2) / 1000 if number else 0.0
        return None


class Counts(NamedTuple):
    """How many attempts began, and how many ended in which way; each attempt that began ends in one of them.

    `retried`: the job runs again, because the attempt raised, asked for it or was interrupted. `lost`: its worker was
    gone, and the job runs again. `failed`, `paused` and `cancelled` say what the job was afterwards.
    """

    started: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0
    lost: int = 0
    paused: int = 0
    cancelled: int = 0

    @property
    def ended(self) -> int:
        """How many ended in any way."""
        return sum(self[1:])

    def plus(self, other: Counts) -> Counts:
        return Counts(*map(sum, zip(self, other, strict=True)))


COUNTED_AS: Mapping[Kind, str] = MappingProxyType(
    {
        Kind.COMPLETE: "completed",
        Kind.FAIL: "failed",
        Kind.RETRY: "retried",
        Kind.RESCHEDULE: "retried",
        Kind.GIVE_BACK: "retried",
        Kind.LOST: "lost",
        Kind.PAUSE: "paused",
        Kind.CANCEL: "cancelled",
    }
)
"""As what an attempt that had begun is counted."""


class Tallied(NamedTuple):
    """What was counted of some jobs: how many attempts, and how long they waited and ran."""

    counts: Counts
    wait: Histogram
    run: Histogram

    def plus(self, other: Tallied) -> Tallied:
        return Tallied(self.counts.plus(other.counts), _added(self.wait, other.wait), _added(self.run, other.run))

    def less(self, other: Tallied) -> Tallied:
        """Take away *other*, of which all is in it."""
        counts = Counts(*(mine - its for mine, its in zip(self.counts, other.counts, strict=True)))
        return Tallied(counts, Histogram(self.wait - other.wait), Histogram(self.run - other.run))


def _added(one: Histogram, other: Histogram) -> Histogram:
    added = Histogram(one)
    added.update(other)
    return added


def nothing_tallied() -> Tallied:
    """Make the figures of no attempt."""
    return Tallied(Counts(), Histogram(), Histogram())


def sum_of(several: Iterable[Tallied]) -> Tallied:
    """Add up *several*."""
    total = nothing_tallied()
    for each in several:
        total = total.plus(each)
    return total


class Total(NamedTuple):
    """The figures of a whole range."""

    counts: Counts
    wait: Percentiles
    run: Percentiles


class Series(NamedTuple):
    """Figures of attempts over time, by intervals of *width* seconds, each beginning *at*; oldest first.

    *wait* is how long jobs were ready before an attempt claimed them, *run* how long attempts ran. The intervals from
    *open_from* on may still grow; None if none does. *total* has the figures of all of them together.
    """

    width: int
    at: tuple[datetime, ...]
    counts: tuple[Counts, ...]
    wait: tuple[Percentiles, ...]
    run: tuple[Percentiles, ...]
    open_from: datetime | None
    total: Total


class Figure(NamedTuple):
    """A *value* that was read *at* some moment; unless *is_exact*, it is at least so much."""

    value: float
    at: datetime
    is_exact: bool = True


class QueueFigures(NamedTuple):
    """How a queue stands; *oldest_ready* is how many seconds its next job has been ready, None if there is none.

    *scheduled* jobs wait for their time. *slots* are those of the living workers that serve the queue.
    """

    name: str
    ready: Figure
    oldest_ready: Figure | None
    scheduled: Figure
    running: Figure
    slots: Figure
    is_paused: bool


class Overview(NamedTuple):
    """How everything stands, by the last sample, which was taken *at* some moment; workers and pauses are of now.

    *in_lanes* are jobs behind the first of their lanes, *stuck* failed and paused ones, which wait for a person; those
    of them that are the first of a lane make *halted_lanes*. Jobs of the engine itself, as for webhooks, are left out.
    """

    at: datetime
    queues: tuple[QueueFigures, ...]
    in_lanes: Figure
    stuck: Figure
    halted_lanes: Figure
    open_chains: Figure
    workers: Figure
    slots: Figure


def width_for(seconds: float, age_seconds: float) -> int:
    """Choose the narrowest width for a range of *seconds* that began *age_seconds* ago."""
    for width, kept in KEPT_SECONDS.items():
        if age_seconds <= kept and seconds / width <= MOST_POINTS:
            return width
    return max(KEPT_SECONDS)
