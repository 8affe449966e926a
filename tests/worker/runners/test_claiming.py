"""Jobs of all runners stand in the same queues and lanes, and whatever lets one run, it runs at once."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast import Chain, Holdfast
from holdfast.store.jobs import claiming
from holdfast.store.jobs.claiming import Claims, Want
from tests.support.conditions import until
from tests.worker.runners.behaviours import behaviour
from tests.worker.runners.notes import note, pass_gate
from tests.worker.runners.stage import Runner
from tests.worker.runners.test_ends import echo

AT_ONCE_SECONDS = 20.0
"""Less than a worker sleeps that nobody has told anything."""

pytestmark = pytest.mark.asyncio(loop_scope="package")


@behaviour()
async def hold(ctx: Any) -> None:
    """Keep its lane until the test says so."""
    note(ctx, "here")
    await pass_gate(ctx)


@pytest.mark.parametrize("is_last", [True, False], ids=["to it", "from it"])
async def test_a_lane_goes_on_from_runner_to_runner(runner: Runner, number: int, is_last: bool) -> None:
    others, lane = Runner(runner.hf, "loop"), f"lane {number}"
    first, second = (others, runner) if is_last else (runner, others)
    holding = await runner.hf.start(first.call(hold), lane=lane)
    await runner.until_noted(holding, "here")
    waiting = await runner.hf.start(second.call(echo, text="next"), lane=lane)
    runner.open_gate(holding)

    assert await waiting.result(timeout=AT_ONCE_SECONDS) == "txen"


DUE = "SELECT 1 FROM holdfast_job WHERE id = :id AND status = 'pending' AND run_at <= $now"
NOT_TAKEN_UP = f"{DUE} AND gate = 'arrival'"


async def test_what_a_claim_for_children_passes_over_is_claimed_once_the_other_has_taken_it_up(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker claims for its children and for itself, from the same queues, and each claim passes over locked rows."""
    runner, job_id, whole = Runner(hf, "child-plain"), uuid4(), claiming.admit_and_claim
    passed_over: list[UUID] = []

    async def pass_over(tx: Any, wants: Any, *about: Any, **more: Any) -> Claims:
        is_for_children = any(want.task == "child-plain.echo" for want in wants)
        if passed_over or not await tx.fetch_all(NOT_TAKEN_UP, id=str(job_id)):
            return await whole(tx, wants, *about, **more)
        passed_over.extend([job_id] if is_for_children else [])
        return Claims([], more=not is_for_children)  # the other one has begun before, and has still to take it up

    monkeypatch.setattr(claiming, "admit_and_claim", pass_over)
    chain = await hf.start(runner.call(echo, text="late"), id=job_id, delay=0.05)

    assert await chain.result(timeout=AT_ONCE_SECONDS) == "etal"
    assert passed_over == [job_id]


async def test_a_claim_tells_what_it_has_taken_up_for_others(hf: Holdfast) -> None:
    async def is_told() -> bool:
        chain = await hf.start(Runner(hf, "loop").call(echo, text=""), queue="nobodys", delay=0.01)
        await until(lambda: _is_due(hf, chain), "the job is due")
        claims = await hf.store.run(claiming.admit_and_claim, [Want("nobodys", "another", 1000)], 1, "nobody", "nonce")
        assert claims.jobs == []
        return claims.admitted == 1  # else the worker that runs beside this has taken it up

    await until(is_told, "a claim tells of it")


async def _is_due(hf: Holdfast, chain: Chain[Any]) -> bool:
    async def look(tx: Any) -> bool:
        return bool(await tx.fetch_all(DUE, id=str(chain.id)))

    return await hf.store.read(look)
