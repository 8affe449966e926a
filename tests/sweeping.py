"""Empties the tables of one schema between tests: only those that were written to, by a connection that stays."""

from __future__ import annotations

import psycopg

from holdfast.store.dialect import TABLES

KEPT = frozenset({"meta", "jobs"})
WRITTEN_TO = """
    SELECT oid::regclass::text FROM pg_catalog.pg_class
    WHERE relnamespace = %s::regnamespace AND relname = ANY(%s) AND relkind = 'r' AND pg_relation_size(oid) > 0"""


class Sweeper:
    """Whoever empties the tables of *schema* in the database at *url*."""

    def __init__(self, url: str, schema: str) -> None:
        self._url = url
        self._schema = schema
        self._tables = [f"holdfast_{name}" for name in TABLES if name not in KEPT]
        self._connection = self._connect()

    def sweep(self) -> None:
        """Make every table as it was when it was new: not even a row that was rolled back is left of it."""
        try:
            self._sweep()
        except psycopg.OperationalError:  # a test has ended every connection to the database, or the server itself
            self._connection = self._connect()
            self._sweep()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _sweep(self) -> None:
        rows = self._connection.execute(WRITTEN_TO, (self._schema, self._tables)).fetchall()
        if rows:
            self._connection.execute(f"TRUNCATE {', '.join(name for (name,) in rows)} RESTART IDENTITY")

    def _connect(self) -> psycopg.Connection[tuple[str]]:
        return psycopg.connect(self._url, autocommit=True, prepare_threshold=None)
