"""How a host looks at its tenants on PostgreSQL: at 25 of them in one statement, on a connection of its own.

The statement stays the same as long as its tenants do, so that it is planned once; also those are in it that have a
worker just now. (One for 100 tenants held 1,502 locks when it was planned, and 22 such transactions are more than a
server has room for.) If it fails, it is halved until the broken ones are found; these are left out for a minute, and
then looked at alone. A locked tenant is a broken one, too, after a short while: the others wait with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf

from holdfast.database.tx import Store
from holdfast.logging import reason_of, say
from holdfast.runtime import Runtime
from holdfast.store import glance
from holdfast.store.glance import Glimpse, Served
from holdfast.store.workers import Member
from holdfast.worker.hosts.dividing import divide
from holdfast.worker.hosts.lookout import LookReports
from holdfast.worker.hosts.tenant import HostedTenant, period

MOST_TENANTS = 25
RENEW_SECONDS = 300.0
SHORTEST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
GOODBYE_SECONDS = 2.0

logger = logging.getLogger(__name__)


class TenantGroup:
    """Up to 25 tenants that are looked at together."""

    def __init__(self, renewed_at: float) -> None:
        self.members: list[HostedTenant] = []
        self.renewed_at = renewed_at
        self.is_begun = False
        """Whether they have been looked at."""
        self._places: tuple[str, ...] = ()
        self._text = ""

    def due_at(self) -> float:
        """Say when the first of them is due."""
        return min((each.due_at() for each in self.members), default=inf)

    def seen(self) -> list[HostedTenant]:
        """Give those that are looked at, in the order of the text."""
        return [each for each in self.members if each.is_active and each.out_until is None]

    def text(self, places: tuple[str, ...], forget: Callable[[str], None]) -> str:
        """Give the text for *places*; the one before it is dropped by *forget*."""
        if places != self._places:
            forget(self._text)
            self._places, self._text = places, glance.text_for(places)
        return self._text


class Glances:
    """Looks at tenants over *store*; *member* is the row that says that their host sleeps."""

    def __init__(self, store: Store, runtime: Runtime, served: Served, member: Member, reports: LookReports) -> None:
        self._store = store
        self._runtime = runtime
        self._monotonic = runtime.monotonic
        self._served = served
        self._member = member
        self._reports = reports
        self._groups: list[TenantGroup] = []
        self._woken = asyncio.Event()
        self._failures = 0

    @property
    def period(self) -> float:
        return period(len(self._groups))

    def add(self, tenant: HostedTenant) -> None:
        """Put it into the first group with room."""
        group = next((each for each in self._groups if len(each.members) < MOST_TENANTS), None)
        if group is None:
            group = TenantGroup(self._monotonic())
            self._groups.append(group)
        group.members.append(tenant)
        self.wake()

    def remove(self, tenant: HostedTenant) -> None:
        for group in self._groups:
            if tenant in group.members:
                group.members.remove(tenant)
        self._groups = [each for each in self._groups if each.members]

    def wake(self) -> None:
        self._woken.set()

    async def run(self) -> None:
        while True:
            self._woken.clear()
            try:
                seconds = await self._step()
                self._note_success()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next look comes
                seconds = self._after_failure(error)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._woken.wait()

    async def end(self) -> None:
        """Take away the marks, as far as that is possible at once; others forget them later."""
        with suppress(Exception):
            async with asyncio.timeout(GOODBYE_SECONDS):
                for group in self._groups:
                    await self._unmark([each for each in group.seen() if each.mark is not None and each.mark.is_marked])

    async def _step(self) -> float | None:
        """Look at the group that is due first, if one is, or at one that was left out; answer when to come again."""
        now = self._monotonic()
        left_out = [each for group in self._groups for each in group.members if each.out_until is not None]
        if alone := next((each for each in left_out if each.out_until is not None and each.out_until <= now), None):
            await self._look([alone])
            return 0.0
        group = min(self._groups, key=TenantGroup.due_at, default=None)
        if group is not None and group.due_at() <= now:
            await self._look_at(group)
            return 0.0
        ahead = [group.due_at() if group is not None else inf, *(each.out_until or inf for each in left_out)]
        return max(0.0, min(ahead) - now) if min(ahead) < inf else None

    async def _look_at(self, group: TenantGroup) -> None:
        await self._mark(group)
        await self._look(group.seen(), partial(group.text, forget=self._store.dialect.forget))
        if not group.is_begun:  # from now on each group has a time of its own, also beside the groups of other hosts
            group.is_begun = True
            at = self._monotonic() + self.period * self._runtime.chance.random()
            for each in group.members:
                each.look_at = min(each.look_at, at)

    async def _look(
        self, tenants: Sequence[HostedTenant], text_of: Callable[[tuple[str, ...]], str] | None = None
    ) -> None:
        """Look at *tenants*; *text_of* gives the text that is kept for all of them."""

        async def look(some: Sequence[HostedTenant]) -> list[Glimpse]:
            places = tuple(each.place for each in some)
            if text_of is not None and len(some) == len(tenants):
                return await self._store.read(glance.look_at_many, text_of(places), self._served)
            return await self._once(glance.text_for(places))

        divided = await divide(tenants, look, self._is_there)
        for tenant, found in divided.done:
            self._reports.note_found(tenant, found)
        for tenant, error in divided.broken:
            self._reports.note_broken(tenant, error)

    async def _once(self, text: str) -> list[Glimpse]:
        try:
            return await self._store.read(glance.look_at_many, text, self._served)
        finally:
            self._store.dialect.forget(text)

    async def _is_there(self) -> bool:
        """Tell whether the server answers at all; then what has failed is for one of the tenants."""
        try:
            await self._store.read(glance.answer)
        except Exception:  # noqa: BLE001 - whatever it is, it does not
            return False
        return True

    async def _mark(self, group: TenantGroup) -> None:
        """Mark those as asleep that want to be, and all of them again every five minutes."""
        now = self._monotonic()
        is_time = now - group.renewed_at >= RENEW_SECONDS
        if is_time:
            group.renewed_at = now
        sleepers = [each for each in group.seen() if each.mark is not None and each.mark.is_marked and is_time]
        wanted = [each for each in group.seen() if each.wants_mark]
        divided = await divide(list(dict.fromkeys((*wanted, *sleepers))), self._write_marks, self._is_there)
        for tenant, _ in divided.done:
            if tenant.mark is not None and tenant in wanted:
                tenant.mark.has_marked()
        for tenant, error in divided.broken:  # the look that follows tells whether it is broken
            say(logger, "tenant_not_marked", tenant=tenant.name, reason=reason_of(error))

    async def _write_marks(self, tenants: Sequence[HostedTenant]) -> list[None]:
        text = glance.mark_text_for([each.place for each in tenants])
        try:
            await self._store.run(glance.write_marks, text, self._member)
        finally:
            self._store.dialect.forget(text)
        return [None] * len(tenants)

    async def _unmark(self, tenants: Sequence[HostedTenant]) -> None:
        if tenants:
            text = glance.unmark_text_for([each.place for each in tenants])
            await self._store.run(glance.take_marks, text, self._member.id)
            self._store.dialect.forget(text)

    def _note_success(self) -> None:
        if self._failures:
            self._failures = 0
            self._reports.note_outage("looks", None)

    def _after_failure(self, error: Exception) -> float:
        self._failures += 1
        self._reports.note_outage("looks", error)
        longest = min(LONGEST_PAUSE, SHORTEST_PAUSE * 2.0 ** min(self._failures, 10))
        return longest * (0.5 + self._runtime.chance.random() / 2)
