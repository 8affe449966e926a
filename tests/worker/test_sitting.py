"""A handler that sits in its block on SQLite: the others go on, and its time has an end (Q-06, I-67)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Holdfast, Retry
from tests.store.open_blocks import bills, make_table
from tests.support.conditions import until
from tests.worker.colours import Colour, Witness

ONCE = Retry.never()
PAY = "INSERT INTO bill (id, amount) VALUES (:id, 1)"


@pytest.mark.parametrize("is_async", [True, False])
async def test_who_sits_in_a_block_for_too_long_loses_it_and_is_told(
    new_holdfast: Callable[..., Holdfast], is_async: bool
) -> None:
    """F-53."""
    hf = new_holdfast("sqlite", transaction_seconds=0.4)
    await hf.open()
    await hf.store.run(make_table)
    colour, witness = Colour(hf, is_async), Witness()

    async def sits(ctx: Any, n: int) -> Any:
        async with witness.watching(), ctx.complete() as tx:
            await tx.execute(PAY, id=1)
            witness.reached.set()
            await colour.wait(witness.gate)
            return tx.finish(1)

    task = colour.task(sits, int, retry=ONCE)
    async with hf.worker():
        chain = await hf.start(task())
        await until(witness.reached.is_set, "it sits in its block")
        began = time.monotonic()
        await hf.start(task(), delay=60)  # waits for the right to write, and gets it
        took = time.monotonic() - began
        witness.gate.set()
        await colour.until_status(chain, "failed")

    assert witness.codes == ["transaction_timeout"]
    assert took < 3
    assert await hf.store.read(bills) == []


async def test_while_one_sits_fifty_others_keep_their_leases(new_holdfast: Callable[..., Holdfast]) -> None:
    """F-53."""
    hf = new_holdfast("sqlite", transaction_seconds=5)
    ended: list[int] = []
    gate, sitting = asyncio.Event(), asyncio.Event()
    await hf.open()
    await hf.store.run(make_table)

    @hf.task(name="sits")
    async def sits(ctx: Context) -> None:
        async with ctx.complete() as tx:
            await tx.execute(PAY, id=1)
            sitting.set()
            await asyncio.sleep(3)  # in which the leases of the others are to be renewed
            await tx.execute(PAY, id=2)

    @hf.task(name="works", lease=5)
    async def works(n: int) -> int:
        await gate.wait()
        ended.append(n)
        return n

    async with hf.worker(concurrency=60) as worker:
        others = await hf.start_many([works(n=n) for n in range(50)])
        await until(lambda: worker.health().running == 50, "fifty run")
        sitter = await hf.start(sits())
        await asyncio.wait_for(sitting.wait(), 10)
        began = time.monotonic()
        started = await hf.start(works(n=50))
        took = time.monotonic() - began
        await sitter.result(timeout=15)
        gate.set()
        await hf.wait([*others, started], timeout=20)

    jobs = [await hf.get_job(each) for each in others]
    assert sorted(ended) == list(range(51))
    assert {(job.attempt, job.crashes) for job in jobs} == {(1, 0)}
    assert took < 5
    assert await hf.store.read(bills) == [1, 2]
