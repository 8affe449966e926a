"""The writer: who may write, and the queue of those who want to.

The right to write is a lock in this process and a fair lock between processes, taken in this order. Its usual
holder is the shell, a thread that runs `_step` when woken, and the only one that ever *waits* for other
processes. A blocking caller who finds the right free takes it and writes in his own thread: the hop to
another costs more than the insert. Everybody else queues a turn; whoever lets go of the right wakes the shell
for them.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Any

from holdfast.errors import Busy, StoreError, UnknownOutcome
from holdfast.store.sqlite.connection import WriteConnection
from holdfast.store.sqlite.filelock import FileLock
from holdfast.store.sqlite.turns import LoopTurn, ThreadTurn, Turn, Turns, Work, tell
from holdfast.store.tx import R, Tx
from holdfast.surroundings import Shell, Surroundings

MOST_TOGETHER = 500  # bounds how long the first caller of a group waits for the last
GRACE_SECONDS = 30.0  # for what has begun by its deadline; after that nobody knows its outcome


class Writer:
    """Writes for callers of both colours; the thread is made when first needed."""

    def __init__(self, connection: WriteConnection, lock: FileLock, surroundings: Surroundings, seconds: float) -> None:
        self._connection = connection
        self._between_processes = lock
        self._surroundings = surroundings
        self._seconds = seconds
        self._turns = Turns()
        self._right = threading.Lock()
        self._shell: Shell | None = None
        self._shell_change = threading.Lock()

    async def write(self, work: Work[R]) -> R:
        """Run *work* in a write transaction, by the shell."""
        turn = LoopTurn(work, self._deadline())
        turn.timer = turn.loop.call_later(self._seconds, self._be_late, turn)
        try:
            self._queue(turn)
            return await turn.future
        finally:
            turn.timer.cancel()
            self._turns.withdraw(turn)

    def write_sync(self, work: Work[R]) -> R:
        """Run *work* in a write transaction: here if the right to write is free, otherwise by the shell."""
        until = self._deadline()
        if not self._take_right_if_free():
            return self._wait(ThreadTurn(work, until, self._surroundings.signal()))
        try:
            with self._connection:
                return self._connection.write_alone(work, lambda: self._surroundings.monotonic() < until)
        finally:
            self._between_processes.release()
            self._release_right()

    def close(self) -> None:
        """Let the queued turns end, then let go of connection, lock file and thread, until the next use."""
        if self._turns:
            with suppress(StoreError, RuntimeError):  # its forerunners have heard the same
                self._wait(ThreadTurn(_do_nothing, self._deadline(), self._surroundings.signal()))
        if not self._right.acquire(timeout=self._seconds):
            return  # the shell waits in the kernel, behind a stopped process; it is a daemon, and harmless
        try:
            with self._connection:
                self._connection.close()
            self._between_processes.close()
        finally:
            self._release_right()
        self._stop_shell()
        self._serve_who_waits()  # somebody may have come while the shell went

    def _step(self) -> None:
        """Write what has gathered, as one group, and tell everybody."""
        if not self._turns or not self._right.acquire(blocking=False):
            return  # whoever has the right wakes us when he lets go of it
        try:
            turns = self._write_gathered()
        finally:
            self._release_right()
        tell(turns)

    def _write_gathered(self) -> list[Turn[Any]]:
        turns: list[Turn[Any]] = []
        try:
            with self._between_processes, self._connection:
                self._connection.begin(wanted=lambda: bool(self._turns))
                turns = self._turns.take(MOST_TOGETHER)
                self._connection.write_group(turns, self._is_in_time)
        except Exception as error:  # noqa: BLE001  those who wait for it hear it, and the shell lives on
            if not turns:
                turns = self._turns.take(MOST_TOGETHER)
                for turn in turns:
                    turn.error = error
        return turns

    def _queue(self, turn: Turn[Any]) -> None:
        self._turns.put(turn)
        self._wake_shell()

    def _wait(self, turn: ThreadTurn[R]) -> R:
        try:
            self._queue(turn)
            if not turn.told.wait(turn.until - self._surroundings.monotonic()):
                if self._turns.withdraw(turn):
                    raise self._busy()
                if not turn.told.wait(GRACE_SECONDS):
                    raise self._lost_sight()
        finally:
            self._turns.withdraw(turn)
        return turn.result()

    def _be_late(self, turn: LoopTurn[Any]) -> None:
        if self._turns.withdraw(turn):
            turn.fail(self._busy())
        else:
            turn.timer = turn.loop.call_later(GRACE_SECONDS, lambda: turn.fail(self._lost_sight()))

    def _deadline(self) -> float:
        return self._surroundings.monotonic() + self._seconds

    def _is_in_time(self, turn: Turn[Any]) -> bool:
        return self._surroundings.monotonic() < turn.until

    def _take_right_if_free(self) -> bool:
        if self._turns or not self._right.acquire(blocking=False):
            return False
        is_ours = False
        try:
            is_ours = self._between_processes.take_if_free()
        finally:
            if not is_ours:
                self._release_right()
        return is_ours

    def _release_right(self) -> None:
        self._right.release()
        self._serve_who_waits()

    def _serve_who_waits(self) -> None:
        if self._turns:
            with suppress(RuntimeError):  # no thread can be made, as at the interpreter's end; whoever waits hears it
                self._wake_shell()

    def _wake_shell(self) -> None:
        with self._shell_change:
            if self._shell is None:
                self._shell = self._surroundings.shell(self._step, "holdfast-writer")
            shell = self._shell
        shell.wake()

    def _stop_shell(self) -> None:
        with self._shell_change:
            shell, self._shell = self._shell, None
        if shell is not None:
            shell.stop()

    def _busy(self) -> Busy:
        return Busy(
            f"the right to write was not free within {self._seconds:g} s; process "
            f"{self._between_processes.last_holder()} had it last (this is {os.getpid()}); "
            f"try again, or see what that one, or a program beside it, does"
        )

    def _lost_sight(self) -> UnknownOutcome:
        return UnknownOutcome(
            f"the write had begun and was not done {GRACE_SECONDS:g} s after its deadline; "
            f"it may still happen: read before you do it again"
        )


async def _do_nothing(tx: Tx) -> None:
    """Stand in the queue and be the last."""
