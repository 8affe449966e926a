"""celery on Redis, working. Run it in celery's environment: `python -m bench.peers.celery_drain URL TEXT`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

from celery import Celery  # type: ignore[import-not-found]
from redis import Redis  # type: ignore[import-not-found]

from bench.peers.serving import PAUSE, end_with_parent, serve, until

# its page Concurrency has the pools. Tried here, three drains each on a busy machine: solo and threads with one slot
# were level, threads with eight and prefork with one or two slower.
POOL = "solo"
TOLD = "told"

url = os.environ.get("CELERY_BROKER_URL", sys.argv[1])  # by which the worker is told
redis = Redis.from_url(url, socket_timeout=None)  # by itself it would not wait for a worker that is slow to begin
app = Celery("bench.peers.celery_drain", broker=url)
app.conf.update(
    # its page Optimizing: "if you have many short-running tasks, and throughput/round trip latency is important to you,
    # this number should be large … Say 64, or 128"
    worker_prefetch_multiplier=128,
    # its page Configuration: with late ack "the task messages will be acknowledged after the task has been executed,
    # not right before", so that a crash loses nothing, as with the others
    task_acks_late=True,
    # its page Tasks: "If you don't care about the results of a task, be sure to set the ignore_result option, as
    # storing results wastes time and resources"
    task_ignore_result=True,
    worker_hijack_root_logger=False,
)
sent = 0


@app.task(name="work")  # type: ignore[untyped-decorator]
def work(text: str) -> None:
    """Do nothing."""


@app.task(name="mark")  # type: ignore[untyped-decorator]
def mark(text: str, begun: float) -> None:
    """Tell how many milliseconds after *begun* it was called, by the clock that all processes of a machine share."""
    redis.rpush(TOLD, (time.monotonic() - begun) * 1000)


@contextmanager
def working() -> Iterator[None]:
    """Run `celery worker` beside what is done in the block."""
    command = [sys.executable, "-m", "celery", "-A", "bench.peers.celery_drain", "worker"]
    options = ["--pool", POOL, "--concurrency", "1", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    environment = os.environ | {"CELERY_BROKER_URL": url}
    with subprocess.Popen(
        [*command, *options],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=end_with_parent,  # noqa: PLW1509 - it takes no lock
    ) as process:
        try:
            yield
        finally:
            process.terminate()


def fill(count: int) -> None:
    """Send one after the other."""
    global sent
    for _ in range(count):
        work.delay(text)
    sent += count


def left() -> int:
    """Count what is not acknowledged."""
    return int(redis.llen("celery")) + int(redis.hlen("unacked"))


def drain(count: int) -> str:
    """Work until all are acknowledged; the time begins with the first that is."""
    with working():
        until(lambda: left() < count)
        began, done = time.perf_counter(), count - left()
        until(lambda: left() == 0)
        return str((time.perf_counter() - began) * count / (count - done))


def latency(count: int) -> str:
    """Send one at a time to a worker that idles, in a process of its own."""
    with working():
        told = [send_marked() for _ in range(count + 1)]
    return " ".join(told[1:])  # the first one waited for the worker to begin


def send_marked() -> str:
    """Send one; give the milliseconds until its handler ran."""
    time.sleep(PAUSE)
    mark.delay(text, time.monotonic())
    _, milliseconds = redis.blpop(TOLD)
    return str(float(milliseconds))


if __name__ == "__main__":
    text = sys.argv[2]
    works = {"fill": fill, "drain": drain, "latency": latency}
    serve(f"celery {version('celery')} on Redis {redis.info()['redis_version']}", works, lambda: sent - left())
