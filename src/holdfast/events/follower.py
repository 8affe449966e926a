"""Iterators over what happens: in a loop or in a thread, from one description of what comes next.

A stream says what there is to take now, by reads on a runner of either colour, and tells when there may be more. What
waits in between is written here, once for each colour.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Generic, Self, TypeAlias, TypeVar

from holdfast.database.tx import Blocking, Runner, Store, drive
from holdfast.errors import HoldfastError, StoreError
from holdfast.runtime import Runtime
from holdfast.threads import resolve

T_co = TypeVar("T_co", covariant=True)

TROUBLE_SECONDS = 0.5

Notify: TypeAlias = Callable[[], None]


class Stream(ABC, Generic[T_co]):
    """An async iterator that goes on until it is closed; close it, or use `async with`.

    A store that is away for a while ends it only if it has not begun yet.
    """

    poll_seconds: float | None = None
    """How long it may go without a look, if nothing is told."""

    error: HoldfastError | None = None
    """Why it gives no more, if it broke off."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self.store = store
        self.runtime = runtime

    @abstractmethod
    async def join(self, runner: Runner) -> None:
        """Take its place; from now on nothing is missed. Again, do nothing."""

    @abstractmethod
    async def take(self, runner: Runner) -> T_co | None:
        """Give what comes next; None if there is nothing now, or nothing more at all."""

    def at_hand(self) -> T_co | None:
        """Give what comes next, if it is here and needs no read; else None, and `take` knows more."""
        return None

    @property
    @abstractmethod
    def has_joined(self) -> bool:
        """Tell whether it has its place."""

    @property
    @abstractmethod
    def is_closed(self) -> bool:
        """Tell whether it gives no more."""

    @abstractmethod
    def listen(self, notify: Notify | None) -> None:
        """Call *notify*, in any thread, whenever there may be something to take."""

    @abstractmethod
    def close(self) -> None:
        """End it: whoever waits for more is told that there is no more."""

    def blocking(self) -> BlockingStream[T_co]:
        """Give the same as a plain iterator, for blocking code."""
        return BlockingStream(self)

    async def aclose(self) -> None:
        """End it."""
        self.close()

    async def __aenter__(self) -> Self:
        await self.join(self.store)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T_co:
        if (found := self.at_hand()) is not None:
            return found
        loop = asyncio.get_running_loop()
        while True:
            ready: asyncio.Future[None] = loop.create_future()
            self.listen(partial(resolve, ready))
            try:
                if (found := await self.take(self.store)) is not None:
                    return found
                seconds = self.poll_seconds
            except StoreError:
                if self.error is not None or not self.has_joined:
                    raise
                seconds = TROUBLE_SECONDS
            if self.is_closed:
                raise StopAsyncIteration
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await ready


class BlockingStream(Generic[T_co]):
    """A plain iterator that waits for what comes next, until it is closed; close it, or use `with`."""

    def __init__(self, stream: Stream[T_co]) -> None:
        self.stream = stream
        self._blocking = Blocking(stream.store)

    def close(self) -> None:
        """End it; a thread that waits for more is told that there is no more."""
        self.stream.close()

    def __enter__(self) -> Self:
        drive(self.stream.join(self._blocking))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T_co:
        if (found := self.stream.at_hand()) is not None:
            return found
        while True:
            ready = self.stream.runtime.signal()
            self.stream.listen(ready.set)
            try:
                if (found := drive(self.stream.take(self._blocking))) is not None:
                    return found
                seconds = self.stream.poll_seconds
            except StoreError:
                if self.stream.error is not None or not self.stream.has_joined:
                    raise
                seconds = TROUBLE_SECONDS
            if self.stream.is_closed:
                raise StopIteration
            ready.wait(seconds)
