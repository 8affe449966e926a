"""Middleware wraps a handler the same way in every runner, and runs where the handler runs (Q-09)."""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import Tasks
from holdfast.sync import Context as BlockingContext
from holdfast.sync import middleware
from tests.worker.runners.behaviours import behaviour
from tests.worker.runners.notes import note
from tests.worker.runners.stage import Runner

pytestmark = pytest.mark.asyncio(loop_scope="package")

NAME = "peel"
REQUEST = contextvars.ContextVar("REQUEST", default="none")


def pass_by(ctx: Any, word: str) -> None:
    """Note that somebody was there, and in which process and thread; of other handlers nothing is noted."""
    if ctx.job.task.endswith(f".{NAME}"):
        note(ctx, word, os.getpid(), threading.get_ident())


async def _around(ctx: Any, following: Callable[[], Awaitable[Any]], name: str) -> Any:
    pass_by(ctx, f"{name} in")
    ctx.state.setdefault("passed", []).append(name)
    try:
        return await following()
    finally:
        pass_by(ctx, f"{name} out")


async def by_worker(ctx: Any, following: Callable[[], Awaitable[Any]]) -> Any:
    """Stand outermost, and set what the handler reads."""
    REQUEST.set(str(ctx.job.id))
    return await _around(ctx, following, "worker")


async def by_registry(ctx: Any, following: Callable[[], Awaitable[Any]]) -> Any:
    """Stand inside the worker's."""
    return await _around(ctx, following, "registry")


async def by_task(ctx: Any, following: Callable[[], Awaitable[Any]]) -> Any:
    """Stand innermost of those in the loop, and change what is returned."""
    return f"{await _around(ctx, following, 'task')}!"


@middleware
def by_worker_in_thread(ctx: BlockingContext, call: Callable[[], Any]) -> Any:
    """Stand around plain handlers, in their thread."""
    pass_by(ctx, "thread in")
    try:
        return call()
    finally:
        pass_by(ctx, "thread out")


LAYERED = Tasks(middleware=[by_registry])


@behaviour(LAYERED, middleware=[by_task])
async def peel(ctx: Any) -> str:
    """Tell who was there before."""
    pass_by(ctx, "handler")
    note(ctx, REQUEST.get())
    return " ".join(ctx.state["passed"])


@pytest.mark.source("JC-42")
async def test_it_stands_around_the_handler_like_an_onion(runner: Runner) -> None:
    chain = await runner.start(peel)

    assert await runner.output(chain) == "worker registry task!"

    in_thread = (["thread in"], ["thread out"]) if runner.is_plain else ([], [])
    assert [words[0] for words in runner.notes(chain)] == [
        "worker in", "registry in", "task in", *in_thread[0], "handler", str(chain.id), *in_thread[1],
        "task out", "registry out", "worker out",
    ]  # fmt: skip


async def test_all_of_it_runs_in_the_process_of_the_handler(runner: Runner) -> None:
    chain = await runner.start(peel)
    await runner.output(chain)

    notes = [words for words in runner.notes(chain) if len(words) == 3]
    (process,) = {process for _, process, _ in notes}
    threads = {word: thread for word, _, thread in notes}
    assert (process != os.getpid()) is runner.is_child
    assert (threads["handler"] == threads["worker in"]) is not runner.is_plain
    assert not runner.is_plain or threads["thread in"] == threads["handler"]


async def refuse(ctx: Any, following: Callable[[], Awaitable[Any]]) -> Any:
    """Let nothing pass."""
    raise PermissionError("not today")


@behaviour(middleware=[refuse])
async def kept_out(ctx: Any) -> None:
    """Never run."""
    note(ctx, "ran")


async def test_what_it_raises_is_what_the_attempt_comes_to(runner: Runner) -> None:
    ended = await runner.end(kept_out)

    assert (ended.status, ended.error["type"], ended.error["message"]) == ("failed", "PermissionError", "not today")
    assert runner.notes(ended) == []
