"""Deleting: whole chains with everything of theirs, or nothing at all."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast import ChainNotFound, JobNotFound, Status, StillReferenced
from holdfast.database.tx import Tx
from holdfast.models import INTERNAL_QUEUE, Asked
from holdfast.store.chains import deletes
from holdfast.store.jobs import steering
from holdfast.store.log import events
from tests.store.engine import admit, claim_one, make_deliveries
from tests.support.factories import (
    block,
    continue_chain,
    counted,
    greet,
    make_job,
    make_phase,
    seq_of,
    whole_store,
)
from tests.support.ways import Way


async def remaining(way: Way) -> set[UUID]:
    return {UUID(id_) for (id_,) in await way.rows("SELECT id FROM holdfast_job")}


async def waiting_for(way: Way, *chains: UUID, status: str = "blocked") -> UUID:
    """Make a job that waits for *chains*."""
    job_id = await make_job(way, status)
    await block(way, job_id, *chains)
    return job_id


async def test_a_deleted_chain_is_gone(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))

    assert await way.face.delete(chain) == [chain.id]

    with pytest.raises(JobNotFound):
        await way.face.get_job(chain)


@pytest.mark.source("JC-12")
async def test_a_chain_is_deleted_whole_whichever_of_its_jobs_is_named(way: Way) -> None:
    first = await make_job(way)
    second = await continue_chain(way, first)
    await continue_chain(way, first)
    other = await make_job(way)

    assert await way.face.delete(second) == [first]

    assert await remaining(way) == {other}


@pytest.mark.parametrize("status", Status)
async def test_a_job_can_be_deleted_in_every_status(way: Way, status: Status) -> None:
    job_id = await make_job(way, status)

    assert await way.face.delete(job_id) == [job_id]

    assert await remaining(way) == set()


async def test_phases_and_links_go_with_their_job(way: Way) -> None:
    blocker = await make_job(way)
    job_id = await waiting_for(way, blocker)
    await make_phase(way, job_id, "download")

    await way.face.delete(job_id)

    assert await way.rows("SELECT 1 FROM holdfast_phase UNION ALL SELECT 1 FROM holdfast_blocker") == []


async def test_its_history_and_its_deliveries_go_with_a_job(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), webhook="https://example.com/hook")
    await way.face.cancel(chain)
    await make_deliveries(way)
    kept = await way.face.start(greet(name="Bob"))

    await way.face.delete(chain)

    events = await way.rows("SELECT name FROM holdfast_event WHERE job <> 0 ORDER BY seq")
    assert [name for (name,) in events] == [
        "job:enqueued",
        "job:enqueued",
    ]  # of the delivery, which goes on, and of Bob
    assert await way.rows("SELECT 1 FROM holdfast_delivery") == []
    assert (await way.face.get_job(kept)).status == "pending"


@pytest.mark.parametrize("columns", [{"history": 0}, {"queue": INTERNAL_QUEUE}], ids=str)
async def test_what_keeps_no_history_and_what_is_the_engines_own_goes_in_silence(way: Way, columns: Any) -> None:
    job_id = await make_job(way, **columns)

    await way.face.delete(job_id)

    assert await way.rows("SELECT name FROM holdfast_event") == []


async def test_a_delete_is_logged_with_what_readers_know_each_job_by(way: Way) -> None:
    """I-58: the wire has the id alone; streams that are narrowed to a chain, a task or a lane need the rest."""
    first = await make_job(way, lane="vm-7")
    second = await continue_chain(way, first)
    seqs = {await seq_of(way, first), await seq_of(way, second)}

    await way.face.delete(first)

    rows = await way.rows("SELECT job, name, status, version, attempt, facts FROM holdfast_event ORDER BY seq")
    assert [row[:5] for row in rows] == [(0, "job:deleted", None, None, None)] * 2
    facts = [json.loads(row[5]) for row in rows]
    assert [each["id"] for each in facts] == [str(first), str(second)]
    assert {each.pop("seq") for each in facts} == seqs
    assert [{**each, "id": ""} for each in facts] == [
        {"id": "", "chain_id": str(first), "task": "greet", "lane": "vm-7"},
        {"id": "", "chain_id": str(first), "task": "greet"},
    ]


async def test_deleting_what_is_not_there_is_refused(way: Way) -> None:
    missing = uuid4()

    with pytest.raises(ChainNotFound) as refused:
        await way.face.delete(missing)

    assert refused.value.chain_id == missing


async def test_deleting_many_passes_over_what_is_not_there(way: Way) -> None:
    one, other = await make_job(way), await make_job(way)

    assert await way.face.delete_many([uuid4(), one, uuid4(), other, one]) == [one, other]

    assert await remaining(way) == set()


async def test_deleting_nothing_deletes_nothing(way: Way) -> None:
    kept = await make_job(way)

    assert await way.face.delete_many([]) == []

    assert await remaining(way) == {kept}


async def test_a_chain_that_an_open_job_waits_for_is_not_deleted_and_every_reference_is_listed(way: Way) -> None:
    blocker = await make_job(way)
    waiting = [await waiting_for(way, blocker), await waiting_for(way, blocker, status="paused")]
    before = await whole_store(way)

    with pytest.raises(StillReferenced) as refused:
        await way.face.delete(blocker)

    assert refused.value.references == ((blocker, waiting[0]), (blocker, waiting[1]))
    assert await whole_store(way) == before


async def test_one_referenced_chain_keeps_all_of_a_set(way: Way) -> None:
    blocker, other = await make_job(way), await make_job(way)
    await waiting_for(way, blocker)
    before = await whole_store(way)

    with pytest.raises(StillReferenced):
        await way.face.delete_many([other, blocker])

    assert await whole_store(way) == before


async def test_a_later_step_that_waits_is_a_reference_too(way: Way) -> None:
    blocker, first = await make_job(way), await make_job(way)
    second = await continue_chain(way, first, "blocked")
    await block(way, second, blocker)

    with pytest.raises(StillReferenced) as refused:
        await way.face.delete(blocker)

    assert refused.value.references == ((blocker, second),)


@pytest.mark.parametrize(("status", "columns"), [("completed", {}), ("failed", {"stale_at": 1})])
async def test_a_job_that_needs_no_retry_keeps_nothing_from_being_deleted(way: Way, status: str, columns: Any) -> None:
    blocker = await make_job(way, "completed")
    finished = await make_job(way, status, **columns)
    await block(way, finished, blocker)

    await way.face.delete(blocker)

    assert await remaining(way) == {finished}


@pytest.mark.parametrize("status", ["failed", "cancelled"])
@pytest.mark.source("JC-63")
async def test_what_a_job_would_need_for_its_retry_is_not_deleted_alone(way: Way, status: str) -> None:
    blocker = await make_job(way, "completed")
    ended = await waiting_for(way, blocker, status=status)
    before = await whole_store(way)

    with pytest.raises(StillReferenced) as refused:
        await way.face.delete(blocker)

    assert refused.value.references == ((blocker, ended),)
    assert await whole_store(way) == before
    assert set(await way.face.delete_many([blocker, ended])) == {blocker, ended}


async def test_a_chain_and_who_waits_for_it_are_deleted_together(way: Way) -> None:
    blocker = await make_job(way)
    waiting = await waiting_for(way, blocker)

    assert set(await way.face.delete_many([blocker, waiting])) == {blocker, waiting}

    assert await remaining(way) == set()


async def test_a_step_that_waits_for_another_chain_of_the_set_is_no_reference(way: Way) -> None:
    blocker, first = await make_job(way), await make_job(way)
    second = await continue_chain(way, first, "blocked")
    await block(way, second, blocker)

    assert set(await way.face.delete_many([blocker, first])) == {blocker, first}


async def test_without_cascade_what_a_chain_waits_for_stays(way: Way) -> None:
    blocker = await make_job(way)
    waiting = await waiting_for(way, blocker)

    assert await way.face.delete(waiting) == [waiting]

    assert await remaining(way) == {blocker}


async def test_cascade_deletes_what_a_chain_waits_for_and_so_on(way: Way) -> None:
    """I-58."""
    deepest = await make_job(way)
    middle = await waiting_for(way, deepest)
    top = await waiting_for(way, middle)
    other = await make_job(way)

    assert set(await way.face.delete(top, cascade=True)) == {deepest, middle, top}

    assert await remaining(way) == {other}


@pytest.mark.source("DF-5")
async def test_cascade_follows_the_blockers_of_later_steps(way: Way) -> None:
    blocker, first = await make_job(way), await make_job(way)
    second = await continue_chain(way, first, "blocked")
    await block(way, second, blocker)

    assert set(await way.face.delete(first, cascade=True)) == {first, blocker}

    assert await remaining(way) == set()


async def test_cascade_deletes_the_later_steps_of_what_it_finds(way: Way) -> None:
    blocker = await make_job(way)
    await continue_chain(way, blocker)
    top = await waiting_for(way, blocker)

    await way.face.delete(top, cascade=True)

    assert await remaining(way) == set()


@pytest.mark.source("JC-64")
async def test_cascade_takes_a_diamond_once(way: Way) -> None:
    bottom = await make_job(way)
    left, right = await waiting_for(way, bottom), await waiting_for(way, bottom)
    top = await waiting_for(way, left, right)

    deleted = await way.face.delete(top, cascade=True)

    assert sorted(deleted) == sorted([bottom, left, right, top])
    assert await way.rows("SELECT name FROM holdfast_event") == [("job:deleted",)] * 4


async def test_cascade_deletes_nothing_if_an_outsider_waits_for_part_of_it(way: Way) -> None:
    """I-58."""
    bottom = await make_job(way)
    top, outsider = await waiting_for(way, bottom), await waiting_for(way, bottom)
    before = await whole_store(way)

    with pytest.raises(StillReferenced) as refused:
        await way.face.delete(top, cascade=True)

    assert refused.value.references == ((bottom, outsider),)
    assert await whole_store(way) == before


async def test_a_delete_takes_as_many_statements_for_a_hundred_chains_as_for_one(way: Way) -> None:
    made = [
        chain.id for chain in await way.face.start_many([greet(name="x").options(unique=str(n)) for n in range(101)])
    ]

    few = await way.call(counted, deletes.delete, made[:1])
    many = await way.call(counted, deletes.delete, made[1:])

    assert few == many
    assert await remaining(way) == set()


# ---- a lane's head leaves a tombstone


async def head_of(way: Way, lane: str, status: str = "running", **columns: Any) -> UUID:
    return await make_job(way, status, lane=lane, head=1, place=1, **columns)


async def test_a_deleted_head_of_a_lane_stays_until_admission_has_promoted_the_next(way: Way) -> None:
    """I-12."""
    await head_of(way, "vm-7", input='{"name":"secret"}', output='"secret"', unique_key="key")

    await way.face.delete_many([job.id for job in await way.face.list_jobs()])

    columns = "lane, head, place, status, gate, input, output, unique_key, worker, lease_until, closed_as"
    assert await way.rows(f"SELECT {columns} FROM holdfast_job") == [
        ("vm-7", 0, None, "cancelled", "arrival", "{}", None, None, None, None, "deleted")
    ]


async def test_a_tombstone_is_an_arrival_of_its_queue_that_is_due(way: Way) -> None:
    head = await head_of(way, "vm-7", queue="disks")

    await way.face.delete(head)

    due = "SELECT queue FROM holdfast_job WHERE gate = 'arrival' AND wake_at <= $now"
    assert await way.rows(due) == [("disks",)]


async def test_a_tombstone_is_hidden_from_every_read(way: Way) -> None:
    head = await head_of(way, "vm-7")

    await way.face.delete(head)

    assert (await way.face.list_jobs()).items == ()
    assert (await way.face.list_jobs(status="cancelled", lane="vm-7")).items == ()
    assert (await way.face.list_chains()).items == ()
    assert (await way.face.list_chains(is_open=False, status="cancelled")).items == ()
    for read in (way.face.get_chain, way.face.list_chain_jobs, way.face.delete):
        with pytest.raises(ChainNotFound):
            await read(head)
    with pytest.raises(JobNotFound):
        await way.face.get_job(head)


async def test_a_later_step_that_was_the_head_is_hidden_too(way: Way) -> None:
    first = await make_job(way)
    await continue_chain(way, first, "running", lane="vm-7", head=1, place=1)

    assert await way.face.delete(first) == [first]

    assert (await way.face.list_jobs()).items == ()
    assert (await way.face.list_chains()).items == ()


async def test_the_id_of_a_deleted_head_can_be_started_again(way: Way) -> None:
    head = await head_of(way, "vm-7")
    await way.face.delete(head)

    again = await way.face.start(greet(name="Ada"), id=head)

    assert (again.id, again.deduplicated) == (head, False)
    assert [job.id for job in await way.face.list_jobs()] == [head]


async def test_a_head_can_be_deleted_twice_under_one_id(way: Way) -> None:
    head = await head_of(way, "vm-7")
    await way.face.delete(head)
    await head_of(way, "vm-8", id=head)

    assert await way.face.delete(head) == [head]


async def test_a_job_behind_the_head_leaves_nothing(way: Way) -> None:
    behind = await make_job(way, lane="vm-7", gate="lane", place=2)

    await way.face.delete(behind)

    assert await remaining(way) == set()


async def test_a_head_with_phases_and_links_keeps_none(way: Way) -> None:
    head = await head_of(way, "vm-7")
    await make_phase(way, head, "download")

    await way.face.delete(head)

    assert await way.rows("SELECT 1 FROM holdfast_phase") == []


async def test_who_has_just_left_its_lane_stays_until_admission_has_promoted_the_next(way: Way) -> None:
    first, second = [await way.face.start(greet(name=name), lane="vm-7") for name in ("Ada", "Bob")]
    await admit(way)

    await way.call(_cancel_and_delete, [first.id])
    await admit(way)

    assert await remaining(way) == {second.id}
    assert UUID((await claim_one(way)).id) == second.id


async def _cancel_and_delete(tx: Tx, ids: list[UUID]) -> None:
    """Do as a caller may in one transaction, where the lane is left to admission."""
    await steering.cancel(tx, ids, Asked())
    await deletes.delete(tx, ids)


@pytest.mark.source("JC-64", "DF-10")
@pytest.mark.parametrize(("status", "hint"), [("running", "$hint"), ("pending", "$hint_sleepers")])
async def test_the_handler_of_a_deleted_job_is_told_at_once(way: Way, status: str, hint: str) -> None:
    job_id = await make_job(way, status)

    statements = await way.call(counted, deletes.delete, [job_id])

    assert events.APPEND[hint] in statements
