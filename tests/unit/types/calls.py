"""Calling a task is checked like calling its function, and gives a call of its result."""

from datetime import UTC, datetime, timedelta
from typing import assert_type

from holdfast.models import Unique
from holdfast.tasks.calls import Call
from holdfast.tasks.registry import Tasks

tasks = Tasks()


@tasks.task
async def greet(name: str, times: int = 1) -> str:
    return name * times


@tasks.task
def measure(path: str) -> list[float]:
    return [float(len(path))]


@tasks.task
async def forget() -> None: ...


assert_type(greet(name="Ada"), Call[str])
assert_type(greet("Ada", times=2), Call[str])
assert_type(measure(path="/tmp"), Call[list[float]])
assert_type(forget(), Call[None])

greet(name=1)  # refused
greet()  # refused
greet(name="Ada", colour="red")  # refused
greet("Ada", 1, 2)  # refused
measure(path=None)  # refused
forget(1)  # refused


assert_type(greet(name="Ada").options(delay=60, lane="vm-7", unique="ada", priority=5), Call[str])
assert_type(measure(path="/").options(run_at=datetime.now(UTC)), Call[list[float]])
greet(name="Ada").options(delay=timedelta(hours=1), unique=Unique("ada", scope="any"), webhook=None)
greet(name="Ada").options(blockers=["0198c0de-0000-7000-8000-000000000000"], tags=("a", "b"), paused=True)

greet(name="Ada").options(delay="soon")  # refused
greet(name="Ada").options(dealy=60)  # refused
greet(name="Ada").options(on_blocker_failure="explode")  # refused
greet(name="Ada").options(queue=None)  # refused

wider: Call[object] = greet(name="Ada")
narrower: Call[int] = greet(name="Ada")  # refused


async def forgets_to_start() -> None:
    await greet(name="Ada")  # refused
