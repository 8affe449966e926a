"""Tenants that cannot be served: said once in the log, and once when that is over, and written into the registry."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from holdfast.client.tenant_store import in_words
from holdfast.database.tx import Store
from holdfast.logging import reason_of, say
from holdfast.store import glance, tenants
from holdfast.worker.hosts.tenant import HostedTenant

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, object]], None]
"""Has something done beside the rest; an error in it harms nobody."""

logger = logging.getLogger(__name__)


class TenantTroubles:
    """Keeps the registry in the *control* place up to date."""

    def __init__(self, control: Store, spawn: Spawn) -> None:
        self._control = control
        self._spawn = spawn

    def leave_out(self, tenant: HostedTenant, error: Exception) -> None:
        """Leave *tenant* alone for a while, and say so unless it was dropped: who looks may see that first."""
        tenant.leave_out()
        is_new, tenant.is_said_to_be_out = not tenant.is_said_to_be_out, True
        self._spawn(self._say_left_out(tenant, reason_of(in_words(error, tenant.name)), is_new))

    async def _say_left_out(self, tenant: HostedTenant, reason: str, is_new: bool) -> None:
        if await self._is_gone(tenant):
            return
        if is_new:
            say(logger, "tenant_left_out", tenant=tenant.name, reason=reason)
        self._note(tenant, reason)

    async def _is_gone(self, tenant: HostedTenant) -> bool:
        """Tell whether it was dropped, also if one of the same name was made since."""
        try:
            found = await self._control.read(tenants.find_tenant, tenant.name)
        except Exception:  # noqa: BLE001 - whatever it is, nobody knows
            return False
        return found is None or found.state == "dropping" or found.created_at != tenant.created_at

    def is_well(self, tenant: HostedTenant) -> None:
        """Take note that it can be looked at."""
        if tenant.is_said_to_be_out:
            tenant.is_said_to_be_out = False
            seconds = round(tenant.monotonic() - tenant.trouble_since, 1)
            say(logger, "tenant_served_again", tenant=tenant.name, seconds=seconds)
        self._note(tenant, None)

    def note_of_worker(self, tenant: HostedTenant, trouble: str | None) -> None:
        """Take note of what its worker says of its place, which it logs itself."""
        self._note(tenant, trouble)

    async def is_control_well(self) -> bool:
        """Tell whether the control place answers; then what has failed is for one tenant."""
        try:
            await self._control.read(glance.answer)
        except Exception:  # noqa: BLE001 - whatever it is, it does not
            return False
        return True

    def _note(self, tenant: HostedTenant, trouble: str | None) -> None:
        if trouble == tenant.trouble:
            return
        if tenant.trouble is None:
            tenant.trouble_since = tenant.monotonic()
        tenant.trouble = trouble
        self._spawn(self._control.run(tenants.note_trouble, [(tenant.name, trouble)]))
