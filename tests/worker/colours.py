"""One text for handlers of both colours: a test writes its handler as `async def body(ctx, …)`, with `async with`.

For a plain handler the blocking context is put under `await`, and the body, in which nothing suspends then, is driven.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from holdfast import Context, Holdfast
from holdfast.database.tx import drive
from holdfast.errors import HoldfastError
from holdfast.sync import Context as BlockingContext
from holdfast.tasks.task import Task
from tests.store.open_blocks import bills
from tests.support.conditions import until
from tests.support.log_rows import as_events

COLOURS = ("sqlite-async", "sqlite-plain", "postgres-async", "postgres-plain")


class Awaited:
    """Something blocking under `await` and `async with`; markers and plain values pass as they are."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name in ("prepare", "complete", "atomic", "savepoint", "completing"):
            return lambda *args, **kwargs: _entered(value(*args, **kwargs))
        if name == "journal":
            return Awaited(value)
        if name not in ("execute", "fetch_one", "fetch_all", "start", "start_many", "phase", "append", "read"):
            return value

        async def call(*args: Any, **kwargs: Any) -> Any:
            return value(*args, **kwargs)

        return call


@asynccontextmanager
async def _entered(block: Any) -> AsyncIterator[Any]:
    with block as tx:
        yield tx if tx is None else Awaited(tx)


@dataclass(frozen=True, slots=True)
class Colour:
    """One database, and handlers of one colour."""

    hf: Holdfast
    is_async: bool

    def task(self, body: Callable[..., Any], output: Any, **options: Any) -> Task[..., Any]:
        """Register a task whose handler is *body*, called with its context and an integer *n*."""

        async def handler(ctx: Context, n: int = 0) -> Any:
            return await body(ctx, n)

        def plain(ctx: BlockingContext, n: int = 0) -> Any:
            return drive(body(Awaited(ctx), n))

        function = handler if self.is_async else plain
        function.__annotations__["return"] = output
        return self.hf.task(name=body.__name__, **options)(function)  # type: ignore[call-overload,no-any-return]

    async def wait(self, event: threading.Event) -> None:
        """Wait in a handler, as one of its colour does."""
        if self.is_async:
            await until(event.is_set, "the test lets the handler go on", 20)
        else:
            event.wait(20)

    async def bills(self) -> list[int]:
        """Read the user's table."""
        return await self.hf.store.read(bills)

    async def status(self, job: Any) -> str:
        """Tell the status of a job."""
        return str((await self.hf.get_job(job)).status)

    async def until_status(self, job: Any, status: str, timeout: float = 30) -> None:
        """Wait until a job has this status."""

        async def holds() -> bool:
            return await self.status(job) == status

        await until(holds, f"the job is {status}", timeout)

    async def error(self, job: Any) -> str:
        """Tell the type and text of a job's last error."""
        error = (await self.hf.get_job(job)).error or {}
        return f"{error.get('type')}: {error.get('message')}"

    async def events(self, job: Any) -> list[str]:
        """Name the events of a job, in order."""
        return [name for name, _ in await self.facts(job)]

    async def facts(self, job: Any) -> list[tuple[str, str]]:
        """Give the events of a job with their facts, in order."""

        async def fetch(tx: Any) -> list[tuple[str, str]]:
            sql = """SELECT name, facts FROM holdfast_event
                WHERE job = (SELECT seq FROM holdfast_job WHERE id = :id) ORDER BY seq"""
            rows = as_events(await tx.fetch_all(sql, id=str(job.id)), "name, facts")
            return [(name, facts or "{}") for name, facts in rows]

        return await self.hf.store.read(fetch)


class Witness:
    """What a handler has met, for the test to look at."""

    def __init__(self) -> None:
        self.raised: list[BaseException] = []
        self.reached = threading.Event()
        self.gate = threading.Event()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Note what is raised inside, and let it pass."""
        try:
            yield
        except BaseException as error:
            self.raised.append(error)
            raise

    @property
    def codes(self) -> list[str]:
        """The errors of ours by their codes, others by their names."""
        return [each.code if isinstance(each, HoldfastError) else type(each).__name__ for each in self.raised]


async def let_others_run() -> None:
    """Give the loop a turn."""
    await asyncio.sleep(0)
