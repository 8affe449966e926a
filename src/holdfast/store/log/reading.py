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
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, NamedTuple, cast, get_args
from uuid import UUID

from holdfast.database.hints import Horizon
from holdfast.database.tx import Row, Tx
from holdfast.errors import CursorExpired, Unreadable, UsageError
from holdfast.models import (
    INTERNAL_QUEUE,
    RESERVED,
    Event,
    EventFacts,
    EventFilter,
    EventName,
    Job,
    JobEvent,
    JobEventName,
    Page,
)
from holdfast.store.log.events import CLOSES, CLOSING, NO_JOB
from holdfast.store.log.pruning import SO_FAR, TRIMMED, TRIMMED_BY
from holdfast.store.reads import get_job, read_cursor, write_cursor
from holdfast.store.rows import COLUMNS, FACTS, SEQ_AT, STATUSES, Decode, instant, to_job
from holdfast.unreadable import CANNOT_READ, object_of, readable
from holdfast.wire.cursors import Cursor, Position, SeqCursor, Snapshot, SnapshotCursor, behind_row, last_row

NO_END = 2**63 - 1
EVENT_NAMES = frozenset(get_args(EventName))
LOOKED_AT, LOOKED_AT_ONCE = 2_000, 200  # events, for one page of those that are wanted
KEPT_JOBS = 1_000  # for the next lines: a job is often started and completed within a few hundred events

HEADS = {
    "postgres": f"""(SELECT CAST(pg_current_snapshot() AS text) AS place,
        (SELECT value FROM holdfast_meta WHERE key = 'identity') AS identity,
        (SELECT CAST(tableoid AS text) FROM holdfast_meta WHERE key = 'identity') AS tables,
        CASE WHEN pg_is_in_recovery() OR to_regproc('aurora_version') IS NOT NULL THEN ''
            ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END AS timeline,
        (SELECT value FROM holdfast_meta WHERE key = '{TRIMMED}') AS trimmed,
        (SELECT value FROM holdfast_meta WHERE key = '{TRIMMED_BY}') AS trimmed_by,
        (SELECT xid FROM holdfast_event WHERE xid < {SO_FAR} ORDER BY xid DESC LIMIT 1) AS newest) AS head""",
    "sqlite": f"""(SELECT coalesce((SELECT seq FROM main.sqlite_sequence WHERE name = 'holdfast_event'), 0) AS place,
        (SELECT value FROM holdfast_meta WHERE key = 'identity') AS identity, '' AS tables, '' AS timeline,
        (SELECT value FROM holdfast_meta WHERE key = '{TRIMMED}') AS trimmed, NULL AS trimmed_by,
        NULL AS newest) AS head""",
}


class Head(NamedTuple):
    """What a read says of the log as a whole; its place is a snapshot on PostgreSQL, the last number on SQLite."""

    place: Any
    identity: str
    tables: str
    timeline: str
    trimmed: str | None
    trimmed_by: str | None
    newest: int | None
    """The last transaction that has written an event which is still there, on PostgreSQL."""

    def cursor(self, before: Cursor | None = None) -> Cursor:
        """Give the place behind all that this read could see; who comes from *before* never goes back."""
        visible = self.visible
        if visible is None:
            return SeqCursor(self.origin, behind_row(self.place))
        seen = before.seen.xmax if isinstance(before, SnapshotCursor) else 0
        return SnapshotCursor(self.origin, visible.below(max(seen, self._first_unwritten(visible))))

    def _first_unwritten(self, visible: Snapshot) -> int:
        """Give the number behind the last transaction of which a crash of the server cannot take anything back.

        Whoever sees what a transaction has written knows that its COMMIT is on disk. One that was rolled back may
        be known to the server's memory only, and after a crash its number is given again.
        """
        known = [int(each) for each in (self.newest, self.trimmed, self.trimmed_by) if each is not None]
        return 1 + max(filter(visible.has_seen, known), default=0)

    @property
    def origin(self) -> str:
        """By what the log is known, in few signs."""
        whole = "/".join((self.identity, self.tables, self.timeline))
        return hashlib.blake2s(whole.encode(), digest_size=8).hexdigest()

    @property
    def visible(self) -> Snapshot | None:
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
    return Head(*row).cursor()


class LogRow(NamedTuple):
    """One row of the log, or one of the two events that it stands for."""

    seq: int
    xid: int
    job: int
    name: str
    at: int
    status: str | None
    version: int | None
    attempt: int | None
    facts: str | None
    is_first_half: bool = False

    @property
    def position(self) -> Position:
        """Where it stands."""
        return Position(self.xid, self.place)

    @property
    def place(self) -> int:
        """The number of the place behind it."""
        return behind_row(self.seq) - self.is_first_half


def in_halves(row: LogRow) -> list[LogRow]:
    """Give the events that *row* stands for: that of a job, and that of its chain if it has completed it."""
    if row.name != "job:completed" or row.facts is None or f'"{CLOSES}"' not in row.facts:
        return [row]
    facts = {CLOSES: ""} if row.facts == CLOSING else object_of(row.facts)
    if facts.pop(CLOSES, None) is None:
        return [row]
    seq, xid, job, name, at, status, version, attempt, *_ = row
    return [
        LogRow(seq, xid, job, name, at, status, version, attempt, json.dumps(facts) if facts else None, True),
        LogRow(seq, xid, job, "chain:completed", at, status, version, attempt, None),
    ]


LOG_COLUMNS = "seq, xid, job, name, at, status, version, attempt, facts"
NEW_LOG_COLUMNS = ", ".join(f"new.{column}" for column in LOG_COLUMNS.split(", "))
# what came by a dump from a server that had counted further has numbers that are still to come here, and is not new
IN_PAGE = f"xid < least(:end, {SO_FAR}) AND NOT xid $any(left_out: bigint) AND seq > :after"

# two scans of the index on xid, which the planner keeps apart only if they are written so; then the order
NEW = {
    "postgres": f"""
        SELECT * FROM (
            SELECT {LOG_COLUMNS} FROM holdfast_event WHERE xid >= :xmax AND {IN_PAGE}
            UNION ALL
            SELECT {LOG_COLUMNS} FROM holdfast_event WHERE xid $any(in_progress: bigint) AND {IN_PAGE}) AS unseen
        ORDER BY unseen.seq LIMIT :most""",
    "sqlite": f"""
        SELECT {LOG_COLUMNS.replace("xid", "0 AS xid")} FROM holdfast_event WHERE seq > :after
        ORDER BY seq LIMIT :most""",
}
# one row for the head, which beside every other row took a fifth of the time
SINCE = {
    database: f"""
    SELECT {HEAD}, {", ".join(["NULL"] * len(LOG_COLUMNS.split(", ")))} FROM {HEADS[database]}
    UNION ALL
    SELECT {", ".join(["NULL"] * HEAD_WIDTH)}, {NEW_LOG_COLUMNS} FROM ({new}) AS new"""
    for database, new in NEW.items()
}


class StoredJob:
    """The row of a job; a `Job` is made of it when somebody asks, once for all."""

    __slots__ = ("_decoded", "_job", "row")

    def __init__(self, row: Row) -> None:
        self.row = row
        self._job: Job | None = None
        self._decoded: Job | None = None

    @property
    def job(self) -> Job:
        """The job; its input and output are still JSON texts."""
        if self._job is None:
            self._job = to_job(self.row)
        return self._job

    def decoded(self, decode: Decode) -> Job:
        """Give the job with its input and output as *decode* reads them; all who ask have the same one."""
        if self._decoded is None:
            self._decoded = to_job(self.row, decode)
        return self._decoded


@dataclass(frozen=True, slots=True)
class LogRows:
    """Some lines behind a cursor, in their order."""

    lines: tuple[LogRow, ...]
    page: Cursor
    """Where they stand; `page.at(line.place)` is the place behind each."""
    cursor: Cursor
    """The place behind all of them."""
    is_last: bool
    """There was no more to be seen."""
    horizon: Horizon
    jobs: dict[int, StoredJob] = field(default_factory=dict, compare=False)
    """Jobs that were read behind the lines, so that each is at least as new as all of these; some of them."""

    def first(self, rows: int) -> LogRows:
        """Give those up to the next row whose number is a multiple of *rows*."""
        end = (self.lines[0].seq // rows + 1) * rows if self.lines else 0
        lines = self.lines[: bisect_left(self.lines, end, key=attrgetter("seq"))]
        if len(lines) == len(self.lines):
            return self
        return replace(self, lines=lines, cursor=self.page.at(lines[-1].place), is_last=False)

    def behind(self, cursor: Cursor) -> LogRows | None:
        """Give those behind *cursor*, if that is a place before one of them; there may be more by now."""
        is_in_page = cursor.place >= self.page.place and cursor.at(self.page.place) == self.page
        rest = self.lines[bisect_right(self.lines, cursor.place, key=attrgetter("place")) :] if is_in_page else ()
        return replace(self, lines=rest, is_last=False) if rest else None


async def since(tx: Tx, cursor: Cursor, most: int) -> LogRows:
    """Read up to *most* lines that *cursor* has not seen; or raise `CursorExpired`."""
    rows = await tx.fetch_all(SINCE[tx.database], **_unseen(tx, cursor), most=most + 1)
    (head,) = [Head(*row[:HEAD_WIDTH]) for row in rows if row[0] is not None]
    _refuse_expired(cursor, head)
    # a union promises no order
    whole = sorted(LogRow(*row[HEAD_WIDTH:]) for row in rows if row[HEAD_WIDTH] is not None)
    found = [half for row in whole for half in in_halves(row)]
    if found and found[0].place <= _place_of(cursor):  # it has seen the first of the two events of this row
        del found[0]
    lines = tuple(found[:most])
    current = head.cursor(cursor)
    page, end = _window(cursor, current)
    if len(found) > most:
        return LogRows(lines, page, page.at(lines[-1].place), is_last=False, horizon=head.horizon)
    return LogRows(lines, page, end, is_last=end == current, horizon=head.horizon)


def _place_of(cursor: Cursor) -> int:
    return cursor.place if isinstance(cursor, SeqCursor) or cursor.page is not None else 0


def _window(cursor: Cursor, current: Cursor) -> tuple[Cursor, Cursor]:
    """Give the page that a read behind *cursor* is in, and the place behind the whole of it."""
    if isinstance(cursor, SnapshotCursor) and isinstance(current, SnapshotCursor):
        upper = cursor.page or current.seen
        return cursor._replace(page=upper), SnapshotCursor(cursor.origin, upper)
    return cursor, current


def _unseen(tx: Tx, cursor: Cursor) -> dict[str, object]:
    """Give the parameters of SINCE; a cursor of the other database leads nowhere."""
    match cursor:
        case SeqCursor(place=place) if tx.database == "sqlite":
            return {"after": last_row(place)}
        case SnapshotCursor(seen=seen, page=page) if tx.database == "postgres":
            end, left_out = (NO_END, ()) if page is None else (page.xmax, page.in_progress)
            values = {"xmax": seen.xmax, "in_progress": list(seen.in_progress)}
            return values | {"end": end, "left_out": list(left_out), "after": last_row(_place_of(cursor))}
    raise _foreign()


def _refuse_expired(cursor: Cursor, head: Head) -> None:
    """Raise `CursorExpired` unless all that *cursor* has not seen is still there."""
    if cursor.origin != head.origin:
        raise _foreign()
    trimmed = -1 if head.trimmed is None else int(head.trimmed)
    match cursor, head.visible:
        case SeqCursor(place=place), None:
            if place > behind_row(head.place):
                raise _foreign()
            is_gone = behind_row(trimmed) > place
        case SnapshotCursor(seen=seen), Snapshot() as visible:
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


class LoggedEvent:
    """A line of the log, the job that it is about, and the place behind it; the event is made when somebody asks."""

    __slots__ = ("_event", "cursor", "line", "stored")

    def __init__(self, line: LogRow, stored: StoredJob | None, cursor: Cursor) -> None:
        self.line = line
        self.stored = stored
        self.cursor = cursor
        self._event: Event | None = None

    @property
    def event(self) -> Event:
        """The event with its job as the store reads it: the same one for all who ask."""
        if self._event is None:
            self._event = self.about(self.job)
        return self._event

    @property
    def position(self) -> Position:
        """Where it stands."""
        return self.line.position

    @property
    def name(self) -> str:
        """What it is called."""
        return self.line.name

    @property
    def job(self) -> Job | None:
        """The job that it is about."""
        return None if self.stored is None else self.stored.job

    @property
    def facts(self) -> EventFacts:
        """What it says itself."""
        return self.event.facts

    def about(self, job: Job | None) -> Event:
        """Make the event with its job as somebody has read it."""
        return _event(self.line, job, self.cursor.text)

    def read(self, decode: Decode) -> Event:
        """Make the event with its job as *decode* reads it."""
        return self.event if self.stored is None else self.about(self.stored.decoded(decode))

    def placed(self, cursor: Cursor) -> LoggedEvent:
        """Give the same for who has *cursor* behind it."""
        return LoggedEvent(self.line, self.stored, cursor)


# a deleted row that still has a place in its lane stays for a while, hidden
JOBS = f"""
    SELECT {COLUMNS}, {FACTS} FROM holdfast_job
    WHERE holdfast_job.seq $any(seqs: bigint)
        AND coalesce(holdfast_job.closed_as, '') <> 'deleted' AND holdfast_job.queue <> '{INTERNAL_QUEUE}'"""


async def to_events(tx: Tx, found: LogRows) -> list[LoggedEvent]:
    """Make events of what was *found*, each with its job as it stands now."""
    jobs = await _jobs(tx, found)
    at = found.page.at
    told = [(line, jobs.get(line.job)) for line in readable(found.lines, _known)]
    events = [LoggedEvent(line, job, at(line.place)) for line, job in told if job is not None or _is_of_no_job(line)]
    if events and events[-1].line is found.lines[-1]:
        events[-1].cursor = found.cursor
    return events


async def page_of_events(
    tx: Tx, cursor: Cursor | None, limit: int, wanted: EventFilter
) -> tuple[list[LoggedEvent], Cursor]:
    """Read up to *limit* events behind *cursor* that are *wanted*, among the next ones, and how far that has come.

    Without a cursor there are none, and it has come to now.
    """
    if cursor is None:
        return [], await now(tx)
    told: list[LoggedEvent] = []
    rest: LogRows | None = await since(tx, cursor, LOOKED_AT)
    while rest is not None:
        found = rest.first(LOOKED_AT_ONCE)
        events = await to_events(tx, found) if found.lines else []
        for each, fits in readable(events, lambda each: (each, wanted.fits(each))):
            if fits:
                told.append(each)
            if len(told) == limit:
                return told, told[-1].cursor
        cursor, rest = found.cursor, rest.behind(found.cursor)
    return told, cursor


async def _jobs(tx: Tx, found: LogRows) -> dict[int, StoredJob]:
    """Give the jobs of the lines; read those that were not read for lines before them."""
    numbers = {line.job: None for line in found.lines if line.job != NO_JOB}
    known = found.jobs  # of several threads
    jobs = {number: job for number in numbers if (job := known.get(number)) is not None}
    if unread := [number for number in numbers if number not in jobs]:
        jobs |= {row[SEQ_AT]: StoredJob(row) for row in await tx.fetch_all(JOBS, seqs=unread)}
    if len(known) > KEPT_JOBS:
        known.clear()
    known |= jobs
    return jobs


def _is_of_no_job(line: LogRow) -> bool:
    """Tell whether *line* is about no job, and not about what is the engine's own."""
    if line.job != NO_JOB:
        return False
    facts = object_of(line.facts)
    return facts.get("queue") != INTERNAL_QUEUE and not str(facts.get("lane", "")).startswith(RESERVED)


def _known(line: LogRow) -> LogRow:
    """Give *line* if this release knows its name; else raise `Unreadable`."""
    if line.name not in EVENT_NAMES:
        raise Unreadable("holdfast_event", line.seq, f"unknown event {line.name!r}")
    return line


def _event(line: LogRow, job: Job | None, cursor: str) -> Event:
    """Make the event of *line*, which is about *job* or about none; or raise `Unreadable`."""
    try:
        return _to_event(line, job, cursor)
    except CANNOT_READ as error:
        raise Unreadable("holdfast_event", line.seq, repr(error)) from error


def _to_event(line: LogRow, job: Job | None, cursor: str) -> Event:
    facts: EventFacts = json.loads(line.facts) if line.facts else EventFacts()
    at = instant(line.at)
    if job is not None:
        return JobEvent(
            name=cast("JobEventName", line.name),
            at=at,
            job=job,
            status=None if line.status is None else STATUSES[line.status],
            version=line.version,
            attempt=line.attempt,
            facts=facts,
            cursor=cursor,
        )
    is_deleted = line.name == "job:deleted"
    return Event(
        name=cast("EventName", line.name),
        at=at,
        facts=facts,
        cursor=cursor,
        deleted_job_id=UUID(facts["id"]) if is_deleted else None,
        lane=None if is_deleted else facts.get("lane"),
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
    place = 0 if cursor is None else _timeline_place(cursor)
    rows = await tx.fetch_all(TIMELINE[tx.database], job=job.seq, after=last_row(place), most=most + 1)
    lines = [half for row in rows for half in in_halves(LogRow(*row)) if half.place > place]
    events = readable(lines[:most], lambda line: _event(_known(line), job, ""))
    return Page(tuple(events), write_cursor("timeline2", lines[most - 1].place) if len(lines) > most else None)


def _timeline_place(cursor: str) -> int:
    """Read where a page of a timeline has ended, also as releases before wrote it, by the number of a row."""
    try:
        return read_cursor(cursor, "timeline2")
    except UsageError:
        return behind_row(read_cursor(cursor, "timeline"))
