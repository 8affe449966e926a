"""The connections of aiosqlite: each is a sqlite3 connection in a thread of its own.

A whole operation of ours is one visit to that thread. So what other tasks do on the same connection comes before it or
after it, and never between its statements; and a caller who is cancelled has it done wholly, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from holdfast.database.borrowed.adapters import Driver, R
from holdfast.database.borrowed.drivers import is_closed, refuse_sqlite, run_sqlite
from holdfast.database.dialect import Dialect
from holdfast.database.tx import Tx, drive
from holdfast.errors import WrongConnection


def _refuse(connection: Any) -> None:
    if not all(hasattr(connection, name) for name in ("_execute", "_connection", "_running")):
        raise WrongConnection(
            "this version of aiosqlite is made otherwise than those that Holdfast knows; install an older one, or a "
            "newer release of holdfast"
        )
    refuse_sqlite(_inner(connection))


def _inner(connection: Any) -> Any:
    """Reach the connection in the thread."""
    if not connection._running:
        raise is_closed()
    if connection._connection is None:
        raise WrongConnection("this connection is not open yet; write `async with aiosqlite.connect(…) as connection:`")
    return connection._connection


async def _run(connection: Any, dialect: Dialect, work: Callable[[Tx], Coroutine[Any, Any, R]]) -> R:
    result: R = await connection._execute(partial(_visit, _inner(connection), dialect, work))
    return result


def _visit(inner: Any, dialect: Dialect, work: Callable[[Tx], Coroutine[Any, Any, R]]) -> R:
    refuse_sqlite(inner)  # another task may have ended the transaction meanwhile
    return drive(run_sqlite(inner, dialect, work))


AIOSQLITE = Driver("aiosqlite.core.Connection", "sqlite", True, _refuse, _run)
