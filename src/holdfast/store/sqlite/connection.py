"""The connection that writes: how operations that have gathered share one commit, and each still fails alone.

A group is one transaction with a savepoint for each turn (2.7 µs), so that a turn that fails, fails alone.
But a full disk, an I/O error or a failed COMMIT takes the whole transaction away, and no savepoint helps
(M20): then each turn runs again alone, and hears its own outcome. Nothing is told before it is true.

It is used by one thread at a time: by whoever has the right to write.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

from holdfast.crashpoints import reach
from holdfast.errors import Unavailable, UnknownOutcome
from holdfast.store.dialect import Dialect
from holdfast.store.sqlite.file import DatabaseFile
from holdfast.store.sqlite.fork import Gate
from holdfast.store.sqlite.turns import Turn, Work
from holdfast.store.sqlite.tx import SqliteTx, is_busy, primary_code, raise_ours
from holdfast.store.tx import R, Tx, drive

# how often a wait for a program that does not know our lock looks whether it is still wanted
SLICE_SECONDS = 0.05


class WriteConnection:
    """Writes to *file*; connects when first used, and anew after an error that puts a connection in doubt.

    *committed* is called after every commit that changed something, before anybody else may write.
    """

    def __init__(self, file: DatabaseFile, dialect: Dialect, gate: Gate, committed: Callable[[], None]) -> None:
        self._committed = committed
        self._file = file
        self._dialect = dialect
        self._gate = gate
        self._connection: sqlite3.Connection | None = None
        self._is_broken = False
        self._changes = 0

    @property
    def is_connected(self) -> bool:
        """Tell whether the connection is open."""
        return self._connection is not None

    def __enter__(self) -> None:
        """Keep forks away while the connection is used."""
        self._gate.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drop the connection if an error has left it in doubt; let forks happen again."""
        try:
            self._look_at(error)
            if self._is_broken:
                self.close()
        finally:
            self._gate.__exit__(kind, error, trace)

    def begin(self, wanted: Callable[[], bool]) -> None:
        """Begin a transaction; while *wanted* says so, wait for a program that does not know our lock."""
        while True:
            try:
                self._file.check()
                self._connected().execute("BEGIN IMMEDIATE")
                return
            except sqlite3.Error as error:
                if not is_busy(error) or not wanted():
                    raise_ours(error)

    def write_alone(self, work: Work[R], wanted: Callable[[], bool]) -> R:
        """Run *work* in a transaction of its own."""
        self.begin(wanted)
        return self.commit_after(work)

    def write_group(self, turns: Sequence[Turn[Any]], wanted: Callable[[Turn[Any]], bool]) -> None:
        """Run *turns* in the transaction that has begun and commit; if that fails, run each again alone."""
        if len(turns) == 1:
            return turns[0].settle(partial(self.commit_after, turns[0].work))
        try:
            self.commit_after(partial(self._together, turns))
        except BaseException as error:  # noqa: BLE001  whatever it was, each turn finds out for itself
            for turn in turns:
                turn.settle(partial(self.write_alone, turn.work, partial(wanted, turn)))
            # a COMMIT in doubt is buried by the next one that succeeds; without one it may rise at recovery
            if isinstance(error, UnknownOutcome) and all(turn.error for turn in turns):
                for turn in turns:
                    turn.error = error

    def commit_after(self, work: Work[R]) -> R:
        """Run *work* in the transaction that has begun, and commit it; undo it if either fails."""
        connection = self._connected()
        try:
            value = drive(work(SqliteTx(connection, self._dialect)))
            reach("group.before_commit")
            self._commit(connection)
        except BaseException as error:
            self._look_at(error)
            self._roll_back(connection)
            raise
        reach("group.after_commit")
        return value

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        connection, self._connection, self._is_broken = self._connection, None, False
        if connection is not None:
            connection.close()

    async def _together(self, turns: Sequence[Turn[Any]], tx: Tx) -> None:
        for turn in turns:
            await tx.execute("SAVEPOINT holdfast_turn")
            turn.settle(partial(_run, turn.work, tx))
            if turn.error is not None:
                self._look_at(turn.error)
                if not self._connected().in_transaction:
                    raise turn.error
                await tx.execute("ROLLBACK TO holdfast_turn")
            await tx.execute("RELEASE holdfast_turn")

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._file.connect_to_write(SLICE_SECONDS)
            self._changes = 0
        return self._connection

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if primary_code(error) == sqlite3.SQLITE_IOERR:
                raise UnknownOutcome(
                    f"the disk reported an error at COMMIT, which happened wholly or not at all; "
                    f"read before you do it again (SQLite: {error})"
                ) from error
            raise_ours(error)
        if connection.total_changes != self._changes:
            self._changes = connection.total_changes
            self._committed()

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        if connection.in_transaction:  # a full disk, for one, has ended it
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        self._is_broken |= connection.in_transaction

    def _look_at(self, error: BaseException | None) -> None:
        self._is_broken |= isinstance(error, Unavailable | UnknownOutcome)


def _run(work: Work[R], tx: Tx) -> R:
    return drive(work(tx))
