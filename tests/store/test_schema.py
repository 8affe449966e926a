"""The schema is the same on both databases, keeps its own rules, and is what docs/internals/schema.md says it is."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from holdfast import database, store
from holdfast.database.tx import drive
from holdfast.models import Start
from holdfast.outcomes import COMPLETED_WITH_NOTHING
from holdfast.store import rows
from holdfast.store.jobs import claiming, settling
from tests.store.catalog import Catalog, Index, PostgresCatalog, SqliteCatalog
from tests.store.steps import take_steps

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "schema.md"
POSTGRES_ONLY = {
    "holdfast_event": {"xid", "holdfast_event_xid"},  # what the feed's cursor goes by there
    "holdfast_delivery": {"holdfast_delivery_pkey"},  # in SQLite the table itself
}
SQLITE_ONLY = {"holdfast_event": {"holdfast_event_job"}}  # part of the primary key in PostgreSQL
START = Start(id=UUID(int=7), task="task", input="{}", queue="default")


@pytest.fixture
def on_sqlite() -> Iterator[Catalog]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        catalog = SqliteCatalog(connection)
        take_steps(catalog.tx)
        yield catalog


@pytest.fixture
def on_postgres(postgres_url: str) -> Iterator[Catalog]:
    with psycopg.connect(postgres_url) as connection:
        catalog = PostgresCatalog(connection)
        take_steps(catalog.tx)
        yield catalog
        connection.rollback()


@pytest.fixture(params=["sqlite", "postgres"])
def catalog(request: pytest.FixtureRequest) -> Catalog:
    found: Catalog = request.getfixturevalue(f"on_{request.param}")
    return found


STORAGE = "SELECT unnest(reloptions) FROM pg_class WHERE relname LIKE 'holdfast%' AND pg_table_is_visible(oid)"


def test_pages_of_jobs_have_room_for_updates_on_postgresql(on_postgres: Catalog) -> None:
    """C21: the one storage parameter that was measured; the others are the user's."""
    assert drive(on_postgres.tx.fetch_all(STORAGE)) == [("fillfactor=50",)]


@pytest.mark.source("JC-83")
def test_both_databases_have_the_same_tables_and_views(on_sqlite: Catalog, on_postgres: Catalog) -> None:
    assert on_sqlite.tables() == on_postgres.tables()


def test_both_databases_have_the_same_columns_in_the_same_order(on_sqlite: Catalog, on_postgres: Catalog) -> None:
    for table in on_postgres.tables():
        own = POSTGRES_ONLY.get(table, set())
        assert on_sqlite.columns(table) == [each for each in on_postgres.columns(table) if each not in own]


@pytest.mark.source("JC-81")
def test_both_databases_have_the_same_indexes(on_sqlite: Catalog, on_postgres: Catalog) -> None:
    for table in on_postgres.tables():
        # where seq is the rowid, the table itself is SQLite's primary key
        own = POSTGRES_ONLY.get(table, set()) | ({f"{table}_pkey"} if "seq" in on_sqlite.columns(table) else set())
        theirs = SQLITE_ONLY.get(table, set())
        shared = [(each.name, each.columns) for each in on_postgres.indexes(table) if each.name not in own]
        assert [(each.name, each.columns) for each in on_sqlite.indexes(table) if each.name not in theirs] == shared


def test_every_name_begins_with_holdfast(catalog: Catalog) -> None:
    assert [name for name in catalog.names() if not name.startswith("holdfast_")] == []


RUNNING = {"status": "'running'", "worker": "'w'", "lease_until": "1", "lease_ms": "1", "attempt": "1", "nonce": "'n'"}


def update(catalog: Catalog, values: dict[str, str]) -> None:
    catalog.query(f"UPDATE holdfast_job SET {', '.join(f'{name} = {value}' for name, value in values.items())}")


def test_a_running_job_has_a_worker_a_lease_an_attempt_and_a_nonce(catalog: Catalog) -> None:
    """I-09."""
    drive(rows.insert(catalog.tx, [START]))

    update(catalog, {**RUNNING, "gate": "NULL"})

    assert catalog.query("SELECT status, worker, attempt, nonce FROM holdfast_job") == [("running", "w", 1, "n")]


@pytest.mark.parametrize(
    "values",
    [
        {**RUNNING, "gate": "NULL", "worker": "NULL"},
        {**RUNNING, "gate": "NULL", "lease_until": "NULL"},
        {**RUNNING, "gate": "NULL", "lease_ms": "NULL"},
        {**RUNNING, "gate": "NULL", "nonce": "NULL"},
        {**RUNNING, "gate": "NULL", "attempt": "0"},
        {**RUNNING, "gate": "'ready'"},
        {"worker": "'w'"},
        {"lease_until": "1"},
        {"status": "'sleeping'"},
        {"gate": "'elsewhere'"},
        {"closed_as": "'completed'"},
        {"closed_at": "1"},
    ],
    ids=str,
)
def test_a_row_that_cannot_be_is_refused(catalog: Catalog, values: dict[str, str]) -> None:
    drive(rows.insert(catalog.tx, [START]))

    with pytest.raises(catalog.violation):
        update(catalog, values)


def test_the_view_shows_times_that_people_can_read(catalog: Catalog) -> None:
    drive(rows.insert(catalog.tx, [START]))
    update(catalog, {"created_at": "1700000000123"})

    ((created_at, started_at),) = catalog.query("SELECT created_at, started_at FROM holdfast_jobs")

    shown = {
        "sqlite": "2023-11-14 22:13:20.123Z",
        "postgres": datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC),
    }
    assert (created_at, started_at) == (shown[catalog.database], None)


# a plain job's life, and for each of its stages the indexes that get an entry; the page says the same
WRITES = {
    "postgres": {
        "start": {"holdfast_job_pkey", "holdfast_job_id_key", "holdfast_job_ready", "holdfast_job_open"},
        "claim": {"holdfast_job_pkey", "holdfast_job_id_key", "holdfast_job_leased", "holdfast_job_open"},
        "complete": {"holdfast_job_pkey", "holdfast_job_id_key", "holdfast_job_ended"},
    },
    "sqlite": {
        "start": {"holdfast_job_id_key", "holdfast_job_ready", "holdfast_job_open"},
        "claim": {"holdfast_job_leased"},
        "complete": {"holdfast_job_ended"},
    },
}


def test_a_plain_jobs_life_writes_to_no_more_indexes_than_the_page_says(catalog: Catalog) -> None:
    written = {}
    before = entries(catalog)
    for stage in ("start", "claim", "complete"):
        live_through(catalog, stage)
        after = entries(catalog)
        written[stage] = entered(catalog, before, after)
        before = after

    assert written == WRITES[catalog.database]


def live_through(catalog: Catalog, stage: str) -> None:
    match stage:
        case "start":
            drive(rows.insert(catalog.tx, [START]))
        case "claim":
            drive(claiming.claim(catalog.tx, [claiming.Want("default", "task", 1000)], 1, "w", "n"))
        case "complete":
            drive(settling.settle(catalog.tx, [settling.Settlement(claiming.Token(1, 1, "n"), COMPLETED_WITH_NOTHING)]))


def entries(catalog: Catalog) -> dict[str, object]:
    """Give the key under which each index has the one job; none where its predicate does not hold."""
    return {each.name: key for each in catalog.indexes("holdfast_job") for key in keys(catalog, each)}


def keys(catalog: Catalog, index: Index) -> list[object]:
    return list(catalog.query(f"SELECT {', '.join(index.columns)} FROM holdfast_job WHERE {index.predicate}"))


def entered(catalog: Catalog, before: dict[str, object], after: dict[str, object]) -> set[str]:
    """A new version of a row has an entry in every index of PostgreSQL's; SQLite writes only what has changed."""
    if catalog.database == "postgres":
        return set(after)
    return {name for name, key in after.items() if before.get(name) != key}


SECTION = re.compile(r"^### `(holdfast_\w+)`$(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"^\| ((?:`\w+`(?:, )?)+)", re.MULTILINE)


@pytest.mark.source("JC-80")
def test_the_page_names_every_table_column_and_index_and_nothing_else(on_sqlite: Catalog, on_postgres: Catalog) -> None:
    said = {
        table: {name for cell in NAMED.findall(text) for name in re.findall(r"\w+", cell)}
        for table, text in SECTION.findall(PAGE.read_text(encoding="utf-8"))
    }

    assert said == {
        table: {
            *on_postgres.columns(table),
            *on_sqlite.columns(table),
            *(index.name for index in on_postgres.indexes(table)),
            *(index.name for index in on_sqlite.indexes(table)),
        }
        for table in on_postgres.tables()
    }


def test_every_statement_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(\w+)\.([A-Z_]+)`", PAGE.read_text(encoding="utf-8")))

    assert named
    for module, constant in named:
        assert hasattr(importlib.import_module(MODULES[module]), constant), f"{module}.{constant}"


MODULES = {
    each.name.rpartition(".")[2]: each.name
    for room in (store, database)
    for each in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")
}
"""The modules that statements stand in, by the last part of their names."""


def test_the_page_counts_the_index_writes() -> None:
    page = PAGE.read_text(encoding="utf-8")

    for stage in ("start", "claim", "complete"):
        postgres, sqlite = (len(WRITES[each][stage]) for each in ("postgres", "sqlite"))
        assert re.search(rf"^\| {stage} \| {postgres} \|.*\| {sqlite} \|", page, re.MULTILINE), stage
