"""`/api/tenants`: the tenants themselves, in the control place; to create, suspend, resume and drop them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from holdfast.http.endpoint import Inquiry, NoBody, NoQuery, Taken
from holdfast.http.jobs import WhyBody
from holdfast.wire.tenant_json import TenantObject, tenant_object


class CreateTenantBody(WhyBody):
    """The name of a new tenant, and the host name by which HTTP finds it."""

    name: str
    host: str | None = None


class DropTenantQuery(Taken):
    """The name again, to confirm it, and why."""

    confirm: str
    why: str | None = None


class TenantList(BaseModel):
    """All tenants, by name."""

    items: list[TenantObject]


async def list_all(ask: Inquiry[NoQuery, NoBody]) -> dict[str, Any]:
    """List the tenants by name, those that are being made or dropped too."""
    return {"items": [tenant_object(each) for each in await ask.control.tenants.list()]}


async def create(ask: Inquiry[NoQuery, CreateTenantBody]) -> dict[str, Any]:
    """Make a tenant with all its tables; if it breaks off, the same again goes on from there."""
    return tenant_object(await ask.control.tenants.create(ask.body.name, host=ask.body.host))


async def suspend(ask: Inquiry[NoQuery, WhyBody]) -> dict[str, Any]:
    """Suspend a tenant: nothing is started or claimed in it; what runs ends, and reads work."""
    return tenant_object(await ask.control.tenants.suspend(ask.path["name"]))


async def resume(ask: Inquiry[NoQuery, WhyBody]) -> dict[str, Any]:
    """Resume a suspended tenant."""
    return tenant_object(await ask.control.tenants.resume(ask.path["name"]))


async def drop(ask: Inquiry[DropTenantQuery, NoBody]) -> None:
    """Remove a suspended tenant with all its jobs."""
    await ask.control.tenants.drop(ask.path["name"], confirm=ask.query.confirm)
