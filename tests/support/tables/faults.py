"""The table of faults: what goes wrong, the tests that bring it about, and what of it no test here does.

`python -m tests.support.tables.faults` prints it, as Markdown.
A test belongs to a fault if its docstring, or that of its module, says the fault's number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.support.tables.numbered import find_by_number

FAULTS = {
    "F-01": "a process is killed at a commit boundary",
    "F-02": "a process is killed at a write of SQLite",
    "F-03": "a worker is stopped past its lease, then continued",
    "F-04": "a worker is stopped inside the transaction that completes a job",
    "F-05": "only the parent, or only the child, is stopped",
    "F-06": "a worker is told to stop, once and twice, at any step",
    "F-07": "a handler takes its process down, long ones beside it",
    "F-08": "a handler never ends",
    "F-09": "a handler blocks the event loop",
    "F-10": "there are no descriptors or no threads left",
    "F-11": "the process forks after it has connected, also while it may write",
    "F-12": "the network loses packets in silence",
    "F-13": "the connection lives, and the server does not answer",
    "F-14": "the network is slow, or passes on a few bytes at a time",
    "F-15": "connections are reset, one or all",
    "F-16": "the connection is cut in the middle of COMMIT",
    "F-17": "the server crashes and starts again",
    "F-18": "the server is gone for long",
    "F-19": "a replica takes the server's place",
    "F-20": "the server can only be read",
    "F-21": "deadlocks and serialisation failures",
    "F-22": "the connection that listens is dead, or leads nowhere",
    "F-23": "the limits of NOTIFY, and a queue of it that fills",
    "F-24": "handlers hold every connection of the pool",
    "F-25": "too many connections, a wrong password, a schema that was not migrated",
    "F-26": "a person holds locks: on a table, on one row",
    "F-27": "a transaction pooler stands between",
    "F-28": "the database's clock jumps",
    "F-29": "hostile JSON",
    "F-30": "huge numbers of jobs, phases and events",
    "F-31": "another program keeps SQLite's right to write",
    "F-32": "a caller's view of SQLite is too old to write",
    "F-33": "the disk is full",
    "F-34": "the disk fails when it is to be synchronised",
    "F-35": "the power fails",
    "F-36": "a file of the database is removed, replaced, read-only, or on a network file system",
    "F-37": "a stuck reader lets SQLite's log grow",
    "F-38": "two SQLite libraries in one process",
    "F-39": "a migration is interrupted; the schema is older or newer than the code",
    "F-40": "the clock of a worker's machine is wrong",
    "F-41": "summer time, leap seconds, the year 9999",
    "F-42": "the billionth attempt",
    "F-43": "a thundering herd",
    "F-44": "a reader of events is slow or dead",
    "F-45": "receivers of webhooks hang, drip, redirect, refuse, send too much",
    "F-46": "a worker dies between a receiver's answer and its record",
    "F-47": "odd exceptions",
    "F-48": "a task that no worker knows",
    "F-49": "a hook of retention raises, hangs, or deletes by itself",
    "F-50": "two versions of the code on one database",
    "F-51": "callers' transactions stay open, and are half rolled back",
    "F-52": "a foreign writer stays open; transactions commit against their numbers",
    "F-53": "a handler sits in its block on SQLite",
    "F-54": "connections are replaced for ever",
}

LEFT = {
    "F-12": "takes root and `ip`; where they are missing the test is skipped, and says so",
    "F-23": "to fill the queue takes gigabytes: the server is made to say that it is as good as full",
    "F-28": "takes libfaketime; where it cannot be had the tests on PostgreSQL are skipped, and say so",
    "F-38": "cannot be noticed from inside a process: documented as unsupported, and the version is logged",
}
"""What of a fault is not brought about by a test, and why."""


class Line(NamedTuple):
    """One fault: its *tests*, as pytest names them, and what is *left* without one, "" if nothing is."""

    fault: str
    what: str
    tests: tuple[str, ...]
    left: str


def lines() -> Iterator[Line]:
    """Go through all faults."""
    found = find_by_number()
    for fault, what in FAULTS.items():
        yield Line(fault, what, found.get(fault, ()), LEFT.get(fault, ""))


def show() -> str:
    """Write the table."""
    head = ["| fault | what goes wrong | tests | left |", "| --- | --- | --- | --- |"]
    rows = [
        f"| {each.fault} | {each.what} | {', '.join(f'`{test}`' for test in each.tests)} | {each.left} |"
        for each in lines()
    ]
    return "\n".join([*head, *rows])


if __name__ == "__main__":
    print(show())
