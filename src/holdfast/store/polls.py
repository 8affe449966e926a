"""What those who sleep read when they are woken, and at every poll: one statement, no transaction, no lock.

Each read brings its horizon, of the same snapshot, by which a sleeper knows whether everybody has seen its mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from holdfast.database.hints import Horizon
from holdfast.database.tx import Row, Tx
from holdfast.states import Status
from holdfast.unreadable import object_of, readable, reading

if TYPE_CHECKING:
    from holdfast.store.jobs.claiming import Want


class WaitingWork(NamedTuple):
    """Whether there is something to admit or to claim now, and in how many milliseconds the next arrival is due."""

    is_there: bool
    next_ms: int | None
    horizon: Horizon
    has_outbox: bool = False
    """Whether events wait for their webhook deliveries to be made."""
    tick_ms: int | None = None
    """In how many milliseconds the next schedule is due; None if there are no schedules."""


NEVER = 2**53
"""When the next schedule is due if there are some, and none of them ever is."""
# scalar subqueries stay probes, one for each (queue, task) that is served
WAITING_WORK = f"""
    SELECT
        CASE WHEN (SELECT 1 FROM holdfast_queue AS held WHERE held.name = given.queue AND held.paused_at IS NOT NULL
            AND (held.until IS NULL OR held.until > $now)) IS NULL
        THEN (SELECT ready.seq FROM holdfast_job AS ready
            WHERE ready.queue = given.queue AND ready.task = given.task AND ready.gate = 'ready'
            ORDER BY ready.sort_key LIMIT 1) END,
        (SELECT arrival.wake_at FROM holdfast_job AS arrival
            WHERE arrival.queue = given.queue AND arrival.gate = 'arrival'
            ORDER BY arrival.wake_at LIMIT 1) - $now,
        (SELECT unmade.seq FROM holdfast_outbox AS unmade ORDER BY unmade.seq LIMIT 1),
        coalesce((SELECT due.next_at FROM holdfast_schedule AS due
            WHERE due.paused_at IS NULL AND due.next_at > 0 ORDER BY due.next_at LIMIT 1),
            (SELECT {NEVER} FROM holdfast_schedule AS known LIMIT 1)) - $now,
        $oldest, $newest
    FROM $list(given: queue text, task text)"""


async def waiting_work(tx: Tx, wants: Sequence[Want]) -> WaitingWork:
    """Look whether a worker that serves *wants* has something to do."""
    rows = await tx.fetch_all(WAITING_WORK, given=[(each.queue, each.task) for each in wants])
    next_ms = min((wait for _, wait, *_ in rows if wait is not None), default=None)
    is_there = any(seq is not None for seq, *_ in rows) or (next_ms is not None and next_ms <= 0)
    if not rows:
        return WaitingWork(is_there, next_ms, Horizon(0, 0))
    _, _, unmade, tick_ms, *horizon = rows[0]
    return WaitingWork(is_there, next_ms, Horizon(*horizon), has_outbox=unmade is not None, tick_ms=tick_ms)


# by when it was due: the key is earlier or later by its priority
LEFT_WAITING = """
    SELECT $now - run_at FROM holdfast_job
    WHERE queue = :queue AND task = :task AND gate = 'ready' ORDER BY sort_key LIMIT 1"""


async def is_left_waiting(tx: Tx, queue: str, task: str, milliseconds: int) -> bool:
    """Look whether the next job of *task* in *queue* could have been claimed for *milliseconds*, and was not."""
    return any(waited > milliseconds for (waited,) in await tx.fetch_all(LEFT_WAITING, queue=queue, task=task))


# a loose scan: the next kind behind the last one, so that it costs a probe for each kind and not for each row. Two
# subselects: for `(queue, task) > (…)` SQLite reads all that is equal first, 61 ms among 200,000 jobs of one kind
NEXT_KIND = """
    SELECT queue, task FROM holdfast_job WHERE seq $is(coalesce(
        (SELECT next.seq FROM holdfast_job AS next
            WHERE next.gate = 'ready' AND next.queue = :queue AND next.task > :task
            ORDER BY next.task, next.sort_key, next.seq LIMIT 1),
        (SELECT next.seq FROM holdfast_job AS next
            WHERE next.gate = 'ready' AND next.queue > :queue
            ORDER BY next.queue, next.task, next.sort_key, next.seq LIMIT 1)))"""
MOST_KINDS = 100


async def waiting_kinds(tx: Tx) -> list[tuple[str, str]]:
    """Name the queues and tasks of jobs that could be claimed, at most a hundred pairs."""
    found: list[tuple[str, str]] = []
    queue = task = ""
    while len(found) < MOST_KINDS and (rows := await tx.fetch_all(NEXT_KIND, queue=queue, task=task)):
        ((queue, task),) = rows
        found.append((queue, task))
    return found


class ClosedChains(NamedTuple):
    """Which chains have closed, and whether all that were asked for exist."""

    closed: list[UUID]
    are_all_there: bool
    horizon: Horizon


CLOSED_CHAINS = """
    SELECT CAST(NULL AS text), count(*), $oldest, $newest FROM holdfast_job WHERE id $any(ids: text)
    UNION ALL
    SELECT id, 0, 0, 0 FROM holdfast_job WHERE id $any(ids: text) AND closed_as IS NOT NULL"""


async def closed_chains(tx: Tx, chain_ids: Sequence[UUID]) -> ClosedChains:
    """Look which of *chain_ids* have closed."""
    rows = await tx.fetch_all(CLOSED_CHAINS, ids=[str(each) for each in chain_ids])
    ((count, oldest, newest),) = [facts for id_, *facts in rows if id_ is None]
    closed = [UUID(id_) for id_, *_ in rows if id_ is not None]
    return ClosedChains(closed, count == len(chain_ids), Horizon(oldest, newest))


class ChainResult(NamedTuple):
    """How the chain of the job *asked* stands, by its last job; *closed_as* is None while it is open."""

    asked: UUID
    chain_id: UUID
    closed_as: Status | None
    job_id: UUID
    task: str
    output: str | None
    reason: str | None
    error: dict[str, Any] | None


CHAIN_RESULTS = """
    SELECT asked.id, first.id, first.closed_as, last.id, last.task, last.output, last.reason, last.error
    FROM holdfast_job AS asked JOIN holdfast_job AS first ON first.id $is(asked.chain_id)
    JOIN holdfast_job AS last ON last.seq $is(coalesce(
        (SELECT later.seq FROM holdfast_job AS later
            WHERE later.chain_id = first.id AND later.chain_index > 0
            ORDER BY later.chain_index DESC LIMIT 1),
        first.seq))
    WHERE asked.id $any(ids: text)"""


async def chain_results(tx: Tx, ids: Sequence[UUID]) -> dict[UUID, ChainResult]:
    """Read how the chains of *ids*, which name chains or any of their jobs, stand.

    What is not there is left out, and what cannot be read: this is read for all who wait in a process.
    """
    rows = await tx.fetch_all(CHAIN_RESULTS, ids=[str(each) for each in ids])
    return {each.asked: each for each in readable(rows, _chain_result)}


def _chain_result(row: Row) -> ChainResult:
    asked, chain_id, closed_as, job_id, task, output, reason, error = row
    with reading("holdfast_job", chain_id):
        status = None if closed_as is None else Status(closed_as)
        ids = UUID(asked), UUID(chain_id)
        return ChainResult(*ids, status, UUID(job_id), task, output, reason, object_of(error) or None)
