"""Claimed before there is a slot: what waits in the queue hears of everything, and costs nothing when it never runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from holdfast import Holdfast, Retry
from holdfast.store.jobs import claiming, exchanging
from holdfast.worker.claiming import claimer
from holdfast.worker.claiming.claim_ahead import ClaimAhead
from tests.support.conditions import until


@pytest.fixture(params=["sqlite", "postgres"])
async def hf(
    request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Holdfast]:
    monkeypatch.setattr(ClaimAhead, "most", 100)
    monkeypatch.setattr(ClaimAhead, "longest_wait", 60.0)
    made = new_holdfast(request.param)
    await made.open()
    yield made
    await made.close()


class Stage:
    """A worker with one slot, whose first job waits until it is let go, and others behind it in the queue."""

    def __init__(self, hf: Holdfast, **options: Any) -> None:
        self.ran: list[int] = []
        self.may_end = asyncio.Event()
        self.hf = hf

        @hf.task(name="waits", **options)
        async def waits(n: int) -> int:
            self.ran.append(n)
            if n == 0:
                await self.may_end.wait()
            return n

        self.call = waits
        self.worker = hf.worker(concurrency=1, poll=0.1, grace=5)

    async def begin(self, count: int, waiting: int, **options: Any) -> list[Any]:
        """Start *count* jobs, and wait until *waiting* of them are in the queue behind the first."""
        chains = await self.hf.start_many([self.call(n=n).options(**options) for n in range(count)])
        await self.worker.__aenter__()
        await until(lambda: self.ran == [0] and self.waiting == waiting, f"{waiting} wait behind the first")
        return chains

    @property
    def waiting(self) -> int:
        return 0 if self.worker._executor is None else len(self.worker._executor.queue)

    async def end(self) -> None:
        self.may_end.set()
        await self.worker.stop()


async def test_what_was_claimed_ahead_runs_in_its_turn(hf: Holdfast) -> None:
    stage = Stage(hf)
    chains = await stage.begin(20, waiting=19)
    waiting = [await hf.get_job(chain) for chain in chains[1:]]
    assert {(job.status, job.started_at) for job in waiting} == {("running", None)}

    stage.may_end.set()
    assert [await chain.result(timeout=20) for chain in chains] == list(range(20))
    await stage.end()

    assert stage.ran == list(range(20))
    ended = [await hf.get_job(chain) for chain in chains]
    assert all(job.started_at is not None and job.attempt == 1 for job in ended)


async def test_a_drain_gives_it_back_at_no_cost(hf: Holdfast) -> None:
    stage = Stage(hf)
    chains = await stage.begin(20, waiting=19)

    stage.worker.drain()
    await stage.end()

    jobs = [await hf.get_job(chain) for chain in chains[1:]]
    assert {(job.status, job.used, job.crashes) for job in jobs} == {("pending", 0, 0)}
    assert stage.ran == [0]


async def test_what_was_given_back_is_not_claimed_ahead_again(hf: Holdfast) -> None:
    first = Stage(hf)
    await first.begin(5, waiting=4)
    first.worker.drain()
    await first.end()

    second = Stage.__new__(Stage)
    second.__dict__.update(first.__dict__, ran=[], may_end=asyncio.Event(), worker=hf.worker(concurrency=1, poll=0.1))
    await hf.start(first.call(n=0), priority=100)
    first.ran, first.may_end = second.ran, second.may_end
    await second.worker.__aenter__()
    await until(lambda: second.ran == [0], "the first runs")
    assert second.waiting == 0  # the claim that brought it would have brought them
    second.may_end.set()
    await until(lambda: sorted(second.ran) == [0, 1, 2, 3, 4], "the others run in free slots")
    await second.worker.stop()


@pytest.mark.parametrize("options", [{"on_lost": "fail"}, {"on_lost": "pause"}, {"retry": Retry(attempts=1)}])
async def test_what_must_not_begin_twice_is_never_claimed_ahead(hf: Holdfast, options: dict[str, Any]) -> None:
    stage = Stage(hf, **options)
    chains = await stage.begin(3, waiting=0)
    assert [(await hf.get_job(chain)).status for chain in chains] == ["running", "pending", "pending"]

    stage.may_end.set()
    assert [await chain.result(timeout=20) for chain in chains] == [0, 1, 2]
    await stage.end()


async def test_a_job_with_one_attempt_of_its_own_is_never_claimed_ahead(hf: Holdfast) -> None:
    stage = Stage(hf)
    chains = await stage.begin(3, waiting=0, attempts=1)
    assert [(await hf.get_job(chain)).status for chain in chains] == ["running", "pending", "pending"]

    await stage.end()


async def test_a_cancel_reaches_what_waits(hf: Holdfast) -> None:
    stage = Stage(hf)
    chains = await stage.begin(5, waiting=4)

    await hf.cancel(chains[2])
    await until(lambda: stage.waiting == 3, "it waits no longer")
    await hf.pause(chains[3])
    await until(lambda: stage.waiting == 2, "nor does that one")
    stage.may_end.set()
    await asyncio.gather(*(chains[n].result(timeout=20) for n in (0, 1, 4)))
    await stage.end()

    assert stage.ran == [0, 1, 4]
    assert [(await hf.get_job(chain)).status for chain in chains[2:4]] == ["cancelled", "paused"]


async def test_a_handler_that_waits_is_marked_as_begun_soon(hf: Holdfast) -> None:
    begun = asyncio.Event()
    may_end = asyncio.Event()

    @hf.task
    async def quick() -> None:
        begun.set()
        await may_end.wait()

    async with hf.worker(concurrency=2, poll=0.1):
        chains = await hf.start_many([quick() for _ in range(6)])
        await begun.wait()
        may_end.set()
        for chain in chains:
            await chain.result(timeout=20)
        may_end.clear()
        stage = await hf.start_many([quick() for _ in range(4)])

        async def marks() -> int:
            return sum([(await hf.get_job(chain)).started_at is not None for chain in stage])

        async def are_two() -> bool:
            return await marks() == 2

        await until(are_two, "the two that run are marked, and the two that wait are not")
        may_end.set()
        for chain in stage:
            await chain.result(timeout=20)


async def test_slots_that_a_claim_is_for_are_not_taken_by_what_waits(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claimer, "MOST_CLAIMED", 3)
    running: list[int] = []
    may_end, overtaken, run = asyncio.Event(), asyncio.Event(), hf.store.run
    asked: list[Any] = []

    @hf.task(name="sits")
    async def sits(n: int) -> None:
        running.append(n)
        await may_end.wait()
        running.remove(n)

    async def late(operation: Any, *args: Any, **kwargs: Any) -> Any:
        """Have the answer to the first claim, which is for two slots, come behind that to the second, for none."""
        if operation is not exchanging.exchange:
            return await run(operation, *args, **kwargs)
        asked.append(args[0])
        answer = await run(operation, *args, **kwargs)
        if args[0] is asked[0]:
            assert worker._claimer is not None
            worker._claimer.wake()  # as a hint does
            await overtaken.wait()
            await until(lambda: worker._executor is not None and len(worker._executor.queue) == 3, "three wait", 5)
        elif args[0] is asked[1]:
            overtaken.set()
        return answer

    monkeypatch.setattr(hf.store, "run", late)
    worker = hf.worker(concurrency=2, poll=0.1)
    chains = await hf.start_many([sits(n=n) for n in range(6)])
    async with worker:
        await until(lambda: len(running) == 2, "two run")
        assert [(each.free, each.ahead) for each in asked[:2]] == [(2, 1), (0, 3)]
        assert sorted(running) == [0, 1]
        may_end.set()
        for chain in chains:
            await chain.result(timeout=30)


async def test_what_may_not_be_claimed_ahead_is_not_overtaken_for_ever(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClaimAhead, "most", property(lambda self: 0 if self._is_short else 100))
    gates, ran = [asyncio.Event(), asyncio.Event()], list[int]()

    @hf.task(name="quick")
    async def quick(n: int) -> None:
        ran.append(n)
        for gate in gates[n : n + 1]:
            await gate.wait()

    @hf.task(name="once", on_lost="fail")
    async def once() -> None:
        ran.append(-1)

    first, *_ = await hf.start_many([*(quick(n=n) for n in range(5)), once(), *(quick(n=n) for n in range(5, 10))])
    async with hf.worker(concurrency=1, poll=0.1) as worker:
        await until(lambda: worker._executor is not None and len(worker._executor.queue) == 9, "all that may wait do")
        later = await hf.start_many([quick(n=n) for n in range(10, 60)])
        gates[0].set()
        await first.result(timeout=20)  # its end was written, and more claimed if there was room
        gates[1].set()
        for chain in later:
            await chain.result(timeout=20)

    assert ran[:11] == [*range(10), -1]


async def test_what_waits_for_long_is_given_back_for_another_worker(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-42: else it would wait as long as the first one runs, or for ever if that waits for it."""
    stage = Stage(hf)
    chains = await stage.begin(5, waiting=4)
    learnt = asyncio.Event()

    monkeypatch.setattr(ClaimAhead, "note_given_back", lambda _: learnt.set())
    monkeypatch.setattr(ClaimAhead, "longest_wait", 0.25)
    await until(lambda: stage.waiting == 0, "what waits is given back")
    assert learnt.is_set()
    async with hf.worker(concurrency=1, poll=0.1):
        assert [await chain.result(timeout=20) for chain in chains[1:]] == [1, 2, 3, 4]
    await stage.end()

    jobs = [await hf.get_job(chain) for chain in chains]
    assert {(job.status, job.used, job.crashes) for job in jobs} == {("completed", 1, 0)}


async def test_what_only_waited_did_not_begin_whatever_becomes_of_it(hf: Holdfast) -> None:
    """It is neither interrupted, so that nobody has to resume it, nor does its row say that it ran."""
    stage = Stage(hf, on_interrupt="pause")
    chains = await stage.begin(4, waiting=3)
    executor = stage.worker._executor
    assert executor is not None

    await hf.cancel(chains[1])
    await until(lambda: stage.waiting == 2, "it waits no longer")
    stage.worker._on_fenced([job.token for _, job in executor.queue])
    await until(lambda: stage.waiting == 0, "nor do those whose leases may be over")
    stage.may_end.set()
    await asyncio.gather(*(chains[n].result(timeout=20) for n in (0, 2, 3)))
    await stage.end()

    cancelled = await hf.get_job(chains[1])
    assert (cancelled.status, cancelled.started_at) == ("cancelled", None)


async def test_a_job_whose_turn_comes_after_its_lease_was_given_up_does_not_begin(hf: Holdfast) -> None:
    """I-15: it has a slot, and waits only until the one before it lets the event loop go on."""
    ran: list[int] = []

    @hf.task(name="hogs")
    async def hogs(n: int) -> None:
        ran.append(n)
        executor = worker._executor
        if n == 0 and executor is not None:
            worker._on_fenced([job.token for job in executor._ready])

    worker = hf.worker(concurrency=10, poll=0.1)
    chains = await hf.start_many([hogs(n=n) for n in range(5)])
    monkey = pytest.MonkeyPatch()
    monkey.setattr("holdfast.worker.claiming.executor.SLICE_SECONDS", 0.0)
    async with worker:
        for chain in chains:
            await chain.result(timeout=20)
    monkey.undo()

    attempts = [(await hf.get_job(chain)).attempt for chain in chains]
    assert attempts == [1, 2, 2, 2, 2]
    assert sorted(ran) == [0, 1, 2, 3, 4]


async def test_a_row_that_somebody_has_locked_is_marked_as_begun_later(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claimer, "MARK_SECONDS", 0.2)
    mark, passed_over = claiming.mark_begun, []

    async def locked_once(tx: Any, tokens: Any) -> Any:
        """Pass over all of them once, as if somebody had their rows locked."""
        if tokens and not passed_over:
            passed_over.extend(tokens)
            return set()
        return await mark(tx, tokens)

    monkeypatch.setattr(claiming, "mark_begun", locked_once)
    begun, may_end = asyncio.Event(), asyncio.Event()

    @hf.task
    async def waits() -> None:
        begun.set()
        await may_end.wait()

    monkeypatch.setattr(claimer.Claimer, "_room", lambda self: (0, 1) if not begun.is_set() else (0, 0))
    chain = await hf.start(waits())
    async with hf.worker(concurrency=1, poll=0.1):
        await begun.wait()

        async def is_marked() -> bool:
            return (await hf.get_job(chain)).started_at is not None

        await until(is_marked, "its row says that it has begun")
        may_end.set()
        await chain.result(timeout=20)

    assert passed_over
