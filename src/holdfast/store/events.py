"""The log: every state move appends a row here, in the transaction that makes the move.

A row holds the facts that change (status, version, attempt and what the event itself says); what does not change is
joined when it is read. `seq` is drawn after a write of the same transaction under the job's row lock, so per job it
grows in commit order. Rows with job 0 are about no job that still exists: deleted ones, lanes, queues.

Every state move comes by here, so it is here that hints are sent, in the statement that appends: to whoever sleeps, if
something may have grown; in any case if something is asked of a running handler; never because a job was claimed.
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


async def append(tx: Tx, facts: Sequence[Fact]) -> None:
    """Append *facts* in their order."""
    if facts:
        await tx.execute(APPEND[_hint({each.name for each in facts})], given=list(facts))


def _hint(names: set[EventName]) -> str:
    if names & REQUESTS:
        return "$hint"
    return "true" if names <= QUIET else "$hint_sleepers"
