"""What is asked of a plan, and what the two planners answer, in the same words."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import psycopg

from holdfast.database.borrowed.asyncpg import number
from holdfast.database.dialect import PostgresDialect, SqliteDialect, Statement
from tests.store.crowd import Regime

PlanKind: TypeAlias = Literal["custom", "generic"]
BIG = (
    "holdfast_job", "holdfast_phase", "holdfast_blocker", "holdfast_unique", "holdfast_event", "holdfast_delivery",
    "holdfast_outbox", "holdfast_journal", "holdfast_tally", "holdfast_schedule", "holdfast_tick", "holdfast_token",
    "holdfast_session", "holdfast_audit",
)  # fmt: skip
SQLITE_KEYS = {
    "sqlite_autoindex_holdfast_job_1": "holdfast_job_id_key",
    "sqlite_autoindex_holdfast_token_2": "holdfast_token_hash_key",
}
KNOWS_MOST_OPEN = (Regime.FRESH, Regime.TINY)
JOB_PKEY, JOB_ID, JOB_CHAIN = "holdfast_job_pkey", "holdfast_job_id_key", "holdfast_job_chain"


@dataclass(frozen=True)
class Probe:
    """A statement with values, the indexes it must go by, and what else is asked of its plan."""

    name: str
    sql: str
    values: Mapping[str, object]
    indexes: frozenset[str]
    or_by: frozenset[str] = frozenset()
    """What it may go by instead where statistics say that nearly every row fits anyway."""
    is_ordered: bool = False
    """The index gives the order: nothing is sorted."""
    is_list: bool = False
    """It goes along its index from an end, and stops when the page is full."""
    conflict: str = ""
    """The index by which ON CONFLICT looks."""
    reads: int | None = 300
    """How many rows it may look at, all tables together; None: as many as the filter leaves out."""
    only: str = ""
    """The one database that it is for."""
    on_borrowed: bool = False
    """It may run on a caller's connection, which has generic plans."""

    def with_one_row(self) -> Probe | None:
        """Give the same for lists of one row, which are bound as plain values; None if it has no such list."""
        lists = [name for name, columns in SqliteDialect().compile(self.sql).lists.items() if columns]
        if not lists or all(len(_rows(self.values[name])) == 1 for name in lists):
            return None
        values = {name: _rows(value)[:1] if name in lists else value for name, value in self.values.items()}
        return replace(self, name=f"{self.name}, one row", values=values)


def _rows(value: object) -> Sequence[object]:
    assert isinstance(value, list | tuple)
    return value


@dataclass(frozen=True)
class Plan:
    """What a planner means to do, or has done: read from its own words."""

    indexes: frozenset[str]
    scans: tuple[str, ...]
    """The big tables that are read from end to end, in no order."""
    sorts: int
    read: int | None
    """Rows looked at, if it was run."""
    text: str

    def faults(self, probe: Probe, regime: Regime) -> list[str]:
        """Say what of *probe* it does not keep."""
        found = [f"reads all of {table}" for table in self.scans]
        may_be = {probe.indexes, probe.or_by or probe.indexes} if regime in KNOWS_MOST_OPEN else {probe.indexes}
        if self.indexes not in may_be:
            found.append(f"goes by {sorted(self.indexes)}, not by {sorted(probe.indexes)}")
        if probe.is_ordered and self.sorts:
            found.append("sorts")
        if probe.reads is not None and self.read is not None and self.read > probe.reads:
            found.append(f"looks at {self.read} rows, not {probe.reads}")
        return found


class PostgresPlanner:
    """Asks PostgreSQL, by statements prepared on *connection* as psycopg prepares them."""

    driver = "psycopg"

    def __init__(self, connection: psycopg.Connection[Any], dialect: PostgresDialect) -> None:
        self._connection = connection
        self._dialect = dialect
        self._prepared: dict[str, str] = {}

    def prepare(self, probe: Probe) -> None:
        """Prepare the statement of *probe*, once."""
        if probe.name not in self._prepared:
            text, _ = self._written(probe)
            self._prepared[probe.name] = f"{self.driver}_{len(self._prepared)}"
            self._connection.execute(f"PREPARE {self._prepared[probe.name]} AS {text}")

    def explain(self, probe: Probe, kind: PlanKind) -> Plan:
        """Ask for the plan of *probe*, of that *kind*; run it where the rows it reads are counted."""
        self.prepare(probe)
        prepared, (_, given) = self._prepared[probe.name], self._written(probe)
        values = ", ".join(psycopg.sql.Literal(value).as_string(self._connection) for value in given)
        run = "ANALYZE, TIMING OFF, SUMMARY OFF, " if probe.reads is not None else ""
        self._connection.execute(f"SET plan_cache_mode = force_{kind}_plan")
        with self._connection.transaction(force_rollback=True):
            execute = f"EXECUTE {prepared}{f'({values})' if values else ''}"
            ((answer,),) = self._connection.execute(f"EXPLAIN ({run}FORMAT JSON, COSTS OFF) {execute}").fetchall()
        return postgres_plan(answer[0]["Plan"])

    def _written(self, probe: Probe) -> tuple[str, Sequence[object]]:
        """Give the text of *probe* with numbered parameters, and their values."""
        statement = self._dialect.compile(probe.sql, probe.values)
        given = self._dialect.bind(statement, probe.values)
        text, names = numbered(statement)
        return text, [given[name] for name in names]


class AsyncpgPlanner(PostgresPlanner):
    """Asks PostgreSQL about the texts that asyncpg is given, which have more casts."""

    driver = "asyncpg"

    def _written(self, probe: Probe) -> tuple[str, Sequence[object]]:
        statement = self._dialect.compile(probe.sql, probe.values)
        given = self._dialect.bind(statement, probe.values)
        written = number(statement.text, tuple(name for name, value in given.items() if type(value) is int))
        return written.text, written.arguments(given)


def numbered(statement: Statement) -> tuple[str, list[str]]:
    """Write the parameters of *statement* as $1, $2, …; name them in that order."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return re.sub(r"%\((\w+)\)s|%%", number, statement.text), names


def postgres_plan(top: dict[str, Any]) -> Plan:
    """Read PostgreSQL's plan."""
    nodes = list(nodes_below(top))
    scans = [node for node in nodes if node.get("Relation Name") in BIG and node["Node Type"] != "ModifyTable"]
    indexes = {node["Index Name"] for node in nodes if "Index Name" in node}
    indexes |= {name for node in nodes for name in node.get("Conflict Arbiter Indexes", ())}
    return Plan(
        indexes=frozenset(name for name in indexes if name.startswith(tuple(f"{table}_" for table in BIG))),
        scans=tuple(node["Relation Name"] for node in scans if node["Node Type"] == "Seq Scan"),
        sorts=sum("Sort" in node["Node Type"] for node in nodes),
        read=sum(map(_looked_at, scans)) if "Actual Rows" in top else None,
        text=json.dumps(top, indent=1),
    )


def nodes_below(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give *node* of PostgreSQL's plan, and all nodes below it."""
    yield node
    for child in node.get("Plans", ()):
        yield from nodes_below(child)


def _looked_at(node: dict[str, Any]) -> int:
    rows_each = (
        node["Actual Rows"] + node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    )
    return int(rows_each * node["Actual Loops"])


class SqlitePlanner:
    """Asks SQLite, and counts the steps of its machine in place of rows."""

    STEPS_A_ROW = 200

    def __init__(self, connection: sqlite3.Connection, dialect: SqliteDialect) -> None:
        self._connection = connection
        self._dialect = dialect

    def explain(self, probe: Probe) -> Plan:
        """Ask for the plan of *probe*; run it where the rows it reads are counted."""
        statement = self._dialect.compile(probe.sql, probe.values)
        values = self._dialect.bind(statement, probe.values)
        lines = [row[3] for row in self._connection.execute(f"EXPLAIN QUERY PLAN {statement.text}", values)]
        read = self._count(statement.text, values) if probe.reads is not None else None
        return sqlite_plan(probe, lines, read)

    def _count(self, text: str, values: Mapping[str, object]) -> int:
        steps = 0

        def count() -> int:
            nonlocal steps
            steps += self.STEPS_A_ROW
            return 0

        self._connection.execute("SAVEPOINT probe")
        self._connection.set_progress_handler(count, self.STEPS_A_ROW)
        self._connection.execute(text, values).fetchall()
        self._connection.set_progress_handler(None, 0)
        self._connection.execute("ROLLBACK TO probe")
        self._connection.execute("RELEASE probe")
        return steps // self.STEPS_A_ROW


# SCAN holdfast_job · SEARCH TABLE holdfast_job AS first USING COVERING INDEX holdfast_job_open (seq<?)
LINE = re.compile(
    r"(?P<how>SCAN|SEARCH) (?:TABLE )?(?:main\.)?(?P<table>\w+)(?: AS (?P<alias>\w+))?"
    r"(?: USING (?P<automatic>AUTOMATIC )?(?:PARTIAL )?(?:COVERING )?(?:INDEX )?(?P<index>INTEGER PRIMARY KEY|\w+))?"
)


def sqlite_plan(probe: Probe, lines: Sequence[str], read: int | None) -> Plan:
    """Read SQLite's plan; a SCAN without an index goes along the primary key."""
    tables = {alias: table for table, alias in re.findall(r"(holdfast_\w+) AS (\w+)", probe.sql)}
    tables |= {table: table for table in BIG}
    indexes, scans = set(), []
    for match in filter(None, map(LINE.match, lines)):
        table = tables.get(match["alias"] or match["table"], "")
        if table not in BIG:
            continue
        indexes.add(sqlite_index(table, match["index"]))
        if match["automatic"] or (match["how"] == "SCAN" and not probe.is_list):
            scans.append(table)
    if probe.conflict:
        indexes.add(probe.conflict)  # SQLite's plans do not show it; what it costs is counted
    sorts = sum("TEMP B-TREE" in line for line in lines)
    return Plan(frozenset(indexes), tuple(scans), sorts, read, "\n".join(lines))


def sqlite_index(table: str, index: str | None) -> str:
    """Call an index of SQLite's by its name in PostgreSQL."""
    if index is None or index == "INTEGER PRIMARY KEY":
        return f"{table}_pkey"
    if index.startswith("sqlite_autoindex_"):
        return SQLITE_KEYS.get(index, f"{table}_pkey")
    return index
