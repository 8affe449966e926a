"""What the workers of `bench cpu` import: a task that costs CPU, for a thread and for a child.

`python -m bench.cpu_application SPINS COUNT` does the same work without any engine, and says how many seconds it took.
"""

from __future__ import annotations

import os
import sys
import time

from holdfast import Holdfast

hf = Holdfast(os.environ.get("HOLDFAST_DATABASE", "jobs.db"))
"""On the database that HOLDFAST_DATABASE names."""


def spin(spins: int) -> int:
    """Cost CPU and nothing else, in plain Python, which keeps the interpreter to itself."""
    total = 0
    for number in range(spins):
        total ^= number * number
    return total


@hf.task(name="in_thread")
def in_thread(spins: int) -> int:
    """Spin in a thread of the worker."""
    return spin(spins)


@hf.task(name="in_child", run_in="process")
def in_child(spins: int) -> int:
    """Spin in a child process."""
    return spin(spins)


def main(spins: int, count: int) -> None:
    """Wait for the word, spin *count* times, and tell the seconds."""
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.perf_counter()
    for _ in range(count):
        spin(spins)
    print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
