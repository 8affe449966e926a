"""Notices, from another thread, that the event loop does not answer, and says which job blocks it, and where.

A handler that sleeps or computes in an `async def` stops every other handler of the process. Its lease is kept, for
that has a thread of its own; but nobody would know why all stands still.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from types import CodeType, FrameType
from typing import Any

from holdfast.logging import say
from holdfast.runtime import Runtime
from holdfast.worker.attempts.attempt import Attempt

BLOCKED_SECONDS = 3.0
STACK_LENGTH = 4_000

logger = logging.getLogger(__name__)


class LoopWatch:
    """Watches the loop that it is made in; `look` is called, now and then, in another thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._monotonic = runtime.monotonic
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._asked: float | None = None
        self._lag = 0.0
        self._is_told = False

    def look(self) -> None:
        """Ask the loop for an answer, or say once that it has owed one for long."""
        if self._asked is None:
            self._asked = self._monotonic()
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # the loop is closed; nobody is left to be blocked
                self._asked = None
        elif not self._is_told and self._monotonic() - self._asked > BLOCKED_SECONDS:
            self._is_told = True
            seconds, frame = self._monotonic() - self._asked, sys._current_frames().get(self._thread)
            say(logger, "event_loop_blocked", seconds=round(seconds, 1), **_handler_in(frame))

    @property
    def lag(self) -> float:
        """How many seconds the loop took to answer last time, or has owed an answer for by now, if that is longer."""
        asked = self._asked
        return self._lag if asked is None else max(self._lag, self._monotonic() - asked)

    def _answer(self) -> None:
        self._lag = 0.0 if self._asked is None else self._monotonic() - self._asked
        if self._is_told and self._asked is not None:
            say(logger, "event_loop_answers", seconds=round(self._monotonic() - self._asked, 1))
        self._asked, self._is_told = None, False


RUN_HANDLER: frozenset[CodeType] = frozenset(
    each.__code__ for each in (Attempt._run_handler, Attempt.begin, Attempt._resume)
)
"""From where handlers are called: in the loop, for their first step, and for those after it."""


def _handler_in(frame: FrameType | None) -> dict[str, Any]:
    """Say where *frame* is, from the handler on, and of which job that is; all of it if no handler is found."""
    lines: list[str] = []
    while frame is not None and frame.f_code not in RUN_HANDLER:
        lines[:0] = traceback.format_stack(frame, limit=1)
        frame = frame.f_back
    where = lines[-1].strip().splitlines()[0] if lines else "unknown code"
    facts = {"by": where, "stack": "".join(lines)[-STACK_LENGTH:]}
    attempt = None if frame is None else frame.f_locals.get("self")
    if isinstance(attempt, Attempt):
        job = attempt.job
        facts |= {"by": f"job {job.id} (task {job.task}), {where}", "job": job.id, "task": job.task}
    return facts
