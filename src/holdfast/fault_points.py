"""Crash points: named places where a test can have the process die, raise, stop or wait.

Every write transaction passes them by itself, for each operation that the store is asked to run in it:

    settling.settle.statement 3    before its third statement; before the first one nothing has been done
    settling.settle.before_commit  before COMMIT is sent
    settling.settle.after_commit   behind the commit, before anybody knows of it

So a statement that is added to an operation is a point at once. The few places outside SQL have names of their own:
`OUTSIDE`. In a block around a user's code, the operation that ran in it last names its commit.

`HOLDFAST_CRASH=name[:n[:mode]]` arms one of them, at its n-th pass (the first, if not said). Modes: `kill` (SIGKILL to
itself; the default), `raise`, `stop` (SIGSTOP: every thread stands still until somebody continues it) or
`stop=<seconds>`, `delay=<seconds>` (only this thread), `cut` (every network connection of the process is shut; SQLite
has none). It is read once, when this module is imported, and logged. Unset, an operation pays for one comparison.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from holdfast.errors import InvalidSettings
from holdfast.logging import say

VARIABLE = "HOLDFAST_CRASH"

OUTSIDE = (
    "claim.before_handler",
    "child.after_outcome",
    "renew.before", "renew.after",
    "deliver.after_post",
    "bulk.after_find",
    "retain.after_hook",
    "reap.after_proof",
    "shutdown.after_stop_claim", "shutdown.after_giveback",
)  # fmt: skip
"""The points that no transaction passes."""

IN_TRANSACTIONS = re.compile(r"\w+\.\w+\.(statement [1-9]\d*|before_commit|after_commit)")

MODES = ("kill", "raise", "cut", "stop", "delay")

logger = logging.getLogger(__name__)


class CrashPoint(Exception):
    """What a point in mode `raise` raises."""


@dataclass(slots=True)
class Trap:
    """An armed point."""

    name: str
    passes: int
    mode: str
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def parse(cls, text: str) -> Trap:
        """Read `name[:n[:mode]]`, or raise `InvalidSettings`."""
        name, passes, mode = [*text.split(":"), "", ""][:3]
        if name not in OUTSIDE and not IN_TRANSACTIONS.fullmatch(name):
            raise InvalidSettings(
                f"{VARIABLE}: there is no crash point {name!r}; there are {', '.join(OUTSIDE)}, and for each operation "
                "of the store `settling.settle.statement 1`, `.before_commit` and `.after_commit`"
            )
        kind, _, seconds = mode.partition("=")
        is_timed = kind == "delay" or mode.startswith("stop=")
        if kind not in ("", *MODES) or is_timed is not seconds.replace(".", "", 1).isdigit():
            raise InvalidSettings(f"{VARIABLE}: the modes are kill, raise, cut, stop, stop=<seconds>, delay=<seconds>")
        if passes and not passes.isdigit():
            raise InvalidSettings(f"{VARIABLE}: {passes!r} is no number of passes; write {name}:2")
        return cls(name, int(passes or 1), mode or "kill")

    def reach(self, name: str) -> None:
        """Spring, if this is the pass that was waited for."""
        if name != self.name:
            return
        with self._lock:
            self.passes -= 1
            if self.passes != 0:
                return
        self._spring()

    def _spring(self) -> None:
        say(logger, "crash_point_reached", point=self.name, mode=self.mode)
        kind, _, seconds = self.mode.partition("=")
        match kind:
            case "raise":
                raise CrashPoint(f"crash point {self.name}")
            case "delay":
                threading.Event().wait(float(seconds))
            case "stop":
                stop(float(seconds) if seconds else None)
            case "cut":
                cut_connections()
            case _:
                os.kill(os.getpid(), signal.SIGKILL)
                threading.Event().wait()  # the signal may take a moment, in which nothing more shall happen


def stop(seconds: float | None) -> None:
    """Stop this whole process; a child continues it after *seconds*, if they are given."""
    if seconds is not None:
        script = f"import os, signal, time; time.sleep({seconds}); os.kill({os.getpid()}, signal.SIGCONT)"
        subprocess.Popen([sys.executable, "-c", script])
    # to this very thread, which then goes no further; another would be a moment ahead of the rest
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def cut_connections() -> None:
    """Shut every connection of this process to another one, whoever uses it; files, pipes and listeners stay."""
    for descriptor in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
        with suppress(OSError):  # not connected, or closed meanwhile
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as connection:
                    if connection.getpeername():  # an event loop wakes itself over a pair without names
                        connection.shutdown(socket.SHUT_RDWR)


@dataclass(slots=True)
class PointRecorder:
    """What is passed while it is kept, in this order."""

    passed: list[str] = field(default_factory=list)

    def reach(self, name: str) -> None:
        """Note the point *name*."""
        self.passed.append(name)


_trap: Trap | PointRecorder | None = None
_ran: WeakKeyDictionary[object, list[str]] = WeakKeyDictionary()
"""The names of the operations that have run in an open transaction, while a point is armed."""


def reach(name: str) -> None:
    """Pass the point *name*, one of `OUTSIDE`; a test knows them all."""
    if _trap is not None:
        _trap.reach(name)


def is_armed() -> bool:
    """Tell whether any point is armed, or all are recorded."""
    return _trap is not None


def arm(text: str | None) -> None:
    """Set the trap that *text* describes, as the environment variable does, or none."""
    global _trap
    _trap = trap = Trap.parse(text) if text else None
    if trap is not None:
        say(logger, "crash_point_set", point=trap.name, passes=trap.passes, mode=trap.mode)


def record() -> PointRecorder:
    """Write down every point that is passed from now on, until another is armed."""
    global _trap
    _trap = kept = PointRecorder()
    return kept


# the seam: where transactions begin, run statements and end


class _Database(Protocol):
    """An open transaction, as `store.tx` describes it."""

    database: Any
    execute: Any
    fetch_all: Any


class WatchedTx:
    """A transaction whose statements are points: those of the operation *name*."""

    def __init__(self, tx: _Database, name: str) -> None:
        self.database = tx.database
        self._tx = tx
        self._name = name
        self._count = 0

    async def execute(self, sql: str, /, **values: object) -> None:
        """Run *sql* and throw its rows away."""
        self._pass()
        await self._tx.execute(sql, **values)

    async def fetch_all(self, sql: str, /, **values: object) -> list[tuple[Any, ...]]:
        """Run *sql* and return all of its rows."""
        self._pass()
        rows: list[tuple[Any, ...]] = await self._tx.fetch_all(sql, **values)
        return rows

    async def commit_with(self, sql: str, /, **values: object) -> bool:
        """Run *sql* and COMMIT, where the transaction can do that at once."""
        run = getattr(self._tx, "commit_with", None)
        if run is None:
            return False
        self._pass()
        return bool(await run(sql, **values))

    def _pass(self) -> None:
        self._count += 1
        reach(f"{self._name}.statement {self._count}")


def watched(operation: Callable[..., Any], args: Sequence[object], tx: Any) -> Any:
    """Give what *operation* runs on in place of *tx*, and note that it runs there; for who has asked `is_armed`."""
    note(tx, operation, args)
    return WatchedTx(tx, name_of(operation, args))


def note(tx: object, operation: Callable[..., Any], args: Sequence[object]) -> None:
    """Note that *operation* runs in the transaction *tx*: it names the points of its commit."""
    if _trap is not None:
        _ran.setdefault(tx, []).append(name_of(operation, args))


def name_of(operation: Callable[..., Any], args: Sequence[object]) -> str:
    """Name an operation by its module; one that runs another, its first argument, is named by that."""
    if args and callable(args[0]):
        return name_of(args[0], args[1:])
    if isinstance(operation, partial):
        operation = operation.func
    return f"{operation.__module__.rpartition('.')[2]}.{operation.__name__}"


def begin(tx: object) -> None:
    """Forget what has run on *tx*: a new transaction begins there."""
    if _trap is not None:
        _ran.pop(tx, None)


def before_commit(tx: object, *, is_block: bool = False) -> None:
    """Pass the points before the commit of *tx*, for all operations that ran there; for the last one in a block."""
    if _trap is not None:
        for name in _named(_ran.get(tx, []), is_block):
            reach(f"{name}.before_commit")


def after_commit(tx: object, *, is_block: bool = False) -> None:
    """Pass the points behind the commit of *tx*."""
    if _trap is not None:
        for name in _named(_ran.pop(tx, []), is_block):
            reach(f"{name}.after_commit")


def _named(ran: list[str], is_block: bool) -> list[str]:
    return ran[-1:] if is_block else list(dict.fromkeys(ran))


arm(os.environ.get(VARIABLE))
