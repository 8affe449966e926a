"""Waiting for chains to close: one waiter in a process, whoever waits, in a loop or in a thread.

Its poller has a thread. At a hint, and at every poll, it reads once which of all the chains that are waited for have
closed, and notifies those who wait; it never waits for the log. A store that is away for a while ends no wait.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, Protocol, TypeAlias
from uuid import UUID

from holdfast.database.hints import Horizon
from holdfast.database.tx import Store
from holdfast.errors import ChainNotFound, HoldfastError, Misuse, WaitTimeout
from holdfast.events.poller import Poller
from holdfast.runtime import Runtime
from holdfast.store import polls
from holdfast.store.polls import ChainResult
from holdfast.threads import resolve

Until: TypeAlias = Literal["all", "any"]


class Waits(Protocol):
    """How code of one colour waits."""

    async def wait(self, chain_ids: Sequence[UUID], until: Until, seconds: float | None) -> dict[UUID, ChainResult]:
        """Wait until all or any of *chain_ids* have closed; give the ends of those, or raise `WaitTimeout`."""


class Wait:
    """One who waits for *chain_ids*; *on_done* is called once, in the waiter's thread."""

    def __init__(self, chain_ids: Sequence[UUID], until: Until, on_done: Callable[[], None]) -> None:
        self.open = set(chain_ids)
        self.is_done = False
        self._until = until
        self._on_done = on_done
        self._ends: dict[UUID, ChainResult] = {}
        self._error: HoldfastError | None = None

    def take(self, ends: dict[UUID, ChainResult], gone: set[UUID]) -> None:
        """Take in which chains have closed, and which are no more."""
        if lost := self.open & gone:
            self.fail(ChainNotFound(lost.pop()))
        closed = self.open & ends.keys()
        self._ends |= {each: ends[each] for each in closed}
        self.open -= closed
        if not self.open or (closed and self._until == "any"):
            self._finish()

    def fail(self, error: HoldfastError) -> None:
        """End the wait with *error*."""
        if not self.is_done:
            self._error = error
        self._finish()

    def result(self) -> dict[UUID, ChainResult]:
        """Give what was waited for, or raise."""
        if self._error is not None:
            raise self._error
        return self._ends

    def _finish(self) -> None:
        if not self.is_done:
            self.is_done = True
            self._on_done()


class Waiter:
    """Reads for all who wait in this process on one store; its thread is made when first needed."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._here = _WaiterState(store, runtime)

    def add(self, wait: Wait) -> None:
        """Notify *wait* when its chains have closed."""
        if self._here.process != os.getpid():  # the thread is the parent's, and so are those who wait there
            self._here = _WaiterState(self._store, self._runtime)
        self._here.add(wait)

    def withdraw(self, wait: Wait) -> None:
        """Forget *wait*."""
        self._here.withdraw(wait)

    def close(self) -> None:
        """End every wait, and let go of the thread; the next wait begins anew."""
        if self._here.process == os.getpid():
            self._here.close()

    async def wait(self, chain_ids: Sequence[UUID], until: Until, seconds: float | None) -> dict[UUID, ChainResult]:
        """Wait in an event loop, as `Waits` says."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        wait = Wait(chain_ids, until, partial(resolve, done))
        self.add(wait)
        try:
            async with asyncio.timeout(seconds):
                await done
        except TimeoutError:
            raise _too_late(chain_ids, wait, seconds) from None
        finally:
            self.withdraw(wait)
        return wait.result()

    @property
    def blocking(self) -> BlockingWaits:
        """The same for threads."""
        return BlockingWaits(self, self._runtime)


class BlockingWaits:
    """How blocking code waits; nothing that is awaited here suspends."""

    def __init__(self, waiter: Waiter, runtime: Runtime) -> None:
        self._waiter = waiter
        self._runtime = runtime

    async def wait(self, chain_ids: Sequence[UUID], until: Until, seconds: float | None) -> dict[UUID, ChainResult]:
        """Wait in a thread, as `Waits` says."""
        done = self._runtime.signal()
        wait = Wait(chain_ids, until, done.set)
        self._waiter.add(wait)
        try:
            if not done.wait(seconds):
                raise _too_late(chain_ids, wait, seconds)
        finally:
            self._waiter.withdraw(wait)
        return wait.result()


def _too_late(chain_ids: Sequence[UUID], wait: Wait, seconds: float | None) -> WaitTimeout:
    return WaitTimeout([each for each in chain_ids if each in wait.open], seconds or 0.0)


class _WaiterState:
    """The waiter of one process: those who wait, and the thread that reads for them."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self.process = os.getpid()
        self._store = store
        self._change = threading.Lock()
        self._waits: dict[Wait, None] = {}
        self.poller = Poller(store, runtime, self, "waiter")

    def add(self, wait: Wait) -> None:
        """Let *wait* be read for, from now on."""
        with self._change:
            self._waits[wait] = None
        self.poller.wake()

    def withdraw(self, wait: Wait) -> None:
        """Forget *wait*."""
        with self._change:
            self._waits.pop(wait, None)
        self.poller.release()

    def close(self) -> None:
        """End every wait, and the thread."""
        self.poller.close()
        self.break_off(Misuse("hf was closed while this waited for a chain; close hf after the wait, or wait again"))
        with self._change:
            self._waits.clear()

    @property
    def is_wanted(self) -> bool:
        """Tell whether anybody still waits."""
        return bool(self._open())

    def look(self) -> Horizon | None:
        """Read for all who wait."""
        waits = self._open()
        chain_ids = list({chain_id for each in waits for chain_id in each.open})
        if not chain_ids:
            return None
        found = self._store.read_sync(polls.closed_chains, chain_ids)
        asked = found.closed if found.are_all_there else chain_ids
        if asked:
            ends = self._store.read_sync(polls.chain_results, asked)
            closed = {each: end for each, end in ends.items() if end.closed_as is not None}
            for wait in waits:
                wait.take(closed, gone=set(asked) - ends.keys())
        return found.horizon

    def break_off(self, error: HoldfastError) -> None:
        """End every wait with *error*."""
        for wait in self._open():
            wait.fail(error)

    def _open(self) -> list[Wait]:
        with self._change:
            return [each for each in self._waits if not each.is_done]
