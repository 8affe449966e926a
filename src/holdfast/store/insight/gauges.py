"""Gauges: how many jobs are ready, scheduled, running, in lanes or stuck; sampled by one process for all.

No count reads more than `MOST_COUNTED` rows of the index that it goes by, whatever the table holds and however many
queues there are: those with many jobs share that. Above it a figure says that it is at least so much. A sample is a row
of the table of tallies, by the 10 s in which it was taken: whoever inserts that row takes the sample, and all others
read it. It is taken between two short writes, so that on SQLite nobody waits while it counts; if its process dies
meanwhile, the next interval has another. It costs at most 1 % of a core, for the next one comes after a hundred times
as long as it took.

Jobs of the engine's own queue, which deliver webhooks, are left out. They are taken out of what was counted, so that
they count for the bound.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.database.tx import Tx, one_write, repeatable
from holdfast.figures import OPEN_SECONDS, Figure, Overview, QueueFigures
from holdfast.models import INTERNAL_QUEUE
from holdfast.store import workers
from holdfast.store.insight.tallies import SAMPLE
from holdfast.store.rows import PRIORITY_MS, instant
from holdfast.store.stuck import IS_STUCK
from holdfast.store.workers import LivingWorker
from holdfast.unreadable import object_of

MOST_COUNTED = 100_000
FEW = 1_000
"""How far each queue is counted, before those that have more share what is left."""
MOST_QUEUES = MOST_KINDS = 1_000
SHARE = 100
"""How many times as long as a sample took the next one has to wait, at least."""
SOURCE = "gauge"

# a loose scan: the first of the next kind behind the last one, so that it costs a probe for each kind and not for each
# row. Two subselects: `(queue, task) > (…)` has SQLite read all that is equal before it goes on
FRONTS = f"""
    WITH RECURSIVE front(queue, task, since, nr) AS (
        SELECT CAST('' AS text), CAST('' AS text), CAST(0 AS bigint), 0
        UNION ALL
        SELECT first.queue, first.task, first.sort_key + {PRIORITY_MS} * first.priority, front.nr + 1
        FROM front JOIN holdfast_job AS first ON first.seq $is(coalesce(
            (SELECT next.seq FROM holdfast_job AS next
            WHERE next.gate = 'ready' AND next.queue = front.queue AND next.task > front.task
            ORDER BY next.task, next.sort_key, next.seq LIMIT 1),
            (SELECT next.seq FROM holdfast_job AS next
            WHERE next.gate = 'ready' AND next.queue > front.queue
            ORDER BY next.queue, next.task, next.sort_key, next.seq LIMIT 1)))
        WHERE front.nr < :most)"""
FRONT = f"{FRONTS} SELECT queue, $now - min(since) FROM front WHERE nr > 0 GROUP BY queue"
READY_KINDS = f"{FRONTS} SELECT queue, task FROM front WHERE nr > 0"
SCHEDULED = """
    WITH RECURSIVE named(queue, nr) AS (
        SELECT (SELECT min(first.queue) FROM holdfast_job AS first WHERE first.gate = 'arrival'), 1
        UNION ALL
        SELECT (SELECT min(next.queue) FROM holdfast_job AS next
            WHERE next.gate = 'arrival' AND next.queue > named.queue), named.nr + 1
        FROM named WHERE named.queue IS NOT NULL AND named.nr < :most)
    SELECT queue FROM named WHERE queue IS NOT NULL"""
# in the order of their index, or they would go along the table
WAITING = """
    SELECT given.queue,
        (SELECT count(*) FROM (SELECT 1 FROM holdfast_job AS ready
            WHERE ready.queue = given.queue AND ready.gate = 'ready'
            ORDER BY ready.task, ready.sort_key, ready.seq LIMIT :most) AS counted),
        (SELECT count(*) FROM (SELECT 1 FROM holdfast_job AS later
            WHERE later.queue = given.queue AND later.gate = 'arrival'
            ORDER BY later.wake_at, later.seq LIMIT :most) AS counted)
    FROM $list(given: queue text)"""
RUNNING = """
    SELECT queue, count(*) FROM (SELECT queue FROM holdfast_job
        WHERE lease_until IS NOT NULL ORDER BY lease_until LIMIT :most) AS counted
    GROUP BY queue"""
OURS = f"coalesce(sum(CASE queue WHEN '{INTERNAL_QUEUE}' THEN 1 ELSE 0 END), 0)"
IN_ALL = f"""
    SELECT 'in_lanes', count(*), {OURS} FROM (SELECT queue FROM holdfast_job
        WHERE gate = 'lane' ORDER BY lane, place LIMIT :most) AS counted
    UNION ALL SELECT 'stuck', count(*), {OURS} FROM (SELECT queue FROM holdfast_job
        WHERE {IS_STUCK} ORDER BY head, status, seq LIMIT :most) AS counted
    UNION ALL SELECT 'halted_lanes', count(*), {OURS} FROM (SELECT queue FROM holdfast_job
        WHERE {IS_STUCK} AND head = 1 ORDER BY status, seq LIMIT :most) AS counted
    UNION ALL SELECT 'open_chains', count(*), {OURS} FROM (SELECT queue FROM holdfast_job
        WHERE chain_index = 0 AND closed_as IS NULL ORDER BY seq LIMIT :most) AS counted"""
NOW = """SELECT $now"""


class Sample(NamedTuple):
    """How it stood at *at_ms*, and how long it took to see; each count with whether it is exact."""

    at_ms: int
    took_ms: int
    queues: Mapping[str, Mapping[str, Any]]
    in_all: Mapping[str, tuple[int, bool]]

    def text(self) -> str:
        return json.dumps(self._asdict(), separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> Sample | None:
        """Read what `text` has written; None for anything else."""
        try:
            return cls(**object_of(text))
        except TypeError:
            return None


async def sample(tx: Tx, most: int = MOST_COUNTED) -> Sample:
    """Count what there is, up to *most* of each."""
    ((began_ms,),) = await tx.fetch_all(NOW)
    bound = most + 1
    front: dict[str, int] = dict(await tx.fetch_all(FRONT, most=MOST_KINDS))
    running = await tx.fetch_all(RUNNING, most=bound)
    is_exact = sum(count for _, count in running) <= most
    runs: dict[str, int] = dict(running)
    scheduled = {queue for (queue,) in await tx.fetch_all(SCHEDULED, most=MOST_QUEUES)}
    names = sorted({*front, *scheduled, *runs} - {INTERNAL_QUEUE})
    queues = {
        queue: {**waiting, "oldest_ready": front.get(queue), "running": (runs.get(queue, 0), is_exact)}
        for queue, waiting in (await _waiting(tx, names, most)).items()
    }
    counted = await tx.fetch_all(IN_ALL, most=bound)
    in_all = {name: (min(count, most) - ours, count <= most) for name, count, ours in counted}
    ((ended_ms,),) = await tx.fetch_all(NOW)
    return Sample(ended_ms, ended_ms - began_ms, queues, in_all)


async def _waiting(tx: Tx, names: Sequence[str], most: int) -> dict[str, dict[str, tuple[int, bool]]]:
    """Count what waits in each queue: a few of all, then the rest of those that have more, about *most* together."""
    few = min(FEW, most)
    found = await _counted(tx, names, few)
    long = [name for name, counts in found.items() if not all(is_exact for _, is_exact in counts.values())]
    share = max(few, most // len(long)) if long else few
    return found | await _counted(tx, long, share) if share > few else found


async def _counted(tx: Tx, names: Sequence[str], most: int) -> dict[str, dict[str, tuple[int, bool]]]:
    rows = await tx.fetch_all(WAITING, given=[(name,) for name in names], most=most + 1) if names else []
    return {queue: {"ready": _bounded(ready, most), "scheduled": _bounded(later, most)} for queue, ready, later in rows}


def _bounded(count: int, most: int) -> tuple[int, bool]:
    return min(count, most), count <= most


OWN = f"""
    INSERT INTO holdfast_tally (width, at, queue, task, source)
    SELECT {SAMPLE}, $now - $now % {1000 * OPEN_SECONDS}, '', '', '{SOURCE}'
    WHERE true
    ON CONFLICT (width, at, queue, task, source) DO NOTHING
    RETURNING at"""


@one_write
async def own(tx: Tx) -> int | None:
    """Make the sample of this moment ours to take, and give its key; None if somebody else takes it."""
    rows = await tx.fetch_all(OWN)
    return rows[0][0] if rows else None


KEEP = f"""
    UPDATE holdfast_tally SET gauge = :gauge
    WHERE width = {SAMPLE} AND at = :at AND queue = '' AND task = '' AND source = '{SOURCE}'"""


@repeatable
@one_write
async def keep(tx: Tx, at: int, taken: Sample) -> None:
    """Write down, for all, the sample that is ours by *at*."""
    await tx.execute(KEEP, at=at, gauge=taken.text())


# a statement without parameters keeps the plan that it was prepared with, while the table was tiny. What was taken
# before the clock was put back has a time to come, and would be the last one until then
LATEST = """
    SELECT $now, (SELECT kept.gauge FROM holdfast_tally AS kept
        WHERE kept.width = :width AND kept.at <= $now AND kept.gauge IS NOT NULL ORDER BY kept.at DESC LIMIT 1)"""


async def latest(tx: Tx, after_ms: int) -> tuple[Sample | None, bool]:
    """Read the last sample; tell whether another may be taken, if none is wanted sooner than *after_ms* after it."""
    ((now_ms, text),) = await tx.fetch_all(LATEST, width=SAMPLE)
    last = None if text is None else Sample.read(text)
    return last, last is None or abs(now_ms - last.at_ms) >= max(after_ms, SHARE * last.took_ms)


PAUSED = f"""
    SELECT name FROM holdfast_queue WHERE paused_at IS NOT NULL AND (until IS NULL OR until > $now)
    ORDER BY name LIMIT {MOST_QUEUES}"""


class Staff(NamedTuple):
    """What needs no counting: the workers that live, and the queues that are paused."""

    now_ms: int
    workers: Sequence[LivingWorker]
    paused: frozenset[str]


async def staff(tx: Tx) -> Staff:
    """Read who is there to work, and what they are kept from."""
    ((now_ms,),) = await tx.fetch_all(NOW)
    living = await workers.living(tx)
    return Staff(now_ms, living, frozenset(name for (name,) in await tx.fetch_all(PAUSED)))


def _slots(living: Iterable[LivingWorker]) -> int:
    """Say how many jobs they run at once, without webhooks."""
    return sum((each.slots.handlers or 0) + (each.slots.children or 0) for each in living)


def overview_of(taken: Sample, there: Staff) -> Overview:
    """Say how everything stands."""
    at, now = instant(taken.at_ms), instant(there.now_ms)
    served = {name for each in there.workers for name in each.queues}
    names = sorted({*taken.queues, *there.paused, *served} - {INTERNAL_QUEUE})

    def figure(value: float, is_exact: bool) -> Figure:
        return Figure(value, at, is_exact)

    def queue_figures(name: str) -> QueueFigures:
        seen = taken.queues.get(name, NOTHING_WAITS)
        oldest_ms = seen["oldest_ready"]
        return QueueFigures(
            name=name,
            ready=figure(*seen["ready"]),
            oldest_ready=None if oldest_ms is None else figure(max(oldest_ms, 0) / 1000, is_exact=True),
            scheduled=figure(*seen["scheduled"]),
            running=figure(*seen["running"]),
            slots=Figure(_slots(each for each in there.workers if each.serves(name)), now),
            is_paused=name in there.paused,
        )

    return Overview(
        at=at,
        queues=tuple(map(queue_figures, names)),
        **{name: figure(*seen) for name, seen in taken.in_all.items()},
        workers=Figure(len(there.workers), now),
        slots=Figure(_slots(there.workers), now),
    )


NOTHING_WAITS: Mapping[str, Any] = {
    "ready": (0, True),
    "oldest_ready": None,
    "scheduled": (0, True),
    "running": (0, True),
}
