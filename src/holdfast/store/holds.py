"""Pausing whole lanes and queues, and setting a halting job aside: short transactions of the engine's own."""

from __future__ import annotations

from uuid import UUID

from holdfast.database.tx import Tx
from holdfast.errors import LaneNotFound
from holdfast.models import Asked, LaneInfo
from holdfast.states import Status
from holdfast.store import arrivals, lanes
from holdfast.store.log import events
from holdfast.store.rows import maybe_instant

MAKE_QUEUE = """INSERT INTO holdfast_queue (name) VALUES (:key) ON CONFLICT DO NOTHING"""
PAUSE_QUEUE = """
    UPDATE holdfast_queue
    SET paused_at = CASE WHEN until <= $now THEN $now ELSE coalesce(paused_at, $now) END,
        paused_by = :by, reason = :why, until = CAST(:until AS bigint)
    WHERE name = :key"""
RESUME_QUEUE = """DELETE FROM holdfast_queue WHERE name = :key AND paused_at IS NOT NULL RETURNING name"""


async def pause_queue(tx: Tx, key: str, until_ms: int | None, asked: Asked) -> None:
    """Claim nothing from queue *key* until it is resumed, or until then; what runs is left to finish."""
    await tx.execute(MAKE_QUEUE, key=key)
    await tx.execute(PAUSE_QUEUE, key=key, by=asked.by, why=asked.why, until=until_ms)
    facts = asked.facts(queue=key, until=until_ms)
    await events.append(tx, [events.NewEvent(events.NO_JOB, "queue:paused", facts=facts)])


async def resume_queue(tx: Tx, key: str, asked: Asked) -> bool:
    """Claim from queue *key* again; tell whether it was paused."""
    rows = await tx.fetch_all(RESUME_QUEUE, key=key)
    if rows:
        await events.append(tx, [events.NewEvent(events.NO_JOB, "queue:resumed", facts=asked.facts(queue=key))])
    return bool(rows)


MAKE_LANE = """INSERT INTO holdfast_lane (key) VALUES (:key) ON CONFLICT DO NOTHING"""
PAUSE_LANE = """
    UPDATE holdfast_lane SET paused_at = coalesce(paused_at, $now), paused_by = :by, reason = :why
    WHERE key = :key
    RETURNING key"""
PARK = """UPDATE holdfast_job SET gate = NULL WHERE lane = :key AND head = 1 AND coalesce(gate, '') = 'ready'"""
TRIES = 3


async def pause_lane(tx: Tx, key: str, asked: Asked) -> None:
    """Stop claiming from lane *key* until it is resumed; its running job is left to finish."""
    for _ in range(TRIES):  # its last job may just take the row along
        await tx.execute(MAKE_LANE, key=key)
        if await tx.fetch_all(PAUSE_LANE, key=key, by=asked.by, why=asked.why):
            break
    await tx.execute(PARK, key=key)
    await events.append(tx, [events.NewEvent(events.NO_JOB, "lane:paused", facts=asked.facts(lane=key))])


RESUME_LANE = """
    UPDATE holdfast_lane SET paused_at = NULL, paused_by = NULL, reason = NULL
    WHERE key = :key AND paused_at IS NOT NULL
    RETURNING key, places"""
UNPARK = """
    UPDATE holdfast_job SET gate = CASE WHEN run_at > $now THEN 'arrival' ELSE 'ready' END, wake_at = run_at
    WHERE lane = :key AND head = 1 AND coalesce(status, '') = 'pending' AND gate IS NULL"""


async def resume_lane(tx: Tx, key: str, asked: Asked) -> bool:
    """Claim from lane *key* again; tell whether it was paused."""
    rows = await tx.fetch_all(RESUME_LANE, key=key)
    if rows:
        await tx.execute(UNPARK, key=key)
        await lanes.promote(tx, [key], {key: lanes.Lane(key, rows[0][1], False)})  # without jobs its row goes
        await events.append(tx, [events.NewEvent(events.NO_JOB, "lane:resumed", facts=asked.facts(lane=key))])
    return bool(rows)


LOCK = """SELECT key, places, paused_at FROM holdfast_lane WHERE key = :key $locked"""
SKIP = """
    UPDATE holdfast_job SET head = 0, place = NULL, version = version + 1
    WHERE lane = :key AND head = 1 AND coalesce(status, '') IN ('failed', 'paused')
    RETURNING seq, id"""


async def skip(tx: Tx, key: str, asked: Asked) -> UUID | None:
    """Set the job that halts lane *key* aside and let the next one run; answer which it was, or None."""
    rows = await tx.fetch_all(LOCK, key=key)
    if not rows:
        raise LaneNotFound(key)
    skipped = await tx.fetch_all(SKIP, key=key)
    if not skipped:
        return None
    ((_, places, paused_at),) = rows
    stuck = await lanes.promote(tx, [key], {key: lanes.Lane(key, places, paused_at is not None)})
    ((seq, id_),) = skipped
    if stuck:
        await arrivals.leave(tx, [seq], arrivals.AGAIN_MS)
    await events.append(tx, [lanes.resumed(key, id_, asked.said())])
    return UUID(id_)


MOST_COUNTED = 10_000
HEAD = """SELECT id, status, reason FROM holdfast_job WHERE lane = :key AND head = 1"""
BEHIND = """
    SELECT count(*) FROM (SELECT place FROM holdfast_job
        WHERE lane = :key AND gate = 'lane' ORDER BY place LIMIT :most) AS behind"""
PAUSED = """SELECT paused_at, paused_by, reason FROM holdfast_lane WHERE key = :key"""


async def lane_info(tx: Tx, key: str) -> LaneInfo:
    """Tell how lane *key* stands."""
    ((id_, status, because),) = await tx.fetch_all(HEAD, key=key) or [(None, None, None)]
    ((behind,),) = await tx.fetch_all(BEHIND, key=key, most=MOST_COUNTED)
    ((paused_at, paused_by, reason),) = await tx.fetch_all(PAUSED, key=key) or [(None, None, None)]
    head = None if id_ is None else UUID(id_)
    halts = status in (Status.FAILED, Status.PAUSED)
    return LaneInfo(
        key=key,
        depth=behind + (head is not None),
        head=head,
        head_status=None if status is None else Status(status),
        halted_by=head if halts else None,
        halted_because=because if halts else None,
        paused_at=maybe_instant(paused_at),
        paused_by=paused_by,
        reason=reason,
    )
