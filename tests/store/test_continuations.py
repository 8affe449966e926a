"""Continuing a chain: one successor, in the commit that completes its predecessor (I-12, I-28, I-36; JC-2, 3, 49)."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from holdfast import BlockerCycle, ChainNotFound, IdTaken, State, Status, StillReferenced, StoreError
from holdfast.errors import LeaseLost
from holdfast.models import Asked, Continuation, JobQuery
from holdfast.outcomes import Kind, Outcome
from holdfast.store import lanes, lists, reads
from holdfast.store.jobs import block_ends, settling
from holdfast.store.jobs.claiming import Want
from holdfast.store.jobs.settling import Settlement
from holdfast.store.reads import Paging
from tests.store.engine import (
    DONE,
    FAIL,
    LEASE_MS,
    admit,
    claim,
    claim_all,
    claim_one,
    come_due,
    drain,
    facts_of,
    lane_rows,
    run,
    settle,
)
from tests.support.conditions import until
from tests.support.factories import a_start, counted, events_of, greet, row_of
from tests.support.ways import Way

EVERYTHING = frozenset({"queue", "priority", "tags", "webhook", "lane"})


def then(inherits: frozenset[str] = EVERYTHING, **given: Any) -> Outcome:
    """Complete, and go on with a job that inherits whatever is not given."""
    chosen = inherits - given.keys()
    return Outcome(Kind.COMPLETE, successor=Continuation(a_start(**given), chosen))


def next_id(outcome: Outcome) -> UUID:
    assert outcome.successor is not None
    return outcome.successor.start.id


# ---- one chain


async def test_a_chain_goes_on_with_its_next_job_in_the_same_commit(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    step = then(input='{"name":"Bob"}')

    await run(way, step)

    job = await way.face.get_job(next_id(step))
    assert (job.chain_id, job.chain_index, job.status, job.input.name) == (chain.id, 1, "pending", "Bob")
    assert (await way.face.get_job(chain.id)).state == "continued"
    assert await row_of(way, chain.id, "closed_as", "output", "finished_at IS NULL") == (None, None, False)


async def test_a_budget_of_attempts_is_of_one_job_and_not_inherited(way: Way) -> None:
    await way.face.start(greet(name="Ada"), attempts=2)
    with_its_own, without = then(attempts=5), then()

    await run(way, with_its_own)
    await run(way, without)

    jobs = [await way.face.get_job(next_id(each)) for each in (with_its_own, without)]
    assert [each.attempts for each in jobs] == [5, None]


@pytest.mark.source("JC-2")
async def test_a_chain_is_open_until_its_last_job_completes_and_has_that_ones_output(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await run(way, then())
    half_way = await way.face.get_chain(chain.id)

    await run(way, Outcome(Kind.COMPLETE, output='"Goodbye"'))

    ended = await way.face.get_chain(chain.id)
    assert (half_way.is_open, half_way.status) == (True, Status.PENDING)
    assert (ended.is_open, ended.status, ended.output) == (False, Status.COMPLETED, "Goodbye")


async def test_the_events_say_what_goes_on_and_when_the_chain_ends(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    step = then()

    await run(way, step)
    await run(way, DONE)

    assert await events_of(way, chain.id) == ["job:enqueued", "job:started", "job:completed"]
    assert await events_of(way, next_id(step)) == ["job:enqueued", "job:started", "job:completed", "chain:completed"]
    assert (await facts_of(way, "job:completed"))[0] == {"continued": str(next_id(step))}


async def test_a_chain_may_go_on_as_often_as_it_likes(way: Way) -> None:
    chain = await way.face.start(greet(name="0"))
    for number in range(1, 6):
        await run(way, then(input=json.dumps({"name": str(number)})))
    await run(way, DONE)

    steps = await way.read(reads.list_chain_jobs, chain.id, Paging())

    assert [json.loads(job.input)["name"] for job in steps] == list("012345")
    assert [job.chain_index for job in steps] == list(range(6))


async def test_a_chain_fails_where_its_last_job_fails_and_goes_on_there_when_it_is_retried(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), unique="ada")
    await run(way, then())
    await run(way, FAIL)
    failed = await way.face.get_chain(chain.id)

    await way.face.retry(chain)
    await run(way, DONE)

    assert (failed.status, (await way.face.get_chain(chain.id)).status) == ("failed", "completed")


async def test_a_job_that_is_to_be_cancelled_has_no_successor(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)
    await way.face.cancel(chain)

    await settle(way, (job.token, then()))

    assert (await way.face.get_chain(chain.id)).status == "cancelled"
    assert len(await way.face.list_jobs()) == 1


async def test_an_attempt_that_lost_its_lease_has_no_successor(way: Way) -> None:
    await way.face.start(greet(name="Ada"))
    job = await claim_one(way)

    settled = await settle(way, (job.token._replace(nonce="another"), then()))

    assert (settled.done, len(settled.lost)) == ([], 1)
    assert len(await way.face.list_jobs()) == 1


async def test_a_key_is_held_until_the_chain_has_ended(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), unique="ada")

    await run(way, then())
    met = await way.face.start(greet(name="Bob"), unique="ada")  # DF-4
    await run(way, DONE)
    free = await way.face.start(greet(name="Bob"), unique="ada")

    assert (met.id, met.deduplicated, met.status) == (chain.id, True, "pending")
    assert (free.id != chain.id, free.deduplicated) == (True, False)


# ---- what is inherited


async def test_what_was_not_chosen_comes_from_the_predecessor(way: Way) -> None:
    url = "https://example.com"
    await way.face.start(greet(name="Ada"), queue="sums", priority=7, tags=["a", "b"], webhook=url, lane="x")
    await admit(way)
    (running,) = await claim(way, wants=[Want("sums", "greet", LEASE_MS)])
    step = then(task="add", input='{"a":1,"b":2}')

    await settle(way, (running.token, step))

    job = await way.face.get_job(next_id(step))
    assert (job.queue, job.priority, job.tags, job.webhook, job.lane) == ("sums", 7, ("a", "b"), url, "x")


async def test_what_was_chosen_goes_before_what_could_be_inherited(way: Way) -> None:
    await way.face.start(greet(name="Ada").options(priority=7, tags=["a"], webhook="https://example.com", lane="x"))
    step = then(queue="sums", priority=-2, tags=("c",), webhook="", lane=None)

    await run(way, step)

    job = await way.face.get_job(next_id(step))
    assert (job.queue, job.priority, job.tags, job.webhook, job.lane) == ("sums", -2, ("c",), None, None)
    assert await row_of(way, next_id(step), "webhook") == ("",)


# ---- time


async def test_a_continuation_may_wait_for_its_time(way: Way) -> None:
    await way.face.start(greet(name="Ada"))
    step = then(delay_ms=3_600_000)
    await run(way, step)
    scheduled = (await way.face.get_job(next_id(step))).state

    early = await claim_all(way)
    await come_due(way)

    assert (scheduled, early) == ("scheduled", [])
    assert UUID((await claim_one(way)).id) == next_id(step)


async def test_a_continuation_may_begin_paused(way: Way) -> None:
    await way.face.start(greet(name="Ada"))
    step = then(paused=True)

    await run(way, step)

    assert ((await way.face.get_job(next_id(step))).status, await claim_all(way)) == ("paused", [])


# ---- lanes


async def in_lane(way: Way, *names: str) -> list[UUID]:
    return [(await way.face.start(greet(name=name), lane="vm-7")).id for name in names]


async def test_in_its_lane_a_continuation_takes_its_predecessors_place(way: Way) -> None:
    first, second = await in_lane(way, "first", "second")
    step = then()

    ran = [await run(way, step), await run(way, DONE), await run(way, DONE)]

    assert ran == [first, next_id(step), second]
    assert await lane_rows(way) == []


async def test_a_continuation_in_a_paused_lane_is_parked_in_its_place(way: Way) -> None:
    _, second = await in_lane(way, "first", "second")
    job = await claim_one(way)
    await way.call(lanes.pause_lane, "vm-7", Asked())
    step = then()

    await settle(way, (job.token, step))
    parked = await row_of(way, next_id(step), "gate", "head")
    nothing = await claim_all(way)
    await way.call(lanes.resume_lane, "vm-7", Asked())

    assert (parked, nothing) == ((None, 1), [])
    assert [await run(way), await run(way)] == [next_id(step), second]


@pytest.mark.parametrize("waits", [{"delay_ms": 3_600_000}, {"lane": "vm-8"}, {"lane": None}, {"paused": True}])
async def test_a_continuation_that_leaves_or_waits_lets_the_lane_go_on(way: Way, waits: dict[str, Any]) -> None:
    _, second = await in_lane(way, "first", "second")
    step = then(**waits)

    await run(way, step)

    assert second in {UUID(job.id) for job in await claim_all(way)}
    assert await row_of(way, next_id(step), "lane") == (waits.get("lane", "vm-7"),)


async def test_a_continuation_that_waits_joins_its_lane_at_the_end(way: Way) -> None:
    _, second = await in_lane(way, "first", "second")
    step = then(delay_ms=3_600_000)
    await run(way, step)
    await come_due(way)

    assert [await run(way), await run(way)] == [second, next_id(step)]


async def test_a_continuation_blocked_by_one_of_its_lane_holds_nobody_back(way: Way) -> None:
    _, second = await in_lane(way, "first", "second")
    step = then(blockers=(second,))
    await run(way, step)

    assert [await run(way), await run(way)] == [second, next_id(step)]


async def test_a_continuation_into_a_lane_from_outside_joins_it(way: Way) -> None:
    (first,) = await in_lane(way, "first")
    await admit(way)
    await way.face.start(greet(name="outside"), priority=100)
    outside = next(job for job in await claim(way) if UUID(job.id) != first)
    step = then(lane="vm-7")

    await settle(way, (outside.token, step))
    await admit(way)

    assert await row_of(way, next_id(step), "gate", "head") == ("lane", 0)


# ---- blockers


async def test_a_continuation_waits_for_its_blockers(way: Way) -> None:
    blocker = await way.face.start(greet(name="blocker"), paused=True)
    chain = await way.face.start(greet(name="Ada"))
    step = then(blockers=(blocker.id, blocker.id))  # DF-23: one chain twice is fine
    await run(way, step)
    await admit(way)
    waiting = await way.face.get_job(next_id(step))

    await way.face.resume(blocker)
    await run(way, DONE)

    assert (waiting.status, waiting.open_blockers) == ("blocked", 2)
    assert (await way.face.get_chain(chain.id)).is_open
    assert await run(way) == next_id(step)
    assert (await way.face.get_chain(chain.id)).status == "completed"


async def test_a_blocker_that_had_closed_before_holds_no_continuation_up(way: Way) -> None:
    blocker = await way.face.start(greet(name="blocker"))
    await run(way, DONE)
    await way.face.start(greet(name="Ada"))
    step = then(blockers=(blocker.id,))
    await run(way, step)

    assert await run(way) == next_id(step)


async def test_fan_out_and_fan_in_with_children_decided_at_run_time(way: Way) -> None:
    await way.face.start(greet(name="parent"))
    parent = await claim_one(way)
    children = await way.face.start_many([greet(name=str(number)) for number in range(30)])
    step = then(blockers=tuple(child.id for child in children))
    await settle(way, (parent.token, step))
    await admit(way)
    claimed = await claim(way, 100)

    await settle(way, *[(job.token, DONE) for job in claimed])

    assert {UUID(job.id) for job in claimed} == {child.id for child in children}
    assert await run(way) == next_id(step)


async def test_a_continuation_that_waits_for_what_is_not_there_is_refused_and_its_job_runs_on(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    beside = await way.face.start(greet(name="Bob"))
    jobs = {UUID(job.id): job for job in await claim_all(way)}
    missing = uuid4()

    settled = await settle(way, (jobs[chain.id].token, then(blockers=(missing,))), (jobs[beside.id].token, then()))

    (error,) = settled.refused.values()
    assert (type(error), settled.done) == (ChainNotFound, [jobs[beside.id].token])
    assert (await way.face.get_job(chain.id)).status == "running"
    assert len(await way.face.list_jobs()) == 3
    await settle(way, (jobs[chain.id].token, FAIL))


async def is_waited_for(connection: psycopg.AsyncConnection[Any], database: str) -> bool:
    """Tell whether somebody waits for what *connection* has locked."""
    waits = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
    async with await psycopg.AsyncConnection.connect(database) as observer:
        cursor = await observer.execute(waits, [connection.info.backend_pid])
        ((count,),) = await cursor.fetchall()
        return bool(count)


@pytest.mark.source("JC-115")
async def test_a_second_job_of_an_id_is_refused_and_its_predecessor_runs_on(way: Way) -> None:
    chains = await way.face.start_many([greet(name=name) for name in ("Ada", "Bob", "Eve")])
    jobs = {UUID(job.id): job.token for job in await claim_all(way)}
    ada, bob, eve = (jobs[chain.id] for chain in chains)
    chosen = uuid4()

    settled = await settle(
        way,
        (ada, then(id=chosen, named=True)),
        (bob, then(id=chosen, named=True)),
        (eve, then(id=chains[0].id, named=True)),
    )

    assert {token: type(error) for token, error in settled.refused.items()} == {bob: IdTaken, eve: IdTaken}
    assert settled.done == [ada]
    assert (await way.face.get_job(chosen)).chain_id == chains[0].id
    assert [(await way.face.get_job(chain)).status for chain in chains[1:]] == ["running", "running"]


async def test_a_job_of_the_same_id_that_commits_meanwhile_is_seen_at_the_next_try(way_pg: Way) -> None:
    await way_pg.face.start(greet(name="Ada"))
    token, chosen = (await claim_one(way_pg)).token, uuid4()
    database = way_pg.hf.settings.database

    async with await psycopg.AsyncConnection.connect(database) as other, other.transaction():
        await way_pg.hf.start(greet(name="Bob"), id=chosen, connection=other)
        under_way = asyncio.create_task(settle(way_pg, (token, then(id=chosen, named=True))))
        await until(lambda: is_waited_for(other, database), "our insert waits for the other's")
    with pytest.raises(StoreError, match="duplicate key"):
        await under_way
    settled = await settle(way_pg, (token, then(id=chosen, named=True)))

    assert [type(error) for error in settled.refused.values()] == [IdTaken]


async def test_what_a_later_step_waits_for_is_deleted_with_its_chain_only(way: Way) -> None:
    blocker = await way.face.start(greet(name="blocker"), paused=True)
    chain = await way.face.start(greet(name="Ada"))
    step = then(blockers=(blocker.id,))
    await run(way, step)
    with pytest.raises(StillReferenced):
        await way.face.delete(blocker)
    await way.face.cancel(next_id(step))
    with pytest.raises(StillReferenced):
        await way.face.delete(blocker)

    assert set(await way.face.delete_many([blocker, chain])) == {blocker.id, chain.id}


async def test_a_cascade_takes_the_blockers_of_every_step_along(way: Way) -> None:
    blocker = await way.face.start(greet(name="blocker"), paused=True)
    chain = await way.face.start(greet(name="Ada"))
    await run(way, then(blockers=(blocker.id,)))
    await admit(way)

    deleted = await way.face.delete(chain, cascade=True)  # DF-5

    assert set(deleted) == {chain.id, blocker.id}
    assert await way.rows("SELECT 1 FROM holdfast_job") == []
    assert await way.rows("SELECT 1 FROM holdfast_blocker") == []


# ---- lists


@pytest.mark.source("DF-24")
async def test_a_continued_job_is_listed_as_such(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await run(way, then())

    page = await way.read(lists.list_jobs, JobQuery(states=(State.CONTINUED,)), Paging())

    assert [job.id for job in page] == [chain.id]


# ---- cost


@pytest.mark.parametrize("features", ["plain", "lane", "blockers"])
async def test_settling_takes_the_same_statements_for_1_10_and_100_continuations(way: Way, features: str) -> None:
    """Q-03, I-62."""
    blocker = await way.face.start(greet(name="blocker"), paused=True)
    counts = []
    for number in (1, 10, 100):
        lanes = [f"{number}-{n}" if features == "lane" else None for n in range(2 * number)]
        await way.face.start_many([greet(name="x").options(lane=lane) for lane in lanes])
        ran = await claim_all(way, f"nonce-{number}")
        blockers = (blocker.id,) if features == "blockers" else ()
        ends = [Settlement(job.token, then(blockers=blockers) if n % 2 else DONE) for n, job in enumerate(ran)]
        assert len(ends) == 2 * number
        counts.append(len(await way.call(counted, settling.settle, ends)))
        await drain(way)

    assert len(set(counts)) == 1


async def test_who_does_not_continue_pays_nothing_for_those_who_could(way: Way) -> None:
    await way.face.start_many([greet(name="x").options(lane=str(n)) for n in range(2)])
    one, two = await claim_all(way)

    plain = await way.call(counted, settling.settle, [Settlement(one.token, DONE)])
    continued = await way.call(counted, settling.settle, [Settlement(two.token, then(lane=None))])

    assert len(continued) == len(plain) - len(set(plain) - set(continued)) + 1


# ---- blocks


async def test_a_block_finishes_its_job(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)
    step = then()

    held = await way.read(block_ends.check, job.token)
    await way.call(block_ends.finish_block, Settlement(job.token, step))

    assert (held, await way.read(block_ends.check, job.token)) == ("held", "completed")
    assert (await way.face.get_job(next_id(step))).chain_id == chain.id


async def test_a_prepared_block_leaves_the_job_as_it_was(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)

    await way.call(block_ends.lock_job, job.token)

    assert (await way.face.get_job(chain.id)).status == "running"


BLOCKS = ["hold_block", "finish_block", "plain finish_block"]


async def end_block(way: Way, block: str, token: Any, outcome: Outcome = DONE) -> None:
    if block == "hold_block":
        await way.call(block_ends.lock_job, token)
    else:
        await way.call(block_ends.finish_block, Settlement(token, outcome, is_plain=block.startswith("plain")))


@pytest.mark.parametrize("block", BLOCKS)
async def test_a_block_of_a_job_that_is_to_be_cancelled_raises(way: Way, block: str) -> None:
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)
    await way.face.cancel(chain)

    with pytest.raises(LeaseLost) as caught:
        await end_block(way, block, job.token)

    assert (caught.value.reason, caught.value.job_id) == ("cancelled", chain.id)
    assert (await way.face.get_job(chain.id)).state == "cancelling"


@pytest.mark.parametrize("block", BLOCKS)
async def test_a_block_of_a_job_that_another_has_taken_raises(way: Way, block: str) -> None:
    await way.face.start(greet(name="Ada"))
    job = await claim_one(way)

    with pytest.raises(LeaseLost) as caught:
        await end_block(way, block, job.token._replace(nonce="another"))

    assert caught.value.reason == "taken_by_another_worker"


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("lane", [None, "vm-7"])
async def test_a_block_of_a_job_that_was_deleted_raises(way: Way, block: str, lane: str | None) -> None:
    chain = await way.face.start(greet(name="Ada"), lane=lane)
    job = await claim_one(way)
    await way.face.delete(chain)

    with pytest.raises(LeaseLost) as caught:
        await end_block(way, block, job.token)

    assert caught.value.reason == "not_found"


@pytest.mark.parametrize("block", BLOCKS[1:])
async def test_a_block_of_a_job_that_is_to_be_paused_completes_it(way: Way, block: str) -> None:
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)
    await way.face.pause(chain)

    await end_block(way, block, job.token)

    assert (await way.face.get_job(chain.id)).status == "completed"


async def test_a_plain_block_leaves_the_row_and_the_events_that_the_long_way_leaves(way: Way) -> None:
    plain, long_way = await way.face.start_many([greet(name="Ada"), greet(name="Ada")])
    tokens = {UUID(job.id): job.token for job in await claim_all(way)}

    await end_block(way, "plain finish_block", tokens[plain.id])
    await end_block(way, "finish_block", tokens[long_way.id])

    columns = ("status", "output", "reason", "error", "gate", "wake_at", "head", "place", "attempt", "used", "nonce",
               "worker", "lease_until", "completed_by", "closed_as", "progress", "version")  # fmt: skip
    assert await row_of(way, plain.id, *columns) == await row_of(way, long_way.id, *columns)
    assert await events_of(way, plain.id) == await events_of(way, long_way.id)


@pytest.mark.parametrize("how", ["key", "dependent"])
async def test_what_only_looked_plain_goes_the_long_way(way: Way, how: str) -> None:
    chain = await way.face.start(greet(name="Ada"), unique="ada" if how == "key" else None)
    job = await claim_one(way)
    dependent = await way.face.start(greet(name="Bob"), blockers=[chain])
    await admit(way)

    await end_block(way, "plain finish_block", job.token)

    again = await way.face.start(greet(name="Ada"), unique="ada")
    assert again.id != chain.id
    assert (await way.face.get_job(dependent.id)).status == "pending"


async def test_a_block_that_waits_for_its_own_chain_raises_and_changes_nothing(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)

    with pytest.raises(BlockerCycle):
        await end_block(way, "finish_block", job.token, then(blockers=(chain.id,)))

    assert (await way.face.get_job(chain.id)).status == "running"
