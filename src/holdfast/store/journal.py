"""The rows of journals: how they are written while their job is held, and how they are read.

Nobody writes here without having the job in the same transaction, under its token or by a verb that names it. So the
last row says all that whoever writes next must know (`JournalMark`), and no limit needs a sum or a count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.database.tx import Tx
from holdfast.journals import BEGINNING, LOG, MOST_LOGS, JournalEntry, JournalMark, NewEntry
from holdfast.store.rows import instant
from holdfast.unreadable import json_or_text


class LastRow(NamedTuple):
    """Where a journal stands, and which attempt has brought it there; None if it is empty."""

    mark: JournalMark = BEGINNING
    attempt: int | None = None


LAST = """
    SELECT number, total, logs, attempt FROM holdfast_journal
    WHERE job = :job ORDER BY number DESC LIMIT 1"""


async def last(tx: Tx, job: int) -> LastRow:
    """Tell where the journal of *job* stands."""
    rows = await tx.fetch_all(LAST, job=job)
    return LastRow(JournalMark(*rows[0][:3]), rows[0][3]) if rows else LastRow()


WRITE = """
    INSERT INTO holdfast_journal (job, number, attempt, kind, at, body, total, logs)
    SELECT :job, given.number, :attempt, given.kind, $now, given.body, given.total, given.logs
    FROM $list(given: number bigint, total bigint, logs bigint, kind text, body text)
    WHERE true
    ON CONFLICT (job, number) DO NOTHING
    RETURNING number"""
# the oldest are found first: no more rows are read than there are entries before them
TRIM = f"""
    DELETE FROM holdfast_journal
    WHERE job = :job AND number $in(SELECT old.number FROM holdfast_journal AS old
        WHERE old.job = :job AND old.kind = '{LOG}' ORDER BY old.number LIMIT :most)"""


async def write(tx: Tx, job: int, attempt: int, entries: Sequence[NewEntry]) -> set[int]:
    """Write *entries*, but for those whose numbers are there already; answer which were written.

    Log lines beyond the newest `MOST_LOGS` go.
    """
    given = [(*each.mark, each.kind, each.body) for each in entries]
    written = {number for (number,) in await tx.fetch_all(WRITE, job=job, attempt=attempt, given=given)}
    logs = sum(each.kind == LOG for each in entries if each.mark.number in written)
    before = min(entries[-1].mark.logs - logs, MOST_LOGS)
    if logs and before + logs > MOST_LOGS:
        await tx.execute(TRIM, job=job, most=before + logs - MOST_LOGS)
    return written


READ = """
    SELECT number, attempt, kind, at, body FROM holdfast_journal
    WHERE job = :job AND number > :after AND kind = coalesce(CAST(:kind AS text), kind)
    ORDER BY number LIMIT :most"""


async def read(tx: Tx, job: int, kind: str | None, after: int, most: int) -> list[JournalEntry]:
    """Read up to *most* entries behind the number *after*, all or those of one *kind*, in order."""
    rows = await tx.fetch_all(READ, job=job, kind=kind, after=after, most=most)
    return [
        JournalEntry(number, attempt, kind_, instant(at), json_or_text(body))
        for number, attempt, kind_, at, body in rows
    ]


class JournalPosition(NamedTuple):
    """How far a walk along journals, the oldest entries first, has come."""

    at: int = 0
    job: int = 0


OLD = """
    SELECT at, job FROM holdfast_journal
    WHERE (at, job) > (:at, :job) AND at <= $now - :age
    ORDER BY at, job LIMIT :most"""
MOST_ROWS = 1_000


async def find_old(tx: Tx, age_ms: int, position: JournalPosition) -> tuple[list[int], JournalPosition | None]:
    """Name jobs that have entries of this age, behind *position*; and how far that went, None at the end."""
    rows = await tx.fetch_all(OLD, age=age_ms, at=position.at, job=position.job, most=MOST_ROWS)
    last = JournalPosition(*rows[-1]) if len(rows) == MOST_ROWS else None
    return sorted({job for _, job in rows}), last


# whoever opens a chain again needs its first row, and an attempt begins only after that
ENDED = """
    SELECT own.seq, first.seq FROM holdfast_job AS own JOIN holdfast_job AS first ON first.id = own.chain_id
    WHERE own.seq $any(jobs: bigint) AND first.closed_at IS NOT NULL"""
LOCK_ENDED = """
    SELECT seq FROM holdfast_job
    WHERE seq $any(seqs: bigint) AND coalesce(closed_at, 0) > 0
    ORDER BY seq $skip_locked"""
# a journal goes whole: half a conversation is worse than none for whoever would go on with it
AGED = """
    SELECT given.job FROM $list(given: job bigint)
    WHERE (SELECT entry.at FROM holdfast_journal AS entry WHERE entry.job = given.job
        ORDER BY entry.number DESC LIMIT 1) <= $now - :age"""
DELETE = """DELETE FROM holdfast_journal WHERE job $any(jobs: bigint)"""


async def delete_old(tx: Tx, jobs: Sequence[int], age_ms: int) -> int:
    """Delete the whole journals of those of *jobs* whose chains have ended, and whose last entries have this age.

    Chains that somebody holds are passed over. Answer how many journals went.
    """
    chains: dict[int, int] = dict(await tx.fetch_all(ENDED, jobs=list(jobs)))
    firsts = sorted(set(chains.values()))
    locked = {seq for (seq,) in await tx.fetch_all(LOCK_ENDED, seqs=firsts)} if firsts else set()
    ended = sorted(job for job, first in chains.items() if first in locked)
    aged = [job for (job,) in await tx.fetch_all(AGED, given=[(each,) for each in ended], age=age_ms)] if ended else []
    if aged:
        await tx.execute(DELETE, jobs=aged)
    return len(aged)
