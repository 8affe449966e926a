"""A worker that tells what it has come to need: `python -m bench.soak_worker URL`.

It says `ready`. For a line `done` it says how many handlers it has called; for `sample`, as JSON, what it holds of the
things that must not grow with the jobs it has run; for `largest`, which objects there are most of, and what has most
memory if it was started with `PYTHONTRACEMALLOC`. It ends with its input.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
import time
import tracemalloc
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import Context, Holdfast, Tasks
from holdfast.worker.options import WorkerOptions

TASKS = Tasks()
MOST_SHOWN = 10
CLAIMS = ("claim", "admit_and_claim", "exchange")
MOST_CLAIMS = 2_000
"""Of how many of the last claims it tells how long they took."""
done = 0


@TASKS.task(name="nothing")
async def nothing(n: int) -> None:
    """Do nothing."""
    count()


@TASKS.task(name="onward")
async def onward(ctx: Context, n: int) -> None:
    """Do nothing, and have something else do it, too."""
    count()
    return ctx.continue_with(nothing(n=n))


@TASKS.task(name="threaded")
def threaded(n: int) -> None:
    """Do nothing, in a thread."""
    count()


def count() -> None:
    """Count a handler that was called."""
    global done
    done += 1


class Claims:
    """How long claims take, by whom the store is asked for them."""

    def __init__(self, hf: Holdfast) -> None:
        self.seconds: deque[float] = deque(maxlen=MOST_CLAIMS)
        run: Callable[..., Any] = hf.store.run

        async def timed(operation: Any, *args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            answer = await run(operation, *args, **kwargs)
            if operation.__name__ in CLAIMS:
                self.seconds.append(time.perf_counter() - began)
            return answer

        hf.store.run = timed  # type: ignore[method-assign]


def sample(claims: Claims) -> dict[str, float]:
    """Tell what this process holds."""
    gc.collect()
    took = sorted(claims.seconds)
    claims.seconds.clear()
    return {
        "done": done,
        "memory": resident_bytes(),
        "blocks": sys.getallocatedblocks(),
        "descriptors": len(list(Path("/dev/fd").iterdir())),
        "threads": count_threads(),
        "tasks": len(asyncio.all_tasks(LOOP[0])),
        "claim": took[int(len(took) * 0.99)] if took else 0.0,
    }


def count_threads() -> int:
    """Count the threads; of handlers as many as there are slots, or more: these are made when they are needed."""
    of_handlers = sum(each.name.startswith("holdfast-handler") for each in threading.enumerate())
    return threading.active_count() - of_handlers + max(of_handlers, WorkerOptions().concurrency)


def resident_bytes() -> int:
    """Tell how much memory this process has, without what it shares with files."""
    if sys.platform != "linux":
        return 0
    _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def largest() -> list[str]:
    """Name what there is most of."""
    kinds = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
    lines = [f"{number:>9,} {kind}" for kind, number in kinds.most_common(MOST_SHOWN)]
    if tracemalloc.is_tracing():
        lines += [str(each) for each in tracemalloc.take_snapshot().statistics("lineno")[:MOST_SHOWN]]
    return lines


LOOP: list[asyncio.AbstractEventLoop] = []


async def main(url: str) -> None:
    """Work until the input ends."""
    LOOP.append(asyncio.get_running_loop())
    hf = Holdfast(url, tasks=[TASKS], retention=False)
    claims = Claims(hf)
    async with hf.worker():
        print("ready", flush=True)
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            answers: dict[str, Callable[[], object]] = {
                "done": lambda: done,
                "sample": lambda: sample(claims),
                "largest": largest,
            }
            print(json.dumps(answers[line]()), flush=True)
    await hf.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
