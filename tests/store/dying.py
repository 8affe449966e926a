"""A program that migrates and is killed at every statement in turn: `python -m tests.store.dying ADDRESS SCHEMA`.

For each step, and for each n = 1, 2, …, it forks a child that takes the step and is killed with -9 just before its n-th
statement; then it looks at what is left. The last child gets through, but for its COMMIT; then the step is taken. What
was found is printed as JSON: for each step a list of `[schema, tables of ours]`, as it was before, then for each child.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from typing import Any

import psycopg

from holdfast.database import migrations
from holdfast.database.dialect import PostgresDialect, SqliteDialect
from holdfast.database.postgres import PostgresTx
from holdfast.database.sqlite.tx import SqliteTx
from holdfast.database.tx import Row, Tx, drive

TABLES = {
    "sqlite": "SELECT count(*) FROM sqlite_master WHERE name LIKE 'holdfast_%'",
    "postgres": "SELECT count(*) FROM pg_catalog.pg_tables WHERE schemaname = $schema",
}


class DyingTx:
    """Counts statements, and kills its own process before the one that is asked for."""

    def __init__(self, tx: Tx, last: int) -> None:
        self._tx = tx
        self._left = last

    async def execute(self, sql: str, /, **values: object) -> None:
        """Run *sql* and throw its rows away, or die."""
        self._count()
        await self._tx.execute(sql, **values)

    async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:
        """Run *sql* and return all of its rows, or die."""
        self._count()
        return await self._tx.fetch_all(sql, **values)

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def connect(address: str, schema: str) -> tuple[Any, Tx]:
    """Connect, and begin a transaction."""
    if address.startswith("postgresql:"):
        connection = psycopg.connect(address)
        return connection, PostgresTx(connection, PostgresDialect(schema))
    file = sqlite3.connect(address, isolation_level=None)
    file.execute("BEGIN IMMEDIATE")
    return file, SqliteTx(file, SqliteDialect())


def die_at(number: int, address: str, schema: str) -> bool:
    """Have a child die before its statement *number*; tell whether it got through them all instead."""
    child = os.fork()
    if child == 0:
        _, tx = connect(address, schema)
        drive(migrations.step(DyingTx(tx, number), database_of(address)))
        os._exit(0)  # as if it had died before COMMIT
    _, status = os.waitpid(child, 0)
    return not os.WIFSIGNALED(status)


def look(address: str, schema: str) -> list[int]:
    """Tell how far the database has come, and how many tables of ours are there."""
    connection, tx = connect(address, schema)
    standing = drive(migrations.standing(tx, database_of(address)))
    ((tables,),) = drive(tx.fetch_all(TABLES[database_of(address)]))
    connection.close()
    return [standing.schema, tables]


def database_of(address: str) -> Any:
    """Tell the kind of database from its address."""
    return "postgres" if address.startswith("postgresql:") else "sqlite"


def die_in_step(address: str, schema: str) -> list[list[int]]:
    """Have children die at each statement of the next step, then take it; tell what was there before and after each."""
    found = [look(address, schema)]
    got_through = False
    while not got_through:
        got_through = die_at(len(found), address, schema)
        found.append(look(address, schema))
    connection, tx = connect(address, schema)
    drive(migrations.step(tx, database_of(address)))
    connection.commit()
    connection.close()
    return found


if __name__ == "__main__":
    _, address, schema = sys.argv
    print(json.dumps([die_in_step(address, schema) for _ in migrations.steps(database_of(address))]))
