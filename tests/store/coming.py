"""Statements that are still to come, in the shape that keeps its index; their own constants will take their place."""

from __future__ import annotations

RETENTION = """
    SELECT seq FROM holdfast_job
    WHERE closed_at < :before
        AND (SELECT 1 FROM holdfast_blocker AS waiting
            WHERE waiting.chain_id = holdfast_job.id AND waiting.state = 'armed' LIMIT 1) IS NULL
    ORDER BY closed_at LIMIT :most $skip_locked"""
TIMELINE = """SELECT seq, name, at FROM holdfast_event WHERE job = :job ORDER BY seq LIMIT :most"""
NEW_EVENTS = """
    SELECT seq, job, name FROM holdfast_event WHERE xid >= :xmax
    UNION ALL SELECT seq, job, name FROM holdfast_event WHERE xid $any(in_progress: bigint)"""
NEW_EVENTS_BY_SEQ = """SELECT seq, job, name FROM holdfast_event WHERE seq > :after ORDER BY seq LIMIT :most"""
