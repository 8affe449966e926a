"""How a host looks at the tenants that have no worker: what both databases have in common."""

from __future__ import annotations

from typing import Protocol

from holdfast.store.glance import Glimpse
from holdfast.worker.hosts.tenant import HostedTenant


class LookReports(Protocol):
    """Who is told what looks have found."""

    def note_found(self, tenant: HostedTenant, found: Glimpse) -> None:
        """Take note of what was found, and have the tenant served if there is something to do."""

    def note_broken(self, tenant: HostedTenant, error: Exception) -> None:
        """Take note that the tenant cannot be looked at."""

    def note_outage(self, part: str, error: Exception | None) -> None:
        """Take note that nothing can be done in one *part* of the host; None: that it can be again."""


class Lookout(Protocol):
    """Looks at tenants when they are due, until its `run` is cancelled."""

    @property
    def period(self) -> float:
        """How many seconds are between two looks at a tenant where nothing tells of news."""

    def add(self, tenant: HostedTenant) -> None:
        """Look at *tenant* from now on."""

    def remove(self, tenant: HostedTenant) -> None:
        """Look at it no more."""

    def wake(self) -> None:
        """See whether somebody is due sooner than was planned."""

    async def run(self) -> None:
        """Look, until cancelled."""

    async def end(self) -> None:
        """Leave nothing behind."""
