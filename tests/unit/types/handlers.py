"""Every shape of handler gives a task whose parameters leave the context out."""

from datetime import datetime
from typing import assert_type

from holdfast import Holdfast, JobError, Retry, RunningJob
from holdfast.tasks.calls import Call
from holdfast.tasks.registry import Registrar, Tasks
from holdfast.tasks.task import Task
from holdfast.worker.attempts.context import BlockingContext, Context

tasks = Tasks()


@tasks.task
async def charge(ctx: Context, order_id: int) -> str:
    return f"{ctx.job.id} {order_id}"


@tasks.task
def resize(ctx: BlockingContext, path: str, width: int = 100) -> bool:
    return ctx.job.attempt < 3 and len(path) < width


@tasks.task(name="mail.send", aliases=["send"], queue="mail", priority=5)
async def send(ctx: Context, to: str) -> int:
    return len(to)


@tasks.task(queue="disk")
def clean(path: str) -> None: ...


@tasks.task
async def tick(ctx: Context) -> None: ...


assert_type(charge(order_id=1), Call[str])
assert_type(resize("a.png"), Call[bool])
assert_type(send(to="ada@example.org"), Call[int])
assert_type(clean(path="/tmp"), Call[None])
assert_type(tick(), Call[None])

charge(order_id="1")  # refused
charge(ctx=None, order_id=1)  # refused
resize()  # refused
send(to=1)  # refused
clean(1)  # refused
tick(1)  # refused

mail_task = tasks.task(queue="mail")
assert_type(mail_task, Registrar)


@mail_task(priority=9)
async def remind(to: str) -> float:
    return float(len(to))


assert_type(remind(to="ada"), Call[float])
remind(to=1)  # refused

tasks.task(priority="high")  # refused
tasks.task(colour="red")  # refused


def use(task: Task[..., int]) -> None: ...


use(send)
use(resize)  # refused
use(charge)  # refused

# what a retry policy is asked with, and what a registry and a call choose


def is_declined(error: BaseException) -> bool:
    return "declined" in str(error)


def is_trial(error: BaseException, job: RunningJob) -> bool:
    return job.queue == "trial" or job.used == job.attempts


def by_queue(attempt: int, error: BaseException, job: RunningJob) -> float:
    return 3.0**attempt if job.queue == "default" else 60.0


patient = Retry(
    fail_on=(ValueError, is_declined, is_trial), pause_on=lambda error, job: job.crashes > 0, backoff=by_queue
)
Retry(backoff=lambda attempt, error: 3.0**attempt)
Retry(fail_on="ValueError")  # refused
Retry(fail_on=by_queue)  # refused

careful = Tasks(retry=patient, lease=60)
Tasks(retry=3)  # refused
Holdfast("jobs.db", tasks=[careful], retry=patient, lease=60)
Holdfast("jobs.db", lease="60")  # refused

charge(order_id=1).options(attempts=3)
charge(order_id=1).options(attempts="3")  # refused


@careful.task
async def look_back(ctx: Context) -> None:
    assert_type(ctx.job.last_attempt_at, datetime | None)
    assert_type(ctx.job.error, JobError | None)
    assert_type(ctx.job.attempts, int | None)
