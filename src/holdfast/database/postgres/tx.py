"""Our SQL on a psycopg connection, in both colours; the connection may be the caller's.

The cursor is made here and is plain, so that a caller's cursor factory (which may read placeholders
otherwise), row factory and adapters change neither what we send nor what we get: whole numbers, texts and
None, in tuples.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import psycopg
from psycopg import adapt
from psycopg.pq import ExecStatus
from psycopg.rows import tuple_row
from psycopg.types import bool as booleans
from psycopg.types import numeric, string

from holdfast.database.dialect import Dialect
from holdfast.database.postgres.async_connection import AsyncConnection
from holdfast.database.postgres.beginning import KEEPS_PREPARED, Beginnings, sent
from holdfast.database.records import Record, records
from holdfast.database.tx import Database, Row

LOADERS = (
    ("text", string.TextLoader),
    ("varchar", string.TextLoader),
    ("int8", numeric.IntLoader),
    ("int4", numeric.IntLoader),
    ("bool", booleans.BoolLoader),
)
DUMPERS = (
    (str, string.StrDumperUnknown),
    (int, numeric.IntDumper),
    (bool, booleans.BoolDumper),
)


def plain() -> adapt.AdaptersMap:
    """Make adapters with psycopg's own ways for the types that we use, whatever a program has registered for them."""
    adapters = adapt.AdaptersMap(psycopg.adapters)
    for name, loader in LOADERS:
        adapters.register_loader(name, loader)
    for kind, dumper in DUMPERS:
        adapters.register_dumper(kind, dumper)
    return adapters


PLAIN = plain()  # made once: to register them on each new cursor of a caller's connection took 30 µs


class AsyncCursor(psycopg.AsyncCursor[Row]):
    """An async cursor that heeds our adapters and nobody else's."""

    @property
    def adapters(self) -> adapt.AdaptersMap:
        """The plain ones."""
        return PLAIN


class Cursor(psycopg.Cursor[Row]):
    """A blocking cursor that heeds our adapters and nobody else's."""

    @property
    def adapters(self) -> adapt.AdaptersMap:
        """The plain ones."""
        return PLAIN


class WholeAsyncCursor(psycopg.AsyncClientCursor[Row]):
    """An async cursor that writes values into the text, so that it may be several statements; by our adapters."""

    @property
    def adapters(self) -> adapt.AdaptersMap:
        """The plain ones."""
        return PLAIN


class WholeCursor(psycopg.ClientCursor[Row]):
    """A blocking cursor that writes values into the text, so that it may be several statements; by our adapters."""

    @property
    def adapters(self) -> adapt.AdaptersMap:
        """The plain ones."""
        return PLAIN


class UsersAsyncCursor(psycopg.AsyncCursor[Row]):
    """An async cursor for users' statements: it heeds the program's adapters, not those of a connection once lent."""

    @property
    def adapters(self) -> adapt.AdaptersMap:
        """The program's."""
        return psycopg.adapters


class UsersCursor(psycopg.Cursor[Row]):
    """A blocking cursor for users' statements."""

    @property
    def adapters(self) -> adapt.AdaptersMap:
        """The program's."""
        return psycopg.adapters


class AsyncPostgresTx:
    """The open transaction of an async psycopg connection, ours or a caller's."""

    database: Database = "postgres"

    def __init__(self, connection: psycopg.AsyncConnection[Any], dialect: Dialect) -> None:
        self._dialect = dialect
        self._cursor = AsyncCursor(connection, row_factory=tuple_row)

    async def execute(self, sql: str, /, **values: object) -> None:
        statement = self._dialect.compile(sql, values)
        await self._cursor.execute(statement.text, self._dialect.bind(statement, values))

    async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:
        await self.execute(sql, **values)
        return await self._cursor.fetchall()


class PostgresTx:
    """The open transaction of a blocking psycopg connection, ours or a caller's; nothing suspends."""

    database: Database = "postgres"

    def __init__(self, connection: psycopg.Connection[Any], dialect: Dialect) -> None:
        self._dialect = dialect
        self._cursor = Cursor(connection, row_factory=tuple_row)

    async def execute(self, sql: str, /, **values: object) -> None:
        statement = self._dialect.compile(sql, values)
        self._cursor.execute(statement.text, self._dialect.bind(statement, values))

    async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:
        await self.execute(sql, **values)
        return self._cursor.fetchall()


class OwnAsyncPostgresTx(AsyncPostgresTx):
    """The same on a connection of ours, with what only its store may do."""

    def __init__(self, connection: AsyncConnection, dialect: Dialect) -> None:
        super().__init__(connection, dialect)
        self.connection = connection
        self._users_cursor = UsersAsyncCursor(connection, row_factory=tuple_row)
        self._whole_cursor = WholeAsyncCursor(connection, row_factory=tuple_row)
        self._beginnings = Beginnings(self._cursor)

    def speak(self, dialect: Dialect) -> None:
        """Compile our SQL by *dialect* from now on."""
        self._dialect = dialect

    def keep_prepared(self, most: int) -> None:
        """Keep up to *most* statements prepared, so that those of one schema do not push out another's."""
        if self.connection.prepared_max != most:
            self.connection.prepared_max = self._beginnings.most = most

    async def query(self, text: str, values: Mapping[str, object]) -> list[Record]:
        """Run a user's statement, which is written as psycopg reads it."""
        await self._users_cursor.execute(text, values)
        if not (self._users_cursor.statusmessage or "").startswith(KEEPS_PREPARED):
            self._beginnings.forget()
        if not _gives_rows(self._users_cursor):
            return []
        return records(_names(self._users_cursor), await self._users_cursor.fetchall())

    async def begin(self, text: str) -> None:
        """Run *text*, which may be several statements, as one: it is never prepared."""
        self._beginnings.forget()
        await self._cursor.execute(text, prepare=False)

    async def begin_with(self, text: str, sql: str, values: Mapping[str, object]) -> list[Row]:
        """Run *text*, which may be several statements, and *sql* after it, as one; return the rows of *sql*."""
        statement = self._dialect.compile(sql, values)
        given = self._dialect.bind(statement, values)
        if (whole := self._beginnings.write(text, statement.text, given)) is not None:
            return self._beginnings.read(await self.connection.wait(sent(self.connection.pgconn, whole)))
        await self._whole_cursor.execute(f"{text}; {statement.text}", given)
        while self._whole_cursor.nextset():
            pass
        return await self._whole_cursor.fetchall() if _gives_rows(self._whole_cursor) else []

    async def run_and_commit(self, text: str, sql: str, values: Mapping[str, object]) -> None:
        """Run *text*, then *sql*, then COMMIT, as one."""
        statement = self._dialect.compile(sql, values)
        given = self._dialect.bind(statement, values)
        if (whole := self._beginnings.write(text, statement.text, given, "; COMMIT")) is not None:
            await self.connection.wait(sent(self.connection.pgconn, whole))
        else:
            await self._whole_cursor.execute(f"{text}; {statement.text}; COMMIT", given)

    def give_away(self) -> None:
        """Let a user have the connection itself."""
        self.connection.give_away()

    def hasten_by(self, break_off: Callable[[], object] | None) -> None:
        """Have *break_off* called when who waits for a statement is cancelled, so that it ends soon."""
        self.connection.break_off = break_off

    async def patiently(self, work: Coroutine[Any, Any, None]) -> None:
        """Run *work*, which waits for nothing but this connection, to its end; a cancelled caller waits for that."""
        await self.connection.patiently(work)

    def let_go(self) -> None:
        """Prepare for the connection's end."""
        self.connection.unwatch()

    async def commit(self) -> None:
        """End the transaction; a driver's own way, half the client time of a statement."""
        await self.connection.commit()

    async def roll_back(self) -> None:
        """Undo the transaction, if there is one."""
        self._beginnings.forget()
        await self.connection.rollback()


class OwnPostgresTx(PostgresTx):
    """The same on a connection of ours, with what only its store may do."""

    def __init__(self, connection: psycopg.Connection[Any], dialect: Dialect) -> None:
        super().__init__(connection, dialect)
        self.connection = connection
        self._users_cursor = UsersCursor(connection, row_factory=tuple_row)
        self._whole_cursor = WholeCursor(connection, row_factory=tuple_row)
        self._beginnings = Beginnings(self._cursor)

    def speak(self, dialect: Dialect) -> None:
        """Compile our SQL by *dialect* from now on."""
        self._dialect = dialect

    def keep_prepared(self, most: int) -> None:
        """Keep up to *most* statements prepared, so that those of one schema do not push out another's."""
        if self.connection.prepared_max != most:
            self.connection.prepared_max = self._beginnings.most = most

    async def query(self, text: str, values: Mapping[str, object]) -> list[Record]:
        """Run a user's statement, which is written as psycopg reads it."""
        self._users_cursor.execute(text, values)
        if not (self._users_cursor.statusmessage or "").startswith(KEEPS_PREPARED):
            self._beginnings.forget()
        if not _gives_rows(self._users_cursor):
            return []
        return records(_names(self._users_cursor), self._users_cursor.fetchall())

    async def begin(self, text: str) -> None:
        """Run *text*, which may be several statements, as one: it is never prepared."""
        self._beginnings.forget()
        self._cursor.execute(text, prepare=False)

    async def begin_with(self, text: str, sql: str, values: Mapping[str, object]) -> list[Row]:
        """Run *text*, which may be several statements, and *sql* after it, as one; return the rows of *sql*."""
        statement = self._dialect.compile(sql, values)
        given = self._dialect.bind(statement, values)
        if (whole := self._beginnings.write(text, statement.text, given)) is not None:
            return self._beginnings.read(self.connection.wait(sent(self.connection.pgconn, whole)))
        self._whole_cursor.execute(f"{text}; {statement.text}", given)
        while self._whole_cursor.nextset():
            pass
        return self._whole_cursor.fetchall() if _gives_rows(self._whole_cursor) else []

    async def run_and_commit(self, text: str, sql: str, values: Mapping[str, object]) -> None:
        """Run *text*, then *sql*, then COMMIT, as one."""
        statement = self._dialect.compile(sql, values)
        given = self._dialect.bind(statement, values)
        if (whole := self._beginnings.write(text, statement.text, given, "; COMMIT")) is not None:
            self.connection.wait(sent(self.connection.pgconn, whole))
        else:
            self._whole_cursor.execute(f"{text}; {statement.text}; COMMIT", given)

    def give_away(self) -> None:
        """Let a user have the connection itself, which waits as ever."""

    def hasten_by(self, break_off: Callable[[], object] | None) -> None:
        """Do nothing: nobody can cancel a thread."""

    async def patiently(self, work: Coroutine[Any, Any, None]) -> None:
        """Run *work*, which nobody can cancel."""
        await work

    def let_go(self) -> None:
        """Do nothing: only a loop would look at the socket on its own."""

    async def commit(self) -> None:
        """End the transaction; a driver's own way, half the client time of a statement."""
        self.connection.commit()

    async def roll_back(self) -> None:
        """Undo the transaction, if there is one."""
        self._beginnings.forget()
        self.connection.rollback()


def _gives_rows(cursor: psycopg.AsyncCursor[Any] | psycopg.Cursor[Any]) -> bool:
    """Tell whether a statement gives rows; `description` says the same, and makes an object of each column for it."""
    return cursor.pgresult is not None and cursor.pgresult.status == ExecStatus.TUPLES_OK


def _names(cursor: psycopg.AsyncCursor[Any] | psycopg.Cursor[Any]) -> list[str]:
    return [each.name for each in cursor.description or ()]
