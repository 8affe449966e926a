"""Retention's hooks, and its passes in a worker: at least once, apart from each other, by who has the code (F-49)."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from holdfast import Context, Holdfast, Job, Misuse, Retained, Retention, Tasks
from holdfast.database.tx import Tx
from holdfast.worker.upkeep import hooks, retention
from holdfast.worker.upkeep.retention import RetentionPass, make_pass
from tests.support.conditions import until
from tests.support.factories import continue_chain, make_job
from tests.support.log_lines import lines, name_of
from tests.support.ways import WAYS, Way

Make = Callable[..., Awaitable[Way]]
# what the database has no part in
in_both_colours = pytest.mark.parametrize("make", ["sqlite-async", "sqlite-blocking"], indirect=True)


@pytest.fixture(params=WAYS)
async def make(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Make]:
    """Make a way whose task `render` is kept as told: `way = await make(on_stale=clean_up)`."""
    database, colour = request.param.split("-")
    made: list[Way] = []

    async def make(*, is_here: bool = True, **kept: Any) -> Way:
        tasks = Tasks()

        @tasks.task(name="render", retention=Retention(stale_after=60, delete_after=60, **kept))
        async def render(name: str) -> str:
            return name

        made.append(Way(new_holdfast(database, tasks=[tasks] if is_here else []), is_async=colour == "async"))
        await made[-1].face.open()
        return made[-1]

    yield make
    for way in made:
        await way.close()


async def ended(way: Way, task: str = "render", status: str = "completed", **columns: Any) -> UUID:
    """Make a chain that ended long ago."""
    job_id = await make_job(way, status, task=task, output='"out"', **columns)
    await way.call(_set, "closed_at = 1", job_id)
    return job_id


async def stale(way: Way, task: str = "render", **columns: Any) -> UUID:
    """Make a chain that was marked long ago."""
    job_id = await ended(way, task, **columns)
    await way.call(_set, "stale_at = 1", job_id)
    return job_id


async def _set(tx: Tx, what: str, job_id: UUID) -> None:
    await tx.execute(f"UPDATE holdfast_job SET {what} WHERE id = :id", id=str(job_id))


async def standing(way: Way, job_id: UUID) -> str:
    """Say whether a job is there, stale or gone."""
    rows = await way.rows("SELECT stale_at FROM holdfast_job WHERE id = :id", id=str(job_id))
    return "gone" if not rows else "there" if rows[0][0] is None else "stale"


def ends(done: Retained) -> tuple[int, int, int, int]:
    """Give stale, deleted, kept and postponed, of all tasks together."""
    fields = ("stale", "deleted", "kept", "postponed")
    stale, deleted, kept, postponed = (sum(getattr(each, name) for each in done.counts) for name in fields)
    return stale, deleted, kept, postponed


@pytest.mark.source("PQ-51")
async def test_hooks_are_called_with_the_job_before_it_is_marked_and_before_it_is_deleted(make: Make) -> None:
    seen: list[tuple[str, Any, Any, str]] = []
    ways: list[Way] = []

    def look(stage: str, job: Job) -> None:
        seen.append((stage, job.input.name, job.output, ways[0].hf.sync.get_job(job.id).state))

    way = await make(on_stale=lambda job: look("stale", job), on_delete=lambda job: look("delete", job))
    ways.append(way)
    job_id = await ended(way)

    await way.face.retain()
    await way.call(_set, "stale_at = 1", job_id)
    await way.face.retain()

    assert seen == [("stale", "Ada", "out", "completed"), ("delete", "Ada", "out", "stale")]
    assert await standing(way, job_id) == "gone"


@in_both_colours
async def test_an_async_hook_is_awaited(make: Make) -> None:
    seen = []

    async def clean_up(job: Job) -> None:
        await asyncio.sleep(0)
        seen.append(job.id)

    way = await make(on_stale=clean_up)
    job_id = await ended(way)

    await way.face.retain()

    assert seen == [job_id]
    assert await standing(way, job_id) == "stale"


async def test_every_job_of_a_chain_is_given_to_the_hook_of_its_own_task(make: Make) -> None:
    seen = []
    way = await make(on_stale=lambda job: seen.append((job.chain_index, job.id)))
    first = await make_job(way, task="render")
    middle = await continue_chain(way, first, task="other")
    last = await continue_chain(way, first, "completed", task="render")
    await way.call(_set, "closed_as = 'completed', closed_at = 1", first)

    await way.face.retain()

    assert seen == [(0, first), (2, last)]
    assert [await standing(way, each) for each in (first, middle, last)] == ["stale"] * 3


@pytest.mark.source("PQ-60")
@in_both_colours
@pytest.mark.parametrize("stage", ["stale", "delete"])
async def test_a_hook_that_raises_postpones_its_chain_and_no_other_and_is_tried_again(
    make: Make, stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[UUID] = []
    bad: list[UUID] = []

    def hook(job: Job) -> None:
        calls.append(job.id)
        if job.id in bad:
            raise OSError("the bucket is gone")

    way = await make(**{f"on_{stage}": hook})
    make_one = ended if stage == "stale" else stale
    one, other = await make_one(way), await make_one(way)
    before = await standing(way, one)
    bad.append(one)

    with caplog.at_level(logging.WARNING):
        done = await way.face.retain()

    assert ends(done) == ((1, 0, 0, 1) if stage == "stale" else (0, 1, 0, 1))
    assert await standing(way, one) == before
    assert [name_of(each) for each in caplog.records if each.name == hooks.__name__] == ["retention_hook_failed"]
    bad.clear()
    await way.face.retain()
    assert calls.count(one) == 2
    assert calls.count(other) == 1
    assert await standing(way, one) != before


@in_both_colours
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_hook_that_hangs_postpones_its_chain_and_is_not_called_again_while_it_does(
    make: Make, is_async: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hooks, "HOOK_SECONDS", 0.2)
    calls: list[UUID] = []
    hanging: list[UUID] = []
    let_go = threading.Event()

    def hook(job: Job) -> None:
        calls.append(job.id)
        if job.id in hanging:
            let_go.wait(5)

    async def refuse_to_end(job: Job) -> None:
        calls.append(job.id)
        while job.id in hanging and not let_go.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    way = await make(on_stale=refuse_to_end if is_async else hook)
    one, other = await ended(way), await ended(way)
    hanging.append(one)

    try:
        done = await way.face.retain()
        again = await way.face.retain()
    finally:
        let_go.set()

    assert (ends(done), ends(again)) == ((1, 0, 0, 1), (0, 0, 0, 1))
    assert (await standing(way, one), await standing(way, other)) == ("there", "stale")
    assert calls.count(one) == 1
    messages = [name_of(each) for each in caplog.records if each.name == hooks.__name__]
    assert messages == ["retention_hook_hangs"]

    async def has_come_back() -> bool:
        return bool((await way.face.retain()).stale == 1)

    await until(has_come_back, "it is tried again once it has come back")


@in_both_colours
async def test_many_hanging_hooks_cost_a_few_threads_and_one_deadline(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "HOOK_SECONDS", 0.2)
    let_go = threading.Event()
    calls = []

    def hang(job: Job) -> None:
        calls.append(job.id)
        let_go.wait(5)

    way = await make(on_stale=hang)
    for _ in range(30):
        await ended(way)

    try:
        done = await way.face.retain()
        await way.face.retain()
    finally:
        let_go.set()

    assert ends(done) == (0, 0, 0, 30)
    assert len(calls) < hooks.AT_ONCE + hooks.MOST_HANGING


async def test_a_hook_that_deletes_the_chain_itself_does_no_harm(make: Make) -> None:
    ways: list[Way] = []
    way = await make(on_delete=lambda job: ways[0].hf.sync.delete(job.id))
    ways.append(way)
    job_id, other = await stale(way), await stale(way, "else")
    await way.call(_set, "stale_at = 1, closed_at = 1", other)

    done = await way.face.retain()

    assert await standing(way, job_id) == "gone"
    assert ends(done) == (0, 1, 1, 0)
    assert len(await way.rows("SELECT 1 FROM holdfast_event WHERE name = 'job:deleted'")) == 2


async def test_chains_with_a_hook_whose_code_is_elsewhere_are_left_to_others(make: Make) -> None:
    seen = []
    owner = await make(on_stale=lambda job: seen.append(job.id))
    stranger = await make(is_here=False)
    hooked, plain = await ended(owner), await stale(owner)
    mixed = await make_job(owner, task="other")
    await continue_chain(owner, mixed, "completed", task="render")
    await owner.call(_set, "closed_as = 'completed', closed_at = 1", mixed)

    told = await stranger.face.retain(dry_run=True)
    done = await stranger.face.retain()

    assert ends(told) == ends(done) == (0, 1, 0, 2)
    assert seen == []
    assert [await standing(owner, each) for each in (hooked, plain, mixed)] == ["there", "gone", "there"]
    await owner.face.retain()
    assert hooked in seen


@in_both_colours
async def test_a_dry_run_calls_no_hook(make: Make) -> None:
    seen: list[Job] = []
    way = await make(on_stale=seen.append, on_delete=seen.append)
    await ended(way)
    await stale(way)

    done = await way.face.retain(dry_run=True)

    assert ends(done) == (1, 1, 0, 0)
    assert seen == []


# ---- in a worker


def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers make a pass every few milliseconds."""
    for name in ("FIRST_SECONDS", "BUSY_SECONDS", "IDLE_SECONDS"):
        monkeypatch.setattr(retention, name, 0.02)


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_a_worker_does_it_by_itself(
    database: str, new_holdfast: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    soon(monkeypatch)
    way = Way(new_holdfast(database), is_async=True)
    async with way.hf:
        marked, deleted = await ended(way), await stale(way)

        async with way.hf.worker():

            async def is_done() -> bool:
                return (await standing(way, marked), await standing(way, deleted)) == ("stale", "gone")

            await until(is_done, "a pass of the worker")


@pytest.mark.source("TQ-34")
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_passes_at_the_same_time_do_everything_once_and_wait_for_nobody(
    database: str, new_holdfast: Callable[..., Holdfast]
) -> None:
    faces = [new_holdfast(database) for _ in range(3)]
    way = Way(faces[0], is_async=True)
    async with faces[0], faces[1], faces[2]:
        for _ in range(30):
            await ended(way, "one")
            await stale(way, "two")

        done = await asyncio.gather(*(face.retain() for face in faces))

        assert sum(each.stale for each in done) == sum(each.deleted for each in done) == 30
        events = await way.rows("SELECT name, count(*) FROM holdfast_event GROUP BY name ORDER BY name")
        assert events == [("job:deleted", 30), ("job:stale", 30)]


async def test_a_pass_cannot_be_made_inside_a_block(new_holdfast: Callable[..., Holdfast]) -> None:
    hf = new_holdfast("sqlite")

    @hf.task(name="clean")
    async def clean(ctx: Context) -> str:
        async with ctx.atomic() as tx:
            try:
                await hf.retain()
            except Misuse as refused:
                return tx.finish(refused.code)
            return tx.finish("made")

    async with hf, hf.worker():
        assert await (await hf.start(clean())).result(timeout=10) == "misuse"


async def test_a_worker_leaves_it_alone_where_retention_is_off(
    new_holdfast: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    soon(monkeypatch)
    hf = new_holdfast("sqlite", retention=False)

    assert hf.worker()._retention is None
    assert new_holdfast("sqlite").worker()._retention is not None


async def test_the_next_pass_comes_soon_after_one_that_had_something_to_do(
    new_holdfast: Callable[..., Holdfast],
) -> None:
    way = Way(new_holdfast("sqlite"), is_async=True)
    async with way.hf:
        await ended(way)

        seconds = [await make_pass(way.hf._retention) for _ in range(2)]

    assert seconds == [retention.BUSY_SECONDS, retention.IDLE_SECONDS]


async def test_a_pass_that_breaks_is_logged_and_the_next_one_comes(
    new_holdfast: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hf = new_holdfast("sqlite")

    async def fail(*_: object, **__: object) -> None:
        raise ValueError("wrong")

    monkeypatch.setattr(RetentionPass, "run", fail)

    assert await make_pass(hf._retention) == retention.IDLE_SECONDS

    assert lines(caplog) == ["retention_failed"]


async def test_an_idle_pass_takes_few_statements(
    new_holdfast: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = new_holdfast("sqlite")
    reads: list[Any] = []
    async with hf:
        await hf._retention.run(most_batches=1)
        read, write = hf.store.read, []

        async def counted(operation: Any, *args: Any, **kwargs: Any) -> Any:
            reads.append(operation)
            return await read(operation, *args, **kwargs)

        async def written(operation: Any, *_: Any, **__: Any) -> None:
            write.append(operation)

        monkeypatch.setattr(hf.store, "read", counted)
        monkeypatch.setattr(hf.store, "run", written)

        await hf._retention.run(most_batches=1)

    assert write == []
    assert len(reads) <= 10


async def test_a_workers_pass_ends_after_some_batches_and_the_next_goes_on_there(
    new_holdfast: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    way = Way(new_holdfast("sqlite"), is_async=True)
    monkeypatch.setattr("holdfast.store.retention.MOST_CHAINS", 2)
    async with way.hf:
        halting = [await ended(way, "halts", head=1, lane=f"vm-{n}", place=1) for n in range(4)]
        marked = await ended(way, "halts")
        await way.call(_set, "closed_at = 2", marked)
        others = [await ended(way, "other") for _ in range(2)]

        passes = [await way.hf._retention.run(most_batches=2) for _ in range(2)]

        assert [each.is_done for each in passes] == [False, True]
        assert [await standing(way, each) for each in (*halting, marked, *others)] == ["there"] * 4 + ["stale"] * 3
