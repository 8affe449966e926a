"""Reading without a transaction, where that is enough: one statement is its own consistent view.

Most reads are one statement, and BEGIN and its end would be two more: round trips on PostgreSQL, and on both what an
idle process asks for. Which operations need more is learnt by trying.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.database.tx import R, Row, Tx


class MultiStatementReads:
    """Knows the operations that read by more than one statement, and so need a transaction for their view."""

    def __init__(self) -> None:
        self._several: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()

    async def read(
        self,
        operation: Callable[..., Any],
        work: Callable[[Tx], Coroutine[Any, Any, R]],
        tx: Tx,
        in_transaction: Callable[[], Coroutine[Any, Any, R]],
    ) -> R:
        """Run *work*, which is *operation* on its arguments, over *tx* as it is; *in_transaction* if that won't do."""
        if operation not in self._several:
            try:
                return await work(SingleStatementTx(tx))
            except SecondStatement:
                self._several.add(operation)
        return await in_transaction()


class SecondStatement(Exception):
    """An operation that was given a glance needs a view."""


class SingleStatementTx:
    """No transaction, and good for one statement."""

    def __init__(self, tx: Tx) -> None:
        self.database = tx.database
        self._tx: Tx | None = tx

    async def execute(self, sql: str, /, **values: object) -> None:
        """Run *sql*, if it is the first, and throw its rows away."""
        await self._once().execute(sql, **values)

    async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:
        """Run *sql*, if it is the first, and return all of its rows."""
        return await self._once().fetch_all(sql, **values)

    def _once(self) -> Tx:
        tx, self._tx = self._tx, None
        if tx is None:
            raise SecondStatement
        return tx
