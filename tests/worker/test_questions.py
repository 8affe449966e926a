"""Questions for people beside a worker: it leaves them alone, and goes on once they are answered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest

from holdfast import Context, Holdfast, Question, WaitTimeout
from holdfast.store import polls
from holdfast.tasks.task import Task
from holdfast.worker.options import wants_of
from holdfast.worker.upkeep import unserved
from holdfast.worker.upkeep.unserved import UnservedJobs
from tests.support.conditions import until
from tests.support.log_lines import lines


@dataclass
class Order:
    number: int


@pytest.fixture(params=["sqlite", "postgres"])
def stack(request: pytest.FixtureRequest) -> str:
    """Name the database; by default a test has its turn on one of them (`tests/support/turns.py`)."""
    return str(request.param)


@pytest.fixture
async def hf(stack: str, new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Holdfast]:
    """A shop on each database, in which refunds are checked, approved by a person, and paid."""
    made = new_holdfast(stack)

    @made.task(name="approve", asks=Question("Approve the refund?"))
    async def approve(number: int, amount: int) -> bool:
        raise NotImplementedError

    @made.task(name="check")
    async def check(ctx: Context, number: int) -> bool:
        return ctx.continue_with(approve(number=number, amount=120))

    @made.task(name="pay")
    async def pay(number: int, amount: int) -> bool:
        return amount == 120

    await made.open()
    yield made
    await made.close()


def task_of(hf: Holdfast, name: str) -> Task[..., bool]:
    return hf.tasks.get(name)


async def is_asked(hf: Holdfast) -> bool:
    return bool(await hf.inbox(kind="asked"))


async def test_a_chain_goes_on_once_its_question_is_answered(hf: Holdfast) -> None:
    approve, pay = task_of(hf, "approve"), task_of(hf, "pay")
    async with hf.worker():
        chain = await hf.start(task_of(hf, "check")(number=41))
        await until(lambda: is_asked(hf), "the chain asks")
        (ask,) = await hf.inbox(kind="asked")

        async with hf.completing(approve, ask, by="ada") as job:
            await job.continue_with(pay(number=job.input.number, amount=job.input.amount))

        assert await chain.result(timeout=20) is True
    steps = await hf.list_chain_jobs(chain)
    assert [(each.task, each.queue, each.attempt) for each in steps] == [
        ("check", "default", 1),
        ("approve", "people", 0),
        ("pay", "default", 1),
    ]


async def test_a_worker_that_serves_the_queue_of_people_leaves_questions_alone(hf: Holdfast) -> None:
    question = await hf.start(task_of(hf, "approve")(number=1, amount=120))
    async with hf.worker(queues=["default", "people"]):
        others = [await hf.start(task_of(hf, "pay")(number=n, amount=1), queue="people") for n in range(5)]
        await hf.wait(others, timeout=20)

    job = await hf.get_job(question)
    assert (job.state, job.attempt) == ("pending", 0)
    assert await is_asked(hf)


async def test_no_worker_complains_that_nobody_runs_a_question(
    hf: Holdfast, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unserved, "WAITED_MS", -60_000)
    await hf.start(task_of(hf, "approve")(number=1, amount=120))
    unknown = hf.declare("unknown", Order, None)
    await hf.start(unknown(number=1), queue="people")

    await UnservedJobs(hf.store, "worker-own", wants_of(hf.tasks, None), hf.tasks).look()

    assert await hf.store.read(polls.waiting_kinds) == [("people", "approve"), ("people", "unknown")]
    assert lines(caplog).count("jobs_not_served") == 1


async def test_who_waits_for_an_answer_is_told_that_a_person_is_asked(hf: Holdfast) -> None:
    chain = await hf.start(task_of(hf, "approve")(number=1, amount=120))

    with pytest.raises(WaitTimeout) as late:
        await chain.result(timeout=0)

    said = str(late.value)
    assert "is still pending after 0 s (task 'approve' asks a person: Approve the refund?: hf.complete(" in said
    assert "worker" not in said
