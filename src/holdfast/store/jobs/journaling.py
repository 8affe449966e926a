"""Journals of running jobs: entries that an attempt appends under its token, and how outsiders read them.

The attempt gives each entry its number: it has read the last one under a token that nobody else can write with. So a
commit whose answer was lost is repeated, and finds its rows written or not; it never writes them twice. A number that
does not follow the last one, or that another attempt has taken, means that the job is no longer this attempt's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from holdfast.database.tx import Row, Tx, repeatable
from holdfast.errors import JobNotFound
from holdfast.journals import LOG, JournalEntry, JournalMark, NewEntry
from holdfast.models import Page
from holdfast.states import Status
from holdfast.store import journal
from holdfast.store.jobs.claiming import CLAIM_STATE, EXISTS, ClaimState, Token, claim_state_of
from holdfast.store.log import events

HELD = (ClaimState.HELD, ClaimState.PAUSE)
"""How the claim of a job stands whose attempt may append: one that is to be paused may write down how far it is."""
HELD_FOR_LOGS = (*HELD, ClaimState.CANCEL)
"""The same for log lines alone, which say why a handler has stopped, or has not."""


class Told(NamedTuple):
    """The entry that a `job:journal` names: the last one since the event before it."""

    kind: str
    number: int


LOCK = f"SELECT {CLAIM_STATE}, version FROM holdfast_job WHERE seq = :seq AND {EXISTS} $locked"


@repeatable
async def append(tx: Tx, token: Token, entries: Sequence[NewEntry], told: Told | None = None) -> ClaimState:
    """Append *entries*, whose numbers follow each other, and say so in the log if *told*; answer how the claim stands.

    Nothing is written unless it is held. Entries that are there already, because an answer was lost, are left.
    """
    rows = await tx.fetch_all(LOCK, seq=token.seq)
    state = claim_state_of(token, rows[0][:-1] if rows else None)
    if state not in (HELD if any(each.kind != LOG for each in entries) else HELD_FOR_LOGS):
        return state
    if entries and not await _follows(tx, token, entries[0].mark.number):
        return ClaimState.TAKEN
    written = await journal.write(tx, token.seq, token.attempt, entries) if entries else set()
    if told is not None and (written or not entries):
        await events.append(tx, [_told(token, told, rows[0])])
    return ClaimState.HELD


async def _follows(tx: Tx, token: Token, number: int) -> bool:
    """Tell whether *number* comes right behind the last one, or is one that this very attempt has taken already."""
    mark, attempt = await journal.last(tx, token.seq)
    return number == mark.number + 1 or (number <= mark.number and attempt == token.attempt)


@repeatable
async def append_after_end(tx: Tx, token: Token, entries: Sequence[NewEntry]) -> None:
    """Append the last log lines of an attempt whose block has completed its job; a lost one appends nothing."""
    rows = await tx.fetch_all(LOCK, seq=token.seq)
    is_ours = bool(rows) and rows[0][:4] == (*token, Status.COMPLETED)
    if is_ours and await _follows(tx, token, entries[0].mark.number):
        await journal.write(tx, token.seq, token.attempt, entries)


async def find_mark(tx: Tx, token: Token) -> JournalMark:
    """Tell where the journal stands; whoever may just be appending by this token is waited for."""
    await tx.fetch_all(LOCK, seq=token.seq)
    return (await journal.last(tx, token.seq)).mark


async def append_in_block(tx: Tx, token: Token, kind: str, body: str) -> Told | None:
    """Append an entry in the transaction of a block; None if somebody else has taken its number.

    The job's row is not locked here: the block may stay open, and its end decides by the token. The number is the
    database's, for nobody commits a block twice.
    """
    mark = (await journal.last(tx, token.seq)).mark.after_entry(body)
    written = await journal.write(tx, token.seq, token.attempt, [NewEntry(mark, kind, body)])
    return Told(kind, mark.number) if written else None


async def tell(tx: Tx, token: Token, told: Told) -> None:
    """Say in the log that a block has appended; its job is locked, or is now."""
    rows = await tx.fetch_all(LOCK, seq=token.seq)
    await events.append(tx, [_told(token, told, row) for row in rows])


def _told(token: Token, told: Told, row: Row) -> events.NewEvent:
    facts = json.dumps(told._asdict())
    return events.NewEvent(token.seq, "job:journal", Status.RUNNING, row[-1], token.attempt, facts)


JOB = """SELECT seq FROM holdfast_job WHERE id = :id"""


async def list_entries(tx: Tx, job_id: UUID, kind: str | None, after: int, limit: int) -> Page[JournalEntry]:
    """List the entries of a job behind the number *after*, or raise `JobNotFound`."""
    rows = await tx.fetch_all(JOB, id=str(job_id))
    if not rows:
        raise JobNotFound(job_id)
    found = await journal.read(tx, rows[0][0], kind, after, limit + 1)
    items = tuple(found[:limit])
    return Page(items, str(items[-1].number) if len(found) > limit else None)
