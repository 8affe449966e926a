"""Which signals a thread of the engine blocks: all of them, since signals belong to the main thread.

Python runs handlers only there. When the kernel hands a signal to another thread, Python merely notes it, and a main
thread that sleeps does not wake up. So the engine's threads start with all signals blocked. A blocked signal would stay
blocked in every process that such a thread starts: so user code runs with the signals of the program
(`program_signals`), and threads that do nothing but run handlers block nothing at all.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

R = TypeVar("R")

FAULTS = {"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP"}
BLOCKED = frozenset(each for each in signal.valid_signals() if getattr(each, "name", None) not in FAULTS)
"""What the engine's threads block: all but faults, which `faulthandler` reports in the thread that caused them."""

_background = threading.local()
"""In the engine's threads, `mask`: the signals that the thread which started them had blocked."""

HAS_MASKS = hasattr(signal, "pthread_sigmask")  # Windows has none, and delivers signals to the main thread only


def _change_mask(how: int, signals: Iterable[int]) -> set[int]:
    """Change which signals this thread blocks; return those that it blocked before."""
    return set(signal.pthread_sigmask(how, signals))


def blocked_signals() -> set[int]:
    """Return the signals that this thread blocks."""
    return _change_mask(signal.SIG_BLOCK, ()) if HAS_MASKS else set()


def with_signals_blocked(call: Callable[[], R]) -> R:
    """Call *call*, which starts a thread: the thread inherits the mask, so it never takes a signal, not even at first.

    This is no context manager: a signal's handler that raised on the way in would leave this thread deaf.
    """
    if not HAS_MASKS:
        return call()
    before = blocked_signals()
    try:
        _change_mask(signal.SIG_BLOCK, BLOCKED)
        return call()
    finally:
        try:
            _change_mask(signal.SIG_SETMASK, before)
        except BaseException:  # a handler raised, maybe before the mask was restored
            _change_mask(signal.SIG_SETMASK, before)
            raise


def remember_mask(mask: set[int]) -> None:
    """Note, in a thread of the engine, the *mask* that user code has in it."""
    _background.mask = mask


@contextmanager
def program_signals() -> Iterator[None]:
    """Let in the signals of the program, so that what is started here inherits no blocked ones."""
    mask: set[int] | None = getattr(_background, "mask", None)
    if mask is None or not HAS_MASKS:
        yield
        return
    before = _change_mask(signal.SIG_SETMASK, mask)
    try:
        yield
    finally:
        _change_mask(signal.SIG_SETMASK, before)


def _after_fork_in_child() -> None:
    """Let in the signals of the program: the thread that forked is the main thread now."""
    mask: set[int] | None = getattr(_background, "mask", None)
    if mask is not None and HAS_MASKS:
        del _background.mask
        _change_mask(signal.SIG_SETMASK, mask)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
