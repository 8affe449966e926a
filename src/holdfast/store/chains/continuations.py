"""Continuing chains: the job that follows one which completes, inserted in the commit that completes it.

A job has at most one successor: whoever inserts it has completed its predecessor in the same transaction, under the
lock of its row; the unique index (chain, position) is the backstop. What was not chosen for it, it inherits.

In the lane of its predecessor a job that may run at once takes that one's place, so that nothing comes between two
steps of a chain; to be the head of a paused lane is to be parked. A job that is not due, is blocked, is paused or
belongs to another lane is an arrival like any other, and the lane of its predecessor goes on without it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from holdfast.database.tx import Tx
from holdfast.errors import HoldfastError, IdTaken
from holdfast.models import Continuation
from holdfast.states import Gate, Status
from holdfast.store.chains import blockers
from holdfast.store.log import events
from holdfast.store.rows import PRIORITY_MS, Inserted, LockedJob, first_gate, first_status, instant


class ChainStep(NamedTuple):
    """A job that completes, and what continues it; *place* and *head* are those that it had in its *lane*."""

    seq: int
    chain_id: str
    lane: str | None
    place: int | None
    head: int
    next: Continuation

    @property
    def next_lane(self) -> str | None:
        """The lane of what continues it."""
        return self.lane if "lane" in self.next.inherits else self.next.start.lane

    @property
    def hands_on_its_place(self) -> bool:
        """Tell whether what continues it takes its place in the lane."""
        start = self.next.start
        waits = start.paused or start.blockers or start.delay_ms or start.run_at_ms is not None
        return self.place is not None and self.lane == self.next_lane and not waits


def step_of(job: LockedJob, successor: Continuation) -> ChainStep:
    """Say that *successor* continues *job*."""
    return ChainStep(job.seq, job.chain_id, job.lane, job.place, job.head, successor)


class Judged(NamedTuple):
    """What was found of the blockers and ids that continuations name: chains, and which jobs cannot go on so."""

    chains: Mapping[UUID, UUID]
    mistakes: Mapping[int, HoldfastError]
    """By the seq of the job that was to be continued: a blocker is not there, the chain would wait for itself, or the
    id is another job's."""


async def judge(tx: Tx, steps: Sequence[ChainStep]) -> Judged:
    """Look at what is to be waited for, before anything is written that would have to be undone."""
    starts = [(each, each.next.start.blockers) for each in steps]
    waiting = [blockers.Waiting(each.seq, each.chain_id, named) for each, named in starts if named]
    chains, mistakes = await blockers.judge(tx, waiting)
    return Judged(chains, mistakes | await _taken(tx, [each for each in steps if each.next.start.named]))


TAKEN = """SELECT id FROM holdfast_job WHERE id $any(ids: text)"""


async def _taken(tx: Tx, steps: Sequence[ChainStep]) -> dict[int, HoldfastError]:
    """Tell which of *steps*, whose successors have ids that somebody chose, would make a second job of an id.

    One that is inserted between this look and our own insert breaks that, by the unique index; then we look again.
    """
    if not steps:
        return {}
    taken = {id_ for (id_,) in await tx.fetch_all(TAKEN, ids=sorted({str(each.next.start.id) for each in steps}))}
    mistakes: dict[int, HoldfastError] = {}
    for each in steps:
        if (id_ := str(each.next.start.id)) in taken:
            mistakes[each.seq] = IdTaken(each.next.start.id)
        taken.add(id_)
    return mistakes


INSERT = f"""
    INSERT INTO holdfast_job (id, chain_id, chain_index, task, queue, lane, priority, tags, status, gate, place, head,
        run_at, wake_at, sort_key, input, webhook, trace, on_blocker_failure, history, attempts, parent,
        created_at)
    SELECT given.id, before.chain_id, before.chain_index + 1, given.task, coalesce(given.queue, before.queue),
        given.lane, coalesce(given.priority, before.priority),
        CASE given.keeps_tags WHEN 1 THEN before.tags ELSE given.tags END, given.status, given.gate, given.place,
        given.head,
        coalesce(CASE WHEN given.run_at > $now THEN given.run_at END, $now + given.delay),
        CASE given.gate WHEN 'arrival' THEN CASE given.status WHEN 'blocked' THEN $now
            ELSE coalesce(given.run_at, $now + given.delay) END END,
        CASE WHEN given.gate = 'ready' OR given.place IS NOT NULL
            THEN $now - {PRIORITY_MS} * coalesce(given.priority, before.priority) END,
        given.input, CASE given.keeps_webhook WHEN 1 THEN before.webhook ELSE given.webhook END, given.trace,
        given.on_blocker_failure, given.history, given.attempts, before.parent, $now
    FROM $list(given: predecessor bigint, id text, task text, queue text, lane text, priority bigint, keeps_tags bigint,
            tags text, status text, gate text, place bigint, head bigint, run_at bigint, delay bigint, input text,
            keeps_webhook bigint, webhook text, trace text, on_blocker_failure text, history bigint, attempts bigint)
        JOIN holdfast_job AS before ON before.seq = given.predecessor
    WHERE true
    ORDER BY given.nr
    RETURNING seq, id, status, created_at"""


async def insert(
    tx: Tx, steps: Sequence[ChainStep], chains: Mapping[UUID, UUID], running: Mapping[str, bool]
) -> list[events.NewEvent]:
    """Insert what continues *steps*, whose jobs have just been completed; give its events.

    *chains* are those of its blockers. *running* says of the lanes that we have locked whether they run: where it says
    nothing, a head is left to admission.
    """
    if not steps:
        return []
    starts = {str(each.next.start.id): each.next.start for each in steps}
    rows = await tx.fetch_all(INSERT, given=[_values(each, running) for each in steps])
    new = [(Inserted(seq, starts[id_].id, Status(status), instant(at)), starts[id_]) for seq, id_, status, at in rows]
    await blockers.link(tx, [(each.seq, start) for each, start in new], chains)
    return [events.enqueued(each, start, chains) for each, start in new]


def _values(step: ChainStep, running: Mapping[str, bool]) -> tuple[object, ...]:
    start, inherits = step.next.start, step.next.inherits
    status = first_status(start)
    lane = step.next_lane
    takes_place = step.hands_on_its_place
    return (
        step.seq,
        str(start.id),
        start.task,
        None if "queue" in inherits else start.queue,
        lane,
        None if "priority" in inherits else start.priority,
        int("tags" in inherits),
        json.dumps(start.tags) if start.tags else None,
        status,
        _gate_in_its_place(step, running) if takes_place else first_gate(start, status, lane),
        step.place if takes_place else None,
        step.head if takes_place else 0,
        start.run_at_ms,
        start.delay_ms,
        start.input,
        int("webhook" in inherits),
        start.webhook,
        start.trace,
        start.on_blocker_failure,
        int(start.history),
        start.attempts,
    )


def _gate_in_its_place(step: ChainStep, running: Mapping[str, bool]) -> Gate | None:
    if not step.head:
        return Gate.LANE
    if step.lane is None or step.lane not in running:
        return Gate.ARRIVAL
    return Gate.READY if running[step.lane] else None


def continued(successor: Continuation | None) -> dict[str, str]:
    """Say of a job that completed what continues it."""
    return {} if successor is None else {"continued": str(successor.start.id)}
