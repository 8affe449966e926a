"""Completing without a worker: from every open state, once, with all that follows from it (I-12, I-37; JC-54)."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast import BlockerCycle, ChainNotFound, JobNotFound, StatusConflict, Unique, UniqueConflict
from holdfast.database.tx import Tx
from holdfast.models import Asked, Continuation, Job
from holdfast.outcomes import Kind, Outcome
from holdfast.store import lanes
from holdfast.store.chains import creation, deletes
from holdfast.store.jobs import claiming, completing, steering
from holdfast.store.jobs.completing import Current
from holdfast.store.log import events
from tests.store import by_hand
from tests.store.engine import DONE, FAIL, admit, claim_all, claim_one, come_due, facts_of, lane_rows, run, settle
from tests.support.factories import a_start, counted, events_of, greet, make_job, make_phase, row_of, whole_store
from tests.support.ways import Way

NOBODY = Asked()
EVERYTHING = frozenset({"queue", "priority", "tags", "webhook", "lane"})


def then(**given: Any) -> Continuation:
    """Go on with a job that inherits whatever is not given."""
    return Continuation(a_start(**given), EVERYTHING - given.keys())


async def complete(way: Way, job_id: UUID, output: str = '"by hand"', asked: Asked = NOBODY) -> Job:
    """Complete on our own connection."""
    return await way.call(by_hand.complete_at_once, job_id, output, asked=asked)


async def go_on(way: Way, job_id: UUID, successor: Continuation) -> Job:
    """Complete on our own connection, and go on."""
    return await way.call(by_hand.complete_at_once, job_id, None, successor)


# ---- from every state


@pytest.mark.source("JC-11", "JC-57", "TQ-26")
@pytest.mark.parametrize("status", ["blocked", "pending", "running", "paused", "failed"])
async def test_an_open_or_failed_job_is_completed(way: Way, status: str) -> None:
    job_id = await make_job(way, status)

    job = await complete(way, job_id, asked=Asked("ada", "approved"))

    assert (job.id, job.status, job.output, job.completed_by) == (job_id, "completed", '"by hand"', None)
    assert (job.worker, job.lease_until, job.reason, job.error) == (None, None, None, None)
    assert await row_of(way, job_id, "closed_as", "gate", "head") == ("completed", None, 0)
    assert await events_of(way, job_id) == ["job:completed", "chain:completed"]
    assert await facts_of(way, "job:completed") == [{"by": "ada", "reason": "approved"}]


async def test_a_job_that_is_not_due_is_completed(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), delay=3600)

    await complete(way, chain.id)

    assert (await way.face.get_chain(chain.id)).output == "by hand"
    await come_due(way)
    assert await claim_all(way) == []


@pytest.mark.source("JC-57")
@pytest.mark.parametrize("status", ["completed", "cancelled"])
async def test_what_has_ended_cannot_be_completed(way: Way, status: str) -> None:
    job_id = await make_job(way, status)
    before = await whole_store(way)

    with pytest.raises(StatusConflict) as caught:
        await complete(way, job_id)

    assert (caught.value.job_id, caught.value.status) == (job_id, status)
    assert await whole_store(way) == before


async def test_a_job_that_is_not_there_cannot_be_completed(way: Way) -> None:
    with pytest.raises(JobNotFound):
        await complete(way, uuid4())


async def test_a_cancelling_job_may_still_be_completed_by_a_person(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)
    await way.face.cancel(chain)

    await complete(way, chain.id)
    settled = await settle(way, (job.token, DONE))

    assert settled.lost == {job.token: "completed"}
    assert (await way.face.get_job(chain.id)).state == "completed"


async def test_unfinished_phases_go_with_the_job(way: Way) -> None:
    job_id = await make_job(way, "failed")
    await make_phase(way, job_id, "done")
    await way.call(_unfinished_phase, job_id)

    await complete(way, job_id)

    assert await way.rows("SELECT status FROM holdfast_phase ORDER BY position") == [("completed",), ("cancelled",)]


async def _unfinished_phase(tx: Tx, job_id: UUID) -> None:
    sql = """INSERT INTO holdfast_phase (job, position, name, status)
        SELECT seq, 1, 'next', 'running' FROM holdfast_job WHERE id = :id"""
    await tx.execute(sql, id=str(job_id))


# ---- looking


async def test_looking_changes_nothing(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), unique="ada", lane="vm-7")
    await admit(way)
    before = await whole_store(way)

    found = await way.call(completing.lock_current, chain.id)

    assert (found.job.id, json.loads(found.job.input)) == (chain.id, {"name": "Ada"})
    assert await whole_store(way) == before


async def test_a_look_by_any_id_of_the_chain_finds_its_current_job(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    step = then()
    await go_on(way, chain.id, step)

    found = [await way.call(completing.lock_current, each) for each in (chain.id, step.start.id)]

    assert [each.job.id for each in found] == [step.start.id, step.start.id]


# ---- the running handler


async def test_a_worker_whose_job_was_completed_learns_it(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)

    await complete(way, chain.id)

    assert await way.read(claiming.claim_states, [job.token]) == {job.token: claiming.ClaimState.COMPLETED}
    assert (await settle(way, (job.token, FAIL))).lost == {job.token: claiming.ClaimState.COMPLETED}
    assert (await way.face.get_chain(chain.id)).output == "by hand"


@pytest.mark.source("JC-35")
@pytest.mark.parametrize(("status", "hint"), [("running", "$hint"), ("pending", "$hint_sleepers")])
async def test_a_running_handler_is_told_at_once(way: Way, status: str, hint: str) -> None:
    job_id = await make_job(way, status)

    statements = await way.call(counted, by_hand.complete, job_id)

    assert events.APPEND[hint] in statements


# ---- keys


async def test_the_key_is_freed_with_the_chain(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), unique="ada")
    await go_on(way, chain.id, then())
    held = await way.face.start(greet(name="Bob"), unique="ada")
    await complete(way, chain.id)

    free = await way.face.start(greet(name="Bob"), unique="ada")

    assert (held.id == chain.id, free.id == chain.id) == (True, False)


async def test_a_failed_chain_that_is_to_go_on_takes_its_key_again(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), unique="ada")
    await run(way, FAIL)

    await go_on(way, chain.id, then())
    met = await way.face.start(greet(name="Bob"), unique="ada")

    assert met.id == chain.id
    assert (await way.face.get_chain(chain.id)).is_open


async def test_a_failed_chain_whose_key_another_has_cannot_go_on_but_can_be_completed(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), unique="ada")
    await run(way, FAIL)
    twin = await way.face.start(greet(name="Bob"), unique="ada", paused=True)
    before = await whole_store(way)

    with pytest.raises(UniqueConflict) as caught:
        await go_on(way, chain.id, then())

    assert caught.value.twin == twin.id
    assert await whole_store(way) == before
    await complete(way, chain.id)
    assert (await way.face.start(greet(name="Cy"), unique="ada")).id == twin.id


# ---- lanes


async def in_lane(way: Way, *names: str) -> list[UUID]:
    ids = [(await way.face.start(greet(name=name), lane="vm-7")).id for name in names]
    await admit(way)
    return ids


@pytest.mark.parametrize("state", ["ready", "running", "failed", "paused"])
async def test_completing_the_head_lets_its_lane_go_on_in_that_commit(way: Way, state: str) -> None:
    first, second = await in_lane(way, "first", "second")
    if state in ("running", "failed"):
        job = await claim_one(way)
        await settle(way, *([(job.token, FAIL)] if state == "failed" else []))
    if state == "paused":
        await way.face.pause(first)

    await complete(way, first)

    assert await row_of(way, second, "gate", "head") == ("ready", 1)
    freed = [facts["job"] for facts in await facts_of(way, "lane:resumed")]
    assert freed == ([str(first)] if state in ("failed", "paused") else [])


async def test_completing_a_job_behind_the_head_leaves_the_others_in_their_order(way: Way) -> None:
    first, second, third = await in_lane(way, "first", "second", "third")

    await complete(way, second)

    assert [await run(way), await run(way)] == [first, third]
    assert await lane_rows(way) == []


@pytest.mark.parametrize("which", [0, 1])
async def test_what_goes_on_in_its_lane_takes_the_place(way: Way, which: int) -> None:
    ids = await in_lane(way, "first", "second", "third")
    step = then()

    await go_on(way, ids[which], step)

    expected = [step.start.id if n == which else each for n, each in enumerate(ids)]
    assert [await run(way) for _ in expected] == expected


async def test_what_goes_on_in_a_paused_lane_is_parked(way: Way) -> None:
    (first,) = await in_lane(way, "first")
    await way.call(lanes.pause_lane, "vm-7", NOBODY)
    step = then()

    await go_on(way, first, step)
    nothing = await claim_all(way)
    await way.call(lanes.resume_lane, "vm-7", NOBODY)

    assert nothing == []
    assert await run(way) == step.start.id


async def test_a_callers_transaction_leaves_the_lane_to_admission(way: Way) -> None:
    first, second = await in_lane(way, "first", "second")
    step = then()

    await way.call(by_hand.complete, first, None, step)

    assert await row_of(way, step.start.id, "gate", "head") == ("arrival", 1)
    assert [await run(way), await run(way)] == [step.start.id, second]


# ---- those who wait


@pytest.mark.source("JC-51")
async def test_completing_a_blocker_releases_its_dependents_in_that_commit(way: Way) -> None:
    blocker = await way.face.start(greet(name="blocker"), delay=3600)
    waiting = await way.face.start(greet(name="waiting"), blockers=[blocker])
    await admit(way)

    await complete(way, blocker.id)

    assert (await way.face.get_job(waiting.id)).status == "pending"


async def test_completing_the_last_step_of_a_blocker_releases_its_dependents(way: Way) -> None:
    blocker = await way.face.start(greet(name="blocker"))
    waiting = await way.face.start(greet(name="waiting"), blockers=[blocker])
    await admit(way)
    await go_on(way, blocker.id, then())
    still = (await way.face.get_job(waiting.id)).status

    await complete(way, blocker.id)

    assert (still, (await way.face.get_job(waiting.id)).status) == ("blocked", "pending")


async def test_a_blocked_job_is_completed_and_its_blockers_are_left_alone(way: Way) -> None:
    blocker = await way.face.start(greet(name="blocker"))
    waiting = await way.face.start(greet(name="waiting"), blockers=[blocker])
    await admit(way)

    await complete(way, waiting.id)
    await run(way, DONE)

    assert [(await way.face.get_job(each.id)).status for each in (blocker, waiting)] == ["completed", "completed"]
    assert await events_of(way, waiting.id) == ["job:enqueued", "job:blocked", "job:completed", "chain:completed"]


async def test_completing_a_failed_blocker_puts_what_failed_by_it_back(way: Way) -> None:
    blocker = await way.face.start(greet(name="blocker"))
    waiting = await way.face.start(greet(name="waiting"), blockers=[blocker], unique="waiting")
    await admit(way)
    await run(way, FAIL)
    failed = (await way.face.get_job(waiting.id)).status

    await complete(way, blocker.id)
    await admit(way)

    assert failed == "failed"
    assert await run(way) == waiting.id
    assert await way.rows("SELECT 1 FROM holdfast_unique") == []


async def test_what_failed_by_a_chain_that_goes_on_by_hand_is_blocked_again(way: Way) -> None:
    blocker = await way.face.start(greet(name="blocker"))
    waiting = await way.face.start(greet(name="waiting"), blockers=[blocker])
    await admit(way)
    await run(way, FAIL)

    await go_on(way, blocker.id, then())
    await admit(way)

    assert (await way.face.get_job(waiting.id)).status == "blocked"
    await run(way, DONE)
    assert await run(way) == waiting.id


# ---- several steps


async def test_one_job_is_completed_by_hand_and_a_worker_runs_the_next(way: Way) -> None:
    """Partial completion, JC-111."""
    chain = await way.face.start(greet(name="Ada"))
    step = then()

    await go_on(way, chain.id, step)

    assert await run(way, Outcome(Kind.COMPLETE, output='"by a worker"')) == step.start.id
    assert (await way.face.get_chain(chain.id)).output == "by a worker"


async def test_several_steps_are_completed_in_one_transaction(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), lane="vm-7")

    ids = await way.call(_three_steps, chain.id)

    ended = await way.face.get_chain(chain.id)
    assert (ended.status, ended.output) == ("completed", 3)
    assert [(await way.face.get_job(each)).chain_index for each in ids] == [0, 1, 2]
    assert [(await way.face.get_job(each)).state for each in ids] == ["continued", "continued", "completed"]
    assert await claim_all(way) == []
    assert await lane_rows(way) == []


async def _three_steps(tx: Tx, chain_id: UUID) -> list[UUID]:
    done: list[Current] = []
    for number in (1, 2, 3):
        found = await completing.lock_current(tx, chain_id)
        await completing.finish(tx, found, str(number), then() if number < 3 else None, NOBODY)
        done.append(found)
    await completing.follow(tx, [each.job.id for each in done])
    return [each.job.id for each in done]


async def test_blockers_are_completed_before_what_waits_for_them(way: Way) -> None:
    blocker = await way.face.start(greet(name="blocker"), delay=3600)
    waiting = await way.face.start(greet(name="waiting"), blockers=[blocker])
    await admit(way)

    await way.call(_both, blocker.id, waiting.id)

    assert [(await way.face.get_job(each.id)).status for each in (blocker, waiting)] == ["completed", "completed"]


async def _both(tx: Tx, *ids: UUID) -> None:
    for each in ids:
        await by_hand.complete(tx, each)
    await completing.follow(tx, list(ids))


async def test_a_continuation_by_hand_may_wait_for_others(way: Way) -> None:
    blocker = await way.face.start(greet(name="blocker"))
    chain = await way.face.start(greet(name="Ada"), paused=True)
    step = then(blockers=(blocker.id,))
    await go_on(way, chain.id, step)
    waiting = (await way.face.get_job(step.start.id)).status

    await run(way, DONE)

    assert waiting == "blocked"
    assert await run(way) == step.start.id


@pytest.mark.parametrize("mistake", [ChainNotFound, BlockerCycle])
async def test_a_mistaken_continuation_by_hand_changes_nothing(way: Way, mistake: type[Exception]) -> None:
    chain = await way.face.start(greet(name="Ada"))
    before = await whole_store(way)

    with pytest.raises(mistake):
        await go_on(way, chain.id, then(blockers=(chain.id if mistake is BlockerCycle else uuid4(),)))

    assert await whole_store(way) == before


ENDED_MEANWHILE = [("cancel", StatusConflict, "cancelled"), ("complete", StatusConflict, "completed"),
                   ("delete", JobNotFound, None)]  # fmt: skip


@pytest.mark.parametrize("is_continued", [False, True])
@pytest.mark.parametrize(("verb", "error", "status"), ENDED_MEANWHILE)
async def test_what_the_same_transaction_has_ended_since_the_look_is_refused_and_left_as_it_is(
    way: Way, verb: str, error: type[Exception], status: str | None, is_continued: bool
) -> None:
    chain = await way.face.start(greet(name="Ada"))

    await way.call(_end_and_finish, chain.id, verb, then() if is_continued else None, error)

    rows = await way.rows("SELECT status, closed_as FROM holdfast_job")
    assert rows == ([] if status is None else [(status, status)])


async def _end_and_finish(
    tx: Tx, job_id: UUID, verb: str, successor: Continuation | None, error: type[Exception]
) -> None:
    found = await completing.lock_current(tx, job_id)
    match verb:
        case "cancel":
            await steering.cancel(tx, [job_id], NOBODY)
        case "complete":
            await by_hand.complete(tx, job_id)
        case _:
            await deletes.delete(tx, [job_id])
    with pytest.raises(error):
        await completing.finish(tx, found, '"late"', successor, NOBODY)


async def test_a_start_that_was_given_its_key_from_the_chain_is_kept_when_that_is_completed(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), unique=Unique("ada"))
    heir = a_start(unique=Unique("ada"))
    await way.call(creation.start, [heir], from_chain=chain.id)

    await complete(way, chain.id)

    assert (await way.face.start(greet(name="Bob"), unique="ada")).id == heir.id
