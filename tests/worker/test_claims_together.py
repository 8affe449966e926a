"""Handlers that end their jobs by blocks, one by one: their slots are claimed for together, and soon."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from math import inf
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.store.jobs import claiming
from holdfast.store.jobs.exchanging import exchange
from holdfast.worker.claiming.claimer import LONGEST_REST
from holdfast.worker.worker import Worker
from tests.support.conditions import until

SLOTS = 8


@pytest.fixture(params=["sqlite", "postgres"])
async def hf(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Holdfast]:
    made = new_holdfast(request.param)
    await made.open()
    yield made
    await made.close()


class Stage:
    """Handlers that begin, wait until they are let go, and complete their jobs by a block."""

    def __init__(self, hf: Holdfast) -> None:
        self.begun: list[int] = []
        self._gates: dict[int, asyncio.Event] = defaultdict(asyncio.Event)

        @hf.task(name="waits")
        async def waits(ctx: Context, n: int) -> None:
            self.begun.append(n)
            await self._gates[n].wait()
            async with ctx.complete() as tx:
                tx.finish()

        self.task = waits

    async def let_go(self, n: int, worker: Worker) -> None:
        """Let a handler end, and wait until its slot is free."""
        running = worker.health().running
        self._gates[n].set()
        await until(lambda: worker.health().running == running - 1, f"handler {n} has ended")

    def let_all_go(self, count: int) -> None:
        """Let every handler end."""
        for n in range(count):
            self._gates[n].set()


async def test_slots_that_come_free_one_by_one_are_claimed_for_together(hf: Holdfast) -> None:
    stage = Stage(hf)
    await hf.start_many([stage.task(n=n) for n in range(12)])
    async with hf.worker(concurrency=SLOTS) as worker:
        await until(lambda: len(stage.begun) == SLOTS, "all slots are taken")
        assert worker._claimer is not None
        worker._claimer._rests_until = inf  # as if the last claim had taken that long

        await stage.let_go(0, worker)
        await stage.let_go(1, worker)
        assert len(stage.begun) == SLOTS

        stage._gates[2].set()
        await until(lambda: len(stage.begun) == SLOTS + 3, "three are claimed, as more than a quarter is free")
        assert worker._claimer._rests_until < inf
        stage.let_all_go(12)


async def test_a_claim_behind_the_last_one_with_nothing_to_settle_is_one_statement(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, asked, run = Stage(hf), list[object](), hf.store.run

    async def noted(operation: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(operation)
        return await run(operation, *args, **kwargs)

    await hf.start_many([stage.task(n=n) for n in range(12)])
    async with hf.worker(concurrency=SLOTS) as worker:
        await until(lambda: len(stage.begun) == SLOTS, "all slots are taken")
        assert worker._claimer is not None
        worker._claimer._handlers.position._whole_at = inf  # as if everything had just been looked at
        monkeypatch.setattr(hf.store, "run", noted)

        for n in range(3):
            stage._gates[n].set()
        await until(lambda: len(stage.begun) == SLOTS + 3, "three are claimed")

        assert claiming.claim in asked
        assert exchange not in asked
        stage.let_all_go(12)


async def test_a_slot_that_comes_free_alone_is_claimed_for_soon(hf: Holdfast) -> None:
    stage = Stage(hf)
    await hf.start_many([stage.task(n=n) for n in range(SLOTS + 1)])
    async with hf.worker(concurrency=SLOTS, poll=3600) as worker:
        await until(lambda: len(stage.begun) == SLOTS, "all slots are taken")
        assert worker._claimer is not None
        worker._claimer._rests_until = hf._runtime.monotonic() + LONGEST_REST

        stage._gates[0].set()

        await until(lambda: len(stage.begun) == SLOTS + 1, "one is claimed when the rest is over")
        stage.let_all_go(SLOTS + 1)


async def test_a_hint_is_heard_by_a_worker_whose_slots_are_not_all_taken(hf: Holdfast) -> None:
    stage = Stage(hf)
    async with hf.worker(concurrency=SLOTS, poll=3600) as worker:
        for n in range(3):
            await hf.start(stage.task(n=n))
            await until(lambda n=n: stage.begun == [*range(n + 1)], "its handler has begun")  # type: ignore[misc]

        assert worker.health().running == 3
        stage.let_all_go(3)
