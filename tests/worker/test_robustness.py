"""A worker whose handlers do everything that handlers do: each ends its own attempt only, and frees its slot."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest

from holdfast import Context, Holdfast, Tasks
from holdfast.errors import InvalidSettings, Misuse, Unavailable, UnknownOutcome, UsageError
from holdfast.outcomes import Reschedule, Retry
from holdfast.store import workers
from holdfast.store.jobs import claiming, exchanging, settling
from holdfast.worker.attempts import attempt, progress
from holdfast.worker.attempts.context import BlockingContext
from holdfast.worker.claiming import claimer, executor, unknown_claims, unsettled
from tests.support.conditions import until
from tests.support.log_lines import lines

ONCE = Retry.never()


@pytest.fixture(params=["sqlite", "postgres"])
async def hf(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Holdfast]:
    """A face on each database."""
    made = new_holdfast(request.param)
    await made.open()
    yield made
    await made.close()


async def status_of(hf: Holdfast, job: Any) -> str:
    return str((await hf.get_job(job)).status)


async def until_status(hf: Holdfast, job: Any, status: str, timeout: float = 30) -> None:
    async def holds() -> bool:
        return await status_of(hf, job) == status

    await until(holds, f"the job is {status}", timeout)


async def rows(hf: Holdfast, sql: str, **values: object) -> list[tuple[Any, ...]]:
    async def fetch(tx: Any) -> list[tuple[Any, ...]]:
        return list(await tx.fetch_all(sql, **values))

    return await hf.store.read(fetch)


@pytest.mark.source("JC-97")
async def test_middleware_wraps_like_an_onion_worker_registry_task(new_holdfast: Callable[..., Holdfast]) -> None:
    passed: list[str] = []

    def layer(name: str) -> Any:
        async def middleware(ctx: Any, following: Any) -> Any:
            passed.append(f"{name} in")
            ctx.state[name] = True
            try:
                return await following() + f" {name}"
            finally:
                passed.append(f"{name} out")

        return middleware

    tasks = Tasks(middleware=[layer("registry")])

    @tasks.task(name="peel", middleware=[layer("task")])
    async def peel(ctx: Context) -> str:
        passed.append("handler")
        return " ".join(ctx.state)

    hf = new_holdfast("sqlite", tasks=[tasks])
    async with hf, hf.worker(middleware=[layer("worker")]):
        chain = await hf.start(peel())
        output = await chain.result(timeout=10)

    assert output == "worker registry task task registry worker"
    assert passed == ["worker in", "registry in", "task in", "handler", "task out", "registry out", "worker out"]


ODD: dict[str, Callable[[], object]] = {}


def odd(function: Callable[[], object]) -> Callable[[], object]:
    ODD[function.__name__] = function
    return function


@odd
def keyboard_interrupt() -> None:
    raise KeyboardInterrupt


@odd
def system_exit() -> None:
    raise SystemExit(3)


@odd
def generator_exit() -> None:
    raise GeneratorExit


@odd
def stop_iteration() -> None:
    raise StopIteration(1)


@odd
def cancelled() -> None:
    raise asyncio.CancelledError


@odd
def memory_error() -> None:
    raise MemoryError


@odd
def recursion() -> object:
    return recursion()


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Chatty(Exception):
    def __str__(self) -> str:
        return "x" * 100_000_000


@odd
def mute() -> None:
    raise Mute


@odd
def chatty() -> None:
    raise Chatty


@odd
def unstorable() -> None:
    raise ValueError("\x00\ud800")


@odd
def a_time_that_is_none() -> None:
    raise Reschedule(after=float("nan"))


@pytest.mark.parametrize("colour", ["async", "thread"])
async def test_an_odd_exception_ends_its_attempt_and_frees_the_slot(hf: Holdfast, colour: str) -> None:
    """F-47, I-07."""

    @hf.task(name="odd_async", retry=ONCE)
    async def odd_async(kind: str) -> None:
        ODD[kind]()

    @hf.task(name="odd_thread", retry=ONCE)
    def odd_thread(kind: str) -> None:
        ODD[kind]()

    task = odd_async if colour == "async" else odd_thread
    async with hf.worker(concurrency=1):
        chains = {kind: await hf.start(task(kind=kind)) for kind in ODD}
        for chain in chains.values():
            await until_status(hf, chain, "failed")

    jobs = {kind: await hf.get_job(chain) for kind, chain in chains.items()}
    assert all(job.error is not None for job in jobs.values())
    assert all(len(json.dumps(dict(job.error))) < 20_000 for job in jobs.values() if job.error is not None)


async def test_a_hundred_memory_errors_leave_every_slot_free(hf: Holdfast) -> None:
    """P-23."""

    @hf.task(name="greedy", retry=ONCE)
    async def greedy(n: int) -> None:
        raise MemoryError

    @hf.task(name="fine")
    async def fine() -> str:
        return "fine"

    async with hf.worker(concurrency=5):
        await hf.start_many([greedy(n=n) for n in range(100)])
        assert await (await hf.start(fine(), priority=-100)).result(timeout=20) == "fine"


async def test_a_job_that_cannot_be_begun_is_given_back_and_keeps_no_other(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    @hf.task
    async def greet(name: str) -> str:
        return name

    make, broken = executor.Executor._make, ["first"]

    def makes(self: Any, job: Any) -> Any:
        if broken and broken[0] in job.input:
            raise RuntimeError(broken.pop())
        return make(self, job)

    monkeypatch.setattr(executor.Executor, "_make", makes)
    monkeypatch.setattr(unsettled, "PUT_OFF_SECONDS", 0.01)
    chains = await hf.start_many([greet(name="first"), greet(name="second")])

    async with hf.worker():
        assert [await chain.result(timeout=20) for chain in chains] == ["first", "second"]

    assert (await hf.get_job(chains[0])).used == 1


async def test_a_time_out_ends_a_coroutine_and_is_in_the_history(hf: Holdfast) -> None:
    """F-08."""

    @hf.task(name="endless", timeout=0.1, retry=ONCE)
    async def endless() -> None:
        await asyncio.Event().wait()

    async with hf.worker():
        chain = await hf.start(endless())
        await until_status(hf, chain, "failed")

    error = (await hf.get_job(chain)).error
    assert error is not None
    assert dict(error)["type"] == "TimeoutError"
    assert "asyncio.Event().wait()" in dict(error)["traceback"]


async def test_a_thread_past_its_time_keeps_the_job_until_it_really_ends(hf: Holdfast) -> None:
    """F-08, I-34."""
    gate, told = threading.Event(), threading.Event()

    @hf.task(name="stuck", timeout=0.1, retry=ONCE)
    def stuck(ctx: BlockingContext) -> None:
        ctx.aborted.wait(10)
        told.set()
        gate.wait(10)
        ctx.raise_if_aborted()

    async with hf.worker():
        chain = await hf.start(stuck())
        await until(told.is_set, "the handler is told")
        running = await status_of(hf, chain)
        gate.set()
        await until_status(hf, chain, "failed")

    assert running == "running"


@pytest.mark.source("TQ-40")
async def test_fail_from_beside_the_handler_stops_and_fails_it_for_good(hf: Holdfast) -> None:
    stopped = []

    @hf.task(name="watched")
    async def watched(ctx: Context) -> None:
        asyncio.get_running_loop().call_later(0.05, ctx.fail, "over budget")
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(ctx.abort_reason)

    async with hf.worker():
        chain = await hf.start(watched())
        await until_status(hf, chain, "failed")

    assert stopped == ["failed"]
    assert (await hf.get_job(chain)).reason == "over budget"


async def test_a_result_after_fail_counts_for_nothing(hf: Holdfast) -> None:
    @hf.task(name="undecided")
    async def undecided(ctx: Context) -> str:
        ctx.fail("no good")
        return "all is well"

    async with hf.worker():
        chain = await hf.start(undecided())
        await until_status(hf, chain, "failed")

    assert (await hf.get_job(chain)).reason == "no good"


async def test_progress_is_written_at_once_then_seldom_and_last_with_the_end(hf: Holdfast) -> None:
    gate = asyncio.Event()

    @hf.task(name="chatter")
    async def chatter(ctx: Context) -> None:
        ctx.progress(1, "first")
        await gate.wait()
        for n in range(1000):
            ctx.progress(n / 10, f"step {n}")
        ctx.progress(250, "last")

    async with hf.worker():
        chain = await hf.start(chatter())

        async def is_told() -> bool:
            return (await hf.get_job(chain)).progress == 1

        await until(is_told, "the first report is written while the handler runs")
        gate.set()
        await chain.result(timeout=10)

    job = await hf.get_job(chain)
    told = await rows(hf, "SELECT facts FROM holdfast_event WHERE name = 'job:progress' ORDER BY seq")
    assert (job.progress, job.message) == (100, "last")
    assert 2 <= len(told) <= 4
    assert json.loads(told[0][0]) == {"progress": 1, "message": "first"}


@pytest.mark.source("PQ-33")
async def test_a_handler_that_ignores_a_cancel_keeps_lease_slot_and_lane(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """P-19, F-08, I-34."""
    monkeypatch.setattr(attempt, "STUBBORN_SECONDS", 0.1)
    gate = threading.Event()

    @hf.task(name="deaf", lease=1)
    def deaf() -> None:
        gate.wait(20)

    @hf.task(name="next_in_lane")
    async def next_in_lane() -> str:
        return "ran"

    async with hf.worker(concurrency=2) as worker:
        one = await hf.start(deaf(), lane="a")
        await until_status(hf, one, "running")
        other = await hf.start(next_in_lane(), lane="a")
        await hf.cancel(one)
        await until(lambda: worker.stubborn == [str(one.id)], "the worker says that it does not stop", 6)
        ((told,),) = await rows(hf, "SELECT $now")

        async def is_renewed() -> bool:
            leases = await rows(hf, "SELECT lease_until FROM holdfast_job WHERE id = :id", id=str(one.id))
            return bool(leases[0][0] > told + 2000)

        await until(is_renewed, "it is leased longer than two leases from then")
        standing = (await status_of(hf, one), await status_of(hf, other))
        gate.set()
        await other.result(timeout=10)

    assert standing == ("running", "pending")
    assert await status_of(hf, one) == "cancelled"
    assert lines(caplog).count("handler_does_not_stop") == 1


class Forgetful:
    """A store that commits, and then loses the answer, as often as it is told."""

    def __init__(self, store: Any, times: int) -> None:
        self._store = store
        self.times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def run(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        """Run it, and forget the result of an exchange that claimed or settled something."""
        result = await self._store.run(operation, *args, **kwargs)
        if operation is exchanging.exchange and self.times and (result.settled.done or result.claims.jobs):
            self.times -= 1
            raise UnknownOutcome("the answer was lost")
        return result


async def test_lost_answers_are_looked_up_and_nothing_runs_or_completes_twice(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-16, I-55."""
    monkeypatch.setattr(unknown_claims, "DOUBT_SECONDS", 1.0)
    ran: list[int] = []

    @hf.task(name="counted")
    async def counted(n: int) -> int:
        ran.append(n)
        return n

    started = 0
    worker = hf.worker(concurrency=2, poll=0.1)
    worker._core.store = forgetful = Forgetful(hf.store, times=4)
    async with worker:
        while forgetful.times:  # how many exchanges five jobs take is the worker's to say
            for chain in await hf.start_many([counted(n=n) for n in range(started, started + 5)]):
                await until_status(hf, chain, "completed")
            started += 5

    assert sorted(ran) == list(range(started))
    assert await rows(hf, "SELECT count(*) FROM holdfast_event WHERE name = 'job:completed'") == [(started,)]


async def test_an_outcome_that_cannot_be_written_fails_alone(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """I-64."""
    caplog.set_level(logging.CRITICAL, "holdfast.worker.claiming.unsettled")
    honest = settling.settle

    async def picky(tx: Any, settlements: Any) -> Any:
        if any(each.outcome.output == '"bad"' for each in settlements):
            raise RuntimeError("this cannot be written")
        return await honest(tx, settlements)

    monkeypatch.setattr(settling, "settle", picky)

    @hf.task(name="says")
    async def says(word: str) -> str:
        return word

    async with hf.worker():
        good = await hf.start_many([says(word="good") for _ in range(5)])
        bad = await hf.start(says(word="bad"))
        await until_status(hf, bad, "failed")
        for chain in good:
            await until_status(hf, chain, "completed")

    assert (await hf.get_job(bad)).reason == "its outcome could not be written"


@pytest.mark.source("PQ-53", "JC-41", "TQ-33")
async def test_a_worker_that_stops_gives_back_what_it_interrupted(hf: Holdfast) -> None:
    """I-50, I-42."""
    begun, cleaned = asyncio.Event(), list[UUID]()

    @hf.task(name="long")
    async def long(ctx: Context) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(ctx.job.id)

    async with hf.worker(grace=0.05):
        chain = await hf.start(long())
        await asyncio.wait_for(begun.wait(), 10)

    job = await hf.get_job(chain)
    assert (str(job.status), job.used, job.attempt) == ("pending", 0, 1)
    assert cleaned == [chain.id]


@pytest.mark.source("TQ-20")
async def test_a_worker_that_stops_pauses_what_it_interrupted_if_the_task_says_so(hf: Holdfast) -> None:
    begun = asyncio.Event()

    @hf.task(name="guarded", on_interrupt="pause")
    async def guarded() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with hf.worker(grace=0.05):
        chain = await hf.start(guarded(), lane="vm-7")
        await asyncio.wait_for(begun.wait(), 10)

    job = await hf.get_job(chain)
    assert (str(job.status), job.reason, job.used) == ("paused", "shutdown", 0)
    assert (await hf.lane("vm-7").info()).halted_by == chain.id


# ---- how a worker is made, started and stopped


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"poll": 0},
        {"poll": float("nan")},
        {"grace": -1},
        {"queues": "mail"},
        {"queues": ["mail", ""]},
        {"queues": []},
        {"concurrency": 2.5},
        {"concurrency": "5"},
        {"poll": None},
        {"grace": "5"},
        {"name": "a\0b"},
        {"name": "\ud800"},
        {"name": ""},
        {"name": "mail worker"},
        {"name": "mail/1"},
        {"name": "näher"},
        {"name": "x" * 101},
        {"name": 7},
        {"middleware": print},
        {"middleware": [1]},
    ],
)
async def test_options_that_cannot_work_are_refused_when_the_worker_is_made(hf: Holdfast, options: Any) -> None:
    with pytest.raises(UsageError):
        hf.worker(**options)


@pytest.mark.source("JC-85")
async def test_a_worker_is_named_by_letters_digits_dots_dashes_and_underscores(hf: Holdfast) -> None:
    with pytest.raises(InvalidSettings, match=r"letters, digits, '\.', '_' and '-'"):
        hf.worker(name="mail worker")

    one, other = hf.worker(name="mail-1.eu_west"), hf.worker(name="mail-1.eu_west")

    assert one.id.startswith("mail-1.eu_west-")
    assert one.id != other.id


async def test_a_worker_that_is_run_is_stopped_like_any_other(hf: Holdfast) -> None:
    @hf.task(name="long")
    async def long() -> None:
        await asyncio.Event().wait()

    worker = hf.worker(grace=0.05)
    running = asyncio.create_task(worker.run())
    chain = await hf.start(long())
    await until_status(hf, chain, "running")
    await asyncio.wait_for(worker.stop(), 10)
    await asyncio.wait_for(running, 10)

    job = await hf.get_job(chain)
    assert (str(job.status), job.used) == ("pending", 0)


async def test_a_run_that_is_cancelled_gives_its_jobs_back(hf: Holdfast) -> None:
    @hf.task(name="long")
    async def long() -> None:
        await asyncio.Event().wait()

    running = asyncio.create_task(hf.worker(grace=0.05).run())
    chain = await hf.start(long())
    await until_status(hf, chain, "running")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 10)

    job = await hf.get_job(chain)
    assert (str(job.status), job.used) == ("pending", 0)


async def test_a_worker_is_started_once(hf: Holdfast) -> None:
    async with hf.worker() as worker:
        with pytest.raises(Misuse):
            await asyncio.wait_for(worker.run(), 10)
        with pytest.raises(Misuse):
            await worker.__aenter__()


@pytest.mark.source("JC-30")
async def test_what_goes_wrong_beside_the_jobs_does_not_end_the_worker(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(tx: Any, *args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError

    write = claiming.progress

    async def refuse_reports(tx: Any, reports: Any) -> Any:
        return await (refuse(tx) if reports and not reports[0].percent else write(tx, reports))

    monkeypatch.setattr(workers, "beat", refuse)
    monkeypatch.setattr(claiming, "progress", refuse_reports)

    @hf.task(name="chatty")
    async def chatty(ctx: Context) -> str:
        ctx.progress(0, flush=True)
        await asyncio.sleep(0.3)
        ctx.progress(50)
        return "done"

    async with hf.worker() as worker:
        chain = await hf.start(chatty())
        assert await chain.result(timeout=10) == "done"
        assert not worker.ended.done()


async def test_a_call_that_fails_after_the_store_has_answered_again_is_no_new_trouble(
    new_holdfast: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hf = new_holdfast("sqlite")
    run = hf.store.run
    is_away, hangs, is_over = False, asyncio.Event(), asyncio.Event()

    async def call(operation: Any, *args: Any, **kwargs: Any) -> Any:
        if operation is exchanging.exchange and is_away:
            if not hangs.is_set():
                hangs.set()
                await is_over.wait()
            raise Unavailable("the database cannot be reached; try again")
        return await run(operation, *args, **kwargs)

    gate = asyncio.Event()

    @hf.task(name="gated")
    async def gated() -> None:
        await gate.wait()

    def said(word: str) -> int:
        return lines(caplog).count(word)

    async with hf, hf.worker(concurrency=2) as worker:
        first = await hf.start(gated())
        await until_status(hf, first, "running")
        is_away = True
        monkeypatch.setattr(hf.store, "run", call)
        second = await hf.start(gated())
        await asyncio.wait_for(hangs.wait(), 10)  # one loop claims it, and the other is to settle the first
        gate.set()
        await until(lambda: said("worker_store_trouble") == 1, "the trouble is told")
        is_away = False
        await until(lambda: said("worker_store_answers") == 1, "its end is told")
        is_over.set()
        await second.result(timeout=10)
        assert worker.health().trouble_since is None

    assert (said("worker_store_trouble"), said("worker_store_answers")) == (1, 1)


@pytest.mark.parametrize("rests", [False, True], ids=["with the settlement", "while it runs"])
async def test_a_report_is_not_lost_because_a_stranger_has_the_row_locked(
    new_holdfast: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch, rests: bool
) -> None:
    """I-63."""
    hf = new_holdfast("postgres")
    monkeypatch.setattr(progress, "TROUBLE_SECONDS", 0.02)
    gate, end = asyncio.Event(), asyncio.Event()
    passed_over: list[str] = []
    write = claiming.progress

    async def noted(tx: Any, reports: Any) -> Any:
        written = await write(tx, reports)
        passed_over.extend(each.message for each in reports if each.token not in written)
        return written

    @hf.task(name="chatty")
    async def chatty(ctx: Context) -> str:
        await gate.wait()
        ctx.progress(90, "nearly")
        if rests:
            await end.wait()
        return "done"

    async with hf, hf.worker(), await psycopg.AsyncConnection.connect(hf.settings.database) as stranger:
        chain = await hf.start(chatty())
        await until_status(hf, chain, "running")
        await stranger.execute(f'SELECT seq FROM "{hf.settings.schema_name}".holdfast_job FOR NO KEY UPDATE')
        monkeypatch.setattr(claiming, "progress", noted)
        gate.set()
        await until(lambda: "nearly" in passed_over, "the report was passed over")
        await stranger.rollback()
        if rests:
            await until_progress(hf, chain, 90)
        end.set()
        assert await chain.result(timeout=10) == "done"
        job = await hf.get_job(chain)

    assert (job.progress, job.message) == (90, "nearly")


async def until_progress(hf: Holdfast, job: Any, percent: int) -> None:
    async def holds() -> bool:
        return (await hf.get_job(job)).progress == percent

    await until(holds, f"the job is at {percent} %")


async def test_a_row_that_a_stranger_has_locked_is_not_asked_for_without_pause(
    new_holdfast: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-26, I-63."""
    hf = new_holdfast("postgres")
    run = hf.store.run
    ended: dict[Any, float] = {}
    pauses: list[float] = []

    def timed(operation: Any, *args: Any, **kwargs: Any) -> Any:
        loop = asyncio.current_task()
        settles = operation is exchanging.exchange and args[0].settlements
        if settles and loop in ended:
            pauses.append(time.monotonic() - ended.pop(loop))

        async def call() -> Any:
            try:
                return await run(operation, *args, **kwargs)
            finally:
                if settles:
                    ended[loop] = time.monotonic()

        return call()

    gate = asyncio.Event()

    @hf.task(name="gated")
    async def gated() -> str:
        await gate.wait()
        return "done"

    async with hf, hf.worker(), await psycopg.AsyncConnection.connect(hf.settings.database) as stranger:
        chain = await hf.start(gated())
        await until_status(hf, chain, "running")
        lock = f'SELECT seq FROM "{hf.settings.schema_name}".holdfast_job FOR NO KEY UPDATE'
        await stranger.execute(lock)
        monkeypatch.setattr(hf.store, "run", timed)
        gate.set()
        await until(lambda: len(pauses) > 5, "the settlement was tried again and again")
        tried = list(pauses)
        await stranger.rollback()
        assert await chain.result(timeout=10) == "done"

    assert min(tried) > claimer.BUSY_SECONDS * 0.8
