"""A worker in a process without a free descriptor: `python -m tests.disk.starved jobs.db` says what became of it.

A fork makes it close its connections, as ours do before each; until descriptors are free again it cannot open others.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path

from holdfast import Holdfast, Tasks
from holdfast.errors import StoreError
from tests.support.conditions import until

DESCRIPTORS = 64
WATCHED_SECONDS = 1.0

TASKS = Tasks()
gate = asyncio.Event()
ended: list[int] = []


@TASKS.task(name="waits")
async def waits(n: int) -> int:
    """Wait until it may end."""
    await gate.wait()
    ended.append(n)
    return n


def take_all() -> list[int]:
    """Open files until there is no descriptor left."""
    taken: list[int] = []
    with suppress(OSError):
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    return taken


def fork_once() -> None:
    """Fork, as a library might."""
    warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads, which is the point
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def has_open(path: str) -> bool:
    """Tell whether this process has the file open; without a descriptor, so that it can be asked when there is none."""
    for number in range(DESCRIPTORS):
        with suppress(OSError):
            if Path(f"/proc/self/fd/{number}").readlink() == Path(path).resolve():
                return True
    return False


def take_those_of_connections(path: str) -> list[int]:
    """Have the connections to *path* closed, and take their descriptors before a thread of the worker's does."""
    taken: list[int] = []
    for _ in range(100):
        fork_once()
        taken += take_all()
        if not has_open(path):
            return taken
    raise AssertionError("the worker was always the first to open its connections again")


async def refusal(hf: Holdfast) -> str:
    """Try to start a job; give the name of the error and what it says."""
    try:
        await hf.start(waits(n=0))
    except StoreError as error:
        return f"{type(error).__name__}: {error}"
    return "started"


async def main(path: str) -> None:
    """Take all descriptors while a job runs, and give them back."""
    hf = Holdfast(path, tasks=[TASKS], deadline_seconds=1)
    async with hf, hf.worker(poll=0.05) as worker:
        early = await hf.start_many([waits(n=1), waits(n=2)])
        await until(lambda: worker.health().running == 2, "the handlers run", 30)

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, most))
        taken = take_all()
        taken += take_those_of_connections(path)
        refused = await refusal(hf)
        gate.set()
        await until(lambda: len(ended) == 2 and worker.health().trouble_since is not None, "it is in trouble", 30)
        began, busy = time.monotonic(), time.process_time()
        await until(lambda: time.monotonic() - began > WATCHED_SECONDS, "time passes", 30)
        busy_seconds = time.process_time() - busy

        for each in taken:
            os.close(each)
        late = await hf.start(waits(n=3))
        results = [await each.result(timeout=30) for each in (*early, late)]
        is_well = worker.health().trouble_since is None
    print(json.dumps({"refused": refused, "busy_seconds": busy_seconds, "results": results, "is_well": is_well}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
