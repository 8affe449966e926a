"""Workers and schedules: who takes up what is due and when, what it costs, and who is not delayed. I-83, I-84."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.database.tx import Tx
from holdfast.errors import Busy, Unavailable
from holdfast.runtime import Runtime
from holdfast.schedules import StoredCall
from holdfast.store import polls, schedules
from holdfast.store.chains import creation
from holdfast.store.jobs.claiming import Want
from holdfast.sync import Context as BlockingContext
from holdfast.worker.upkeep import reaper, ticks
from holdfast.worker.upkeep.ticks import Ticker
from tests.support.conditions import until
from tests.support.database_clock import DatabaseClock
from tests.support.log_lines import lines, named

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
NOON_MS = round(NOON.timestamp() * 1000)


@pytest.fixture(params=["sqlite", "postgres"])
async def hf(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Holdfast]:
    """A face on each database with the task `note`."""
    made = new_holdfast(request.param)

    @made.task(name="note")
    async def note(word: str) -> None: ...

    await made.open()
    yield made
    await made.close()


def note(hf: Holdfast, word: str = "x") -> Any:
    return hf.call("note", {"word": word})


class Hand:
    """A ticker, moved by hand, and a clock of ours that goes with the database's."""

    def __init__(self, hf: Holdfast) -> None:
        self.hf = hf
        self.clock = DatabaseClock(hf, NOON_MS)
        self.monotonic = 0.0
        self.statements: list[str] = []
        self.wakes = 0
        runtime = Runtime(monotonic=lambda: self.monotonic)
        self.ticker = Ticker(self, runtime, hf.__holdfast_engine__.starter, self._wake)  # type: ignore[arg-type]

    def _wake(self) -> None:
        self.wakes += 1

    async def run(self, operation: Any, *args: Any) -> Any:
        """Run it, and note its name."""
        self.statements.append(operation.__name__)
        return await self.hf.store.run(operation, *args)

    async def read(self, operation: Any, *args: Any) -> Any:
        """Run it, and note its name."""
        self.statements.append(operation.__name__)
        return await self.hf.store.read(operation, *args)

    def step(self, seconds: float) -> None:
        """Let time go on, on both clocks."""
        self.monotonic += seconds
        self.clock.step(seconds)

    async def act(self) -> list[str]:
        """Have the ticker do what is due; give the operations that it ran."""
        self.statements.clear()
        await self.ticker.step()
        return list(self.statements)

    async def ticks(self, name: str) -> list[float]:
        """Give the times of its ticks, in seconds after noon."""
        return [(each.at - NOON).total_seconds() for each in reversed(await self.hf.schedules.ticks(name, limit=500))]

    async def look(self) -> None:
        """Take the look that a worker takes anyway."""
        found = await self.hf.store.read(polls.waiting_work, [Want("default", "note", 1000)])
        self.ticker.note_look(found.tick_ms)


async def test_a_worker_starts_the_jobs_of_schedules_in_handlers_of_both_colours(
    hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    seen: dict[str, list[datetime | None]] = {"async": [], "blocking": []}

    @hf.task(name="timed", every=1)
    async def timed(ctx: Context) -> None:
        seen["async"].append(ctx.scheduled_at)

    @hf.task(name="timed_too", every=timedelta(seconds=1))
    def timed_too(ctx: BlockingContext) -> None:
        seen["blocking"].append(ctx.scheduled_at)

    await hf.start(note(hf))  # a first use of the database after these were declared
    async with hf.worker():
        await until(lambda: all(len(each) > 1 for each in seen.values()), "both have run twice")

    for name, times in {"timed": seen["async"], "timed_too": seen["blocking"]}.items():
        had = {each.at for each in await hf.schedules.ticks(name)}
        assert all(each in had for each in times)
        assert len(set(times)) == len(times)
        assert all(each is not None and each.timestamp() % 1 == 0 for each in times)


async def test_a_job_that_no_schedule_started_has_no_time_of_one(hf: Holdfast) -> None:
    seen: list[object] = []

    @hf.task(name="plain")
    async def plain(ctx: Context) -> None:
        seen.append(ctx.scheduled_at)

    async with hf.worker():
        chain = await hf.start(plain())
        await chain.result(timeout=20)

    assert seen == [None]
    assert (await hf.get_job(chain)).scheduled_at is None


async def test_a_schedule_that_is_put_while_a_worker_sleeps_is_taken_up_in_time(hf: Holdfast) -> None:
    async with hf.worker(poll=60):
        await asyncio.sleep(0)
        await hf.schedules.put("soon", note(hf), every=1)
        await until(lambda: len(hf.sync.schedules.ticks("soon")) > 1, "two ticks have come")


async def test_nothing_is_asked_until_the_next_time_has_come(hf: Holdfast) -> None:
    hand = Hand(hf)
    await hf.schedules.put("sync", note(hf), every=40)

    assert await hand.act() == ["standing", "earliest"]
    for _ in range(3):
        hand.step(9)
        assert await hand.act() == []
    hand.step(13)
    assert await hand.act() == ["earliest", "tick", "earliest"]
    assert await hand.act() == []

    assert await hand.ticks("sync") == [40]
    assert hand.wakes == 1


async def test_where_there_are_no_schedules_looks_are_all_that_is_asked(hf: Holdfast) -> None:
    hand = Hand(hf)
    assert await hand.act() == ["standing", "earliest"]
    for _ in range(10):
        hand.step(30)
        await hand.look()
        assert await hand.act() == []

    hand.step(60)  # nobody looks any more: the worker is busy
    assert await hand.act() == ["standing", "earliest"]


async def test_a_look_tells_of_schedules_and_of_the_next_time(hf: Holdfast) -> None:
    async def looked() -> int | None:
        return (await hf.store.read(polls.waiting_work, [Want("default", "note", 1000)])).tick_ms

    clock = DatabaseClock(hf, NOON_MS)
    assert await looked() is None
    await hf.schedules.put("sync", note(hf), every=60)
    assert await looked() == 60_000
    clock.step(70)
    assert await looked() == -10_000
    await hf.schedules.pause("sync")
    assert (await looked() or 0) > 10**12


async def test_a_look_brings_the_next_time_forward(hf: Holdfast) -> None:
    hand = Hand(hf)
    await hand.act()
    await hf.schedules.put("sync", note(hf), every=10)
    await hand.look()
    hand.step(10)
    await hand.act()

    assert await hand.ticks("sync") == [10]


async def test_next_times_are_compared_about_every_minute_and_when_the_clock_jumps(
    hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    hand = Hand(hf)
    await hf.schedules.put("sync", note(hf), every=10)
    await hand.act()
    hand.clock.step(86_400 * 365)  # it visits another year
    hand.step(10)
    await hand.act()
    hand.clock.set(NOON_MS + 25_000)
    hand.step(10)
    assert await hand.ticks("sync") != []

    hand.ticker.note_clock_jump()
    assert "repair" in await hand.act()
    hand.step(10)
    await hand.act()
    assert 40 in await hand.ticks("sync")
    assert "schedules_repaired" in lines(caplog)

    hand.step(60)
    assert "standing" in await hand.act()


async def test_a_pause_ends_when_its_time_has_come(hf: Holdfast) -> None:
    hand = Hand(hf)
    await hf.schedules.put("sync", note(hf), every=10)
    await hf.schedules.pause("sync", until=NOON + timedelta(seconds=15))
    await hand.act()
    hand.step(14)
    assert await hand.act() == []
    hand.step(1)
    assert await hand.act() == ["standing", "repair", "earliest"]
    hand.step(5)
    await hand.act()

    assert await hand.ticks("sync") == [20]


async def test_upkeep_tells_the_ticker_that_the_clock_has_jumped(hf: Holdfast) -> None:
    clock, jumps, times = DatabaseClock(hf, NOON_MS), [0], [0.0]
    upkeep = reaper.Upkeep(
        hf.store,
        Runtime(monotonic=lambda: times[0]),
        [],
        on_clock_jump=lambda: jumps.append(1),
    )
    await upkeep.step()
    times[0] += 4
    clock.step(4)
    await upkeep.step()
    assert jumps == [0]
    times[0] += 4
    clock.step(-3600)
    await upkeep.step()

    assert jumps == [0, 1]


async def test_what_cannot_start_is_told_and_delays_no_other(hf: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
    hand = Hand(hf)
    for name in ("a", "b", "c"):
        await hf.schedules.put(name, note(hf, name), every=60, missed="skip")
    await hf.store.run(spoil, "b")
    await hand.act()
    hand.step(300)
    await hand.act()

    assert (await hand.ticks("a"), await hand.ticks("b"), await hand.ticks("c")) == ([240, 300], [], [240, 300])
    (trouble,) = named(caplog, "schedule_in_trouble")
    assert "Schedule b cannot start its call of task nobody.knows" in trouble.getMessage()
    assert "Schedule a left out 3 ticks" in named(caplog, "ticks_left_out")[0].getMessage()


async def spoil(tx: Tx, name: str) -> None:
    """Have a schedule start what nobody knows."""
    await tx.execute("UPDATE holdfast_schedule SET task = 'nobody.knows' WHERE name = :name", name=name)


@pytest.mark.parametrize("error", [RuntimeError("no room"), Busy("a key is held"), None])
async def test_one_that_the_database_refuses_has_a_transaction_of_its_own(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """The others of its batch are rolled back with it, and then started one by one."""
    hand = Hand(hf)
    for name in ("a", "b", "c"):
        await hf.schedules.put(name, note(hf, name), every=60)
    await hand.act()
    start = creation.start

    async def refuse(tx: Tx, starts: Any) -> Any:
        answers = await start(tx, starts)
        if error is not None and any('"word":"b"' in each.input for each in starts):
            raise error
        return answers

    monkeypatch.setattr(creation, "start", refuse)
    hand.step(60)
    operations = await hand.act()

    assert (await hand.ticks("a"), await hand.ticks("c")) == ([60], [60])
    assert await hand.ticks("b") == ([60] if error is None else [])
    found = await hf.schedules.get("b")
    match error:
        case Busy():
            assert (found.trouble, found.next_at) == (None, NOON + timedelta(seconds=60))
            error = None
            hand.step(ticks.HELD_SECONDS + 1)
            await hand.act()
            assert await hand.ticks("b") == [60]
        case RuntimeError():
            assert found.trouble is not None
            assert "no room" in found.trouble
            assert found.next_at == NOON + timedelta(seconds=120)
        case _:
            assert "tick_one" not in operations


async def test_a_schedule_that_cannot_even_be_given_up_delays_no_other(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """I-84."""
    hand = Hand(hf)
    for name in ("a", "b"):
        await hf.schedules.put(name, note(hf, name), every=60)
    await hand.act()
    start = creation.start

    async def refuse(tx: Tx, starts: Any) -> Any:
        if any('"word":"a"' in each.input for each in starts):
            raise RuntimeError("no room")
        return await start(tx, starts)

    async def give_up(tx: Tx, name: str, reason: str) -> Any:
        raise RuntimeError("no room for this either")

    hand.step(60)
    with monkeypatch.context() as patch:
        patch.setattr(creation, "start", refuse)
        patch.setattr(schedules, "give_up", give_up)
        await hand.act()

    assert (await hand.ticks("a"), await hand.ticks("b")) == ([], [60])
    assert "schedule a: RuntimeError: no room for this either" in named(caplog, "ticks_failed")[-1].getMessage()
    hand.step(ticks.HELD_SECONDS + 1)
    await hand.act()
    assert await hand.ticks("a") == [60]


async def test_a_key_that_an_open_transaction_holds_delays_no_other_schedule(hf: Holdfast) -> None:
    """I-84: a call has 20 seconds, and a batch that waited for the key would take most of them."""
    if hf.store.database == "sqlite":
        pytest.skip("there is one writer at a time")
    hand = Hand(hf)
    call = note(hf).options(unique="k")
    await hf.schedules.put("a", call, every=60)
    await hf.schedules.put("b", note(hf), every=60)
    await hand.act()
    hand.step(60)
    block = await hf.store.begin(60)
    try:
        await block.run(take_key, hf)
        async with asyncio.TaskGroup() as group:
            acting = group.create_task(hand.act())
            await until(lambda: len(hf.sync.schedules.ticks("b")) == 1, "the other one has its tick", timeout=10)
            await acting
        assert await hand.ticks("a") == []
        hand.step(60)
        assert "tick_one" in await hand.act()
    finally:
        await block.roll_back()

    hand.step(2 * ticks.HELD_SECONDS + 1)
    await hand.act()
    assert (await hand.ticks("a"), await hand.ticks("b")) == ([60, 120], [60, 120])


async def take_key(tx: Tx, hf: Holdfast) -> None:
    """Start a job that has the key."""
    starter = hf.__holdfast_engine__.starter
    plain = starter.stored_start(StoredCall("note", '{"word":"x"}', '{"unique": {"key": "k"}}'), None)
    await creation.start(tx, [plain._replace(id=starter.new_id())])


async def test_a_schedule_is_left_out_for_longer_with_each_failure_in_a_row(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = Hand(hf)
    await hf.schedules.put("a", note(hf), every=3600)
    await hand.act()

    async def refuse(*_: object) -> Any:
        raise Busy("a key is held")

    async def is_tried_after(seconds: float) -> bool:
        hand.step(seconds)
        return "tick_one" in await hand.act()

    with monkeypatch.context() as patch:
        patch.setattr(creation, "start", refuse)
        assert await is_tried_after(3600)
        for seconds in (5, 10, 20, 20):
            assert not await is_tried_after(seconds - 1)
            assert await is_tried_after(1)
    await is_tried_after(60)
    assert len(await hand.ticks("a")) == 1
    with monkeypatch.context() as patch:
        patch.setattr(creation, "start", refuse)
        assert await is_tried_after(3600)
        assert await is_tried_after(5)


async def test_a_database_that_is_away_is_no_trouble_of_a_schedule(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = Hand(hf)
    await hf.schedules.put("a", note(hf), every=60)
    await hand.act()

    async def away(*_: object) -> Any:
        raise Unavailable("away")

    hand.step(60)
    with monkeypatch.context() as patch:
        patch.setattr(creation, "start", away)
        with pytest.raises(Unavailable):
            await hand.act()
    await hand.act()

    assert await hand.ticks("a") == [60]
    assert (await hf.schedules.get("a")).trouble is None


async def test_what_somebody_else_has_taken_up_is_left_to_him(hf: Holdfast) -> None:
    if hf.store.database == "sqlite":
        pytest.skip("there is one writer at a time")
    hand = Hand(hf)
    await hf.schedules.put("a", note(hf), every=60)
    await hand.act()
    hand.step(60)
    block = await hf.store.begin(30)
    try:
        await block.run(lock)
        assert (await hand.act())[-2:] == ["earliest", "tick"]
        assert await hand.act() == []
    finally:
        await block.roll_back()
    hand.step(ticks.AGAIN_SECONDS)
    await hand.act()

    assert await hand.ticks("a") == [60]


async def test_schedules_of_who_is_suspended_are_asked_for_seldom(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = Hand(hf)
    await hf.schedules.put("a", note(hf), every=60)
    await hand.act()
    hand.step(60)

    async def suspended(*_: Any) -> schedules.Ticked:
        return schedules.Ticked(is_suspended=True)

    with monkeypatch.context() as patched:
        patched.setattr(schedules, "tick", suspended)
        patched.setattr(hand.hf.store, "run", lambda operation, *args: operation(*args))
        assert (await hand.act())[-1] == "suspended"
        hand.step(ticks.SUSPENDED_SECONDS - 1)
        assert await hand.act() == []
        hand.step(1)
        assert (await hand.act())[-1] == "suspended"
    hand.step(ticks.SUSPENDED_SECONDS)
    await hand.act()

    assert await hand.ticks("a") == [60]


async def test_what_somebody_has_locked_is_compared_again_soon(hf: Holdfast) -> None:
    """Who repairs it may be dead before it has done so: after another minute its tick would be a missed one."""
    if hf.store.database == "sqlite":
        pytest.skip("there is one writer at a time")
    hand = Hand(hf)
    await hf.schedules.put("a", note(hf), every=3600)
    await hf.schedules.pause("a", until=NOON + timedelta(seconds=30))
    await hand.act()
    hand.step(31)
    block = await hf.store.begin(30)
    try:
        await block.run(lock)
        assert await hand.act() == ["standing", "repair", "earliest"]
    finally:
        await block.roll_back()
    hand.step(ticks.HELD_SECONDS)

    assert await hand.act() == ["standing", "repair", "earliest"]
    assert (await hf.schedules.get("a")).paused_at is None


async def lock(tx: Tx) -> None:
    await tx.fetch_all("SELECT name FROM holdfast_schedule $locked")


async def test_several_workers_start_one_job_for_each_tick(hf: Holdfast) -> None:
    for nr in range(3):
        await hf.schedules.put(f"s{nr}", note(hf), every=1, missed="all")
    async with hf.worker(), hf.worker(), hf.worker():
        await until(lambda: len(hf.sync.schedules.ticks("s0")) >= 3, "three ticks have come")

    ((jobs, times),) = await hf.store.read(counted)
    ((had,),) = await hf.store.read(count_ticks)
    assert jobs == times == had


async def counted(tx: Tx) -> list[tuple[Any, ...]]:
    return await tx.fetch_all(
        """SELECT count(*), count(DISTINCT facts || CAST(scheduled_at AS text)) FROM holdfast_job
        JOIN holdfast_event ON holdfast_event.job = holdfast_job.seq AND holdfast_event.name = 'job:enqueued'"""
    )


async def count_ticks(tx: Tx) -> list[tuple[Any, ...]]:
    return await tx.fetch_all("SELECT count(*) FROM holdfast_tick")
