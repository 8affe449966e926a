"""Chains: a job and all that continues it; here they are started.

A start only inserts (DESIGN §4): keys, jobs, links to blockers, events. What it meets is a value, not an error: a
`unique` key that is held, or an id that exists, gives the chain that has it, its *twin*. So a start may be repeated
after an unknown outcome, and a caller's transaction stays usable.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from holdfast.database.tx import Execute, Tx, brief, repeatable
from holdfast.errors import Busy, InvalidInput, JobNotFound, WrongTask
from holdfast.models import INTERNAL_QUEUE, EventName, Start, StoredChain, Unique
from holdfast.states import Status
from holdfast.store import reads, rows, unique
from holdfast.store.chains import blockers
from holdfast.store.log import events
from holdfast.store.rows import Inserted

ENQUEUED: tuple[EventName, ...] = ("job:enqueued",)


class Started(NamedTuple):
    """What a start has come to: a new chain in *status*, or the chain that it *met*."""

    status: Status
    created_at: datetime
    met: StoredChain[Any] | None = None


NOW = "SELECT $now"
INSERT_ONE = """
    INSERT INTO holdfast_job (id, chain_id, chain_index, input, task, queue, priority, tags, webhook, history, status,
        gate, run_at, sort_key, on_blocker_failure, created_at)
    VALUES (?, ?, 0, ?, ?, ?, ?, ?, ?, ?, 'pending', 'ready', ?, ?, 'fail', ?)"""
APPEND_ONE = """
    INSERT INTO holdfast_event (job, name, at, status, version, attempt)
    VALUES (last_insert_rowid(), 'job:enqueued', ?, 'pending', 1, 0)"""


def _start_one(execute: Execute, start: Start) -> Started:
    """Start one plain chain on SQLite; its id is ours and new. Without RETURNING, which took 4 of 20 µs."""
    (at,) = execute(NOW, ()).fetchone()
    (values,) = rows.insert_plain_values([start])
    sort_key = at - rows.PRIORITY_MS * start.priority
    execute(INSERT_ONE, (values[0], *values, at, sort_key, at))  # by place: Python 3.12 warns of numbers such as `?1`
    if start.history:
        execute(APPEND_ONE, (at,))
    return Started(Status.PENDING, rows.instant(at))


@brief(_start_one)
@repeatable
async def start(tx: Tx, starts: Sequence[Start], from_chain: UUID | None = None) -> list[Started]:
    """Start a chain for each of *starts*, in order; a start that meets its twin is given the twin.

    A start under a key that *from_chain*, whose job starts it, holds itself is given that key, and makes a new chain.
    """
    if from_chain is not None:
        starts = [each._replace(from_chain=from_chain) for each in starts]
    if starts and all(each.is_plain for each in starts):
        return await _start_plain(tx, starts)
    asked = _firsts(starts)
    blocking = await blockers.resolve(tx, list(asked.values()))
    made = _Made()
    async with _undone_if_refused(tx, asked, made):
        await _make(tx, asked, made)
    if blocking:
        await blockers.link(tx, [(each.seq, asked[each.id]) for each in made.inserted.values()], blocking)
    if not made.have_events:
        new = [(each, asked[each.id]) for each in made.inserted.values()]
        hint = None if any(_wants_worker(*each) for each in new) else events.TO_READERS
        await events.append(tx, [events.enqueued(each, start, blocking) for each, start in new], hint=hint)
    return _answers(starts, made)


FAR = timedelta(minutes=10)
"""A worker that sleeps looks every 30 s, so it finds in time what is due later than that, also if the caller's
transaction, which sends the hint, goes on for minutes."""


def _wants_worker(new: Inserted, start: Start) -> bool:
    """Tell whether a sleeping worker is to be woken: the job can run soon, or has blockers, which may have closed."""
    match new.status:
        case Status.PAUSED:
            return False
        case Status.BLOCKED:
            return True
    return events.due_at(new, start) < new.created_at + FAR


def chain_of(start: Start, started: Started) -> StoredChain[Any]:
    """Give the chain that *start* made or met."""
    return started.met or StoredChain(*new_chain(start, started))


def new_chain(start: Start, started: Started) -> tuple[Any, ...]:
    """Give the fields of the chain that *start* made."""
    return (start.id, start.task, started.status, started.created_at, None, None, start.task)


async def _start_plain(tx: Tx, starts: Sequence[Start]) -> list[Started]:
    """Start what has only to be inserted; the ids are ours, so they exist only if this very start is repeated."""
    given = rows.insert_plain_values(starts)
    found = await events.move(tx, rows.INSERT_PLAIN, {"given": given}, ENQUEUED)
    if len(found) == len(starts):  # one statement, one time
        return [Started(Status.PENDING, rows.instant(found[0][-1]))] * len(starts)
    made = _Made({each.id: each for each in rows.to_inserted(found, given, starts)}, have_events=True)
    async with _undone_if_refused(tx, {}, made):
        await _read_the_rest(tx, list(_firsts(starts).values()), made)
    return _answers(starts, made)


@dataclass(slots=True)
class _Made:
    """What a start has come to so far."""

    inserted: dict[UUID, Inserted] = field(default_factory=dict)
    have_events: bool = False
    """Whether the statement that inserted them has appended their events as well."""
    twins: dict[UUID, UUID] = field(default_factory=dict)
    """The chains that were met, by the id of the start."""
    met: dict[UUID, StoredChain[Any]] = field(default_factory=dict)
    """The same chains, read."""
    handed_over: list[unique.WantedKey] = field(default_factory=list)
    """The keys that other chains gave up for a start, as these held them."""


async def _make(tx: Tx, asked: Mapping[UUID, Start], made: _Made) -> None:
    """Insert what meets no twin."""
    await _meet(tx, [each for each in asked.values() if each.may_wait], made)
    new = [each for each in asked.values() if each.id not in made.twins]
    if new:
        await _insert(tx, new, made)
    await _read_the_rest(tx, new, made)
    if made.handed_over:
        await _give_back(tx, asked, made)


async def _read_the_rest(tx: Tx, new: Sequence[Start], made: _Made) -> None:
    """Read the chains of those that could not be inserted, for their ids exist."""
    if len(made.inserted) < len(new):
        there = [each for each in new if each.id not in made.inserted]
        found = await _existing(tx, there)
        made.met |= await _read(tx, {found.get(each.id, each.id) for each in there})
        made.twins |= found


async def _insert(tx: Tx, new: Sequence[Start], made: _Made) -> None:
    """Insert *new*; the usual ones together with their events, in one statement where the database has one."""
    made.have_events = all(each.only_inserts for each in new)
    if made.have_events:
        given = rows.insert_values(new)
        found = await events.move(tx, rows.INSERT, {"given": given}, ENQUEUED)
        inserted = rows.to_inserted(found, given, new)
    else:
        inserted = await rows.insert(tx, new)
    made.inserted = {each.id: each for each in inserted}


@asynccontextmanager
async def _undone_if_refused(tx: Tx, asked: Mapping[UUID, Start], made: _Made) -> AsyncIterator[None]:
    """Undo what was made if the start is refused after all."""
    try:
        yield
    except (WrongTask, Busy) as error:
        if error.__cause__ is None:  # it is ours: the transaction is whole, and if it is a caller's it goes on
            await _undo(tx, asked, made)
        raise


UNDO = """DELETE FROM holdfast_job WHERE seq $any(seqs: bigint)"""


async def _undo(tx: Tx, asked: Mapping[UUID, Start], made: _Made) -> None:
    """Take back what this very call has written, as if it had not been made."""
    if made.inserted:
        await tx.execute(UNDO, seqs=[each.seq for each in made.inserted.values()])
    keys = [(each.task, each.unique.key, each.id) for each in asked.values() if each.unique is not None]
    await unique.take_back(tx, keys)
    made.inserted = {}
    await _give_back(tx, asked, made)


async def _give_back(tx: Tx, asked: Mapping[UUID, Start], made: _Made) -> None:
    """Have chains hold their keys again that gave them up for a start which made no chain."""
    starts = [asked[each] for each in made.inserted]
    used = {(each.task, each.unique.key) for each in starts if each.unique is not None}
    if unused := [each for each in made.handed_over if each.key not in used]:
        await unique.take(tx, unused)


def _firsts(starts: Sequence[Start]) -> dict[UUID, Start]:
    """Give the first of those starts that have one id, by that id."""
    firsts: dict[UUID, Start] = {}
    for each in starts:
        first = firsts.setdefault(each.id, each)
        if first.task != each.task:
            raise WrongTask(each.id, asked=each.task, found=first.task)
    return firsts


async def _meet(tx: Tx, starts: Sequence[Start], made: _Made) -> None:
    """Find the twins of *starts* and read them, before anything is inserted that would have to be undone.

    Only a start that names its id or a key can meet one. A twin may be deleted between the statement that finds it and
    the one that reads it; then its place is free.
    """
    if starts:
        is_alone = len(starts) == 1 and starts[0].from_chain is None
        made.twins, made.met = await unique.retry_in_order(
            tx, lambda: _try_to_meet(tx, starts, made), is_alone=is_alone
        )


async def _try_to_meet(
    tx: Tx, starts: Sequence[Start], made: _Made
) -> tuple[dict[UUID, UUID], dict[UUID, StoredChain[Any]]] | None:
    """Find the twins, and read them; None if one of them went while we looked."""
    made.handed_over = []  # an attempt before this one was undone
    twins = await _existing(tx, [each for each in starts if each.named])
    holders = await _holders(tx, [each for each in starts if each.id not in twins], made)
    if holders is None:
        return None
    twins |= holders
    own = {each.id for each in starts if each.id not in twins}
    wanted = set(twins.values()) - own
    met = {each.id: each for each in await reads.chains_by_id(tx, list(wanted))}
    return (twins, met) if wanted == met.keys() else None


async def _read(tx: Tx, chain_ids: set[UUID]) -> dict[UUID, StoredChain[Any]]:
    met = {each.id: each for each in await reads.chains_by_id(tx, list(chain_ids))}
    if chain_ids != met.keys():
        raise Busy("a chain of this id was just deleted; try again")
    return met


EXISTING = """SELECT id, chain_id, task, unique_key FROM holdfast_job WHERE id $any(ids: text)"""


async def _existing(tx: Tx, starts: Sequence[Start]) -> dict[UUID, UUID]:
    """Give the chains of those ids that exist; a key that was just taken for one of them is let go."""
    if not starts:
        return {}
    asked = {each.id: each for each in starts}
    found = await tx.fetch_all(EXISTING, ids=[str(each) for each in asked])
    taken_in_vain = []
    for id_, _, task, key in found:
        each = asked[UUID(id_)]
        if task != each.task:
            raise WrongTask(each.id, asked=each.task, found=task)
        if each.unique is not None and each.unique.key != key:
            taken_in_vain.append((each.task, each.unique.key, each.id))
    await unique.free(tx, taken_in_vain)
    return {UUID(id_): UUID(chain_id) for id_, chain_id, _, _ in found}


async def _holders(tx: Tx, starts: Sequence[Start], made: _Made) -> dict[UUID, UUID] | None:
    """Take the keys of *starts*; give the holder for each that another has, or None if one let go meanwhile."""
    wanted: dict[tuple[str, str], unique.WantedKey] = {}
    givers: list[tuple[str, str, UUID]] = []
    for each in starts:
        if each.unique is not None and (each.task, each.unique.key) not in wanted:
            wanted[each.task, each.unique.key] = unique.WantedKey(each.task, each.unique, each.id)
            if each.from_chain is not None:
                givers.append((each.task, each.unique.key, each.from_chain))
    if givers:
        made.handed_over += await unique.give_up(tx, givers)
    holders = await unique.try_to_take(tx, list(wanted.values())) if wanted else {}
    if holders is None:
        return None
    return {
        each.id: holder
        for each in starts
        if each.unique is not None and (holder := holders[each.task, each.unique.key]) != each.id
    }


def _answers(starts: Sequence[Start], made: _Made) -> list[Started]:
    """Give the answers in the order of the starts; of equal starts in one batch the first is the original."""
    answers: list[Started] = []
    answered: set[UUID] = set()
    for each in starts:
        place = made.twins.get(each.id, each.id)
        own = made.inserted.get(place)
        # an id that we made ourselves exists only when this very start is repeated after an unknown outcome
        is_twin = place != each.id or place in answered or (own is None and each.named)
        if own is None or is_twin:
            chain = made.met[place] if own is None else _new_chain(each, own)
            answers.append(Started(chain.status, chain.created_at, replace(chain, deduplicated=is_twin)))
        else:
            answers.append(Started(own.status, own.created_at))
        answered.add(place)
    return answers


def _new_chain(start: Start, own: Inserted) -> StoredChain[Any]:
    return StoredChain(own.id, start.task, own.status, own.created_at, last_task=start.task)


FIRSTS = """
    SELECT asked.id, first.id, first.task, first.input, first.queue, first.lane, first.priority, first.tags,
        first.webhook, first.history, first.attempts, first.parent, first.unique_key, first.closed_as
    FROM holdfast_job AS asked JOIN holdfast_job AS first ON first.id $is(asked.chain_id)
    WHERE asked.id $any(ids: text)"""
# how the chain's own key is held, if it still is; a chain that has ended holds one of scope "any". Scalar subqueries
# stay probes, whichever table the planner believes to be empty; a join compared each key with each job of the list
HELD = """(SELECT {column} FROM holdfast_unique AS held
        WHERE held.task = first.task AND held.key = first.unique_key AND held.chain_id = first.id
            AND (held.until IS NULL OR held.until > $now)
        ORDER BY held.turn DESC LIMIT 1)"""
OWN_KEYS = f"""
    SELECT first.id, {HELD.format(column="held.scope")}, {HELD.format(column="held.until")} - first.created_at
    FROM holdfast_job AS first WHERE first.id $any(ids: text)"""


@repeatable
async def start_again(tx: Tx, wanted: Sequence[tuple[UUID, UUID]], facts: Mapping[str, str]) -> list[StoredChain[Any]]:
    """Start the chains of (job, id of the new chain) anew, in order; raise `JobNotFound` for one that is not there.

    The new chain begins as the old one did: task, input, queue, lane, priority, tags, webhook, parent and unique key.
    It waits neither for a time nor for blockers. A key that the old chain still holds although it has ended is handed
    over.
    """
    rows = await tx.fetch_all(FIRSTS, ids=[str(each) for each, _ in wanted])
    found = {UUID(asked): first for asked, *first in rows}
    missing = next((each for each, _ in wanted if each not in found), None)
    if missing is not None:
        raise JobNotFound(missing)
    if any(queue == INTERNAL_QUEUE for _, _, _, queue, *_ in found.values()):
        raise InvalidInput("this job is the delivery of a webhook; hf.webhooks.redeliver() sends it again", "job")
    keyed = [id_ for id_, *_, unique_key, closed_as in found.values() if unique_key and closed_as]
    held = await tx.fetch_all(OWN_KEYS, ids=keyed) if keyed else []
    keys = {id_: (scope, within_ms) for id_, scope, within_ms in held if scope is not None}
    starts = [_anew(found[each], new_id, facts, keys) for each, new_id in wanted]
    return [chain_of(*each) for each in zip(starts, await start(tx, starts), strict=True)]


def _anew(first: Sequence[Any], new_id: UUID, facts: Mapping[str, str], keys: Mapping[str, Sequence[Any]]) -> Start:
    id_, task, input_, queue, lane, priority, tags, webhook, history, attempts, parent, unique_key, _ = first
    scope, within_ms = keys.get(id_, ("open", None))
    return Start(
        id=new_id,
        task=task,
        input=input_,
        queue=queue,
        lane=lane,
        priority=priority,
        tags=tuple(json.loads(tags)) if tags else (),
        webhook=webhook,
        history=bool(history),
        attempts=attempts,
        parent=None if parent is None else UUID(parent),
        unique=Unique(unique_key, scope, within_ms and within_ms / 1000) if unique_key else None,
        from_chain=UUID(id_) if id_ in keys else None,
        facts=json.dumps({"again": id_, **facts}),
    )
