"""The outbox: events that still have to become webhook deliveries, and the bounded step that makes these.

A row was written with its event (`fan_out.WANT`), and says what a body needs that may change or be deleted afterwards.
A step has three parts, so that nothing is encoded while a transaction is open: `oldest` reads some rows, the receivers
and the jobs as they are now; `pack` makes the bodies, without a database; `deliver` locks the rows, inserts the
deliveries and deletes the rows, in one commit. Whatever dies in between leaves the rows to the next step.

*Receivers* are those that are subscribed when the deliveries are made, and were so when the event happened: by the
newest `active_since` of then, not by the time of the event, for the database's clock may have been put back. One that
this release cannot read gets nothing, and is logged: a release that writes another shape must refuse older code.

*Order.* For one job the numbers of the rows grow in commit order. Two workers may read the same rows; who comes second
passes over what the first has locked, and leaves a later row of such a job alone as well. It is told of these jobs, so
that it can go on behind them: the first one may stand still for minutes.

*Bounds.* A step takes so many rows, deliveries and bytes that it is done in a moment; a row whose receivers alone are
more than that is made whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from holdfast.database.tx import Row, Tx, patient
from holdfast.errors import Unreadable
from holdfast.ids import id_that_follows
from holdfast.models import EventName, Job, Start
from holdfast.states import State, Status, shown
from holdfast.store import rows
from holdfast.store.log import events, fan_out
from holdfast.store.log.fan_out import DeliveryInput, DeliveryRecord
from holdfast.store.rows import COLUMNS, FACTS, SEQ_AT, instant, maybe_json, to_job
from holdfast.times import instant_text
from holdfast.unreadable import object_of, readable, reading
from holdfast.wire.webhook_body import MOST_BYTES, OMITTED_OF_DELETED, body

MOST_ROWS, MOST_DELIVERIES, MOST_STEP_BYTES = 50, 200, 4_000_000
"""How much one step takes."""
MOST_COUNTED = 10_000
"""Where `backlog` stops counting."""


class OutboxRow(NamedTuple):
    """An event that somebody may want, as it was written down."""

    seq: int
    job: int
    event: EventName
    at: int
    status: str | None
    version: int | None
    attempt: int | None
    facts: str | None
    error: str | None
    id: str
    chain_id: str
    chain_index: int
    task: str
    queue: str
    tags: str | None
    webhook: str | None
    created_at: int
    subscribed: int | None
    """The newest `active_since` of the subscriptions that there were."""


class Receiver(NamedTuple):
    """Where an event is delivered; *subscription* is None if the job itself names the address."""

    url: str
    subscription: str | None = None
    secrets: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class OutboxBatch:
    """What one step is about: rows with their receivers, the oldest first, and by `seq` the jobs that still exist."""

    rows: Sequence[tuple[OutboxRow, Sequence[Receiver]]]
    jobs: Mapping[int, Row]


LENGTH = {"postgres": "octet_length", "sqlite": "length"}
"""What gives the length of a text without reading it: PostgreSQL's `length` decompresses what is long."""
OLDEST = {
    database: f"""
    SELECT {", ".join(f"holdfast_outbox.{name}" for name in OutboxRow._fields)},
        (SELECT {length}(told.input) + coalesce({length}(told.output), 0) FROM holdfast_job AS told
            WHERE told.seq = holdfast_outbox.job)
    FROM holdfast_outbox
    WHERE holdfast_outbox.seq > 0 AND NOT (holdfast_outbox.job $any(passed: bigint))
    ORDER BY holdfast_outbox.seq LIMIT :most"""
    for database, length in LENGTH.items()
}
SUBSCRIBED = """
    SELECT id, url, events, tasks, secrets, coalesce(active_since, created_at) FROM holdfast_subscription
    WHERE disabled_at IS NULL ORDER BY created_at, id"""
# a tombstone is nobody's job any more
JOBS = f"""
    SELECT {COLUMNS}, {FACTS} FROM holdfast_job
    WHERE holdfast_job.seq $any(seqs: bigint) AND coalesce(holdfast_job.closed_as, '') <> 'deleted'"""


async def oldest(tx: Tx, passed: Sequence[int] = ()) -> OutboxBatch:
    """Read what the next step is about, without a lock; the rows of the jobs *passed* are left out."""
    found = await tx.fetch_all(OLDEST[tx.database], passed=list(passed), most=MOST_ROWS)
    if not found:
        return OutboxBatch([], {})
    subscriptions = readable(await tx.fetch_all(SUBSCRIBED), _Subscription.read)
    taken: list[tuple[OutboxRow, Sequence[Receiver]]] = []
    deliveries = size = 0
    for *values, length in found:
        row = OutboxRow(*values)
        receivers = _receivers(row, subscriptions)
        deliveries += len(receivers)
        size += _size(row, length or 0, len(receivers))
        if taken and (deliveries > MOST_DELIVERIES or size > MOST_STEP_BYTES):
            break
        taken.append((row, receivers))
    seqs = sorted({row.job for row, receivers in taken if receivers})
    return OutboxBatch(taken, {job[SEQ_AT]: job for job in await tx.fetch_all(JOBS, seqs=seqs)} if seqs else {})


def _size(row: OutboxRow, length: int, receivers: int) -> int:
    """Say about how many bytes the deliveries of *row* take, whose job's input and output have this *length*."""
    posted = min(length, MOST_BYTES) + len(row.facts or "") + len(row.error or "")
    return length + receivers * posted if receivers else 0


class _Subscription(NamedTuple):
    receiver: Receiver
    events: frozenset[str]
    tasks: frozenset[str] | None
    active_since: int

    @classmethod
    def read(cls, row: Row) -> _Subscription:
        """Read a row of SUBSCRIBED; raises `Unreadable`."""
        id_, url, wanted, tasks, secrets, active_since = row
        with reading("holdfast_subscription", id_):
            only = None if tasks is None else frozenset(json.loads(tasks))
            return cls(Receiver(url, id_, maybe_json(secrets) or ()), frozenset(json.loads(wanted)), only, active_since)

    def wants(self, row: OutboxRow) -> bool:
        is_of_its_tasks = self.tasks is None or row.task in self.tasks
        return row.event in self.events and is_of_its_tasks and self.active_since <= (row.subscribed or 0)


def _receivers(row: OutboxRow, subscriptions: Sequence[_Subscription]) -> list[Receiver]:
    if row.webhook is not None:
        return [Receiver(row.webhook)]
    return [each.receiver for each in subscriptions if each.wants(row)]


class Parcel(NamedTuple):
    """A row of the outbox with the deliveries that are to be made of it, each with its receiver."""

    row: OutboxRow
    deliveries: Sequence[tuple[Start, Receiver]]


@dataclass(frozen=True, slots=True)
class Packed:
    """What became of a batch: *unreadable* are rows of which this release can make nothing."""

    parcels: Sequence[Parcel]
    unreadable: Mapping[OutboxRow, Unreadable]


def pack(batch: OutboxBatch) -> Packed:
    """Make the bodies of *batch*, which may be megabytes: call it in a thread."""
    parcels, unreadable = [], {}
    for row, receivers in batch.rows:
        try:
            with reading("holdfast_outbox", row.seq):
                parcels.append(_parcel(row, receivers, batch.jobs.get(row.job)))
        except Unreadable as error:
            unreadable[row] = error
    return Packed(parcels, unreadable)


def _parcel(row: OutboxRow, receivers: Sequence[Receiver], job: Row | None) -> Parcel:
    if not receivers:
        return Parcel(row, [])
    at = instant_text(instant(row.at)) or ""
    told = _deleted(row) if job is None else _as_it_was(to_job(job), row)
    posted = body(
        row.event,
        at,
        told,
        status=row.status,
        attempt=row.attempt,
        version=row.version,
        facts=row.facts,
        omitted=OMITTED_OF_DELETED if job is None else (),
    )
    return Parcel(row, [(_start(row, each, posted), each) for each in receivers])


def _start(row: OutboxRow, receiver: Receiver, posted: str) -> Start:
    url, subscription, secrets = receiver
    # of the event alone: an event that was written down twice is posted once
    new_id = id_that_follows(row.at, row.job, row.id, row.version, row.event, row.facts, subscription)
    return DeliveryInput(url, posted, row.event, row.id, subscription, secrets, row.at).start(new_id)


def _as_it_was(job: Job, row: OutboxRow) -> Job:
    """Give *job* as the event left it, as far as *row* knows; its input, output and phases are those of now."""
    status = job.status if row.status is None else Status(row.status)
    said = object_of(row.facts).get("run_at")  # by now it may have run at another time
    run_at = job.run_at if said is None else datetime.fromisoformat(said)
    return replace(
        job,
        status=status,
        state=job.state if job.status == status else _shown(row, status, is_due=run_at <= instant(row.at)),
        run_at=run_at,
        attempt=job.attempt if row.attempt is None else row.attempt,
        version=job.version if row.version is None else row.version,
        error=maybe_json(row.error),
    )


def _deleted(row: OutboxRow) -> Job:
    """Make a job of what *row* knows of one that was deleted; the rest is as in a new one."""
    status = Status(row.status or Status.CANCELLED)
    return Job(
        id=UUID(row.id),
        seq=row.job,
        chain_id=UUID(row.chain_id),
        chain_index=row.chain_index,
        task=row.task,
        queue=row.queue,
        lane=None,
        priority=0,
        tags=tuple(maybe_json(row.tags) or ()),
        status=status,
        state=_shown(row, status, is_due=True),
        run_at=instant(row.created_at),
        attempt=row.attempt or 0,
        used=0,
        crashes=0,
        interrupted=0,
        worker=None,
        lease_until=None,
        reason=None,
        input=None,
        output=None,
        error=maybe_json(row.error),
        current_phase=None,
        progress=None,
        message=None,
        open_blockers=0,
        on_blocker_failure="fail",
        webhook=row.webhook,
        completed_by=None,
        created_at=instant(row.created_at),
        started_at=None,
        finished_at=None,
        stale_at=None,
        version=row.version or 0,
    )


def _shown(row: OutboxRow, status: Status, *, is_due: bool) -> State:
    return shown(
        status,
        due=is_due,
        held_up=False,
        cancelling=False,
        pausing=False,
        continued=False,
        stale=row.event == "job:stale",
    )


LOCK = """SELECT seq FROM holdfast_outbox WHERE seq $any(seqs: bigint) ORDER BY seq $skip_locked"""
# who had an earlier one locked may have committed since: then its deliveries are there before ours
EARLIER = """
    SELECT mine.seq FROM holdfast_outbox AS mine
    WHERE mine.seq $any(seqs: bigint) AND (SELECT earlier.seq FROM holdfast_outbox AS earlier
        WHERE earlier.job = mine.job AND earlier.seq < mine.seq AND NOT (earlier.seq $any(seqs: bigint))
        LIMIT 1) IS NOT NULL"""
DELETE = """DELETE FROM holdfast_outbox WHERE seq $any(seqs: bigint)"""
HELD = """SELECT job FROM holdfast_outbox WHERE seq $any(seqs: bigint)"""


class OutboxStep(NamedTuple):
    """How many rows became deliveries, and the jobs whose rows somebody else has locked."""

    taken: int
    held: frozenset[int]


async def deliver(tx: Tx, parcels: Sequence[Parcel]) -> OutboxStep:
    """Insert the deliveries of *parcels* and delete their rows, as far as nobody else has them."""
    seqs = [seq for (seq,) in await tx.fetch_all(LOCK, seqs=[each.row.seq for each in parcels])] if parcels else []
    early = {seq for (seq,) in await tx.fetch_all(EARLIER, seqs=seqs)} if seqs else set()
    mine = set(seqs) - early
    taken = [each for each in parcels if each.row.seq in mine]
    await _insert(tx, taken)
    if taken:
        await tx.execute(DELETE, seqs=sorted(mine))
    missed = [each.row.seq for each in parcels if each.row.seq not in mine]
    held = await tx.fetch_all(HELD, seqs=missed) if missed else []
    return OutboxStep(len(taken), frozenset(job for (job,) in held))


@patient
async def deliver_patiently(tx: Tx, parcels: Sequence[Parcel]) -> OutboxStep:
    """Do the same over a line that was too slow for it."""
    return await deliver(tx, parcels)


async def _insert(tx: Tx, parcels: Sequence[Parcel]) -> None:
    made = {start.id: (start, each.row, receiver) for each in parcels for start, receiver in each.deliveries}
    if not made:
        return
    inserted = await rows.insert(tx, [start for start, _, _ in made.values()])
    about = [(each.seq, *made[each.id][1:]) for each in inserted]
    records = [DeliveryRecord(seq, row.job, row.event, to.subscription, to.url) for seq, row, to in about]
    await fan_out.record(tx, records)
    await events.append(tx, [events.NewEvent(each.seq, "job:enqueued", each.status, 1, 0) for each in inserted])


BACKLOG = """SELECT count(*) FROM (SELECT seq FROM holdfast_outbox ORDER BY seq LIMIT :most) AS waiting"""


async def backlog(tx: Tx) -> int:
    """Count the events that wait for their deliveries to be made; MOST_COUNTED means that many or more."""
    ((count,),) = await tx.fetch_all(BACKLOG, most=MOST_COUNTED)
    return int(count)


LEFT_WAITING = """SELECT $now - at FROM holdfast_outbox WHERE seq > 0 ORDER BY seq LIMIT 1"""


async def is_left_waiting(tx: Tx, milliseconds: int) -> bool:
    """Look whether an event has waited for longer than *milliseconds*."""
    return any(waited > milliseconds for (waited,) in await tx.fetch_all(LEFT_WAITING))
