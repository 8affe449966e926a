"""The files that workers on a SQLite database keep locked while they live, as far as the database knows of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.database.tx import Row, Tx, repeatable


@dataclass(frozen=True, slots=True)
class LivenessLock:
    """The lock of a worker: its file, and which file that was when the worker took the lock."""

    worker: str
    path: str
    device: int
    inode: int


RECORD = """
    INSERT INTO holdfast_worker (id, facts, started_at, seen_at, lock_path, lock_device, lock_inode)
    VALUES (:worker, '{}', $now, $now, :path, :device, :inode)
    ON CONFLICT (id) DO UPDATE
    SET lock_path = excluded.lock_path, lock_device = excluded.lock_device, lock_inode = excluded.lock_inode"""


@repeatable
async def record(tx: Tx, lock: LivenessLock) -> None:
    """Write down that a worker lives while *lock* is taken."""
    await tx.execute(RECORD, worker=lock.worker, path=lock.path, device=lock.device, inode=lock.inode)


LOCKS = """SELECT id, lock_path, lock_device, lock_inode FROM holdfast_worker WHERE lock_path IS NOT NULL"""


async def list_locks(tx: Tx) -> list[LivenessLock]:
    """Give the locks of all workers that are written down."""
    rows: list[Row] = await tx.fetch_all(LOCKS)
    return [LivenessLock(*row) for row in rows]


FORGET = """DELETE FROM holdfast_worker WHERE id $any(workers: text)"""


@repeatable
async def forget(tx: Tx, workers: Sequence[str]) -> None:
    """Strike *workers* off: they have ended, and have no jobs."""
    await tx.execute(FORGET, workers=list(workers))
