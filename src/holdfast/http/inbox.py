"""`/api/inbox`: what waits for a person, with the calls that fit."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from holdfast.access import Role
from holdfast.http.endpoint import Inquiry, NoBody, PageQuery
from holdfast.questions import InboxKind
from holdfast.wire.inbox_json import InboxObject, inbox_object, task_of


class InboxQuery(PageQuery):
    """Which kind of entries."""

    kind: InboxKind | None = None


class InboxPage(BaseModel):
    """A page of entries: the oldest of each kind first; it may be short although another follows."""

    items: list[InboxObject]
    next_cursor: str | None


async def list_all(ask: Inquiry[InboxQuery, NoBody]) -> dict[str, Any]:
    """List what waits for a person: questions, failures, paused jobs, halted lanes, webhooks that were given up."""
    page = await ask.hf.inbox(ask.query.kind, **ask.query.page)
    masked = not ask.who.role.allows(Role.ADMIN)
    items = [inbox_object(each, ask.shown.of(task_of(each)), masked=masked) for each in page]
    return {"items": items, "next_cursor": page.next_cursor}
