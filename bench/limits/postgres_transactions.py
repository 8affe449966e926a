"""Jobs with transactions of the user's, by hand on PostgreSQL: eight connections, and statements in a row.

Whoever finds no job claims 200 of them, as the drain by hand does, with a row of the log for each. A job is then done
by the statements of a handler with blocks: the user's SELECT in a transaction, the user's UPDATE and the end of the job
with its row of the log in another; or in one. The end is one statement, as ours is. No token is looked at before
it, no lease is kept, no deadline, and nothing is broken off.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg

from bench.limits.postgres import CONNECTIONS, NOW, Async, Blocking
from bench.limits.postgres_drain import CLAIM, EVENTS, columns
from bench.shapes import LOOK, PAY, TASK, Shape

READ = LOOK.replace(":account", "%(account)s")
WRITE = PAY.replace(":account", "%(account)s")

COMPLETE = f"""
    WITH moved AS (
        UPDATE holdfast_job
        SET status = 'completed', output = 'null', completed_by = worker, worker = NULL, lease_until = NULL,
            closed_as = 'completed', closed_at = {NOW}, finished_at = {NOW}, version = version + 1
        WHERE seq = %(seq)s AND attempt = %(attempt)s AND nonce = %(nonce)s AND status = 'running'
        RETURNING seq, status, version, attempt)
    INSERT INTO holdfast_event (job, name, at, status, version, attempt, facts)
    SELECT moved.seq, 'job:completed', {NOW}, moved.status, moved.version, moved.attempt, NULL FROM moved"""


class Job(NamedTuple):
    """A job that was claimed, and the account that its input names."""

    seq: int
    attempt: int
    nonce: str
    account: int

    def values(self) -> dict[str, object]:
        """Give it as the parameters of a statement."""
        return self._asdict()


class PostgresTransactions:
    """Blocking connections to the database at *url*, which has our tables, a thread for each."""

    def __init__(self, url: str) -> None:
        self._connections = [psycopg.connect(url, autocommit=True) for _ in range(CONNECTIONS)]
        self._claimed: deque[Job] = deque()
        self._claiming = threading.Lock()

    def drain(self, shape: Shape) -> None:
        """Claim and complete until nothing is ready, on all connections at once."""
        with ThreadPoolExecutor(CONNECTIONS) as threads:
            list(threads.map(lambda each: self._loop(each, shape), self._connections))

    def close(self) -> None:
        """Close the connections."""
        for each in self._connections:
            each.close()

    def _loop(self, connection: Blocking, shape: Shape) -> None:
        while job := self._next(connection):
            if shape is Shape.PREPARE:
                with connection.transaction():
                    connection.execute(READ, job.values()).fetchall()
            with connection.transaction():
                if shape is Shape.ATOMIC:
                    connection.execute(READ, job.values()).fetchall()
                connection.execute(WRITE, job.values())
                connection.execute(COMPLETE, job.values())

    def _next(self, connection: Blocking) -> Job | None:
        with self._claiming:
            if not self._claimed:
                nonce = uuid4().hex[:16]
                with connection.transaction():
                    rows = connection.execute(CLAIM, (nonce, TASK)).fetchall()
                    connection.execute(EVENTS, ("job:started", "running", *columns(rows)))
                self._claimed.extend(_jobs(rows, nonce))
            return self._claimed.popleft() if self._claimed else None


class AsyncPostgresTransactions:
    """The same with async connections, a task for each."""

    def __init__(self, connections: list[Async]) -> None:
        self._connections = connections
        self._claimed: deque[Job] = deque()
        self._claiming = asyncio.Lock()

    @classmethod
    async def connect(cls, url: str) -> AsyncPostgresTransactions:
        """Connect to the database at *url*."""
        return cls([await psycopg.AsyncConnection.connect(url, autocommit=True) for _ in range(CONNECTIONS)])

    async def drain(self, shape: Shape) -> None:
        """Claim and complete until nothing is ready, on all connections at once."""
        await asyncio.gather(*(self._loop(each, shape) for each in self._connections))

    async def close(self) -> None:
        """Close the connections."""
        for each in self._connections:
            await each.close()

    async def _loop(self, connection: Async, shape: Shape) -> None:
        while job := await self._next(connection):
            if shape is Shape.PREPARE:
                async with connection.transaction():
                    await (await connection.execute(READ, job.values())).fetchall()
            async with connection.transaction():
                if shape is Shape.ATOMIC:
                    await (await connection.execute(READ, job.values())).fetchall()
                await connection.execute(WRITE, job.values())
                await connection.execute(COMPLETE, job.values())

    async def _next(self, connection: Async) -> Job | None:
        async with self._claiming:
            if not self._claimed:
                nonce = uuid4().hex[:16]
                async with connection.transaction():
                    rows = await (await connection.execute(CLAIM, (nonce, TASK))).fetchall()
                    await connection.execute(EVENTS, ("job:started", "running", *columns(rows)))
                self._claimed.extend(_jobs(rows, nonce))
            return self._claimed.popleft() if self._claimed else None


def _jobs(rows: list[tuple[Any, ...]], nonce: str) -> list[Job]:
    return [Job(seq, attempt, nonce, json.loads(text)["account"]) for seq, attempt, _, _, text in rows]
