"""Trimming the log: what it says of jobs that are long gone, of lanes and of queues does not stay for ever.

The events of a job go with it. Those that belong to no job that still exists are removed once they are old. Whoever
reads the log from a place before that has missed something, and must hear so: the highest position that was ever
removed stands in `holdfast_meta`, written in the transaction that removes. PostgreSQL's readers go by transactions,
SQLite's by `seq`. On PostgreSQL the number of that transaction stands beside it: who has seen it end was there when all
had been removed, and misses nothing, however low the number of somebody who was still writing then. What came by a dump
from a server that had counted further has numbers that are still to come here: no reader is behind it.
"""

from __future__ import annotations

from holdfast.database.tx import Tx
from holdfast.store.log.events import NO_JOB

MOST_EVENTS = 1_000
TRIMMED = "log_trimmed"
"""The key in `holdfast_meta` of the highest position that was removed."""
TRIMMED_BY = "log_trimmed_by"
"""The key of the last transaction that removed any, on PostgreSQL."""

# the oldest come first; were the age asked for among all of them, a look that finds none old enough would read them all
OLD = f"""
    SELECT old.seq FROM (SELECT seq, at FROM holdfast_event WHERE job = {NO_JOB} ORDER BY seq LIMIT :most) AS old
    WHERE old.at <= $now - :age"""


async def has_old(tx: Tx, age_ms: int) -> bool:
    """Tell whether anything in the log has been there for *age_ms* and belongs to no job."""
    return bool(await tx.fetch_all(OLD, age=age_ms, most=1))


MAKE = f"""INSERT INTO holdfast_meta (key, value) VALUES ('{TRIMMED}', '0') ON CONFLICT DO NOTHING"""
LOCK = f"""SELECT value FROM holdfast_meta WHERE key = '{TRIMMED}' $skip_locked"""
POSITION = {"postgres": "xid", "sqlite": "seq"}
REMOVE = {
    database: f"""
    DELETE FROM holdfast_event WHERE job = {NO_JOB} AND seq $any(seqs: bigint)
    RETURNING {position}"""
    for database, position in POSITION.items()
}
RECORD = f"""UPDATE holdfast_meta SET value = CAST(CAST(:position AS bigint) AS text) WHERE key = '{TRIMMED}'"""
SO_FAR = "CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint)"
RECORD_BY = f"""
    INSERT INTO holdfast_meta (key, value) VALUES ('{TRIMMED_BY}', CAST(pg_current_xact_id() AS text))
    ON CONFLICT (key) DO UPDATE SET value = excluded.value
    RETURNING {SO_FAR}"""


async def prune(tx: Tx, age_ms: int, most: int = MOST_EVENTS) -> int:
    """Remove up to *most* entries that have been there for *age_ms* and belong to no job; answer how many.

    None are removed while somebody else does so.
    """
    await tx.execute(MAKE)
    found = [seq for (seq,) in await tx.fetch_all(OLD, age=age_ms, most=most)]
    mine = await tx.fetch_all(LOCK) if found else []
    removed = [position for (position,) in await tx.fetch_all(REMOVE[tx.database], seqs=found)] if mine else []
    if removed:
        await _record(tx, [*removed, int(mine[0][0])])
    return len(removed)


async def _record(tx: Tx, positions: list[int]) -> None:
    """Write down the highest of *positions*, as far as they are of this server, and who removed what was there."""
    if tx.database == "postgres":
        ((so_far,),) = await tx.fetch_all(RECORD_BY)
        positions = [each for each in positions if each < so_far]
    await tx.execute(RECORD, position=max(positions, default=0))


# one job after the other, not one event; code before step 2 left the events of deleted jobs behind
JOBS = """
    WITH RECURSIVE named(job, nr) AS (
        SELECT (SELECT min(told.job) FROM holdfast_event AS told WHERE told.job > :after), 1
        UNION ALL
        SELECT (SELECT min(told.job) FROM holdfast_event AS told WHERE told.job > named.job), named.nr + 1
        FROM named WHERE named.job IS NOT NULL AND named.nr < :most)
    SELECT named.job, (SELECT 1 FROM holdfast_job WHERE holdfast_job.seq = named.job)
    FROM named WHERE named.job IS NOT NULL ORDER BY named.nr"""
DELETE_EVENTS = """DELETE FROM holdfast_event WHERE job $any(jobs: bigint) RETURNING seq"""
MOST_JOBS = 200


async def orphans(tx: Tx, after: int) -> tuple[list[int], int | None]:
    """Name jobs that have events and do not exist, some way behind *after*; and how far that went, None at the end."""
    rows = await tx.fetch_all(JOBS, after=after, most=MOST_JOBS)
    return [job for job, exists in rows if exists is None], rows[-1][0] if len(rows) == MOST_JOBS else None


async def delete_events(tx: Tx, jobs: list[int]) -> int:
    """Remove the events of *jobs*, which do not exist; answer how many."""
    return len(await tx.fetch_all(DELETE_EVENTS, jobs=jobs)) if jobs else 0
