"""Jobs that may have killed their process: they run alone, wait for that, and hold nobody up for long (I-24)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from holdfast import Chain, Holdfast
from holdfast.worker.claiming import dispatcher
from tests.support.conditions import until


@pytest.fixture(params=["sqlite", "postgres"])
async def hf(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Holdfast]:
    made = new_holdfast(request.param)
    await made.open()
    yield made
    await made.close()


class Stage:
    """Handlers for a test: `long` runs until it is let go, `suspect` notes who runs beside it, `short` just ends."""

    def __init__(self, hf: Holdfast) -> None:
        self.gates: dict[int, asyncio.Event] = {}
        self.running: set[str] = set()
        self.beside: list[set[str]] = []

        @hf.task(name="long")
        async def long(n: int) -> None:
            self.running.add(f"long {n}")
            await self.gates.setdefault(n, asyncio.Event()).wait()
            self.running.discard(f"long {n}")

        @hf.task(name="suspect")
        async def suspect(n: int) -> None:
            self.beside.append(set(self.running))

        @hf.task(name="short")
        async def short(n: int) -> int:
            return n

        self.long, self.suspect, self.short = long, suspect, short

    def let_go(self, n: int) -> None:
        """Let a long handler end."""
        self.gates.setdefault(n, asyncio.Event()).set()


async def start_suspects(hf: Holdfast, stage: Stage, count: int) -> list[Chain[None]]:
    """Start jobs whose process has died under them twice."""
    suspects = await hf.start_many([stage.suspect(n=n).options(paused=True, priority=9) for n in range(count)])

    async def crash(tx: Any) -> None:
        await tx.execute("UPDATE holdfast_job SET crashes = 2 WHERE task = 'suspect'")

    await hf.store.run(crash)
    await hf.resume_many(suspects)
    return suspects


async def given_back(hf: Holdfast) -> int:
    async def count(tx: Any) -> int:
        sql = "SELECT count(*) FROM holdfast_event WHERE name = 'job:rescheduled'"
        return int((await tx.fetch_all(sql))[0][0])

    return await hf.store.read(count)


@pytest.mark.parametrize("count", [1, 4])
async def test_a_long_handler_beside_waiting_suspects_does_not_idle_the_other_slots(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(dispatcher, "ALONE_SECONDS", 0.2)
    stage = Stage(hf)

    async with hf.worker(concurrency=4, poll=0.1):
        await hf.start(stage.long(n=0))
        await until(lambda: stage.running == {"long 0"}, "the long one runs")
        suspects = await start_suspects(hf, stage, count)
        await until(lambda: _is(given_back(hf), at_least=1), "a suspect was given back")
        shorts = await hf.start_many([stage.short(n=n) for n in range(20)])
        await hf.wait(shorts, timeout=10)
        has_waited = not stage.beside
        stage.let_go(0)
        await hf.wait(suspects, timeout=20)

    assert has_waited
    assert stage.beside == [set()] * count


async def _is(number: Any, at_least: int) -> bool:
    return bool(await number >= at_least)


async def test_a_suspect_is_not_starved_by_handlers_that_overlap(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "ALONE_SECONDS", 0.01)
    stage = Stage(hf)

    @hf.task(name="timed")
    async def timed(n: int) -> None:
        stage.running.add(f"timed {n}")
        await asyncio.sleep(0.1 + n % 7 / 30)
        stage.running.discard(f"timed {n}")

    async with hf.worker(concurrency=6, poll=0.1, grace=0):
        await hf.start_many([timed(n=n) for n in range(300)])
        await until(lambda: len(stage.running) == 6, "six run")
        (suspect,) = await start_suspects(hf, stage, 1)
        await suspect.result(timeout=30)
        left = await hf.list_jobs(task="timed", status="pending")

    assert stage.beside == [set()]
    assert left.items


async def test_a_suspect_is_not_kept_from_other_workers_by_one_that_has_waited_long(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "ALONE_SECONDS", 0.1)
    monkeypatch.setattr(dispatcher, "OTHERS_WAIT_SECONDS", 0.05)
    stage = Stage(hf)

    async with hf.worker(concurrency=2, poll=0.05):
        await hf.start(stage.long(n=0))
        await until(lambda: stage.running == {"long 0"}, "the long one runs")
        (suspect,) = await start_suspects(hf, stage, 1)
        await until(lambda: _is(given_back(hf), at_least=8), "it was offered to others again and again")
        stage.let_go(0)
        await suspect.result(timeout=20)


async def test_a_suspect_for_which_no_task_can_be_made_is_put_off(hf: Holdfast) -> None:
    stage, loop, broken = Stage(hf), asyncio.get_running_loop(), list[str]()

    def make(loop: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        if coroutine.__qualname__ == "Dispatcher._try_suspect" and not broken:
            broken.append("it")
            raise TypeError("got an unexpected keyword argument 'context'")
        return asyncio.Task(coroutine, loop=loop, **options)

    loop.set_task_factory(make)
    try:
        async with hf.worker(poll=0.1):
            (suspect,) = await start_suspects(hf, stage, 1)
            await suspect.result(timeout=20)
    finally:
        loop.set_task_factory(None)

    assert broken
