"""Statements keep their index among hundreds of thousands of rows, whatever the planner knows of them (I-29, I-72).

A regime is one test, for filling the tables is what takes the time; it names each statement that fails. By default one
is looked at: the one that planners get wrong most easily. On PostgreSQL custom plans are asked for,
as on our own connections, and generic ones for what may run on a caller's. SQLite plans by its statistics alone, so
"prepared while tiny" means there that statistics of a tiny table were forgotten since.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest

from holdfast.database.dialect import PostgresDialect, SqliteDialect
from holdfast.database.postgres.tx import PostgresTx
from holdfast.database.sqlite import planner_statistics
from holdfast.database.sqlite.tx import SqliteTx
from holdfast.database.tx import drive
from tests.store.crowd import Regime, bring_into
from tests.store.plans import BIG, AsyncpgPlanner, Plan, PlanKind, PostgresPlanner, Probe, SqlitePlanner
from tests.store.probes import lane_list_probes, probes
from tests.store.steps import take_steps

BY_DEFAULT = Regime.TINY
in_every_regime = pytest.mark.parametrize(
    "regime", [each if each is BY_DEFAULT else pytest.param(each, marks=pytest.mark.long) for each in Regime]
)


@contextmanager
def postgres_planners(url: str, regime: Regime) -> Iterator[tuple[PostgresPlanner, PostgresPlanner]]:
    """Bring a schema of its own into *regime*, with nobody analysing it behind our back."""
    dialect = PostgresDialect(f"plans_{regime.name.lower()}")
    tables = [dialect.table(each) for each in BIG]
    with psycopg.connect(url, autocommit=True) as connection:
        tx = PostgresTx(connection, dialect)
        planner = PostgresPlanner(connection, dialect)

        def analyze() -> None:
            connection.execute(f"ANALYZE {', '.join(tables)}")

        def prepare() -> None:
            analyze()
            for probe in probes("postgres"):
                planner.explain(probe, "custom")

        take_steps(tx)
        for table in tables:
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
        connection.execute(f"ALTER TABLE {tables[0]} ALTER seq RESTART WITH 1000000000")
        bring_into(regime, tx, analyze, prepare)
        yield planner, AsyncpgPlanner(connection, dialect)
        connection.execute(f"DROP SCHEMA {dialect.schema} CASCADE")


@contextmanager
def sqlite_planner(regime: Regime, is_upkept: bool = True) -> Iterator[SqlitePlanner]:
    """Bring a database in memory into *regime*; upkeep forgets figures of a time when it was tiny."""
    with closing(sqlite3.connect(":memory:", isolation_level=None, cached_statements=1000)) as connection:
        tx = SqliteTx(connection, SqliteDialect())
        planner = SqlitePlanner(connection, SqliteDialect())

        def analyze() -> None:
            connection.execute("ANALYZE")

        def prepare() -> None:
            analyze()
            for probe in probes("sqlite"):
                planner.explain(probe)

        take_steps(tx)
        bring_into(regime, tx, analyze, prepare)
        if regime is Regime.TINY and is_upkept:
            drive(planner_statistics.forget(tx))
        yield planner


@pytest.mark.source("JC-81", "DF-1", "DF-15")
@in_every_regime
def test_every_statement_keeps_its_index_on_postgres(regime: Regime, postgres_url: str) -> None:
    """Q-02."""
    faults = []

    with postgres_planners(postgres_url, regime) as (planner, asyncpgs):
        for probe in probes("postgres"):
            for kind in kinds_of_plan(probe, regime):
                faults += named_faults(f"{probe.name}, {kind} plan", probe, planner.explain(probe, kind), regime)
                if probe.on_borrowed:
                    name = f"{probe.name}, {kind} plan, by asyncpg"
                    faults += named_faults(name, probe, asyncpgs.explain(probe, kind), regime)
        for probe, index in lane_list_probes():
            faults += faults_of_lane_list(planner.explain(probe, "custom"), index)

    assert faults == []


def kinds_of_plan(probe: Probe, regime: Regime) -> tuple[PlanKind, ...]:
    """Say how *probe* may be planned: on a caller's connection, also without regard to its values."""
    may_be_generic = probe.on_borrowed and regime is not Regime.TINY
    return ("custom", "generic") if may_be_generic else ("custom",)


@pytest.mark.source("DF-1")
@in_every_regime
def test_every_statement_keeps_its_index_on_sqlite(regime: Regime) -> None:
    """Q-02."""
    faults = []

    with sqlite_planner(regime) as planner:
        for probe in probes("sqlite"):
            faults += named_faults(probe.name, probe, planner.explain(probe), regime)
        for probe, index in lane_list_probes():
            faults += faults_of_lane_list(planner.explain(probe), index)

    assert faults == []


@pytest.mark.long
def test_without_upkeep_statistics_of_a_tiny_file_would_have_sqlite_read_whole_tables() -> None:
    with sqlite_planner(Regime.TINY, is_upkept=False) as planner:
        scanning = [probe.name for probe in probes("sqlite") if planner.explain(probe).scans]

    assert "settling.LOCK_RUNNING" in scanning


def faults_of_lane_list(plan: Plan, index: str) -> list[str]:
    """Say whether a list of lanes goes by another index than *index*, or sorts; SQLite calls that of keys otherwise."""
    names = (index, "sqlite_autoindex_holdfast_lane_1") if index == "holdfast_lane_pkey" else (index,)
    is_by_it = any(name in plan.text for name in names)
    return [] if is_by_it and not plan.sorts else [f"lanes do not go by {index}: {plan.text}"]


def named_faults(name: str, probe: Probe, plan: Plan, regime: Regime) -> list[str]:
    """Say what *plan* does not keep, and print it then: pytest shows that with the failure."""
    if faults := plan.faults(probe, regime):
        print(name, plan.text, sep="\n")
    return [f"{name}: {each}" for each in faults]
