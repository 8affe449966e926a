"""All that a caller may lend us, by the name of its type."""

from __future__ import annotations

from holdfast.database.borrowed import aiosqlite, asyncpg, django, drivers, psycopg2, sqlalchemy
from holdfast.database.borrowed.adapters import Driver, Library

KNOWN: dict[str, Driver | Library] = {
    each.type_name: each
    for each in (
        drivers.ASYNC_PSYCOPG,
        drivers.PSYCOPG,
        drivers.SQLITE,
        asyncpg.ASYNCPG,
        asyncpg.OF_POOL,
        psycopg2.PSYCOPG2,
        aiosqlite.AIOSQLITE,
        sqlalchemy.SESSION,
        sqlalchemy.SCOPED_SESSION,
        sqlalchemy.CONNECTION,
        sqlalchemy.ASYNC_SESSION,
        sqlalchemy.ASYNC_SCOPED_SESSION,
        sqlalchemy.ASYNC_CONNECTION,
        django.ALIAS,
        django.PROXY,
        django.WRAPPER,
    )
}
