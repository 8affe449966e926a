"""Tallies: how many attempts began and ended in an interval, counted by each worker for itself, and folded afterwards.

A worker writes its open intervals of 10 s again and again, with the numbers that it has by then, under its own name: so
a write may be repeated, waits for nobody, and no row is written by two. It may do so until an interval is 40 s old, by
the database's clock. When it is 60 s old, whoever comes first folds it: the numbers of all workers are added to the row
of the 10 s, of the minute, of the hour and of all time, and the worker's row is deleted, in one transaction. One folds
at a time, for a histogram is added here and not by the database; the others pass by.

Each kind of row has a width of its own, so that it stands together in the primary key and no second index is needed:
what is not folded yet (`OPEN`) would else be looked for among all that is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from holdfast.database.tx import Row, Tx, one_write, repeatable
from holdfast.errors import TooMany
from holdfast.figures import (
    KEPT_SECONDS,
    MOST_POINTS,
    OPEN_SECONDS,
    Counts,
    Histogram,
    Series,
    Tallied,
    Total,
    nothing_tallied,
    sum_of,
    width_for,
)
from holdfast.store.rows import instant

OPEN, SAMPLE, FOR_EVER = -OPEN_SECONDS, -1, 0
"""Widths of rows that are of no interval that is kept: one that a worker counts, a sample of gauges, all of time."""
FOLDED = ""
"""The source of what is folded."""
WRITTEN_MS, FOLDED_MS = 40_000, 60_000
"""How old an interval is when it is not written any more, and when it is folded; a slow write has the time between."""
MOST_FOLDED = MOST_EXPIRED = 500
MOST_ROWS = 100_000

NUMBERS = ", ".join(Counts._fields)
LISTED = ", ".join(f"{name} bigint" for name in Counts._fields)
GIVEN = ", ".join(f"given.{name}" for name in Counts._fields)
REPLACED = ", ".join(f"{name} = excluded.{name}" for name in (*Counts._fields, "wait", "run"))


class JobKind(NamedTuple):
    """What figures are kept apart by."""

    queue: str
    task: str


class OpenTally(NamedTuple):
    """What a worker has counted of one kind of jobs in the interval that begins *at*."""

    at: int
    kind: JobKind
    tallied: Tallied

    def values(self) -> tuple[object, ...]:
        """Give it as a row of a list parameter."""
        return self.at, *self.kind, *self.tallied.counts, self.tallied.wait.text(), self.tallied.run.text()


# absolute numbers: what is written twice counts once
WRITE = f"""
    INSERT INTO holdfast_tally (width, at, queue, task, source, {NUMBERS}, wait, run)
    SELECT {OPEN}, given.at, given.queue, given.task, :source, {GIVEN}, given.wait, given.run
    FROM $list(given: at bigint, queue text, task text, {LISTED}, wait text, run text)
    WHERE given.at > $now - {WRITTEN_MS}
    ON CONFLICT (width, at, queue, task, source) DO UPDATE SET {REPLACED}
    RETURNING at"""


@repeatable
@one_write
async def write(tx: Tx, source: str, tallies: Sequence[OpenTally]) -> set[int]:
    """Write down what the worker *source* has counted so far; answer which intervals were young enough for it."""
    rows = await tx.fetch_all(WRITE, source=source, given=[each.values() for each in tallies]) if tallies else []
    return {at for (at,) in rows}


KEPT_MS = {
    OPEN: FOLDED_MS,
    SAMPLE: 1000 * KEPT_SECONDS[OPEN_SECONDS],
    **{width: 1000 * seconds for width, seconds in KEPT_SECONDS.items()},
}
"""How long the rows of each width stay as they are; then `fold` takes those that are open, and `expire` the others."""
DUE = """
    SELECT given.width FROM $list(given: width bigint, kept_ms bigint)
    WHERE (SELECT kept.at FROM holdfast_tally AS kept WHERE kept.width = given.width ORDER BY kept.at LIMIT 1)
        < $now - given.kept_ms"""


async def due(tx: Tx) -> list[int]:
    """Name the widths that have rows to be folded or deleted, by a probe for each."""
    return [width for (width,) in await tx.fetch_all(DUE, given=list(KEPT_MS.items()))]


LOCK = """SELECT key FROM holdfast_meta WHERE key = 'figures' $skip_locked"""
OLDEST = """
    SELECT at, queue, task, source FROM holdfast_tally
    WHERE width = :width AND at < $now - :kept_ms
    ORDER BY at, queue, task, source LIMIT :most"""
# the second is what is meant; by the first it goes by the index, whatever statistics say
UP_TO = "at $any(ats: bigint) AND (at, queue, task, source) <= (:at, :queue, :task, :source)"
# what is deleted is what is added, whatever was written since it was found
TAKE = f"""
    DELETE FROM holdfast_tally
    WHERE width = {OPEN} AND {UP_TO}
    RETURNING at, queue, task, {NUMBERS}, wait, run"""
# one width at a time: a join with a list of whole keys reads the table for each where statistics say that it is empty;
# and between two times, for the list of them may become a filter there
SO_FAR = f"""
    SELECT width, at, queue, task, {NUMBERS}, wait, run FROM holdfast_tally
    WHERE width = :width AND at >= :first AND at <= :last AND at $any(ats: bigint) AND source = '{FOLDED}'
        AND coalesce(task, '') $any(tasks: text)"""
ADD = f"""
    INSERT INTO holdfast_tally (width, at, queue, task, source, {NUMBERS}, wait, run)
    SELECT given.width, given.at, given.queue, given.task, '{FOLDED}', {GIVEN}, given.wait, given.run
    FROM $list(given: width bigint, at bigint, queue text, task text, {LISTED}, wait text, run text)
    WHERE true
    ON CONFLICT (width, at, queue, task, source) DO UPDATE SET {REPLACED}"""

Place: TypeAlias = tuple[int, int, str, str]
"""A row of what is folded: width, at, queue, task."""


async def fold(tx: Tx, most: int = MOST_FOLDED) -> bool:
    """Fold up to *most* rows of intervals that are over; tell whether there may be more. Nothing, if somebody does."""
    found = await _oldest(tx, OPEN, most)
    if not found:
        return False
    added: defaultdict[Place, Tallied] = defaultdict(nothing_tallied)
    for taken_at, *kind, tallied in map(_split, await tx.fetch_all(TAKE, **_up_to(found))):
        for place in _places(taken_at, *kind):
            added[place] = added[place].plus(tallied)
    for width, *rest in await _so_far(tx, list(added)):
        known_at, known_queue, known_task, tallied = _split(rest)
        if (place := (width, known_at, known_queue, known_task)) in added:
            added[place] = added[place].plus(tallied)
    given = [(*place, *each.counts, each.wait.text(), each.run.text()) for place, each in added.items()]
    await tx.execute(ADD, given=given)
    return len(found) == most


async def _oldest(tx: Tx, width: int, most: int) -> list[Row]:
    """Find the oldest rows of *width* that have been kept long enough; none, if somebody else is about to."""
    if not await tx.fetch_all(LOCK):
        return []
    return await tx.fetch_all(OLDEST, width=width, kept_ms=KEPT_MS[width], most=most)


async def _so_far(tx: Tx, places: Sequence[Place]) -> list[Row]:
    """Read what is folded already at *places*, and some beside them."""
    found: list[Row] = []
    tasks = sorted({task for *_, task in places})
    for width in (*KEPT_SECONDS, FOR_EVER):
        ats = sorted({at for each, at, *_ in places if each == width})
        found += await tx.fetch_all(SO_FAR, width=width, first=ats[0], last=ats[-1], ats=ats, tasks=tasks)
    return found


def _up_to(found: Sequence[Row]) -> dict[str, object]:
    """Name, for a statement, the rows up to the last that was found."""
    at, queue, task, source = found[-1]
    return {"ats": sorted({row[0] for row in found}), "at": at, "queue": queue, "task": task, "source": source}


def _split(row: Sequence[Any]) -> tuple[int, str, str, Tallied]:
    """Read a row that begins with `at, queue, task, …`."""
    at, queue, task, *numbers, wait, run = row
    tallied = Tallied(Counts(*numbers), Histogram.read(wait), Histogram.read(run))
    return at, queue, task, tallied


def _places(at: int, queue: str, task: str) -> list[Place]:
    kept = [(width, at - at % (1000 * width), queue, task) for width in KEPT_SECONDS]
    return [*kept, (FOR_EVER, 0, queue, task)]


EXPIRE = f"""DELETE FROM holdfast_tally WHERE width = :width AND {UP_TO}"""


async def expire(tx: Tx, width: int, most: int = MOST_EXPIRED) -> bool:
    """Delete up to *most* rows of *width* that are older than they are kept; tell whether there may be more."""
    found = await _oldest(tx, width, most)
    if found:
        await tx.execute(EXPIRE, width=width, **_up_to(found))
    return len(found) == most


class Wanted(NamedTuple):
    """Which figures are asked for; None leaves it open. Times are milliseconds since 1970, *width* is seconds."""

    queue: str | None = None
    task: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    width: int | None = None


NOW = """SELECT $now"""
# the minute and the hour have what is folded of them, so what is not is added to them
BETWEEN = f"""
    SELECT at, queue, task, {NUMBERS}, wait, run FROM holdfast_tally
    WHERE width = :width AND at >= :since AND at < :until
        AND (CAST(:queue AS text) IS NULL OR queue = :queue) AND (CAST(:task AS text) IS NULL OR task = :task)
    UNION ALL
    SELECT at, queue, task, {NUMBERS}, wait, run FROM holdfast_tally
    WHERE width = {OPEN} AND at >= :since AND at < :until
        AND (CAST(:queue AS text) IS NULL OR queue = :queue) AND (CAST(:task AS text) IS NULL OR task = :task)
    LIMIT :most"""
AS_LONG_MS = 3_600_000
"""How far back a series goes if nobody says."""


async def series(tx: Tx, wanted: Wanted) -> Series:
    """Read what happened over time; raise `TooMany` for more points, or rows behind them, than one call takes."""
    ((now_ms,),) = await tx.fetch_all(NOW)
    until_ms = now_ms if wanted.until_ms is None else wanted.until_ms
    since_ms = until_ms - AS_LONG_MS if wanted.since_ms is None else wanted.since_ms
    width = wanted.width or width_for((until_ms - since_ms) / 1000, (now_ms - since_ms) / 1000)
    step = 1000 * width
    since_ms = max(since_ms, now_ms - 1000 * KEPT_SECONDS[width]) // step * step
    starts = range(since_ms, until_ms, step)
    if len(starts) > MOST_POINTS:
        advice = f"a series has at most {MOST_POINTS:,} intervals, and this one would have {len(starts):,}"
        wider = "choose a larger width, or " if width < max(KEPT_SECONDS) else ""
        hours = MOST_POINTS * width // 3600
        time = f"{hours // 24} days" if hours > 48 else f"{hours} hours"
        raise TooMany(len(starts), MOST_POINTS, f"{advice}; {wider}ask for at most {time} with since= and until=")
    asked = {"queue": wanted.queue, "task": wanted.task, "width": width, "most": MOST_ROWS + 1}
    rows = await tx.fetch_all(BETWEEN, since=since_ms, until=until_ms, **asked)
    if len(rows) > MOST_ROWS:
        advice = f"a series is made of at most {MOST_ROWS:,} rows, one for each interval, queue and task"
        raise TooMany(
            len(rows), MOST_ROWS, f"{advice}; name a queue or a task, choose a larger width, or a shorter range"
        )
    return _series(width, starts, rows, now_ms)


def _series(width: int, starts: range, rows: Sequence[Row], now_ms: int) -> Series:
    points = {start: nothing_tallied() for start in starts}
    for at, *_, tallied in map(_split, rows):
        start = at // starts.step * starts.step
        points[start] = points[start].plus(tallied)
    total = sum_of(points.values())
    growing = [start for start in starts if start + starts.step > now_ms - WRITTEN_MS + 1000 * OPEN_SECONDS]
    return Series(
        width=width,
        at=tuple(map(instant, starts)),
        counts=tuple(each.counts for each in points.values()),
        wait=tuple(each.wait.percentiles() for each in points.values()),
        run=tuple(each.run.percentiles() for each in points.values()),
        open_from=instant(growing[0]) if growing else None,
        total=Total(total.counts, total.wait.percentiles(), total.run.percentiles()),
    )


# of one view: a row that is folded meanwhile is in one of them, and never in both or in none
TOTALS = f"""
    SELECT at, queue, task, {NUMBERS}, wait, run FROM holdfast_tally WHERE width = :for_ever
    UNION ALL
    SELECT at, queue, task, {NUMBERS}, wait, run FROM holdfast_tally WHERE width = :open"""


async def totals(tx: Tx) -> dict[JobKind, Tallied]:
    """Read what happened since the beginning, by kind of job: numbers that only grow, in one statement."""
    found: defaultdict[JobKind, Tallied] = defaultdict(nothing_tallied)
    for _, queue, task, tallied in map(_split, await tx.fetch_all(TOTALS, for_ever=FOR_EVER, open=OPEN)):
        kind = JobKind(queue, task)
        found[kind] = found[kind].plus(tallied)
    return dict(found)
