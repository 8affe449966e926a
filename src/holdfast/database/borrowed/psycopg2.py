"""The connections of psycopg2, which writes values into the text itself.

The cursor is made here and is plain, and values come wrapped, so that neither a caller's cursor factory, adapters nor
typecasters change what we send or get.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.database.borrowed import drivers
from holdfast.database.borrowed.adapters import Driver, R
from holdfast.database.borrowed.atomicity import run_whole
from holdfast.database.borrowed.drivers import (
    ACTIVE,
    FAILED,
    IDLE,
    UNKNOWN,
    has_failed,
    is_closed,
    is_in_use,
    is_of_another_encoding,
    knows_every_character,
)
from holdfast.database.dialect import Dialect
from holdfast.database.tx import Database, Row, Tx
from holdfast.errors import TransactionRequired, WrongConnection

PAUSE_SECONDS = 0.01


class Psycopg2Tx:
    """The open transaction of a psycopg2 connection of a caller's; nothing suspends."""

    database: Database = "postgres"

    def __init__(self, connection: Any, dialect: Dialect) -> None:
        from psycopg2 import extensions

        self._dialect = dialect
        self._cursor = extensions.cursor(connection)
        for each in (extensions.UNICODE, extensions.INTEGER, extensions.LONGINTEGER, extensions.BOOLEAN):
            extensions.register_type(each, self._cursor)

    async def execute(self, sql: str, /, **values: object) -> None:
        statement = self._dialect.compile(sql, values)
        bound = self._dialect.bind(statement, values)
        self._cursor.execute(statement.text, {name: _wrapped(value) for name, value in bound.items()})

    async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:
        await self.execute(sql, **values)
        rows: list[Row] = self._cursor.fetchall()
        return rows


def _wrapped(value: object) -> object:
    """Have a value written by psycopg2's own adapter for it, whatever a program has registered."""
    from psycopg2 import extensions

    if isinstance(value, str):
        return extensions.QuotedString(str(value))  # a member of an enumeration is a text, too
    if isinstance(value, bool):
        return extensions.Boolean(value)
    return extensions.Int(value) if isinstance(value, int) else value


def _refuse(connection: Any) -> None:
    if connection.closed:
        raise is_closed()
    if connection.async_:
        raise WrongConnection(
            "this connection was made with async_=1, which Holdfast cannot use; pass a blocking connection"
        )
    if not knows_every_character(connection.encoding):
        raise is_of_another_encoding()
    status = connection.get_transaction_status()
    if status == FAILED:
        raise has_failed()
    if status in (IDLE, UNKNOWN):
        raise TransactionRequired(
            "no transaction is open on this connection; write `with connection:` around your statements and this "
            'call, with your statements first (with autocommit, run `cursor.execute("BEGIN")` first)'
        )


async def _run(connection: Any, dialect: Dialect, work: Callable[[Tx], Coroutine[Any, Any, R]]) -> R:
    _wait_for_turn(connection)
    with _translated():
        return await run_whole(Psycopg2Tx(connection, dialect), work, is_async=False)


def _wait_for_turn(connection: Any) -> None:
    """Wait for a statement of another thread to end, of which psycopg2 tells nobody; a COPY of this one never does."""
    never = threading.Event()
    for _ in range(round(drivers.TURN_SECONDS / PAUSE_SECONDS)):
        if connection.get_transaction_status() != ACTIVE:
            return
        never.wait(PAUSE_SECONDS)
    raise is_in_use()


@contextmanager
def _translated() -> Iterator[None]:
    """Raise errors of ours for psycopg2's; repeat nothing."""
    import psycopg2

    from holdfast.database.postgres.errors import Trouble, diagnose_state, failure

    try:
        yield
    except psycopg2.Error as error:
        if error.pgcode:
            trouble = diagnose_state(error.pgcode)
        else:
            is_lost = isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError)
            trouble = Trouble.LOST if is_lost else Trouble.MISTAKE
        if trouble is Trouble.MISTAKE:
            raise
        text = (error.diag.message_primary or str(error)).strip().partition("\n")[0]
        raise failure(trouble, text) from error


PSYCOPG2 = Driver("psycopg2.extensions.connection", "postgres", False, _refuse, _run)
