"""Where the project's database is, as Holdfast writes it: read from DATABASES, so that nobody writes it twice."""

from __future__ import annotations

from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

from holdfast.database.tx import Database

DATABASES: dict[str, Database] = {"postgresql": "postgres", "sqlite": "sqlite"}
"""Our word for a database, by Django's."""


def connection_of(alias: str) -> Any:
    """Give Django's connection object of *alias*, or raise `ImproperlyConfigured`; it need not be connected."""
    try:
        connection = connections[alias]
    except ConnectionDoesNotExist:
        there = ", ".join(map(repr, connections))
        raise ImproperlyConfigured(
            f"HOLDFAST names the database {alias!r}, but DATABASES has only {there}; write one of its aliases"
        ) from None
    if connection.vendor not in DATABASES:
        raise ImproperlyConfigured(
            f"DATABASES[{alias!r}] is {connection.display_name}, but Holdfast needs PostgreSQL or SQLite: write "
            'HOLDFAST = {"database": "…"} with the alias of such a database'
        )
    return connection


def address_of(alias: str) -> str:
    """Write DATABASES[alias] as the address of a Holdfast: a file's path, or a postgresql:// address."""
    connection = connection_of(alias)
    if connection.vendor == "postgresql":
        return _postgres_address(connection)
    name = str(connection.settings_dict["NAME"])
    if connection.is_in_memory_db():
        raise ImproperlyConfigured(
            f"DATABASES[{alias!r}] is in memory, where no worker can find its jobs; use a file, also in tests: "
            '"TEST": {"NAME": BASE_DIR / "test.sqlite3"}'
        )
    if name.startswith("file:"):
        raise ImproperlyConfigured(f"the NAME of DATABASES[{alias!r}] is a file: URL; write only the path")
    return name


def _postgres_address(connection: Any) -> str:
    parameters = connection.get_connection_params()
    given = {name: str(value) for name, value in parameters.items() if name in _words_of_libpq()}
    if role := connection.settings_dict["OPTIONS"].get("assume_role"):
        given["options"] = " ".join(filter(None, (given.get("options"), f"-c role={_option(role)}")))
    return f"postgresql://?{urlencode(given, quote_via=quote)}"


@cache
def _words_of_libpq() -> frozenset[str]:
    """Name what an address may say; Django's parameters hold other things as well, and say the encoding themselves."""
    from psycopg import pq

    return frozenset(each.keyword.decode() for each in pq.Conninfo.get_defaults()) - {"client_encoding"}


def _option(value: str) -> str:
    """Write *value* as one word of a server's command line."""
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
