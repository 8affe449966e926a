"""Lanes: jobs under one key run one at a time, in the order in which they became runnable.

A job that may run *joins* its lane: it is given the next place, in `seq` order among those that come together. The one
with the lowest place is the head (`head = 1`, a unique index is the backstop); it alone may become ready, and it keeps
its place until it is terminal or skipped, so a backoff, a pause or a failure holds the lane. Whoever ends a head
*promotes* the next: chosen without SKIP LOCKED, else a busy row would be overtaken, and then locked with it.

Whoever joins or promotes holds the lane's row, taken SKIP LOCKED. What cannot be done because the lane, or its next
job, is locked stays an arrival, and admission comes round.

Pausing whole lanes and queues, and setting a halting job aside, are short transactions of the engine's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from holdfast.database.tx import Tx
from holdfast.errors import HeadConflict, LaneNotFound
from holdfast.models import Asked, LaneInfo
from holdfast.outcomes import why_it_halts
from holdfast.states import Gate, Status
from holdfast.store.log import events
from holdfast.store.rows import AGAIN_MS, PRIORITY_MS, leave_to_admission, maybe_instant
from holdfast.unreadable import object_of, reading


@dataclass(slots=True)
class Lane:
    """A lane whose row we have locked; *places* is the last place that was given."""

    key: str
    places: int
    is_paused: bool


LOCK = """SELECT key, places, paused_at FROM holdfast_lane WHERE key $any(keys: text) ORDER BY key $skip_locked"""
# one that is there is locked, and an INSERT of it would wait for who has just given a place in it
CREATE = """
    INSERT INTO holdfast_lane (key) SELECT key FROM $list(given: key text)
    WHERE (SELECT 1 FROM holdfast_lane AS known WHERE known.key = given.key) IS NULL AND $nobody_else ORDER BY key
    ON CONFLICT DO NOTHING RETURNING key"""


async def lock(tx: Tx, keys: Iterable[str]) -> dict[str, Lane]:
    """Lock those of the lanes *keys* that exist and that nobody else has locked."""
    wanted = sorted(set(keys))
    if not wanted:
        return {}
    rows = await tx.fetch_all(LOCK, keys=wanted)
    return {key: Lane(key, places, paused_at is not None) for key, places, paused_at in rows}


async def lock_or_create(tx: Tx, keys: Iterable[str]) -> dict[str, Lane]:
    """Lock lanes as `lock` does; make those that are missing."""
    wanted = sorted(set(keys))
    mine = await lock(tx, wanted)
    if missing := [(key,) for key in wanted if key not in mine]:
        mine |= {key: Lane(key, 0, False) for (key,) in await tx.fetch_all(CREATE, given=missing)}
    return mine


# scalar subqueries stay index probes; EXISTS became a join over all heads (62 ms at 10,000 lanes)
HEAD_AND_NEXT = """
    SELECT given.key,
        (SELECT h.seq FROM holdfast_job AS h WHERE h.lane = given.key AND h.head = 1),
        (SELECT w.seq FROM holdfast_job AS w WHERE w.lane = given.key AND w.gate = 'lane' ORDER BY w.place LIMIT 1)
    FROM $list(given: key text)"""
JOIN = f"""
    UPDATE holdfast_job
    SET place = given.place, head = given.head, gate = given.gate, sort_key = $now - {PRIORITY_MS} * priority
    FROM $list(given: seq bigint, place bigint, head bigint, gate text)
    WHERE holdfast_job.seq = given.seq"""
PLACES = """
    UPDATE holdfast_lane SET places = given.places
    FROM $list(given: key text, places bigint)
    WHERE holdfast_lane.key = given.key"""


async def join(tx: Tx, joining: Sequence[tuple[int, str]], mine: dict[str, Lane]) -> set[str]:
    """Give places to (seq, lane) of lanes that are locked; answer the lanes that have jobs but no head."""
    if not joining:
        return set()
    keys = sorted({key for _, key in joining})
    standing = await tx.fetch_all(HEAD_AND_NEXT, given=[(key,) for key in keys])
    held = {key for key, head, waiting in standing if head is not None or waiting is not None}
    rows = []
    for seq, key in sorted(joining):
        lane = mine[key]
        lane.places += 1
        rows.append((seq, lane.places, *_head_and_gate(lane, behind=key in held)))
        held.add(key)
    await tx.execute(JOIN, given=rows)
    await tx.execute(PLACES, given=[(key, mine[key].places) for key in keys])
    return {key for key, head, waiting in standing if head is None and waiting is not None}


def _head_and_gate(lane: Lane, *, behind: bool) -> tuple[int, str | None]:
    if behind:
        return 0, Gate.LANE
    return 1, None if lane.is_paused else Gate.READY


NEXT = """
    SELECT given.key,
        (SELECT w.seq FROM holdfast_job AS w WHERE w.lane = given.key AND w.gate = 'lane' ORDER BY w.place LIMIT 1)
    FROM $list(given: key text)
    WHERE (SELECT h.seq FROM holdfast_job AS h WHERE h.lane = given.key AND h.head = 1) IS NULL"""
# sort_key stays what it was when the job joined: else each job of a lane waits through the whole queue anew
PROMOTE = """
    UPDATE holdfast_job
    SET head = 1,
        gate = CASE WHEN status = 'pending' AND lane $any(running: text) THEN
            CASE WHEN run_at > $now THEN 'arrival' ELSE 'ready' END END,
        wake_at = run_at
    WHERE seq $in(SELECT held.seq FROM holdfast_job AS held
        WHERE held.seq $any(seqs: bigint) AND coalesce(held.gate, '') = 'lane' ORDER BY held.seq $skip_locked)
    RETURNING lane, id, status, reason"""
REMOVE = """DELETE FROM holdfast_lane WHERE key $any(keys: text) AND paused_at IS NULL AND $nobody_else RETURNING key"""


async def promote(tx: Tx, keys: Iterable[str], mine: dict[str, Lane]) -> set[str]:
    """Give each of the locked lanes *keys* its next head; answer those for which that must be done again.

    These are lanes whose next job somebody else has locked, and empty ones that cannot go while somebody else makes or
    removes one. A lane in which nobody stands any more goes, unless it is paused; a next job that is paused halts it.
    """
    wanted = sorted(set(keys))
    if not wanted:
        return set()
    headless: dict[str, int | None] = dict(await tx.fetch_all(NEXT, given=[(key,) for key in wanted]))
    staying = await _remove(tx, [key for key, seq in headless.items() if seq is None], mine)
    heads = {key: seq for key, seq in headless.items() if seq is not None}
    if not heads:
        return staying
    running = [key for key in heads if not mine[key].is_paused]
    promoted = await tx.fetch_all(PROMOTE, seqs=sorted(heads.values()), running=running)
    await events.append(tx, [halted(key, id_, why) for key, id_, status, why in promoted if status == Status.PAUSED])
    return staying | (heads.keys() - {key for key, *_ in promoted})


async def _remove(tx: Tx, empty: Sequence[str], mine: Mapping[str, Lane]) -> set[str]:
    """Have lanes in which nobody stands go; answer those that should have gone, and are still there."""
    if not empty:
        return set()
    gone = {key for (key,) in await tx.fetch_all(REMOVE, keys=empty)}
    return {key for key in empty if key not in gone and not mine[key].is_paused}


def halted(key: str, job_id: str, why: str | None) -> events.NewEvent:
    """Say that a failed or paused job halts lane *key*."""
    facts = {"lane": key, "job": job_id, "reason": why}
    return events.NewEvent(events.NO_JOB, "lane:halted", facts=json.dumps(facts))


def resumed(key: str, job_id: str, said: Mapping[str, str]) -> events.NewEvent:
    """Say that the job that halted lane *key* does so no longer, and what was *said* about it."""
    return events.NewEvent(events.NO_JOB, "lane:resumed", facts=json.dumps({"lane": key, "job": job_id, **said}))


def keeps_its_lane(status: Status, halts_lane: bool) -> bool:
    """Tell whether a head that came to *status* keeps its lane."""
    return status in (Status.PENDING, Status.BLOCKED, Status.RUNNING) or (
        halts_lane and status in (Status.PAUSED, Status.FAILED)
    )


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


async def pause_lane(tx: Tx, key: str, asked: Asked, if_head: UUID | None = None) -> None:
    """Stop claiming from lane *key* until it is resumed; its running job is left to finish.

    With *if_head* only if that job halts it, or raise `HeadConflict`.
    """
    await _require_head(tx, key, if_head)
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


async def resume_lane(tx: Tx, key: str, asked: Asked, if_head: UUID | None = None) -> bool:
    """Claim from lane *key* again; tell whether it was paused. With *if_head* only if that job halts it."""
    await _require_head(tx, key, if_head)
    rows = await tx.fetch_all(RESUME_LANE, key=key)
    if rows:
        await tx.execute(UNPARK, key=key)
        await promote(tx, [key], {key: Lane(key, rows[0][1], False)})  # without jobs its row goes
        await events.append(tx, [events.NewEvent(events.NO_JOB, "lane:resumed", facts=asked.facts(lane=key))])
    return bool(rows)


LOCK_ONE = """SELECT key, places, paused_at FROM holdfast_lane WHERE key = :key $locked"""
HALTS = """lane = :key AND head = 1 AND coalesce(status, '') IN ('failed', 'paused')"""
HALTING = f"""SELECT id FROM holdfast_job WHERE {HALTS}"""
SKIP = f"""
    UPDATE holdfast_job SET head = 0, place = NULL, version = version + 1 WHERE {HALTS} RETURNING seq, id"""


async def _require_head(tx: Tx, key: str, if_head: UUID | None) -> None:
    """Lock lane *key*, and raise `HeadConflict` if another job than *if_head* halts it, or none; None asks nothing."""
    if if_head is not None:
        await tx.fetch_all(LOCK_ONE, key=key)
        _refuse_other_head(key, if_head, [id_ for (id_,) in await tx.fetch_all(HALTING, key=key)])


def _refuse_other_head(key: str, if_head: UUID | None, halting: Sequence[str]) -> None:
    if if_head is not None and list(halting) != [str(if_head)]:
        raise HeadConflict(key, if_head, UUID(halting[0]) if halting else None)


async def skip(tx: Tx, key: str, asked: Asked, if_head: UUID | None = None) -> UUID | None:
    """Set the job that halts lane *key* aside and let the next one run; answer which it was, or None.

    With *if_head* only if it is that job, or raise `HeadConflict`.
    """
    rows = await tx.fetch_all(LOCK_ONE, key=key)
    if not rows:
        raise LaneNotFound(key)
    skipped = await tx.fetch_all(SKIP, key=key)
    _refuse_other_head(key, if_head, [id_ for _, id_ in skipped])
    if not skipped:
        return None
    ((_, places, paused_at),) = rows
    stuck = await promote(tx, [key], {key: Lane(key, places, paused_at is not None)})
    ((seq, id_),) = skipped
    if stuck:
        await leave_to_admission(tx, [seq], AGAIN_MS)
    await events.append(tx, [resumed(key, id_, asked.said())])
    return UUID(id_)


MOST_COUNTED = 10_000
HEADS = """
    SELECT lane, id, status, reason, error, finished_at FROM holdfast_job WHERE lane $any(keys: text) AND head = 1"""
BEHIND = """
    SELECT given.key, (SELECT count(*) FROM (SELECT w.place FROM holdfast_job AS w
        WHERE w.lane = given.key AND w.gate = 'lane' ORDER BY w.place LIMIT :most) AS behind)
    FROM $list(given: key text)"""
PAUSED = """SELECT key, paused_at, paused_by, reason FROM holdfast_lane WHERE key $any(keys: text)"""


async def lane_info(tx: Tx, key: str) -> LaneInfo:
    """Tell how lane *key* stands."""
    for told in await lane_infos(tx, [key], MOST_COUNTED):
        return told()
    raise AssertionError("a lane that is asked for is told about")


async def lane_infos(tx: Tx, keys: Sequence[str], most: int) -> list[Callable[[], LaneInfo]]:
    """Tell how the lanes *keys* stand, in their order; jobs behind the head are counted up to *most*.

    What is given reads one of them, or raises `Unreadable`.
    """
    if not keys:
        return []
    heads = {key: head for key, *head in await tx.fetch_all(HEADS, keys=list(keys))}
    behind: dict[str, int] = dict(await tx.fetch_all(BEHIND, given=[(key,) for key in keys], most=most))
    pauses = {key: pause for key, *pause in await tx.fetch_all(PAUSED, keys=list(keys))}
    nobody, never = [None] * 5, [None] * 3
    return [partial(_lane_info, key, heads.get(key, nobody), behind[key], pauses.get(key, never)) for key in keys]


def _lane_info(key: str, head: Sequence[Any], behind: int, pause: Sequence[Any]) -> LaneInfo:
    id_, status, because, error, finished_at = head
    paused_at, paused_by, reason = pause
    halts = status in (Status.FAILED, Status.PAUSED)
    with reading("holdfast_job", id_):
        job_id = None if id_ is None else UUID(id_)
        return LaneInfo(
            key=key,
            depth=behind + (id_ is not None),
            head=job_id,
            head_status=None if status is None else Status(status),
            halted_by=job_id if halts else None,
            halted_because=why_it_halts(because, object_of(error)) if halts else None,
            halted_since=maybe_instant(finished_at) if status == Status.FAILED else None,
            paused_at=maybe_instant(paused_at),
            paused_by=paused_by,
            reason=reason,
        )
