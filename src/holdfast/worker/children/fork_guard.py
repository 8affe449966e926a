"""What a handler forks, and lets come back as if it were the child process itself.

A copy shares the line to the worker and the event loop's descriptors with the original: if it went on here it would
speak in its name, and take down its loop when it ends. So it ends before that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import ParamSpec, TypeVar

from holdfast.runtime import ThreadPool

P = ParamSpec("P")
R = TypeVar("R")

CAME_BACK = "a handler has forked, and its copy came back from it; end a copy with os._exit()"


def end_copy(process: int) -> None:
    """End what is not the *process* that the handler was begun in."""
    if os.getpid() != process:
        print(CAME_BACK, file=sys.stderr, flush=True)
        os._exit(1)


class HandlerThreads(ThreadPool):
    """Threads for plain handlers, in which no copy stays behind."""

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run *fn* in one of them."""
        return super().submit(_alone, os.getpid(), partial(fn, *args, **kwargs))


def _alone(process: int, call: Callable[[], R]) -> R:
    try:
        return call()
    finally:
        end_copy(process)
