"""Stuck jobs, those that need a person: failed and paused ones, not stale, along their index (head, status, seq).

A job that halts its lane has head 1, all others 0. Each pair of a head and a status is a range of the index, in which
jobs stand by number; several ranges are merged. SQLite takes a partial index only for its very predicate. By a plain
`head = 0 … ORDER BY seq` PostgreSQL, for which nearly all jobs have head 0, goes along the primary key: so it is `$is`,
and ordered as the index is. The status is a plain `=`, or PostgreSQL would take the range for unordered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

IS_STUCK = "holdfast_job.status IN ('failed', 'paused') AND holdfast_job.stale_at IS NULL"
BESIDE, HALTING = 0, 1
"""The heads: jobs that halt no lane, and those that do."""
STATUSES = ("failed", "paused")


def stuck(
    columns: str,
    between: str,
    *,
    heads: Sequence[int] = (BESIDE, HALTING),
    statuses: Sequence[str] = STATUSES,
    direction: Literal["ASC", "DESC"] = "ASC",
) -> str:
    """Write a SELECT of *columns*, of which one is `seq`: stuck jobs *between* two numbers, up to `:most` of them."""
    ranges = [
        f"""
        SELECT {columns} FROM holdfast_job
        WHERE holdfast_job.head $is({head}) AND holdfast_job.status = '{status}' AND {between} AND {IS_STUCK}
        ORDER BY holdfast_job.head {direction}, holdfast_job.seq {direction} LIMIT :most"""
        for head in heads
        for status in statuses
    ]
    if len(ranges) == 1:
        return ranges[0]
    merged = " UNION ALL ".join(f"SELECT * FROM ({each}) AS part_{n}" for n, each in enumerate(ranges))
    return f"SELECT * FROM ({merged}) AS found ORDER BY found.seq {direction} LIMIT :most"
