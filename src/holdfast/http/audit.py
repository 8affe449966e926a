"""`/api/audit`: who has done what, when and why."""

from __future__ import annotations

from typing import Any

from pydantic import AwareDatetime, BaseModel, Field

from holdfast.http.endpoint import Inquiry, NoBody, PageQuery
from holdfast.wire.access_json import AuditObject, audit_object


class AuditSearch(PageQuery):
    """Which entries: of whom, of which action, on what, and in which time."""

    who: str | None = None
    action: str | None = None
    subject: str | None = None
    since: AwareDatetime | None = Field(None, alias="from")
    until: AwareDatetime | None = Field(None, alias="to")


class AuditPage(BaseModel):
    """A page of entries, newest first; it may be short, or empty, although another follows."""

    items: list[AuditObject]
    next_cursor: str | None


async def list_all(ask: Inquiry[AuditSearch, NoBody]) -> dict[str, Any]:
    """List what was done, newest first: who, when, what, to what and why."""
    wanted = ask.query
    page = await ask.hf.audit(
        who=wanted.who,
        action=wanted.action,
        subject=wanted.subject,
        since=wanted.since,
        until=wanted.until,
        **wanted.page,
    )
    return {"items": [audit_object(each) for each in page], "next_cursor": page.next_cursor}
