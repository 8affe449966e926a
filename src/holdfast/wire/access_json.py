"""How tokens, links and entries of the audit are written for those outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel

from holdfast.wire.objects import Instant, MaybeInstant, MaybeText, Text, Written, writer_of


def _dict(facts: Mapping[str, Any]) -> dict[str, Any]:
    return dict(facts)


class TokenObject(BaseModel):
    """A token, without its secret."""

    id: Text
    name: str
    role: Text
    tenant: str | None
    payloads: bool
    created_at: Instant
    created_by: str | None
    expires_at: MaybeInstant
    revoked_at: MaybeInstant
    used_at: MaybeInstant


class LinkObject(BaseModel):
    """A link for an outsider, without its secret."""

    id: Text
    chain: Text
    tenant: str | None
    payloads: bool
    created_at: Instant
    created_by: str | None
    expires_at: MaybeInstant
    revoked_at: MaybeInstant
    used_at: MaybeInstant


class AuditObject(BaseModel):
    """An act that somebody has done."""

    id: str
    at: Instant
    who: str
    action: str
    subject: str
    why: str | None
    request: MaybeText
    facts: Annotated[dict[str, Any], Written(_dict)]


token_object = writer_of(TokenObject)
link_object = writer_of(LinkObject)
audit_object = writer_of(AuditObject)
