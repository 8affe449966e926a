"""`SqliteStore`: our tables in one SQLite file, for async and blocking callers, threads and processes."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import current_block
from holdfast.database import migrations
from holdfast.database.dialect import Dialect, SqliteDialect
from holdfast.database.hints import HintListener, Hints, OnHint
from holdfast.database.sqlite.block import AsyncSqliteTransaction, BlockingSqliteTransaction
from holdfast.database.sqlite.connection import WriteConnection
from holdfast.database.sqlite.file import DatabaseFile
from holdfast.database.sqlite.file_locks import FileLock
from holdfast.database.sqlite.fork import ForkGate, keep_for_ever, watch_forks
from holdfast.database.sqlite.readers import Readers
from holdfast.database.sqlite.statement_times import StatementTimes
from holdfast.database.sqlite.wal import LogLength, LogWatch
from holdfast.database.sqlite.write_queue import ListWork
from holdfast.database.sqlite.writer import Writer
from holdfast.database.tx import Database, First, ListOperation, OpenTx, Operation, P, R, T, Tx, bound
from holdfast.errors import Busy, Misuse, NotMigrated
from holdfast.logging import say
from holdfast.runtime import Runtime
from holdfast.threads import in_slices

if TYPE_CHECKING:
    from holdfast.settings import Settings

logger = logging.getLogger(__name__)

FORK_SECONDS = 10.0  # how long a fork waits for threads that are using the database


class SqliteStore:
    """A store on the file *path*, which it creates and brings up to date when first used.

    Of *settings* it heeds `synchronous`, `transaction_seconds` and `deadline_seconds`: what has not begun by then
    raises `Busy` and never happens. *clock* gives milliseconds in place of the database's clock, in a simulation. One
    that *creates* nothing leaves the file as it is until `migrate` is called: it raises if there is none, or if its
    tables are older. One store serves any number of threads and event loops, and may be used on both sides of a fork.
    """

    dialect: Dialect
    database: Database = "sqlite"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        settings: Settings | None = None,
        runtime: Runtime | None = None,
        clock: Callable[[], int] | None = None,
        creates: bool = True,
    ) -> None:
        if settings is None:
            from holdfast.settings import Settings

            settings = Settings()
        self.dialect = SqliteDialect() if clock is None else SqliteDialect(now="holdfast_now()")
        self._file = DatabaseFile(os.fspath(path), settings.synchronous, clock)
        self._creates = creates
        self._runtime = runtime or Runtime()
        self._seconds = settings.deadline_seconds
        self._block_seconds = settings.transaction_seconds
        self._state = self._make_state()
        watch_forks(self)

    async def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in a write transaction, which it may share with others."""
        state = await self._opened()
        return await state.writer.write(bound(operation, *args, **kwargs))

    def run_sync(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._opened_sync().writer.write_sync(bound(operation, *args, **kwargs))

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        state = await self._opened()
        until = self._deadline()
        return await self._runtime.threads.call(
            lambda: state.readers.read(operation, lambda tx: operation(tx, *args, **kwargs), until)
        )

    def read_sync(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        state = self._opened_sync()
        return state.readers.read(operation, lambda tx: operation(tx, *args, **kwargs), self._deadline())

    async def gather(self, operation: ListOperation[T, R], items: Sequence[T]) -> Sequence[R]:
        """Run a list operation on *items*, as one with those of whoever else waits."""
        state = await self._opened()
        return await state.writer.write(ListWork(operation, items))

    def gather_sync(self, operation: ListOperation[T, R], items: Sequence[T]) -> Sequence[R]:
        """Run a list operation on *items*, as one with those of whoever else waits, blocking."""
        return self._opened_sync().writer.write_sync(ListWork(operation, items))

    async def begin(self, lease_seconds: float, first: First | None = None) -> OpenTx:
        """Wait for the right to write and open a transaction that keeps it, for `transaction_seconds` at most."""
        state = await self._opened()
        block = await state.writer.begin(min(self._block_seconds, lease_seconds), first)
        return AsyncSqliteTransaction(block, self._runtime.threads, state.writer, state.times)

    def begin_sync(self, lease_seconds: float, first: First | None = None) -> OpenTx:
        """Wait for the right to write and open a transaction that keeps it, blocking."""
        state = self._opened_sync()
        return BlockingSqliteTransaction(state.writer.begin_sync(min(self._block_seconds, lease_seconds), first))

    async def open(self) -> None:
        """Create the file if there is none, and bring its tables up to date; the first use does it too."""
        await self._runtime.threads.call(self.open_sync)

    def open_sync(self) -> None:
        """Create the file if there is none, and bring its tables up to date, blocking."""
        self._open(creates=self._creates, takes_steps=self._creates)

    async def migrate(self) -> list[str]:
        """Bring the tables up to date; return the names of the steps that were taken."""
        return await self._runtime.threads.call(self.migrate_sync)

    def migrate_sync(self, *, anew: bool = True) -> list[str]:
        """Bring the tables up to date, blocking; raise if there is no file of ours, unless *anew*."""
        return self._open(creates=anew, takes_steps=True)

    def _open(self, *, creates: bool, takes_steps: bool) -> list[str]:
        state = self._usable_state()
        if not in_slices(lambda seconds: state.opening.acquire(timeout=seconds), self._seconds):
            raise Busy(f"another thread has been opening the database for {self._seconds:g} s; try again")
        try:
            if state.is_open:
                return []
            is_new = self._file.prepare(creates=creates)
            taken = self._bring_up_to_date(state, takes_steps=takes_steps, anew=creates)
            state.is_open = True
            if is_new:
                say(logger, "sqlite_created", path=self._file.path, version=sqlite3.sqlite_version)
            else:
                say(logger, "sqlite_opened", path=self._file.path, version=sqlite3.sqlite_version)
            return taken
        finally:
            state.opening.release()

    def standing_sync(self) -> migrations.SchemaVersion:
        """Tell how far the tables have been brought; makes and changes nothing."""
        if not Path(self._file.path).exists():
            return migrations.SchemaVersion(0, 0)
        return self.look_sync(_standing)

    def look_sync(self, operation: Callable[[Tx], Coroutine[Any, Any, R]]) -> R:
        """Run *operation*, which only reads, whatever release the tables are of; makes and changes nothing."""
        return self._usable_state().readers.read(operation, operation, self._deadline())

    def tidy(self) -> None:
        """Have SQLite's log emptied, soon, if it has grown long."""
        state = self._usable_state()
        if state.is_open:
            state.log_length.look()

    async def close(self) -> None:
        """Let the queued writes end, then let go of connections and thread; the next use opens them again."""
        await self._runtime.threads.call(self.close_sync)

    def close_sync(self) -> None:
        """Let the queued writes end, then let go of connections and thread, blocking."""
        if self._state.process != os.getpid():
            self.after_fork_in_child()
        state = self._state
        state.is_open = False
        state.writer.close()
        with state.gate:
            state.readers.close()

    @property
    def path(self) -> str:
        """The file, by its real name."""
        return self._file.path

    def watch(self, on_hint: OnHint, *, follows_log: bool = False) -> HintListener:
        """Have *on_hint* called after our own commits, and when the log file shows those of others."""
        return self._usable_state().hints.watch(on_hint, follows_log=follows_log)

    def last_writer(self) -> int | None:
        """Give the process that had the right to write last, or has it."""
        return self._usable_state().lock.last_holder()

    def before_fork(self) -> None:
        """Keep threads out and close the connections, so that none crosses."""
        if self._state.gate.shut(0 if current_block.is_inside() else FORK_SECONDS):  # a block does not wait for itself
            self._state.writer.disconnect()
            self._state.readers.close()

    def after_fork_in_parent(self) -> None:
        """Let threads in again."""
        self._state.gate.open()

    def after_fork_in_child(self) -> None:
        """Begin anew; keep what the parent uses from being closed here."""
        left, self._state = self._state, self._make_state()
        left.lock.close()
        if left.is_connected or left.is_spoilt:
            self._state.is_spoilt = True
            keep_for_ever(left)

    async def _opened(self) -> _SqliteState:
        state = self._usable_state()
        if not state.is_open:
            await self.open()
        return state

    def _opened_sync(self) -> _SqliteState:
        state = self._usable_state()
        if not state.is_open:
            self.open_sync()
        return state

    def _usable_state(self) -> _SqliteState:
        if self._state.process != os.getpid():  # forked behind Python's back
            self.after_fork_in_child()
        if self._state.is_spoilt:
            raise Misuse(
                "the database was in use when this process was forked, and SQLite does not allow that; "
                "close hf before you fork, or start the process with spawn"
            )
        return self._state

    def _make_state(self) -> _SqliteState:
        return _SqliteState(self._file, self.dialect, self._runtime, self._seconds)

    def _deadline(self) -> float:
        return self._runtime.monotonic() + self._seconds

    def _bring_up_to_date(self, state: _SqliteState, *, takes_steps: bool, anew: bool) -> list[str]:
        try:
            state.readers.read(_check, _check, self._deadline())
            return []  # the usual case does without the right to write
        except NotMigrated:
            if not takes_steps:
                raise
            step = bound(migrations.step, "sqlite", anew=anew)
            taken = list(iter(lambda: state.writer.write_sync(step), None))
            state.readers.read(_check, _check, self._deadline())
            return taken


async def _check(tx: Tx) -> None:
    await migrations.check(tx, "sqlite")


async def _standing(tx: Tx) -> migrations.SchemaVersion:
    return await migrations.standing(tx, "sqlite")


class _SqliteState:
    """Everything of a store that belongs to one process."""

    def __init__(self, file: DatabaseFile, dialect: Dialect, runtime: Runtime, seconds: float) -> None:
        self.process = os.getpid()
        self.is_open = False
        self.is_spoilt = False
        self.opening = threading.Lock()
        self.gate = ForkGate()
        self.lock = FileLock(f"{file.path}-holdfast-lock", model=file.path)
        self.log_watch: LogWatch
        self.hints = Hints(partial(self._watch_log, file.path, runtime))
        self.connection = WriteConnection(file, dialect, self.gate, self._note_commit)
        self.writer = Writer(self.connection, self.lock, runtime, seconds)
        self.readers = Readers(file, dialect, runtime, self.gate)
        self.times = StatementTimes()
        self.log_length = LogLength(f"{file.path}-wal", runtime.monotonic, self.writer.empty_log)

    def _watch_log(self, path: str, runtime: Runtime, notify: OnHint) -> LogWatch:
        self.log_watch = LogWatch(path, runtime, notify)
        return self.log_watch

    def _note_commit(self) -> None:
        if self.hints.is_wanted:
            self.log_watch.note_commit()

    @property
    def is_connected(self) -> bool:
        """Tell whether a connection is open, in use or not."""
        return self.gate.is_used or self.writer.is_connected or self.readers.is_connected
