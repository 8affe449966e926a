"""huey on SQLite. Run it in huey's environment: `python -m bench.peers.huey_start FILE TEXT`."""

from __future__ import annotations

import sys
from importlib.metadata import version

from huey import SqliteHuey  # type: ignore[import-not-found]

from bench.peers.serving import serve

# huey's API page: "fsync: use durable writes. Slower but more resilient to corruption in the event of sudden power
# loss. Defaults to false." So it is on, as everywhere here; the journal is a WAL by default.
huey = SqliteHuey("bench", filename=sys.argv[1], fsync=True)
text = sys.argv[2]


@huey.task()  # type: ignore[untyped-decorator]
def work(text: str) -> None:
    """Do nothing."""


def single(count: int) -> None:
    """Enqueue one after the other."""
    for _ in range(count):
        work(text)


if __name__ == "__main__":
    serve(f"huey {version('huey')}", {"single": single}, huey.pending_count)
