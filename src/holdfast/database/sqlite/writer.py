"""The writer: who may write, and the queue of those who want to.

The right to write is a lock in this process and a fair lock between processes, taken in this order. Its usual
holder is the shell, a thread that runs `_step` when woken, and the only one that ever *waits* for other
processes. A blocking caller who finds the right free takes it and writes in his own thread: the hop to
another costs more than the insert. Everybody else queues a request; whoever lets go of the right wakes the shell
for them.

The log of SQLite is emptied by the shell as well, which then has the right like anybody who writes.

A block has the right for as long as the user's code in it takes, at most its time. The shell, which has nothing
to do meanwhile, looks after it: it ends a block whose time is over, whatever the user's thread or loop does. It also
commits the blocks of event loops, which need a thread for that, and then has the right to open the next one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from math import inf
from typing import Any

from holdfast.database.sqlite.block import SqliteTransaction
from holdfast.database.sqlite.connection import BlockConnection, WriteConnection
from holdfast.database.sqlite.file_locks import FileLock
from holdfast.database.sqlite.write_queue import (
    LoopWriteRequest,
    ThreadWriteRequest,
    Work,
    WriteQueue,
    WriteRequest,
    no_work,
    resolve,
    resolve_in_loop,
)
from holdfast.database.tx import First, Last, R, Tx
from holdfast.errors import Busy, StoreError, Unavailable, UnknownOutcome
from holdfast.logging import reason_of, say
from holdfast.runtime import Runtime, Stepper
from holdfast.threads import NO_THREAD, in_slices

MOST_TOGETHER = 1000  # items; bounds how long the first caller of a group waits for the last
DISTURBED_SECONDS = 1.0
GRACE_SECONDS = 30.0  # for what has begun by its deadline; after that nobody knows its outcome

logger = logging.getLogger(__name__)


class Writer:
    """Writes for callers of both colours; the thread is made when first needed."""

    def __init__(self, connection: WriteConnection, lock: FileLock, runtime: Runtime, seconds: float) -> None:
        self._connection = connection
        self._block_connection = BlockConnection(connection)
        self._file_lock = lock
        self._runtime = runtime
        self._seconds = seconds
        self._queue = WriteQueue()
        self._thread_lock = threading.Lock()
        self._shell: Stepper | None = None
        self._shell_change = threading.Lock()
        self._block: SqliteTransaction | None = None
        self._looks_at: float | None = None
        """When the shell will look after the block, without being woken."""
        self._block_change = threading.Lock()
        self._ends: deque[tuple[SqliteTransaction, Last | None, LoopWriteRequest[None]]] = deque()
        """The blocks that the shell is to commit: there is one, and perhaps others whose time was over."""
        self._answers: list[WriteRequest[Any]] = []
        """Requests for blocks, and for their commits, that are done and whose callers the shell has yet to wake."""
        self._disturbed_until = 0.0
        """Until when no event loop opens blocks itself, because a program writes that does not know our lock."""
        self._is_left_open = False
        """Whether `close` has given up, because another process held the right to write."""
        self._is_log_to_be_emptied = False

    async def write(self, work: Work[R]) -> R:
        """Run *work* in a write transaction, by the shell."""
        request = LoopWriteRequest(work, self._runtime.monotonic() + self._seconds)
        request.timer = request.loop.call_later(self._seconds, self._time_out, request)
        try:
            self._enqueue(request)
            return await request.future
        finally:
            request.timer.cancel()
            self._queue.withdraw(request)

    def write_sync(self, work: Work[R]) -> R:
        """Run *work* in a write transaction: here if the right to write is free, otherwise by the shell."""
        until = self._runtime.monotonic() + self._seconds
        if not self._take_right_if_free():
            return self._wait(ThreadWriteRequest(work, until, self._runtime.signal()))
        try:
            with self._connection:
                return self._connection.write_alone(work, lambda: self._runtime.monotonic() < until)
        finally:
            self._release_both()

    async def begin(self, seconds: float, first: First | None = None) -> SqliteTransaction:
        """Wait for the right to write, as long as it takes, and open a block that has it for *seconds*.

        *First* runs in it before anybody has it, by whoever opens it: no hop of its own.
        """
        if not self._queue and (block := self._open_here(seconds, first)) is not None:
            return block
        request: LoopWriteRequest[SqliteTransaction] = LoopWriteRequest(no_work, inf)
        request.discard = lambda: self.give_up(request.result()) if request.error is None else None
        request.seconds, request.first = seconds, first
        try:
            self._enqueue(request)
            return await request.future
        except BaseException:
            if not self._queue.withdraw(request) and request.is_delivered:
                request.discard()
            raise

    def begin_sync(self, seconds: float, first: First | None = None) -> SqliteTransaction:
        """Wait for the right to write, as long as it takes, and open a block, blocking."""
        if not self._take_right_if_free():
            return self._wait_for_block(seconds, first)
        try:
            block = self._open_block(seconds, wanted=lambda: True)
        except BaseException:
            self._release_both()
            raise
        return _run_first(block, first)

    async def commit(self, block: SqliteTransaction, last: Last | None) -> None:
        """Have the shell run *last* in *block* and commit it; a caller who is cancelled waits for the outcome."""
        request: LoopWriteRequest[None] = LoopWriteRequest(no_work, inf)
        outcome: list[BaseException | None] = []
        request.discard = lambda: outcome.append(request.error)
        self._ends.append((block, last, request))
        try:
            self._wake_shell()
        except RuntimeError as error:  # no thread can be made, as at the interpreter's end
            block.roll_back()
            raise Unavailable(NO_THREAD) from error
        cancelled: asyncio.CancelledError | None = None
        while not outcome:  # a shield would do the same, by another turn of the loop
            try:
                await request.future
                break
            except asyncio.CancelledError as error:
                cancelled = error
                if not request.future.cancelled():  # the outcome came first
                    request.future.exception()
                    break
                request.future = request.loop.create_future()
            except BaseException:
                if cancelled is None:
                    raise
                break
        if cancelled is not None:
            raise cancelled  # and hears nothing else; `is_committed` tells

    def commit_here(self, block: SqliteTransaction, last: Last | None) -> bool:
        """Commit a block that has written nothing, in the event loop: there is no disk to wait for; else say False."""
        if not block.is_unchanged or not block.lock_if_free():
            return False
        block.end = self._leave_block
        try:
            block.commit(last)
        finally:
            block.unlock()
            self._serve_here()
        return True

    def give_up(self, block: SqliteTransaction) -> None:
        """Have *block* rolled back soon."""
        block.give_up()
        self._wake_shell()

    def empty_log(self) -> None:
        """Have SQLite's log written back and emptied, soon; if that fails, another time will do as well."""
        self._is_log_to_be_emptied = True
        self._wake_if_needed()

    def close(self) -> None:
        """Let the queued requests end, then let go of connections, lock file and thread, until the next use."""
        if self._queue:
            with suppress(StoreError):  # its forerunners have heard the same
                until = self._runtime.monotonic() + self._seconds
                self._wait(ThreadWriteRequest(_do_nothing, until, self._runtime.signal()))
        if not in_slices(lambda seconds: self._thread_lock.acquire(timeout=seconds), self._longest_wait()):
            self._is_left_open = True  # the shell waits in the kernel, behind a stopped process; it closes afterwards
            return
        try:
            self._is_log_to_be_emptied = False  # the last connection to go does it anyway
            with self._connection:
                self.disconnect()
            self._file_lock.close()
        finally:
            self._release_thread_lock()
        self._stop_shell()
        self._wake_if_needed()  # somebody may have come while the shell went

    def disconnect(self) -> None:
        """Close the connections; the next use opens others."""
        self._connection.close()
        self._block_connection.close()

    @property
    def is_connected(self) -> bool:
        return self._connection.is_connected or self._block_connection.is_connected

    def _step(self) -> float | None:
        """Look after the block that has the right to write, or serve whoever is next."""
        self._commit_blocks()
        if (block := self._block) is not None:
            block.end_if_due()
        is_wanted = bool(self._queue) or self._is_log_to_be_emptied
        if is_wanted and self._thread_lock.acquire(blocking=False):  # else who has it wakes us when he lets go of it
            if self._is_log_to_be_emptied:
                self._answer()
                self._empty_log()
            elif (request := self._queue.next_block()) is not None:
                self._open_next(request)
            else:
                self._answer()
                self._write_next()
        self._answer()
        return self._next_look()

    def _commit_blocks(self) -> None:
        """Commit the block whose user has left it; one whose time was over before has ended, and says so."""
        while self._ends:
            block, last, request = self._ends.popleft()
            block.end = self._leave_block  # and we go on with who is next
            request.settle(partial(block.commit, last))
            self._answers.append(request)

    def _answer(self) -> None:
        """Tell those whose blocks were committed; together with who is given the next one, that is one wake-up."""
        answers, self._answers = self._answers, []
        resolve(answers)

    def _empty_log(self) -> None:
        """Write SQLite's log back and empty it: under both locks, for it must not happen while others write."""
        self._is_log_to_be_emptied = False
        try:
            with self._file_lock, self._connection:
                self._connection.empty_log()
        except Exception as error:  # noqa: BLE001 - whoever writes next finds out for himself
            say(logger, "sqlite_log_not_emptied", trace=error, reason=reason_of(error))
        finally:
            self._release_thread_lock()

    def _write_next(self) -> None:
        """Write what has gathered, as one group, and tell everybody."""
        requests: list[WriteRequest[Any]] = []
        try:
            with self._file_lock, self._connection:
                self._connection.begin(wanted=lambda: bool(self._queue))
                requests = self._queue.take(MOST_TOGETHER)
                self._connection.write_group(requests, lambda request: self._runtime.monotonic() < request.until)
        except Exception as error:  # noqa: BLE001  those who wait for it hear it, and the shell lives on
            if not requests:
                requests = self._queue.take(MOST_TOGETHER)
                for request in requests:
                    request.error = error
        finally:
            self._close_if_left_open()
            self._release_thread_lock()
        resolve(requests)

    def _close_if_left_open(self) -> None:
        """Let go of the connections of a store whose `close` has given up, unless somebody uses it again."""
        if self._is_left_open and not self._queue:
            self._is_left_open = False
            with self._connection:
                self.disconnect()

    def _open_next(self, request: WriteRequest[Any]) -> None:
        """Open a block for who waits in *request*, and leave him the right to write."""

        def is_wanted() -> bool:
            self._answer()
            return request in self._queue

        try:
            if not self._file_lock.take_if_free():
                self._answer()
                self._file_lock.acquire()
            block = self._open_block(request.seconds, is_wanted)
        except BaseException as error:
            self._release_both()
            request.error = error
            if self._queue.withdraw(request):
                self._answers.append(request)
            if isinstance(error, Exception):  # who waits for it hears it, and the shell lives on
                return
            raise
        request.settle(lambda: _run_first(block, request.first))
        if self._queue.withdraw(request):
            self._answers.append(request)
        else:
            block.roll_back()

    def _open_here(self, seconds: float, first: First | None) -> SqliteTransaction | None:
        """Open a block in the thread of an event loop; None if anything has to be waited for."""
        is_disturbed = self._runtime.monotonic() < self._disturbed_until
        if is_disturbed or not self._block_connection.is_connected or not self._take_locks_if_free():
            return None
        try:
            block = self._open_block(seconds, wanted=lambda: False)
        except Busy:  # a program that does not know our lock writes: to wait for it is for the shell
            self._disturbed_until = self._runtime.monotonic() + DISTURBED_SECONDS
            self._release_both()
            return None
        except BaseException:
            self._release_both()
            raise
        return _run_first(block, first)

    def _serve_here(self) -> None:
        """Open the next block in the event loop where one has just ended, if it is wanted there; or wake the shell."""
        request = self._queue.next_block()
        if isinstance(request, LoopWriteRequest) and request.loop is asyncio.get_running_loop():
            request.settle(lambda: self._open_here(request.seconds, request.first))
            block = request.value
            if (block is not None or request.error is not None) and self._queue.withdraw(request):
                resolve_in_loop([request])
                return
            if block is not None:
                block.roll_back()
        self._wake_if_needed()

    def _open_block(self, seconds: float, wanted: Callable[[], bool]) -> SqliteTransaction:
        connection = self._block_connection
        with ExitStack() as undo:
            undo.enter_context(connection)
            connection.begin(wanted)
            undo.callback(connection.roll_back)
            undo.callback(self._forget_block)
            block = SqliteTransaction(connection, self._runtime.monotonic, seconds, self._block_has_ended)
            self._watch_block(block)
            undo.pop_all()
        return block

    def _watch_block(self, block: SqliteTransaction) -> None:
        """Have the shell look when the time of *block* is over; mostly it will look before that anyway."""
        self._queue.was_block = True
        with self._block_change:
            self._block = block
            is_known = self._looks_at is not None and self._looks_at <= block.until
        if not is_known:
            self._wake_shell()

    def _next_look(self) -> float | None:
        """Tell in how many seconds the shell must look again; a block that has ended leaves its time to the next."""
        now = self._runtime.monotonic()
        with self._block_change:
            if self._block is not None:
                self._looks_at = self._block.until
            elif self._looks_at is not None and self._looks_at <= now:
                self._looks_at = None
            return None if self._looks_at is None else max(0.0, self._looks_at - now)

    def _block_has_ended(self) -> None:
        self._leave_block()
        self._wake_if_needed()

    def _leave_block(self) -> None:
        self._forget_block()
        self._file_lock.release()
        self._thread_lock.release()

    def _forget_block(self) -> None:
        with self._block_change:
            self._block = None

    def _longest_wait(self) -> float:
        """Tell how long it may take until the right to write is free, if nobody stands still."""
        block = self._block
        return self._seconds + (0.0 if block is None else max(0.0, block.until - self._runtime.monotonic()))

    def _enqueue(self, request: WriteRequest[Any]) -> None:
        self._queue.put(request)
        if self._block is not None and self._shell is not None:
            return  # whoever ends the block wakes the shell
        try:
            self._wake_shell()
        except RuntimeError as error:
            raise Unavailable(NO_THREAD) from error

    def _wait(self, request: ThreadWriteRequest[R]) -> R:
        try:
            self._enqueue(request)
            if not request.done.wait(request.until - self._runtime.monotonic()):
                if self._queue.withdraw(request):
                    raise self._busy()
                if not request.done.wait(GRACE_SECONDS):
                    raise self._unknown_outcome()
        finally:
            self._queue.withdraw(request)
        return request.result()

    def _wait_for_block(self, seconds: float, first: First | None) -> SqliteTransaction:
        request: ThreadWriteRequest[SqliteTransaction] = ThreadWriteRequest(no_work, inf, self._runtime.signal())
        request.seconds, request.first = seconds, first
        try:
            self._enqueue(request)
            request.done.wait()
        except BaseException:  # a signal's handler may raise here, as at Ctrl-C
            if not self._queue.withdraw(request) and request.done.wait(GRACE_SECONDS) and request.error is None:
                request.result().roll_back()
            raise
        return request.result()

    def _time_out(self, request: LoopWriteRequest[Any]) -> None:
        if self._queue.withdraw(request):
            request.fail(self._busy())
        else:
            request.timer = request.loop.call_later(GRACE_SECONDS, lambda: request.fail(self._unknown_outcome()))

    def _take_right_if_free(self) -> bool:
        return not self._queue and self._take_locks_if_free()

    def _take_locks_if_free(self) -> bool:
        if not self._thread_lock.acquire(blocking=False):
            return False
        is_ours = False
        try:
            is_ours = self._file_lock.take_if_free()
        finally:
            if not is_ours:
                self._release_thread_lock()
        return is_ours

    def _release_both(self) -> None:
        self._file_lock.release()
        self._release_thread_lock()

    def _release_thread_lock(self) -> None:
        self._thread_lock.release()
        self._wake_if_needed()

    def _wake_if_needed(self) -> None:
        if self._queue or self._ends or self._is_log_to_be_emptied or self._block is not None:
            with suppress(RuntimeError):  # no thread can be made, as at the interpreter's end; whoever waits hears it
                self._wake_shell()

    def _wake_shell(self) -> None:
        with self._shell_change:
            if self._shell is None:
                self._shell = self._runtime.stepper(self._step, "holdfast-writer")
            shell = self._shell
        shell.wake()

    def _stop_shell(self) -> None:
        with self._shell_change:
            shell, self._shell = self._shell, None
        if shell is not None:
            shell.stop()
            self._looks_at = None

    def _busy(self) -> Busy:
        return Busy(
            f"the write lock was not free within {self._seconds:g} s; process {self._file_lock.last_holder()} had it "
            f"last (this process is {os.getpid()}); try again, or check what that process, or another program that "
            "uses the file, is doing"
        )

    def _unknown_outcome(self) -> UnknownOutcome:
        return UnknownOutcome(
            f"the write began, but did not end within {GRACE_SECONDS:g} s after its deadline; it may still be "
            "committed: check that before you write again"
        )


def _run_first(block: SqliteTransaction, first: First | None) -> SqliteTransaction:
    """Give *block* to who has asked for it, after *first* was run in it; if that raises, it has ended."""
    if first is not None:
        try:
            block.run(first)
        except BaseException:
            block.roll_back()
            raise
    return block


async def _do_nothing(tx: Tx) -> None:
    """Stand in the queue and be the last."""
