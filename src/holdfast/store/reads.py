"""Reading jobs and chains: one by id, those of a chain, blockers and what waits for them; `lists` has the filters.

A cursor is the last number that a page had, so it stays right while rows come and go; nothing is ever counted.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from holdfast.database.tx import Row, Tx
from holdfast.errors import ChainNotFound, JobNotFound, UsageError
from holdfast.models import Job, Order, Page, StoredChain
from holdfast.states import Status
from holdfast.store.rows import COLUMNS, FACTS, FACTS_WITH_RESULTS, instant, maybe_instant, to_job
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
    upto: int | None = None
    """The highest number (`seq`) that it may have; None means any. Only lists that take a filter look at it."""


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


NOW = """SELECT $now"""


async def now_ms(tx: Tx) -> int:
    """Read the database's time, in milliseconds since 1970."""
    ((now,),) = await tx.fetch_all(NOW)
    return int(now)
