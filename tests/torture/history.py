"""What was recorded of a run, as files: written when it has ended, and read by the checker, at once or later."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import psycopg

from holdfast.testing import PostgresServer
from tests.law.changes import Change, fields_of_change
from tests.torture.notes import Notes, read

AUDIT = {
    "sqlite": "SELECT n, at, coalesce(xid, 0), what, new, old FROM torture_audit ORDER BY n",
    "postgres": """SELECT n, at, xid, what, new, old FROM torture_audit
        ORDER BY pg_xact_commit_timestamp(xmin), n""",
}
STARTED = re.compile(r"Worker (\S+) \(pid (\d+), ")
LOST_ANSWER = b"COMMIT was sent and its answer was lost"
FINAL = {
    "job": ("seq", "id", "chain_id", "chain_index", "task", "lane", "status", "gate", "head", "place", "closed_as",
            "completed_by", "unique_key", "queue", "attempt", "reason", "stale_at"),
    "lane": ("key", "paused_at"),
    "unique": ("task", "key", "chain_id", "scope"),
    "blocker": ("job", "position", "chain_id", "state"),
    "phase": ("job", "position", "name", "status", "result"),
}  # fmt: skip


class Line(NamedTuple):
    """One line of the audit: a row of the kind *what*, as it was and as it became."""

    n: int
    at: int
    xid: int
    what: str
    new: dict[str, Any] | None
    old: dict[str, Any] | None

    @property
    def row(self) -> dict[str, Any]:
        """The row as it became, or as it was when it was deleted."""
        row = self.new or self.old
        assert row is not None
        return row

    @property
    def change(self) -> Change:
        """The change of a job that it tells of."""
        assert self.new is not None
        new, old = self.new, self.old or {}
        return Change(self.n, self.at, *fields_of_change(new, old))


@dataclass(slots=True)
class Call:
    """What a caller asked for; *end* is `unknown` if it never had an answer."""

    what: str
    facts: dict[str, Any]
    end: str = "unknown"
    answer: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class History:
    """All that was recorded."""

    facts: dict[str, Any]
    """What kind of run it was."""
    audit: list[Line]
    calls: list[Call]
    runs: list[dict[str, Any]]
    harm: list[dict[str, Any]]
    """What happened to processes, and what the nemesis did."""
    streams: dict[str, list[dict[str, Any]]]
    hooks: list[dict[str, Any]]
    final: dict[str, list[dict[str, Any]]]
    """The tables, as they were left."""
    deadlocks: int = 0

    @property
    def is_postgres(self) -> bool:
        """Tell which database it was."""
        return bool(self.facts["database"] == "postgres")

    def wall_ms(self, at: float) -> float:
        """Tell what the database's clock said at an instant of the monotonic one."""
        return float((self.facts["wall"] + at - self.facts["at"]) * 1000)

    def monotonic(self, at_ms: float) -> float:
        """Tell what the monotonic clock said at an instant of the database's."""
        return float(at_ms / 1000 - self.facts["wall"] + self.facts["at"])


class Asks(Protocol):
    """Whatever answers questions about a database."""

    url: str
    is_postgres: bool

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Look into it."""


def save(database: Asks, place: Path, server: PostgresServer | None) -> None:
    """Write the tables of a run down as files."""
    audit = Notes(place / "audit.jsonl")
    for n, at, xid, what, new, old in rows(database):
        line = {"n": n, "store_at": at, "xid": xid, "what": what}
        audit.write(**line, new=new and json.loads(new), old=old and json.loads(old))
    audit.close()
    final = Notes(place / "final.jsonl")
    for table, columns in FINAL.items():
        for row in database.ask(f"SELECT {', '.join(columns)} FROM holdfast_{table}"):
            final.write(table=table, row=dict(zip(columns, row, strict=True)))
    for id_, process in workers(place):
        final.write(table="worker", row={"id": id_, "process": process})
    said = sum(path.read_bytes().count(LOST_ANSWER) for path in place.glob("worker-*.log"))
    final.write(table="doubts", row={"said": said})
    if server is not None:
        log = server.log.read_bytes()
        (place / "server.log").write_bytes(log[-1_000_000:])
        final.write(table="server", row={"deadlocks": log.count(b"deadlock detected")})
    final.close()


def workers(place: Path) -> Iterator[tuple[str, int]]:
    """Tell which worker lived in which process: each says so when it starts."""
    for path in sorted(place.glob("worker-*.log")):
        for id_, process in STARTED.findall(path.read_text(errors="replace")):
            yield id_, int(process)


def rows(database: Asks) -> Iterator[tuple[Any, ...]]:
    """Read the audit, some at a time."""
    if database.is_postgres:
        with psycopg.connect(database.url) as connection, connection.cursor("audit") as cursor:
            cursor.execute(AUDIT["postgres"])
            yield from cursor
        return
    connection_ = sqlite3.connect(database.url)
    try:
        yield from connection_.execute(AUDIT["sqlite"])
    finally:
        connection_.close()


def load(place: Path) -> History:
    """Read what was recorded in *place*."""
    harm = list(read(place / "nemesis.jsonl"))
    final: dict[str, list[dict[str, Any]]] = {table: [] for table in (*FINAL, "worker", "doubts", "server")}
    for line in read(place / "final.jsonl"):
        final[line["table"]].append(line["row"])
    return History(
        facts=next(line for line in harm if line["what"] == "clock"),
        audit=[
            Line(line["n"], line["store_at"], line["xid"], line["what"], line["new"], line["old"])
            for line in read(place / "audit.jsonl")
        ],
        calls=[call for path in sorted(place.glob("client-*.jsonl")) for call in calls_of(list(read(path)))],
        runs=list(read(place / "runs.jsonl")),
        harm=harm,
        streams={path.stem.removeprefix("stream-"): list(read(path)) for path in sorted(place.glob("stream-*.jsonl"))},
        hooks=list(read(place / "hooks.jsonl")),
        final=final,
        deadlocks=sum(row["deadlocks"] for row in final["server"]),
    )


def busy_since(place: Path) -> dict[int, float]:
    """Tell, while a run goes on, since when the oldest handler runs in each process that runs any."""
    running = {}
    for line in read(place / "runs.jsonl"):
        key = line["job"], line["attempt"]
        if line["what"] == "begin":
            running[key] = line
        elif line["what"] in ("end", "abort"):
            running.pop(key, None)
    busy: dict[int, float] = {}
    for line in running.values():
        busy[line["process"]] = min(busy.get(line["process"], line["at"]), line["at"])
    return busy


def deaths_at(history: History) -> dict[int, float]:
    """Tell when each process that ended did so at the earliest, by the monotonic clock."""
    died: dict[int, float] = {}
    for line in history.harm:
        if line["what"] in ("SIGKILL", "SIGTERM") or (line["what"] == "exit" and line["process"] not in died):
            died[line["process"]] = line["at"]
    for line in history.runs:
        if line["what"] == "abort":
            died[line["process"]] = min(died.get(line["process"], line["at"]), line["at"])
    return died


def deaths_of(history: History) -> dict[int, float]:
    """Tell the same as `deaths_at` by the database's clock, in milliseconds."""
    return {process: history.wall_ms(at) for process, at in deaths_at(history).items()}


def calls_of(lines: Sequence[dict[str, Any]]) -> list[Call]:
    """Put each call of one process together with its answer."""
    calls: dict[int, Call] = {}
    for line in lines:
        if "call" in line:
            calls[line["call"]] = Call(line["what"], line)
        else:
            calls[line["answer"]].end = line["end"]
            calls[line["answer"]].answer = line
    return list(calls.values())
