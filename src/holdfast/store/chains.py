"""Chains: a job and all that continues it; here they are started.

A start only inserts (DESIGN §4): keys, jobs, links to blockers, events. What it meets is a value, not an error: a
`unique` key that is held, or an id that exists, gives the chain that has it, its *twin*. So a start may be repeated
after an unknown outcome, and a caller's transaction stays usable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from holdfast.crashpoints import reach
from holdfast.errors import Busy, JobNotFound, WrongTask
from holdfast.models import Chain, Start, Unique
from holdfast.store import blockers, events, reads, rows, unique
from holdfast.store.rows import Inserted
from holdfast.store.tx import Tx, repeatable
from holdfast.store.unique import TRIES


@repeatable
async def start(tx: Tx, starts: Sequence[Start]) -> list[Chain[Any]]:
    """Start a chain for each of *starts*, in order; a start that meets its twin is given the twin."""
    asked = _firsts(starts)
    blocking = await blockers.resolve(tx, list(asked.values()))
    twins, met = await _meet(tx, [each for each in asked.values() if each.may_wait])
    new = {id_: each for id_, each in asked.items() if id_ not in twins} if twins else asked
    inserted = {each.id: each for each in await rows.insert(tx, list(new.values()))} if new else {}
    if len(inserted) < len(new):
        found = await _existing(tx, [each for each in new.values() if each.id not in inserted])
        met += await _read(tx, set(found.values()))
        twins |= found
    if blocking:
        await blockers.link(tx, [(each.seq, new[each.id]) for each in inserted.values()], blocking)
    await events.append(tx, [_enqueued(each, new[each.id]) for each in inserted.values()])
    reach("start.before_commit")
    return _answers(starts, twins, inserted, {each.id: each for each in met})


def _firsts(starts: Sequence[Start]) -> dict[UUID, Start]:
    """Give the first of those starts that have one id, by that id."""
    firsts: dict[UUID, Start] = {}
    for each in starts:
        first = firsts.setdefault(each.id, each)
        if first.task != each.task:
            raise WrongTask(each.id, asked=each.task, found=first.task)
    return firsts


async def _meet(tx: Tx, starts: Sequence[Start]) -> tuple[dict[UUID, UUID], list[Chain[Any]]]:
    """Find the twins of *starts* and read them, before anything is inserted that would have to be undone.

    Only a start that names its id or a key can meet one. A twin may be deleted between the statement that finds it and
    the one that reads it; then its place is free.
    """
    if not starts:
        return {}, []
    for _ in range(TRIES):
        twins = await _existing(tx, [each for each in starts if each.named])
        twins |= await _holders(tx, [each for each in starts if each.unique is not None and each.id not in twins])
        own = {each.id for each in starts if each.id not in twins}
        wanted = set(twins.values()) - own
        met = await reads.chains_by_id(tx, list(wanted))
        if wanted == {each.id for each in met}:
            return twins, met
    raise _too_fast()


async def _read(tx: Tx, chain_ids: set[UUID]) -> list[Chain[Any]]:
    met = await reads.chains_by_id(tx, list(chain_ids))
    if chain_ids != {each.id for each in met}:
        raise _too_fast()
    return met


def _too_fast() -> Busy:
    return Busy("chains of this id or key come and go too fast; try again")


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


async def _holders(tx: Tx, starts: Sequence[Start]) -> dict[UUID, UUID]:
    """Take the keys of *starts*; give the holder for each that another chain, or another start, has."""
    wishes: dict[tuple[str, str], unique.Wish] = {}
    for each in starts:
        if each.unique is not None:
            wishes.setdefault((each.task, each.unique.key), unique.Wish(each.task, each.unique, each.id))
    holders = await unique.take(tx, list(wishes.values())) if wishes else {}
    return {
        each.id: holder
        for each in starts
        if each.unique is not None and (holder := holders[each.task, each.unique.key]) != each.id
    }


def _enqueued(job: Inserted, start: Start) -> events.Fact:
    return events.Fact(job.seq, "job:enqueued", status=job.status, version=1, attempt=0, facts=start.facts)


def _answers(
    starts: Sequence[Start],
    twins: dict[UUID, UUID],
    inserted: dict[UUID, Inserted],
    met: dict[UUID, Chain[Any]],
) -> list[Chain[Any]]:
    """Give the chains in the order of the starts; of equal starts in one batch the first is the original."""
    if len(inserted) == len(starts):  # the usual case: nobody met a twin
        return [_new_chain(each, inserted[each.id]) for each in starts]
    answers: list[Chain[Any]] = []
    answered: set[UUID] = set()
    for each in starts:
        place = twins.get(each.id, each.id)
        own = inserted.get(place)
        chain = met[place] if own is None else _new_chain(each, own)
        # an id that we made ourselves exists only when this very start is repeated after an unknown outcome
        twin = place != each.id or place in answered or (own is None and each.named)
        answers.append(replace(chain, deduplicated=twin))
        answered.add(place)
    return answers


def _new_chain(start: Start, own: Inserted) -> Chain[Any]:
    return Chain(own.id, start.task, own.status, own.created_at, last_task=start.task)


FIRSTS = """
    SELECT asked.id, first.id, first.task, first.input, first.queue, first.lane, first.priority, first.tags,
        first.webhook, first.unique_key
    FROM holdfast_job AS asked JOIN holdfast_job AS first ON first.id = asked.chain_id
    WHERE asked.id $any(ids: text)"""


@repeatable
async def start_again(tx: Tx, wanted: Sequence[tuple[UUID, UUID]], facts: Mapping[str, str]) -> list[Chain[Any]]:
    """Start the chains of (job, id of the new chain) anew, in order; raise `JobNotFound` for one that is not there.

    The new chain begins as the old one did: task, input, queue, lane, priority, tags, webhook and unique key. It waits
    neither for a time nor for blockers.
    """
    rows = await tx.fetch_all(FIRSTS, ids=[str(each) for each, _ in wanted])
    found = {UUID(asked): first for asked, *first in rows}
    missing = next((each for each, _ in wanted if each not in found), None)
    if missing is not None:
        raise JobNotFound(missing)
    return await start(tx, [_anew(found[each], new_id, facts) for each, new_id in wanted])


def _anew(first: Sequence[Any], new_id: UUID, facts: Mapping[str, str]) -> Start:
    id_, task, input_, queue, lane, priority, tags, webhook, unique_key = first
    return Start(
        id=new_id,
        task=task,
        input=input_,
        queue=queue,
        lane=lane,
        priority=priority,
        tags=tuple(json.loads(tags)) if tags else (),
        webhook=webhook,
        unique=Unique(unique_key) if unique_key else None,
        facts=json.dumps({"again": id_, **facts}),
    )
