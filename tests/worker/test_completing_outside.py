"""Completing without a worker: look, finish, go on, in several steps, on our transaction or the caller's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from holdfast import (
    Context,
    Holdfast,
    IdTaken,
    InvalidOutput,
    JobNotFound,
    Misuse,
    StatusConflict,
    Tasks,
    UnknownTask,
    WrongTask,
)
from holdfast.store import task_rows
from tests.store.open_blocks import bills, make_table
from tests.support.conditions import until
from tests.support.ways import WAYS, Way
from tests.worker.colours import Awaited

PAY = "INSERT INTO bill (id, amount) VALUES (:id, 1)"


@pytest.fixture(params=WAYS)
async def way(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Way]:
    database, colour = request.param.split("-")
    way = Way(new_holdfast(database), is_async=colour == "async")
    await way.face.open()
    await way.call(make_table)
    yield way
    await way.close()


class Steps:
    """Tasks whose jobs wait for a person."""

    def __init__(self, way: Way) -> None:
        self.ran: list[str] = []

        @way.hf.task(name="approve")
        async def approve(doc: str, n: int = 0) -> bool:
            self.ran.append(f"approve {doc}")
            return False

        @way.hf.task(name="publish")
        async def publish(doc: str) -> bool:
            self.ran.append(f"publish {doc}")
            return True

        @way.hf.task(name="note")
        async def note() -> None: ...

        self.approve, self.publish, self.note = approve, publish, note


@asynccontextmanager
async def completing(way: Way, task: Any, job: Any, **options: Any) -> AsyncIterator[Any]:
    """Take a job in the hand, in the way's colour."""
    if way.is_async:
        async with way.hf.completing(task, job, **options) as handle:
            yield handle
        return
    with way.hf.sync.completing(task, job, **options) as handle:
        yield Hand(handle)


class Hand:
    """The blocking handle under `await`."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._handle, name)
        return Awaited(value) if name == "tx" else value

    async def finish(self, *args: Any) -> None:
        """Finish it."""
        self._handle.finish(*args)

    async def continue_with(self, call: Any) -> Hand:
        """Go on."""
        return Hand(self._handle.continue_with(call))


@pytest.mark.source("JC-54")
async def test_a_job_is_completed_with_its_output(way: Way) -> None:
    steps = Steps(way)
    chain = await way.face.start(steps.approve(doc="a"))

    job = await way.face.complete(steps.approve, chain, True, by="ada", why="it is fine")

    assert (job.status, job.output, job.completed_by) == ("completed", True, None)
    assert (await way.face.get_chain(chain)).output is True


async def test_a_job_of_a_task_without_output_is_completed_without_one(way: Way) -> None:
    steps = Steps(way)
    chain = await way.face.start(steps.note())

    job = await way.face.complete(steps.note, chain)

    assert (job.status, job.output) == ("completed", None)


@pytest.mark.parametrize("options", [{"delay": 3600}, {"paused": True}])
async def test_a_job_that_does_not_run_yet_is_completed_and_never_runs(way: Way, options: dict[str, Any]) -> None:
    steps = Steps(way)
    chain = await way.face.start(steps.approve(doc="a"), **options)

    await way.face.complete(steps.approve, chain, True)

    async with way.hf.worker(poll=0.1):
        other = await way.face.start(steps.approve(doc="b"))
        await (await way.hf.get_chain(other.id)).result(timeout=10)
    assert steps.ran == ["approve b"]


@pytest.mark.source("JC-58")
async def test_a_running_handler_is_told_and_its_own_end_does_not_count(way: Way) -> None:
    reasons: list[Any] = []

    @way.hf.task(name="slow")
    async def slow(ctx: Context) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            reasons.append(ctx.abort_reason)
        return "the handler's"

    async with way.hf.worker(poll=0.1) as worker:
        chain = await way.face.start(slow())
        await until(lambda: worker.health().running == 1, "it runs")
        await way.face.complete(slow, chain, "the person's")
        await until(lambda: bool(reasons), "the handler was told", 5)
        await until(lambda: worker.health().running == 0, "it has ended")

    assert reasons == ["already_completed"]
    assert (await way.face.get_chain(chain)).output == "the person's"


@pytest.mark.source("JC-54")
async def test_refusals_are_typed_and_change_nothing(way: Way) -> None:
    steps = Steps(way)
    chain = await way.face.start(steps.approve(doc="a"))
    done = await way.face.start(steps.approve(doc="b"))
    await way.face.complete(steps.approve, done, True)

    with pytest.raises(JobNotFound):
        await way.face.complete(steps.approve, uuid4(), True)
    with pytest.raises(WrongTask):
        await way.face.complete(steps.publish, chain, True)
    with pytest.raises(StatusConflict):
        await way.face.complete(steps.approve, done, False)
    with pytest.raises(InvalidOutput):
        await way.face.complete(steps.approve, chain, "perhaps")

    assert (await way.face.get_job(chain)).status == "pending"
    assert (await way.face.get_chain(done)).output is True


async def test_a_former_name_of_a_task_is_as_good(way: Way) -> None:
    steps = Steps(way)
    chain = await way.face.start(steps.approve(doc="a"))

    async def rename(tx: Any) -> None:
        await tx.execute("UPDATE holdfast_job SET task = 'old.approve'")

    await way.call(rename)
    elsewhere = type(way.hf.tasks)()

    @elsewhere.task(name="approve", aliases=["old.approve"])
    async def approve(doc: str, n: int = 0) -> bool:
        return False

    assert (await way.face.complete(approve, chain, True)).status == "completed"


@pytest.mark.source("JC-56")
async def test_looking_changes_nothing(way: Way) -> None:
    steps = Steps(way)
    chain = await way.face.start(steps.approve(doc="a", n=4), delay=60)

    async with completing(way, steps.approve, chain) as job:
        seen = (job.id, job.chain_id, job.status, job.attempt, job.input.doc, job.input.n, job.blockers)

    assert seen == (chain.id, chain.id, "pending", 0, "a", 4, [])
    found = await way.face.get_job(chain)
    assert (found.status, found.version) == ("pending", 1)


async def test_it_is_finished_with_statements_of_ones_own_in_one_commit(way: Way) -> None:
    steps = Steps(way)
    chain = await way.face.start(steps.approve(doc="a"))

    async with completing(way, steps.approve, chain) as job:
        await job.tx.execute(PAY, id=1)
        await job.finish(True)

    assert await way.read(bills) == [1]
    assert (await way.face.get_chain(chain)).output is True


@pytest.mark.source("JC-59")
async def test_an_error_inside_undoes_all_of_it(way: Way) -> None:
    steps = Steps(way)
    chain = await way.face.start(steps.approve(doc="a"))

    async def fail() -> None:
        async with completing(way, steps.approve, chain) as job:
            await job.tx.execute(PAY, id=1)
            await job.continue_with(steps.publish(doc="a"))
            raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await fail()

    assert await way.read(bills) == []
    assert (await way.face.get_job(chain)).status == "pending"
    assert len((await way.face.list_jobs()).items) == 1


@pytest.mark.source("JC-55")
async def test_several_steps_are_taken_in_one_commit(way: Way) -> None:
    steps = Steps(way)
    chain = await way.face.start(steps.approve(doc="a"))

    async with completing(way, steps.approve, chain) as job:
        second = await job.continue_with(steps.approve(doc=job.input.doc + "b"))
        third = await second.continue_with(steps.publish(doc=second.input.doc + "c"))
        await third.finish(True)

    jobs = (await way.face.list_chain_jobs(chain)).items
    assert [(each.task, each.status, each.input.doc) for each in jobs] == [
        ("approve", "completed", "a"),
        ("approve", "completed", "ab"),
        ("publish", "completed", "abc"),
    ]
    assert (await way.face.get_chain(chain)).output is True


@pytest.mark.source("JC-111")
async def test_partial_completion_leaves_the_next_step_to_a_worker(way: Way) -> None:
    steps = Steps(way)
    chain = await way.face.start(steps.approve(doc="a"), delay=3600)

    async with completing(way, steps.approve, chain) as job:
        await job.continue_with(steps.publish(doc="a"))

    async with way.hf.worker(poll=0.1):
        assert await (await way.hf.get_chain(chain.id)).result(timeout=10) is True
    assert steps.ran == ["publish a"]


@pytest.mark.source("JC-115")
async def test_the_next_step_may_have_an_id_of_its_own_but_not_one_that_exists(way: Way) -> None:
    steps = Steps(way)
    chain, other = [await way.face.start(steps.approve(doc=doc)) for doc in "ab"]
    chosen = uuid4()

    with pytest.raises(IdTaken):
        async with completing(way, steps.approve, chain) as job:
            await job.continue_with(steps.publish(doc="a").options(id=other.id))
    async with completing(way, steps.approve, chain) as job:
        await job.continue_with(steps.publish(doc="a").options(id=chosen))

    assert [each.id for each in (await way.face.list_chain_jobs(chain)).items] == [chain.id, chosen]


async def test_the_id_of_a_job_that_has_continued_means_the_current_one(way: Way) -> None:
    steps = Steps(way)
    chain = await way.face.start(steps.approve(doc="a"))
    async with completing(way, steps.approve, chain) as job:
        await job.continue_with(steps.publish(doc="a").options(delay=60))

    with pytest.raises(WrongTask):
        await way.face.complete(steps.approve, chain, True)
    job = await way.face.complete(steps.publish, chain, True)

    assert (job.task, job.chain_index) == ("publish", 1)


@pytest.mark.source("JC-112")
async def test_blockers_are_completed_first_in_the_same_commit(way: Way) -> None:
    steps = Steps(way)
    one, two = await way.face.start_many([steps.note().options(delay=60), steps.note().options(delay=60)])
    chain = await way.face.start(steps.approve(doc="a"), blockers=[one, two])

    async with completing(way, steps.approve, chain) as job:
        named = [each.id for each in job.blockers]
        for each in job.blockers:
            await way.face.complete(steps.note, each, connection=_own(job.tx))
        await job.finish(True)

    assert named == [one.id, two.id]
    assert [(await way.face.get_job(each)).status for each in (one, two, chain)] == ["completed"] * 3


def _own(tx: Any) -> Any:
    return tx._inner if isinstance(tx, Awaited) else tx


async def test_a_completion_in_the_wrong_colour_says_what_to_write(way: Way) -> None:
    steps = Steps(way)
    chain = await way.face.start(steps.approve(doc="a"))
    on_async_face: Any = way.hf.completing(steps.approve, chain)
    on_blocking_face: Any = way.hf.sync.completing(steps.approve, chain)

    with pytest.raises(Misuse, match=r"^hf is async; write `async with hf\.completing"), on_async_face:
        pass
    with pytest.raises(Misuse, match=r"^hf.sync is blocking; write `with hf\.sync\.completing"):
        await on_blocking_face.__aenter__()


async def test_a_job_in_the_hand_is_finished_once_and_inside_the_block_only(way: Way) -> None:
    steps = Steps(way)
    chain = await way.face.start(steps.approve(doc="a"))

    async with completing(way, steps.approve, chain) as job:
        later = await job.continue_with(steps.publish(doc="a").options(delay=60))
        with pytest.raises(Misuse, match="already"):
            await job.finish(True)

    with pytest.raises(Misuse, match="closed"):
        await later.finish(True)


# sqlite3 has no connection that is async
@pytest.mark.parametrize("way", ["sqlite-blocking", "postgres-async", "postgres-blocking"], indirect=True)
async def test_on_a_callers_connection_the_caller_decides(way: Way, empty_url: str, tmp_path: Any) -> None:
    steps = Steps(way)
    chain = await way.face.start(steps.approve(doc="a"))

    async with _callers(way, empty_url, tmp_path) as (connection, roll_back):
        async with completing(way, steps.approve, chain, connection=connection) as job:
            with pytest.raises(Misuse, match="your own"):
                _ = job.tx
            await job.finish(True)
        await roll_back()

    assert (await way.face.get_job(chain)).status == "pending"


@asynccontextmanager
async def _callers(way: Way, url: str, folder: Any) -> AsyncIterator[Any]:
    """Open a caller's own connection in a transaction, and a way to roll it back."""
    import sqlite3

    import psycopg

    if way.database == "sqlite":
        connection = sqlite3.connect(folder / "jobs.db", isolation_level=None, timeout=10)
        connection.execute("BEGIN IMMEDIATE")

        async def undo() -> None:
            connection.execute("ROLLBACK")

        yield connection, undo
        connection.close()
    elif way.is_async:
        async with await psycopg.AsyncConnection.connect(url) as caller:
            await caller.execute("SELECT 1")
            yield caller, caller.rollback
    else:
        with psycopg.connect(url) as blocking:
            blocking.execute("SELECT 1")

            async def undo_blocking() -> None:
                blocking.rollback()

            yield blocking, undo_blocking


@pytest.mark.source("JC-60")
async def test_of_an_early_approval_and_a_late_rejection_the_first_to_commit_wins(way: Way) -> None:
    steps = Steps(way)
    early = await way.face.start(steps.approve(doc="early"), delay=0.4)
    late = await way.face.start(steps.approve(doc="late"), delay=0.4)

    await way.face.complete(steps.approve, early, True)
    async with way.hf.worker(poll=0.1):
        rejected = await (await way.hf.get_chain(late.id)).result(timeout=10)
    with pytest.raises(StatusConflict):
        await way.face.complete(steps.approve, late, True)

    assert rejected is False
    assert (await way.face.get_chain(early)).output is True
    assert steps.ran == ["approve late"]


async def test_blockers_and_who_waits_for_a_chain_can_be_read(way: Way) -> None:
    steps = Steps(way)
    one, two = await way.face.start_many([steps.note().options(delay=60), steps.note().options(delay=60)])
    chains = await way.face.start_many([steps.note().options(blockers=[two, one]) for _ in range(3)])

    page = await way.face.list_blocked_by(one, limit=2)
    rest = await way.face.list_blocked_by(one, limit=2, cursor=page.next_cursor)

    assert [each.id for each in await way.face.get_blockers(chains[0])] == [two.id, one.id]
    assert [each.id for each in (*page.items, *rest.items)] == [each.id for each in reversed(chains)]
    assert await way.face.get_blockers(one) == []


async def test_a_step_of_an_unknown_task_is_refused(way: Way) -> None:
    steps = Steps(way)
    chain = await way.face.start(steps.approve(doc="a"))

    with pytest.raises(UnknownTask):
        async with completing(way, steps.approve, chain) as job:
            await job.continue_with(way.hf.call("nobody.knows", {}))

    assert (await way.face.get_job(chain)).status == "pending"


async def test_a_step_whose_code_is_elsewhere_is_left_to_those_who_have_it(way: Way) -> None:
    steps = Steps(way)
    await recorded_elsewhere(way)
    chain = await way.face.start(steps.approve(doc="a"))

    async with completing(way, steps.approve, chain) as job:
        following = await job.continue_with(way.hf.call("elsewhere", {"n": 1}))
        with pytest.raises(UnknownTask):
            await following.finish(1)

    first, second = (await way.face.list_chain_jobs(chain)).items
    assert (first.status, second.task, second.status, second.queue) == ("completed", "elsewhere", "pending", "far away")


async def recorded_elsewhere(way: Way) -> None:
    """Have another program, whose task has a queue of its own, write down what it knows."""
    tasks = Tasks()

    @tasks.task(name="elsewhere", queue="far away")
    async def elsewhere(n: int) -> int:
        return n

    await way.call(task_rows.record, [elsewhere.record()])
