"""Empties the tables of one schema between tests: only those that were written to, by a connection that stays."""

from __future__ import annotations

import psycopg

from holdfast.database.dialect import TABLES
from holdfast.store.log.pruning import TRIMMED, TRIMMED_BY

KEPT = frozenset({"meta", "jobs"})
MOST_BYTES = 256 * 1024
WRITTEN_TO = """
    SELECT oid::regclass::text, pg_relation_size(oid) FROM pg_catalog.pg_class
    WHERE relnamespace = %s::regnamespace AND relname = ANY(%s) AND relkind = 'r' AND pg_relation_size(oid) > 0"""
RESTART = """
    SELECT setval(seqrelid::regclass, seqstart, false) FROM pg_catalog.pg_sequence
    JOIN pg_catalog.pg_class ON pg_class.oid = seqrelid
    WHERE relnamespace = %s::regnamespace AND pg_sequence_last_value(seqrelid) IS NOT NULL"""


class Sweeper:
    """Whoever empties the tables of *schema* in the database at *url*."""

    def __init__(self, url: str, schema: str) -> None:
        self._url = url
        self._schema = schema
        self._tables = [f"holdfast_{name}" for name in TABLES if name not in KEPT]
        self._connection = self._connect()

    def sweep(self) -> None:
        """Empty every table, and number its rows from one again, once nobody is writing any more."""
        try:
            self._sweep()
        except psycopg.OperationalError:  # a test has ended every connection to the database, or the server itself
            self._connection = self._connect()
            self._sweep()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _sweep(self) -> None:
        sizes: dict[str, int] = dict(self._connection.execute(WRITTEN_TO, (self._schema, self._tables)).fetchall())
        if not sizes:
            return
        # how much of the log is gone: else every later test reads one that has lost its beginning
        self._connection.execute(f"DELETE FROM {self._schema}.holdfast_meta WHERE key IN ('{TRIMMED}', '{TRIMMED_BY}')")
        if max(sizes.values()) > MOST_BYTES:
            self._connection.execute(f"TRUNCATE {', '.join(sizes)} RESTART IDENTITY")
        else:  # a TRUNCATE makes new files for a table and each of its indexes: 3 ms, where this takes 0.5
            deletes = "; ".join(f"DELETE FROM {name}" for name in sizes)
            self._connection.execute(f"LOCK TABLE {', '.join(sizes)} IN SHARE ROW EXCLUSIVE MODE; {deletes}")
            self._connection.execute(RESTART, (self._schema,))

    def _connect(self) -> psycopg.Connection[tuple[str, int]]:
        return psycopg.connect(self._url, autocommit=True, prepare_threshold=None)
