"""What the tests of a SQLite store write and read: a table of notes, and ways to hold the store up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.database.sqlite.store import SqliteStore
from holdfast.database.tx import Tx
from holdfast.settings import Settings


def new_store(path: Path, deadline_seconds: float = 5.0) -> SqliteStore:
    """Make a store whose file has a table of notes."""
    store = SqliteStore(path, settings=Settings(deadline_seconds=deadline_seconds))
    store.run_sync(create)
    return store


async def create(tx: Tx) -> None:
    await tx.execute("CREATE TABLE IF NOT EXISTS note (id INTEGER PRIMARY KEY, text TEXT NOT NULL)")


async def add(tx: Tx, number: int, text: str = "") -> int:
    await tx.execute("INSERT INTO note (id, text) VALUES (:number, :text)", number=number, text=text)
    return number


async def add_then_fail(tx: Tx, number: int) -> None:
    await add(tx, number)
    raise LookupError(number)


async def sign(tx: Tx, name: str) -> None:
    """Write *name* below those that are there."""
    await tx.execute("INSERT INTO note (id, text) SELECT count(*), :name FROM note", name=name)


async def signatures(tx: Tx) -> list[str]:
    return [name for (name,) in await tx.fetch_all("SELECT text FROM note ORDER BY id")]


async def numbers(tx: Tx) -> list[int]:
    return [number for (number,) in await tx.fetch_all("SELECT id FROM note ORDER BY id")]


async def count(tx: Tx) -> int:
    ((found,),) = await tx.fetch_all("SELECT count(*) FROM note")
    return int(found)


async def is_sound(tx: Tx) -> bool:
    return await tx.fetch_all("PRAGMA integrity_check") == [("ok",)]


@contextmanager
def held(store: SqliteStore) -> Iterator[None]:
    """Keep the right to write, inside an operation, so that whoever comes now has to gather."""
    begun, let_go = threading.Event(), threading.Event()

    async def hold(tx: Tx) -> None:
        begun.set()
        let_go.wait(30)

    holder = threading.Thread(target=store.run_sync, args=(hold,))
    holder.start()
    assert begun.wait(10)
    try:
        yield
    finally:
        let_go.set()
        holder.join()


def waiting(store: SqliteStore) -> int:
    """Count the turns in the queue."""
    return len(store._state.writer._queue._waiting)
