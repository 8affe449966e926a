"""How tenants are written for those outside."""

from __future__ import annotations

from pydantic import BaseModel

from holdfast.wire.objects import Instant, MaybeInstant, writer_of


class TenantObject(BaseModel):
    """A tenant, as the registry has it."""

    name: str
    place: str
    host: str | None
    state: str
    created_at: Instant
    changed_at: Instant
    changed_by: str | None
    reason: str | None
    trouble: str | None
    trouble_at: MaybeInstant


tenant_object = writer_of(TenantObject)
