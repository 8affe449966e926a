"""What keeps a child process within its bounds: its memory, the life of its worker, and the copies that handlers fork.

A copy shares the pipe to the worker and the event loop's descriptors with the original: if it went on here it would
speak in its name, and take down its loop when it ends. So it ends before that.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.threads import ThreadPool, Work

try:
    import resource
except ImportError:  # there is none on Windows
    resource = None  # type: ignore[assignment]

MEGABYTE = 1 << 20
PR_SET_PDEATHSIG = 1
CAME_BACK = (
    "a handler called fork, and the forked process returned from the handler; end a forked process with os._exit()"
)


def resident_megabytes() -> float:
    """Say how much memory this process has at this moment; where that cannot be read, 0."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / MEGABYTE


@contextmanager
def at_most(megabytes: float | None) -> Iterator[None]:
    """Have memory that is asked for within fail with `MemoryError` once it is *megabytes* more than now."""
    if megabytes is None or sys.platform != "linux":
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    # what is counted towards the limit: all private memory that can be written, used or not
    kilobytes = next((int(line.split()[1]) for line in status if line.startswith("VmData:")), 0)
    wanted = kilobytes * 1024 + round(megabytes * MEGABYTE)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    try:
        yield
    finally:
        with suppress(ValueError, OSError):  # the handler may have set a limit for good
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def die_with(parent: int) -> None:
    """Have the system kill this process when *parent* ends, whatever it does then; nothing else is asked of Linux.

    The pipe ends it as well, but code that never gives Python's lock back would not let anybody see that.
    """
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before it could be asked for
        os._exit(0)


def end_copy(process: int) -> None:
    """End what is not the *process* that the handler was begun in."""
    if os.getpid() != process:
        print(CAME_BACK, file=sys.stderr, flush=True)
        os._exit(1)


class HandlerThreads(ThreadPool):
    """Threads for plain handlers, in which no copy stays behind."""

    def run(self, work: Work) -> None:
        function, process = work.function, os.getpid()

        def run_alone() -> object:
            try:
                return function()
            finally:
                end_copy(process)

        work.function = run_alone
        super().run(work)
