"""A program in which 64 callers write at once, and each says what it was told: `python -m tests.disk.callers jobs.db`.

It goes on at each line that it is sent: first they write, all in one group, then it says what became of them, and that
it can write again.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path
from typing import Any

from holdfast.database.sqlite.store import SqliteStore
from holdfast.errors import Unavailable, UnknownOutcome
from tests.acceptance.processes import until
from tests.store.notes import add, held, is_sound, new_store, numbers, waiting

CALLERS = 64
AFTERWARDS = 1000


def kind_of(outcome: object) -> str:
    """Name what a caller was told."""
    match outcome:
        case int():
            return "done"
        case UnknownOutcome():
            return "unknown"
        case Unavailable():
            return "refused"
        case _:
            return repr(outcome)


async def call_all(store: SqliteStore, told: dict[int, str]) -> None:
    """Have everybody write a note of his own."""
    calls = [store.run(add, number, "x" * 500) for number in range(CALLERS)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    told.update(enumerate(map(kind_of, outcomes)))


def write_together(store: SqliteStore) -> dict[int, str]:
    """Have everybody write in one group."""
    told: dict[int, str] = {}
    callers = threading.Thread(target=lambda: asyncio.run(call_all(store, told)))
    with held(store):
        callers.start()
        until(lambda: waiting(store) == CALLERS, "all of them wait")
    callers.join()
    return told


def main(path: Path) -> None:
    """Say each answer in a line."""
    store = new_store(path)
    asyncio.run(store.run(add, 999))  # its thread is there, and its connection open
    _say("ready")
    sys.stdin.readline()
    _say(write_together(store))
    sys.stdin.readline()
    store.run_sync(add, AFTERWARDS)
    _say({"found": store.read_sync(numbers), "is_sound": store.read_sync(is_sound)})
    store.close_sync()


def _say(what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
