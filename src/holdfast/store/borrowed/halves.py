"""Keeps half an operation of ours out of a caller's commit.

An error of the server fails the caller's transaction, and whatever was done of an operation goes with it. A task that
is cancelled, or a time-out of the driver's, need not do so: the statement may have ended before the server heard of it,
and who catches the error may commit all the same, a job without its event. So an operation that breaks off after it has
begun to write fails the transaction itself, as a statement that is cancelled does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.store.borrowed.kinds import R
from holdfast.store.tx import Row, Tx

SPOIL = "SELECT CAST('an operation of Holdfast broke off half-way' AS bigint)"
SPOIL_SECONDS = 5.0  # a server that cannot be reached commits nothing either


async def run_whole(tx: Tx, work: Callable[[Tx], Coroutine[Any, Any, R]]) -> R:
    """Run *work*; if it breaks off when something was written, have the server fail the transaction."""
    noting = Noting(tx)
    try:
        return await work(noting)
    except (Exception, asyncio.CancelledError) as error:
        if noting.has_written and not _is_settled(error):
            with suppress(Exception):
                async with asyncio.timeout(SPOIL_SECONDS):
                    await tx.execute(SPOIL)
        raise


def _is_settled(error: BaseException) -> bool:
    """Tell whether *error* leaves nothing half done, as an outcome of ours, or comes of the server, which fails it."""
    return isinstance(error, HoldfastError) or getattr(error, "sqlstate", None) is not None


class Noting:
    """A transaction that notes whether a statement was sent that writes."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self.database = tx.database
        self.has_written = False

    async def execute(self, sql: str, /, **values: object) -> None:
        """Run *sql* and throw its rows away."""
        self._note(sql)
        await self._tx.execute(sql, **values)

    async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:
        """Run *sql* and return all of its rows."""
        self._note(sql)
        return await self._tx.fetch_all(sql, **values)

    def _note(self, sql: str) -> None:
        self.has_written = self.has_written or not sql.lstrip().startswith("SELECT")
