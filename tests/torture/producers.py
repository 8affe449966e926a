"""Who starts jobs: `python -m tests.torture.producers plain 7`, or `borrowed`, in transactions of its own.

The plain one asks again, with the same ids, as long as it does not know what became of a start. The other one keeps
its transactions open for a while, and rolls every third one back.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from uuid import UUID

import psycopg

from holdfast import Call
from tests.torture import application
from tests.torture.application import hf
from tests.torture.clients import Client, LostCommit
from tests.torture.notes import is_set

SECONDS = (*[0.0] * 6, 0.05, 0.05, 0.3, 1.0)
LONG_SECONDS = 9.0
"""More than two leases: when a worker wakes that has stood still, another runs what it runs."""
LONG_FATES = ("well", "deaf", "deaf", "error")
FATES = (*["well"] * 36, *["error"] * 5, *["fatal"] * 4, *["pause"] * 4, *["later"] * 3)
LANES = tuple(f"lane-{number}" for number in range(6))
KEYS = ("k", "l", "m")
ABORT_SECONDS = 30.0
"""How long it is from one job that takes its process down to the next; each does so three times."""
FIRST_ABORT_SECONDS = 10.0
"""By when the first comes: a producer is killed itself every few seconds, and begins anew."""
MOST_BATCH = 6
PAUSE_SECONDS = 0.12
OPEN_SECONDS = (0.0, 0.05, 0.3, 1.5)
OPEN_SECONDS_SQLITE = (0.0, 0.02, 0.2)
"""There an open transaction is the file's only writer."""


class Producer:
    """Makes up calls, as its seed decides."""

    def __init__(self, seed: str) -> None:
        self.chance = Random(seed)
        self._recent: list[UUID] = []
        has_aborts = os.environ["TORTURE_ABORTS"] == "1"
        self._aborts_at = time.monotonic() + self.chance.random() * FIRST_ABORT_SECONDS if has_aborts else float("inf")

    def calls(self) -> list[Call[Any]]:
        """Make some calls, each with an id of its own."""
        return [self._call() for _ in range(self.chance.randint(1, MOST_BATCH))]

    def _call(self) -> Call[Any]:
        chance, id_ = self.chance, UUID(int=self.chance.getrandbits(128), version=4)
        task: Callable[..., Call[Any]] = chance.choice(application.KINDS)
        if time.monotonic() >= self._aborts_at:
            self._aborts_at = time.monotonic() + ABORT_SECONDS
            return task(fate="abort").options(id=id_, priority=50)  # three of its runs are to fit into a run of ours
        if chance.random() < float(os.environ["TORTURE_LONGS"]):
            return task(seconds=LONG_SECONDS, fate=chance.choice(LONG_FATES)).options(id=id_, priority=10)
        seconds, fate = chance.choice(SECONDS), chance.choice(FATES)
        options: dict[str, Any] = {"id": id_}
        if chance.random() < 0.3:
            options["lane"] = chance.choice(LANES)
        if chance.random() < 0.1:
            options["delay"] = chance.random() * 2
        if chance.random() < 0.1:
            options["priority"] = chance.randint(-2, 2)
        if chance.random() < 0.1:
            options["webhook"] = None
        if chance.random() < 0.06:
            options["unique"] = chance.choice(KEYS)
        if chance.random() < 0.1 and self._recent:
            options["blockers"] = chance.sample(self._recent, min(len(self._recent), chance.randint(1, 3)))
            options["on_blocker_failure"] = chance.choice(("fail", "ignore"))
        return task(seconds=seconds, fate=fate).options(**options)

    def remember(self, ids: list[UUID]) -> None:
        """Take note of chains that are there, for others to wait for."""
        self._recent = [*self._recent, *ids][-20:]


def facts_of(calls: list[Call[Any]]) -> dict[str, list[str]]:
    """Give the ids and the keys that *calls* ask for."""
    keys = [each.chosen.unique.key for each in calls if each.chosen.unique is not None]
    return {"ids": [str(each.chosen.id) for each in calls], "keys": keys}


def produce_plainly(producer: Producer, client: Client) -> None:
    """Start jobs until told to stop."""
    while not is_set("stop"):
        calls = producer.calls()
        start(producer, client, calls)
        while client.is_in_doubt and not is_set("stop"):
            start(producer, client, calls)
        for each in calls:
            each.consume()
        time.sleep(PAUSE_SECONDS * producer.chance.random())


def start(producer: Producer, client: Client, calls: list[Call[Any]]) -> None:
    """Start jobs once."""
    with client.asking("start", **facts_of(calls)) as answer:
        chains = hf.sync.start_many(calls)
        answer["chains"] = [str(each.id) for each in chains]
        producer.remember([each.id for each in chains])


def produce_in_transactions(producer: Producer, client: Client) -> None:
    """Start jobs in transactions that stay open, some of which roll back, until told to stop."""
    while not is_set("stop"):
        calls = producer.calls()
        is_kept = producer.chance.random() < 0.66
        with client.asking("start" if is_kept else "start, and roll back", **facts_of(calls)) as answer:
            with transaction(is_kept) as connection:
                chains = hf.sync.start_many(calls, connection=connection)
                seconds = OPEN_SECONDS if hf.settings.is_postgres else OPEN_SECONDS_SQLITE
                time.sleep(producer.chance.choice(seconds))
            answer["chains"] = [str(each.id) for each in chains]
        for each in calls:
            each.consume()
        time.sleep(PAUSE_SECONDS * producer.chance.random())


@contextmanager
def transaction(is_kept: bool) -> Iterator[Any]:
    """Open a transaction of the caller's own; commit it in the end, if it *is_kept*."""
    with (postgres_transaction if hf.settings.is_postgres else sqlite_transaction)(is_kept) as connection:
        yield connection


@contextmanager
def postgres_transaction(is_kept: bool) -> Iterator[psycopg.Connection]:
    """Open one on PostgreSQL."""
    connection = psycopg.connect(hf.settings.database, connect_timeout=5)
    try:
        connection.execute("SELECT 1")  # which begins it
        yield connection
        if not is_kept:
            return
        try:
            connection.commit()
        except psycopg.Error as error:
            raise LostCommit from error
    finally:
        connection.close()


@contextmanager
def sqlite_transaction(is_kept: bool) -> Iterator[sqlite3.Connection]:
    """Open one on SQLite."""
    connection = sqlite3.connect(hf.settings.database, isolation_level=None, timeout=5)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT" if is_kept else "ROLLBACK")
    finally:
        connection.close()


WAYS = {"plain": produce_plainly, "borrowed": produce_in_transactions}


if __name__ == "__main__":
    way, seed = sys.argv[1:]
    WAYS[way](Producer(f"{seed} {way} {os.getpid()}"), Client(way))
