"""Read connections: each read sees one consistent view, and no writer makes it wait."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.database.dialect import Dialect
from holdfast.database.single_statement import MultiStatementReads
from holdfast.database.sqlite.file import DatabaseFile
from holdfast.database.sqlite.fork import ForkGate
from holdfast.database.sqlite.tx import SqliteTx, translated
from holdfast.database.sqlite.write_queue import Work
from holdfast.database.tx import R, drive
from holdfast.errors import Busy, StoreError
from holdfast.runtime import Runtime

MOST_IDLE = 8
# A read is ended by a progress handler, which runs in the reading thread: nobody has to watch, and no late
# `interrupt()` can hit the connection's next user
INSTRUCTIONS_BETWEEN_LOOKS = 10_000


class Reader:
    """A connection that reads."""

    def __init__(self, connection: sqlite3.Connection, dialect: Dialect, monotonic: Callable[[], float]) -> None:
        self.is_broken = False
        self._connection = connection
        self._tx = SqliteTx(connection, dialect)
        self._until = 0.0
        connection.set_progress_handler(lambda: monotonic() > self._until, INSTRUCTIONS_BETWEEN_LOOKS)

    def read(
        self, operation: Callable[..., Any], work: Work[R], multi_statement: MultiStatementReads, until: float
    ) -> R:
        """Run *work*, which is *operation*, over one consistent view; it is interrupted at the instant *until*."""
        self._until = until
        try:
            return drive(multi_statement.read(operation, work, self._tx, partial(self._in_transaction, work)))
        except StoreError:
            self.is_broken = True
            raise

    async def _in_transaction(self, work: Work[R]) -> R:
        self._connection.execute("BEGIN")
        try:
            return await work(self._tx)
        finally:
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class Readers:
    """The read connections to *file*: as many as read at once, and the one used last is used next."""

    def __init__(self, file: DatabaseFile, dialect: Dialect, runtime: Runtime, gate: ForkGate) -> None:
        self._file = file
        self._dialect = dialect
        self._monotonic = runtime.monotonic
        self._gate = gate
        self._idle: list[Reader] = []
        self._multi_statement = MultiStatementReads()

    def read(self, operation: Callable[..., Any], work: Work[R], until: float) -> R:
        """Run *work*, which is *operation*, over one view; raise `Unavailable` if it is not done by *until*."""
        if (seconds := until - self._monotonic()) <= 0:
            raise Busy("no thread was free to read before the deadline; try again, or read less at once")
        with self._gate:
            self._file.check()
            idle = self._idle
            try:
                reader = idle.pop()
            except IndexError:
                self._file.check_newcomer()
                with translated():
                    reader = Reader(self._file.connect_to_read(seconds), self._dialect, self._monotonic)
            try:
                return reader.read(operation, work, self._multi_statement, until)
            finally:
                if reader.is_broken or idle is not self._idle or len(idle) >= MOST_IDLE:
                    reader.close()
                else:
                    idle.append(reader)

    @property
    def is_connected(self) -> bool:
        """Tell whether any connection is open that is not in use."""
        return bool(self._idle)

    def close(self) -> None:
        """Close the connections; one that is in use is closed when it comes back."""
        idle, self._idle = self._idle, []
        for reader in idle:
            reader.close()
