"""What a worker counts: each attempt once, in the way it ended, whatever happens while that is written down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Fail, Holdfast, Pause, Reschedule, Retry
from holdfast.database.sqlite.store import SqliteStore
from holdfast.database.tx import Tx
from holdfast.errors import Unavailable, UnknownOutcome
from holdfast.figures import Counts, Tallied, sum_of
from holdfast.models import INTERNAL_QUEUE
from holdfast.outcomes import Kind, Outcome
from holdfast.runtime import Runtime
from holdfast.store.insight import gauges, tallies
from holdfast.store.jobs.claiming import Claimed, Token
from holdfast.store.jobs.reaping import TakenBack
from holdfast.store.jobs.settling import Settled, Settlement
from holdfast.worker import tally as counting
from holdfast.worker.tally import Tally
from holdfast.worker.upkeep import folding, reaper
from holdfast.worker.upkeep.folding import keep_once
from tests.support.conditions import until
from tests.support.factories import make_job, now_ms
from tests.support.ways import Way

ONCE = Retry(attempts=2, first=0.01, maximum=0.01, jitter=0)


@pytest.fixture(params=["sqlite", "postgres"])
def stack(request: pytest.FixtureRequest) -> str:
    """Name the database; by default a test has its turn on one of them (`tests/support/turns.py`)."""
    return str(request.param)


@pytest.fixture
async def hf(stack: str, new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Holdfast]:
    made = new_holdfast(stack, retry=ONCE)
    await made.open()
    yield made
    await made.close()


async def totals(hf: Holdfast) -> dict[str, Tallied]:
    return {kind.task: each for kind, each in (await hf.store.read(tallies.totals)).items()}


async def counts(hf: Holdfast) -> Counts:
    return sum_of((await totals(hf)).values()).counts


class Stage:
    """Handlers that end in every way there is."""

    def __init__(self, hf: Holdfast) -> None:
        self.hf = hf
        self.runs: dict[str, int] = {}

        @hf.task(name="ends", history=False)
        async def ends(how: str) -> str:
            await self.end(how)
            return how

        @hf.task(name="ends_in_a_thread")
        def ends_in_a_thread() -> None:
            pass

        @hf.task(name="completes_in_a_block")
        async def completes_in_a_block(ctx: Context) -> int:
            async with ctx.complete() as tx:
                return tx.finish(1)

        @hf.task(name="waits")
        async def waits() -> None:
            self.runs["waits"] = self.runs.get("waits", 0) + 1
            await asyncio.Event().wait()

        self.ends, self.waits = ends, waits
        self.plain, self.block = ends_in_a_thread, completes_in_a_block

    async def end(self, how: str) -> None:
        self.runs[how] = self.runs.get(how, 0) + 1
        match how:
            case "fails":
                raise Fail("for good")
            case "pauses":
                raise Pause("for a person")
            case "raises":
                raise OSError
            case "raises once" if self.runs[how] == 1:
                raise OSError
            case "comes again" if self.runs[how] == 1:
                raise Reschedule(after=0)
            case "waits and returns":
                await asyncio.sleep(0.01)


async def test_each_attempt_is_counted_once_in_the_way_it_ended(hf: Holdfast) -> None:
    stage = Stage(hf)
    ways = ("returns", "returns", "waits and returns", "fails", "pauses", "raises", "raises once", "comes again")
    calls = [stage.ends(how=how) for how in ways]

    async with hf.worker(concurrency=3):
        await hf.start_many([*calls, stage.plain(), stage.block()])
        waiting = await hf.start(stage.waits())
        await until(lambda: _is(hf, waiting.id, "running"), "the last handler runs")
        await hf.cancel(waiting)
        await until(lambda: _is(hf, waiting.id, "cancelled"), "it is cancelled")
        await until(lambda: _none_open(hf), "all have ended")

    found = await totals(hf)
    assert found["ends"].counts == Counts(started=11, completed=5, failed=2, retried=3, paused=1)
    assert found["ends_in_a_thread"].counts == Counts(started=1, completed=1)
    assert found["completes_in_a_block"].counts == Counts(started=1, completed=1)
    assert found["waits"].counts == Counts(started=1, cancelled=1)
    for each in found.values():
        assert each.wait.total() == each.counts.started
        assert each.run.total() == each.counts.ended


async def _is(hf: Holdfast, job_id: Any, state: str) -> bool:
    return (await hf.get_job(job_id)).state == state


async def _none_open(hf: Holdfast) -> bool:
    return not (await hf.list_jobs(status=["pending", "scheduled", "running"])).items


async def test_a_job_that_is_given_back_before_it_began_is_counted_nowhere(hf: Holdfast) -> None:
    stage = Stage(hf)
    async with hf.worker(concurrency=1, grace=0):
        await hf.start_many([stage.waits() for _ in range(20)])
        await until(lambda: "waits" in stage.runs, "one has begun")

    assert stage.runs == {"waits": 1}
    assert await counts(hf) == Counts(started=1, retried=1)


async def test_an_attempt_that_was_lost_is_counted_by_who_takes_it_back(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "PERIOD_SECONDS", 0.05)
    way, gone = Way(hf, is_async=True), {"worker": "gone-1", "lease_until": now_ms() - 60_000, "lease_ms": 1}
    Stage(hf)
    began = await make_job(way, "running", task="ends", input='{"how":"returns"}', **gone)
    waited = await make_job(way, "running", task="ends", input='{"how":"returns"}', started_at=None, **gone)
    delivery = await make_job(way, "running", task="holdfast.deliver", queue=INTERNAL_QUEUE, **gone)

    async with hf.worker(webhooks=False):
        for each in (began, waited):
            await until(lambda each=each: _is(hf, each, "completed"), "it runs again")
        await until(lambda: _is_pending(way, delivery), "the delivery is taken back")

    assert await counts(hf) == Counts(started=2, completed=2, lost=1)


async def _is_pending(way: Way, job_id: Any) -> bool:
    rows = await way.rows("SELECT 1 FROM holdfast_job WHERE id = :id AND status = 'pending'", id=str(job_id))
    return bool(rows)


async def test_the_wait_of_a_job_is_measured_from_when_it_was_ready(hf: Holdfast) -> None:
    stage = Stage(hf)
    way = Way(hf, is_async=True)
    for priority in (-5, 0, 7):
        ready_at = now_ms() - 100_000
        await make_job(
            way, task="ends", input='{"how":"returns"}', priority=priority, sort_key=ready_at - 60_000 * priority
        )
    assert stage.runs == {}

    async with hf.worker():
        await until(lambda: _none_open(hf), "all have ended")

    wait = (await totals(hf))["ends"].wait.percentiles()
    assert wait.p50 == pytest.approx(100, rel=0.25)
    assert wait.p99 == pytest.approx(100, rel=0.25)


async def test_a_worker_that_does_nothing_writes_nothing(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "WRITE_SECONDS", 0.01)
    calls: list[object] = []
    write = tallies.write
    monkeypatch.setattr(tallies, "write", lambda *args: calls.append(args) or write(*args))

    async with hf.worker() as worker:
        await until(lambda: worker.health().claimed_at is not None, "it has looked for work")

    assert calls == []


async def test_a_worker_writes_its_figures_while_it_works(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "WRITE_SECONDS", 0.05)
    stage = Stage(hf)
    async with hf.worker():
        await hf.start_many([stage.ends(how="returns") for _ in range(10)])
        await until(lambda: _has_counted(hf, 10), "it has written what it counted")


async def _has_counted(hf: Holdfast, number: int) -> bool:
    return (await counts(hf)).completed == number


# the rest of this: one worker's counts on a database whose clock is ours


class Clock:
    """A clock for the database and the worker; the database's can be put elsewhere."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0
        self.ahead_seconds = 0.0

    def now_ms(self) -> int:
        return round(1000 * (self.seconds + self.ahead_seconds))

    def monotonic(self) -> float:
        return self.seconds


class Faulty:
    """A store that fails the next calls, before or after they have done their work."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.before: list[Exception] = []
        self.after: list[Exception] = []
        self.writes = 0

    async def read(self, operation: Any, *args: Any) -> Any:
        return await self._store.read(operation, *args)

    async def run(self, operation: Any, *args: Any) -> Any:
        if self.before:
            raise self.before.pop(0)
        self.writes += 1
        answer = await self._store.run(operation, *args)
        if self.after:
            raise self.after.pop(0)
        return answer


class Room:
    """A worker's tally, its database, and their clocks."""

    def __init__(self, path: Path) -> None:
        self.clock = Clock()
        self.store = SqliteStore(path, clock=self.clock.now_ms)
        self.faulty = Faulty(self.store)
        self.tally = self.another()

    def another(self, name: str = "worker-1") -> Tally:
        made: Any = self.faulty
        tally = Tally(made, Runtime(monotonic=self.clock.monotonic), name)
        tally.note_clock(self.clock.now_ms())
        return tally

    def end(self, number: int, tally: Tally | None = None) -> None:
        """Let *number* attempts begin and complete."""
        for seq in range(number):
            job = Claimed(Token(seq, 1, "nonce"), "id", "id", 0, "mail", "default", None, "{}", 1, 0, 0, waited_ms=9)
            (tally or self.tally).started(job)
            ended = Settlement(job.token, Outcome(Kind.COMPLETE), queue="default", task="mail", ran_ms=5.0)
            (tally or self.tally).settled([ended], Settled([job.token], {}, []))

    async def write(self) -> None:
        await self.tally.write()

    async def pass_by(self, seconds: float) -> None:
        """Let time go by; upkeep looks at the database's clock, and folds."""
        self.clock.seconds += seconds
        self.tally.note_clock(self.clock.now_ms())
        made: Any = self.store
        await keep_once(made)

    async def counts(self) -> Counts:
        return sum_of((await self.store.read(tallies.totals)).values()).counts

    async def rows(self) -> int:
        async def count(tx: Tx) -> int:
            return len(await tx.fetch_all("SELECT at FROM holdfast_tally WHERE width = -10"))

        return await self.store.read(count)


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    made = Room(tmp_path / "jobs.db")
    await made.store.open()
    yield made
    await made.store.close()


async def test_nothing_is_written_while_nothing_changes(room: Room) -> None:
    room.end(3)
    await room.write()
    await room.write()
    await room.pass_by(30)
    await room.write()

    assert room.faulty.writes == 1


async def test_an_interval_goes_on_under_the_same_row_and_the_next_has_another(room: Room) -> None:
    for _ in range(3):
        room.end(2)
        await room.write()
    assert await room.rows() == 1

    await room.pass_by(10)
    room.end(1)
    await room.write()

    assert await room.rows() == 2
    assert await room.counts() == Counts(7, 7)


async def test_a_worker_that_ends_before_it_knows_the_databases_clock_asks_for_it(room: Room) -> None:
    made: Any = room.faulty
    hasty = Tally(made, Runtime(monotonic=room.clock.monotonic), "worker-2")
    room.end(3, hasty)

    await hasty.end()

    assert await room.counts() == Counts(3, 3)


@pytest.mark.parametrize("is_written", [True, False])
async def test_a_write_whose_answer_was_lost_is_repeated_and_counts_once(room: Room, is_written: bool) -> None:
    room.end(5)
    (room.faulty.after if is_written else room.faulty.before).append(UnknownOutcome("lost"))
    await room.write()
    room.end(1)
    await room.write()

    assert await room.counts() == Counts(6, 6)


async def test_what_could_not_be_written_in_time_is_counted_later(room: Room) -> None:
    room.end(5)
    room.faulty.before += [Unavailable("away")] * 3
    for _ in range(3):
        with pytest.raises(Unavailable):
            await room.write()
        await room.pass_by(30)
    room.end(1)
    await room.write()
    await room.write()

    assert await room.counts() == Counts(6, 6)
    await room.pass_by(120)
    assert await room.counts() == Counts(6, 6)


async def test_what_may_have_been_written_is_not_counted_again_later(room: Room) -> None:
    room.end(5)
    room.faulty.after.append(UnknownOutcome("lost"))
    await room.write()
    room.end(2)
    await room.pass_by(120)
    await room.write()
    await room.write()

    assert await room.counts() == Counts(7, 7)


@pytest.mark.parametrize("jump", [3_600, -3_600])
async def test_a_clock_that_is_put_forward_or_back_loses_and_doubles_nothing(room: Room, jump: float) -> None:
    room.end(5)
    await room.write()
    room.end(2)
    room.clock.ahead_seconds = jump
    await room.pass_by(4)
    room.end(1)
    await room.write()
    room.clock.ahead_seconds = 0
    await room.pass_by(4)
    room.end(1)
    await room.write()
    await room.pass_by(4)
    await room.write()

    assert await room.counts() == Counts(9, 9)
    for _ in range(80):
        await room.pass_by(60)
    assert await room.counts() == Counts(9, 9)


async def test_a_clock_that_jumps_while_a_write_is_under_way_doubles_nothing(room: Room) -> None:
    room.end(5)
    run = room.faulty.run

    async def run_and_jump(operation: Any, *args: Any) -> Any:
        answer = await run(operation, *args)
        room.clock.ahead_seconds = 3_600
        room.tally.note_clock(room.clock.now_ms())
        return answer

    room.faulty.run = run_and_jump  # type: ignore[method-assign]
    await room.write()
    room.faulty.run = run  # type: ignore[method-assign]
    room.end(1)
    await room.write()

    assert await room.counts() == Counts(6, 6)


async def test_two_workers_are_folded_together_and_nothing_is_lost_on_the_way(room: Room) -> None:
    other = room.another("worker-2")
    for step in range(30):
        room.end(step % 3)
        room.end(1, other)
        await room.write()
        other.note_clock(room.clock.now_ms())
        await other.write()
        await room.pass_by(7)

    assert await room.counts() == Counts(60, 60)


async def test_what_was_taken_back_is_counted_by_what_it_came_to(room: Room) -> None:
    kinds = (Kind.LOST, Kind.LOST, Kind.FAIL, Kind.PAUSE, Kind.CANCEL, Kind.GIVE_BACK)
    taken = [TakenBack(1, "id", "mail", "id", 1, Outcome(kind), "default") for kind in kinds]

    room.tally.taken_back(taken)
    await room.write()

    assert await room.counts() == Counts(lost=2, failed=1, paused=1, cancelled=1)


async def test_only_what_is_written_down_is_counted_and_as_it_was_written(room: Room) -> None:
    def ended(seq: int, kind: Kind = Kind.COMPLETE, ran_ms: float | None = 1.0) -> Settlement:
        return Settlement(Token(seq, 1, "n"), Outcome(kind), queue="default", task="mail", ran_ms=ran_ms)

    done, lost, asked, unbegun = ended(1), ended(2), ended(3), ended(4, Kind.GIVE_BACK, None)
    settled = Settled([done.token, asked.token, unbegun.token], {}, [], as_asked={asked.token: Kind.CANCEL})

    room.tally.settled([done, lost, asked, unbegun], settled)
    await room.write()

    assert await room.counts() == Counts(completed=1, cancelled=1)


async def test_a_worker_samples_while_it_counts_and_not_while_it_is_idle(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-59: an idle worker counts no rows for nobody."""
    rounds: list[None] = []
    fold = folding.keep_once

    async def counted(store: Any) -> None:
        rounds.append(None)
        await fold(store)

    @hf.task(name="quick")
    async def quick() -> None:
        pass

    monkeypatch.setattr(folding, "PERIOD_SECONDS", 0.01)
    monkeypatch.setattr(folding, "keep_once", counted)
    monkeypatch.setattr(counting, "WRITE_SECONDS", 0.01)
    async with hf.worker():
        await until(lambda: len(rounds) > 3, "figures were looked after")
        assert await hf.store.read(gauges.latest, 0) == (None, True)

        await (await hf.start(quick())).result(timeout=30)

        while (await hf.store.read(gauges.latest, 0))[0] is None:
            await asyncio.sleep(0.01)
