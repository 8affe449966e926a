"""Phases as handlers run them: once each, in order, whatever happens between them (PQ-25…PQ-32, I-40)."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import pytest

from holdfast import Context, Holdfast, Pause, Retry
from holdfast.client.completion import AsyncBlock
from holdfast.errors import Busy, InvalidInput, InvalidOutput, Misuse, Unavailable, UnknownOutcome
from holdfast.outcomes import Fail
from holdfast.store import phase_rows, phases
from holdfast.store.jobs import claiming
from holdfast.sync import Context as BlockingContext
from holdfast.tasks.task import Task
from holdfast.worker.attempts.aborts import Aborted, AbortReason
from tests.support.conditions import until
from tests.worker.colours import Colour, Witness

NAMES = ("download", "encode", "upload")
WITHOUT_A_SERVER = ("sqlite-async", "sqlite-plain")  # where the database has no say
SOON = Retry(attempts=3, first=0.01, maximum=0.01, jitter=0)


class Studio:
    """The functions of three phases; counts how often each has run, and does in one of them what a test wants."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.acts: dict[str, Callable[[], object]] = {}

    def download(self, url: str) -> list[int]:
        self._run("download")
        return [len(url)]

    def encode(self, source: list[int], *, quality: int = 1) -> dict[str, int]:
        self._run("encode")
        return {"frames": source[0] * quality}

    def upload(self, video: dict[str, int]) -> str:
        self._run("upload")
        return f"{video['frames']} frames"

    def _run(self, name: str) -> None:
        self.ran.append(name)
        if name in self.acts:
            self.acts[name]()

    async def body(self, ctx: Any, _: int) -> str:
        source = await ctx.phase("download", self.download, "http://a")
        video = await ctx.phase("encode", self.encode, source, quality=2)
        return str(await ctx.phase("upload", self.upload, video))


@pytest.fixture
def studio() -> Studio:
    return Studio()


def transcode(colour: Colour, studio: Studio, **options: Any) -> Task[..., Any]:
    return colour.task(studio.body, str, phases=NAMES, retry=SOON, **options)


def once(error: BaseException) -> Callable[[], None]:
    """Raise *error* the first time."""
    raised: list[BaseException] = []

    def act() -> None:
        if not raised:
            raised.append(error)
            raise error

    return act


async def flushed(written: Awaitable[None] | None) -> None:
    """Wait for a report that a handler of either colour has flushed."""
    if written is not None:
        await written


async def statuses(colour: Colour, job: Any) -> list[str]:
    return [str(each.status) for each in (await colour.hf.get_job(job)).phases]


@pytest.mark.source("PQ-14", "PQ-25")
async def test_phases_run_in_order_and_their_results_are_kept(colour: Colour, studio: Studio) -> None:
    task = transcode(colour, studio)

    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        output = await chain.result(timeout=20)

    job = await colour.hf.get_job(chain)
    assert (output, studio.ran) == ("16 frames", list(NAMES))
    assert [(each.name, str(each.status), each.progress, each.result) for each in job.phases] == [
        ("download", "completed", 100, [8]),
        ("encode", "completed", 100, {"frames": 16}),
        ("upload", "completed", 100, "16 frames"),
    ]
    assert (job.current_phase, job.progress) == ("upload", 100)
    told = [json.loads(facts) for name, facts in await colour.facts(chain) if name == "job:phase:completed"]
    assert [(each["phase"], each["progress"]) for each in told] == [("download", 33), ("encode", 67), ("upload", 100)]
    assert (await colour.events(chain))[-2:] == ["job:completed", "chain:completed"]


@pytest.mark.source("PQ-15")
async def test_an_attempt_after_an_error_runs_only_what_is_unfinished(colour: Colour, studio: Studio) -> None:
    studio.acts["encode"] = once(OSError("disk full"))
    task = transcode(colour, studio)

    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        output = await chain.result(timeout=20)

    assert (output, studio.ran) == ("16 frames", ["download", "encode", "encode", "upload"])
    assert await statuses(colour, chain) == ["completed"] * 3


async def fail_and_retry(colour: Colour, chain: Any) -> None:
    await colour.until_status(chain, "failed")
    assert await statuses(colour, chain) == ["completed", "failed", "pending"]
    assert (await colour.hf.get_job(chain)).phases[1].error["message"] == "no use"
    await colour.hf.retry(chain)


async def retry_from_stale(colour: Colour, chain: Any) -> None:
    await colour.until_status(chain, "failed")
    await colour.hf.store.run(make_stale, str(chain.id))
    assert (await colour.hf.get_job(chain)).state == "stale"
    await colour.hf.retry(chain)


async def make_stale(tx: Any, id_: str) -> None:
    await tx.execute("UPDATE holdfast_job SET stale_at = $now WHERE id = :id", id=id_)


async def cancel_and_retry(colour: Colour, chain: Any) -> None:
    await colour.until_status(chain, "failed")
    await colour.hf.cancel(chain)
    assert await statuses(colour, chain) == ["completed", "cancelled", "cancelled"]
    await colour.hf.retry(chain)


async def resume(colour: Colour, chain: Any) -> None:
    await colour.until_status(chain, "paused")
    assert await statuses(colour, chain) == ["completed", "running", "pending"]
    await colour.hf.resume(chain)


WAYS_ON: dict[str, tuple[BaseException, Callable[[Colour, Any], Awaitable[None]]]] = {
    "retry": (Fail("no use"), fail_and_retry),
    "retry from stale": (Fail("no use"), retry_from_stale),
    "cancel and retry": (Fail("no use"), cancel_and_retry),
    "resume": (Pause("look"), resume),
}


@pytest.mark.source("PQ-31")
@pytest.mark.parametrize("how", WAYS_ON)
async def test_whoever_has_it_run_again_runs_only_what_is_unfinished(colour: Colour, studio: Studio, how: str) -> None:
    error, go_on = WAYS_ON[how]
    studio.acts["encode"] = once(error)
    task = transcode(colour, studio)

    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        await go_on(colour, chain)
        output = await chain.result(timeout=20)

    assert (output, studio.ran) == ("16 frames", ["download", "encode", "encode", "upload"])


async def test_work_that_a_shutdown_interrupts_goes_on_at_its_phase(colour: Colour, studio: Studio) -> None:
    witness = Witness()

    def interrupted() -> None:
        if not witness.reached.is_set():
            witness.reached.set()
            assert witness.gate.wait(20)
            raise Aborted(AbortReason.SHUTDOWN)

    studio.acts["encode"] = interrupted
    task = transcode(colour, studio)
    chain = await colour.hf.start(task())

    worker = colour.hf.worker(grace=0)
    async with worker:
        await until(witness.reached.is_set, "the second phase runs")
        worker.drain()
        worker.interrupt()
        witness.gate.set()
    job = await colour.hf.get_job(chain)
    assert (job.status, job.interrupted, await statuses(colour, chain)) == (
        "pending", 1, ["completed", "running", "pending"],
    )  # fmt: skip
    async with colour.hf.worker():
        assert await chain.result(timeout=20) == "16 frames"

    assert studio.ran == ["download", "encode", "encode", "upload"]


@dataclass
class Film:
    frames: int
    name: str = "untitled"


async def test_a_result_is_given_by_its_type_as_it_will_be_read(colour: Colour) -> None:
    seen: list[Any] = []
    failing = once(OSError("again"))

    def shoot() -> Film:
        return Film(24)

    def measure() -> list[float]:
        return [1, 2]  # type: ignore[list-item]  # ints, which the annotation makes floats of

    async def body(ctx: Any, _: int) -> None:
        film = await ctx.phase("shoot", shoot)
        lengths = await ctx.phase("measure", measure)
        seen.append((film, [type(each) for each in lengths], ctx.phase_result("shoot"), ctx.phase_results()))
        failing()

    task = colour.task(body, None, phases=("shoot", "measure"), retry=SOON)
    async with colour.hf.worker():
        await (await colour.hf.start(task())).result(timeout=20)

    expected = (Film(24), [float, float], Film(24), {"shoot": Film(24), "measure": [1.0, 2.0]})
    assert seen == [expected, expected]


@pytest.mark.source("PQ-26")
async def test_results_of_earlier_attempts_can_be_read_without_running_a_phase(colour: Colour, studio: Studio) -> None:
    seen: list[Any] = []

    async def body(ctx: Any, _: int) -> None:
        if ctx.job.attempt == 1:
            await ctx.phase("download", studio.download, "http://a")
            raise OSError("again")
        seen.extend([ctx.phase_results(), ctx.phase_result("download")])
        await ctx.phase("encode", studio.encode, ctx.phase_result("download"))

    task = colour.task(body, None, phases=NAMES, retry=SOON)
    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        await chain.result(timeout=20)

    assert seen == [{"download": [8]}, [8]]
    assert await statuses(colour, chain) == ["completed", "completed", "cancelled"]


def nothing() -> None:
    """Do nothing."""


async def undeclared(ctx: Any) -> None:
    await ctx.phase("unpack", nothing)


async def out_of_order(ctx: Any) -> None:
    await ctx.phase("encode", nothing)


async def unfinished_result(ctx: Any) -> None:
    ctx.phase_result("download")


async def undeclared_result(ctx: Any) -> None:
    ctx.phase_result("unpack")


async def inside_prepare(ctx: Any) -> None:
    async with ctx.prepare():
        await ctx.phase("download", nothing)


async def after_the_end(ctx: Any) -> None:
    async with ctx.complete() as tx:
        tx.finish(None)
    await ctx.phase("download", nothing)


async def flush_inside_a_block(ctx: Any) -> None:
    async with ctx.prepare():
        await flushed(ctx.progress(10, flush=True))


REFUSED: dict[Callable[[Any], Awaitable[None]], str] = {
    undeclared: "has no phase 'unpack'",
    out_of_order: "phase 'encode' comes after phase 'download', which has not finished",
    unfinished_result: "phase 'download' has not finished",
    undeclared_result: "has no phase 'unpack'",
    inside_prepare: r"ctx\.phase\(\) cannot be part of ctx\.prepare\(\)",
    after_the_end: "the job is completed by a block",
    flush_inside_a_block: r"inside ctx\.prepare\(\) progress cannot be flushed",
}


@pytest.mark.parametrize("colour", WITHOUT_A_SERVER, indirect=True)
@pytest.mark.parametrize("wrong", REFUSED, ids=lambda wrong: wrong.__name__)
async def test_what_phases_do_not_have_is_refused_with_what_to_do(
    colour: Colour, wrong: Callable[[Any], Awaitable[None]]
) -> None:
    witness = Witness()

    async def body(ctx: Any, _: int) -> None:
        async with witness.watching():
            await wrong(ctx)

    task = colour.task(body, None, phases=NAMES, retry=Retry.never())
    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        await colour.hf.wait([chain], timeout=20)

    (error,) = witness.raised
    assert isinstance(error, Misuse)
    with pytest.raises(Misuse, match=REFUSED[wrong]):
        raise error


@pytest.mark.parametrize("colour", WITHOUT_A_SERVER, indirect=True)
async def test_a_phase_inside_a_phase_and_an_end_inside_one_are_refused(colour: Colour) -> None:
    refused: list[str] = []

    def nested(ctx: Any) -> None:
        for act in (phase_within, complete_within, atomic_within):
            with pytest.raises(Misuse) as caught:
                act(ctx)
            refused.append(str(caught.value))

    async def body(ctx: Any, _: int) -> str:
        await ctx.phase("download", nested, getattr(ctx, "_inner", ctx))
        return "ended well"

    task = colour.task(body, str, phases=NAMES, retry=Retry.never())
    async with colour.hf.worker():
        output = await (await colour.hf.start(task())).result(timeout=20)

    assert output == "ended well"
    assert [text.split(":")[0] for text in refused] == [
        "phase 'encode' cannot begin while phase 'download' is under way",
        "complete() cannot be opened now",
        "atomic() cannot be opened now",
    ]


def phase_within(ctx: Any) -> None:
    if isinstance(made := ctx.phase("encode", nothing), Awaitable):
        asyncio.run(awaited(made))


def complete_within(ctx: Any) -> None:
    enter(ctx.complete())


def atomic_within(ctx: Any) -> None:
    enter(ctx.atomic())


def enter(block: Any) -> None:
    """Enter a block of either colour, in a thread."""
    if isinstance(block, AsyncBlock):
        asyncio.run(awaited(block.__aenter__()))
    else:
        block.__enter__()


async def awaited(made: Awaitable[Any]) -> None:
    await made


async def test_a_phase_is_not_run_twice_at_once(new_holdfast: Callable[..., Holdfast]) -> None:
    hf = new_holdfast("sqlite")

    @hf.task(name="twice", phases=("download",))
    async def twice(ctx: Context) -> list[str]:
        async def slow() -> None:
            await asyncio.sleep(0)

        both = await asyncio.gather(ctx.phase("download", slow), ctx.phase("download", slow), return_exceptions=True)
        return [type(each).__name__ for each in both]

    async with hf, hf.worker():
        assert await (await hf.start(twice())).result(timeout=20) == ["NoneType", "Misuse"]


@pytest.mark.parametrize("colour", WITHOUT_A_SERVER, indirect=True)
async def test_a_task_without_phases_says_what_to_write(colour: Colour) -> None:
    async def body(ctx: Any, _: int) -> str:
        with pytest.raises(Misuse, match=r"declares no phases; write @hf\.task\(phases=\('download',\)\)"):
            await ctx.phase("download", nothing)
        return "said so"

    task = colour.task(body, str)
    async with colour.hf.worker():
        assert await (await colour.hf.start(task())).result(timeout=20) == "said so"


async def test_a_result_that_cannot_be_stored_fails_its_phase(colour: Colour) -> None:
    witness = Witness()

    def endless() -> float:
        return float("inf")

    async def body(ctx: Any, _: int) -> None:
        async with witness.watching():
            await ctx.phase("download", endless)

    task = colour.task(body, None, phases=NAMES, retry=Retry.never())
    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        await colour.until_status(chain, "failed")

    (error,) = witness.raised
    assert isinstance(error, InvalidOutput)
    assert error.path == "phase download"
    assert await statuses(colour, chain) == ["failed", "pending", "pending"]


@pytest.mark.source("PQ-32", "DF-44")
async def test_a_cancel_between_two_phases_is_announced_once(colour: Colour, studio: Studio) -> None:
    studio.acts["download"] = lambda: colour.hf.sync.cancel(chain, why="enough")
    task = transcode(colour, studio)
    chain = await colour.hf.start(task(), delay=0)

    async with colour.hf.worker():
        await colour.until_status(chain, "cancelled")

    assert studio.ran == ["download"]
    assert await statuses(colour, chain) == ["completed", "cancelled", "cancelled"]
    events = await colour.events(chain)
    assert (events.count("job:cancelled"), events.count("job:cancelling"), events[-1]) == (1, 1, "job:cancelled")


async def test_a_pause_between_two_phases_lets_none_begin(colour: Colour, studio: Studio) -> None:
    studio.acts["download"] = lambda: colour.hf.sync.pause(chain)
    task = transcode(colour, studio)
    chain = await colour.hf.start(task())

    async with colour.hf.worker():
        await colour.until_status(chain, "paused")
        assert (studio.ran, await statuses(colour, chain)) == (["download"], ["completed", "pending", "pending"])
        await colour.hf.resume(chain)
        assert await chain.result(timeout=20) == "16 frames"

    assert studio.ran == list(NAMES)


async def test_phases_that_the_code_has_renamed_or_added_meanwhile(
    colour: Colour, studio: Studio, new_holdfast: Callable[..., Holdfast]
) -> None:
    studio.acts["upload"] = once(Fail("the code is wrong"))
    task = transcode(colour, studio)
    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        await colour.until_status(chain, "failed")

    newer = Colour(new_holdfast(colour.hf.store.database), colour.is_async)

    async def body(ctx: Any, _: int) -> str:
        await ctx.phase("download", studio.download, "http://b")
        await ctx.phase("probe", nothing)
        return str(await ctx.phase("upload", studio.upload, {"frames": 3}))

    newer.task(body, str, phases=("download", "probe", "upload"), retry=SOON)
    async with newer.hf.worker():
        await newer.hf.retry(chain.id)
        assert await (await newer.hf.get_chain(chain.id)).result(timeout=20) == "3 frames"

    job = await newer.hf.get_job(chain.id)
    assert [(each.name, str(each.status), each.result) for each in job.phases] == [
        ("download", "completed", [8]),
        ("probe", "completed", None),
        ("upload", "completed", "3 frames"),
        ("encode", "completed", {"frames": 16}),
    ]


async def test_the_end_of_a_phase_outlives_a_moment_without_a_database(
    colour: Colour, studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, tried = phases.complete, []

    async def away(tx: Any, *args: Any) -> Any:
        tried.append(1)
        if len(tried) == 1:
            raise Busy("somebody else writes")
        return await write(tx, *args)

    monkeypatch.setattr(phases, "complete", away)
    monkeypatch.setattr("holdfast.worker.attempts.phases.TROUBLE_SECONDS", 0.01)
    task = transcode(colour, studio)

    async with colour.hf.worker():
        output = await (await colour.hf.start(task())).result(timeout=20)

    assert (output, studio.ran, len(tried)) == ("16 frames", list(NAMES), 4)


async def test_a_shutdown_while_a_phase_is_being_committed_waits_for_the_answer(
    new_holdfast: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = new_holdfast("postgres")
    write = phases.complete
    ran: list[int] = []

    async def interrupted(tx: Any, *args: Any) -> Any:
        if not ran[1:]:
            worker.drain()
            worker.interrupt()
            await asyncio.sleep(0)  # in the loop, as on PostgreSQL: a cancelled handler would not come back
        return await write(tx, *args)

    monkeypatch.setattr(phases, "complete", interrupted)

    @hf.task(name="film", phases=("download", "encode"))
    async def film(ctx: Context) -> int:
        async def work(n: int) -> int:
            ran.append(n)
            return n

        return await ctx.phase("download", work, 1) + await ctx.phase("encode", work, 2)

    async with hf:
        chain = await hf.start(film())
        worker = hf.worker(grace=0)
        async with worker:
            await until(lambda: worker.health().is_draining, "the worker drains")
        assert [str(each.status) for each in (await hf.get_job(chain)).phases] == ["completed", "pending"]
        async with hf.worker():
            assert await chain.result(timeout=20) == 3

    assert ran == [1, 2]


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_a_time_out_of_the_handlers_own_never_has_a_completed_phase_run_again(
    new_holdfast: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    hf = new_holdfast(database)
    write, committing, cancelled = phases.complete, threading.Event(), threading.Event()
    ran: list[int] = []

    async def slowly(tx: Any, *args: Any) -> Any:
        committing.set()
        if database == "sqlite":
            assert cancelled.wait(20)
        else:
            await until(cancelled.is_set, "the handler is cancelled", 20)
        return await write(tx, *args)

    monkeypatch.setattr(phases, "complete", slowly)

    @hf.task(name="film", phases=("download",))
    async def film(ctx: Context) -> int:
        async def work() -> int:
            ran.append(1)
            return len(ran)

        first = asyncio.create_task(ctx.phase("download", work))
        await until(committing.is_set, "the end of the phase is being committed", 20)
        first.cancel()
        asyncio.get_running_loop().call_soon(cancelled.set)
        with pytest.raises(asyncio.CancelledError):
            await first
        return await ctx.phase("download", work)

    async with hf, hf.worker():
        chain = await hf.start(film())
        assert await chain.result(timeout=20) == 1
        assert [event.name for event in await hf.timeline(chain)].count("job:phase:completed") == 1

    assert ran == [1]


@pytest.mark.parametrize("colour", WITHOUT_A_SERVER, indirect=True)
async def test_a_store_that_is_away_before_the_handler_begins_costs_no_attempt(
    colour: Colour, studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = transcode(colour, studio)
    studio.acts["encode"] = once(OSError("the encoder has crashed"))
    kind, failed = type(colour.hf.store), []

    def away(name: str) -> Any:
        read = getattr(kind, name)

        def call(store: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
            if operation is phase_rows.read and len(failed) < 2:
                failed.append(1)
                raise Unavailable("it is away")
            return read(store, operation, *args, **kwargs)

        return call

    monkeypatch.setattr(kind, "read", away("read"))
    monkeypatch.setattr(kind, "read_sync", away("read_sync"))
    monkeypatch.setattr("holdfast.worker.attempts.phases.TROUBLE_SECONDS", 0.01)

    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        await chain.result(timeout=20)

    assert (len(failed), (await colour.hf.get_job(chain)).used) == (2, 2)
    assert studio.ran == ["download", "encode", "encode", "upload"]


@pytest.mark.parametrize("colour", ["sqlite-async", "postgres-async"], indirect=True)  # a plain one is not cancelled
async def test_a_phase_whose_end_nobody_knows_is_looked_for_before_it_runs_again(
    colour: Colour, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, has_failed, ran = type(colour.hf.store).run, asyncio.Event(), []

    async def without_answer(store: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
        found = await run(store, operation, *args, **kwargs)
        if operation is phases.complete and not has_failed.is_set():
            has_failed.set()
            raise UnknownOutcome("the answer to COMMIT was lost")
        return found

    monkeypatch.setattr(type(colour.hf.store), "run", without_answer)
    monkeypatch.setattr("holdfast.worker.attempts.phases.TROUBLE_SECONDS", 20.0)

    async def body(ctx: Any, _: int) -> int:
        async def work() -> int:
            ran.append(1)
            return len(ran)

        first = asyncio.create_task(ctx.phase("download", work))
        await has_failed.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return int(await ctx.phase("download", work))

    task = colour.task(body, int, phases=("download",))
    async with colour.hf.worker():
        assert await (await colour.hf.start(task())).result(timeout=20) == 1

    assert ran == [1]


def ready(made: Awaitable[str]) -> Any:
    """Hand on what is to be awaited; who looks at this function does not know that it is."""
    return made


async def test_a_plain_function_of_an_async_handler_runs_in_a_thread(new_holdfast: Callable[..., Holdfast]) -> None:
    hf = new_holdfast("sqlite")
    gate, threads = threading.Event(), []

    def blocking(ctx: Context) -> str:
        threads.append(threading.current_thread())
        ctx.progress(50, "in a thread")
        return "free" if gate.wait(20) else "stuck"

    @hf.task(name="mixed", phases=("block", "coroutine", "made"))
    async def mixed(ctx: Context) -> str:
        asyncio.get_running_loop().call_later(0.01, gate.set)  # which a blocked loop would not come to

        async def coroutine() -> str:
            return threading.current_thread().name

        said = await ctx.phase("block", blocking, ctx)
        where = await ctx.phase("coroutine", coroutine)
        made = await ctx.phase("made", lambda: ready(coroutine()))
        return f"{said}, {where == made == threading.current_thread().name}"

    async with hf, hf.worker():
        assert await (await hf.start(mixed())).result(timeout=20) == "free, True"

    assert threads[0] is not threading.current_thread()


async def test_a_plain_function_that_ends_after_its_handler_was_stopped_has_its_result_kept(
    new_holdfast: Callable[..., Holdfast],
) -> None:
    hf = new_holdfast("sqlite")
    began, gate, ran = threading.Event(), threading.Event(), []

    def work() -> int:
        ran.append(1)
        began.set()
        gate.wait(20)
        return 7

    @hf.task(name="slow", phases=("work",))
    async def slow(ctx: Context) -> int:
        return await ctx.phase("work", work)

    async with hf:
        chain = await hf.start(slow())
        worker = hf.worker(grace=0)
        async with worker:
            await until(began.is_set, "the function runs")
            worker.drain()
            worker.interrupt()
            gate.set()
        assert (await hf.get_job(chain)).status == "pending"
        async with hf.worker():
            assert await chain.result(timeout=20) == 7

    assert ran == [1]


async def test_an_async_function_is_refused_by_a_plain_handler(new_holdfast: Callable[..., Holdfast]) -> None:
    hf = new_holdfast("sqlite")

    async def download() -> None: ...

    @hf.task(name="plain", phases=("download",))
    def plain(ctx: BlockingContext) -> str:
        with pytest.raises(Misuse, match="has an async function"):
            cast("Any", ctx).phase("download", download)
        return "said so"

    async with hf, hf.worker():
        assert await (await hf.start(plain())).result(timeout=20) == "said so"


async def test_progress_is_of_the_phase_and_of_the_whole(colour: Colour) -> None:
    seen: list[tuple[Any, ...]] = []

    def report(ctx: Any, percent: float) -> None:
        made = ctx.progress(percent, f"at {percent}", flush=True)
        if made is not None:
            asyncio.run_coroutine_threadsafe(flushed(made), loop).result(20)
        job = colour.hf.sync.get_job(ctx.job.id)
        phase = next(each for each in job.phases if each.name == job.current_phase)
        seen.append((job.progress, job.message, phase.name, phase.progress, phase.message))

    async def body(ctx: Any, _: int) -> None:
        inner = getattr(ctx, "_inner", ctx)
        for name, percent in zip(NAMES, (50, 25, 80), strict=True):
            await ctx.phase(name, report, inner, percent)

    loop = asyncio.get_running_loop()
    task = colour.task(body, None, phases=NAMES)
    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        await chain.result(timeout=20)

    assert seen == [
        (17, "at 50", "download", 50, "at 50"),
        (42, "at 25", "encode", 25, "at 25"),
        (93, "at 80", "upload", 80, "at 80"),
    ]
    told = [json.loads(facts)["progress"] for name, facts in await colour.facts(chain) if "progress" in name]
    assert told == [0, 17, 33, 42, 67, 93]


async def test_the_last_report_of_a_phase_is_written_before_it_completes(colour: Colour) -> None:
    def chatter(ctx: Any) -> None:
        for percent in (10, 20, 30):
            ctx.progress(percent, f"at {percent}")

    async def body(ctx: Any, _: int) -> None:
        ctx.progress(5, "before the first")
        for name in NAMES:
            await ctx.phase(name, chatter, ctx)

    task = colour.task(body, None, phases=NAMES)
    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        await chain.result(timeout=20)

    job = await colour.hf.get_job(chain)
    assert [(each.progress, each.message) for each in job.phases] == [(100, "at 30")] * 3
    told = [json.loads(facts) for name, facts in await colour.facts(chain) if name == "job:progress"]
    assert [each["progress"] for each in told if each["message"] == "at 30"] == [10, 43, 77]


async def test_what_was_said_in_a_phase_is_never_written_after_its_end(
    new_holdfast: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = new_holdfast("postgres")
    write, reached, gate, late = claiming.progress, asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slowly(tx: Any, reports: Any) -> Any:
        if not reports or reached.is_set():
            return await write(tx, reports)
        reached.set()
        await gate.wait()
        try:
            return await write(tx, reports)
        finally:
            late.set()

    monkeypatch.setattr(claiming, "progress", slowly)

    @hf.task(name="film", phases=("download", "encode"))
    async def film(ctx: Context) -> None:
        async def work() -> None:
            ctx.progress(10, "early")
            await reached.wait()
            asyncio.get_running_loop().call_later(0.05, gate.set)  # when the end of the phase would be written

        await ctx.phase("download", work)
        await late.wait()

    async with hf, hf.worker():
        chain = await hf.start(film())
        await chain.result(timeout=20)

    job = await hf.get_job(chain)
    assert (job.progress, job.phases[0].progress) == (50, 100)


async def test_a_flush_is_durable_when_it_returns(colour: Colour) -> None:
    seen: list[Any] = []

    async def body(ctx: Any, _: int) -> None:
        for percent in (10, 20, 30):
            await flushed(ctx.progress(percent, flush=True))
            seen.append(colour.hf.sync.get_job(ctx.job.id).progress)

    task = colour.task(body, None)
    async with colour.hf.worker():
        await (await colour.hf.start(task())).result(timeout=20)

    assert seen == [10, 20, 30]


async def test_a_report_that_has_to_wait_keeps_no_other_waiting(
    new_holdfast: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = new_holdfast("sqlite")
    write, passed_over, done = claiming.progress, asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def locked(tx: Any, reports: Any) -> Any:
        free = [each for each in reports if each.message != "of a locked row" or done.is_set()]
        if free != list(reports):
            loop.call_soon_threadsafe(passed_over.set)
        return await write(tx, free)

    monkeypatch.setattr(claiming, "progress", locked)
    monkeypatch.setattr("holdfast.worker.attempts.progress.TROUBLE_SECONDS", 3600.0)

    @hf.task(name="stuck")
    async def stuck(ctx: Context) -> None:
        ctx.progress(1, "of a locked row")
        await done.wait()

    @hf.task(name="other")
    async def other(ctx: Context) -> None:
        await passed_over.wait()
        await asyncio.sleep(0)
        await ctx.progress(50, flush=True)

    async with hf, hf.worker():
        await hf.start(stuck())
        await (await hf.start(other())).result(timeout=20)
        done.set()


async def test_a_flush_of_a_handler_that_is_to_stop_says_so(colour: Colour) -> None:
    witness = Witness()

    async def body(ctx: Any, _: int) -> None:
        async with witness.watching():
            witness.reached.set()
            with suppress(asyncio.CancelledError):
                await colour.wait(witness.gate)
            await until(ctx.aborted.is_set, "it hears of the cancel") if colour.is_async else ctx.aborted.wait(20)
            await flushed(ctx.progress(50, flush=True))

    task = colour.task(body, None)
    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        await until(witness.reached.is_set, "the handler runs")
        await colour.hf.cancel(chain)
        if not colour.is_async:
            witness.gate.set()
        await colour.until_status(chain, "cancelled")

    assert [type(each).__name__ for each in witness.raised] == ["Aborted"]
    assert (await colour.hf.get_job(chain)).progress == 50  # it went with the end


@pytest.mark.parametrize("colour", WITHOUT_A_SERVER, indirect=True)
async def test_what_is_no_number_is_refused_and_breaks_nothing(colour: Colour) -> None:
    paths: list[str] = []

    async def body(ctx: Any, _: int) -> None:
        for percent, total in (("much", None), (float("nan"), None), (None, None), (1, "many"), (1, -1)):
            with pytest.raises(InvalidInput) as caught:
                ctx.progress(percent, total=total)
            paths.append(caught.value.path)
        ctx.progress(3, total=4)

    task = colour.task(body, None)
    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        await chain.result(timeout=20)

    assert paths == ["progress.percent"] * 3 + ["progress.total"] * 2
    assert (await colour.hf.get_job(chain)).progress == 75


async def test_a_job_without_phases_shows_how_far_it_was_when_it_failed(colour: Colour) -> None:
    async def body(ctx: Any, _: int) -> None:
        ctx.progress(40, "half-way")
        raise OSError("disk full")

    task = colour.task(body, None, retry=Retry.never())
    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        await colour.until_status(chain, "failed")

    (run,) = (await colour.hf.get_job(chain)).phases
    assert (run.name, str(run.status), run.progress, run.message) == ("run", "failed", 40, "half-way")
    assert run.error["message"] == "disk full"


@pytest.mark.parametrize("colour", WITHOUT_A_SERVER, indirect=True)
async def test_a_handler_that_swallows_the_error_of_a_phase_may_run_it_again(colour: Colour, studio: Studio) -> None:
    studio.acts["download"] = once(OSError("try again"))

    async def body(ctx: Any, _: int) -> str:
        try:
            await ctx.phase("download", studio.download, "http://a")
        except OSError:
            await ctx.phase("download", studio.download, "http://b")
        return "done"

    task = colour.task(body, str, phases=("download",))
    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        assert await chain.result(timeout=20) == "done"

    assert (studio.ran, await statuses(colour, chain)) == (["download"] * 2, ["completed"])
