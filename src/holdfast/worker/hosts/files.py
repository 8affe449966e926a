"""How a host looks at its tenants on SQLite: at the times of their files, and into those that have changed.

A file whose times are as they were is not opened. Some are kept open, those that were looked into last; the others are
closed again. To open and to close one changes nothing that is looked at here, unless there is something in its log that
the close writes back, once.

A commit of another process shows in the log before it can be read. So a file that has changed is looked into again a
few times, each after twice the time.

Nothing in a file tells that a worker has died which runs a job there. So the locks of workers are tried, of files with
running jobs, about every second: what a dead one left is taken over at once, as from any other file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from holdfast.database.sqlite.store import SqliteStore
from holdfast.database.tx import Store
from holdfast.errors import StoreError
from holdfast.runtime import Runtime
from holdfast.store import glance, workers
from holdfast.store.glance import Glimpse, Served
from holdfast.store.workers import LivenessLock
from holdfast.worker.hosts.lookout import LookReports
from holdfast.worker.hosts.tenant import HostedTenant
from holdfast.worker.upkeep.liveness_lock import has_a_dead
from holdfast.worker.upkeep.reaper import DEATH_LOOK_SECONDS

MARK_SECONDS = 0.2
PERIOD_SECONDS = 120.0
"""How often a file is looked into that does not change."""
MOST_OPEN = 32
MOST_AT_ONCE = 4
FIRST_ECHO_SECONDS, LAST_ECHO_SECONDS = 0.2, 1.6


@dataclass(eq=False)
class _File:
    tenant: HostedTenant
    path: str
    mark: object = None
    echo_at: float | None = None
    echo_seconds: float = FIRST_ECHO_SECONDS
    locks: Sequence[LivenessLock] = ()
    """Those of the workers there, while jobs run there."""


class FileLookout:
    """Looks at the files of tenants."""

    def __init__(self, runtime: Runtime, served: Served, reports: LookReports) -> None:
        self._runtime = runtime
        self._monotonic = runtime.monotonic
        self._served = served
        self._reports = reports
        self._files: dict[HostedTenant, _File] = {}
        self._open: dict[HostedTenant, None] = {}
        """Those that may be open, the one that was looked into last at the end."""
        self._woken = asyncio.Event()
        self._deaths_at = runtime.monotonic()
        """When it is to be seen next whether a worker has died."""

    @property
    def period(self) -> float:
        return PERIOD_SECONDS

    def add(self, tenant: HostedTenant) -> None:
        assert isinstance(tenant.store, SqliteStore)  # noqa: S101 - all tenants are on the same database
        self._files[tenant] = _File(tenant, tenant.store.path)
        self.wake()

    def remove(self, tenant: HostedTenant) -> None:
        self._files.pop(tenant, None)

    def wake(self) -> None:
        self._woken.set()

    async def run(self) -> None:
        while True:
            self._woken.clear()
            try:
                await self._step()
                self._reports.note_outage("looks", None)
            except Exception as error:  # noqa: BLE001 - such as that no thread can be started; the next look comes
                self._reports.note_outage("looks", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(MARK_SECONDS):
                    await self._woken.wait()

    async def _step(self) -> None:
        due = await self._due()
        for some in (due[start : start + MOST_AT_ONCE] for start in range(0, len(due), MOST_AT_ONCE)):
            await asyncio.gather(*map(self._look, some))
            await self._close_some()

    async def end(self) -> None:
        """Leave the files to who has opened them."""

    async def _due(self) -> list[_File]:
        """Give the files that have changed, or are to be looked into anyway; to see the times may block."""
        now = self._monotonic()
        files = [each for each in self._files.values() if each.tenant.is_idle or _may_be_back(each.tenant, now)]
        sees_deaths = now >= self._deaths_at
        if sees_deaths:
            self._deaths_at = now + DEATH_LOOK_SECONDS
        marks = await self._runtime.threads.call(lambda: [self._mark(each.path) for each in files])
        due = []
        for file, mark in zip(files, marks, strict=True):
            has_changed = mark != file.mark
            if has_changed:
                file.mark, file.echo_at, file.echo_seconds = mark, now + FIRST_ECHO_SECONDS, FIRST_ECHO_SECONDS
            is_echo = not has_changed and file.echo_at is not None and now >= file.echo_at
            if is_echo:
                file.echo_seconds *= 2
                file.echo_at = now + file.echo_seconds if file.echo_seconds <= LAST_ECHO_SECONDS else None
            has_death = sees_deaths and has_a_dead(file.path, file.locks)
            is_due = _may_be_back(file.tenant, now) or file.tenant.due_at() <= now
            if has_changed or is_echo or has_death or is_due:
                due.append(file)
        return due

    def _mark(self, path: str) -> object:
        """Give what changes by a commit; an empty log is as good as none, for who only reads makes and removes it."""
        log = self._runtime.file_mark(f"{path}-wal")
        is_empty = isinstance(log, tuple) and log[1] == 0
        return self._runtime.file_mark(path), None if is_empty else log

    async def _look(self, file: _File) -> None:
        tenant = file.tenant
        self._open.pop(tenant, None)
        self._open[tenant] = None
        try:
            found = await self._look_into(file)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are looked at
            self._reports.note_broken(tenant, error)
        else:
            self._reports.note_found(tenant, found)

    async def _look_into(self, file: _File) -> Glimpse:
        """Look at a tenant; the lease of a worker that is dead counts as over."""
        store = file.tenant.store
        found = await store.read(glance.look, self._served)
        file.locks = () if found.lease_ms is None else await store.read(workers.list_locks)
        if not has_a_dead(file.path, file.locks):
            return found
        return found._replace(lease_ms=-found.now_ms)  # since ever, so that the next look finds the same again

    async def _close_some(self) -> None:
        """Close the files that were looked into longest ago, unless they have a worker."""
        idle: Sequence[HostedTenant] = [each for each in self._open if each.serving is None]
        for tenant in idle[: max(0, len(self._open) - MOST_OPEN)]:
            del self._open[tenant]
            await _close(tenant.store)


async def _close(store: Store) -> None:
    with suppress(StoreError):
        await store.close()


def _may_be_back(tenant: HostedTenant, now: float) -> bool:
    return tenant.is_active and tenant.out_until is not None and tenant.out_until <= now
