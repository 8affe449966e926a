"""A verb that is asked for by somebody who has read the job before: it acts on that state of it, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import CancelAnswer, Holdfast, InvalidInput, Job, StateConflict
from holdfast.database.tx import Tx
from holdfast.models import Asked
from holdfast.store.jobs import claiming, steering
from holdfast.store.jobs.claiming import ProgressReport
from tests.store.engine import FAIL, RETRY, claim_one, settle
from tests.support.factories import change_job, continue_chain, greet, make_job, row_of, whole_store
from tests.support.ways import Way

VERBS: dict[str, tuple[str, Callable[..., Any]]] = {
    "cancel": ("pending", lambda face, job, **given: face.cancel(job, **given)),
    "pause": ("pending", lambda face, job, **given: face.pause(job, **given)),
    "resume": ("paused", lambda face, job, **given: face.resume(job, **given)),
    "retry": ("failed", lambda face, job, **given: face.retry(job, **given)),
    "reschedule": ("pending", lambda face, job, **given: face.reschedule(job, after=60, **given)),
    "trigger": ("pending", lambda face, job, **given: face.trigger(job, **given)),
    "complete": ("failed", lambda face, job, **given: face.complete(greet, job, "Hello", **given)),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_acts_once_on_the_state_that_it_names(way: Way, verb: str) -> None:
    status, act = VERBS[verb]
    job = await way.face.get_job(await make_job(way, status))

    await act(way.face, job, if_state=job.state_tag)
    moved = await way.face.get_job(job)
    assert moved.state_tag != job.state_tag
    before = await whole_store(way)
    with pytest.raises(StateConflict, match="has changed") as refused:
        await act(way.face, job, if_state=job.state_tag)

    assert (refused.value.expected, refused.value.job, refused.value.http_status) == (job.state_tag, moved, 412)
    assert await whole_store(way) == before


async def test_a_job_is_started_again_only_from_the_state_that_is_named(way: Way) -> None:
    job = await way.face.get_job(await make_job(way, "failed"))
    again = await way.face.start_again(job, if_state=job.state_tag)
    assert again.id != job.id

    await way.face.retry(job)
    with pytest.raises(StateConflict):
        await way.face.start_again(job, if_state=job.state_tag)
    assert len(await way.rows("SELECT 1 FROM holdfast_job")) == 2


async def test_the_tag_names_status_attempt_and_requests(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    assert (await _tag(way, chain)).startswith("pending/0/")
    await claim_one(way)
    assert (await _tag(way, chain)).startswith("running/1/")
    await way.face.pause(chain)
    assert (await _tag(way, chain)).startswith("running/1/pausing/")
    await way.face.cancel(chain)
    assert (await _tag(way, chain)).startswith("running/1/cancelling/pausing/")
    assert len(await _tag(way, chain)) < 50


async def test_every_move_and_every_edit_changes_the_tag(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    tags = [await _tag(way, chain)]

    async def note() -> None:
        tags.append(await _tag(way, chain))

    job = await claim_one(way)
    await note()
    await settle(way, (job.token, RETRY))
    await note()
    await way.face.trigger(chain)
    await note()
    await way.face.pause(chain)
    await note()
    await change_job(way, chain.id, input='{"name":"Bob"}')  # resumed with another input, and paused again
    await note()
    await way.face.resume(chain)
    await note()
    job = await claim_one(way)
    await note()
    await settle(way, (job.token, FAIL))
    await note()
    await change_job(way, chain.id, stale_at=1)
    await note()
    await way.face.retry(chain)
    await note()

    assert len(set(tags)) == len(tags)


async def test_a_job_that_reports_progress_is_cancelled_at_the_first_try(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    job = await claim_one(way)
    read = await way.face.get_job(chain)

    for percent in range(10):
        await way.call(claiming.report, [ProgressReport(job.token, percent, f"{percent} of 10")])
    assert (await way.face.get_job(chain)).version > read.version

    assert await way.face.cancel(chain, if_state=read.state_tag) is CancelAnswer.REQUESTED


async def test_the_id_of_a_job_that_has_continued_requires_the_state_of_the_current_one(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    next_id = await continue_chain(way, chain.id)
    first, second = await way.face.get_job(chain), await way.face.get_job(next_id)

    with pytest.raises(StateConflict) as refused:
        await way.face.cancel(chain, if_state=first.state_tag)
    assert refused.value.job == second

    assert await way.face.cancel(chain, if_state=second.state_tag) is CancelAnswer.CANCELLED


async def test_of_two_operators_at_once_exactly_one_wins(way: Way) -> None:
    job = await way.face.get_job(await make_job(way, "pending"))
    face: Holdfast = way.hf

    tried = [face.reschedule(job, after=60 + n, if_state=job.state_tag) for n in range(8)]
    answers = await asyncio.gather(*tried, return_exceptions=True)

    won = [each for each in answers if isinstance(each, Job)]
    assert len(won) == 1
    assert all(isinstance(each, StateConflict) and each.job == won[0] for each in answers if each is not won[0])


async def test_the_row_stays_locked_from_the_comparison_to_the_end(way_pg: Way) -> None:
    job = await way_pg.face.get_job(await make_job(way_pg, "pending"))

    async def compare(tx: Tx) -> bool:
        await steering.require_state(tx, job.id, job.state_tag)
        return bool(await way_pg.rows("SELECT seq FROM holdfast_job FOR UPDATE SKIP LOCKED"))

    assert not await way_pg.call(compare)


async def test_it_holds_in_the_callers_transaction_too(way: Way) -> None:
    job = await way.face.get_job(await make_job(way, "pending"))

    async def act(tx: Tx) -> None:
        await steering.in_state(steering.cancel, job.id, "pending/0/00000000")(tx, [job.id], Asked())

    with pytest.raises(StateConflict):
        await way.call(act)
    assert await row_of(way, job.id, "status") == ("pending",)


async def test_what_is_no_tag_is_refused(way: Way) -> None:
    job = await way.face.get_job(await make_job(way, "pending"))
    with pytest.raises(InvalidInput, match="if_state must be the state_tag"):
        await way.face.cancel(job, if_state=job)


@pytest.mark.parametrize(("name", "most"), [("by", 200), ("why", 500)])
async def test_who_asks_and_why_have_a_length(way: Way, name: str, most: int) -> None:
    kept, refused = await make_job(way, "pending"), await make_job(way, "pending")

    await way.face.cancel(kept, **{name: "x" * most})
    with pytest.raises(InvalidInput, match=f"at most {most}") as error:
        await way.face.cancel(refused, **{name: "x" * (most + 1)})

    assert error.value.path == name
    assert await row_of(way, refused, "status") == ("pending",)


async def _tag(way: Way, target: Any) -> str:
    job: Job = await way.face.get_job(target)
    return job.state_tag
