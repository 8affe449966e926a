"""The peer's side of the pipe: runs in the peer's environment, so it imports nothing but the standard library."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping


def serve(version: str, works: Mapping[str, Callable[[int], object]], rows: Callable[[], int]) -> None:
    """Say *version*; then, for each line such as `single 100`, do that work and say how many seconds it took.

    A work that answers with a text has its text said instead.
    """
    print(version, flush=True)
    for line in sys.stdin:
        name, count = line.split()
        if name == "rows":
            print(rows(), flush=True)
            continue
        started = time.perf_counter()
        answer = works[name](int(count))
        print(answer if isinstance(answer, str) else time.perf_counter() - started, flush=True)
