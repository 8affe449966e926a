"""A drain by hand on PostgreSQL: two loops that overlap, each settling and claiming 200 jobs in one transaction.

The same tables and the same columns, and two rows of the log for each job; no leases renewed, no retries, no lanes, no
handlers, and nobody who is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from bench.limits.postgres import NOW, TASK, Async

BATCH = 200

CLAIM = f"""
    UPDATE holdfast_job
    SET status = 'running', gate = NULL, attempt = attempt + 1, used = used + 1, nonce = %s, worker = 'by hand',
        started_at = {NOW}, lease_ms = 60000, lease_until = {NOW} + 60000, version = version + 1
    WHERE seq = ANY(ARRAY(SELECT seq FROM holdfast_job
        WHERE queue = 'default' AND task = %s AND gate = 'ready'
        ORDER BY sort_key, seq LIMIT {BATCH} FOR NO KEY UPDATE SKIP LOCKED))
    RETURNING seq, attempt, version, id, input"""

COMPLETE = f"""
    UPDATE holdfast_job
    SET status = 'completed', output = 'null', completed_by = worker, worker = NULL, lease_until = NULL,
        closed_as = 'completed', closed_at = {NOW}, finished_at = {NOW}, version = version + 1
    FROM unnest(%s::bigint[], %s::bigint[]) AS given(seq, attempt)
    WHERE holdfast_job.seq = given.seq AND holdfast_job.attempt = given.attempt AND holdfast_job.nonce = %s"""

EVENTS = f"""
    INSERT INTO holdfast_event (job, name, at, status, version, attempt, facts)
    SELECT given.job, %s, {NOW}, %s, given.version, given.attempt, NULL
    FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS given(job, attempt, version)"""


async def drain(connections: Sequence[Async]) -> None:
    """Claim and complete until nothing is ready, on all *connections* at once."""
    await asyncio.gather(*(_loop(each) for each in connections))


async def _loop(connection: Async) -> None:
    nonce, jobs = "", columns([])
    while True:
        async with connection.transaction():
            if nonce:
                await connection.execute(COMPLETE, (*jobs[:2], nonce))
                await connection.execute(EVENTS, ("job:completed", "completed", *jobs))
            nonce = uuid4().hex[:16]
            rows = await (await connection.execute(CLAIM, (nonce, TASK))).fetchall()
            jobs = columns(rows)
            if rows:
                await connection.execute(EVENTS, ("job:started", "running", *jobs))
        if not rows:
            return


def columns(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    """Write seq, attempt and version as array literals."""
    return ["{" + ",".join([str(row[column]) for row in rows]) + "}" for column in range(3)]
