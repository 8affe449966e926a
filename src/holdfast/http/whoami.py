"""`/api`: what this is, who asks, and what they may do here."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from pydantic import BaseModel

from holdfast.http.endpoint import Inquiry, NoBody, NoQuery
from holdfast.version import VERSION


class WhoObject(BaseModel):
    """Who asks; *tenant* is the one that they may use, `*` for all, and *chain* the only one that a guest sees."""

    name: str
    role: str
    payloads: bool
    tenant: str | None
    chain: str | None


class LimitsObject(BaseModel):
    """The limits of this server; those of requests and streams are for each who asks."""

    body_bytes: int
    depth: int
    nodes: int
    body_seconds: int
    requests_per_second: int
    streams: int
    all_streams: int
    logins_per_minute: int


class FeaturesObject(BaseModel):
    """What is switched on here."""

    streams: bool
    tenants: bool


class AboutObject(BaseModel):
    """What this is, who asks, and the limits; *tenant* is the one that this address is for."""

    version: str
    database: Literal["postgres", "sqlite"]
    tenant: str | None
    who: WhoObject
    limits: LimitsObject
    features: FeaturesObject


async def read(ask: Inquiry[NoQuery, NoBody]) -> dict[str, Any]:
    """Say what this is, who asks, and what the limits are."""
    who, settings = ask.who, ask.service.hf.settings
    return {
        "version": VERSION,
        "database": "postgres" if settings.is_postgres else "sqlite",
        "tenant": ask.tenant,
        "who": {
            "name": who.name,
            "role": str(who.role),
            "payloads": who.payloads,
            "tenant": who.tenant,
            "chain": None if who.chain is None else str(who.chain),
        },
        "limits": asdict(ask.service.limits),
        "features": {"streams": ask.service.has_streams, "tenants": settings.tenants},
    }
