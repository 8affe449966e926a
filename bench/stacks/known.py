"""All stacks, by the names that the command line knows them by."""

from __future__ import annotations

from bench.stacks import django, drivers, sqlalchemy
from bench.stacks.kinds import AnyStack, AsyncStack, Stack

STACKS: dict[str, AnyStack] = {
    each.name: each
    for each in (
        Stack("sqlite3", "SQLite", drivers.open_sqlite3),
        AsyncStack("aiosqlite", "SQLite", drivers.open_aiosqlite),
        Stack("session-sqlite3", "SQLite", sqlalchemy.session_over("sqlite")),
        AsyncStack("session-aiosqlite", "SQLite", sqlalchemy.async_session_over("sqlite+aiosqlite")),
        Stack("django-sqlite3", "SQLite", django.open_sqlite),
        Stack("psycopg", "PostgreSQL", drivers.open_psycopg),
        AsyncStack("psycopg-async", "PostgreSQL", drivers.open_async_psycopg),
        Stack("psycopg2", "PostgreSQL", drivers.open_psycopg2),
        AsyncStack("asyncpg", "PostgreSQL", drivers.open_asyncpg),
        Stack("session-psycopg", "PostgreSQL", sqlalchemy.session_over("postgresql+psycopg")),
        AsyncStack("session-psycopg-async", "PostgreSQL", sqlalchemy.async_session_over("postgresql+psycopg")),
        Stack("session-psycopg2", "PostgreSQL", sqlalchemy.session_over("postgresql+psycopg2")),
        AsyncStack("session-asyncpg", "PostgreSQL", sqlalchemy.async_session_over("postgresql+asyncpg")),
        Stack("django-psycopg", "PostgreSQL", django.open_postgresql),
    )
}
