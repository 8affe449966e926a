"""Deliveries as people ask for them: which webhooks were posted, how they ended, and posting one again."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from holdfast.database.tx import Row, Tx, repeatable
from holdfast.errors import DeliveryNotFound, JobNotFound, StatusConflict
from holdfast.models import Delivery, Page
from holdfast.states import TERMINAL, Status
from holdfast.store import reads, rows
from holdfast.store.log import events, fan_out
from holdfast.store.log.fan_out import DeliveryInput
from holdfast.store.reads import Paging
from holdfast.store.rows import instant, maybe_instant, maybe_json

DELIVERY = """
    SELECT about.job, about.target, about.event, about.subscription, delivery.id, delivery.status, delivery.attempt,
        delivery.reason, delivery.error, delivery.output, delivery.run_at, delivery.input, delivery.created_at,
        delivery.finished_at
    FROM holdfast_delivery AS about JOIN holdfast_job AS delivery ON delivery.seq = about.job"""
SOME = f"""{DELIVERY} WHERE about.job $any(jobs: bigint)"""
SEQS = """SELECT about.job FROM holdfast_delivery AS about"""
# plainly written it goes through all deliveries in their order, until it has found enough
ABOUT_JOB = """about.job $in(SELECT mine.job FROM holdfast_delivery AS mine WHERE mine.target = :target)"""
SEQ = """SELECT seq FROM holdfast_job WHERE id = :id"""


async def list_deliveries(tx: Tx, job: UUID | None, subscription: UUID | None, paging: Paging) -> Page[Delivery]:
    """List deliveries; those about *job*, or to *subscription*, or all. Raises `JobNotFound`."""
    conditions: reads.Conditions = [("true", {})]
    sql = f"{SEQS} WHERE true"
    if job is not None:
        found = await tx.fetch_all(SEQ, id=str(job))
        if not found:
            raise JobNotFound(job)
        sql = f"{SEQS} WHERE {ABOUT_JOB}"
        conditions.append(("true", {"target": found[0][0]}))
    if subscription is not None:
        conditions.append(("about.subscription = :subscription", {"subscription": str(subscription)}))
    page = await reads.page(tx, sql, "about.job", conditions, paging, lambda row: int(row[0]), seq_at=0)
    read = {row[0]: _read(row) for row in await tx.fetch_all(SOME, jobs=list(page))} if page else {}
    return Page(tuple(read[seq] for seq in page if seq in read), page.next_cursor)


ONE = f"""{DELIVERY} WHERE delivery.id = :id"""


async def get(tx: Tx, delivery_id: UUID) -> Delivery:
    """Read one, or raise `DeliveryNotFound`."""
    return _read(await _one(tx, delivery_id))


@repeatable
async def redeliver(tx: Tx, delivery_id: UUID, new_id: UUID, said: dict[str, str]) -> Delivery:
    """Deliver once more what a delivery that has ended was to deliver, as *new_id*; raise `DeliveryNotFound`.

    The body is the same, and so is the id that the receiver sees: what it has taken before, it can tell. Raises
    `StatusConflict` for a delivery that is still tried.
    """
    row = await _one(tx, delivery_id)
    _, target, event, subscription, id_, status, *_ = row
    if status not in TERMINAL:
        raise StatusConflict(delivery_id, status, "be delivered again", TERMINAL, "trigger() has it tried now")
    given: dict[str, Any] = json.loads(row[11])
    parcel = DeliveryInput(**(given | {"message": given.get("message") or id_}))
    inserted = await rows.insert(tx, [parcel.start(new_id)])
    if inserted:
        (made,) = inserted
        await fan_out.record(tx, [(made.seq, target, event, subscription)])
        facts = json.dumps({"again": id_, **said})
        await events.append(tx, [events.NewEvent(made.seq, "job:enqueued", made.status, 1, 0, facts)])
    return await get(tx, new_id)


async def _one(tx: Tx, delivery_id: UUID) -> Row:
    found = await tx.fetch_all(ONE, id=str(delivery_id))
    if not found:
        raise DeliveryNotFound(delivery_id)
    return found[0]


def _read(row: Row) -> Delivery:
    (_, _, event, subscription, id_, status, attempt, reason, error, output, run_at, input_, created_at,
     finished_at) = row  # fmt: skip
    given: dict[str, Any] = json.loads(input_)
    return Delivery(
        id=UUID(id_),
        message_id=UUID(given.get("message") or id_),
        event=event,
        target=UUID(given["target"]),
        subscription=None if subscription is None else UUID(subscription),
        url=given["url"],
        status=Status(status),
        attempts=attempt,
        reason=reason,
        error=maybe_json(error),
        answer=maybe_json(output),
        created_at=instant(created_at),
        next_at=None if status in TERMINAL else instant(run_at),
        finished_at=maybe_instant(finished_at),
    )
