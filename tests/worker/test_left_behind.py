"""What a handler has begun and not ended when its attempt is over: a task of its own, a statement under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Holdfast, Misuse, Retry
from tests.worker.colours import Colour

PAY = "INSERT INTO bill (id, amount) VALUES (:id, 1)"


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
@pytest.mark.parametrize("is_made_before", [True, False])
async def test_a_task_that_outlives_its_handler_opens_no_block(
    new_holdfast: Callable[..., Holdfast], database: str, is_made_before: bool
) -> None:
    hf = new_holdfast(database)
    has_ended = asyncio.Event()
    left: list[asyncio.Task[None]] = []

    @hf.task(name="hasty")
    async def hasty(ctx: Context) -> int:
        made = ctx.complete() if is_made_before else None

        async def later() -> None:
            await has_ended.wait()
            async with made or ctx.complete() as tx:
                tx.finish(2)

        left.append(asyncio.create_task(later()))
        return 1

    async with hf, hf.worker():
        chain = await hf.start(hasty())
        assert await chain.result(timeout=10) == 1
        has_ended.set()
        with pytest.raises(Misuse, match="the handler has ended"):
            await asyncio.wait_for(left[0], 10)


@pytest.mark.parametrize("colour", ["postgres-async", "postgres-plain"], indirect=True)
async def test_a_time_out_within_a_statement_breaks_it_off_only_in_an_async_handler(colour: Colour) -> None:
    returned: list[int] = []

    async def slow(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await tx.execute(PAY, id=1)
            await tx.fetch_one("SELECT 1 FROM pg_sleep(1)")
            returned.append(n)
            return tx.finish(1)

    task = colour.task(slow, int, timeout=0.1, retry=Retry.never())
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=7))
        await colour.until_status(chain, "failed")

    assert returned == ([] if colour.is_async else [7])
    assert (await colour.error(chain)).startswith("TimeoutError")
    assert await colour.bills() == []
