"""What a command sets up in its own process: log lines on stderr, and an alarm that ends it if it does not end in time.

At its very end the interpreter gives every signal back to the system, and then an alarm kills the process, whose exit
code is lost. So the alarm is switched off by the last function that runs at exit.
"""

from __future__ import annotations

import atexit
import logging
import signal
import sys
from collections.abc import Callable

USUAL = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class PlainLines(logging.Formatter):
    """`worker_store_trouble level=warning reason="…"`; *always* are facts of every line; a stack has its own lines."""

    def __init__(self, **always: object) -> None:
        super().__init__()
        self._always = always

    def format(self, record: logging.LogRecord) -> str:
        """Write *record* as a line."""
        facts = {name: value for name, value in vars(record).items() if name not in USUAL}
        stack = facts.pop("stack", None)
        if record.levelno >= logging.WARNING:
            facts = {"level": record.levelname.lower(), **facts}
        facts = {**self._always, **facts}
        line = " ".join([record.getMessage(), *(f"{name}={_shown(value)}" for name, value in facts.items())])
        trace = self.formatException(record.exc_info) if record.exc_info else stack
        return f"{line}\n{str(trace).rstrip()}" if trace else line


def log_to_stderr(**always: object) -> None:
    """Have what our loggers say, from INFO on, and warnings of everybody, written to stderr, with *always* in each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainLines(**always))
    logging.getLogger().addHandler(handler)
    logging.getLogger("holdfast").setLevel(logging.INFO)


def _shown(value: object) -> str:
    text = str(value).replace("\n", " ")
    return f'"{text}"' if " " in text else text


def allow_alarm() -> None:
    """Switch the alarm off at exit; call this first, since functions that are registered later run earlier."""
    atexit.register(_switch_off)


def set_alarm(seconds: float, leave: Callable[[], None]) -> None:
    """Call *leave* in *seconds*, unless the process has ended by then."""
    signal.signal(signal.SIGALRM, lambda *_: leave())
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _switch_off() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
