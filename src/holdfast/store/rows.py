"""The bare INSERT of jobs, and how a row of the job table is read back.

An insert coordinates nothing: it locks no lane, no blocker and no counter, because it may stand in a caller's
transaction that stays open for minutes. A job that has nothing to wait for is inserted ready and pays nothing; one
with a delay, a lane or blockers is inserted as an *arrival*, which admission takes up after the commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from holdfast.database.tx import Row, Tx
from holdfast.errors import Unreadable
from holdfast.models import EventName, Job, Phase, Start
from holdfast.states import TERMINAL, Gate, Status, shown, state_tag
from holdfast.store.phase_rows import BESIDE, BESIDE_WITH_RESULTS, PhaseRow, from_text
from holdfast.unreadable import CANNOT_READ

PRIORITY_MS = 60_000
"""How much waiting one point of priority is worth: the order key is the time of readiness minus this."""

SILENT = ""
"""What the webhook column holds for `webhook=None`: no delivery, whatever the subscriptions say."""


class Inserted(NamedTuple):
    """What the database gave to a job that was inserted."""

    seq: int
    id: UUID
    status: Status
    created_at: datetime


INSERT = f"""
    INSERT INTO holdfast_job (id, chain_id, chain_index, task, queue, lane, priority, tags, status, gate,
        run_at, wake_at, sort_key, input, webhook, trace, on_blocker_failure, unique_key, history, attempts,
        parent, created_at)
    SELECT given.id, given.id, 0, given.task, given.queue, given.lane, given.priority, given.tags, given.status,
        given.gate,
        coalesce(CASE WHEN given.run_at > $now THEN given.run_at END, $now + given.delay),
        CASE given.gate WHEN 'arrival' THEN CASE given.status WHEN 'blocked' THEN $now
            ELSE coalesce(given.run_at, $now + given.delay) END END,
        CASE given.gate WHEN 'ready' THEN $now - {PRIORITY_MS} * given.priority END,
        given.input, given.webhook, given.trace, given.on_blocker_failure, given.unique_key, given.history,
        given.attempts, given.parent, $now
    FROM $list(given: id text, task text, queue text, lane text, priority bigint, tags text, status text, gate text,
        run_at bigint, delay bigint, input text, webhook text, trace text, on_blocker_failure text, unique_key text,
        history bigint, attempts bigint, parent text)
    WHERE true
    $in_order(given)
    ON CONFLICT (id) DO NOTHING
    RETURNING seq, status, version, attempt, history, id, created_at"""

# the same for plain starts, with half as many columns
INSERT_PLAIN = f"""
    INSERT INTO holdfast_job (id, chain_id, chain_index, input, task, queue, priority, tags, webhook, history, status,
        gate, run_at, sort_key, on_blocker_failure, created_at)
    SELECT given.id, given.id, 0, given.input, given.task, given.queue, given.priority, given.tags, given.webhook,
        given.history, 'pending', 'ready', $now, $now - {PRIORITY_MS} * given.priority, 'fail', $now
    FROM $list(given: id text, input text, task text, queue text, priority bigint, tags text, webhook text,
        history bigint)
    WHERE true
    $in_order(given)
    ON CONFLICT (id) DO NOTHING
    RETURNING seq, status, version, attempt, history, id, created_at"""


async def insert(tx: Tx, starts: Sequence[Start]) -> list[Inserted]:
    """Insert the first jobs of new chains, in their order; those whose id exists already are left out."""
    given = insert_values(starts)
    return to_inserted(await tx.fetch_all(INSERT, given=given), given, starts)


def insert_values(starts: Sequence[Start]) -> list[tuple[object, ...]]:
    """Give the list that INSERT takes."""
    return [_values(each) for each in starts]


def insert_plain_values(starts: Sequence[Start]) -> list[tuple[object, ...]]:
    """Give the list that INSERT_PLAIN takes."""
    return [
        (str(id_), input_, task, queue, priority, json.dumps(tags) if tags else None, webhook, int(history))
        for id_, input_, task, queue, priority, tags, webhook, history in (each[:8] for each in starts)
    ]


def to_inserted(rows: Sequence[Row], given: Sequence[tuple[object, ...]], starts: Sequence[Start]) -> list[Inserted]:
    """Read the *rows* that an INSERT returned for *given*, the values of *starts*."""
    ids = {id_: each.id for (id_, *_), each in zip(given, starts, strict=True)}  # to read a UUID takes 1 µs, this 0.2
    return [Inserted(row[0], ids[row[5]], Status(row[1]), instant(row[6])) for row in rows]


def _values(start: Start) -> tuple[object, ...]:
    status = first_status(start)
    return (
        str(start.id),
        start.task,
        start.queue,
        start.lane,
        start.priority,
        json.dumps(start.tags) if start.tags else None,
        status,
        first_gate(start, status, start.lane),
        start.run_at_ms,
        start.delay_ms,
        start.input,
        start.webhook,
        start.trace,
        start.on_blocker_failure,
        start.unique.key if start.unique else None,
        int(start.history),
        start.attempts,
        None if start.parent is None else str(start.parent),
    )


def first_status(start: Start) -> Status:
    """Say in which status a job begins; to be paused wins over to be blocked."""
    if start.paused:
        return Status.PAUSED
    return Status.BLOCKED if start.blockers else Status.PENDING


def first_gate(start: Start, status: Status, lane: str | None) -> Gate | None:
    """Say where a new row of *lane* stands: ready if it has nothing to wait for, else an arrival for admission."""
    if status is Status.PAUSED:
        return None
    waits = start.blockers or lane is not None or start.delay_ms or start.run_at_ms is not None
    return Gate.ARRIVAL if waits else Gate.READY


AGAIN_MS = 25
"""When to look again at what somebody had locked."""

LEAVE_TO_ADMISSION = """
    UPDATE holdfast_job SET gate = 'arrival', wake_at = $now + :milliseconds
    WHERE seq $any(seqs: bigint)"""


async def leave_to_admission(tx: Tx, seqs: Sequence[int], milliseconds: int = 0) -> None:
    """Have admission look at rows that we have locked, in the next step for their queue."""
    if seqs:
        await tx.execute(LEAVE_TO_ADMISSION, seqs=seqs, milliseconds=milliseconds)


class NewEvent(NamedTuple):
    """An event to be appended, as the list of `events.APPEND` has it; *facts* is canonical JSON or None."""

    job: int
    name: EventName
    status: Status | None = None
    version: int | None = None
    attempt: int | None = None
    facts: str | None = None


STORED = tuple(each.name for each in fields(Job) if each.name not in ("state", "phases", "state_tag"))
"""The fields of a `Job` that are columns of its row, of the same names."""

STORED_WIDTH = len(STORED)

COLUMNS = ", ".join(f"holdfast_job.{name}" for name in (*STORED, "gate", "cancel_requested_at", "pause_requested_at"))
SEQ_AT = STORED.index("seq")

DERIVED = """$now,
    (SELECT 1 FROM holdfast_queue AS held WHERE held.name = holdfast_job.queue AND held.paused_at IS NOT NULL
        AND coalesce(held.until, $now + 1) > $now),
    (SELECT 1 FROM holdfast_lane AS held WHERE held.key = holdfast_job.lane AND held.paused_at IS NOT NULL),
    (SELECT 1 FROM holdfast_job AS next WHERE next.chain_id = holdfast_job.chain_id
        AND next.chain_index = holdfast_job.chain_index + 1 AND next.chain_index > 0)"""
FACTS, FACTS_WITH_RESULTS = (f"{DERIVED}, {phases}" for phases in (BESIDE, BESIDE_WITH_RESULTS))
"""What the shown state is derived from, and the phases, with their results or not; read it right behind COLUMNS."""


Decode: TypeAlias = Callable[[str, str, str | None], tuple[Any, Any]]
"""Reads the input and the output of a job of a task."""


def to_job(row: Row, decode: Decode | None = None) -> Job:
    """Make a `Job` of a row of COLUMNS and FACTS; its input and output stay JSON texts unless *decode* reads them.

    Raises `Unreadable`; who reads many goes on with the others by `readable`.
    """
    try:
        return _to_job(row, decode)
    except CANNOT_READ as error:
        raise Unreadable("holdfast_job", row[SEQ_AT], repr(error)) from error


def _to_job(row: Row, decode: Decode | None) -> Job:
    values, facts = [*row[:STORED_WIDTH]], row[STORED_WIDTH:]
    status, run_at, stale_at = STATE_COLUMNS(values)
    gate, cancel_requested_at, pause_requested_at, now, queue_paused, lane_paused, continued, phases = facts
    for at, read in READERS:
        if (value := values[at]) is not None:
            values[at] = read(value)
    values[CHAIN_ID_AT] = values[ID_AT] if row[CHAIN_ID_AT] == row[ID_AT] else UUID(row[CHAIN_ID_AT])
    values[TAGS_AT] = values[TAGS_AT] or ()
    if decode is not None:
        values[INPUT_AT], values[OUTPUT_AT] = decode(*CODED_COLUMNS(values))
    state = shown(
        STATUSES[status],
        due=run_at <= now,
        held_up=gate == Gate.LANE or bool(queue_paused or lane_paused),
        cancelling=cancel_requested_at is not None,
        pausing=pause_requested_at is not None,
        continued=bool(continued),
        stale=stale_at is not None,
    )
    values.insert(STATE_AT, state)
    has_ended = STATUSES[status] in TERMINAL
    values.append(tuple(map(to_phase, from_text(phases, has_ended=has_ended))) if phases else ())
    values.append(
        state_tag(
            status,
            row[ATTEMPT_AT],
            cancelling=cancel_requested_at is not None,
            pausing=pause_requested_at is not None,
            run_at=run_at,
            stale=stale_at is not None,
            input_=row[INPUT_AT],
        )
    )
    return Job(*values)


class LockedJob(NamedTuple):
    """A job whose row this transaction has locked, as it stood then."""

    seq: int
    id: str
    chain_id: str
    chain_index: int
    task: str
    queue: str
    status: Status
    lane: str | None
    place: int | None
    head: int
    watched: int
    unique_key: str | None
    attempt: int
    nonce: str | None
    used: int
    crashes: int
    cancel_requested_at: int | None
    pause_requested_at: int | None
    reason: str | None
    current_phase: str | None
    lease_until: int | None
    started_at: int | None
    stale_at: int | None
    history: int
    parent: str | None
    attempts: int | None

    @property
    def uuid(self) -> UUID:
        """Its id as people know it."""
        return UUID(self.id)

    @property
    def halts(self) -> str | None:
        """Name the lane that it halts."""
        return self.lane if self.head and self.status in (Status.FAILED, Status.PAUSED) else None


LOCKED = ", ".join(LockedJob._fields)
STATUS_AT = LockedJob._fields.index("status")


def to_locked(row: Row) -> LockedJob:
    """Make a `LockedJob` of a row of LOCKED; or raise `Unreadable`."""
    try:
        status = STATUSES[row[STATUS_AT]]
    except KeyError as error:
        raise Unreadable("holdfast_job", row[0], f"unknown status {error}") from error
    return LockedJob._make((*row[:STATUS_AT], status, *row[STATUS_AT + 1 :]))


def to_phase(row: PhaseRow) -> Phase:
    """Make a `Phase` of its row; its result is plain JSON, for only the handler knows its type."""
    return Phase(
        name=row.name,
        status=row.status,
        progress=row.progress or 0,
        message=row.message,
        result=maybe_json(row.result),
        error=maybe_json(row.error),
        started_at=maybe_instant(row.started_at),
        finished_at=maybe_instant(row.finished_at),
    )


LATEST = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp() * 1000)


@lru_cache(maxsize=1024)  # a statement has one moment for all that it writes
def instant(milliseconds: int) -> datetime:
    """Read milliseconds since 1970 as an aware datetime; what Python cannot hold becomes the last day it can."""
    return datetime.fromtimestamp(min(milliseconds, LATEST) / 1000, UTC)


def maybe_instant(milliseconds: int | None) -> datetime | None:
    """Read milliseconds, or None."""
    return None if milliseconds is None else instant(milliseconds)


def maybe_json(text: str | None) -> Any:
    """Read a JSON text, or None."""
    return None if text is None else json.loads(text)


def _tags(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text)) if text else ()


def _webhook(url: str) -> str | None:
    return url or None  # SILENT is of no use to a reader


STATUSES = {each.value: each for each in Status}
"""To look one up takes a tenth of the time of `Status(…)`."""

READ: dict[str, Callable[[Any], object]] = {
    "id": UUID,
    "tags": _tags,
    "status": STATUSES.__getitem__,
    "run_at": instant,
    "lease_until": instant,
    "error": json.loads,
    "webhook": _webhook,
    "created_at": instant,
    "started_at": instant,
    "finished_at": instant,
    "stale_at": instant,
    "webhook_sent": bool,
    "parent": UUID,
    "scheduled_at": instant,
}
"""How a column is read that is not NULL; the others are taken as they are."""

READERS = [(STORED.index(name), read) for name, read in READ.items()]
ID_AT, CHAIN_ID_AT, TAGS_AT, ATTEMPT_AT = map(STORED.index, ("id", "chain_id", "tags", "attempt"))
STATE_AT = [each.name for each in fields(Job)].index("state")
INPUT_AT, OUTPUT_AT = map(STORED.index, ("input", "output"))
CODED_COLUMNS = itemgetter(STORED.index("task"), INPUT_AT, OUTPUT_AT)
STATE_COLUMNS = itemgetter(*map(STORED.index, ("status", "run_at", "stale_at")))
