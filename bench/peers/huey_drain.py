"""huey on SQLite, consuming. Run it in huey's environment: `python -m bench.peers.huey_drain FILE TEXT`."""

from __future__ import annotations

import queue
import sys
import threading
import time
from importlib.metadata import version

from huey import SqliteHuey  # type: ignore[import-not-found]

from bench.peers.serving import Begun, latency, serve

# huey's API page: "fsync: use durable writes. Slower but more resilient to corruption in the event of sudden power
# loss. Defaults to false." So it is on, as everywhere here; the journal is a WAL by default.
huey = SqliteHuey("bench", filename=sys.argv[1], fsync=True)
text = sys.argv[2]
called = threading.Semaphore(0)
begun: Begun = queue.SimpleQueue()
done = 0


@huey.task()  # type: ignore[untyped-decorator]
def work(text: str) -> None:
    """Do nothing, and be counted; what returns nothing leaves no result behind."""
    called.release()


@huey.task()  # type: ignore[untyped-decorator]
def mark(text: str) -> None:
    """Say when it was called."""
    begun.put(time.perf_counter())


def fill(count: int) -> None:
    """Enqueue one after the other."""
    for _ in range(count):
        work(text)


def drain(count: int) -> None:
    """Consume as the consumer's page has it: "the default is 1" worker, "the default is thread"."""
    global done
    consumer = huey.create_consumer(workers=1, periodic=False)
    consumer.start()
    for _ in range(count):
        called.acquire()
    done += count
    consumer.stop_flag.set()


def starts(count: int) -> str:
    """Enqueue one at a time while a consumer of the same process idles."""
    consumer = huey.create_consumer(workers=1, periodic=False)
    consumer.start()
    time.sleep(1)
    answer = latency(count, lambda: mark(text), begun)
    consumer.stop_flag.set()
    return answer


def rows() -> int:
    """Count what was run, less what is left."""
    return done - int(huey.pending_count())


if __name__ == "__main__":
    serve(f"huey {version('huey')}", {"fill": fill, "drain": drain, "latency": starts}, rows)
