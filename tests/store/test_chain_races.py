"""Chains in races, step by step on real connections: nothing is lost, nothing happens twice (DF-2, 6; JC-49, 52; I-37).

On PostgreSQL a transaction is left open, another is seen to wait for it or to pass it by, then the first one ends. On
SQLite there is one writer at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

import psycopg
import pytest

from holdfast import Holdfast, StatusConflict, Unique
from holdfast.database.postgres import AsyncPostgresTx
from holdfast.database.tx import Operation
from holdfast.errors import LeaseLost
from holdfast.models import Continuation
from holdfast.outcomes import Kind, Outcome
from holdfast.store import admission
from holdfast.store.chains import blockers, creation, deletes
from holdfast.store.jobs import block_ends, claiming, completing, settling
from holdfast.store.jobs.settling import Settlement
from tests.store import by_hand
from tests.store.engine import DONE, admit, claim_all, claim_one, run, settle
from tests.support.conditions import until
from tests.support.factories import TASKS, a_start, events_of, greet
from tests.support.ways import Way

P = ParamSpec("P")
R = TypeVar("R")


@pytest.fixture
async def way(new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Way]:
    """PostgreSQL, for async code."""
    way = Way(new_holdfast("postgres", tasks=[TASKS]), is_async=True)
    await way.hf.open()
    yield way
    await way.close()


class Actor:
    """Somebody whose transaction stays open until it is told to end."""

    def __init__(self, way: Way, connection: psycopg.AsyncConnection[Any]) -> None:
        self._way = way
        self._connection = connection
        self._under_way: asyncio.Task[Any] | None = None

    async def do(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an operation, having waited for nobody."""
        return await asyncio.wait_for(self._run(operation, *args, **kwargs), 5)

    async def wait_for_others(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> None:
        """Begin an operation, and return when the server says that it waits for another transaction."""
        self._under_way = asyncio.create_task(self._run(operation, *args, **kwargs))
        await until(self._is_waiting, f"{operation.__name__} waits for another transaction")

    async def answer(self) -> Any:
        """Give what the operation that had to wait came to."""
        assert self._under_way is not None
        return await asyncio.wait_for(self._under_way, 5)

    async def commit(self) -> None:
        """End the transaction."""
        await self._connection.commit()

    async def rollback(self) -> None:
        """Undo the transaction."""
        await self._connection.rollback()

    async def close(self) -> None:
        """Go away."""
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)
        await self._connection.close()

    async def _run(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        return await operation(AsyncPostgresTx(self._connection, self._way.hf.store.dialect), *args, **kwargs)

    async def _is_waiting(self) -> bool:
        async with await psycopg.AsyncConnection.connect(self._way.hf.settings.database) as observer:
            pid = self._connection.info.backend_pid
            cursor = await observer.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid])
            ((waiting,),) = await cursor.fetchall()
            return bool(waiting)


@pytest.fixture
async def actor(way: Way) -> AsyncIterator[Callable[[], Any]]:
    """Let somebody come in: `ada = await actor()`."""
    made: list[Actor] = []

    async def come() -> Actor:
        made.append(Actor(way, await psycopg.AsyncConnection.connect(way.hf.settings.database)))
        return made[-1]

    yield come
    for each in reversed(made):
        await each.close()


def then(**given: Any) -> Outcome:
    return Outcome(Kind.COMPLETE, successor=Continuation(a_start(**given)))


def next_id(outcome: Outcome) -> UUID:
    assert outcome.successor is not None
    return outcome.successor.start.id


async def settle_down(way: Way) -> None:
    """Admit until nothing is left to be looked at again."""
    while await way.rows("SELECT 1 FROM holdfast_job WHERE gate = 'arrival' LIMIT 1"):
        await admit(way)


# ---- DF-2: two blockers that close at once


async def test_two_blockers_completed_by_two_callers_at_once_release_the_job_once(way: Way, actor: Any) -> None:
    a, b = await way.face.start_many([greet(name="a"), greet(name="b")])
    waiting = await way.face.start(greet(name="w"), blockers=[a, b])
    await admit(way)
    ada, bob = await actor(), await actor()

    await ada.do(by_hand.complete, a.id)
    await bob.do(by_hand.complete, b.id)
    await ada.commit()
    await bob.commit()
    await settle_down(way)

    assert (await way.face.get_job(waiting.id)).status == "pending"
    assert (await events_of(way, waiting.id)).count("job:unblocked") == 1


async def test_the_last_steps_of_two_blockers_settled_at_once_release_the_continuation_once(
    way: Way, actor: Any
) -> None:
    a, b, parent = await way.face.start_many([greet(name=name) for name in "abp"])
    first = {UUID(job.id): job.token for job in await claim_all(way)}
    step = then(blockers=(a.id, b.id))
    await settle(way, (first[a.id], then()), (first[b.id], then()), (first[parent.id], step))
    await admit(way)
    one, two = await claim_all(way, "last steps")
    ada, bob = await actor(), await actor()

    await ada.do(settling.settle, [Settlement(one.token, DONE)])
    await bob.do(settling.settle, [Settlement(two.token, DONE)])
    await ada.commit()
    await bob.commit()
    await settle_down(way)

    assert (await events_of(way, next_id(step))).count("job:unblocked") == 1
    assert await run(way) == next_id(step)


# ---- JC-52: a dependent comes while its blocker closes


@pytest.mark.parametrize("first", ["continuation", "close"])
async def test_a_continuation_whose_blocker_closes_at_the_same_time_is_not_stranded(
    way: Way, actor: Any, first: str
) -> None:
    blocker, parent = await way.face.start_many([greet(name="b"), greet(name="p")])
    ran = {UUID(job.id): job.token for job in await claim_all(way)}
    step = then(blockers=(blocker.id,))
    ada, bob = await actor(), await actor()

    await ada.do(settling.settle, [Settlement(ran[parent.id], step)])
    await bob.do(settling.settle, [Settlement(ran[blocker.id], DONE)])
    for each in (ada, bob) if first == "continuation" else (bob, ada):
        await each.commit()
        await admit(way)
    await settle_down(way)

    assert await run(way) == next_id(step)


async def test_a_continuation_that_is_counted_while_its_blocker_closes_is_not_stranded(way: Way, actor: Any) -> None:
    blocker, parent = await way.face.start_many([greet(name="b"), greet(name="p")])
    ran = {UUID(job.id): job.token for job in await claim_all(way)}
    step = then(blockers=(blocker.id,))
    await settle(way, (ran[parent.id], step))
    ada, bob = await actor(), await actor()

    await ada.do(settling.settle, [Settlement(ran[blocker.id], DONE)])
    await bob.do(admission.admit, "default")  # finds the blocker locked, and looks again later
    await bob.commit()
    await ada.commit()
    await settle_down(way)

    assert await run(way) == next_id(step)


# ---- DF-6: a ring closed by two at once


@pytest.mark.parametrize("counted", ["together", "one after the other"])
async def test_a_ring_closed_in_two_open_transactions_fails_when_it_is_counted(
    way: Way, actor: Any, counted: str
) -> None:
    a, b = await way.face.start_many([greet(name="a"), greet(name="b")])
    ran = {UUID(job.id): job.token for job in await claim_all(way)}
    of_a, of_b = then(blockers=(b.id,)), then(blockers=(a.id,))
    ada, bob = await actor(), await actor()

    settled = [
        await ada.do(settling.settle, [Settlement(ran[a.id], of_a)]),
        await bob.do(settling.settle, [Settlement(ran[b.id], of_b)]),
    ]
    await ada.commit()
    if counted == "one after the other":
        await admit(way)
    await bob.commit()
    await settle_down(way)

    assert [each.refused for each in settled] == [{}, {}]
    jobs = [await way.face.get_job(next_id(each)) for each in (of_a, of_b)]
    assert [job.status for job in jobs] == ["failed", "failed"]
    assert blockers.CYCLE in {job.reason for job in jobs}
    assert [(await way.face.get_chain(each.id)).status for each in (a, b)] == ["failed", "failed"]


# ---- JC-49, I-37: two who complete one job


async def test_a_block_that_comes_after_somebody_who_completed_its_job_learns_it(way: Way, actor: Any) -> None:
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)
    person, worker = await actor(), await actor()
    step = Continuation(a_start())
    await person.do(by_hand.complete, chain.id, None, step)
    await worker.wait_for_others(block_ends.finish_block, Settlement(job.token, then()))

    await person.commit()

    with pytest.raises(LeaseLost) as caught:
        await worker.answer()
    await worker.rollback()
    assert (caught.value.job_id, caught.value.reason) == (chain.id, "already_completed")
    steps = await way.rows("SELECT id FROM holdfast_job WHERE chain_index = 1")
    assert steps == [(str(step.start.id),)]


async def test_a_block_goes_on_if_whoever_completed_its_job_rolls_back(way: Way, actor: Any) -> None:
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)
    person, worker = await actor(), await actor()
    step = then()
    await person.do(by_hand.complete, chain.id)
    await worker.wait_for_others(block_ends.finish_block, Settlement(job.token, step))

    await person.rollback()
    await worker.answer()
    await worker.commit()

    assert await way.rows("SELECT id FROM holdfast_job WHERE chain_index = 1") == [(str(next_id(step)),)]


async def test_a_person_who_comes_after_a_block_finds_the_next_job(way: Way, actor: Any) -> None:
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)
    person, worker = await actor(), await actor()
    step = then()
    await worker.do(block_ends.finish_block, Settlement(job.token, step))
    await person.wait_for_others(completing.lock_current, chain.id)

    await worker.commit()

    assert (await person.answer()).job.id == next_id(step)


async def test_a_person_who_comes_after_the_end_is_told_that_it_has_completed(way: Way, actor: Any) -> None:
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)
    person, worker = await actor(), await actor()
    await worker.do(block_ends.finish_block, Settlement(job.token, DONE))
    await person.wait_for_others(by_hand.complete, chain.id)

    await worker.commit()

    with pytest.raises(StatusConflict) as caught:
        await person.answer()
    assert caught.value.status == "completed"


@pytest.mark.source("JC-49")
async def test_of_two_people_who_complete_one_job_the_second_is_told(way: Way, actor: Any) -> None:
    chain = await way.face.start(greet(name="Ada"))
    ada, bob = await actor(), await actor()
    await ada.do(by_hand.complete, chain.id, '"ada"')
    await bob.wait_for_others(by_hand.complete, chain.id, '"bob"')

    await ada.commit()

    with pytest.raises(StatusConflict):
        await bob.answer()
    assert (await way.face.get_chain(chain.id)).output == "ada"


async def test_a_batch_leaves_a_job_alone_that_a_person_is_just_completing(way: Way, actor: Any) -> None:
    chain, beside = await way.face.start_many([greet(name="Ada"), greet(name="beside")])
    ran = {UUID(job.id): job.token for job in await claim_all(way)}
    person, worker = await actor(), await actor()
    ends = [Settlement(ran[chain.id], then()), Settlement(ran[beside.id], then())]

    await person.do(by_hand.complete, chain.id)
    during = await worker.do(settling.settle, ends)
    await worker.commit()
    await person.commit()
    after = await worker.do(settling.settle, during.busy)
    await worker.commit()

    assert (during.done, during.busy) == ([ran[beside.id]], [ends[0]])
    assert after.lost == {ran[chain.id]: "completed"}
    assert await way.rows("SELECT count(*) FROM holdfast_job WHERE chain_id = :id", id=str(chain.id)) == [(1,)]


async def test_a_cancel_that_commits_while_user_code_runs_undoes_the_block(way: Way, actor: Any) -> None:
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)
    worker = await actor()
    opened = await worker.do(block_ends.check, job.token)

    await asyncio.wait_for(way.face.cancel(chain), 5)  # the block that is open locks nothing yet

    with pytest.raises(LeaseLost, match="cancelled"):
        await worker.do(block_ends.finish_block, Settlement(job.token, then()))
    await worker.rollback()
    assert (opened, len(await way.face.list_jobs())) == ("held", 1)


async def test_a_renewal_is_not_held_up_by_an_open_block(way: Way, actor: Any) -> None:
    await way.face.start(greet(name="Ada"))
    job = await claim_one(way)
    worker = await actor()
    await worker.do(block_ends.check, job.token)

    renewed = await asyncio.wait_for(way.call(claiming.renew, [job.token]), 5)

    assert renewed == {job.token: "held"}


# ---- a chain that goes on while it is deleted


async def test_a_chain_that_goes_on_while_it_is_deleted_is_deleted_whole(way: Way, actor: Any) -> None:
    blocker = await way.face.start(greet(name="blocker"), paused=True)
    chain = await way.face.start(greet(name="Ada"), unique="ada")
    job = await claim_one(way)
    worker, person = await actor(), await actor()
    await worker.do(settling.settle, [Settlement(job.token, then(blockers=(blocker.id,)))])
    await person.wait_for_others(deletes.delete, [chain.id], cascade=True)

    await worker.commit()
    deleted = await person.answer()
    await person.commit()

    assert set(deleted) == {chain.id, blocker.id}
    assert await way.rows("SELECT id FROM holdfast_job") == []
    assert await way.rows("SELECT job FROM holdfast_blocker") == []


# ---- lanes


async def test_a_continuation_whose_lane_somebody_has_locked_is_brought_back_by_admission(way: Way, actor: Any) -> None:
    await way.face.start(greet(name="first"), lane="vm-7")
    second = await way.face.start(greet(name="second"), lane="vm-7")
    job = await claim_one(way)
    step = Outcome(Kind.COMPLETE, successor=Continuation(a_start(), frozenset({"lane"})))
    stranger, worker = await actor(), await actor()

    await stranger.do(_lock_lane, "vm-7")
    await worker.do(settling.settle, [Settlement(job.token, step)])
    await worker.commit()
    nothing = await claim_all(way)
    await stranger.commit()
    await settle_down(way)

    assert nothing == []
    assert [await run(way), await run(way)] == [next_id(step), second.id]


async def _lock_lane(tx: Any, key: str) -> None:
    await tx.execute("SELECT 1 FROM holdfast_lane WHERE key = :key $locked", key=key)


# ---- a key that is handed over


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_whoever_waits_for_a_key_that_is_handed_over_meets_who_has_it_then(
    way: Way, actor: Any, ending: str
) -> None:
    old = await way.face.start(greet(name="old"), unique="same")
    heir = a_start(unique=Unique("same"))
    handler, third = await actor(), await actor()
    await handler.do(creation.start, [heir], from_chain=old.id)
    await third.wait_for_others(creation.start, [a_start(unique=Unique("same"))])

    await (handler.commit() if ending == "commit" else handler.rollback())
    (started,) = await third.answer()
    await third.commit()

    assert (started.met.id, started.met.deduplicated) == (heir.id if ending == "commit" else old.id, True)
