"""Handlers that are written once and run everywhere: in the loop, in a thread, and in a child in both colours.

A body is an `async def` with a context, as in `tests.worker.colours`: for a plain handler the blocking context is put
under `await`, and the body, in which nothing suspends then, is driven. Each body stands beside its test; a child finds
it there, by importing the application, `on_sqlite` or `on_postgres`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from holdfast import Context, Holdfast, Retry, Tasks
from holdfast.database.tx import drive
from holdfast.sync import Context as BlockingContext
from holdfast.tasks.task import Task
from tests.support.ways import Awaitable
from tests.worker.colours import Awaited

RUNNERS = ("loop", "thread", "child-async", "child-plain")
PLAIN = ("thread", "child-plain")
CHILDREN = ("child-async", "child-plain")
LONGEST_SECONDS = 60.0
"""How long anybody waits for anything here."""
ONCE = Retry.never()
SOON = Retry(attempts=3, first=0.01, maximum=0.01, jitter=0)

TASKS = Tasks()
"""Every behaviour in the loop and in a thread, under a name for each runner: `thread.charge`."""
IN_CHILDREN = Tasks()
"""The same in children, apart: a worker without children must not know them."""
FACES: dict[str, Holdfast] = {}
"""The application's faces in this process, by database."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One body as the task of each runner."""

    tasks: dict[str, Task[..., Any]]

    def on(self, runner: str) -> Task[..., Any]:
        """Give its task for *runner*."""
        return self.tasks[runner]

    def beside(self, ctx: Any) -> Task[..., Any]:
        """Give its task for the runner of *ctx*."""
        return self.tasks[ctx.job.task.partition(".")[0]]


def behaviour(tasks: Tasks = TASKS, **options: Any) -> Callable[[Callable[..., Any]], Behaviour]:
    """Register a body for every runner; *options* are those of a task, which runs once unless they say otherwise."""
    given = {"retry": ONCE, **options}

    def register(body: Callable[..., Any]) -> Behaviour:
        homes = {runner: IN_CHILDREN if tasks is TASKS and runner in CHILDREN else tasks for runner in RUNNERS}
        return Behaviour({runner: _register(home, runner, body, given) for runner, home in homes.items()})

    return register


def _register(tasks: Tasks, runner: str, body: Callable[..., Any], options: dict[str, Any]) -> Task[..., Any]:
    place = {"run_in": "process"} if runner in CHILDREN else {}
    function = _plain(body) if runner in PLAIN else _async(body)
    return tasks.task(name=f"{runner}.{body.__name__}", **options, **place)(function)  # type: ignore[call-overload,no-any-return]


def _async(body: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(body)
    async def handler(ctx: Context, **arguments: Any) -> Any:
        return await body(ctx, **arguments)

    return _annotated(handler, Context)


def _plain(body: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(body)
    def handler(ctx: BlockingContext, **arguments: Any) -> Any:
        return drive(body(Awaited(ctx), **arguments))

    return _annotated(handler, BlockingContext)


def _annotated(handler: Callable[..., Any], context: type) -> Callable[..., Any]:
    """Have the handler take what its body does, and a *context* of its colour."""
    handler.__annotations__ = {**handler.__annotations__, "ctx": context}
    return handler


# what bodies do, as a handler of their colour does it


def is_plain(ctx: Any) -> bool:
    """Tell whether the handler is a plain function."""
    return isinstance(ctx, Awaited)


def face(ctx: Any, database: str) -> Any:
    """Give the application's face in the colour of the handler; every verb is awaited."""
    return Awaitable(FACES[database].sync) if is_plain(ctx) else FACES[database]


async def stopped(ctx: Any) -> None:
    """Wait until the handler is to stop."""
    if is_plain(ctx):
        assert ctx.aborted.wait(LONGEST_SECONDS), "nobody has told the handler to stop"
    else:
        async with asyncio.timeout(LONGEST_SECONDS):
            await ctx.aborted


async def flush_progress(ctx: Any, percent: float, message: str) -> None:
    """Report, and wait until that is durable."""
    written = ctx.progress(percent, message, flush=True)
    if written is not None:
        await written
