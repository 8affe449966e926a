"""The alarm of a command: it ends the process if that does not end in time.

At its very end the interpreter gives every signal back to the system, and then an alarm kills the process, whose exit
code is lost. So the alarm is switched off by the last function that runs at exit.
"""

from __future__ import annotations

import atexit
import signal
from collections.abc import Callable


def allow_alarm() -> None:
    """Switch the alarm off at exit; call this first, since functions that are registered later run earlier."""
    atexit.register(_switch_off)


def set_alarm(seconds: float, leave: Callable[[], None]) -> None:
    """Call *leave* in *seconds*, unless the process has ended by then."""
    signal.signal(signal.SIGALRM, lambda *_: leave())
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _switch_off() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
