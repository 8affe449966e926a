"""Reading jobs and chains: one by id, or lists a page at a time, never a COUNT(*).

Lists go by `seq`, the primary key, in either order; a cursor is the last `seq` seen, so it stays right while rows
come and go. A filter that has an index of its own (open chains) uses it; others are tested along the way. They stand
inside a CASE, because a planner that takes a filter for a rare one reads and sorts the whole table: it has no
statistics for a CASE, expects half of the rows to fit, and stays with the order. A scalar subquery stays a probe for
each row that is looked at; EXISTS would become a join, or a hash of its whole table.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from holdfast.database.tx import Row, Tx
from holdfast.errors import ChainNotFound, JobNotFound, UsageError
from holdfast.models import INTERNAL_QUEUE, ChainFilter, Job, JobFilter, Order, Page, StoredChain
from holdfast.states import OPEN, TERMINAL, State, Status
from holdfast.store.rows import COLUMNS, FACTS, FACTS_WITH_RESULTS, SEQ_AT, instant, maybe_instant, to_job
from holdfast.unreadable import readable, reading

T = TypeVar("T")

JOB = f"""SELECT {COLUMNS}, {FACTS_WITH_RESULTS} FROM holdfast_job WHERE id = :id"""


async def get_job(tx: Tx, job_id: UUID) -> Job:
    """Read the job *job_id*, or raise `JobNotFound`."""
    found = await tx.fetch_all(JOB, id=str(job_id))
    if not found:
        raise JobNotFound(job_id)
    return to_job(found[0])


JOBS = f"""SELECT {COLUMNS}, {FACTS} FROM holdfast_job WHERE id $any(ids: text)"""


async def jobs_by_id(tx: Tx, job_ids: Sequence[UUID]) -> list[Job]:
    """Read those of *job_ids* that exist, in no order; or raise `Unreadable`."""
    return [to_job(row) for row in await tx.fetch_all(JOBS, ids=[str(each) for each in job_ids])]


# a chain's status and output are its last job's: the highest index, or the first job itself
CHAIN = """
    SELECT first.id, first.task, last.status, first.created_at, first.closed_at, last.output, last.task, first.seq
    FROM holdfast_job AS first JOIN holdfast_job AS last ON last.seq $is(coalesce(
        (SELECT later.seq FROM holdfast_job AS later
            WHERE later.chain_id = first.id AND later.chain_index > 0
            ORDER BY later.chain_index DESC LIMIT 1),
        first.seq))"""
CHAINS_BY_ID = f"""{CHAIN}
    WHERE first.id $any(ids: text)"""
CHAIN_OF_JOB = """SELECT chain_id FROM holdfast_job WHERE id = :id"""


async def chains_by_id(tx: Tx, chain_ids: Sequence[UUID]) -> list[StoredChain[Any]]:
    """Read those of *chain_ids* that exist, in no order; or raise `Unreadable`."""
    if not chain_ids:
        return []
    return [to_chain(row) for row in await tx.fetch_all(CHAINS_BY_ID, ids=[str(each) for each in chain_ids])]


async def get_chain(tx: Tx, chain_id: UUID) -> StoredChain[Any]:
    """Read the chain that *chain_id*, or the job of that id, belongs to; or raise `ChainNotFound`."""
    found = await tx.fetch_all(CHAIN_OF_JOB, id=str(chain_id))
    with reading("holdfast_job", str(chain_id)):
        wanted = [UUID(chain) for (chain,) in found]
    chains = await chains_by_id(tx, wanted)
    if not chains:
        raise ChainNotFound(chain_id)
    return chains[0]


class Paging(NamedTuple):
    """Which page of a list is wanted."""

    limit: int = 50
    order: Order = "newest"
    cursor: str | None = None


async def list_jobs(tx: Tx, wanted: JobFilter, paging: Paging) -> Page[Job]:
    """List the jobs that fit *wanted*."""
    sql = f"SELECT {COLUMNS}, {FACTS} FROM holdfast_job WHERE {CHILD if wanted.parent else 'true'}"
    return await page(tx, sql, "holdfast_job.seq", _job_conditions(wanted), paging, to_job, seq_at=SEQ_AT)


CHILD = "holdfast_job.parent = :parent"  # has an index of its own, in the order of lists


async def list_chains(tx: Tx, wanted: ChainFilter, paging: Paging) -> Page[StoredChain[Any]]:
    """List the chains that fit *wanted*."""
    sql = f"{CHAIN} WHERE {OPEN_CHAIN if _is_open(wanted) else 'true'}"
    return await page(tx, sql, "first.seq", _chain_conditions(wanted), paging, to_chain, seq_at=7)


CHAIN_JOBS = f"""
    SELECT {COLUMNS}, {FACTS} FROM holdfast_job
    WHERE holdfast_job.seq $any(seqs: bigint) ORDER BY holdfast_job.chain_index"""
STEPS = """
    SELECT seq, chain_index FROM holdfast_job
    WHERE chain_id = :chain_id AND chain_index > :after AND chain_index > 0
    ORDER BY chain_index LIMIT :most"""
FIRST = """SELECT seq, chain_index FROM holdfast_job WHERE id = :chain_id AND chain_index > :after"""


async def list_chain_jobs(tx: Tx, chain_id: UUID, paging: Paging) -> Page[Job]:
    """List the jobs of a chain from its first step on; raise `ChainNotFound` if there is none."""
    ((chain,),) = await tx.fetch_all(CHAIN_OF_JOB, id=str(chain_id)) or [(None,)]
    if chain is None:
        raise ChainNotFound(chain_id)
    after = -1 if paging.cursor is None else read_cursor(paging.cursor, "steps")
    values: dict[str, object] = {"chain_id": chain, "after": after}
    steps = await tx.fetch_all(FIRST, **values) + await tx.fetch_all(STEPS, **values, most=paging.limit + 1)
    wanted = steps[: paging.limit]
    jobs = await tx.fetch_all(CHAIN_JOBS, seqs=[seq for seq, _ in wanted])
    more = len(steps) > len(wanted)
    return Page(tuple(readable(jobs, to_job)), write_cursor("steps", wanted[-1][1]) if more else None)


BLOCKERS = """SELECT chain_id FROM holdfast_blocker WHERE job = :job ORDER BY position"""


async def get_blockers(tx: Tx, job_id: UUID) -> list[StoredChain[Any]]:
    """Read the chains that the job *job_id* waits or has waited for, in the order in which they were given.

    One that was named twice comes twice; what has been deleted since is left out. Raises `JobNotFound`.
    """
    job = await get_job(tx, job_id)
    wanted = [UUID(chain_id) for (chain_id,) in await tx.fetch_all(BLOCKERS, job=job.seq)]
    chains = {each.id: each for each in await chains_by_id(tx, list(set(wanted)))}
    return [chains[each] for each in wanted if each in chains]


# one row more than asked for tells whether another page follows; the index has them in their order
DEPENDENTS = {
    order: f"""
    SELECT DISTINCT job FROM holdfast_blocker
    WHERE chain_id = :chain_id AND job {sign} :after
    ORDER BY job {direction} LIMIT :most"""
    for order, sign, direction in (("newest", "<", "DESC"), ("oldest", ">", "ASC"))
}


async def list_blocked_by(tx: Tx, chain_id: UUID, paging: Paging) -> Page[Job]:
    """List the jobs that wait or have waited for a chain, which any of its jobs may name; or raise `ChainNotFound`."""
    ((chain,),) = await tx.fetch_all(CHAIN_OF_JOB, id=str(chain_id)) or [(None,)]
    if chain is None:
        raise ChainNotFound(chain_id)
    end = 2**63 - 1 if paging.order == "newest" else 0
    after = end if paging.cursor is None else read_cursor(paging.cursor, paging.order)
    rows = await tx.fetch_all(DEPENDENTS[paging.order], chain_id=chain, after=after, most=paging.limit + 1)
    seqs = [seq for (seq,) in rows[: paging.limit]]
    found = {job.seq: job for job in readable(await tx.fetch_all(CHAIN_JOBS, seqs=seqs) if seqs else (), to_job)}
    jobs = tuple(found[seq] for seq in seqs if seq in found)
    return Page(jobs, write_cursor(paging.order, seqs[-1]) if len(rows) > len(seqs) else None)


Conditions: TypeAlias = list[tuple[str, dict[str, object]]]

WAITING = """(holdfast_job.gate = 'lane'
    OR (SELECT held.paused_at FROM holdfast_queue AS held WHERE held.name = holdfast_job.queue
        AND coalesce(held.until, $now + 1) > $now) IS NOT NULL
    OR (SELECT held.paused_at FROM holdfast_lane AS held WHERE held.key = holdfast_job.lane) IS NOT NULL)"""
DERIVED = {
    State.SCHEDULED: "(holdfast_job.status = 'pending' AND holdfast_job.run_at > $now)",
    State.WAITING: f"(holdfast_job.status = 'pending' AND holdfast_job.run_at <= $now AND {WAITING})",
    State.CANCELLING: "(holdfast_job.status = 'running' AND holdfast_job.cancel_requested_at IS NOT NULL)",
    State.PAUSING: """(holdfast_job.status = 'running' AND holdfast_job.pause_requested_at IS NOT NULL
        AND holdfast_job.cancel_requested_at IS NULL)""",
    State.CONTINUED: """(holdfast_job.status = 'completed' AND holdfast_job.stale_at IS NULL
        AND (SELECT next.seq FROM holdfast_job AS next
        WHERE next.chain_id = holdfast_job.chain_id AND next.chain_index = holdfast_job.chain_index + 1
            AND next.chain_index > 0) IS NOT NULL)""",
    State.STALE: "holdfast_job.stale_at IS NOT NULL",
}


def _job_conditions(wanted: JobFilter) -> Conditions:
    found: Conditions = [("coalesce(holdfast_job.closed_as, '') <> 'deleted'", {})]
    if wanted.tasks:
        found.append(("holdfast_job.task $any(tasks: text)", {"tasks": wanted.tasks}))
    if wanted.parent is not None:
        found.append(("true", {"parent": str(wanted.parent)}))
    if not wanted.internal and INTERNAL_QUEUE not in wanted.queues:
        found.append((f"holdfast_job.queue <> '{INTERNAL_QUEUE}'", {}))
    if wanted.queues:
        found.append(("holdfast_job.queue $any(queues: text)", {"queues": wanted.queues}))
    if wanted.lanes:
        found.append(("holdfast_job.lane $any(lanes: text)", {"lanes": wanted.lanes}))
    if wanted.states:
        found.append((f"({' OR '.join(map(_state_condition, wanted.states))})", {}))
    return found + _created("holdfast_job", wanted.created_from, wanted.created_to)


def _state_condition(state: State) -> str:
    """A stored word means its status, whatever else is shown of it; a derived one exactly what is shown."""
    return DERIVED.get(state) or f"holdfast_job.status = '{state}'"


def _chain_conditions(wanted: ChainFilter) -> Conditions:
    found: Conditions = [("first.chain_index = 0", {}), ("coalesce(first.closed_as, '') <> 'deleted'", {})]
    if wanted.tasks:
        found.append(("first.task $any(tasks: text)", {"tasks": wanted.tasks}))
    if wanted.statuses:
        found.append(("last.status $any(statuses: text)", {"statuses": wanted.statuses}))
    if wanted.is_open is False or (wanted.statuses and set(wanted.statuses) <= set(TERMINAL)):
        found.append(("first.closed_as IS NOT NULL", {}))
    if not wanted.internal:
        found.append((f"first.queue <> '{INTERNAL_QUEUE}'", {}))
    if wanted.roots_only:
        found.append(("(SELECT 1 FROM holdfast_blocker AS b WHERE b.chain_id = first.id LIMIT 1) IS NULL", {}))
    return found + _created("first", wanted.created_from, wanted.created_to)


OPEN_CHAIN = "first.chain_index = 0 AND first.closed_as IS NULL"  # has an index of its own


def _is_open(wanted: ChainFilter) -> bool:
    """Tell whether only open chains can fit."""
    return bool(wanted.is_open or (wanted.statuses and set(wanted.statuses) <= set(OPEN)))


def _created(table: str, earliest: datetime | None, latest: datetime | None) -> Conditions:
    found: Conditions = []
    if earliest is not None:
        found.append((f"{table}.created_at >= :created_from", {"created_from": _milliseconds(earliest)}))
    if latest is not None:
        found.append((f"{table}.created_at <= :created_to", {"created_to": _milliseconds(latest)}))
    return found


async def page(
    tx: Tx, sql: str, seq: str, conditions: Conditions, paging: Paging, read: Callable[[Row], T], *, seq_at: int
) -> Page[T]:
    """Run *sql*, up to its WHERE, for one page, and one row more, which tells whether another page follows."""
    values: dict[str, object] = {"most": paging.limit + 1}
    for _, given in conditions:
        values |= given
    sign, direction = ("<", "DESC") if paging.order == "newest" else (">", "ASC")
    if paging.cursor is not None:
        sql += f" AND {seq} {sign} :after"
        values["after"] = read_cursor(paging.cursor, paging.order)
    fits = " AND ".join(condition for condition, _ in conditions)
    sql += f" AND CASE WHEN {fits} THEN true ELSE false END ORDER BY {seq} {direction} LIMIT :most"
    rows = await tx.fetch_all(sql, **values)
    items = rows[: paging.limit]
    more = len(rows) > len(items)
    return Page(tuple(readable(items, read)), write_cursor(paging.order, items[-1][seq_at]) if more else None)


def to_chain(row: Row) -> StoredChain[Any]:
    """Make a `StoredChain` of a row of CHAIN; or raise `Unreadable`."""
    id_, task, status, created_at, closed_at, output, last_task, seq = row
    with reading("holdfast_job", seq):
        return StoredChain(
            id=UUID(id_),
            task=task,
            status=Status(status),
            created_at=instant(created_at),
            closed_at=maybe_instant(closed_at),
            output=output,
            last_task=last_task,
        )


def write_cursor(kind: str, number: int) -> str:
    """Write where a page of a list of this *kind* ended."""
    return base64.urlsafe_b64encode(f"{kind}:{number}".encode()).decode().rstrip("=")


def read_cursor(cursor: str, kind: str) -> int:
    """Read what `write_cursor` wrote for a list of this *kind*."""
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        found, number = text.split(":")
        if found == kind and 0 <= int(number) < 2**63:
            return int(number)
    except (binascii.Error, ValueError, TypeError):
        pass
    raise UsageError(f"this cursor is not one of a list in the order {kind!r}; take next_cursor of the page before")


def _milliseconds(at: datetime) -> int:
    return round(at.timestamp() * 1000)


NOW = """SELECT $now"""


async def now_ms(tx: Tx) -> int:
    """Read the database's time, in milliseconds since 1970."""
    ((now,),) = await tx.fetch_all(NOW)
    return int(now)
