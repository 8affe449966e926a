"""Chains that go on: from a simple handler and from a block, with options, blockers and their outputs."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Retry
from tests.support.conditions import until
from tests.worker.colours import Colour

ONCE = Retry.never()
PAY = "INSERT INTO bill (id, amount) VALUES (:id, 1)"
WAYS_ON = ["simple", "complete", "atomic"]


async def go_on(ctx: Any, way_on: str, call: Any) -> Any:
    """Continue with *call*, in one of the ways there are."""
    if way_on == "simple":
        return ctx.continue_with(call)
    async with getattr(ctx, way_on)() as tx:
        return tx.continue_with(call)


async def steps_of(colour: Colour, chain: Any) -> list[Any]:
    return list((await colour.hf.list_chain_jobs(chain)).items)


@pytest.mark.parametrize("way_on", WAYS_ON)
async def test_a_chain_goes_on_and_its_output_is_that_of_its_last_job(colour: Colour, way_on: str) -> None:
    async def first(ctx: Any, n: int) -> Any:
        return await go_on(ctx, way_on, second(n=n + 1))

    async def last(ctx: Any, n: int) -> Any:
        return f"{ctx.job.chain_index}: {n}"

    second = colour.task(last, str)
    task = colour.task(first, str)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))

        assert await chain.result(timeout=10) == "1: 2"

    one, two = await steps_of(colour, chain)
    assert (one.task, one.status, one.output) == ("first", "completed", None)
    assert (two.task, two.chain_id, two.chain_index) == ("last", chain.id, 1)
    assert json.loads(dict(await colour.facts(one))["job:completed"]) == {"continued": str(two.id)}
    assert "chain:completed" not in await colour.events(one)


@pytest.mark.source("JC-3")
@pytest.mark.parametrize("way_on", WAYS_ON)
async def test_a_chain_branches_loops_and_jumps_back(colour: Colour, way_on: str) -> None:
    async def loop(ctx: Any, n: int) -> Any:
        if n == 5:
            return await go_on(ctx, way_on, end_task(n=n))
        return await go_on(ctx, way_on, task(n=n + 1))

    async def end(ctx: Any, n: int) -> Any:
        return await go_on(ctx, way_on, task(n=4)) if ctx.job.chain_index < 6 else n

    end_task = colour.task(end, int)
    task = colour.task(loop, int)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))

        assert await chain.result(timeout=20) == 5

    jobs = await steps_of(colour, chain)
    assert [each.task for each in jobs] == ["loop"] * 5 + ["end"] + ["loop"] * 2 + ["end"]
    assert [each.chain_index for each in jobs] == list(range(9))


@pytest.mark.parametrize("way_on", ["simple", "complete"])
async def test_what_was_not_chosen_is_inherited(colour: Colour, way_on: str) -> None:
    async def first(ctx: Any, n: int) -> Any:
        call = plain() if n == 0 else pinned() if n == 1 else plain().options(queue="default", lane=None, tags=["own"])
        return await go_on(ctx, way_on, call.options(delay=60))

    async def plain_body(ctx: Any, n: int) -> Any:
        return n

    async def pinned_body(ctx: Any, n: int) -> Any:
        return n

    plain = colour.task(plain_body, int)
    pinned = colour.task(pinned_body, int, queue="mail", priority=-5)
    task = colour.task(first, int)
    chosen = {"queue": "own", "priority": 7, "lane": "a", "tags": ["x", "y"]}
    async with colour.hf.worker(queues=["own"]):
        chains = [await colour.hf.start(task(n=n), **{**chosen, "lane": f"lane {n}"}) for n in range(3)]
        for chain in chains:
            await until(lambda chain=chain: _has(colour, chain, 2), "it has gone on")  # type: ignore[misc]

    nexts = [(await steps_of(colour, chain))[1] for chain in chains]
    assert [(each.queue, each.priority, each.lane, tuple(each.tags)) for each in nexts] == [
        ("own", 7, "lane 0", ("x", "y")),
        ("mail", -5, "lane 1", ("x", "y")),
        ("default", 7, None, ("own",)),
    ]


async def _has(colour: Colour, chain: Any, count: int) -> bool:
    return len(await steps_of(colour, chain)) == count


@pytest.mark.parametrize("way_on", ["simple", "complete"])
async def test_a_successor_in_the_same_lane_goes_before_who_waits_there(colour: Colour, way_on: str) -> None:
    ran: list[int] = []

    async def first(ctx: Any, n: int) -> Any:
        ran.append(n)
        return await go_on(ctx, way_on, second(n=n * 10)) if n == 1 else n

    async def last(ctx: Any, n: int) -> Any:
        ran.append(n)
        return n

    second = colour.task(last, int)
    task = colour.task(first, int)
    chains = [await colour.hf.start(task(n=n), lane="a") for n in (1, 2)]
    async with colour.hf.worker():
        await colour.hf.wait(chains, timeout=15)

    assert ran == [1, 10, 2]


@pytest.mark.source("JC-115")
@pytest.mark.parametrize("way_on", WAYS_ON)
async def test_a_continuation_may_have_an_id_of_its_own(colour: Colour, way_on: str) -> None:
    chosen = uuid4()

    async def first(ctx: Any, n: int) -> Any:
        return await go_on(ctx, way_on, last_task(n=n + 1).options(id=chosen))

    async def last(ctx: Any, n: int) -> Any:
        return str(ctx.job.id)

    last_task = colour.task(last, str)
    task = colour.task(first, str, retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))

        assert await chain.result(timeout=10) == str(chosen)

    assert (await colour.hf.get_job(chosen)).chain_id == chain.id


@pytest.mark.source("JC-115")
@pytest.mark.parametrize("way_on", WAYS_ON)
async def test_a_continuation_with_the_id_of_another_job_is_refused(colour: Colour, way_on: str) -> None:
    async def first(ctx: Any, n: int) -> Any:
        return await go_on(ctx, way_on, task(n=2).options(id=other.id))

    task = colour.task(first, int, retry=ONCE)
    other = await colour.hf.start(task(n=1), paused=True)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))
        await colour.until_status(chain, "failed")

    assert (await colour.error(chain)).startswith(f"IdTaken: job {other.id} exists already")
    assert len(await steps_of(colour, chain)) == 1


@pytest.mark.parametrize("way_on", WAYS_ON)
async def test_a_unique_key_is_refused_on_a_continuation(colour: Colour, way_on: str) -> None:
    async def first(ctx: Any, n: int) -> Any:
        return await go_on(ctx, way_on, task(n=2).options(unique="k"))

    task = colour.task(first, int, retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))
        await colour.until_status(chain, "failed")

    assert "a continuation takes no unique=" in await colour.error(chain)


async def test_what_continue_with_gave_must_be_returned(colour: Colour) -> None:
    async def forgets(ctx: Any, n: int) -> Any:
        ctx.continue_with(task(n=2))
        return 5

    task = colour.task(forgets, int, retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))
        await colour.until_status(chain, "failed")

    assert "did not return it" in await colour.error(chain)


async def test_a_call_that_is_returned_is_refused_with_what_to_write(colour: Colour) -> None:
    async def hasty(ctx: Any, n: int) -> Any:
        return task(n=2)

    task = colour.task(hasty, int, retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))
        await colour.until_status(chain, "failed")

    assert "return ctx.continue_with(" in await colour.error(chain)


async def test_the_continue_with_of_the_context_is_not_for_a_block(colour: Colour) -> None:
    async def mixes(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await tx.execute(PAY, id=1)
            return ctx.continue_with(task(n=2))

    task = colour.task(mixes, int, retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))
        await colour.until_status(chain, "failed")

    assert "tx.continue_with" in await colour.error(chain)
    assert await colour.bills() == []


@pytest.mark.source("JC-50")
async def test_outputs_of_blockers_are_given_in_order(colour: Colour) -> None:
    seen: list[Any] = []

    async def fetch(ctx: Any, n: int) -> Any:
        return f"page {n}"

    async def merge(ctx: Any, n: int) -> Any:
        seen.append([(each.task, each.status, each.output) for each in ctx.blockers])
        return [ctx.blocker(fetch_task), ctx.blocker(fetch_task, 1), ctx.blocker(fetch_task, 2)]

    fetch_task = colour.task(fetch, str)
    merge_task = colour.task(merge, list[str])
    async with colour.hf.worker():
        one, two = await colour.hf.start_many([fetch_task(n=1), fetch_task(n=2)])
        chain = await colour.hf.start(merge_task(), blockers=[two, one, two])

        assert await chain.result(timeout=15) == ["page 2", "page 1", "page 2"]

    assert seen == [[("fetch", "completed", f"page {n}") for n in (2, 1, 2)]]


async def test_a_blocker_that_has_continued_gives_the_output_of_its_end(colour: Colour) -> None:
    async def begin(ctx: Any, n: int) -> Any:
        return ctx.continue_with(end_task(n=n))

    async def end(ctx: Any, n: int) -> Any:
        return n * 2

    async def merge(ctx: Any, n: int) -> Any:
        return ctx.blocker(begin_task)

    end_task, merge_task = colour.task(end, int), colour.task(merge, int)
    begin_task = colour.task(begin, int)
    async with colour.hf.worker():
        blocker = await colour.hf.start(begin_task(n=4))
        chain = await colour.hf.start(merge_task(), blockers=[blocker])

        assert await chain.result(timeout=15) == 8


async def test_a_blocker_that_has_failed_has_no_output(colour: Colour) -> None:
    async def fails(ctx: Any, n: int) -> Any:
        raise OSError("no")

    async def merge(ctx: Any, n: int) -> Any:
        return ctx.blocker(fails_task)

    fails_task, merge_task = colour.task(fails, int, retry=ONCE), colour.task(merge, int, retry=ONCE)
    async with colour.hf.worker():
        blocker = await colour.hf.start(fails_task())
        chain = await colour.hf.start(merge_task(), blockers=[blocker], on_blocker_failure="ignore")
        await colour.until_status(chain, "failed")

    assert (await colour.error(chain)).startswith("ChainFailed")


@pytest.mark.parametrize("index", [-1, 1])
async def test_a_blocker_that_was_not_given_is_a_mistake(colour: Colour, index: int) -> None:
    async def fetch(ctx: Any, n: int) -> Any:
        return n

    async def merge(ctx: Any, n: int) -> Any:
        return ctx.blocker(fetch_task, index)

    fetch_task, merge_task = colour.task(fetch, int), colour.task(merge, int, retry=ONCE)
    async with colour.hf.worker():
        blocker = await colour.hf.start(fetch_task())
        chain = await colour.hf.start(merge_task(), blockers=[blocker])
        await colour.until_status(chain, "failed")

    assert "has 1 blockers" in await colour.error(chain)


async def test_children_started_in_the_block_are_waited_for_by_the_next_step(colour: Colour) -> None:
    async def fan_out(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            children = await tx.start_many([child_task(n=each) for each in range(n)])
            return tx.continue_with(sum_task().options(blockers=children))

    async def child(ctx: Any, n: int) -> Any:
        return n

    async def sum_up(ctx: Any, n: int) -> Any:
        return sum(each.output for each in ctx.blockers)

    child_task, sum_task = colour.task(child, int), colour.task(sum_up, int)
    task = colour.task(fan_out, int)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=100))

        assert await chain.result(timeout=30) == sum(range(100))


@pytest.mark.parametrize("way_on", WAYS_ON)
async def test_a_continuation_that_waits_for_its_own_chain_is_refused(colour: Colour, way_on: str) -> None:
    async def ring(ctx: Any, n: int) -> Any:
        return await go_on(ctx, way_on, task(n=2).options(blockers=[ctx.job.chain_id]))

    task = colour.task(ring, int, retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))
        await colour.until_status(chain, "failed")

    assert (await colour.error(chain)).startswith("BlockerCycle")
    assert len(await steps_of(colour, chain)) == 1


async def test_a_continuation_that_cannot_be_is_tried_again_as_an_error_is(colour: Colour) -> None:
    tried: list[int] = []

    async def ring(ctx: Any, n: int) -> Any:
        tried.append(ctx.job.attempt)
        blockers = [ctx.job.chain_id] if len(tried) == 1 else []
        return ctx.continue_with(end_task(n=2).options(blockers=blockers))

    async def end(ctx: Any, n: int) -> Any:
        return n

    end_task = colour.task(end, int)
    task = colour.task(ring, int, retry=Retry(first=0, maximum=0))
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))

        assert await chain.result(timeout=15) == 2

    assert tried == [1, 2]


@pytest.mark.source("JC-48", "JC-62")
async def test_a_recurring_job_hands_its_key_to_the_chain_that_it_starts(colour: Colour) -> None:
    async def every(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            following = await tx.start(task(n=n + 1), unique="every", delay=60)
            return tx.finish(following.deduplicated)

    task = colour.task(every, bool)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1), unique="every")

        assert await chain.result(timeout=10) is False

    assert sorted(each.input.n for each in (await colour.hf.list_jobs()).items) == [1, 2]
