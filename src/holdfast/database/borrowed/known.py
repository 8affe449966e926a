"""The list of all that a caller may lend us."""

from __future__ import annotations

from holdfast.database.borrowed import asyncpg, django, drivers, psycopg2, sqlalchemy
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
        drivers.AIOSQLITE,
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
"""Drivers and libraries, by the name of the type of their connections."""
