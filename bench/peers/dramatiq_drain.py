"""dramatiq on Redis, working. Run it in dramatiq's environment: `python -m bench.peers.dramatiq_drain URL TEXT`."""

from __future__ import annotations

import logging
import queue
import sys
import time
from importlib.metadata import version

import dramatiq  # type: ignore[import-not-found]
from dramatiq.brokers.redis import RedisBroker  # type: ignore[import-not-found]

from bench.peers.serving import Begun, Tally, latency, serve, until

url, text = sys.argv[1], sys.argv[2]

# its command line: "the number of worker threads per process (default: 8)", for which it fetches "a small factor more
# messages than there are workers to avoid waiting on network IO"; redis-py's README: "For faster performance, install
# redis with hiredis support", so that is there
THREADS = 8

broker = RedisBroker(url=url)
dramatiq.set_broker(broker)
tally = Tally()
begun: Begun = queue.SimpleQueue()
sent = 0


@dramatiq.actor  # type: ignore[untyped-decorator]
def work(text: str) -> None:
    """Do nothing, and be counted."""
    tally.count()


@dramatiq.actor  # type: ignore[untyped-decorator]
def mark(text: str) -> None:
    """Say when it was called."""
    begun.put(time.perf_counter())


def fill(count: int) -> None:
    """Send one after the other."""
    global sent
    for _ in range(count):
        work.send(text)
    sent += count


def left() -> int:
    """Count what is not acknowledged."""
    return int(broker.client.hlen("dramatiq:default.msgs"))


def drain(count: int) -> str:
    """Work until all were called and acknowledged."""
    tally.expect(count)
    worker = dramatiq.Worker(broker, worker_threads=THREADS)
    worker.start()
    tally.wait()
    until(lambda: left() == 0)
    seconds = tally.seconds()
    worker.stop()
    return seconds


def starts(count: int) -> str:
    """Send one at a time while a worker of the same process idles."""
    worker = dramatiq.Worker(broker, worker_threads=THREADS)
    worker.start()
    time.sleep(1)
    answer = latency(count, lambda: mark.send(text), begun)
    worker.stop()
    return answer


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    works = {"fill": fill, "drain": drain, "latency": starts}
    redis = broker.client.info()["redis_version"]
    serve(f"dramatiq {version('dramatiq')} on Redis {redis}", works, lambda: sent - left())
