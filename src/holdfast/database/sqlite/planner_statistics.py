"""What SQLite's planner is told of our tables: nothing.

Without statistics it takes every table for a large one, and each of our statements goes by its index. With those that
somebody's `ANALYZE` or `PRAGMA optimize` gathered while the tables were small, most statements read whole tables, for
as long as these figures stand, however much the tables have grown since. So figures about our tables are struck out.
PostgreSQL keeps its own up to date.
"""

from __future__ import annotations

from holdfast.database.dialect import TABLES
from holdfast.database.tx import Tx

OURS = [f"holdfast_{name}" for name in TABLES]
FIND = """SELECT name FROM main.sqlite_master WHERE type = 'table' AND name IN ('sqlite_stat1', 'sqlite_stat4')"""
KNOWN = """SELECT 1 FROM main.sqlite_stat1 WHERE tbl $any(tables: text) LIMIT 1"""
STRIKE_OUT = {
    "sqlite_stat1": """DELETE FROM main.sqlite_stat1 WHERE tbl $any(tables: text)""",
    "sqlite_stat4": """DELETE FROM main.sqlite_stat4 WHERE tbl $any(tables: text)""",
}
# every connection keeps the figures that it has read until the schema changes; our own reads them again when asked to
CHANGE_SCHEMA = ("CREATE TABLE main.holdfast_changing (one integer)", "DROP TABLE main.holdfast_changing")
READ_AGAIN = "PRAGMA writable_schema = RESET"


async def are_known(tx: Tx) -> bool:
    """Tell whether the planner knows figures about our tables that may be out of date."""
    if tx.database != "sqlite" or not await tx.fetch_all(FIND):
        return False
    return bool(await tx.fetch_all(KNOWN, tables=OURS))


async def forget(tx: Tx) -> bool:
    """Strike out figures about our tables, for every connection there is; tell whether there were any."""
    if not await are_known(tx):
        return False
    for (table,) in await tx.fetch_all(FIND):
        await tx.execute(STRIKE_OUT[table], tables=OURS)
    for statement in (*CHANGE_SCHEMA, READ_AGAIN):
        await tx.execute(statement)
    return True
