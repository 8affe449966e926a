"""A transaction on a real connection to PostgreSQL that is left open half-way."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg

from holdfast.database.postgres import AsyncPostgresTx
from tests.support.databases import pooled
from tests.support.ways import Way


class Half:
    """It is begun by its first statement."""

    def __init__(self, way: Way, connection: psycopg.AsyncConnection[Any]) -> None:
        self.connection = connection
        self.tx = AsyncPostgresTx(connection, way.hf.store.dialect)

    @classmethod
    async def connect(cls, way: Way) -> Half:
        """Come as somebody else to the database of *way*."""
        options = pooled.connect_options("psycopg")
        return cls(way, await psycopg.AsyncConnection.connect(way.hf.settings.database, **options))

    async def run(self, operation: Any, *args: Any) -> Any:
        """Run an operation and do not commit; it must not wait for anybody."""
        return await asyncio.wait_for(operation(self.tx, *args), 5)

    async def lock(self, table: str, column: str, value: object) -> None:
        """Lock a row as a stranger might."""
        await self.connection.execute(f"SELECT 1 FROM contract.{table} WHERE {column} = %s FOR UPDATE", [value])

    async def commit(self) -> None:
        """End it."""
        await self.connection.commit()
