"""A bad network between a worker and PostgreSQL: slow, cut, silent or losing packets, it delays work and costs none."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Context, Holdfast, Tasks
from holdfast.errors import StoreError
from holdfast.outcomes import Retry
from holdfast.worker.claiming import batch_size, unknown_claims
from holdfast.worker.upkeep import reaper
from tests.acceptance.hall import Hall, NewHoldfast, reaped, rows, until_counts, until_past
from tests.conftest import SCHEMA
from tests.support.conditions import until
from tests.support.faults.fault_proxy import FaultProxy
from tests.support.faults.lossy_network import LossyNetwork, NoNamespace, lossy_network
from tests.support.log_lines import name_of

# what a busy machine may add to a promised time
NOISE = 10.0


@pytest.fixture
def proxy(empty_url: str) -> Iterator[FaultProxy]:
    """A proxy with faults in front of the database of this test."""
    with FaultProxy(empty_url) as made:
        yield made


def through(proxy: FaultProxy, tasks: Tasks, **options: Any) -> Holdfast:
    """Make a face that reaches its database through *proxy*."""
    return Holdfast(proxy.url, schema_name=SCHEMA, tasks=[tasks], **options)


async def assert_all_ran_once(hf: Holdfast, ran: Counter[int], count: int) -> None:
    """Assert that each of *count* jobs ran once, completed once, and was charged with nothing."""
    completions = Counter(
        job for (job,) in await rows(hf, "SELECT job FROM holdfast_event WHERE name = 'job:completed'")
    )
    assert ran == dict.fromkeys(range(count), 1)
    assert (len(completions), set(completions.values())) == (count, {1})
    assert await rows(hf, "SELECT max(used), max(crashes), count(error) FROM holdfast_job") == [(1, 0, 0)]
    assert await reaped(hf) == 0


@pytest.fixture
def network() -> Iterator[LossyNetwork]:
    """A network that can lose packets; skipped where none can be made."""
    try:
        with lossy_network() as made:
            yield made
    except NoNamespace as error:
        pytest.skip(f"F-12 is not shown: {error}")


@pytest.mark.long
async def test_a_network_that_loses_every_packet_is_found_out_and_costs_nothing(
    network: LossyNetwork, empty_url: str, new_holdfast: NewHoldfast
) -> None:
    """F-12: also by a statement of the user's, which has no deadline of ours; renewal is judged for itself."""
    hall = Hall()
    raised: list[float] = []
    is_lost = asyncio.Event()

    @hall.tasks.task(name="asks", retry=Retry(first=0.05, maximum=0.05, jitter=0))
    async def asks(ctx: Context) -> None:
        async with ctx.complete() as tx:
            hall.begun.append(ctx.job.id)
            await is_lost.wait()
            began = time.monotonic()
            try:
                await tx.fetch_all("SELECT 1")
            except Exception:
                raised.append(time.monotonic() - began)
                raise
            tx.finish(None)

    beside = new_holdfast("postgres", tasks=[hall.tasks])
    with FaultProxy(empty_url, network.listening) as proxy:
        async with beside, through(proxy, hall.tasks) as hf, hf.worker(poll=0.1):
            await beside.start_many([hall.waits(), asks()])
            await until(lambda: len(hall.begun) == 2, "both handlers run")

            network.lose()
            is_lost.set()
            began = time.monotonic()
            with pytest.raises(StoreError):
                await hf.start(hall.waits())
            told = time.monotonic() - began
            await until(lambda: len(raised) == 1, "the user's own statement ends", 15)
            stopped = dict(hall.stopped)
            network.carry()
            hall.gate.set()
            await until_counts(beside, 30, completed=2)

    assert told < 5 + NOISE
    assert raised[0] < 5 + NOISE
    assert stopped == {}
    assert await reaped(beside) == 0
    await beside.close()


def stop_backend(process: int) -> None:
    """Have a process of the server stand still, if it is one of this machine and of ours."""
    try:
        if b"postgres" not in Path(f"/proc/{process}/cmdline").read_bytes():
            pytest.skip("F-13 is not shown: the server runs on another machine")
        os.kill(process, signal.SIGSTOP)
    except OSError as error:
        pytest.skip(f"F-13 is not shown: {error}")


async def test_a_backend_that_stands_still_is_left_alone_and_its_connection_is_thrown_away(
    new_holdfast: NewHoldfast, empty_url: str, own_connections: None
) -> None:
    """F-13: the connection lives and never answers; nobody waits longer than the deadline, or for it a second time."""
    hall = Hall()
    hf = new_holdfast("postgres", tasks=[hall.tasks], pool_size=1, deadline_seconds=0.5)
    await hf.start(hall.waits())
    ours = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast'"
    with psycopg.connect(empty_url, autocommit=True) as person:
        ((process,),) = person.execute(ours).fetchall()
        stop_backend(process)
        try:
            began = time.monotonic()
            with pytest.raises(StoreError):
                await hf.start(hall.waits())
            told = time.monotonic() - began
            await hf.start(hall.waits())
        finally:
            os.kill(process, signal.SIGCONT)

        assert told < 0.5 + NOISE
        await until(lambda: (process,) not in person.execute(ours).fetchall(), "the old connection is gone")
    await hf.close()


SLOW: dict[str, dict[str, float]] = {
    "latency": {"latency": 0.03, "jitter": 0.03},
    "slices": {"slice_bytes": 512, "slice_pause": 0.05},
    "one byte at a time": {"slice_bytes": 1},
}
"""What a network does to every packet; all is shorter here than with a lease of 30 s."""


@pytest.mark.long
@pytest.mark.parametrize("name", SLOW)
async def test_a_slow_network_costs_time_and_no_lease(
    name: str, proxy: FaultProxy, new_holdfast: NewHoldfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-14."""
    monkeypatch.setattr(reaper, "PERIOD_SECONDS", 0.5)
    lease = 9.0
    hall = Hall(lease)
    beside = new_holdfast("postgres", tasks=[hall.tasks])
    async with beside, through(proxy, hall.tasks, deadline_seconds=20) as hf, hf.worker(poll=0.1):
        await hf.start(hall.waits())  # what is sent once for each connection is not sent slowly
        await until(lambda: len(hall.begun) == 1, "the first handler runs")
        for fault, value in SLOW[name].items():
            setattr(proxy, fault, value)
        async with beside.worker(poll=0.1):
            chains = await hf.start_many([hall.waits().options(lane=f"lane-{n % 3}") for n in range(6)])
            await until_past(1.2 * lease)
            hall.gate.set()
            await until_counts(beside, 60, completed=7)

    assert len(hall.begun) == len(set(hall.begun)) == 1 + len(chains)
    assert hall.stopped == {}
    assert await reaped(beside) == 0
    await beside.close()


LARGE, COUNT, LINE = 100_000, 20, 1_000_000
"""So many results, of so many bytes, over a line of so many bytes a second; their deadline is a fifth of the usual."""


class LargeResults:
    """A task with large results, whose handlers wait until the test lets them go."""

    def __init__(self) -> None:
        self.tasks = Tasks()
        self.gate = asyncio.Event()
        self.begun: list[int] = []

        @self.tasks.task(name="large")
        async def large(n: int) -> str:
            self.begun.append(n)
            await self.gate.wait()
            return "x" * LARGE

        self.large = large

    async def all_return_over_a_slow_line(self, beside: Holdfast, proxy: FaultProxy) -> None:
        """Have all handlers run, and return when the line has become slow."""
        await beside.start_many([self.large(n=n) for n in range(COUNT)])
        await until(lambda: len(self.begun) == COUNT, "all handlers run")
        proxy.bandwidth = LINE
        self.gate.set()


@pytest.mark.long
async def test_results_that_miss_their_deadline_together_are_written_in_smaller_batches(
    proxy: FaultProxy, new_holdfast: NewHoldfast, caplog: pytest.LogCaptureFixture
) -> None:
    """F-14, I-63: and the log says what is so."""
    results = LargeResults()
    beside = new_holdfast("postgres", tasks=[results.tasks])
    async with beside, through(proxy, results.tasks, deadline_seconds=1) as hf, hf.worker(poll=0.1):
        await results.all_return_over_a_slow_line(beside, proxy)
        await until_counts(beside, 60, completed=COUNT)

    missed = [each.__dict__ for each in caplog.records if name_of(each) == "exchange_not_answered"]
    assert missed[0]["jobs"] > 1
    assert missed[0]["bytes"] > LINE
    assert "the database did not answer within 1 s" in missed[0]["reason"]
    assert "cannot be reached" not in " ".join(str(each.__dict__.get("reason")) for each in caplog.records)
    assert await rows(beside, "SELECT max(attempt), max(used), max(crashes) FROM holdfast_job") == [(1, 1, 0)]
    await beside.close()


@pytest.mark.long
async def test_a_drain_on_a_slow_network_costs_no_attempt(
    proxy: FaultProxy, new_holdfast: NewHoldfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-14, I-50: what cannot be written in time is given back."""
    monkeypatch.setattr(batch_size, "MOST_BYTES", 2 * LARGE)
    results = LargeResults()
    beside = new_holdfast("postgres", tasks=[results.tasks])
    async with beside, through(proxy, results.tasks) as hf:
        async with hf.worker(poll=0.1, grace=0):
            await results.all_return_over_a_slow_line(beside, proxy)
            proxy.bandwidth = LINE / 4
        ended = await rows(beside, "SELECT DISTINCT status, used, crashes FROM holdfast_job ORDER BY status")
        await hf.close()

    assert ended == [("completed", 1, 0), ("pending", 0, 0)]
    await beside.close()


@pytest.mark.parametrize("what", ["cut", pytest.param("before", marks=pytest.mark.long), "after"])
async def test_connections_that_are_cut_all_the_time_lose_and_double_nothing(
    what: Any, proxy: FaultProxy, new_holdfast: NewHoldfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-15, F-16, I-55: whatever was being sent, and also if it was COMMIT and its answer is lost."""
    monkeypatch.setattr(unknown_claims, "DOUBT_SECONDS", 1.0)  # what was cut is not under way any more
    count = 100
    tasks = Tasks()
    ran: Counter[int] = Counter()

    @tasks.task(name="one")
    async def one(n: int) -> None:
        ran[n] += 1
        await asyncio.sleep(0.01)

    beside = new_holdfast("postgres", tasks=[tasks])
    async with beside, through(proxy, tasks) as hf:
        await beside.start_many([one(n=n).options(lane=f"lane-{n % 40}") for n in range(count)])
        async with hf.worker(concurrency=10, poll=0.05):
            for step in range(1, 9):
                await until(lambda: len(ran) >= 10 * step, "some more have run", 20)  # noqa: B023 - called at once
                if what == "cut":
                    proxy.cut()
                else:
                    proxy.cut_at_commit = what
            await until_counts(beside, 30, completed=count)

    await assert_all_ran_once(beside, ran, count)
    assert what == "cut" or proxy.cuts > 2
    await beside.close()


@pytest.mark.parametrize("what", ["before", "after"])
async def test_a_start_whose_commit_is_cut_is_made_once_and_given_to_its_caller(
    what: Any, proxy: FaultProxy, new_holdfast: NewHoldfast
) -> None:
    """F-16, I-04: under the id that it had from the beginning, with its key, its lane and its webhook."""
    hall = Hall()
    beside = new_holdfast("postgres", tasks=[hall.tasks])
    async with beside, through(proxy, hall.tasks) as hf:
        await hf.start(hall.waits(), unique="other")
        proxy.cut_at_commit = what

        chain = await hf.start(hall.waits(), unique="key", lane="lane", webhook="https://example.com")
        again = await hf.start(hall.waits(), unique="key")

        assert proxy.cuts == 1
        assert again.id == chain.id
        assert await rows(beside, "SELECT count(*) FROM holdfast_job WHERE lane = 'lane'") == [(1,)]
        assert await rows(beside, "SELECT count(*) FROM holdfast_event WHERE name = 'job:enqueued'") == [(2,)]
    await beside.close()
