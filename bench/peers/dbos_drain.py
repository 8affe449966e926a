"""dbos on PostgreSQL or SQLite, working. Run it in dbos' environment: `python -m bench.peers.dbos_drain URL TEXT`."""

from __future__ import annotations

import logging
import queue
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

import sqlalchemy
from dbos import DBOS, DBOSClient, EnqueueOptions  # type: ignore[import-not-found]

from bench.peers.serving import Begun, Tally, latency, serve, until

place, text = sys.argv[1], sys.argv[2]
url = place if "://" in place else f"sqlite:///{place}"

# its page Queues: `worker_concurrency` is "the maximum number of functions from this queue that may run concurrently on
# a single DBOS process", without it there is none; `polling_interval_sec` is "the interval at which DBOS polls the
# database for new workflows on this queue", 1 by itself, and lower here, for latency is hardly anything else. Its
# SQLite is as SQLite is by itself, with a rollback journal and synchronous=FULL.
POLLING_SECONDS = 0.1

tally = Tally()
begun: Begun = queue.SimpleQueue()


@DBOS.workflow(name="work")  # type: ignore[untyped-decorator]
async def work(text: str) -> None:
    """Do nothing, and be counted."""
    tally.count()


@DBOS.workflow(name="mark")  # type: ignore[untyped-decorator]
async def mark(text: str) -> None:
    """Say when it was called."""
    begun.put(time.perf_counter())


@contextmanager
def working() -> Iterator[None]:
    """Work beside what is done in the block."""
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
    DBOS.launch()
    DBOS.register_queue("work", polling_interval_sec=POLLING_SECONDS)
    try:
        yield
    finally:
        DBOS.destroy()


def fill(count: int) -> None:
    """Enqueue all in one transaction, from outside of the application as its page Client shows."""
    client = DBOSClient(system_database_url=url, application_name="bench")
    options: EnqueueOptions = {"queue_name": "work", "workflow_name": "work"}
    with engine.begin() as connection:
        for _ in range(count):
            client.enqueue_in_transaction(connection, options, text)
    client.destroy()


def drain(count: int) -> str:
    """Work until all were called and recorded."""
    tally.expect(count)
    done = rows()
    with working():
        tally.wait()
        until(lambda: rows() == done + count)
        return tally.seconds()


def starts(count: int) -> str:
    """Enqueue one at a time while a worker of the same process idles."""
    with working():
        time.sleep(1)
        return latency(count, lambda: DBOS.enqueue_workflow("work", mark, text), begun)


def rows() -> int:
    """Count what it has recorded as done."""
    table = "dbos.workflow_status" if engine.dialect.name == "postgresql" else "workflow_status"
    with engine.connect() as connection:
        done = f"SELECT count(*) FROM {table} WHERE status = 'SUCCESS' AND name = 'work'"
        return int(connection.execute(sqlalchemy.text(done)).scalar_one())


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with working():
        pass  # makes its tables
    serve(f"dbos {version('dbos')}", {"fill": fill, "drain": drain, "latency": starts}, rows)
