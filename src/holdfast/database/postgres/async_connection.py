"""The async connection of ours: how it waits for the server.

psycopg makes a reader, a timer and a future for each wait; and who is cancelled meanwhile is let go when the server has
been asked to cancel, which may take seconds. Here the reader stays, what the driver does is driven by it, and a wait
that is cancelled goes on until its statement has come to its end, which whoever uses the connection hastens. So a
statement needs neither a task nor a timer of its own: a third of what a block cost our process.

Once a user was given the connection itself, it waits as psycopg does: he cancels a statement and keeps his connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.pq import ConnStatus
from psycopg.waiting import Ready

READABLE, WRITABLE = int(Ready.R), int(Ready.W)
Driver = Generator[Any, Any, Any]
"""What psycopg does with a connection: yields what it waits for, and is sent what is ready."""


class AsyncConnection(psycopg.AsyncConnection[Any]):
    """A psycopg connection that belongs to the event loop which first waits on it."""

    break_off: Callable[[], object] | None = None
    """Has the statement under way end soon; is called when who waits for it is cancelled."""
    _is_patient = False
    _cancelled: asyncio.CancelledError | None = None
    _is_given_away = False
    _loop: asyncio.AbstractEventLoop | None = None
    _descriptor: int | None = None
    _is_writing = False
    _driver: Driver | None = None
    _woken: asyncio.Future[None] | None = None
    _value: Any = None
    _error: BaseException | None = None

    async def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait until *gen*, which the driver has made of a statement, has come to its end."""
        if self._is_given_away:
            return await super().wait(gen, *args, **kwargs)
        try:
            wanted = next(gen)
        except StopIteration as end:
            return end.value
        self._loop = loop = asyncio.get_running_loop()
        self._watch(wanted)
        self._driver = gen
        cancelled: asyncio.CancelledError | None = None
        while self._driver is gen:
            self._woken = loop.create_future()
            try:
                await self._woken
            except asyncio.CancelledError as error:
                cancelled = error
                self._hasten(gen)
        self._woken = None
        return self._outcome(cancelled)

    async def patiently(self, work: Coroutine[Any, Any, None]) -> None:
        """Run *work*, which waits for nothing else, to its end; a cancelled caller waits for it and hears no more."""
        self._is_patient = True
        try:
            await work
        finally:
            self._is_patient = False
            cancelled, self._cancelled = self._cancelled, None
            if cancelled is not None:
                raise cancelled

    def give_away(self) -> None:
        """Wait as psycopg does, from the next statement on."""
        self._is_given_away = True
        if self._driver is None:
            self.unwatch()

    def unwatch(self) -> None:
        """Have the loop look at the socket no more; before it is closed, for its number will be another's."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None and self._loop is not None:
            self._is_writing = False
            for remove in (self._loop.remove_writer, self._loop.remove_reader):
                # the loop is closed; or libpq has closed the socket while it was written to, and epoll knows it no more
                with suppress(RuntimeError, OSError):
                    remove(descriptor)

    def _hasten(self, gen: Driver) -> None:
        """Have the statement end, if it is still under way; where nobody knows how, leave it as it is."""
        if self._driver is not gen or self._is_patient:
            return
        if self.break_off is not None:
            self.break_off()
            return
        gen.close()
        self._end(None, None)
        self.unwatch()

    def _outcome(self, cancelled: asyncio.CancelledError | None) -> Any:
        value, error = self._value, self._error
        self._value = self._error = None
        if cancelled is not None and not self._is_patient:
            raise cancelled
        self._cancelled = self._cancelled or cancelled
        if error is not None:
            raise error
        return value

    def _watch(self, wanted: int) -> None:
        assert self._loop is not None  # noqa: S101 - whoever watches has waited
        descriptor = self.pgconn.socket
        writes = bool(wanted & WRITABLE)
        try:
            if self._descriptor is None:
                self._loop.add_reader(descriptor, self._go_on, READABLE)
                self._descriptor = descriptor
            if writes and not self._is_writing:
                self._loop.add_writer(descriptor, self._go_on, WRITABLE)
            elif self._is_writing and not writes:
                self._loop.remove_writer(descriptor)
        except OSError as error:
            raise psycopg.OperationalError("the connection's socket is closed") from error
        self._is_writing = writes

    def _go_on(self, ready: int) -> None:
        """Let the driver go on, in the loop's own callback: it has read what there is before the loop looks again."""
        driver = self._driver
        if driver is None:  # nobody waits: the server says goodbye
            self.unwatch()
            return
        try:
            self._watch(driver.send(ready))
        except StopIteration as end:
            self._end(end.value, None)
        except Exception as error:  # noqa: BLE001 - it is raised where it belongs, in who waits
            self._end(None, error)
        except BaseException as error:
            self._end(None, error)
            raise

    def _end(self, value: Any, error: BaseException | None) -> None:
        self._driver, self._value, self._error = None, value, error
        if error is not None or self._is_given_away or self.pgconn.status != ConnStatus.OK:
            self.unwatch()  # libpq may have closed the socket
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)
