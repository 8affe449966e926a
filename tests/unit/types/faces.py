"""What a task returns is the type of its chain, through every verb of both faces."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type
from uuid import UUID

from holdfast import (
    Ask,
    CancelAnswer,
    Chain,
    DeadLetter,
    Failure,
    Halt,
    Holdfast,
    Job,
    Page,
    PauseAnswer,
    PausedJob,
    Question,
    Unique,
)
from holdfast.sync import Chain as BlockingChain

hf = Holdfast("jobs.db")


@hf.task
async def greet(name: str) -> str:
    return name


@hf.task
def measure(path: str) -> float:
    return float(len(path))


@dataclass
class ChargeInput:
    order_id: int


@dataclass
class Receipt:
    number: int


charge = hf.declare("billing.charge", ChargeInput, Receipt)
void = hf.declare("billing.void", ChargeInput, None)
approve = hf.declare("billing.approve", ChargeInput, Receipt, asks=Question("Approve it?"))


@hf.task(asks=Question("Shall it be refunded?"))
async def refund(order_id: int) -> bool:
    raise NotImplementedError


def use(chain: Chain[int]) -> None: ...


async def awaited(job_id: UUID) -> None:
    assert_type(await hf.start(greet(name="x")), Chain[str])
    assert_type(await hf.start(greet(name="x"), delay=60, unique=Unique("x", within=5)), Chain[str])
    assert_type(await hf.start(greet(name="x"), connection=object()), Chain[str])
    assert_type(await hf.start(measure(path="/").options(lane="disk")), Chain[float])
    assert_type(await hf.start(charge(order_id=1)), Chain[Receipt])
    assert_type(await hf.start(void(order_id=1)), Chain[None])

    assert_type(await hf.start_many([greet(name="x"), greet(name="y").options(priority=1)]), list[Chain[str]])
    a, b = await hf.start_many([greet(name="x"), greet(name="y")])
    assert_type(await hf.start(greet(name="z"), blockers=[a, b.id, "text"]), Chain[str])
    mixed: list[Chain[str | float]] = await hf.start_many([greet(name="x"), measure(path="/")])
    assert_type(mixed[0].output, str | float | None)
    assert_type(await hf.start(hf.call("elsewhere", {"a": 1})), Chain[Any])

    chain = await hf.start(greet(name="x"))
    assert_type(chain.output, str | None)
    assert_type(await hf.get_chain(chain), Chain[str])
    assert_type(await hf.get_chain(job_id), Chain[Any])
    assert_type(await hf.get_chain(str(job_id)), Chain[Any])
    assert_type(await hf.get_chain(job_id, task=greet), Chain[str])
    assert_type(await (await hf.get_chain(job_id, task=charge)).result(), Receipt)
    assert_type(await hf.get_job(chain), Job)
    assert_type(await hf.list_jobs(status=["failed", "scheduled"], order="oldest", limit=5), Page[Job])
    assert_type(await hf.list_chains(is_open=True, roots_only=True), Page[Chain[Any]])
    (ask,) = await hf.inbox("asked")
    assert_type(ask, Ask)
    assert_type(await hf.complete(approve, ask, Receipt(1)), Job)
    assert_type(await hf.complete("approve", ask, {"number": 1}, by="ada"), Job)
    assert_type(await hf.complete("forget", ask), Job)
    assert_type(await hf.start(refund(order_id=1)), Chain[bool])
    assert_type(await hf.inbox(limit=5), Page[Ask | Failure | PausedJob | Halt | DeadLetter])
    assert_type(await hf.list_chain_jobs(chain, cursor=None), Page[Job])
    assert_type(await chain.result(), str)
    assert_type(await (await hf.start(charge(order_id=1))).result(timeout=5), Receipt)
    assert_type(await (await hf.get_chain(job_id)).result(timedelta(seconds=5)), Any)
    assert_type([await each.result() for each in await hf.start_many([measure(path="/")])], list[float])
    assert_type(await hf.wait([chain], until="any", timeout=5), list[Chain[str]])
    assert_type(await hf.wait([job_id, "text"]), list[Chain[Any]])
    assert_type(await hf.delete(chain, cascade=True), list[UUID])
    assert_type(await hf.delete_many([chain, job_id, "text"]), list[UUID])
    assert_type(await hf.cancel(chain), CancelAnswer)
    assert_type(await hf.cancel_many([chain, job_id, "text"]), list[CancelAnswer])
    assert_type(await hf.pause_many((chain, job_id)), list[PauseAnswer])
    assert_type(await hf.retry(job_id), Job)
    assert_type(await hf.reschedule_many([chain], after=60), list[Job])
    assert_type(await hf.start_again(chain), Chain[str])
    assert_type(await hf.start_again_many([chain]), list[Chain[Any]])

    wider: Chain[object] = chain
    assert_type(wider.id, UUID)
    use(chain)  # refused
    await hf.start(greet)  # refused
    await hf.start(greet(name="x"), dealy=60)  # refused
    await hf.start(greet(name="x"), delay="soon")  # refused
    await hf.start_many(greet(name="x"))  # refused
    await hf.list_jobs(state="failed")  # refused
    await hf.list_jobs(order="sideways")  # refused
    await hf.inbox("lost")  # refused
    await hf.complete(approve, ask, True)  # refused
    await hf.list_chains(queue="mail")  # refused
    await hf.get_job(7)  # refused
    await hf.get_chain(job_id, task="greet")  # refused
    await hf.wait([chain], until="both")  # refused
    await hf.wait(job_id)  # refused
    await chain.result(timeout="soon")  # refused
    total: int = await chain.result()  # refused
    await hf.delete([chain])  # refused
    await hf.cancel([chain])  # refused
    await hf.start_again([chain])  # refused
    await hf.retry_many(chain)  # refused


def blocking(job_id: UUID) -> None:
    assert_type(hf.sync.start(greet(name="x")), BlockingChain[str])
    assert_type(hf.sync.start(charge(order_id=1), delay=5), BlockingChain[Receipt])
    assert_type(hf.sync.start_many([measure(path="/")]), list[BlockingChain[float]])
    chain = hf.sync.start(greet(name="x"))
    assert_type(chain.result(), str)
    assert_type(chain.result(timeout=5), str)
    assert_type(hf.sync.wait([chain], until="any"), list[BlockingChain[str]])
    assert_type(hf.sync.wait([job_id]), list[BlockingChain[Any]])
    assert_type(hf.sync.get_chain(chain), BlockingChain[str])
    assert_type(hf.sync.get_chain(job_id), BlockingChain[Any])
    assert_type(hf.sync.get_chain(job_id, task=measure), BlockingChain[float])
    assert_type(hf.sync.get_job(chain), Job)
    assert_type(hf.sync.list_jobs(task="greet"), Page[Job])
    assert_type(hf.sync.list_chains(status="failed"), Page[BlockingChain[Any]])
    assert_type(hf.sync.list_chain_jobs(chain), Page[Job])
    assert_type(hf.sync.inbox(kind="failed", limit=5), Page[Failure])
    assert_type(hf.sync.delete(chain), list[UUID])
    assert_type(hf.sync.cancel(chain), CancelAnswer)
    assert_type(hf.sync.resume_many([chain, job_id]), list[Job])
    assert_type(hf.sync.start_again(chain), BlockingChain[str])
    assert_type(hf.sync.start_again_many([job_id]), list[BlockingChain[Any]])
    assert_type([job.id for job in hf.sync.list_jobs()], list[UUID])

    hf.sync.start(greet(name="x"), priority="high")  # refused
    hf.sync.trigger((chain, job_id))  # refused
    use(hf.sync.start(greet(name="x")))  # refused
    total: int = chain.result()  # refused


async def opened() -> None:
    async with hf as same:
        assert_type(same, Holdfast)
    with hf.sync as face:
        assert_type(face.start(greet(name="x")), BlockingChain[str])
