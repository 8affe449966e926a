"""What attempts need of their worker, or of the child process that they run in; once for each colour of handlers."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Protocol

from holdfast.client.providers import Opener
from holdfast.client.starter import Starter
from holdfast.database.tx import Blocking, First, OpenTx, Runner, Store
from holdfast.runtime import Runtime
from holdfast.store.jobs.claiming import ProgressReport, Token
from holdfast.threads import ThreadPool, caught
from holdfast.worker.attempts.late_entries import LateEntries


class KeepsLeases(Protocol):
    """Who knows how the leases stand: in this process, or by what a child's worker has told it."""

    def may_complete(self, token: Token) -> bool: ...
    def drop(self, token: Token) -> None: ...


class TakesReports(Protocol):
    """Who takes what handlers report: `Progress`, or in a child who sends it there."""

    def take(self, report: ProgressReport, at_once: bool, is_over: Callable[[], bool]) -> Future[bool] | None: ...
    def unwritten(self, token: Token) -> list[ProgressReport]: ...
    def hold(self, token: Token) -> Future[bool]: ...
    def release(self, token: Token, *, is_written: bool) -> None: ...
    def give_up(self, token: Token) -> None: ...
    def forget(self, tokens: Iterable[Token]) -> None: ...


@dataclass(frozen=True, slots=True)
class AttemptServices:
    """What attempts of one colour need: nothing here suspends on the blocking side."""

    begin: Callable[[float, First, object], Awaitable[OpenTx]]
    """Opens a block's transaction, by the lease, what is run first, and `using=`."""
    runner: Runner
    pause: Callable[[float], Awaitable[None]]
    wait: Callable[[Future[bool]], Awaitable[bool]]
    starting: Starter
    leases: KeepsLeases
    progress: TakesReports
    late: LateEntries
    worker: str
    threads: ThreadPool
    """Where plain functions run."""
    chance: Random
    loop: asyncio.AbstractEventLoop

    async def call_in_thread(
        self, call: Callable[[], Any], on_cancel: Callable[[], None] = lambda: None
    ) -> tuple[Any, bool]:
        """Call in a thread, and wait until it comes back, whatever happens; tell whether we were cancelled."""
        variables = contextvars.copy_context()
        future = self.threads.start(partial(variables.run, caught, call))  # a future refuses StopIteration
        is_cancelled = False
        while not future.done():
            try:
                await asyncio.shield(future)
            except asyncio.CancelledError:
                is_cancelled = True
                on_cancel()
        value, error = future.result()
        if error is not None:
            raise error
        return value, is_cancelled


@dataclass(frozen=True, slots=True)
class Keepers:
    """Who keeps what attempts need, in this process: leases, reports, what is written later, and threads to run in."""

    leases: KeepsLeases
    progress: TakesReports
    late: LateEntries
    threads: ThreadPool


def make_services(
    store: Store, opener: Opener, runtime: Runtime, starting: Starter, keepers: Keepers, worker: str
) -> dict[bool, AttemptServices]:
    """Make the services of one worker, in its loop: True for handlers that are async, False for plain ones."""

    async def pause_blocking(seconds: float) -> None:
        runtime.sleep_blocking(seconds)

    async def wait_blocking(future: Future[bool]) -> bool:
        return future.result()

    make = partial(
        AttemptServices,
        starting=starting,
        leases=keepers.leases,
        progress=keepers.progress,
        late=keepers.late,
        worker=worker,
        threads=keepers.threads,
        chance=runtime.chance,
        loop=asyncio.get_running_loop(),
    )
    return {
        True: make(opener.begin, store, runtime.sleep, asyncio.wrap_future),
        False: make(opener.begin_blocking, Blocking(store), pause_blocking, wait_blocking),
    }
