"""What a worker does before it ends: nothing that it has claimed is left behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Holdfast, Unavailable, UnknownOutcome
from holdfast.store.jobs import exchanging, settling
from holdfast.sync import Context as BlockingContext
from holdfast.worker.upkeep.liveness_lock import make_liveness_locks
from tests.support.conditions import until


@pytest.fixture(params=["sqlite", "postgres"])
async def hf(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Holdfast]:
    made = new_holdfast(request.param)
    await made.open()
    yield made
    await made.close()


class LateCommit:
    """A store whose first claim loses its answer and commits when it is told to; until then it claims nothing else."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._first: Callable[[], Any] | None = None
        self._is_committed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @property
    def is_lost(self) -> bool:
        """Tell whether the first claim was sent."""
        return self._first is not None

    async def run(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        """Run it, unless it is a claim."""
        if operation is not exchanging.exchange or self._is_committed:
            return await self._store.run(operation, *args, **kwargs)
        if self._first is None:
            self._first = lambda: self._store.run(operation, *args, **kwargs)
            raise UnknownOutcome("the answer was lost")
        raise Unavailable("it is still at the first one")

    async def commit(self) -> None:
        """Have the first claim take place after all."""
        assert self._first is not None
        await self._first()
        self._is_committed = True


async def test_a_drain_gives_back_what_a_lost_answer_had_claimed(hf: Holdfast) -> None:
    """I-50, I-55."""
    ran: list[int] = []

    @hf.task(name="counted")
    async def counted(n: int) -> None:
        ran.append(n)

    chains = await hf.start_many([counted(n=n) for n in range(3)])
    worker = hf.worker(concurrency=3, poll=0.1, grace=5)
    late = LateCommit(hf.store)
    worker._core.store = late  # type: ignore[assignment]
    async with worker:
        await until(lambda: late.is_lost, "the claim was sent")
        worker.drain()
        began = asyncio.get_running_loop().time()
        await until(lambda: asyncio.get_running_loop().time() - began > 0.3, "the loops have seen that")
        await late.commit()

    standing = [await hf.get_job(chain) for chain in chains]
    assert [(job.status, job.used) for job in standing] == [("pending", 0)] * 3
    assert not ran


@pytest.mark.parametrize("poll", [0.1, 60])
async def test_a_drain_in_doubt_ends_with_its_grace(hf: Holdfast, poll: float, monkeypatch: pytest.MonkeyPatch) -> None:
    @hf.task(name="counted")
    async def counted(n: int) -> None:
        raise AssertionError("it was never claimed")

    chain = await hf.start(counted(n=1))
    worker = hf.worker(poll=poll, grace=0.2)
    late = LateCommit(hf.store)
    worker._core.store = late  # type: ignore[assignment]
    monkeypatch.setattr("holdfast.worker.shutdown.LAST_SECONDS", 0.3)
    async with worker:
        await until(lambda: late.is_lost, "the claim was sent")
        began = asyncio.get_running_loop().time()
        await worker.stop()
        took = asyncio.get_running_loop().time() - began

    assert took < 10  # the poll may be 60 s
    assert (await hf.get_job(chain)).status == "pending"


class SlowWarnings:
    """A store that takes down what was raised after a completion only when it is told to."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.is_asked = False
        self.may_go_on = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def run(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        """Run it, a warning late."""
        if operation is settling.append_warning:
            self.is_asked = True
            await self.may_go_on.wait()
        return await self._store.run(operation, *args, **kwargs)


async def test_an_interrupt_while_a_warning_is_written_keeps_no_worker_from_its_end(hf: Holdfast) -> None:
    """The handler has ended: there is nothing left to stop."""

    @hf.task(name="raises_late")
    async def raises_late(ctx: Context) -> int:
        async with ctx.complete() as tx:
            tx.finish(1)
        raise ValueError("after the end")

    chain = await hf.start(raises_late())
    worker = hf.worker(poll=0.1, grace=0)
    slow = SlowWarnings(hf.store)
    worker._core.store = slow  # type: ignore[assignment]
    async with worker:
        await until(lambda: slow.is_asked, "the warning is about to be written")
        worker.interrupt()
        await asyncio.sleep(0)
        slow.may_go_on.set()
        worker.drain()
        assert await worker.has_ended(30)

    assert (await hf.get_job(chain)).status == "completed"
    assert "job:warning" in [event.name for event in (await hf.timeline(chain)).items]


async def test_what_a_handler_returns_long_after_the_grace_time_is_written_down(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-50: the worker has waited for it, and nothing keeps its result from being written."""
    monkeypatch.setattr("holdfast.worker.shutdown.LAST_SECONDS", 1.1)
    begun, may_end = threading.Event(), threading.Event()

    @hf.task(name="deaf", on_lost="fail")
    def deaf() -> str:
        begun.set()
        may_end.wait(20)
        return "charged"

    chain = await hf.start(deaf())
    async with hf.worker(poll=0.1, grace=0) as worker:
        await until(begun.is_set, "it runs")
        stopping = asyncio.create_task(worker.stop())
        await until(lambda: worker._core.shutdown.is_over, "the last moment of everybody else is over")
        may_end.set()
        await stopping

    job = await hf.get_job(chain)
    assert (job.status, job.output, job.used, job.crashes) == ("completed", "charged", 1, 0)


async def test_what_has_a_slot_and_has_not_begun_never_does_once_the_worker_drains(hf: Holdfast) -> None:
    """Handlers that wait begin one after the other; a stop that comes after the first one is for all of them."""
    began: list[int] = []

    @hf.task(name="waits")
    async def waits(n: int) -> None:
        began.append(n)
        if len(began) == 1:
            worker.drain()
            asyncio.get_running_loop().call_soon(worker.interrupt)
        await asyncio.Event().wait()

    chains = await hf.start_many([waits(n=n) for n in range(20)])
    worker = hf.worker(concurrency=20, poll=0.1)
    async with asyncio.timeout(20):
        await worker.run()

    jobs = [await hf.get_job(chain) for chain in chains]
    assert len(began) == 1
    assert {(job.status, job.used, job.interrupted) for job in jobs} == {("pending", 0, 1)}


async def test_a_handler_may_await_the_end_of_its_own_worker(hf: Holdfast) -> None:
    seen: list[BaseException] = []

    @hf.task(name="shuts_down")
    async def shuts_down() -> None:
        try:
            await worker.stop()
        except asyncio.CancelledError as error:
            seen.append(error)
            raise

    chain = await hf.start(shuts_down())
    worker = hf.worker(grace=0.1, poll=0.1)
    await worker.__aenter__()
    done, _ = await asyncio.wait([worker.ended], timeout=20)

    assert done
    assert seen
    assert (await hf.get_job(chain)).status == "pending"


async def test_who_waits_no_longer_for_the_end_of_a_worker_loses_nothing(hf: Holdfast) -> None:
    may_end = asyncio.Event()

    @hf.task(name="deaf")
    async def deaf() -> str:
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()
        return "done"

    chain = await hf.start(deaf())
    worker = hf.worker(grace=0.1, poll=0.1)
    await worker.__aenter__()
    await until(lambda: len(worker._core.active) == 1, "the handler runs")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await worker.stop()
    may_end.set()
    async with asyncio.timeout(20):
        await worker.ended

    job = await hf.get_job(chain)
    assert (job.status, job.output, job.used, job.crashes) == ("completed", "done", 1, 0)


async def test_who_leaves_a_worker_twice_in_a_hurry_still_has_its_ends_written(hf: Holdfast) -> None:
    """The first cancel leaves the block, and the grace time begins; the second one interrupts the handlers."""
    may_end = asyncio.Event()

    @hf.task(name="deaf")
    async def deaf() -> str:
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()
        return "done"

    async def program() -> None:
        async with worker:
            await asyncio.Event().wait()

    chain = await hf.start(deaf())
    worker = hf.worker(grace=60, poll=0.1)
    running = asyncio.create_task(program())
    await until(lambda: len(worker._core.active) == 1, "the handler runs")
    running.cancel()
    await until(lambda: worker.health().is_draining, "the worker drains")
    running.cancel()
    await until(lambda: any(each.abort_reason == "shutdown" for each in worker._core.active), "the handler is told")
    may_end.set()
    async with asyncio.timeout(20):
        with pytest.raises(asyncio.CancelledError):
            await running

    assert worker.ended.done()
    job = await hf.get_job(chain)
    assert (job.status, job.output, job.used, job.crashes) == ("completed", "done", 1, 0)


# ---- handlers that do not stop


class Deaf:
    """Tasks whose handlers go on until the test lets them, whatever they are told; *late* is what they meet then."""

    def __init__(self, hf: Holdfast, **options: Any) -> None:
        self.begun, self.may_end, self.late = threading.Event(), threading.Event(), list[str]()

        async def in_loop(ctx: Context) -> str:
            self.begun.set()
            while not self.may_end.is_set():
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)
            try:
                async with ctx.complete() as tx:
                    return tx.finish("late")
            except Exception as error:
                self.late.append(type(error).__name__)
                raise

        def in_thread(ctx: BlockingContext) -> str:
            self.begun.set()
            self.may_end.wait(60)
            try:
                with ctx.complete() as tx:
                    return tx.finish("late")
            except Exception as error:
                self.late.append(type(error).__name__)
                raise

        self.tasks: dict[str, Any] = {
            "loop": hf.task(name="in_loop", **options)(in_loop),
            "thread": hf.task(name="in_thread", **options)(in_thread),
        }


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give handlers that were told to stop only a moment."""
    monkeypatch.setattr("holdfast.worker.worker.CLEANUP_SECONDS", 0.1)


async def locked_workers(tx: Any) -> Any:
    return await tx.fetch_all("SELECT id FROM holdfast_worker WHERE lock_path IS NOT NULL")


@pytest.mark.source("PQ-54", "DF-12")
@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_a_handler_that_does_not_stop_is_left_behind_and_its_job_given_back(
    hf: Holdfast, hurry: None, where: str
) -> None:
    deaf = Deaf(hf, lease=60)
    chain = await hf.start(deaf.tasks[where]())

    async with asyncio.timeout(20), hf.worker(poll=0.1, grace=0.05) as worker:
        await until(deaf.begun.is_set, "it runs")

    job = await hf.get_job(chain)
    assert worker.ended.done()
    assert (job.status, job.used, job.crashes, job.interrupted) == ("pending", 0, 0, 1)
    assert job.run_at - job.created_at >= timedelta(seconds=60)  # not before its lease would have ended
    deaf.may_end.set()
    await until(lambda: bool(deaf.late), "it wants to complete")
    assert deaf.late == ["Aborted"]
    assert (await hf.get_job(chain)).status == "pending"


async def test_a_job_that_must_not_begin_twice_is_left_to_its_lease(hf: Holdfast, hurry: None) -> None:
    deaf = Deaf(hf, on_lost="fail")
    chain = await hf.start(deaf.tasks["thread"]())

    async with asyncio.timeout(20), hf.worker(poll=0.1, grace=0.05) as worker:
        await until(deaf.begun.is_set, "it runs")

    job = await hf.get_job(chain)
    other = make_liveness_locks(hf.store, "another")
    if other is not None:  # SQLite: the worker counts as alive, until its process ends
        await other.begin()
        assert await other.take_over_the_dead() == []
        await other.end()
        assert [row for row in await hf.store.read(locked_workers) if row[0] == worker.id]
    assert (job.status, job.crashes) == ("running", 0)
    deaf.may_end.set()
    await until(lambda: bool(deaf.late), "it wants to complete")
    assert deaf.late == ["Aborted"]


async def test_a_worker_that_is_run_ends_although_a_handler_does_not(hf: Holdfast, hurry: None) -> None:
    deaf = Deaf(hf)
    await hf.start(deaf.tasks["loop"]())
    worker = hf.worker(poll=0.1, grace=0.05)
    running = asyncio.create_task(worker.run())
    await until(deaf.begun.is_set, "it runs")

    async with asyncio.timeout(20):
        await worker.stop()
        await running

    deaf.may_end.set()
    await until(lambda: bool(deaf.late), "it wants to complete")


async def test_without_a_grace_time_a_worker_waits_for_its_handlers(hf: Holdfast, hurry: None) -> None:
    deaf = Deaf(hf)
    chain = await hf.start(deaf.tasks["thread"]())

    async with hf.worker(poll=0.1, grace=None) as worker:
        await until(deaf.begun.is_set, "it runs")
        stopping = asyncio.create_task(worker.stop())
        await until(lambda: worker.health().is_draining, "the worker drains")
        assert not await worker.has_ended(0.3)
        deaf.may_end.set()
        await stopping

    assert (await hf.get_job(chain)).output == "late"


@pytest.mark.source("PQ-54")
@pytest.mark.parametrize("where", ["loop", "thread"])
def test_a_program_ends_although_a_handler_does_not(tmp_path: Path, where: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "jobs.db"), where],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip

    assert (done.returncode, done.stdout, done.stderr) == (0, "pending\n", "")


PROGRAM = """
import asyncio, sys, time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from holdfast import Holdfast
from holdfast.worker import worker

worker.CLEANUP_SECONDS = 0.1
hf, begun = Holdfast(sys.argv[1]), []

@hf.task(name="loop")
async def in_loop() -> None:
    begun.append(1)
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.01)

@hf.task(name="thread")
def in_thread() -> None:
    begun.append(1)
    while True:
        time.sleep(0.01)

async def main() -> None:
    async with hf:
        chain = await hf.start(hf.call(sys.argv[2], {}))
        async with hf.worker(grace=0.05, poll=0.1):
            while not begun:
                await asyncio.sleep(0.01)
        print((await hf.get_job(chain)).status)

import logging
logging.disable()
asyncio.run(main())
"""


class Silent:
    """A store that can fall silent: from then on, what it is to write waits until it is given up."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.is_silent = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def run(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        """Run it, or have nobody answer."""
        if self.is_silent:
            await asyncio.Event().wait()
        return await self._store.run(operation, *args, **kwargs)


async def test_a_stop_ends_well_although_what_ended_cannot_be_written(hf: Holdfast) -> None:
    """PQ-54: it ends in time and is not cancelled, and the job is left to its lease."""
    begun = asyncio.Event()

    @hf.task(name="waits")
    async def waits() -> None:
        begun.set()
        await asyncio.Event().wait()

    worker = hf.worker(poll=0.1, grace=0)
    worker._core.store = silent = Silent(hf.store)  # type: ignore[assignment]
    async with asyncio.timeout(20), worker:
        chain = await hf.start(waits())
        await asyncio.wait_for(begun.wait(), 10)
        silent.is_silent = True

    assert worker.ended.done()
    assert not worker.ended.cancelled()
    assert str((await hf.get_job(chain)).status) == "running"
