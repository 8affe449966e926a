"""Proof of death on SQLite: each worker locks a file of its own; who gets that lock takes its jobs over at once.

A lock that is not got, and a file that is missing or another one, prove nothing: then the lease decides, as everywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from holdfast.database.sqlite.file_locks import HeldLock, take_liveness_lock, take_of_the_dead
from holdfast.database.sqlite.store import SqliteStore
from holdfast.database.tx import Store
from holdfast.fault_points import reach
from holdfast.logging import say
from holdfast.store import workers
from holdfast.store.jobs import reaping
from holdfast.store.jobs.reaping import TakenBack
from holdfast.store.workers import LivenessLock, Machine

logger = logging.getLogger(__name__)


class LivenessLocks:
    """The lock of one worker, and its look at the locks of the others; asked in the worker's loop only."""

    def __init__(self, store: SqliteStore, worker: str) -> None:
        self._store = store
        self._worker = worker
        self._own: HeldLock | None = None
        self._others: list[LivenessLock] = []
        self._dead: dict[str, HeldLock] = {}

    async def begin(self) -> None:
        """Take our own lock and write it down; nothing may be claimed before."""
        database = self._store.path
        path = f"{database}-holdfast-worker-{self._worker.rpartition('-')[2]}"
        self._own = take_liveness_lock(path, model=database)
        await self._store.run(workers.record_lock, LivenessLock(self._worker, path, self._own.device, self._own.inode))

    async def end(self) -> None:
        """Strike us off and let go; only if we have no jobs any more."""
        await self._store.run(workers.forget_with_lock, [self._worker])
        self.drop()

    def drop(self) -> None:
        """Let go of every lock; jobs that are still ours may be taken over from now on."""
        if self._own is not None:
            self._own.remove()
        for lock in self._dead.values():
            lock.close()
        self._own, self._dead = None, {}

    def sees_a_death(self) -> bool:
        """Look at the locks of the others that were known last time; asks only the file system."""
        self._look()
        return bool(self._dead)

    async def take_over_the_dead(self) -> list[TakenBack]:
        """Take back the jobs of every worker that is proved dead; answer which."""
        known = await self._store.read(workers.list_locks)
        self._others = [each for each in known if each.worker != self._worker]
        self._look()
        if not self._dead:
            return []
        reach("reap.after_proof")
        taken: list[TakenBack] = []
        while some := await self._store.run(reaping.reap_dead, sorted(self._dead), machine=Machine.here()):
            taken += some
        await self._store.run(workers.forget_with_lock, sorted(self._dead))
        say(logger, "workers_found_dead", workers=sorted(self._dead), jobs=len(taken))
        dead, self._dead = self._dead, {}
        self._others = [each for each in self._others if each.worker not in dead]
        for lock in dead.values():
            lock.remove()
        return taken

    def _look(self) -> None:
        for each in self._others:
            if each.worker not in self._dead and (lock := _take_if_dead(self._store.path, each)) is not None:
                self._dead[each.worker] = lock


def has_a_dead(database: str, locks: Sequence[LivenessLock]) -> bool:
    """Tell whether the worker of one of *locks*, which stand in the file *database*, is dead; in the loop only."""
    for each in locks:
        if (lock := _take_if_dead(database, each)) is not None:
            lock.close()  # for the worker that takes its jobs over
            return True
    return False


def _take_if_dead(database: str, of: LivenessLock) -> HeldLock | None:
    """Take the lock of a worker that is dead."""
    # the name beside our own database: a container may see the same files under another path
    path = str(Path(database).with_name(Path(of.path).name))
    return take_of_the_dead(path, of.device, of.inode)


def make_liveness_locks(store: Store, worker: str) -> LivenessLocks | None:
    """Make the locks of a worker on *store*; only SQLite has them, since its workers share a machine."""
    return LivenessLocks(store, worker) if isinstance(store, SqliteStore) else None
