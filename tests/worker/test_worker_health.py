"""A worker says how it is: before, while and after it works, and while its store or a handler is in trouble."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import Holdfast, Unavailable
from holdfast.version import VERSION
from holdfast.worker.attempts import attempt
from tests.support.conditions import until


@pytest.fixture(params=["sqlite", "postgres"])
async def hf(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Holdfast]:
    made = new_holdfast(request.param)
    await made.open()
    yield made
    await made.close()


class Broken:
    """A store that can be made unavailable."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.is_down = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def run(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        """Run it, or refuse."""
        if self.is_down:
            raise Unavailable("the store is down")
        return await self._store.run(operation, *args, **kwargs)


async def test_a_worker_is_listed_with_what_it_serves_while_it_works(hf: Holdfast) -> None:
    gate = asyncio.Event()

    @hf.task(name="waits", queue="slow")
    async def waits() -> None:
        await gate.wait()

    async with hf.worker(concurrency=7, name="ada") as worker:
        await until(lambda: worker.health().hints != "polling", "hints reach it", 20)
        await hf.start(waits())
        await until(lambda: worker.health().running == 1, "the handler runs")
        (listed,) = await hf.list_workers()
        served = {each.name: each.served_by for each in await hf.list_queues()}
        (task,) = await hf.list_tasks()
        gate.set()

    assert (listed.id, listed.name, listed.is_alive, listed.running) == (worker.id, "ada", True, 1)
    assert (listed.queues, listed.tasks) == (("default", "slow"), ("waits",))
    assert (listed.slots or 0) >= 7  # and those for webhooks
    assert (listed.pid, listed.version) == (os.getpid(), VERSION)
    assert listed.hint_mode in ("watching", "listening", "polling")
    assert served == {"default": (worker.id,), "slow": (worker.id,)}
    assert (task.name, task.served_by) == ("waits", (worker.id,))
    assert await hf.list_workers() == []


async def test_the_row_of_a_sleeping_worker_says_how_it_hears_of_new_work(hf: Holdfast) -> None:
    @hf.task(name="nothing")
    async def nothing() -> None: ...

    wanted = "watching" if hf.store.database == "sqlite" else "listening"

    async def says_so() -> bool:
        return [each.hint_mode for each in await hf.list_workers()] == [wanted]

    async with hf.worker():
        await until(says_so, f"its row says {wanted}")


async def test_health_follows_the_life_of_a_worker(hf: Holdfast) -> None:
    gate = asyncio.Event()

    @hf.task(name="waits")
    async def waits() -> None:
        await gate.wait()

    before = datetime.now(UTC)
    worker = hf.worker()
    unborn = worker.health()
    async with worker:
        await until(lambda: worker.health().claimed_at is not None, "it has asked for work")
        chain = await hf.start(waits())
        await until(lambda: worker.health().running == 1, "the handler runs")
        working = worker.health()
        worker.drain()
        draining = worker.health()
        gate.set()
    ended = worker.health()

    assert (unborn.since, unborn.claimed_at, unborn.running, unborn.is_draining) == (None, None, 0, False)
    assert working.id == worker.id
    assert working.since is not None
    assert working.claimed_at is not None
    assert before.timestamp() - 0.1 <= working.since.timestamp() <= working.claimed_at.timestamp() + 0.1
    assert (working.trouble_since, working.stubborn, working.is_draining) == (None, (), False)
    assert draining.is_draining
    assert draining.running == 1
    assert ended.running == 0
    assert (await hf.get_job(chain)).status == "completed"


async def test_health_says_how_new_work_is_heard_of(new_holdfast: Callable[..., Holdfast]) -> None:
    """F-22."""
    here, there, pooled = new_holdfast("sqlite"), new_holdfast("postgres"), None
    pooled = new_holdfast("postgres", transaction_pooler=True)
    async with here, there, pooled, here.worker() as one, there.worker() as two, pooled.worker() as three:
        await until(lambda: two.health().hints == "listening", "the line to PostgreSQL works", 20)

        assert one.health().hints == "watching"
        assert three.health().hints == "polling"


async def test_health_tells_a_store_that_is_down_and_when_it_is_back(hf: Holdfast) -> None:
    """F-18."""

    @hf.task(name="quick")
    async def quick() -> None:
        pass

    worker = hf.worker(poll=0.1)
    broken = Broken(hf.store)
    worker._core.store = broken  # type: ignore[assignment]
    async with worker:
        await until(lambda: worker.health().claimed_at is not None, "it has asked for work")
        broken.is_down = True
        chain = await hf.start(quick())
        await until(lambda: worker.health().trouble_since is not None, "it says that the store is in trouble")
        await until(lambda: str(worker.health().trouble).endswith("the store is down"), "it says what the trouble is")
        broken.is_down = False
        await until(lambda: worker.health().trouble_since is None, "it says that the store is back")
        assert worker.health().trouble is None
        await chain.result(timeout=5)


async def test_health_tells_a_handler_that_does_not_stop(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """F-08, I-34."""
    monkeypatch.setattr(attempt, "STUBBORN_SECONDS", 0.1)
    gate = threading.Event()

    @hf.task(name="deaf")
    def deaf() -> None:
        gate.wait(20)

    async with hf.worker() as worker:
        chain = await hf.start(deaf())
        await until(lambda: worker.health().running == 1, "it runs")
        await hf.cancel(chain)
        await until(lambda: worker.health().stubborn == (str(chain.id),), "it does not stop")
        gate.set()
        await until(lambda: worker.health().stubborn == (), "it has stopped")


async def test_health_tells_a_handler_that_overruns_its_time_out(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """F-08."""
    monkeypatch.setattr(attempt, "STUBBORN_SECONDS", 0.1)
    gate = threading.Event()

    @hf.task(name="late", timeout=0.1)
    def late() -> None:
        gate.wait(20)

    async with hf.worker() as worker:
        chain = await hf.start(late())
        await until(lambda: worker.health().stubborn == (str(chain.id),), "it does not stop")
        gate.set()
        await until(lambda: worker.health().stubborn == (), "it has stopped")


async def test_health_tells_from_another_thread_that_the_loop_is_blocked(hf: Holdfast) -> None:
    """F-09."""
    seen: list[float] = []

    @hf.task(name="blocks", lease=1)
    async def blocks() -> None:
        began = time.monotonic()
        while not seen and time.monotonic() - began < 10:
            time.sleep(0.05)

    def watch() -> None:
        began = time.monotonic()
        while time.monotonic() - began < 10:
            if (lag := worker.health().loop_lag) > 0.5:
                seen.append(lag)
                return
            time.sleep(0.02)

    async with hf.worker() as worker:
        watcher = asyncio.get_running_loop().run_in_executor(None, watch)
        await (await hf.start(blocks())).result(timeout=15)
        await watcher

    assert seen


async def test_a_worker_that_never_began_has_nothing_unwritten(hf: Holdfast) -> None:
    assert not hf.worker().has_unwritten
