"""What a database says of our schema, in the same words for both."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg

from holdfast.database.dialect import PostgresDialect, SqliteDialect
from holdfast.database.postgres.tx import PostgresTx
from holdfast.database.sqlite.tx import SqliteTx
from holdfast.database.tx import Database, Row, Tx


@dataclass(frozen=True)
class Index:
    """An index, by the name that it has in PostgreSQL; without a *predicate* every row has an entry."""

    name: str
    columns: tuple[str, ...]
    predicate: str = "true"


class Catalog(Protocol):
    """A migrated database that can be asked about itself, and is thrown away after the test."""

    database: Database
    tx: Tx
    violation: type[Exception]

    def query(self, sql: str) -> list[Row]:
        """Run *sql* as it stands."""

    def tables(self) -> set[str]:
        """Name the tables and views."""

    def columns(self, table: str) -> list[str]:
        """Name the columns of a table or view, in their order."""

    def indexes(self, table: str) -> list[Index]:
        """Give the indexes of *table*, by name; SQLite's rowid, which is the table itself, is none."""

    def names(self) -> set[str]:
        """Name everything that shares a name space with what the user has."""


class PostgresCatalog:
    """A schema of its own, in a transaction that is rolled back."""

    database: Database = "postgres"
    violation: type[Exception] = psycopg.errors.CheckViolation

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        dialect = PostgresDialect("catalog")
        self.tx: Tx = PostgresTx(connection, dialect)
        connection.execute("SET LOCAL search_path = catalog")

    def query(self, sql: str) -> list[Row]:
        """Run *sql* as it stands."""
        cursor = self._connection.execute(sql)
        return cursor.fetchall() if cursor.description else []

    def tables(self) -> set[str]:
        """Name the tables and views."""
        return {name for (name,) in self.query("SELECT relname FROM pg_class WHERE relkind IN ('r', 'v')" + HERE)}

    def columns(self, table: str) -> list[str]:
        """Name the columns of a table or view, in their order."""
        rows = self.query(
            f"SELECT attname FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum > 0 ORDER BY attnum"
        )
        return [name for (name,) in rows]

    def indexes(self, table: str) -> list[Index]:
        """Give the indexes of *table*, by name."""
        rows = self.query(
            f"""SELECT relname, pg_get_expr(indpred, indrelid), ARRAY(
                SELECT attname FROM unnest(indkey) WITH ORDINALITY AS key(number, nr)
                JOIN pg_attribute ON attrelid = indrelid AND attnum = number ORDER BY nr)
            FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
            WHERE indrelid = '{table}'::regclass ORDER BY relname"""
        )
        return [Index(name, tuple(columns), predicate or "true") for name, predicate, columns in rows]

    def names(self) -> set[str]:
        """Name tables, views, indexes, sequences and constraints."""
        found = self.query("SELECT relname FROM pg_class WHERE true" + HERE)
        found += self.query("SELECT conname FROM pg_constraint WHERE connamespace = 'catalog'::regnamespace")
        return {name for (name,) in found}


HERE = " AND relnamespace = 'catalog'::regnamespace"


class SqliteCatalog:
    """A database in memory."""

    database: Database = "sqlite"
    violation: type[Exception] = sqlite3.IntegrityError

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.tx: Tx = SqliteTx(connection, SqliteDialect())

    def query(self, sql: str) -> list[Row]:
        """Run *sql* as it stands."""
        return self._connection.execute(sql).fetchall()

    def tables(self) -> set[str]:
        """Name the tables and views, but SQLite's own."""
        rows = self.query("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        return {name for (name,) in rows if not name.startswith("sqlite_")}

    def columns(self, table: str) -> list[str]:
        """Name the columns of a table or view, in their order."""
        return [name for _, name, *_ in self.query(f"PRAGMA table_info({table})")]

    def indexes(self, table: str) -> list[Index]:
        """Give the indexes of *table*, those of its constraints by PostgreSQL's names."""
        found = []
        for _, name, _, origin, _ in self.query(f"PRAGMA index_list({table})"):
            columns = tuple(row[2] for row in self.query(f"PRAGMA index_info({name})"))
            known_as = {"c": name, "pk": f"{table}_pkey", "u": f"{table}_{columns[0]}_key"}[origin]
            ((text,),) = self.query(f"SELECT sql FROM sqlite_master WHERE name = '{name}'")
            predicate = re.search(r" WHERE (.+)", text or "")
            found.append(Index(known_as, columns, predicate[1] if predicate else "true"))
        return sorted(found, key=lambda index: index.name)

    def names(self) -> set[str]:
        """Name tables, views, indexes and constraints, without SQLite's own prefix."""
        rows = self.query("SELECT name, coalesce(sql, '') FROM sqlite_master WHERE name <> 'sqlite_sequence'")
        constraints = {name for _, text in rows for name in re.findall(r"CONSTRAINT (\w+)", text)}
        return constraints | {name.removeprefix("sqlite_autoindex_") for name, _ in rows}
