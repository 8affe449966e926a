"""What processes hold: the memory of one, that of a database's backends, and the most locks that one of these had.

It is asked on a connection to another database, so that it is in no count of that database's statements.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

OWN_MEMORY = re.compile(r"^Private_(?:Clean|Dirty):\s+(\d+) kB", re.MULTILINE)
BACKENDS = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
MOST_LOCKS = """
    SELECT coalesce(max(held), 0) FROM (
        SELECT count(*) AS held FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
        WHERE datname = %s AND locktype = 'relation' GROUP BY pid) AS each_backend"""
LOOK_SECONDS = 0.005


def megabytes_of(pid: int) -> float | None:
    """Tell how much memory a process has for itself alone; None if that cannot be seen here."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return None
    return sum(map(int, OWN_MEMORY.findall(text))) / 1024


@dataclass(slots=True)
class Backends:
    """Those of one database: how many there are, their memory, and the most locks that one was seen with."""

    connections: int = 0
    megabytes: float | None = None
    most_locks: int = 0


class LockWatch:
    """Looks at the locks of a *database* of the server at *url*, all the time, in a thread of its own."""

    def __init__(self, url: str, database: str) -> None:
        self._url = url
        self._connection = psycopg.connect(url, autocommit=True)
        self._database = database
        self._most = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as own:
            while not self._ends.wait(LOOK_SECONDS):
                (held,) = own.execute(MOST_LOCKS, [self._database]).fetchone() or (0,)
                self._most = max(self._most, held)

    def stop(self) -> None:
        """Look no more, for to look costs the server some CPU."""
        self._ends.set()
        self._thread.join()

    def read(self) -> Backends:
        """Tell how the backends are now."""
        pids = [pid for (pid,) in self._connection.execute(BACKENDS, [self._database]).fetchall()]
        sizes = [megabytes_of(pid) for pid in pids]
        seen = [each for each in sizes if each is not None]
        return Backends(len(pids), sum(seen) if len(seen) == len(pids) else None, self._most)

    @contextmanager
    def running(self) -> Iterator[LockWatch]:
        """Look until the block ends."""
        self._thread.start()
        try:
            yield self
        finally:
            self.stop()
            self._connection.close()


@contextmanager
def watched(store: str, url: str, database: str) -> Iterator[LockWatch | None]:
    """Watch a *database*; nothing on SQLite, which has no backends."""
    if store == "SQLite":
        yield None
        return
    with LockWatch(url, database).running() as watch:
        yield watch
