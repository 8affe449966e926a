"""The audit: one row for each act that somebody has done, written in the commit of the act.

The id is made before any SQL, so that an operation that is run again after an unknown outcome writes one row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.access import AuditEntry
from holdfast.database.tx import Row, Tx, repeatable
from holdfast.models import Page
from holdfast.store.reads import Paging, read_cursor, write_cursor
from holdfast.store.rows import instant
from holdfast.texts import clean_text
from holdfast.unreadable import object_of, readable, reading

MOST_SEARCHED = 20_000
"""How many rows one request looks at."""
MOST_DELETED = 1_000
SUBJECT_LENGTH = 500
MOST_NAMED = 10
"""How many ids one entry has at most."""


class NewAuditEntry(NamedTuple):
    """An act, to be written down."""

    id: str
    who: str
    action: str
    subject: str
    why: str | None = None
    request: str | None = None
    facts: Mapping[str, Any] = {}


WRITE = """
    INSERT INTO holdfast_audit (id, at, who, action, subject, why, request, facts)
    VALUES (:id, $now, :who, :action, :subject, :why, :request, :facts)
    ON CONFLICT (id) DO NOTHING"""


@repeatable
async def write(tx: Tx, entry: NewAuditEntry) -> None:
    """Write down an act, in the transaction that does it."""
    facts = json.dumps(entry.facts, ensure_ascii=True) if entry.facts else None
    subject = clean_text(entry.subject, SUBJECT_LENGTH)
    await tx.execute(WRITE, **entry._replace(subject=subject)._asdict() | {"facts": facts})


class AuditQuery(NamedTuple):
    """Which entries are wanted; None narrows nothing."""

    who: str | None = None
    action: str | None = None
    subject: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None


# who asks behind a number, which is always so, is given a plan of today, and not one of when the table was tiny
HIGHEST = """SELECT seq FROM holdfast_audit WHERE seq > :behind ORDER BY seq DESC LIMIT 1"""
ENTRIES = """
    SELECT seq, id, at, who, action, subject, why, request, facts FROM holdfast_audit
    WHERE seq <= :top AND seq > :bottom
        AND who = coalesce(CAST(:who AS text), who) AND action = coalesce(CAST(:action AS text), action)
        AND subject = coalesce(CAST(:subject AS text), subject)
        AND at >= coalesce(CAST(:since_ms AS bigint), at) AND at < coalesce(CAST(:until_ms AS bigint), at + 1)
    ORDER BY seq DESC LIMIT :most"""


async def list_entries(tx: Tx, wanted: AuditQuery, paging: Paging) -> Page[AuditEntry]:
    """List entries, newest first; a request looks at a bounded number of them, so a page may be short."""
    if paging.cursor is None:
        top = max((seq for (seq,) in await tx.fetch_all(HIGHEST, behind=0)), default=0)
    else:
        top = read_cursor(paging.cursor, "newest") - 1
    bottom = max(top - MOST_SEARCHED, 0)
    rows = await tx.fetch_all(ENTRIES, top=top, bottom=bottom, most=paging.limit + 1, **wanted._asdict())
    items = rows[: paging.limit]
    if len(rows) > len(items):
        bottom = items[-1][0] - 1
    next_cursor = write_cursor("newest", bottom + 1) if bottom > 0 else None
    return Page(tuple(readable(items, _read)), next_cursor)


OLDEST = """SELECT at < $now - :age FROM holdfast_audit WHERE seq > 0 ORDER BY seq LIMIT 1"""
DELETE_OLD = """
    DELETE FROM holdfast_audit
    WHERE seq $in(SELECT old.seq FROM holdfast_audit AS old WHERE old.seq > 0 ORDER BY old.seq LIMIT :most)
        AND at < $now - :age
    RETURNING seq"""


async def has_old(tx: Tx, age_ms: int) -> bool:
    """Tell whether the oldest entry is older than *age_ms*."""
    return any(is_old for (is_old,) in await tx.fetch_all(OLDEST, age=age_ms))


async def delete_old(tx: Tx, age_ms: int) -> int:
    """Forget some entries that are older than *age_ms*; answer how many."""
    return len(await tx.fetch_all(DELETE_OLD, age=age_ms, most=MOST_DELETED))


def _read(row: Row) -> AuditEntry:
    seq, id_, at, who, action, subject, why, request, facts = row
    with reading("holdfast_audit", seq):
        return AuditEntry(
            id=id_ or str(seq),
            at=instant(at),
            who=who,
            action=action,
            subject=subject,
            why=why,
            request=request,
            facts=object_of(facts),
        )
