"""Acting on many jobs by a job: it goes on from page to page, can be stopped, and takes no slot of handlers (I-87)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import BulkResult, ChainCancelled, Context, Holdfast, Retry, Tasks, UnknownTask
from holdfast.database.tx import Tx
from holdfast.models import BULK, BULK_QUEUE, INTERNAL_QUEUE, Asked
from holdfast.retention import is_internal
from holdfast.store import lanes
from holdfast.store.jobs import bulk_pages
from holdfast.worker.builtin import bulk as bulk_task
from holdfast.worker.claiming import slot_group
from tests.support.conditions import until

DATABASES = pytest.mark.parametrize("stack", ["sqlite", "postgres"])


TASKS = Tasks()


@TASKS.task(name="sleepy", queue="nobody")
async def sleepy(number: int) -> int:
    """Is run by nobody."""
    return number


@pytest.fixture
def hf(new_holdfast: Callable[..., Holdfast], stack: str, monkeypatch: pytest.MonkeyPatch) -> Holdfast:
    """Knows a task, and acts on three jobs at a time."""
    monkeypatch.setattr(bulk_pages, "PAGE", 3)
    return new_holdfast(stack, tasks=[TASKS])


async def started(hf: Holdfast, count: int) -> list[Any]:
    """Start jobs that nobody runs."""
    return await hf.start_many([sleepy(number=number) for number in range(count)])


async def count(hf: Holdfast, status: str) -> int:
    """Count the jobs of the task."""
    return len(await hf.list_jobs(task="sleepy", status=status, limit=100))


@DATABASES
async def test_each_page_of_somebodys_act_is_in_the_audit(hf: Holdfast) -> None:
    async with hf, hf.worker(queues=["default"]):
        await started(hf, 7)
        bulk = await hf.acting(by="ada", request="r-1").start_bulk("cancel", task="sleepy", why="too many")
        await bulk.result(timeout=20)

        found = [(each.action, each.subject, each.facts.get("done")) for each in reversed(await hf.audit())]
        pages = [("bulk.cancel", "3 jobs", 3), ("bulk.cancel", "3 jobs", 3), ("bulk.cancel", "1 job", 1)]
        assert found == [("bulk.start", str(bulk.id), None), *pages]
        assert {(each.who, each.why, each.request) for each in await hf.audit()} == {("ada", "too many", "r-1")}


@DATABASES
async def test_each_page_is_a_step_of_its_chain(hf: Holdfast) -> None:
    async with hf, hf.worker(queues=["default"]):
        chains = await started(hf, 8)
        bulk = await hf.start_bulk("cancel", task="sleepy", by="ada", why="too many")
        result = await bulk.result(timeout=20)

        assert isinstance(result, BulkResult)
        assert (result.matched, result.done, result.passed_over, result.cursor) == (8, 8, {}, None)
        assert result.examples == tuple(each.id for each in chains)
        assert await count(hf, "cancelled") == 8
        steps = await hf.list_chain_jobs(bulk)
        assert [step.task for step in steps] == [BULK] * 3
        assert [step.input.so_far.done for step in steps] == [0, 3, 6]
        progress = [step.progress for step in steps]
        assert progress == sorted(progress, key=lambda each: each or 0)
        said = [event.facts for event in await hf.timeline(chains[0]) if event.name == "job:cancelled"]
        assert said == [{"by": "ada", "reason": "too many"}]


@DATABASES
async def test_it_is_listed_streamed_and_steered_like_a_users_job(hf: Holdfast) -> None:
    async with hf, hf.events() as events:
        await started(hf, 4)
        bulk = await hf.start_bulk("cancel", task="sleepy")
        assert [job.id for job in await hf.list_jobs(queue=BULK_QUEUE)] == [bulk.id]
        assert bulk.id in [job.id for job in await hf.list_jobs()]
        assert bulk.id in [chain.id for chain in await hf.list_chains()]

        await hf.queue(BULK_QUEUE).pause(by="ada")
        await hf.queue(INTERNAL_QUEUE).pause()
        await hf.queue(BULK_QUEUE).resume()
        names = []
        async with asyncio.timeout(20):
            async for event in events:
                if event.queue is not None or (event.job is not None and event.job.task == BULK):
                    names.append((event.name, event.queue))
                if event.name == "queue:resumed":
                    break
        assert names == [("job:enqueued", None), ("queue:paused", BULK_QUEUE), ("queue:resumed", BULK_QUEUE)]
        await hf.pause(bulk)
        await hf.cancel(bulk, why="not so many")

        async with hf.worker(queues=["default"]):
            with pytest.raises(ChainCancelled, match="not so many"):
                await bulk.result(timeout=20)
        assert await count(hf, "cancelled") == 0


@DATABASES
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_it_is_stopped_between_two_pages(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    act = bulk_pages.act

    async def act_and_pause_the_queue(tx: Tx, *args: Any) -> Any:
        await lanes.pause_queue(tx, BULK_QUEUE, None, Asked())
        return await act(tx, *args)

    async with hf, hf.worker(queues=["default"]):
        await started(hf, 9)
        monkeypatch.setattr(bulk_pages, "act", act_and_pause_the_queue)
        bulk = await hf.start_bulk("cancel", task="sleepy")
        await until(lambda: _has(hf, "cancelled", 3), "the first page")
        monkeypatch.setattr(bulk_pages, "act", act)

        await (hf.cancel(bulk) if is_cancelled else hf.pause(bulk))
        await hf.queue(BULK_QUEUE).resume()
        if is_cancelled:
            with pytest.raises(ChainCancelled):
                await bulk.result(timeout=20)
            assert await _has(hf, "cancelled", 3)
            return
        await hf.resume(bulk)
        assert (await bulk.result(timeout=20)).done == 9


async def _has(hf: Holdfast, status: str, wanted: int) -> bool:
    return await count(hf, status) == wanted


@DATABASES
async def test_a_step_that_fails_has_acted_on_nothing(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page has changed, its count and the next step are one commit: its second try finds all as it was."""
    after, tries = BulkResult.after, []

    def fail_once(self: BulkResult, *args: Any) -> BulkResult:
        tries.append(args)
        if len(tries) == 1:
            raise OSError("just now")
        return after(self, *args)

    monkeypatch.setattr(BulkResult, "after", fail_once)
    monkeypatch.setattr(bulk_task, "RETRY", Retry(first=0.01, jitter=0))
    async with hf, hf.worker(queues=["default"]):
        await started(hf, 2)
        result = await (await hf.start_bulk("cancel", task="sleepy")).result(timeout=20)

    assert (result.done, result.passed_over, len(tries)) == (2, {}, 2)


@DATABASES
async def test_it_takes_no_slot_of_handlers(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_group, "BULK_LOOK_SECONDS", 0.1)
    is_busy, release = asyncio.Event(), asyncio.Event()

    @hf.task(name="busy")
    async def busy(ctx: Context) -> None:
        is_busy.set()
        await release.wait()

    async with hf, hf.worker(concurrency=1, queues=["default"]):
        chain = await hf.start(busy())
        await asyncio.wait_for(is_busy.wait(), 20)
        await started(hf, 4)
        assert (await (await hf.start_bulk("cancel", task="sleepy")).result(timeout=30)).done == 4
        release.set()
        await chain.result(timeout=20)


@DATABASES
async def test_a_dry_run_only_counts(hf: Holdfast) -> None:
    async with hf, hf.worker(queues=["default"]):
        await started(hf, 4)
        plan = await (await hf.start_bulk("cancel", task="sleepy", dry_run=True)).result(timeout=20)
        assert (plan.matched, plan.done, plan.is_dry) == (4, 0, True)
        await started(hf, 1)
        result = await (await hf.start_bulk("cancel", task="sleepy", upto=plan.upto)).result(timeout=20)
        assert (result.matched, await count(hf, "pending")) == (4, 1)


@DATABASES
async def test_it_never_acts_on_itself(hf: Holdfast) -> None:
    async with hf:
        await started(hf, 4)
        bulk = await hf.start_bulk("cancel", everything=True)
        async with hf.worker(queues=["default"]):
            result = await bulk.result(timeout=20)
        assert (result.matched, result.done) == (4, 4)


@DATABASES
async def test_explain_says_why_it_does_not_run(hf: Holdfast) -> None:
    async with hf:
        bulk = await hf.start_bulk("cancel", everything=True)
        (reason,) = (await hf.explain(bulk)).reasons
        assert reason.code == "no_worker"
        assert str(reason).endswith("start one with `holdfast worker APP`")

        await hf.queue(BULK_QUEUE).pause()
        async with hf.worker(queues=["default"]):
            assert "queue_paused" in [each.code for each in (await hf.explain(bulk)).reasons]
            await hf.queue(BULK_QUEUE).resume()
            await bulk.result(timeout=20)


@DATABASES
async def test_nobody_else_can_call_it(hf: Holdfast) -> None:
    with pytest.raises(UnknownTask):
        hf.call(BULK, {})


def test_its_jobs_are_kept_as_long_as_a_users() -> None:
    assert not is_internal(BULK)
