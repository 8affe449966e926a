"""The drivers themselves: sqlite3, aiosqlite, psycopg in both colours, psycopg2 and asyncpg."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from itertools import count
from typing import Any
from uuid import uuid4

import aiosqlite
import asyncpg
import psycopg
import psycopg2

from bench.limits import postgres, sqlite
from bench.stacks.kinds import AsyncMeans, Means


@contextmanager
def open_sqlite3(address: str) -> Iterator[Means]:
    """Connect as for Python's own module."""
    with closing(sqlite3.connect(address, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL").close()

        @contextmanager
        def transaction() -> Iterator[sqlite3.Connection]:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

        yield Means(transaction, _insert_by_sqlite3)


def _insert_by_sqlite3(connection: sqlite3.Connection, text: str) -> None:
    seq = connection.execute(sqlite.JOB, job_values(text)).lastrowid
    connection.execute(sqlite.EVENT, (seq,))


@asynccontextmanager
async def open_aiosqlite(address: str) -> AsyncIterator[AsyncMeans]:
    """Connect by aiosqlite."""
    async with aiosqlite.connect(address, isolation_level=None) as connection:
        await connection.execute("PRAGMA synchronous = FULL")

        @asynccontextmanager
        async def transaction() -> AsyncIterator[aiosqlite.Connection]:
            await connection.execute("BEGIN IMMEDIATE")
            yield connection
            await connection.execute("COMMIT")

        yield AsyncMeans(transaction, _insert_by_aiosqlite)


async def _insert_by_aiosqlite(connection: aiosqlite.Connection, text: str) -> None:
    cursor = await connection.execute(sqlite.JOB, job_values(text))
    await connection.execute(sqlite.EVENT, (cursor.lastrowid,))


@contextmanager
def open_psycopg(address: str) -> Iterator[Means]:
    """Connect by psycopg."""
    with psycopg.connect(address, autocommit=True) as connection:

        @contextmanager
        def transaction() -> Iterator[psycopg.Connection[Any]]:
            with connection.transaction():
                yield connection

        yield Means(transaction, postgres.insert)


@asynccontextmanager
async def open_async_psycopg(address: str) -> AsyncIterator[AsyncMeans]:
    """Connect by psycopg, async."""
    async with await psycopg.AsyncConnection.connect(address, autocommit=True) as connection:

        @asynccontextmanager
        async def transaction() -> AsyncIterator[psycopg.AsyncConnection[Any]]:
            async with connection.transaction():
                yield connection

        yield AsyncMeans(transaction, postgres.insert_async)


@contextmanager
def open_psycopg2(address: str) -> Iterator[Means]:
    """Connect by psycopg2."""
    with closing(psycopg2.connect(address)) as connection, connection.cursor() as cursor:
        connection.autocommit = True  # else it begins with the first statement, and ours may not be that

        @contextmanager
        def transaction() -> Iterator[Any]:
            cursor.execute("BEGIN")
            yield connection
            cursor.execute("COMMIT")

        yield Means(transaction, _insert_by_psycopg2)


def _insert_by_psycopg2(connection: Any, text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(postgres.JOB, job_values(text))
        cursor.execute(postgres.EVENT, cursor.fetchone())


@asynccontextmanager
async def open_asyncpg(address: str) -> AsyncIterator[AsyncMeans]:
    """Connect by asyncpg."""
    connection = await asyncpg.connect(address)
    try:

        @asynccontextmanager
        async def transaction() -> AsyncIterator[Any]:
            async with connection.transaction():
                yield connection

        yield AsyncMeans(transaction, _insert_by_asyncpg)
    finally:
        await connection.close()


async def _insert_by_asyncpg(connection: Any, text: str) -> None:
    seq = await connection.fetchval(NUMBERED_JOB, *job_values(text))
    await connection.execute(NUMBERED_EVENT, seq)


def job_values(text: str) -> tuple[str, str, str, str]:
    """Make the values of a job's INSERT."""
    id_ = str(uuid4())
    return id_, id_, postgres.TASK, text


def numbered(sql: str) -> str:
    """Write `$1`, `$2`, … in place of psycopg's placeholders."""
    numbers = count(1)
    return re.sub("%s", lambda _: f"${next(numbers)}", sql)


NUMBERED_JOB, NUMBERED_EVENT = numbered(postgres.JOB), numbered(postgres.EVENT)
