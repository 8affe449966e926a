"""Every shape of handler gives a task whose parameters leave the context out."""

from typing import assert_type

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
