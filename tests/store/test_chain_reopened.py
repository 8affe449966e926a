"""A chain that closes, or opens, in the very step of admission that is busy with it, and who waits for it then."""

from __future__ import annotations

from holdfast.models import Asked, Continuation
from holdfast.outcomes import Kind, Outcome
from holdfast.store.jobs import completing, steering
from tests.store.engine import FAIL, admit, claim_one, run, settle
from tests.support.factories import a_start, greet
from tests.support.ways import Way


async def test_who_waits_for_a_chain_that_closes_again_as_soon_as_it_was_opened_is_told(way: Way) -> None:
    chain = await way.face.start(greet(name="chain"))
    first = await claim_one(way)
    bad = await way.face.start(greet(name="bad"))
    await run(way, FAIL)
    step = Continuation(a_start(blockers=(bad.id,)))
    watching = await way.face.start(greet(name="watching"), blockers=[chain])
    await admit(way)
    await settle(way, (first.token, Outcome(Kind.COMPLETE, successor=step)))
    await admit(way)

    await way.call(steering.retry, [step.start.id], Asked("ada", None))
    waiting = await way.face.start(greet(name="waiting"), blockers=[chain])
    await admit(way)

    ended = [(await way.face.get_job(each)).status for each in (step.start.id, watching.id, waiting.id)]
    assert ended == ["failed", "failed", "failed"]


async def test_a_step_that_is_put_back_as_soon_as_its_failure_was_seen_is_counted(way: Way) -> None:
    chain = await way.face.start(greet(name="chain"))
    first = await claim_one(way)
    bad = await way.face.start(greet(name="bad"))
    step = Continuation(a_start(blockers=(bad.id,)))
    await settle(way, (first.token, Outcome(Kind.COMPLETE, successor=step)))
    await run(way, FAIL)

    current = await way.call(completing.lock_current, bad.id)
    await way.call(completing.finish, current, '"Hello"', None, Asked("ada", None))

    assert await run(way) == step.start.id
    assert (await way.face.get_chain(chain)).status == "completed"
