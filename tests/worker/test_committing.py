"""What comes behind the commit of a block: an error there is the handler's own, and the job stays completed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from holdfast import Context, Holdfast
from holdfast.fault_points import CrashPoint, arm


@pytest.fixture
def error_behind_the_commit() -> Iterator[None]:
    """Have the first completion raise where nothing should."""
    arm("block_ends.finish.after_commit:1:raise")
    yield
    arm(None)


@pytest.mark.usefixtures("error_behind_the_commit")
async def test_a_handler_that_hangs_after_an_error_behind_its_commit_is_still_stopped_in_time(
    new_holdfast: Callable[..., Holdfast],
) -> None:
    hf = new_holdfast("sqlite")
    stopped = asyncio.Event()

    @hf.task(name="hangs", timeout=1)
    async def hangs(ctx: Context) -> int:
        try:
            async with ctx.complete() as tx:
                return tx.finish(1)
        except CrashPoint:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()
        return 2

    async with hf, hf.worker():
        chain = await hf.start(hangs())
        assert await chain.result(timeout=10) == 1
        async with asyncio.timeout(10):
            await stopped.wait()
        assert (await hf.get_job(chain)).attempt == 1
