"""Waiting for chains to close: one waiter in a process, whoever waits, in a loop or in a thread.

The waiter has a thread. At a hint, and at every poll, it reads once which of all the chains that are waited for have
closed, and tells those who wait; it never waits for the log. A store that is away for a while ends no wait.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, Protocol, TypeAlias
from uuid import UUID

from holdfast.errors import ChainNotFound, HoldfastError, Misuse, StoreError, WaitTimeout
from holdfast.store import glances, workers
from holdfast.store.glances import End
from holdfast.store.hints import Rest
from holdfast.store.tx import Store
from holdfast.store.workers import Member
from holdfast.surroundings import Shell, Surroundings

Until: TypeAlias = Literal["all", "any"]

SHORTEST_SECONDS = 0.005  # between two reads, so that a storm of hints costs little
LINGER_SECONDS = 5.0  # after the last wait, for the next one
BEAT_SECONDS = 60.0
TROUBLE_SECONDS = 0.5

logger = logging.getLogger(__name__)


class Waits(Protocol):
    """How code of one colour waits."""

    async def wait(self, chain_ids: Sequence[UUID], until: Until, seconds: float | None) -> dict[UUID, End]:
        """Wait until all or any of *chain_ids* have closed; give the ends of those, or raise `WaitTimeout`."""


class Wait:
    """One who waits for *chain_ids*; *tell* is called once, in the waiter's thread."""

    def __init__(self, chain_ids: Sequence[UUID], until: Until, tell: Callable[[], None]) -> None:
        self.open = set(chain_ids)
        self.is_done = False
        self._until = until
        self._tell = tell
        self._ends: dict[UUID, End] = {}
        self._error: HoldfastError | None = None

    def take(self, ends: dict[UUID, End], gone: set[UUID]) -> None:
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

    def result(self) -> dict[UUID, End]:
        """Give what was waited for, or raise."""
        if self._error is not None:
            raise self._error
        return self._ends

    def _finish(self) -> None:
        if not self.is_done:
            self.is_done = True
            self._tell()


class Waiter:
    """Reads for all who wait in this process on one store; its thread is made when first needed."""

    def __init__(self, store: Store, surroundings: Surroundings) -> None:
        self._store = store
        self._surroundings = surroundings
        self._here = _Here(store, surroundings)

    def add(self, wait: Wait) -> None:
        """Have *wait* told when its time has come."""
        if self._here.process != os.getpid():  # the thread is the parent's, and so are those who wait there
            self._here = _Here(self._store, self._surroundings)
        self._here.add(wait)

    def withdraw(self, wait: Wait) -> None:
        """Forget *wait*."""
        self._here.withdraw(wait)

    def close(self) -> None:
        """End every wait, and let go of the thread; the next wait begins anew."""
        if self._here.process == os.getpid():
            self._here.close()

    async def wait(self, chain_ids: Sequence[UUID], until: Until, seconds: float | None) -> dict[UUID, End]:
        """Wait in an event loop, as `Waits` says."""
        loop = asyncio.get_running_loop()
        told = loop.create_future()
        wait = Wait(chain_ids, until, lambda: _tell(loop, told))
        self.add(wait)
        try:
            async with asyncio.timeout(seconds):
                await told
        except TimeoutError:
            raise _too_late(chain_ids, wait, seconds) from None
        finally:
            self.withdraw(wait)
        return wait.result()

    @property
    def blocking(self) -> BlockingWaits:
        """The same for threads."""
        return BlockingWaits(self, self._surroundings)


class BlockingWaits:
    """How blocking code waits; nothing that is awaited here suspends."""

    def __init__(self, waiter: Waiter, surroundings: Surroundings) -> None:
        self._waiter = waiter
        self._surroundings = surroundings

    async def wait(self, chain_ids: Sequence[UUID], until: Until, seconds: float | None) -> dict[UUID, End]:
        """Wait in a thread, as `Waits` says."""
        told = self._surroundings.signal()
        wait = Wait(chain_ids, until, told.set)
        self._waiter.add(wait)
        try:
            if not told.wait(seconds):
                raise _too_late(chain_ids, wait, seconds)
        finally:
            self._waiter.withdraw(wait)
        return wait.result()


def _tell(loop: asyncio.AbstractEventLoop, told: asyncio.Future[None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody is left to hear it
        loop.call_soon_threadsafe(_set, told)


def _set(told: asyncio.Future[None]) -> None:
    if not told.done():
        told.set_result(None)


def _too_late(chain_ids: Sequence[UUID], wait: Wait, seconds: float | None) -> WaitTimeout:
    return WaitTimeout([each for each in chain_ids if each in wait.open], seconds or 0.0)


class _Here:
    """The waiter of one process: those who wait, and the thread that reads for them."""

    def __init__(self, store: Store, surroundings: Surroundings) -> None:
        self.process = os.getpid()
        self._store = store
        self._surroundings = surroundings
        self._monotonic = surroundings.monotonic
        self._member = Member.here(f"waiter-{surroundings.chance.getrandbits(48):012x}", waits_for_results=True)
        self._change = threading.Lock()
        self._waits: dict[Wait, None] = {}
        self._shell: Shell | None = None
        self._rest: Rest | None = None
        self._read_at = self._used_at = self._beaten_at = self._monotonic()
        self._is_failing = False

    def add(self, wait: Wait) -> None:
        """Let *wait* be read for, from now on."""
        with self._change:
            self._waits[wait] = None
            if self._shell is None:
                self._shell = self._surroundings.shell(self._step, "holdfast-waiter")
            self._shell.wake()

    def withdraw(self, wait: Wait) -> None:
        """Forget *wait*."""
        with self._change:
            self._waits.pop(wait, None)
            if not self._waits and self._shell is not None:
                self._shell.wake()

    def close(self) -> None:
        """End every wait, and the thread."""
        with self._change:
            shell, self._shell = self._shell, None
            waits, self._waits = list(self._waits), {}
        if shell is not None:
            shell.stop()
        self._go_away()
        for wait in waits:
            wait.fail(Misuse("hf was closed while this waited for a chain; wait before you close it, or ask anew"))

    def _hear(self) -> None:
        rest, shell = self._rest, self._shell
        if rest is not None and shell is not None:
            rest.hear()
            shell.wake()

    def _step(self) -> float | None:
        """Read for all who wait; answer when to read again."""
        with self._change:
            waits = [each for each in self._waits if not each.is_done]
        now = self._monotonic()
        if not waits:
            return self._linger(now)
        if (early := self._read_at + SHORTEST_SECONDS - now) > 0:
            return early
        self._read_at = self._used_at = now
        try:
            return self._look(waits)
        except StoreError as error:
            return self._after_trouble(error)
        except Exception as error:  # noqa: BLE001 - it belongs to those who wait, and the thread lives on
            failure = error if isinstance(error, HoldfastError) else StoreError(f"the wait broke off: {error!r}")
            for wait in waits:
                wait.fail(failure)
            return LINGER_SECONDS

    def _look(self, waits: Sequence[Wait]) -> float:
        rest = self._rest = self._rest or Rest(self._store.watch(self._hear), self._monotonic)
        if rest.wants_to_wake:
            self._store.run_sync(workers.awake, self._member.id)
            rest.has_unmarked()
        self._read(waits, rest)
        if rest.wants_to_sleep and not all(each.is_done for each in waits):
            self._store.run_sync(workers.asleep, self._member)
            rest.has_marked()
            self._read(waits, rest)
        self._beat(rest)
        if self._is_failing:
            self._is_failing = False
            logger.warning("waiter_reads_again")
        return rest.seconds()

    def _read(self, waits: Sequence[Wait], rest: Rest) -> None:
        chain_ids = list({chain_id for each in waits for chain_id in each.open})
        if not chain_ids:
            return
        found = self._store.read_sync(glances.ended, chain_ids)
        rest.has_looked(found.horizon)
        asked = found.closed if found.are_all_there else chain_ids
        if not asked:
            return
        ends = self._store.read_sync(glances.ends, asked)
        closed = {each: end for each, end in ends.items() if end.closed_as is not None}
        for wait in waits:
            wait.take(closed, gone=set(asked) - ends.keys())

    def _beat(self, rest: Rest) -> None:
        now = self._monotonic()
        if rest.is_marked and now - self._beaten_at > BEAT_SECONDS:
            self._beaten_at = now
            self._store.run_sync(workers.beat, self._member, is_asleep=True)

    def _linger(self, now: float) -> float | None:
        if (left := self._used_at + LINGER_SECONDS - now) > 0:
            return left
        self._go_away()
        return None

    def _go_away(self) -> None:
        rest, self._rest = self._rest, None
        if rest is None:
            return
        rest.stop()
        if rest.is_marked:
            with suppress(StoreError):  # a row that is left behind has no beat, and is forgotten
                self._store.run_sync(workers.forget, [self._member.id])

    def _after_trouble(self, error: StoreError) -> float:
        if not self._is_failing:
            self._is_failing = True
            logger.warning("waiter_cannot_read", extra={"reason": str(error)})
        return TROUBLE_SECONDS
