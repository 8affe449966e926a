"""Middleware in the thread of a plain handler: for what belongs to threads."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import Holdfast, Retry, Status, Tasks
from holdfast.sync import Context, middleware
from tests.worker.colours import Colour


class Told:
    """Writes down who was called, in which thread."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.threads: list[int] = []

    def note(self, name: str) -> None:
        self.names.append(name)
        self.threads.append(threading.get_ident())

    def layer(self, name: str) -> Any:
        """Make a layer that is noted before and after what it is around."""

        @middleware
        def around(ctx: Context, call: Callable[[], Any]) -> Any:
            self.note(f"begin {name}")
            try:
                return call()
            finally:
                self.note(f"end {name}")

        return around


async def end_of(hf: Holdfast, call: Any, **options: Any) -> Any:
    async with hf.worker(**options):
        chain = await hf.start(call)
        await hf.wait([chain], timeout=20)
    return await hf.get_job(chain)


async def test_it_is_around_a_plain_handler_in_its_thread_like_an_onion(new_holdfast: Callable[..., Holdfast]) -> None:
    told = Told()
    tasks = Tasks(middleware=[told.layer("registry")])

    @tasks.task(name="plain", middleware=[told.layer("task")])
    def plain() -> str:
        told.note("handler")
        return "done"

    hf = new_holdfast("sqlite", tasks=[tasks])

    job = await end_of(hf, plain(), middleware=[told.layer("worker")])

    assert job.output == "done"
    assert told.names == [
        "begin worker", "begin registry", "begin task", "handler", "end task", "end registry", "end worker",
    ]  # fmt: skip
    assert len(set(told.threads)) == 1
    assert threading.get_ident() not in told.threads


async def test_it_stands_inside_what_runs_in_the_event_loop(new_holdfast: Callable[..., Holdfast]) -> None:
    told = Told()

    async def in_loop(ctx: Any, call: Callable[[], Awaitable[Any]]) -> Any:
        told.note("begin loop")
        output = await call()
        told.note("end loop")
        return output

    hf = new_holdfast("sqlite")

    @hf.task(name="plain")
    def plain() -> None:
        told.note("handler")

    await end_of(hf, plain(), middleware=[told.layer("thread"), in_loop])

    assert told.names == ["begin loop", "begin thread", "handler", "end thread", "end loop"]


async def test_an_async_handler_is_let_pass(new_holdfast: Callable[..., Holdfast]) -> None:
    told = Told()
    hf = new_holdfast("sqlite")

    @hf.task(name="async")
    async def handler() -> str:
        return "done"

    job = await end_of(hf, handler(), middleware=[told.layer("thread")])

    assert (job.output, told.names) == ("done", [])


async def test_what_it_returns_and_raises_counts(new_holdfast: Callable[..., Holdfast]) -> None:
    hf = new_holdfast("sqlite")

    @middleware
    def twice(ctx: Context, call: Callable[[], Any]) -> Any:
        if ctx.job.task == "refused":
            raise LookupError
        return call() * 2

    @hf.task(name="doubled")
    def doubled() -> int:
        return 21

    @hf.task(name="refused", retry=Retry.never())
    def refused() -> int:
        return 21

    assert (await end_of(hf, doubled(), middleware=[twice])).output == 42
    assert (await end_of(hf, refused(), middleware=[twice])).status is Status.FAILED


async def test_a_block_is_opened_and_ended_inside_it(colour: Colour) -> None:
    told = Told()

    async def complete(ctx: Any, n: int) -> Any:
        told.note("handler")
        async with ctx.complete() as tx:
            return tx.finish(n)

    job = await end_of(colour.hf, colour.task(complete, int)(n=1), middleware=[told.layer("thread")])

    assert job.output == 1
    assert told.names == (["handler"] if colour.is_async else ["begin thread", "handler", "end thread"])
