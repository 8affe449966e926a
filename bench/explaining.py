"""A transaction that has PostgreSQL explain each statement before it is run, and adds up the pages that it touched."""

from __future__ import annotations

from typing import Any

import psycopg

from holdfast.database.dialect import Dialect
from holdfast.database.postgres import PostgresTx

EXPLAIN = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, SUMMARY OFF, FORMAT JSON) "


class ExplainingTx(PostgresTx):
    """The open transaction of *connection*; each statement is explained, undone, and run for good."""

    def __init__(self, connection: psycopg.Connection[Any], dialect: Dialect) -> None:
        super().__init__(connection, dialect)
        self._connection = connection
        self.pages = 0
        """How many pages all statements have touched, whether they were in memory or had to be read."""

    async def execute(self, sql: str, /, **values: object) -> None:
        """Explain *sql*, and run it."""
        with self._connection.transaction(force_rollback=True):
            await super().execute(f"{EXPLAIN}{sql}", **values)
            ((plans,),) = self._cursor.fetchall()
        self.pages += sum(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"] for plan in plans)
        await super().execute(sql, **values)
