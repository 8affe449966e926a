"""The SQLite file as a simulated process sees it: it takes time, it may fail, somebody else may have it locked.

The file, its locks and its transactions are real. What is simulated is the waiting, which is virtual, the lock between
processes, and trouble: an outage, a full disk at COMMIT, a COMMIT whose answer is lost.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.database.sqlite.file import DatabaseFile
from holdfast.database.sqlite.guarded import GuardedConnection
from tests.simulation.virtual import Fibre, Killed, Machine, VirtualLoop

BUSY_SLICE = 0.5


class Owner(Protocol):
    """Whose connection it is."""

    outage_until: float
    """When an outage that only it suffers is over."""


@dataclass
class Weather:
    """What is wrong with the disk just now, for everybody; shares are of all calls."""

    outage_until: float = 0.0
    fails: float = 0.0
    lost_answers: float = 0.0
    slow: float = 0.05
    """The longest that a call takes on an ordinary day."""


@dataclass
class Disk:
    """What the simulated processes share: the file, its lock, and the weather."""

    path: str
    machine: Machine
    clock: Callable[[], int]
    after_commit: Callable[[Owner], None]
    weather: Weather = field(default_factory=Weather)
    commits: int = 0
    strangers: int = 0
    """How many hold SQLite's write lock without knowing ours."""
    holder: VirtualLoop | None = None
    held_since: float = 0.0
    after_hold: Callable[[float], None] = lambda seconds: None
    """Is told how long somebody has had the right to write."""
    queue: deque[Fibre] = field(default_factory=deque)
    reached: Callable[[str], None] = lambda what: None

    def latency(self) -> float:
        """Draw how long a call takes: mostly nothing, now and then long."""
        chance = self.machine.chance
        return chance.random() * self.weather.slow * (10 if chance.random() < 0.03 else 1)

    def is_free(self) -> bool:
        """Tell, most of the time, that a write can be done at once, if it can."""
        return self.holder is None and not self.queue and not self.strangers and self.machine.chance.random() < 0.75

    def take(self, loop: VirtualLoop) -> None:
        """Give the right to write to a process."""
        self.holder, self.held_since = loop, self.machine.now

    def let_go(self) -> None:
        """Take it back."""
        self.holder = None
        self.after_hold(self.machine.now - self.held_since)

    def committed(self, owner: Owner) -> None:
        """Note a commit."""
        self.commits += 1
        self.after_commit(owner)

    def pause(self, seconds: float) -> None:
        """Let time pass for the thread that calls; others go on."""
        if self.machine.is_hasty:
            return
        fibre = self.machine.fibre
        assert fibre is not None, "a loop must not block"
        fibre.loop.call_later(seconds, fibre.resume)
        fibre.wait()

    def is_out(self, owner: Owner) -> bool:
        """Tell whether a call of *owner* fails now."""
        until = max(self.weather.outage_until, owner.outage_until)
        return self.machine.now < until or self._happens(self.weather.fails)

    def loses_answer(self) -> bool:
        """Tell whether a COMMIT is to have no answer."""
        return self._happens(self.weather.lost_answers)

    def _happens(self, share: float) -> bool:
        return share > 0 and self.machine.chance.random() < share


class VirtualFileLock:
    """The fair lock between processes, for one of them."""

    def __init__(self, disk: Disk, loop: VirtualLoop) -> None:
        self._disk = disk
        self._loop = loop

    def acquire(self) -> None:
        """Wait until the lock is ours."""
        disk = self._disk
        while disk.holder is not None or (disk.queue and disk.queue[0] is not disk.machine.fibre):
            fibre = disk.machine.fibre
            assert fibre is not None, "a loop must not wait for a lock"
            if fibre not in disk.queue:
                disk.queue.append(fibre)
            try:
                fibre.wait()
            except BaseException:
                disk.queue.remove(fibre)
                _next(disk)
                raise
        if disk.queue:
            disk.queue.popleft()
        disk.take(self._loop)

    __enter__ = acquire

    def take_if_free(self) -> bool:
        """Take the lock, unless somebody has it."""
        if self._disk.holder is not None or self._disk.queue:
            return False
        self._disk.take(self._loop)
        return True

    def release(self, *_: object) -> None:
        """Let go."""
        if self._disk.holder is self._loop:
            self._disk.let_go()
            _next(self._disk)

    __exit__ = release

    def close(self) -> None:
        """Let go: the kernel does so when a process dies."""
        self.release()

    def last_holder(self) -> int | None:
        """Nobody asks here."""
        return None


def _next(disk: Disk) -> None:
    if disk.holder is None and disk.queue:
        fibre = disk.queue[0]
        fibre.loop.call_soon(_resume_first, disk, fibre)


def _resume_first(disk: Disk, fibre: Fibre) -> None:
    if disk.holder is None and disk.queue and disk.queue[0] is fibre:
        fibre.resume()


class VirtualFile(DatabaseFile):
    """The database file of one process; it knows its open connections, so that a kill can close them."""

    def __init__(self, disk: Disk, owner: Owner) -> None:
        super().__init__(disk.path, "normal", disk.clock)
        self._disk = disk
        self._owner = owner
        self.lines: list[Line] = []
        self._is_cut = False

    def connect_to_write(self, wait_seconds: float) -> Any:
        """Open a connection whose waits are virtual."""
        try:
            return self._line(super().connect_to_write(0))
        except sqlite3.OperationalError:
            self._disk.pause(BUSY_SLICE)
            raise

    def connect_for_block(self, wait_seconds: float) -> Any:
        """Open the connection of blocks, whose waits are virtual."""
        return self._line(super().connect_for_block(0), BlockLine)

    def connect_to_read(self, wait_seconds: float) -> Any:
        """Open a connection whose waits are virtual."""
        return self._line(super().connect_to_read(0))

    def _line(self, connection: sqlite3.Connection, kind: type[Line] | None = None) -> Line:
        line = (kind or Line)(connection, self._disk, self._owner)
        if self._is_cut:
            line.close()
            raise Killed
        self.lines.append(line)
        return line

    def cut(self) -> None:
        """Close every connection at once, as the kernel does; what was not committed is gone."""
        self._is_cut = True
        for line in self.lines:
            line.close()


class Line:
    """A connection: everything but the beginning and the end of a transaction goes straight to SQLite."""

    def __init__(self, connection: sqlite3.Connection, disk: Disk, owner: Owner) -> None:
        self._connection = connection
        self._disk = disk
        self._owner = owner

    @property
    def in_transaction(self) -> bool:
        """Tell whether a transaction is open."""
        try:
            return self._connection.in_transaction
        except sqlite3.ProgrammingError:  # closed by a kill
            return False

    def execute(self, sql: str) -> Any:
        """Run *sql*; transactions begin and end with some waiting, and not always well."""
        match sql:
            case "BEGIN IMMEDIATE":
                return self._begin(sql)
            case "COMMIT":
                return self._commit()
            case _:
                return self._run(sql)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __getattr__(self, name: str) -> Any:
        """Hand everything else to SQLite."""
        return getattr(self._connection, name)

    def _begin(self, sql: str) -> Any:
        disk = self._disk
        if disk.is_out(self._owner):
            raise trouble(sqlite3.SQLITE_CANTOPEN, "unable to open database file")
        try:
            return self._run(sql)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                assert not disk.machine.is_hasty, "somebody has the lock whom we do not know"
                disk.reached("waited for a stranger")
                disk.pause(BUSY_SLICE)
            raise

    def _commit(self) -> None:
        disk = self._disk
        if disk.machine.chance.random() < 0.3:
            disk.pause(disk.latency())
        if disk.is_out(self._owner):
            self._run("ROLLBACK")
            code = disk.machine.chance.choice((sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR))
            raise trouble(code, "trouble at commit")
        self._run("COMMIT")
        disk.committed(self._owner)
        if disk.machine.chance.random() < 0.2:
            disk.pause(disk.latency())

    def _run(self, sql: str) -> Any:
        return self._connection.execute(sql)


class BlockLine(Line):
    """The connection of blocks, of which only its owner may begin or end a transaction."""

    _connection: GuardedConnection

    def do_as_owner(self, sql: str) -> None:
        """Run *sql*, with the waiting that belongs to it; now and then nobody learns whether it was committed."""
        self.execute(sql)
        # more often than other answers: there are few blocks, and few of them commit in such weather
        if sql == "COMMIT" and any(self._disk.loses_answer() for _ in range(4)):
            self._disk.reached("block in doubt")
            raise trouble(sqlite3.SQLITE_IOERR, "the answer to COMMIT was lost")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close_as_owner()

    close_as_owner = close

    def _run(self, sql: str) -> Any:
        self._connection.do_as_owner(sql)


def trouble(code: int, text: str) -> sqlite3.OperationalError:
    """Make an error as SQLite would raise it."""
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error
