"""What a worker counts of its attempts, and writes down every few seconds: never in a transaction of a job.

It counts into intervals of 10 s of the database's time, which upkeep tells it. Each interval is written with all of its
numbers, as often as they have changed, until it is over. What the database does not take any more, because it was away
or this process stood still for long, is counted into the interval of now, as far as it cannot have been written before.
So nothing is counted twice; lost is what a process that dies has not written, or what was in doubt then.

Counting is what every job pays for: one dictionary and some lists, no lock, no clock. All of it is done in the worker's
loop.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress

from holdfast.database.tx import Store
from holdfast.errors import StoreError, UnknownOutcome
from holdfast.figures import BINS, BOUNDS, COUNTED_AS, OPEN_SECONDS, Counts, Histogram, Tallied
from holdfast.logging import level_beside, reason_of, say
from holdfast.outcomes import Kind
from holdfast.runtime import Runtime
from holdfast.store import reads
from holdfast.store.insight import tallies
from holdfast.store.insight.tallies import JobKind, OpenTally
from holdfast.store.jobs.claiming import Claimed
from holdfast.store.jobs.reaping import TakenBack
from holdfast.store.jobs.settling import Settled, Settlement

WRITE_SECONDS = 5.0
JUMP_MS = 10_000
"""By how much the database's clock has to be elsewhere than we expect to have been put forward or back."""
LAST_SECONDS = 1.0
"""How long a worker that ends tries to write down what it has counted."""
OPEN_MS = 1000 * OPEN_SECONDS
COMPLETE, COMPLETED = Kind.COMPLETE, Counts._fields.index("completed")  # most; to look an enum up costs 0.15 µs
ENDS = {kind: Counts._fields.index(name) for kind, name in COUNTED_AS.items()}

logger = logging.getLogger(__name__)


class _Tally:
    """Of one kind of jobs in one interval; the numbers stand as in `Counts`, the others by bins."""

    __slots__ = ("counts", "run", "wait")

    def __init__(self) -> None:
        self.counts = [0] * len(Counts._fields)
        self.wait = [0] * BINS
        self.run = [0] * BINS

    def tallied(self) -> Tallied:
        return Tallied(Counts(*self.counts), _histogram(self.wait), _histogram(self.run))

    def add(self, more: Tallied) -> None:
        for number, count in enumerate(more.counts):
            self.counts[number] += count
        for bins, histogram in ((self.wait, more.wait), (self.run, more.run)):
            for number, count in histogram.items():
                bins[number] += count


def _histogram(bins: Sequence[int]) -> Histogram:
    return Histogram({number: count for number, count in enumerate(bins) if count})


class _Interval:
    """One of 10 s: what was counted, what of it is written, and what may be, for a write is under way or in doubt."""

    __slots__ = ("at", "counted", "sent", "written")

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        """When it begins; None until the database's time is known."""
        self.counted: dict[tuple[str, str], _Tally] = {}
        self.written: dict[JobKind, Tallied] = {}
        self.sent: dict[JobKind, Tallied] = {}

    def unwritten(self) -> list[OpenTally]:
        """Give the kinds that have changed since they were written, with all of their numbers."""
        if self.at is None:
            return []
        now = [OpenTally(self.at, JobKind(*kind), each.tallied()) for kind, each in self.counted.items()]
        return [each for each in now if each.tallied != self.written.get(each.kind)]

    def left(self) -> dict[JobKind, Tallied]:
        """Give what was counted and cannot have been written."""
        known = {**self.written, **self.sent}
        now = {JobKind(*kind): each.tallied() for kind, each in self.counted.items()}
        return {kind: each.less(known[kind]) if kind in known else each for kind, each in now.items()}


class Tally:
    """The figures of *worker*; `run` writes them down."""

    def __init__(self, store: Store, runtime: Runtime, worker: str) -> None:
        self._store = store
        self._monotonic = runtime.monotonic
        self._sleep = runtime.sleep
        self._worker = worker
        self._jumps = 0
        self.written = 0
        """How often something was written down."""
        self._offset_ms: int | None = None
        """The database's time less our own, which only measures; upkeep tells."""
        self._past: list[_Interval] = []
        self._count_into(_Interval())

    # counting

    def started(self, job: Claimed) -> None:
        """Count an attempt whose handler begins."""
        tally = self._counted.get((job.queue, job.task)) or self._of(job.queue, job.task)
        tally.counts[0] += 1
        tally.wait[bisect_right(BOUNDS, job.waited_ms)] += 1

    def settled(self, batch: Sequence[Settlement], settled: Settled) -> None:
        """Count the attempts of *batch* whose ends are written down; none that had not begun."""
        done = None if len(settled.done) == len(batch) else set(settled.done)
        counted, as_asked = self._counted, settled.as_asked
        for token, outcome, _, _, _, queue, task, ran_ms in batch:
            if ran_ms is None or not (done is None or token in done):
                continue
            tally = counted.get((queue, task)) or self._of(queue, task)
            kind = outcome.kind if not as_asked else as_asked.get(token, outcome.kind)
            tally.counts[COMPLETED if kind is COMPLETE else ENDS[kind]] += 1
            tally.run[bisect_right(BOUNDS, ran_ms)] += 1

    def ended(self, queue: str, task: str, kind: Kind, ran_ms: float) -> None:
        """Count an attempt that had begun, and whose end is written down as *kind*."""
        tally = self._of(queue, task)
        tally.counts[ENDS[kind]] += 1
        tally.run[bisect_right(BOUNDS, ran_ms)] += 1

    def taken_back(self, taken: Sequence[TakenBack]) -> None:
        """Count attempts of workers that are gone, which this worker has taken back; none that had not begun."""
        for each in taken:
            if each.outcome.kind is not Kind.GIVE_BACK:
                self._of(each.queue, each.task).counts[ENDS[each.outcome.kind]] += 1

    def _of(self, queue: str, task: str) -> _Tally:
        return self._counted.setdefault((queue, task), _Tally())

    # the interval of now

    def note_clock(self, database_ms: int) -> None:
        """Learn what time it is in the database."""
        offset_ms = database_ms - round(1000 * self._monotonic())
        has_jumped = self._offset_ms is not None and abs(offset_ms - self._offset_ms) > JUMP_MS
        self._offset_ms = offset_ms
        if has_jumped:
            # what is written stays; what comes is written under another name, or an interval that comes again would
            # replace what was counted in it, or count it twice
            self._jumps += 1
            intervals, self._past = [*self._past, self._now], []
            self._count_into(_Interval())
            self._carry_over(intervals)
        self._turn()

    @property
    def _source(self) -> str:
        return f"{self._worker}/{self._jumps}" if self._jumps else self._worker

    def _count_into(self, interval: _Interval) -> None:
        self._now, self._counted = interval, interval.counted

    def _now_ms(self) -> int | None:
        return None if self._offset_ms is None else round(1000 * self._monotonic()) + self._offset_ms

    def _turn(self) -> None:
        """Count into the interval of now from here on."""
        if (now_ms := self._now_ms()) is None:
            return
        at = now_ms - now_ms % OPEN_MS
        if self._now.at is None:
            self._now.at = at
        elif self._now.at < at:  # not back: the database's time is known to some milliseconds, and so is the boundary
            self._past.append(self._now)
            self._count_into(_Interval(at))

    def _carry_over(self, intervals: Sequence[_Interval]) -> None:
        """Count what cannot have been written of *intervals*, and will not be, into the one of now."""
        for interval in intervals:
            for kind, left in interval.left().items():
                if any(left.counts):
                    self._of(*kind).add(left)

    # writing

    async def run(self) -> None:
        """Write every few seconds what has changed, until cancelled."""
        write_at = self._monotonic() + WRITE_SECONDS
        while True:
            await self._sleep(max(0.0, min(write_at - self._monotonic(), self._seconds_left())))
            self._turn()
            if self._monotonic() >= write_at:
                await self._try_to_write()
                write_at = self._monotonic() + WRITE_SECONDS

    async def end(self) -> None:
        """Write what is left, if that can be done soon."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                await self._try_to_write()

    async def _try_to_write(self) -> None:
        try:
            await self.write()
        except Exception as error:  # noqa: BLE001 - no job depends on it, and the next time comes
            say(logger, "figures_not_written", level=level_beside(error), trace=error, reason=reason_of(error))

    def _seconds_left(self) -> float:
        """Say how long the interval of now goes on."""
        now_ms = self._now_ms()
        return WRITE_SECONDS if now_ms is None else (OPEN_MS - now_ms % OPEN_MS) / 1000

    async def write(self) -> None:
        """Write what has changed; what the database does not take any more is counted into the interval of now."""
        if self._offset_ms is None and self._counted:  # upkeep has not told yet, and there may be no later time
            self.note_clock(await self._store.read(reads.now_ms))
        self._turn()
        over, sent = list(self._past), {each: each.unwritten() for each in (*self._past, self._now)}
        before = {each: each.sent for each in sent}
        for interval, tallied in sent.items():
            interval.sent = interval.sent | {each.kind: each.tallied for each in tallied}
        taken: set[int] = set()
        if given := [each for tallied in sent.values() for each in tallied]:
            try:
                taken = await self._store.run(tallies.write, self._source, given)
                self.written += 1
            except UnknownOutcome:
                return
            except StoreError:
                for interval in sent:
                    interval.sent = before[interval]
                raise
        for interval, tallied in sent.items():
            if interval.at in taken:
                interval.written |= {each.kind: each.tallied for each in tallied}
                interval.sent = {}
            else:
                interval.sent = before[interval]
        ours = [each for each in over if each in self._past]  # else the clock has jumped meanwhile
        self._past = [each for each in self._past if each not in ours]
        self._carry_over([each for each in ours if each.at not in taken])
