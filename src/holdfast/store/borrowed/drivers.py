"""The connections of psycopg and of Python's own sqlite3."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.errors import TransactionRequired, WrongConnection
from holdfast.store.borrowed.halves import run_whole
from holdfast.store.borrowed.kinds import Driver, R
from holdfast.store.dialect import Dialect
from holdfast.store.tx import Tx

IDLE, FAILED, UNKNOWN = 0, 3, 4  # libpq's words for the state of a transaction


def is_closed() -> WrongConnection:
    """Say that a connection is closed."""
    return WrongConnection("this connection is closed; pass one that is open and in a transaction")


def is_of_another_encoding() -> WrongConnection:
    """Say that a connection cannot carry every text: part of a start would be done by the time that shows."""
    return WrongConnection(
        'this connection\'s encoding does not know every character; connect with client_encoding="utf8"'
    )


def knows_every_character(encoding: str | None) -> bool:
    """Tell whether *encoding* is UTF-8; a pooler repeats the word that the client chose for it, quotes included."""
    return (encoding or "").strip("'").replace("-", "").upper() in ("UTF8", "UNICODE")


def has_failed() -> TransactionRequired:
    """Say that a transaction will commit nothing."""
    return TransactionRequired(
        "the transaction on this connection has failed; roll it back, or to a savepoint, and start the job anew"
    )


def _refuse_psycopg(connection: Any) -> None:
    if connection.closed:
        raise is_closed()
    if not knows_every_character(connection.info.parameter_status("client_encoding")):
        raise is_of_another_encoding()
    status = connection.info.transaction_status
    if status == FAILED:
        raise has_failed()
    if status in (IDLE, UNKNOWN):
        raise TransactionRequired(
            "no transaction is open on this connection; write `with connection.transaction():` around your statements "
            "and this one (`async with` for an async connection)"
        )


def refuse_sqlite(connection: Any) -> None:
    try:
        is_open = connection.in_transaction
        connection.total_changes  # noqa: B018 - raises on a closed connection, and asks the database nothing
    except Exception as error:
        raise is_closed() from error
    if not is_open:
        raise TransactionRequired(
            'no transaction is open on this connection; write `connection.execute("BEGIN IMMEDIATE")` before your '
            "statements and this one"
        )


async def _run_async_psycopg(connection: Any, dialect: Dialect, work: Callable[[Tx], Coroutine[Any, Any, R]]) -> R:
    from holdfast.store.postgres import AsyncPostgresTx, translated

    with translated():
        return await run_whole(AsyncPostgresTx(connection, dialect), work)


async def _run_psycopg(connection: Any, dialect: Dialect, work: Callable[[Tx], Coroutine[Any, Any, R]]) -> R:
    from holdfast.store.postgres import PostgresTx, translated

    with translated():
        return await work(PostgresTx(connection, dialect))


async def run_sqlite(connection: Any, dialect: Dialect, work: Callable[[Tx], Coroutine[Any, Any, R]]) -> R:
    """Run *work* with texts as texts, whatever the caller makes of them."""
    from holdfast.store.sqlite import SqliteTx

    try:
        tx = SqliteTx(connection, dialect)
    except sqlite3.ProgrammingError as error:
        raise WrongConnection(
            "this connection belongs to another thread; start the job there, or connect with check_same_thread=False"
        ) from error
    text_factory, connection.text_factory = connection.text_factory, str
    try:
        return await work(tx)
    finally:
        connection.text_factory = text_factory


ASYNC_PSYCOPG = Driver("psycopg.AsyncConnection", "postgres", True, _refuse_psycopg, _run_async_psycopg)
PSYCOPG = Driver("psycopg.Connection", "postgres", False, _refuse_psycopg, _run_psycopg)
SQLITE = Driver("sqlite3.Connection", "sqlite", False, refuse_sqlite, run_sqlite)
