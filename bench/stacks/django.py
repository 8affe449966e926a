"""Django's connections by alias, in `atomic()`; by hand is a cursor of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

import django
from django.conf import settings
from django.db import connections, transaction

from bench.limits import postgres, sqlite
from bench.stacks.drivers import job_values
from bench.stacks.kinds import Means

ALIAS = "bench"


@contextmanager
def open_sqlite(address: str) -> Iterator[Means]:
    """Connect to a SQLite file."""
    options = {"init_command": "PRAGMA synchronous = FULL", "transaction_mode": "IMMEDIATE"}
    entry = {"ENGINE": "django.db.backends.sqlite3", "NAME": address, "OPTIONS": options}
    with _database(entry):
        yield Means(_transaction, _insert_on_sqlite)


@contextmanager
def open_postgresql(address: str) -> Iterator[Means]:
    """Connect to PostgreSQL, by psycopg."""
    parts = urlsplit(address)
    entry = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": parts.username or "",
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
    }
    with _database(entry):
        yield Means(_transaction, _insert_on_postgresql)


@contextmanager
def _database(entry: dict[str, Any]) -> Iterator[None]:
    if not settings.configured:
        settings.configure(USE_TZ=True, DATABASES={})
        django.setup()
    connections.settings[ALIAS] = connections.configure_settings({"default": {}, ALIAS: entry})[ALIAS]
    try:
        yield
    finally:
        connections[ALIAS].close()
        del connections[ALIAS]
        del connections.settings[ALIAS]


@contextmanager
def _transaction() -> Iterator[str]:
    with transaction.atomic(using=ALIAS):
        yield ALIAS


def _insert_on_sqlite(alias: str, text: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(ON_SQLITE_JOB, job_values(text))
        cursor.execute(ON_SQLITE_EVENT, (cursor.lastrowid,))


def _insert_on_postgresql(alias: str, text: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(postgres.JOB, job_values(text))
        cursor.execute(postgres.EVENT, cursor.fetchone())


# Django takes psycopg's placeholders on every database
ON_SQLITE_JOB, ON_SQLITE_EVENT = (each.replace("?", "%s") for each in (sqlite.JOB, sqlite.EVENT))
