"""Statistics of a time when our tables were small do not stay: every connection plans without them again (I-72)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from holdfast import Holdfast
from holdfast.database.sqlite import planner_statistics
from holdfast.database.tx import Tx
from tests.store.crowd import TINY, fill
from tests.support.factories import TASKS
from tests.support.ways import Way

BY_ID = "EXPLAIN QUERY PLAN SELECT id, task FROM holdfast_job WHERE id IN (SELECT value FROM json_each('[]'))"


@pytest.fixture
def hf(new_holdfast: Callable[..., Holdfast]) -> Holdfast:
    """A small SQLite file with jobs of every kind: an index without rows has no figures, and SQLite then guesses."""
    hf = new_holdfast("sqlite", tasks=[TASKS])
    hf.store.run_sync(_fill)
    return hf


async def _fill(tx: Tx) -> None:
    fill(tx, 1, TINY)


@pytest.fixture
def stranger(hf: Holdfast) -> Iterator[sqlite3.Connection]:
    """Somebody else's connection, by which a table was made, and everything analysed."""
    with closing(sqlite3.connect(hf.settings.database, isolation_level=None, cached_statements=0)) as connection:
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY, name text)")
        connection.execute("CREATE INDEX orders_name ON orders (name)")
        connection.execute("INSERT INTO orders (name) VALUES ('Ada')")
        connection.execute("ANALYZE")
        yield connection


def scans(connection: sqlite3.Connection) -> bool:
    connection.execute("SELECT 1 FROM holdfast_job LIMIT 1").fetchall()  # a changed schema is seen when one reads
    return "SCAN" in connection.execute(BY_ID).fetchall()[0][3]


def test_figures_about_our_tables_are_struck_out_for_every_connection(
    hf: Holdfast, stranger: sqlite3.Connection
) -> None:
    scanned = scans(stranger)

    was_known = hf.store.run_sync(planner_statistics.forget)

    assert (scanned, was_known, scans(stranger)) == (True, True, False)
    assert stranger.execute("SELECT DISTINCT tbl FROM sqlite_stat1").fetchall() == [("orders",)]
    assert hf.store.read_sync(planner_statistics.are_known) is False
    assert len(hf.sync.list_jobs()) == TINY


def test_where_nothing_is_known_nothing_is_written(hf: Holdfast, stranger: sqlite3.Connection) -> None:
    hf.store.run_sync(planner_statistics.forget)
    before = stranger.execute("PRAGMA schema_version").fetchall()

    assert hf.store.run_sync(planner_statistics.forget) is False
    assert stranger.execute("PRAGMA schema_version").fetchall() == before


async def test_a_database_that_nobody_analysed_has_nothing_to_forget(way: Way) -> None:
    assert await way.read(planner_statistics.are_known) is False
    assert await way.call(planner_statistics.forget) is False
