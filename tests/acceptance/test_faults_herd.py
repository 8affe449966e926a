"""Everybody at once: many workers, thousands of jobs, the end of an outage; judged by counts, not by times."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Holdfast, Tasks
from tests.acceptance.hall import Crowd, NewHoldfast, deadlocks, reaped, rows, until_counts, until_past
from tests.conftest import SCHEMA
from tests.support.conditions import until
from tests.support.faults.fault_proxy import FaultProxy


@pytest.fixture
def proxy(empty_url: str) -> Iterator[FaultProxy]:
    """A proxy in front of the database of this test, which counts."""
    with FaultProxy(empty_url) as made:
        yield made


class Herd:
    """Workers that come to their database together, each with a face of its own."""

    def __init__(self, proxy: FaultProxy, count: int) -> None:
        self.ran: Counter[int] = Counter()
        self.tasks = Tasks()
        self.crowds = [Crowd() for _ in range(count)]

        @self.tasks.task(name="one")
        async def one(n: int) -> None:
            self.ran[n] += 1
            await asyncio.sleep(0)

        self.one = one
        self.faces = [Holdfast(proxy.url, schema_name=SCHEMA, tasks=[self.tasks], pool_size=2) for _ in range(count)]

    async def come(self, stack: AsyncExitStack, concurrency: int) -> None:
        """Begin to work, all at the same time."""
        for face in self.faces:
            await stack.enter_async_context(face)
        workers = [
            face.worker(concurrency=concurrency, poll=0.5, middleware=[crowd])
            for face, crowd in zip(self.faces, self.crowds, strict=True)
        ]
        await asyncio.gather(*(stack.enter_async_context(worker) for worker in workers))


@pytest.mark.long
async def test_thousands_of_jobs_that_are_due_in_one_millisecond_are_taken_in_bounded_batches(
    proxy: FaultProxy, new_holdfast: NewHoldfast, empty_url: str
) -> None:
    """F-43, P-24, P-26, I-62: nobody takes more than it can run, and a job costs less than a round trip."""
    count, before = 5_000, deadlocks(empty_url)
    herd = Herd(proxy, 8)
    beside = new_holdfast("postgres", tasks=[herd.tasks])
    async with beside, AsyncExitStack() as stack:
        at = datetime.now(UTC) + timedelta(seconds=3)
        for begin in range(0, count, 1000):
            await beside.start_many([herd.one(n=n).options(run_at=at) for n in range(begin, begin + 1000)])
        await herd.come(stack, concurrency=20)
        proxy.round_trips = 0
        await until(lambda: len(herd.ran) == count, "all have run", 60)
        spent = proxy.round_trips
        await until_counts(beside, 30, completed=count)

    assert set(herd.ran.values()) == {1}
    assert max(crowd.most for crowd in herd.crowds) <= 20
    assert spent < count
    assert await reaped(beside) == 0
    await beside.close()
    assert deadlocks(empty_url) == before


@pytest.mark.long
async def test_a_herd_comes_back_from_an_outage_without_a_stampede(
    proxy: FaultProxy, new_holdfast: NewHoldfast
) -> None:
    """F-43, F-15: who cannot connect waits longer each time, and everything goes on when the outage is over."""
    herd = Herd(proxy, 10)
    beside = new_holdfast("postgres", tasks=[herd.tasks])
    async with beside, AsyncExitStack() as stack:
        await herd.come(stack, concurrency=5)
        await beside.start_many([herd.one(n=n) for n in range(100)])
        await until(lambda: len(herd.ran) == 100, "the herd works", 20)

        proxy.accepted = 0
        is_over = asyncio.create_task(until_past(3))
        while not is_over.done():
            proxy.cut()
            await asyncio.sleep(0.005)
        tried = proxy.accepted
        await beside.start_many([herd.one(n=n) for n in range(100, 200)])
        await until_counts(beside, 30, completed=200)

    assert set(herd.ran.values()) == {1}
    assert tried < 10 * 3 * 40  # each has a few connections, and tries some times in a second
    assert await rows(beside, "SELECT max(used), max(crashes) FROM holdfast_job") == [(1, 0)]
    await beside.close()
