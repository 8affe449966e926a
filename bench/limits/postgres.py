"""Starts by hand on PostgreSQL: the two INSERTs of a start by psycopg, nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeAlias
from uuid import uuid4

import psycopg

TASK = "by hand"
CONNECTIONS = 8  # as many as a store opens by default

Blocking: TypeAlias = psycopg.Connection[tuple[Any, ...]]
Async: TypeAlias = psycopg.AsyncConnection[tuple[Any, ...]]

NOW = "CAST(extract(epoch FROM statement_timestamp()) * 1000 AS bigint)"

COLUMNS = """id, chain_id, chain_index, task, queue, lane, priority, tags, status, gate, run_at, wake_at,
        sort_key, input, webhook, trace, on_blocker_failure, unique_key, created_at"""

JOB = f"""
    INSERT INTO holdfast_job ({COLUMNS})
    VALUES (%s, %s, 0, %s, 'default', NULL, 0, NULL, 'pending', 'ready', {NOW}, NULL, {NOW}, %s, NULL, NULL, 'fail',
        NULL, {NOW})
    RETURNING seq"""

EVENT = f"""
    INSERT INTO holdfast_event (job, name, at, status, version, attempt, facts)
    VALUES (%s, 'job:enqueued', {NOW}, 'pending', 1, 0, NULL)"""

# array literals written as text: psycopg takes three times as long to write them from lists
JOBS = f"""
    INSERT INTO holdfast_job ({COLUMNS})
    SELECT given.id, given.id, 0, given.task, given.queue, NULL, given.priority, NULL, 'pending', 'ready', {NOW}, NULL,
        {NOW}, given.input, NULL, NULL, 'fail', NULL, {NOW}
    FROM unnest(%s::text[], %s::text[], %s::text[], %s::bigint[], %s::text[]) AS given(id, task, queue, priority, input)
    RETURNING seq"""

EVENTS = f"""
    INSERT INTO holdfast_event (job, name, at, status, version, attempt, facts)
    SELECT given.job, 'job:enqueued', {NOW}, 'pending', 1, 0, NULL FROM unnest(%s::bigint[]) AS given(job)"""


class PostgresByHand:
    """Blocking connections to the database at *url*, which has our tables; each start inserts *text* as its input."""

    def __init__(self, url: str, text: str) -> None:
        self._text = text
        self._connections = [psycopg.connect(url, autocommit=True) for _ in range(CONNECTIONS)]

    def one_by_one(self, count: int) -> None:
        """Start *count* jobs, with a transaction each."""
        for _ in range(count):
            start(self._connections[0], self._text)

    def in_one_transaction(self, count: int) -> None:
        """Start *count* jobs in one transaction, statement by statement."""
        with self._connections[0].transaction():
            for _ in range(count):
                insert(self._connections[0], self._text)

    def by_threads(self, count: int, callers: int) -> None:
        """Start *count* jobs from *callers* threads, which share the connections."""
        free: SimpleQueue[Blocking] = SimpleQueue()
        for each in self._connections:
            free.put(each)

        def call(_: int) -> None:
            for _ in range(count // callers):
                connection = free.get()
                start(connection, self._text)
                free.put(connection)

        with ThreadPoolExecutor(callers) as threads:
            list(threads.map(call, range(callers)))

    def close(self) -> None:
        """Close the connections."""
        for each in self._connections:
            each.close()


class AsyncPostgresByHand:
    """The same with async connections."""

    def __init__(self, connections: Sequence[Async], text: str) -> None:
        self._text = text
        self.connections = connections
        """All of them, for who does more by hand."""

    @classmethod
    async def connect(cls, url: str, text: str) -> AsyncPostgresByHand:
        """Connect to the database at *url*."""
        connections = [await psycopg.AsyncConnection.connect(url, autocommit=True) for _ in range(CONNECTIONS)]
        return cls(connections, text)

    async def one_by_one(self, count: int) -> None:
        """Start *count* jobs, with a transaction each."""
        for _ in range(count):
            await start_async(self.connections[0], self._text)

    async def in_one_transaction(self, count: int) -> None:
        """Start *count* jobs in one transaction, statement by statement."""
        async with self.connections[0].transaction():
            for _ in range(count):
                await insert_async(self.connections[0], self._text)

    async def many_at_once(self, count: int, batch: int) -> None:
        """Start *count* jobs, *batch* in a transaction, by two statements each."""
        connection = self.connections[0]
        for _ in range(count // batch):
            async with connection.transaction():
                cursor = await connection.execute(JOBS, rows(batch, self._text))
                numbers = [str(seq) for (seq,) in await cursor.fetchall()]
                await connection.execute(EVENTS, ("{" + ",".join(numbers) + "}",))

    async def by_tasks(self, count: int, callers: int) -> None:
        """Start *count* jobs from *callers* tasks, which share the connections."""
        free: asyncio.Queue[Async] = asyncio.Queue()
        for each in self.connections:
            free.put_nowait(each)

        async def call() -> None:
            for _ in range(count // callers):
                connection = await free.get()
                await start_async(connection, self._text)
                free.put_nowait(connection)

        await asyncio.gather(*(call() for _ in range(callers)))

    async def close(self) -> None:
        """Close the connections."""
        for each in self.connections:
            await each.close()


def start(connection: Blocking, text: str) -> None:
    """Start a job in a transaction of its own."""
    with connection.transaction():
        insert(connection, text)


def insert(connection: Blocking, text: str) -> None:
    """Insert a job and its event."""
    id_ = str(uuid4())
    row = connection.execute(JOB, (id_, id_, TASK, text)).fetchone()
    connection.execute(EVENT, row)


async def start_async(connection: Async, text: str) -> None:
    """Start a job in a transaction of its own."""
    async with connection.transaction():
        await insert_async(connection, text)


async def insert_async(connection: Async, text: str) -> None:
    """Insert a job and its event."""
    id_ = str(uuid4())
    row = await (await connection.execute(JOB, (id_, id_, TASK, text))).fetchone()
    await connection.execute(EVENT, row)


def rows(batch: int, text: str) -> tuple[str, ...]:
    """Write the columns of *batch* jobs as array literals."""
    quoted = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    columns = (
        [str(uuid4()) for _ in range(batch)],
        [f'"{TASK}"'] * batch,
        ["default"] * batch,
        ["0"] * batch,
        [quoted] * batch,
    )
    return tuple("{" + ",".join(column) + "}" for column in columns)
