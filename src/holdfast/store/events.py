"""The log: every state move appends a row here, in the transaction that makes the move.

A row holds the facts that change (status, version, attempt and what the event itself says); what does not change is
joined when it is read. `seq` is drawn after a write of the same transaction under the job's row lock, so per job it
grows in commit order. Rows with job 0 are about no job that still exists: deleted ones, lanes, queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.models import EventName
from holdfast.states import Status
from holdfast.store.tx import Tx

NO_JOB = 0


class Fact(NamedTuple):
    """One event to be appended, as the list of APPEND has it; *facts* is canonical JSON or None."""

    job: int
    name: EventName
    status: Status | None = None
    version: int | None = None
    attempt: int | None = None
    facts: str | None = None


APPEND = """
    INSERT INTO holdfast_event (job, name, at, status, version, attempt, facts)
    SELECT given.job, given.name, $now, given.status, given.version, given.attempt, given.facts
    FROM $list(given: job bigint, name text, status text, version bigint, attempt bigint, facts text)
    WHERE true  -- SQLite reads `FROM … ORDER` after a list only with a WHERE between
    ORDER BY given.nr"""


async def append(tx: Tx, facts: Sequence[Fact]) -> None:
    """Append *facts* in their order."""
    if facts:
        await tx.execute(APPEND, given=list(facts))
