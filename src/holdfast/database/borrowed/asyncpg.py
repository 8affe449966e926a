"""The connections of asyncpg, and what its pools hand out for them.

asyncpg numbers its parameters, asks the server for the type of each, and takes a value of just that type. So the text
that is compiled for psycopg is written anew, once: what stands in a cast of ours is sent as text and cast from there,
as it is with psycopg; a whole number elsewhere is a bigint; a text or a NULL is what the server takes it for.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from holdfast.database.borrowed.adapters import Driver, DriverConnection, Library, R
from holdfast.database.borrowed.atomicity import run_whole
from holdfast.database.borrowed.drivers import has_failed, is_closed, is_of_another_encoding, knows_every_character
from holdfast.database.dialect import Dialect
from holdfast.database.tx import Database, Row, Tx
from holdfast.errors import TransactionRequired, WrongConnection

FAILED = "25P02"  # in_failed_sql_transaction
PARAMETER = re.compile(r"(?P<cast>\bCAST\()?%\((?P<name>\w+)\)s|(?P<percent>%%)")

_turns: weakref.WeakKeyDictionary[Any, asyncio.Lock] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Numbered:
    """A text with numbered parameters, and how to fill them."""

    text: str
    parameters: tuple[tuple[str, bool], ...]
    """The name of each, and whether it is sent as text."""

    def arguments(self, values: Mapping[str, object]) -> tuple[object, ...]:
        """Put *values* in the order of their numbers."""
        return tuple(
            str(values[name]) if is_text and values[name] is not None else values[name]
            for name, is_text in self.parameters
        )


@cache
def number(text: str, whole: tuple[str, ...]) -> Numbered:
    """Rewrite *text*, as psycopg reads it, for asyncpg; *whole* are the names whose values are whole numbers."""
    numbers: dict[tuple[str, bool], int] = {}

    def rewritten(match: re.Match[str]) -> str:
        if match["percent"]:
            return "%"
        name, is_cast = match["name"], match["cast"] is not None
        place = f"${numbers.setdefault((name, is_cast), len(numbers) + 1)}"
        if is_cast:
            return f"CAST(CAST({place} AS text)"
        return f"CAST({place} AS bigint)" if name in whole else place

    return Numbered(PARAMETER.sub(rewritten, text), tuple(numbers))


class AsyncpgTx:
    """The open transaction of an asyncpg connection of a caller's."""

    database: Database = "postgres"

    def __init__(self, connection: Any, dialect: Dialect) -> None:
        from asyncpg import Record

        self._connection = connection
        self._dialect = dialect
        self._record = Record

    async def execute(self, sql: str, /, **values: object) -> None:
        await self._run(sql, values)

    async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:
        return [tuple(row) for row in await self._run(sql, values)]

    async def _run(self, sql: str, values: Mapping[str, object]) -> list[Any]:
        statement = self._dialect.compile(sql, values)
        bound = self._dialect.bind(statement, values)
        numbered = number(statement.text, tuple(name for name, value in bound.items() if type(value) is int))
        # what `fetch` does, save that the caller's codecs and its class of records stay out of it
        rows: list[Any] = await self._connection._execute(
            numbered.text, numbered.arguments(bound), 0, None, ignore_custom_codec=True, record_class=self._record
        )
        return rows


def _refuse(connection: Any) -> None:
    if not _is_understood(getattr(type(connection), "_execute", None)):
        raise WrongConnection(
            "Holdfast cannot use this version of asyncpg, because asyncpg has changed inside; install an older "
            "asyncpg, or a newer Holdfast"
        )
    if connection.is_closed():
        raise is_closed()
    if not knows_every_character(connection.get_settings().client_encoding):
        raise is_of_another_encoding()
    if not connection.is_in_transaction():
        raise TransactionRequired(
            "no transaction is open on this connection; write `async with connection.transaction():` around your "
            "statements and this call"
        )


@cache
def _is_understood(execute: Any) -> bool:
    """Tell whether *execute*, which asyncpg keeps to itself, runs a statement without the caller's codecs."""
    known = {"ignore_custom_codec", "record_class"}
    return execute is not None and known <= inspect.signature(execute).parameters.keys()


async def _run(connection: Any, dialect: Dialect, work: Callable[[Tx], Coroutine[Any, Any, R]]) -> R:
    """Run *work* when no other work of ours is under way: asyncpg would refuse the second."""
    async with _turns.setdefault(connection, asyncio.Lock()):
        with _translated():
            return await run_whole(AsyncpgTx(connection, dialect), work, is_async=True)


@contextmanager
def _translated() -> Iterator[None]:
    """Raise errors of ours for asyncpg's; repeat nothing."""
    from asyncpg import InterfaceError, PostgresError

    from holdfast.database.postgres.errors import Trouble, diagnose_state, failure

    try:
        yield
    except PostgresError as error:
        state = error.sqlstate or ""
        if state == FAILED:
            raise has_failed() from error
        if (trouble := diagnose_state(state)) is Trouble.MISTAKE:
            raise
        raise failure(trouble, str(error).partition("\n")[0]) from error
    except InterfaceError as error:
        if "another operation" in str(error):
            raise WrongConnection(
                "another statement is running on this connection; roll back the transaction, and give each task its "
                "own connection"
            ) from error
        if "closed" in str(error):
            raise failure(Trouble.LOST, str(error)) from error
        raise
    except TimeoutError as error:  # the connection's own command_timeout
        raise failure(Trouble.EXHAUSTED, "a statement took longer than the connection's command_timeout") from error
    except OSError as error:
        raise failure(Trouble.LOST, str(error)) from error


async def _lend(proxy: Any) -> DriverConnection:
    """Give the connection that a pool has handed out."""
    if (connection := getattr(proxy, "_con", None)) is None:
        raise WrongConnection(
            "this connection is closed: its pool took it back; write `async with pool.acquire() as connection, "
            "connection.transaction():` around your statements and this call"
        )
    return DriverConnection(connection)


ASYNCPG = Driver("asyncpg.connection.Connection", "postgres", True, _refuse, _run)
OF_POOL = Library("asyncpg.pool.PoolConnectionProxy", True, _lend)
