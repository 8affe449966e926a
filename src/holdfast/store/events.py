"""The log: every state move appends a row here, in the transaction that makes the move.

A row holds the facts that change (status, version, attempt and what the event itself says); what does not change is
joined when it is read. `seq` is drawn after a write of the same transaction under the job's row lock, so per job it
grows in commit order. Rows with job 0 are about no job that still exists: deleted ones, lanes, queues.

Every state move comes by here, so it is here that hints are sent, in the statement that appends: to whoever sleeps, if
something may have grown; in any case if something is asked of a running handler; never because a job was claimed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from holdfast.models import EventName
from holdfast.states import Status
from holdfast.store.tx import Row, Tx

NO_JOB = 0


class Fact(NamedTuple):
    """One event to be appended, as the list of APPEND has it; *facts* is canonical JSON or None."""

    job: int
    name: EventName
    status: Status | None = None
    version: int | None = None
    attempt: int | None = None
    facts: str | None = None


APPEND = {
    hint: f"""
    INSERT INTO holdfast_event (job, name, at, status, version, attempt, facts)
    SELECT given.job, given.name, $now, given.status, given.version, given.attempt, given.facts
    FROM $list(given: job bigint, name text, status text, version bigint, attempt bigint, facts text)
    WHERE {hint}  -- SQLite reads `FROM … ORDER` after a list only with a WHERE between
    ORDER BY given.nr"""
    for hint in ("$hint", "$hint_sleepers", "true")
}
REQUESTS = frozenset(("job:cancelling", "job:pausing"))
QUIET = frozenset(("job:started", "job:progress", "job:blocked"))


async def append(tx: Tx, facts: Sequence[Fact], *, to_all: bool = False) -> None:
    """Append *facts* in their order; *to_all*: a running handler is concerned by what does not say so itself."""
    if facts:
        hint = "$hint" if to_all else _hint({each.name for each in facts})
        await tx.execute(APPEND[hint], given=list(facts))


# what a row of `moved` says, once for each name; SQLite reads it from the rows themselves
TELL = """
    INSERT INTO holdfast_event (job, name, at, status, version, attempt, facts)
    SELECT moved.seq, told.name, $now, moved.status, moved.version, moved.attempt, CAST(:facts AS text)
    FROM {moved} AS moved, $list(told: name text)
    WHERE {condition} AND {hint}
    ORDER BY moved.seq, told.nr"""


async def move(
    tx: Tx, sql: str, values: Mapping[str, object], names: Sequence[EventName], facts: str | None = None
) -> list[Row]:
    """Run *sql*, which writes jobs, and append events of *names*, all with the same *facts*; give what it returns.

    It returns `seq`, `status`, `version` and `attempt`, by these names, beside what else the caller needs. On
    PostgreSQL both are one statement, which for a start took 360 µs instead of 650 and for a batch of 100 claims saved
    a fifth of the client's time; SQLite has no such statement, and no round trip to save.
    """
    hint = _hint(set(names))
    told = [(name,) for name in names]
    if tx.database == "postgres":
        return await tx.fetch_all(_with_events(sql, hint), told=told, facts=facts, **values)
    rows = await tx.fetch_all(sql, **values)
    if rows:
        await tx.execute(_events_of_jobs(hint), told=told, facts=facts, jobs=[row[0] for row in rows])
    return rows


@cache
def _with_events(sql: str, hint: str) -> str:
    tell = TELL.format(moved="moved", condition="true", hint=hint)
    return f"WITH moved AS ({sql}), told AS ({tell}) SELECT * FROM moved"


@cache
def _events_of_jobs(hint: str) -> str:
    return TELL.format(moved="holdfast_job", condition="moved.seq $any(jobs: bigint)", hint=hint)


def _hint(names: set[EventName]) -> str:
    if names & REQUESTS:
        return "$hint"
    return "true" if names <= QUIET else "$hint_sleepers"
