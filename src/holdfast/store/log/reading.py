"""Reading the log: what is new behind a cursor, and the jobs that it is about; `events` writes it.

Every read is one statement, so it is one snapshot: it brings the events, the place that a reader has reached with them,
how much of the log is gone, and by what the log is known: the identity of the tables, where they stand (a copy that was
restored from a dump has other numbers) and, on PostgreSQL, the server's timeline (a replica that was promoted may never
have seen the last transactions, and gives their numbers to others). Every role may ask for the timeline. Where it is
not told, on a standby and on Amazon's Aurora, whose failover loses no commit, it is left empty.

The jobs are read behind the events, by a statement of their own, so each is at least as new as its event. Events of the
engine's own jobs and of jobs that are gone are passed over.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple, cast
from uuid import UUID

from holdfast.database.hints import Horizon
from holdfast.database.tx import Tx
from holdfast.errors import CursorExpired
from holdfast.models import INTERNAL_QUEUE, RESERVED, Event, EventName, Job, JobEvent, JobEventName, Page
from holdfast.states import Status
from holdfast.store.log.events import NO_JOB
from holdfast.store.log.pruning import SO_FAR, TRIMMED, TRIMMED_BY
from holdfast.store.reads import get_job, read_cursor, write_cursor
from holdfast.store.rows import COLUMNS, FACTS, instant, to_job
from holdfast.wire.cursors import Cursor, Position, SeqCursor, Snapshot, SnapshotCursor

NO_END = 2**63 - 1

HEADS = {
    "postgres": f"""(SELECT CAST(pg_current_snapshot() AS text) AS place,
        (SELECT value FROM holdfast_meta WHERE key = 'identity') AS identity,
        (SELECT CAST(tableoid AS text) FROM holdfast_meta WHERE key = 'identity') AS tables,
        CASE WHEN pg_is_in_recovery() OR to_regproc('aurora_version') IS NOT NULL THEN ''
            ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END AS timeline,
        (SELECT value FROM holdfast_meta WHERE key = '{TRIMMED}') AS trimmed,
        (SELECT value FROM holdfast_meta WHERE key = '{TRIMMED_BY}') AS trimmed_by) AS head""",
    "sqlite": f"""(SELECT coalesce((SELECT seq FROM main.sqlite_sequence WHERE name = 'holdfast_event'), 0) AS place,
        (SELECT value FROM holdfast_meta WHERE key = 'identity') AS identity, '' AS tables, '' AS timeline,
        (SELECT value FROM holdfast_meta WHERE key = '{TRIMMED}') AS trimmed, NULL AS trimmed_by) AS head""",
}


class Head(NamedTuple):
    """What a read says of the log as a whole; its place is a snapshot on PostgreSQL, the last number on SQLite."""

    place: Any
    identity: str
    tables: str
    timeline: str
    trimmed: str | None
    trimmed_by: str | None

    @property
    def cursor(self) -> Cursor:
        """The place of who has seen all that this read could see."""
        seen = self.snapshot
        return SeqCursor(self.origin, self.place) if seen is None else SnapshotCursor(self.origin, seen)

    @property
    def origin(self) -> str:
        """By what the log is known, in few signs."""
        whole = "/".join((self.identity, self.tables, self.timeline))
        return hashlib.blake2s(whole.encode(), digest_size=8).hexdigest()

    @property
    def snapshot(self) -> Snapshot | None:
        """What this read could see, on PostgreSQL."""
        return Snapshot.read(self.place) if isinstance(self.place, str) else None

    @property
    def horizon(self) -> Horizon:
        """By what a sleeper knows whether everybody has seen its mark."""
        if not isinstance(self.place, str):
            return Horizon(0, 0)
        oldest, newest, _ = self.place.split(":")
        return Horizon(int(oldest), int(newest))


HEAD = ", ".join(f"head.{column}" for column in Head._fields)
HEAD_WIDTH = len(Head._fields)
NOW = {database: f"SELECT {HEAD} FROM {head}" for database, head in HEADS.items()}


async def now(tx: Tx) -> Cursor:
    """Give the cursor of now: behind it is what commits from now on."""
    (row,) = await tx.fetch_all(NOW[tx.database])
    return Head(*row).cursor


class LogRow(NamedTuple):
    """One row of the log."""

    seq: int
    xid: int
    job: int
    name: str
    at: int
    status: str | None
    version: int | None
    attempt: int | None
    facts: str | None

    @property
    def position(self) -> Position:
        """Where it stands."""
        return Position(self.xid, self.seq)


LOG_COLUMNS = "seq, xid, job, name, at, status, version, attempt, facts"
NEW_LOG_COLUMNS = ", ".join(f"new.{column}" for column in LOG_COLUMNS.split(", "))
# what came by a dump from a server that had counted further has numbers that are still to come here, and is not new
IN_PAGE = f"xid < least(:end, {SO_FAR}) AND NOT xid $any(left_out: bigint) AND seq > :after"

# two scans of the index on xid, which the planner keeps apart only if they are written so; then the order
SINCE = {
    "postgres": f"""
    SELECT {HEAD}, {NEW_LOG_COLUMNS}
    FROM {HEADS["postgres"]} LEFT JOIN (
        SELECT * FROM (
            SELECT {LOG_COLUMNS} FROM holdfast_event WHERE xid >= :xmax AND {IN_PAGE}
            UNION ALL
            SELECT {LOG_COLUMNS} FROM holdfast_event WHERE xid $any(in_progress: bigint) AND {IN_PAGE}) AS unseen
        ORDER BY unseen.seq LIMIT :most) AS new ON true""",
    "sqlite": f"""
    SELECT {HEAD}, {NEW_LOG_COLUMNS}
    FROM {HEADS["sqlite"]} LEFT JOIN (
        SELECT {LOG_COLUMNS.replace("xid", "0 AS xid")} FROM holdfast_event WHERE seq > :after
        ORDER BY seq LIMIT :most) AS new ON true""",
}


@dataclass(frozen=True, slots=True)
class LogRows:
    """Some lines behind a cursor, in their order."""

    lines: tuple[LogRow, ...]
    page: Cursor
    """Where they stand; `page.behind(position)` is the place behind each."""
    cursor: Cursor
    """The place behind all of them."""
    is_last: bool
    """There was no more to be seen."""
    horizon: Horizon

    def first(self, most: int) -> LogRows:
        """Give the first *most* of them."""
        if len(self.lines) <= most:
            return self
        lines = self.lines[:most]
        return replace(self, lines=lines, cursor=self.page.behind(lines[-1].position), is_last=False)

    def behind(self, cursor: Cursor) -> LogRows | None:
        """Give those behind *cursor*, if that is a place between two of them; there may be more by now."""
        if not (isinstance(self.page, SnapshotCursor) and isinstance(cursor, SnapshotCursor)):
            return None
        is_in_page = replace(cursor, seq=self.page.seq) == self.page and cursor.seq > self.page.seq
        rest = self.lines[bisect_right(self.lines, cursor.seq, key=attrgetter("seq")) :] if is_in_page else ()
        return replace(self, lines=rest, is_last=False) if rest else None


async def since(tx: Tx, cursor: Cursor, most: int) -> LogRows:
    """Read up to *most* lines that *cursor* has not seen; or raise `CursorExpired`."""
    rows = await tx.fetch_all(SINCE[tx.database], **_unseen(tx, cursor), most=most + 1)
    head = Head(*rows[0][:HEAD_WIDTH])
    _refuse_expired(cursor, head)
    # a join promises no order
    found = sorted(LogRow(*row[HEAD_WIDTH:]) for row in rows if row[HEAD_WIDTH] is not None)
    lines = tuple(found[:most])
    page, end = _window(cursor, head.cursor)
    if len(found) > most:
        return LogRows(lines, page, page.behind(lines[-1].position), is_last=False, horizon=head.horizon)
    return LogRows(lines, page, end, is_last=end == head.cursor, horizon=head.horizon)


def _window(cursor: Cursor, current: Cursor) -> tuple[Cursor, Cursor]:
    """Give the page that a read behind *cursor* is in, and the place behind the whole of it."""
    if isinstance(cursor, SnapshotCursor) and isinstance(current, SnapshotCursor):
        upper = cursor.page or current.seen
        return replace(cursor, page=upper), SnapshotCursor(cursor.origin, upper)
    return cursor, current


def _unseen(tx: Tx, cursor: Cursor) -> dict[str, object]:
    """Give the parameters of SINCE; a cursor of the other database leads nowhere."""
    match cursor:
        case SeqCursor(seq=seq) if tx.database == "sqlite":
            return {"after": seq}
        case SnapshotCursor(seen=seen, page=page, seq=seq) if tx.database == "postgres":
            end, left_out = (NO_END, ()) if page is None else (page.xmax, page.in_progress)
            values = {"xmax": seen.xmax, "in_progress": list(seen.in_progress)}
            return values | {"end": end, "left_out": list(left_out), "after": seq if page is not None else 0}
    raise _foreign()


def _refuse_expired(cursor: Cursor, head: Head) -> None:
    """Raise `CursorExpired` unless all that *cursor* has not seen is still there."""
    current = head.cursor
    if cursor.origin != current.origin:
        raise _foreign()
    trimmed = -1 if head.trimmed is None else int(head.trimmed)
    match cursor, current:
        case SeqCursor(seq=seq), SeqCursor(seq=last):
            if seq > last:
                raise _foreign()
            is_gone = trimmed > seq
        case SnapshotCursor(seen=seen), SnapshotCursor(seen=visible):
            if seen.xmax > visible.xmax:
                raise _foreign()
            is_gone = trimmed < visible.xmax and not _was_there(seen, head) and _misses(seen, visible, trimmed)
        case _:
            raise _foreign()
    if is_gone:
        raise CursorExpired("events behind this cursor have been removed for their age")


def _was_there(seen: Snapshot, head: Head) -> bool:
    """Tell whether *seen* was taken once all had been removed that ever was: so it had seen all of that."""
    return head.trimmed_by is not None and seen.has_seen(int(head.trimmed_by))


def _misses(seen: Snapshot, visible: Snapshot, trimmed: int) -> bool:
    """Tell whether of what was removed, up to the transaction *trimmed*, any may be behind *seen*."""
    # one that is still under way has written nothing yet that could have been removed
    return trimmed >= seen.xmax or any(each <= trimmed and visible.has_seen(each) for each in seen.in_progress)


def _foreign() -> CursorExpired:
    return CursorExpired("this cursor is of another database, or of this one before it was restored or failed over")


class LoggedEvent(NamedTuple):
    """An event, where it stands in the log, and the place behind it."""

    event: Event
    position: Position
    cursor: Cursor


# a deleted row that still has a place in its lane stays for a while, hidden
JOBS = f"""
    SELECT {COLUMNS}, {FACTS} FROM holdfast_job
    WHERE holdfast_job.seq $any(seqs: bigint)
        AND coalesce(holdfast_job.closed_as, '') <> 'deleted' AND holdfast_job.queue <> '{INTERNAL_QUEUE}'"""


async def to_events(tx: Tx, found: LogRows) -> list[LoggedEvent]:
    """Make events of what was *found*, each with its job as it stands now."""
    seqs = list({line.job: None for line in found.lines if line.job})
    jobs = {job.seq: job for job in map(to_job, await tx.fetch_all(JOBS, seqs=seqs))} if seqs else {}
    events = []
    for line in found.lines:
        cursor = found.cursor if line is found.lines[-1] else found.page.behind(line.position)
        event = _event(line, jobs.get(line.job), cursor.text)
        if event is not None:
            events.append(LoggedEvent(event, line.position, cursor))
    return events


def _event(line: LogRow, job: Job | None, cursor: str) -> Event | None:
    """Make the event of *line*; None if it is of a job that is gone, or is not to be shown."""
    facts = json.loads(line.facts) if line.facts else {}
    at = instant(line.at)
    if line.job != NO_JOB:
        if job is None:
            return None
        name, status = cast("JobEventName", line.name), None if line.status is None else Status(line.status)
        return JobEvent(
            name=name,
            at=at,
            job=job,
            status=status,
            version=line.version,
            attempt=line.attempt,
            facts=facts,
            cursor=cursor,
        )
    if any(facts.get(key, "").startswith(RESERVED) for key in ("lane", "queue")):
        return None
    return Event(
        name=cast("EventName", line.name),
        at=at,
        facts=facts,
        cursor=cursor,
        deleted_job_id=UUID(facts["id"]) if line.name == "job:deleted" else None,
        lane=facts.get("lane"),
        queue=facts.get("queue"),
    )


HAS_HISTORY = """SELECT history FROM holdfast_job WHERE id = :id"""


async def job_and_history(tx: Tx, job_id: UUID) -> tuple[Job, bool]:
    """Read a job, and whether anything is told of it; or raise `JobNotFound`."""
    job = await get_job(tx, job_id)
    ((history,),) = await tx.fetch_all(HAS_HISTORY, id=str(job_id))
    return job, bool(history)


TIMELINE = {
    database: f"""
    SELECT {columns} FROM holdfast_event WHERE job = :job AND seq > :after ORDER BY seq LIMIT :most"""
    for database, columns in (("postgres", LOG_COLUMNS), ("sqlite", LOG_COLUMNS.replace("xid", "0")))
}


async def timeline(tx: Tx, job_id: UUID, most: int, cursor: str | None) -> Page[Event]:
    """Read the events of one job from its first on, a page at a time; or raise `JobNotFound`."""
    job = await get_job(tx, job_id)
    after = 0 if cursor is None else read_cursor(cursor, "timeline")
    rows = await tx.fetch_all(TIMELINE[tx.database], job=job.seq, after=after, most=most + 1)
    lines = [LogRow(*row) for row in rows[:most]]
    events = [event for line in lines if (event := _event(line, job, "")) is not None]
    return Page(tuple(events), write_cursor("timeline", lines[-1].seq) if len(rows) > most else None)
