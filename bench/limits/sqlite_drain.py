"""A drain by hand on SQLite: one connection, which settles and claims 200 jobs in one transaction.

The same tables and the same columns, and two rows of the log for each job; no leases renewed, no retries, no lanes, no
handlers. There is one writer at a time, so a second connection would only wait.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any
from uuid import uuid4

from bench.limits.sqlite import NOW, TASK

BATCH = 200

CLAIM = f"""
    UPDATE holdfast_job
    SET status = 'running', gate = NULL, attempt = attempt + 1, used = used + 1, nonce = ?, worker = 'by hand',
        started_at = {NOW}, lease_ms = 60000, lease_until = {NOW} + 60000, version = version + 1
    WHERE seq IN (SELECT seq FROM holdfast_job
        WHERE queue = 'default' AND task = ? AND gate = 'ready' ORDER BY sort_key, seq LIMIT {BATCH})
    RETURNING seq, attempt, version, id, input"""

COMPLETE = f"""
    UPDATE holdfast_job
    SET status = 'completed', output = 'null', completed_by = worker, worker = NULL, lease_until = NULL,
        closed_as = 'completed', closed_at = {NOW}, finished_at = {NOW}, version = version + 1
    WHERE seq = ? AND attempt = ? AND nonce = ?"""

EVENT = f"""
    INSERT INTO holdfast_event (job, name, at, status, version, attempt, facts)
    VALUES (?, ?, {NOW}, ?, ?, ?, NULL)"""


class SqliteDrain:
    """A connection of its own to the file at *path*, which has our tables."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL").close()
        self._connection.execute("PRAGMA synchronous = FULL").close()

    def drain(self) -> None:
        """Claim and complete until nothing is ready."""
        nonce, rows = "", list[tuple[Any, ...]]()
        while True:
            self._connection.execute("BEGIN IMMEDIATE")
            if rows:
                self._connection.executemany(COMPLETE, [(row[0], row[1], nonce) for row in rows])
                self._note("job:completed", "completed", rows)
            nonce = uuid4().hex[:16]
            rows = self._connection.execute(CLAIM, (nonce, TASK)).fetchall()
            self._note("job:started", "running", rows)
            self._connection.execute("COMMIT")
            if not rows:
                return

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _note(self, name: str, status: str, rows: list[tuple[Any, ...]]) -> None:
        self._connection.executemany(
            EVENT, [(seq, name, status, version, attempt) for seq, attempt, version, *_ in rows]
        )
