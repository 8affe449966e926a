"""The connection that writes: how operations that have gathered share one commit, and each still fails alone.

A group is one transaction with a savepoint for each request (2.7 µs), so that a request that fails, fails alone.
Requests with one list operation are one operation on all of their items, which costs a third; if it fails, each is run
by itself. But a full disk, an I/O error or a failed COMMIT takes the whole transaction away, and no savepoint helps
(M20): then each request runs again alone, and hears its own outcome. Nothing is told before it is true.

It is used by one thread at a time: by whoever has the right to write.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from math import inf
from types import TracebackType
from typing import Any, NoReturn, cast

from holdfast.database.dialect import Dialect
from holdfast.database.sqlite.file import DatabaseFile
from holdfast.database.sqlite.fork import ForkGate
from holdfast.database.sqlite.guarded import GuardedConnection
from holdfast.database.sqlite.tx import SqliteTx, is_busy, primary_code, raise_ours, translated
from holdfast.database.sqlite.write_queue import ListWork, Work, WriteRequest
from holdfast.database.tx import R, Tx, drive
from holdfast.errors import Unavailable, UnknownOutcome
from holdfast.fault_points import after_commit, before_commit

# how often a wait for a program that does not know our lock looks whether it is still wanted
SLICE_SECONDS = 0.05
BLOCK_SLICE_SECONDS = 0.01  # an event loop may be what looks

DOUBTFUL = (Unavailable, UnknownOutcome)
"""The errors after which a connection is not used again."""


class WriteConnection:
    """Writes to *file*; connects when first used, and anew after an error that puts a connection in doubt.

    *committed* is called after every commit that changed something, before anybody else may write.
    """

    def __init__(self, file: DatabaseFile, dialect: Dialect, gate: ForkGate, committed: Callable[[], None]) -> None:
        self._committed = committed
        self._file = file
        self._dialect = dialect
        self._gate = gate
        self._connection: sqlite3.Connection | None = None
        self._is_broken = False
        self._changes = 0
        self._open: set[WriteConnection] = set()
        """Those of this process that are connected; the last one to go takes SQLite's own files along."""

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    @property
    def is_unchanged(self) -> bool:
        """Tell whether nothing was written since the last commit; a change of the schema does not count."""
        return self._connection is not None and self._connection.total_changes == self._changes

    def __enter__(self) -> None:
        """Keep forks away while the connection is used."""
        self._gate.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drop the connection if an error has left it in doubt; let forks happen again."""
        try:
            self._is_broken |= isinstance(error, DOUBTFUL)
            if self._is_broken:
                self.close()
        finally:
            self._gate.__exit__(kind, error, trace)

    def begin(self, wanted: Callable[[], bool]) -> None:
        """Begin a transaction; while *wanted* says so, wait for a program that does not know our lock."""
        while True:
            try:
                self._file.check()
                self._file.check_beside()
                self._do(self._connected(), "BEGIN IMMEDIATE")
                self._file.remember_beside()
                return
            except sqlite3.Error as error:
                if not is_busy(error) or not wanted():
                    raise_ours(error)

    def write_alone(self, work: Work[R], wanted: Callable[[], bool]) -> R:
        """Run *work* in a transaction of its own."""
        self.begin(wanted)
        return self.commit_after(work)

    def write_group(self, requests: Sequence[WriteRequest[Any]], wanted: Callable[[WriteRequest[Any]], bool]) -> None:
        """Run *requests* in the transaction that has begun and commit; if that fails, run each again alone."""
        if len(requests) == 1:
            return requests[0].settle(partial(self.commit_after, requests[0].work))
        try:
            tx = SqliteTx(self._connected(), self._dialect)
            self._commit_after(partial(self._run_together, requests), tx)
        except BaseException as error:  # noqa: BLE001  whatever it was, each request finds out for itself
            for request in requests:
                request.settle(partial(self.write_alone, request.work, partial(wanted, request)))
            # a COMMIT in doubt is buried by the next one that succeeds; without one it may rise at recovery
            if isinstance(error, UnknownOutcome) and all(request.error for request in requests):
                for request in requests:
                    request.error = error
        else:
            after_commit(tx)

    def commit_after(self, work: Work[R]) -> R:
        """Run *work* in the transaction that has begun, and commit it; undo it if either fails."""
        tx = SqliteTx(self._connected(), self._dialect)
        value = self._commit_after(work, tx)
        after_commit(tx)
        return value

    def _commit_after(self, work: Work[R], tx: SqliteTx) -> R:
        try:
            value = drive(work(tx))
            before_commit(tx)
            self.commit()
        except BaseException as error:
            self._is_broken |= isinstance(error, DOUBTFUL)
            self.roll_back()
            raise
        return value

    def empty_log(self) -> None:
        """Write the log back and empty it; whoever reads from it is waited for, a moment."""
        self._file.check()
        self._file.check_beside()
        with translated():
            self._connected().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        connection, self._connection, self._is_broken = self._connection, None, False
        if connection is not None:
            self._close_connection(connection)
            self._open.discard(self)
            if not self._open:
                self._file.forget_beside()

    async def _run_together(self, requests: Sequence[WriteRequest[Any]], tx: Tx) -> None:
        for alike in _grouped(requests):
            if len(alike) == 1 or not await self._run_as_one(alike, tx):
                for request in alike:
                    await self._run_in_savepoint(request, tx)

    async def _run_as_one(self, requests: Sequence[WriteRequest[Any]], tx: Tx) -> bool:
        """Run *requests*, which have one list operation, on all of their items; tell whether that went well."""
        works = [cast("ListWork[Any, Any]", request.work) for request in requests]
        items = [item for work in works for item in work.items]
        union: WriteRequest[Sequence[Any]] = WriteRequest(ListWork(works[0].operation, items), inf)
        await self._run_in_savepoint(union, tx)
        if union.error is not None:
            return False
        results = iter(union.result())
        for request, work in zip(requests, works, strict=True):
            request.succeed(list(islice(results, len(work.items))))
        return True

    async def _run_in_savepoint(self, request: WriteRequest[Any], tx: Tx) -> None:
        """Run *request*, and undo what it did if it fails."""
        await tx.execute("SAVEPOINT holdfast_turn")
        request.settle(lambda: drive(request.work(tx)))
        if request.error is not None:
            self._is_broken |= isinstance(request.error, DOUBTFUL)
            if not self._connected().in_transaction:
                raise request.error
            await tx.execute("ROLLBACK TO holdfast_turn")
        await tx.execute("RELEASE holdfast_turn")

    def commit(self) -> None:
        """Commit the transaction that has begun; whatever is raised, look whether it is still open."""
        connection = self._connected()
        try:
            self._do(connection, "COMMIT")
        except sqlite3.Error as error:
            if primary_code(error) == sqlite3.SQLITE_IOERR:
                raise UnknownOutcome(
                    f"the disk reported an error at COMMIT, which happened wholly or not at all; "
                    f"read before you do it again (SQLite: {error})"
                ) from error
            self._raise(error)
        if connection.total_changes != self._changes:
            self._changes = connection.total_changes
            self._committed()

    def roll_back(self) -> None:
        """Undo the transaction, if there still is one; never raises."""
        connection = self._connected()
        if connection.in_transaction:  # a full disk, for one, has ended it
            with suppress(sqlite3.Error):
                self._do(connection, "ROLLBACK")
        self._is_broken |= connection.in_transaction

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._connect()
            self._open.add(self)
            self._changes = 0
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        return self._file.connect_to_write(SLICE_SECONDS)

    def _do(self, connection: sqlite3.Connection, sql: str) -> None:
        connection.execute(sql)

    def _close_connection(self, connection: sqlite3.Connection) -> None:
        connection.close()

    def _raise(self, error: sqlite3.Error) -> NoReturn:
        raise_ours(error)


def _grouped(requests: Sequence[WriteRequest[Any]]) -> list[list[WriteRequest[Any]]]:
    """Put those together that can be run as one, in the order of their first."""
    found: dict[object, list[WriteRequest[Any]]] = {}
    for request in requests:
        work = request.work
        found.setdefault(work.operation if isinstance(work, ListWork) and work.is_sociable else request, []).append(
            request
        )
    return list(found.values())


class BlockConnection(WriteConnection):
    """The connection of blocks, beside *other*, which writes for everybody else; a user's code may be given it."""

    def __init__(self, other: WriteConnection) -> None:
        super().__init__(other._file, other._dialect, other._gate, other._committed)
        self._open = other._open

    @property
    def guarded(self) -> GuardedConnection:
        """The connection itself."""
        return cast("GuardedConnection", self._connected())

    def make_tx(self) -> SqliteTx:
        """Make the transaction that has begun into one that our operations can use, under the block's lock."""
        return SqliteTx(self.guarded, self._dialect, self.guarded.plain_cursor())

    def doubt(self) -> None:
        """Have the connection closed when it comes back: a user may have kept it, or changed what others would find."""
        self._is_broken = True

    def _connect(self) -> sqlite3.Connection:
        return self._file.connect_for_block(BLOCK_SLICE_SECONDS)

    def _do(self, connection: sqlite3.Connection, sql: str) -> None:
        cast("GuardedConnection", connection).do_as_owner(sql)

    def _close_connection(self, connection: sqlite3.Connection) -> None:
        cast("GuardedConnection", connection).close_as_owner()

    def _raise(self, error: sqlite3.Error) -> NoReturn:
        """Show a constraint that was checked at COMMIT as it is: it is the user's."""
        if isinstance(error, sqlite3.IntegrityError):
            raise error
        raise_ours(error)
