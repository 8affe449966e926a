"""An open SQLite transaction as our operations see it, and SQLite's errors as ours."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from holdfast.database.dialect import Dialect
from holdfast.database.tx import Database, Row
from holdfast.errors import Busy, StoreError, Unavailable

# the statement is wrong, or its parameters are: an error of ours, to be seen as it is
LOUD = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISUSE, sqlite3.SQLITE_RANGE}

ADVICE = {
    sqlite3.SQLITE_FULL: "the disk is full and nothing was written; make room, then try again",
    sqlite3.SQLITE_IOERR: "the disk reported an error and nothing was written; look into the system's log",
    sqlite3.SQLITE_CANTOPEN: "the database cannot be opened; let this user reach it, or have more files (`ulimit -n`)",
    sqlite3.SQLITE_READONLY: "the database is read-only; let this user write the file and its directory",
    sqlite3.SQLITE_CORRUPT: "the database is damaged; stop its users, then restore it or try `.recover`",
    sqlite3.SQLITE_NOTADB: "the file is not a SQLite database, or is encrypted; set another path",
    sqlite3.SQLITE_PERM: "the database may not be opened; let this user read and write the file",
    sqlite3.SQLITE_NOMEM: "SQLite is out of memory and nothing was written; try again",
    sqlite3.SQLITE_INTERRUPT: "the read was not done by its deadline; ask for less or raise deadline_seconds",
}


class SqliteTx:
    """A transaction open on *connection*, ours or a caller's; its awaits never suspend."""

    database: Database = "sqlite"

    def __init__(self, connection: sqlite3.Connection, dialect: Dialect, cursor: sqlite3.Cursor | None = None) -> None:
        self._cursor = cursor or connection.cursor(sqlite3.Cursor)
        self._cursor.row_factory = None  # a caller's connection may have one of its own
        self._dialect = dialect

    async def execute(self, sql: str, /, **values: object) -> None:
        self._run(sql, values)

    async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:
        return self._run(sql, values)

    def _run(self, sql: str, values: dict[str, object]) -> list[Row]:
        statement = self._dialect.compile(sql, values)
        try:
            # rows are always fetched: a statement with RETURNING left half-way keeps COMMIT from happening
            return self._cursor.execute(statement.text, self._dialect.bind(statement, values)).fetchall()
        except sqlite3.Error as error:
            raise_ours(error)


@contextmanager
def translated() -> Iterator[None]:
    """Raise our errors in place of SQLite's."""
    try:
        yield
    except sqlite3.Error as error:
        raise_ours(error)


def raise_ours(error: sqlite3.Error) -> NoReturn:
    """Raise *error* as one of ours; a mistake in a statement is raised as it is."""
    if (ours := ours_for(error)) is None:
        raise error
    raise ours from error


def ours_for(error: sqlite3.Error) -> StoreError | None:
    """Make an error of ours of *error*; None for a mistake in a statement, which is to be seen as it is."""
    extended = getattr(error, "sqlite_errorcode", None)  # absent if the module itself, not SQLite, has refused
    if extended is None or extended in LOUD:
        return None
    if extended == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return Busy("another connection wrote after this transaction began to read; begin it with BEGIN IMMEDIATE")
    if is_busy(error):
        return Busy("another program keeps the database locked; end its transaction, or try again")
    if (advice := ADVICE.get(extended & 0xFF)) is not None:
        return Unavailable(f"{advice} (SQLite: {error})")
    return StoreError(f"the database refused the statement (SQLite: {error})")


def is_busy(error: sqlite3.Error) -> bool:
    """Tell whether *error* says that somebody else has the database locked."""
    return primary_code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def primary_code(error: sqlite3.Error) -> int:
    """Give SQLite's result code without its extension; 0 if the error did not come from SQLite."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
