"""Keeps SQLite from crossing a fork.

To open anew in the child is not enough. SQLite keeps one table of locked files per process, and the child
inherits it: a connection opened there on a file that was open at the fork believes its locks taken, and never
asks the kernel. Measured with 3.40: the parent closes, thinks itself alone and removes the log; what the
child commits then is acknowledged, and lost. If a transaction was open at the fork, the child's writes are
`database is locked` for ever.

So before a fork threads are kept out and the connections closed; both sides open theirs when next needed.
Where that cannot be had (a thread stays inside too long, or the fork was not Python's) the child is told to
keep its hands off. A connection of the user's own to the same file is beyond our sight.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Protocol
from weakref import WeakSet

from holdfast.threads import in_slices


class Forkable(Protocol):
    """What has connections to close before a fork."""

    def before_fork(self) -> None:
        """Close what may not cross."""

    def after_fork_in_parent(self) -> None:
        """Go on."""

    def after_fork_in_child(self) -> None:
        """Begin anew."""


class ForkGate:
    """Lets threads in to connections; shut, it keeps them out."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._inside = 0
        self._shut = 0

    def __enter__(self) -> None:
        """Go in, as soon as the gate is open."""
        with self._change:
            if self._shut:
                in_slices(lambda seconds: self._change.wait_for(lambda: not self._shut, seconds), None)
            self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Go out."""
        with self._change:
            self._inside -= 1
            if self._shut:
                self._change.notify_all()

    @property
    def is_used(self) -> bool:
        return self._inside > 0

    def shut(self, seconds: float) -> bool:
        """Let nobody in any more; tell whether everybody has come out in time."""
        with self._change:
            self._shut += 1
            return self._change.wait_for(lambda: not self._inside, seconds)

    def open(self) -> None:
        """Undo one `shut`."""
        with self._change:
            self._shut -= 1
            self._change.notify_all()


def keep_for_ever(thing: object) -> None:
    """Have no destructor of *thing* run, not even at the interpreter's end: the parent still uses it."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


_forkable: WeakSet[Forkable] = WeakSet()


def watch_forks(thing: Forkable) -> None:
    """Have *thing* told of forks for as long as it lives."""
    _forkable.add(thing)


def _before() -> None:
    for thing in list(_forkable):
        thing.before_fork()


def _after_in_parent() -> None:
    for thing in list(_forkable):
        thing.after_fork_in_parent()


def _after_in_child() -> None:
    for thing in list(_forkable):
        thing.after_fork_in_child()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
