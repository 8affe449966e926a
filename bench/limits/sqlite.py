"""Starts by hand on SQLite: the two INSERTs of a start by `sqlite3`, nothing else."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

TASK = "by hand"

NOW = "CAST((julianday('now') - 2440587.5) * 86400000 AS integer)"

JOB = f"""
    INSERT INTO holdfast_job (id, chain_id, chain_index, task, queue, lane, priority, tags, status, gate, run_at,
        wake_at, sort_key, input, webhook, trace, on_blocker_failure, unique_key, created_at)
    VALUES (?, ?, 0, ?, 'default', NULL, 0, NULL, 'pending', 'ready', {NOW}, NULL, {NOW}, ?, NULL, NULL, 'fail', NULL,
        {NOW})"""

EVENT = f"""
    INSERT INTO holdfast_event (job, name, at, status, version, attempt, facts)
    VALUES (?, 'job:enqueued', {NOW}, 'pending', 1, 0, NULL)"""


class SqliteByHand:
    """One connection to the file at *path*, which has our tables; each start inserts *text* as its input."""

    def __init__(self, path: Path, text: str) -> None:
        self._text = text
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL").close()
        self._connection.execute("PRAGMA synchronous = FULL").close()
        self._writing = threading.Lock()

    def one_by_one(self, count: int) -> None:
        """Start *count* jobs, with a transaction each."""
        for _ in range(count):
            self._start()

    def in_one_transaction(self, count: int) -> None:
        """Start *count* jobs in one transaction, statement by statement."""
        self._connection.execute("BEGIN IMMEDIATE")
        for _ in range(count):
            self._insert()
        self._connection.execute("COMMIT")

    def many_at_once(self, count: int, batch: int) -> None:
        """Start *count* jobs, *batch* in a transaction, by two calls of the driver each."""
        for _ in range(count // batch):
            ids = [str(uuid4()) for _ in range(batch)]
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(JOB, [(each, each, TASK, self._text) for each in ids])
            (last,) = self._connection.execute("SELECT max(seq) FROM holdfast_job").fetchone()
            self._connection.executemany(EVENT, [(seq,) for seq in range(last - batch + 1, last + 1)])
            self._connection.execute("COMMIT")

    def by_threads(self, count: int, callers: int) -> None:
        """Start *count* jobs from *callers* threads, which take turns at the connection."""

        def call(_: int) -> None:
            for _ in range(count // callers):
                with self._writing:
                    self._start()

        with ThreadPoolExecutor(callers) as threads:
            list(threads.map(call, range(callers)))

    async def by_tasks(self, count: int, callers: int) -> None:
        """Start *count* jobs from *callers* tasks, by a thread that has the connection."""
        with ThreadPoolExecutor(1) as thread:

            async def call() -> None:
                for _ in range(count // callers):
                    await asyncio.get_running_loop().run_in_executor(thread, self._start)

            await asyncio.gather(*(call() for _ in range(callers)))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _start(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._insert()
        self._connection.execute("COMMIT")

    def _insert(self) -> None:
        id_ = str(uuid4())
        seq = self._connection.execute(JOB, (id_, id_, TASK, self._text)).lastrowid
        self._connection.execute(EVENT, (seq,))
